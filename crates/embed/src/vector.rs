//! Unit vectors quantised to eight bits, alone and in a table.

#![allow(
    clippy::inline_always,
    reason = "only inlined functions are compiled for the vectors of the machine"
)]

use std::collections::HashMap;

use rayon::prelude::*;

/// The minimum number of vectors that one core compares.
const VECTORS_PER_TASK: usize = 4096;

/// A unit vector with one byte per component.
///
/// ```
/// use repertoire_embed::Vector;
///
/// let north = Vector::new(&[2.0, 0.0, 0.0]);
/// let west = Vector::new(&[0.0, 5.0, 0.0]);
/// assert!((north.cosine_similarity(&north) - 1.0).abs() < 0.01);
/// assert!(north.cosine_similarity(&west).abs() < 0.01);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Vector {
    /// The value of one step.
    scale: f32,
    steps: Box<[i8]>,
}

impl Vector {
    /// Normalises and quantises some numbers. Numbers without a direction give the zero vector,
    /// which is similar to nothing.
    pub fn new(numbers: &[f32]) -> Self {
        let length = numbers.iter().map(|x| x * x).sum::<f32>().sqrt();
        let most = numbers.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        if !(length.is_normal() && most.is_normal()) {
            return Self {
                scale: 0.0,
                steps: vec![0; numbers.len()].into(),
            };
        }
        #[allow(clippy::cast_possible_truncation, reason = "at most 127")]
        let steps = numbers
            .iter()
            .map(|number| (number / most * 127.0).round() as i8);
        Self {
            steps: steps.collect(),
            scale: most / length / 127.0,
        }
    }

    /// Whether it has no direction.
    pub fn is_zero(&self) -> bool {
        self.scale == 0.0
    }

    /// How many components it has.
    pub fn dimensions(&self) -> usize {
        self.steps.len()
    }

    /// The cosine similarity of two vectors, from -1 to 1; 0 if they have different dimensions.
    pub fn cosine_similarity(&self, other: &Self) -> f32 {
        if self.dimensions() != other.dimensions() {
            return 0.0;
        }
        scaled(dot(&self.steps, &other.steps), self.scale * other.scale)
    }

    /// The weighted mean with another vector, normalised; `weight` is the share of this one.
    #[must_use]
    pub fn blend_with(&self, weight: f32, other: &Self) -> Self {
        let mine = weight * self.scale;
        let theirs = (1.0 - weight) * other.scale;
        let both = self.steps.iter().zip(other.steps.iter());
        let numbers: Vec<f32> = both
            .map(|(a, b)| f32::from(*a) * mine + f32::from(*b) * theirs)
            .collect();
        Self::new(&numbers)
    }

    /// The components of the vector.
    pub fn components(&self) -> impl Iterator<Item = f32> {
        self.steps.iter().map(|step| f32::from(*step) * self.scale)
    }

    /// Encodes the vector for storage.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 + self.steps.len());
        bytes.extend(self.scale.to_le_bytes());
        bytes.extend(self.steps.iter().map(|step| step.cast_unsigned()));
        bytes
    }

    /// Decodes a stored vector; returns `None` if the bytes are not one of that many dimensions.
    pub fn from_bytes(bytes: &[u8], dimensions: usize) -> Option<Self> {
        let (scale, steps) = bytes.split_first_chunk::<4>()?;
        let scale = f32::from_le_bytes(*scale);
        let in_range = scale.is_finite() && (0.0..=1.0).contains(&scale);
        (in_range && steps.len() == dimensions).then(|| Self {
            scale,
            steps: steps.iter().map(|step| step.cast_signed()).collect(),
        })
    }
}

/// Vectors side by side in memory, each with a key; a key may have several.
///
/// ```
/// use repertoire_embed::{Vector, VectorTable};
///
/// let mut table = VectorTable::new(2);
/// table.insert("north", &[Vector::new(&[0.0, 1.0])]);
/// table.insert("west", &[Vector::new(&[1.0, 0.0])]);
/// let cosines = table.cosines(&Vector::new(&[0.1, 2.0]));
/// let best = table.keys().zip(cosines).max_by(|a, b| a.1.total_cmp(&b.1));
/// assert_eq!(best.map(|(key, _)| *key), Some("north"));
/// ```
#[derive(Debug)]
pub struct VectorTable<K> {
    dimensions: usize,
    keys: Vec<K>,
    scales: Vec<f32>,
    steps: Vec<i8>,
    places: HashMap<K, Vec<usize>>,
}

