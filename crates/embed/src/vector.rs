//! Unit vectors quantised to eight bits.

/// How many numbers a vector has.
pub const DIMENSIONS: usize = 384;
/// The number of bytes of a stored vector.
const STORED_BYTES: usize = 4 + DIMENSIONS;

/// A unit vector with one byte per component.
///
/// ```
/// use repertoire_embed::{DIMENSIONS, Vector};
///
/// let north = Vector::new((0..DIMENSIONS).map(|i| if i == 0 { 2.0 } else { 0.0 }));
/// let west = Vector::new((0..DIMENSIONS).map(|i| if i == 1 { 5.0 } else { 0.0 }));
/// assert!((north.cosine_similarity(&north) - 1.0).abs() < 0.01);
/// assert!(north.cosine_similarity(&west).abs() < 0.01);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Vector {
    /// The value of one step.
    scale: f32,
    steps: [i8; DIMENSIONS],
}

impl Vector {
    /// The zero vector, which is similar to nothing.
    pub const ZERO: Self = Self {
        scale: 0.0,
        steps: [0; DIMENSIONS],
    };

    /// Normalises and quantises some numbers; missing numbers count as zero.
    pub fn new(numbers: impl Iterator<Item = f32>) -> Self {
        let mut all = [0.0; DIMENSIONS];
        for (place, number) in all.iter_mut().zip(numbers) {
            *place = number;
        }
        let length = all.iter().map(|x| x * x).sum::<f32>().sqrt();
        let most = all.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let mut steps = [0; DIMENSIONS];
        if !(length.is_normal() && most.is_normal()) {
            return Self::ZERO;
        }
        for (step, number) in steps.iter_mut().zip(all) {
            #[allow(clippy::cast_possible_truncation, reason = "at most 127")]
            let rounded = (number / most * 127.0).round() as i8;
            *step = rounded;
        }
        Self {
            scale: most / length / 127.0,
            steps,
        }
    }

    /// The cosine similarity of two vectors, from -1 to 1.
    pub fn cosine_similarity(&self, other: &Self) -> f32 {
        let mut sum = 0_i32;
        for (a, b) in self.steps.iter().zip(other.steps.iter()) {
            sum += i32::from(*a) * i32::from(*b);
        }
        #[allow(clippy::cast_precision_loss, reason = "a few digits are enough")]
        let sum = sum as f32;
        sum * self.scale * other.scale
    }

    /// The weighted mean with another vector, normalised; `weight` is the share of this one.
    pub fn blend_with(&self, weight: f32, other: &Self) -> Self {
        let mine = weight * self.scale;
        let theirs = (1.0 - weight) * other.scale;
        let both = self.steps.iter().zip(other.steps.iter());
        Self::new(both.map(|(a, b)| f32::from(*a) * mine + f32::from(*b) * theirs))
    }

    /// The components of the vector.
    pub fn components(&self) -> impl Iterator<Item = f32> {
        self.steps.iter().map(|step| f32::from(*step) * self.scale)
    }

    /// Encodes the vector for storage.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(STORED_BYTES);
        bytes.extend(self.scale.to_le_bytes());
        bytes.extend(self.steps.iter().map(|step| step.cast_unsigned()));
        bytes
    }

    /// Decodes a stored vector; returns `None` if the bytes are not one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (scale, steps) = bytes.split_first_chunk::<4>()?;
        let scale = f32::from_le_bytes(*scale);
        let steps: &[u8; DIMENSIONS] = steps.try_into().ok()?;
        let in_range = scale.is_finite() && (0.0..=1.0).contains(&scale);
        in_range.then(|| Self {
            scale,
            steps: steps.map(u8::cast_signed),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sine_vector(pace: f32) -> Vector {
        let mut at = 0.0;
        Vector::new(std::iter::from_fn(|| {
            at += pace;
            Some(at.sin())
        }))
    }

    #[test]
    fn vectors_round_trip_through_bytes() {
        let vector = sine_vector(0.3);
        let bytes = vector.to_bytes();
        assert_eq!(Vector::from_bytes(&bytes), Some(vector));
        assert_eq!(Vector::from_bytes(&bytes[1..]), None);
        let mut broken = bytes;
        broken[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        assert_eq!(Vector::from_bytes(&broken), None);
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
        let nothing = Vector::new(std::iter::empty());
        assert!(nothing.cosine_similarity(&sine_vector(0.3)).abs() < f32::EPSILON);
        assert_eq!(Vector::new([f32::NAN].into_iter()), nothing);
    }
}
