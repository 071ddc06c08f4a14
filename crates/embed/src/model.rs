//! The encoder itself.

use std::path::Path;

use ndarray::{
    Array1, Array2, ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis, Slice, Zip,
    linalg::general_mat_mul,
};

use crate::{
    Result, VOCABULARY, WEIGHTS,
    tokens::Vocabulary,
    vector::{DIMENSIONS, Vector},
    weights::Weights,
};

const LAYERS: usize = 6;
const HEADS: usize = 12;
const HEAD: usize = DIMENSIONS / HEADS;
const INNER: usize = 1536;
const POSITIONS: usize = 512;
/// The model was taught with texts of so many tokens.
const MAX_TOKENS: usize = 256;

/// The model, ready to be asked. It takes about 90 MB.
#[derive(Debug)]
pub struct Model {
    vocabulary: Vocabulary,
    words: Array2<f32>,
    /// Of each place in a text, and of being in the first of two texts.
    places: Array2<f32>,
    norm: Norm,
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Dense {
    weight: Array2<f32>,
    bias: Array1<f32>,
}

#[derive(Debug)]
struct Norm {
    weight: Array1<f32>,
    bias: Array1<f32>,
}

#[derive(Debug)]
struct Layer {
    query: Dense,
    key: Dense,
    value: Dense,
    attended: Dense,
    attended_norm: Norm,
    widened: Dense,
    narrowed: Dense,
    narrowed_norm: Norm,
}

impl Model {
    /// Opens the model in a folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let vocabulary = Vocabulary::open(&folder.join(VOCABULARY))?;
        let mut weights = Weights::open(&folder.join(WEIGHTS))?;
        let w = &mut weights;
        let words = w.matrix(
            "embeddings.word_embeddings.weight",
            vocabulary.len(),
            DIMENSIONS,
        )?;
        let kinds = w.matrix("embeddings.token_type_embeddings.weight", 2, DIMENSIONS)?;
        let places = w.matrix(
            "embeddings.position_embeddings.weight",
            POSITIONS,
            DIMENSIONS,
        )?;
        let layers = (0..LAYERS).map(|number| Layer::read(w, number));
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self {
            words,
            places: places + kinds.row(0),
            norm: Norm::read(w, "embeddings.LayerNorm")?,
            layers,
            vocabulary,
        })
    }

    /// The words it knows.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// What a text means. Of a long one only the beginning is read.
    pub fn embed(&self, text: &str) -> Vector {
        self.embed_some(text, MAX_TOKENS)
    }

    /// The same of at most so many tokens of it.
    pub fn embed_some(&self, text: &str, tokens: usize) -> Vector {
        let tokens = self.vocabulary.tokens(text, tokens.clamp(3, MAX_TOKENS));
        let mut hidden = Array2::zeros((tokens.len(), DIMENSIONS));
        for (place, token) in tokens.iter().enumerate() {
            let word = self.words.row(usize::try_from(*token).unwrap_or(0));
            hidden
                .row_mut(place)
                .assign(&(&word + &self.places.row(place)));
        }
        self.norm.apply(&mut hidden);
        for layer in &self.layers {
            layer.apply(&mut hidden);
        }
        Vector::new(hidden.sum_axis(Axis(0)).iter().copied())
    }
}

impl Layer {
    fn read(weights: &mut Weights, number: usize) -> Result<Self> {
        let mut dense = |name: &str, from: usize, to: usize| {
            let name = format!("encoder.layer.{number}.{name}");
            Ok(Dense {
                weight: weights.matrix(&format!("{name}.weight"), to, from)?,
                bias: weights.vector(&format!("{name}.bias"), to)?,
            })
        };
        let query = dense("attention.self.query", DIMENSIONS, DIMENSIONS)?;
        let key = dense("attention.self.key", DIMENSIONS, DIMENSIONS)?;
        let value = dense("attention.self.value", DIMENSIONS, DIMENSIONS)?;
        let attended = dense("attention.output.dense", DIMENSIONS, DIMENSIONS)?;
        let widened = dense("intermediate.dense", DIMENSIONS, INNER)?;
        let narrowed = dense("output.dense", INNER, DIMENSIONS)?;
        let norm = |weights: &mut Weights, name: &str| {
            Norm::read(weights, &format!("encoder.layer.{number}.{name}.LayerNorm"))
        };
        Ok(Self {
            query,
            key,
            value,
            attended,
            attended_norm: norm(weights, "attention.output")?,
            widened,
            narrowed,
            narrowed_norm: norm(weights, "output")?,
        })
    }