impl<K: Clone + Eq + std::hash::Hash> VectorTable<K> {
    /// Creates an empty table.
    pub fn new(dimensions: usize) -> Self {
        Self {
            dimensions,
            keys: Vec::new(),
            scales: Vec::new(),
            steps: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// How many vectors there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key of each vector.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &K> {
        self.keys.iter()
    }

    /// Whether a key has vectors.
    pub fn contains(&self, key: &K) -> bool {
        self.places.contains_key(key)
    }

    /// The key of the vector at a place, in the order of [`Self::keys`].
    pub fn key(&self, place: usize) -> Option<&K> {
        self.keys.get(place)
    }

    /// Replaces the vectors of a key. Vectors of other dimensions are ignored.
    pub fn insert(&mut self, key: K, vectors: &[Vector]) {
        self.remove(&key);
        let mut places = Vec::new();
        for vector in vectors {
            if vector.dimensions() != self.dimensions {
                continue;
            }
            places.push(self.keys.len());
            self.keys.push(key.clone());
            self.scales.push(vector.scale);
            self.steps.extend(&vector.steps);
        }
        if !places.is_empty() {
            self.places.insert(key, places);
        }
    }

    /// Removes the vectors of a key.
    pub fn remove(&mut self, key: &K) {
        let Some(mut places) = self.places.remove(key) else {
            return;
        };
        // From the last to the first, so that the vector moved to a place is not one of these.
        places.sort_unstable();
        for place in places.into_iter().rev() {
            let last = self.keys.len() - 1;
            self.keys.swap_remove(place);
            self.scales.swap_remove(place);
            let (from, to) = (last * self.dimensions, place * self.dimensions);
            self.steps.copy_within(from..from + self.dimensions, to);
            self.steps.truncate(from);
            if place < last
                && let Some(places) = self.places.get_mut(&self.keys[place])
            {
                places
                    .iter_mut()
                    .filter(|at| **at == last)
                    .for_each(|at| *at = place);
            }
        }
    }

    /// Returns the vectors of a key.
    pub fn get(&self, key: &K) -> impl Iterator<Item = Vector> {
        let places = self.places.get(key).map_or(&[] as &[usize], |all| all);
        places.iter().map(|&place| Vector {
            scale: self.scales[place],
            steps: self.row(place).into(),
        })
    }

    /// The largest cosine of a vector with those of a key; `None` if it has none.
    pub fn cosine(&self, key: &K, vector: &Vector) -> Option<f32> {
        if vector.dimensions() != self.dimensions {
            return None;
        }
        let places = self.places.get(key)?.iter();
        places
            .map(|&place| {
                let scale = self.scales[place] * vector.scale;
                scaled(dot(self.row(place), &vector.steps), scale)
            })
            .max_by(f32::total_cmp)
    }

    /// The cosine of a vector with each vector of the table, in the order of [`Self::keys`].
    pub fn cosines(&self, vector: &Vector) -> Vec<f32> {
        if vector.dimensions() != self.dimensions {
            return vec![0.0; self.len()];
        }
        let mut cosines = vec![0.0; self.len()];
        let chunks = self.steps.par_chunks(VECTORS_PER_TASK * self.dimensions);
        chunks
            .zip(self.scales.par_chunks(VECTORS_PER_TASK))
            .zip(cosines.par_chunks_mut(VECTORS_PER_TASK))
            .for_each(|((steps, scales), cosines)| {
                pulp::Arch::new().dispatch(Comparison {
                    vector,
                    steps,
                    scales,
                    cosines,
                });
            });
        cosines
    }

    fn row(&self, place: usize) -> &[i8] {
        &self.steps[place * self.dimensions..(place + 1) * self.dimensions]
    }
}

/// Compares one vector with several, which have as many dimensions.
struct Comparison<'a> {
    vector: &'a Vector,
    steps: &'a [i8],
    scales: &'a [f32],
    cosines: &'a mut [f32],
}