    fn apply(&self, hidden: &mut Array2<f32>) {
        let mut query = self.query.apply(hidden);
        #[allow(clippy::cast_precision_loss, reason = "a small constant")]
        let scale = (HEAD as f32).sqrt();
        query /= scale;
        let key = self.key.apply(hidden);
        let value = self.value.apply(hidden);
        let mut seen = Array2::zeros(hidden.dim());
        for head in 0..HEADS {
            let part = Slice::from(head * HEAD..(head + 1) * HEAD);
            let of = |all: &Array2<f32>| all.slice_axis(Axis(1), part).to_owned();
            let mut scores = of(&query).dot(&of(&key).t());
            scores.rows_mut().into_iter().for_each(softmax);
            seen.slice_axis_mut(Axis(1), part)
                .assign(&scores.dot(&of(&value)));
        }
        *hidden += &self.attended.apply(&seen);
        self.attended_norm.apply(hidden);
        let mut wide = self.widened.apply(hidden);
        wide.mapv_inplace(gelu);
        *hidden += &self.narrowed.apply(&wide);
        self.narrowed_norm.apply(hidden);
    }
}

impl Dense {
    fn apply(&self, input: &Array2<f32>) -> Array2<f32> {
        // Most of the time goes into walking the weights, so that two threads walk half each.
        let (upper, lower) = self.weight.view().split_at(Axis(0), self.bias.len() / 2);
        let mut output = Array2::zeros((input.nrows(), self.bias.len()));
        let (left, right) = output.view_mut().split_at(Axis(1), self.bias.len() / 2);
        rayon::join(
            || multiply(input, &upper, left),
            || multiply(input, &lower, right),
        );
        output += &self.bias;
        output
    }
}

fn multiply(input: &Array2<f32>, weight: &ArrayView2<'_, f32>, mut output: ArrayViewMut2<'_, f32>) {
    general_mat_mul(1.0, input, &weight.t(), 0.0, &mut output);
}

impl Norm {
    fn read(weights: &mut Weights, name: &str) -> Result<Self> {
        Ok(Self {
            weight: weights.vector(&format!("{name}.weight"), DIMENSIONS)?,
            bias: weights.vector(&format!("{name}.bias"), DIMENSIONS)?,
        })
    }

    fn apply(&self, hidden: &mut Array2<f32>) {
        #[allow(clippy::cast_precision_loss, reason = "a small constant")]
        let length = DIMENSIONS as f32;
        for mut row in hidden.rows_mut() {
            let mean = row.sum() / length;
            row -= mean;
            let spread = (row.dot(&row) / length + 1e-12).sqrt();
            Zip::from(&mut row)
                .and(&self.weight)
                .and(&self.bias)
                .for_each(|x, weight, bias| *x = *x / spread * weight + bias);
        }
    }
}

fn softmax(mut row: ArrayViewMut1<'_, f32>) {
    let most = row.fold(f32::NEG_INFINITY, |most, x| most.max(*x));
    row.mapv_inplace(|x| (x - most).exp());
    let sum = row.sum();
    row /= sum;
}

/// The usual one, with the error function to seven digits (Abramowitz and Stegun, 7.1.26).
fn gelu(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let terms = [
        1.061_405_4,
        -1.453_152,
        1.421_413_8,
        -0.284_496_74,
        0.254_829_6,
    ];
    let sum = terms.iter().fold(0.0, |sum, term| (sum + term) * t);
    let erf = 1.0 - sum * (-z * z).exp();
    0.5 * x * (1.0 + erf.copysign(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_is_as_in_tables() {
        for (x, want) in [
            (0.0, 0.0),
            (1.0, 0.841_345),
            (-1.0, -0.158_655),
            (3.0, 2.995_95),
            (-0.5, -0.154_269),
        ] {
            assert!((gelu(x) - want).abs() < 1e-5, "{x}: {}", gelu(x));
        }
    }

    #[test]
    fn what_is_no_model_is_refused() {
        let missing = Model::open(Path::new("/nowhere")).unwrap_err();
        assert!(missing.to_string().contains("vocab.txt"), "{missing}");
    }
}