impl pulp::NullaryFnOnce for Comparison<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let rows = self.steps.chunks_exact(self.vector.dimensions());
        for ((row, scale), cosine) in rows.zip(self.scales).zip(self.cosines) {
            *cosine = scaled(dot(row, &self.vector.steps), scale * self.vector.scale);
        }
    }
}

#[inline(always)]
fn dot(a: &[i8], b: &[i8]) -> i32 {
    let both = a.iter().zip(b);
    both.map(|(a, b)| i32::from(i16::from(*a) * i16::from(*b)))
        .sum()
}

#[inline(always)]
fn scaled(sum: i32, scale: f32) -> f32 {
    #[allow(clippy::cast_precision_loss, reason = "a few digits are enough")]
    let sum = sum as f32;
    sum * scale
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMENSIONS: usize = 384;

    fn sine_vector(pace: f32) -> Vector {
        let mut at = 0.0;
        let next = std::iter::repeat_with(|| {
            at += pace;
            f32::sin(at)
        });
        Vector::new(&next.take(DIMENSIONS).collect::<Vec<f32>>())
    }

    #[test]
    fn vectors_round_trip_through_bytes() {
        let vector = sine_vector(0.3);
        let bytes = vector.to_bytes();
        assert_eq!(Vector::from_bytes(&bytes, DIMENSIONS), Some(vector.clone()));
        assert_eq!(Vector::from_bytes(&bytes[1..], DIMENSIONS), None);
        assert_eq!(Vector::from_bytes(&bytes, 768), None);
        let mut broken = bytes;
        broken[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(Vector::from_bytes(&broken, DIMENSIONS), None);
        let length: f32 = vector.components().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 0.01, "{length}");
    }

    #[test]
    fn a_blend_is_similar_to_both_vectors() {
        let (a, b) = (sine_vector(0.3), sine_vector(1.7));
        let middle = a.blend_with(0.5, &b);
        assert!(
            middle.cosine_similarity(&a) > a.cosine_similarity(&b)
                && middle.cosine_similarity(&b) > a.cosine_similarity(&b)
        );
        assert!(a.blend_with(0.9, &b).cosine_similarity(&a) > middle.cosine_similarity(&a));
    }

    #[test]
    fn the_zero_vector_is_similar_to_nothing() {
        let nothing = Vector::new(&[0.0; DIMENSIONS]);
        assert!(nothing.cosine_similarity(&sine_vector(0.3)).abs() < f32::EPSILON);
        assert_eq!(Vector::new(&[f32::NAN; DIMENSIONS]), nothing);
        assert!(Vector::new(&[1.0]).cosine_similarity(&nothing).abs() < f32::EPSILON);
    }

    /// A table in which vectors come and go gives the cosines of the vectors that are left.
    #[test]
    fn removing_vectors_leaves_the_others() {
        let mut table = VectorTable::new(DIMENSIONS);
        let vectors: Vec<Vector> = (0_u8..20)
            .map(|n| sine_vector(0.1 + f32::from(n)))
            .collect();
        for key in 0..10 {
            table.insert(key, &vectors[key * 2..key * 2 + 2]);
        }
        for gone in [9, 0, 4] {
            table.remove(&gone);
        }
        table.insert(2, &vectors[..1]);
        assert_eq!(table.len(), 6 * 2 + 1);
        let asked = sine_vector(0.77);
        let cosines = table.cosines(&asked);
        for key in 0..10 {
            let mut left: Vec<&Vector> = match key {
                0 | 4 | 9 => Vec::new(),
                2 => vec![&vectors[0]],
                _ => vectors[key * 2..key * 2 + 2].iter().collect(),
            };
            let found: Vec<Vector> = table.get(&key).collect();
            assert_eq!(found.len(), left.len(), "{key}");
            left.retain(|vector| !found.contains(vector));
            assert!(left.is_empty(), "{key}");
            let best = found.iter().map(|one| one.cosine_similarity(&asked));
            assert_eq!(
                table.cosine(&key, &asked),
                best.max_by(f32::total_cmp),
                "{key}"
            );
            let listed = table.keys().zip(&cosines).filter(|(one, _)| **one == key);
            assert_eq!(
                listed.map(|(_, cosine)| *cosine).max_by(f32::total_cmp),
                table.cosine(&key, &asked)
            );
        }
    }
}
