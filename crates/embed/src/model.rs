//! The BERT encoder.

use std::path::Path;

use ndarray::{
    Array1, Array2, ArrayView2, ArrayViewMut1, ArrayViewMut2, Axis, Slice, Zip,
    linalg::general_mat_mul,
};

use crate::{
    Result, VOCABULARY_FILE, WEIGHTS_FILE,
    tokens::Vocabulary,
    vector::{DIMENSIONS, Vector},
    weights::WeightsReader,
};

const LAYERS: usize = 6;
const HEADS: usize = 12;
const HEAD_SIZE: usize = DIMENSIONS / HEADS;
const FEED_FORWARD_SIZE: usize = 1536;
const POSITIONS: usize = 512;
/// The model was trained on texts of at most this many tokens.
const MAX_TOKENS: usize = 256;

/// The loaded model. It takes about 90 MB of memory.
#[derive(Debug)]
pub struct EmbeddingModel {
    vocabulary: Vocabulary,
    word_embeddings: Array2<f32>,
    /// Position embeddings plus the token type embedding of the first text.
    position_embeddings: Array2<f32>,
    norm: LayerNorm,
    layers: Vec<EncoderLayer>,
}

#[derive(Debug)]
struct DenseLayer {
    weight: Array2<f32>,
    bias: Array1<f32>,
}

#[derive(Debug)]
struct LayerNorm {
    weight: Array1<f32>,
    bias: Array1<f32>,
}

#[derive(Debug)]
struct EncoderLayer {
    query: DenseLayer,
    key: DenseLayer,
    value: DenseLayer,
    attention_output: DenseLayer,
    attention_norm: LayerNorm,
    intermediate: DenseLayer,
    output: DenseLayer,
    output_norm: LayerNorm,
}

impl EmbeddingModel {
    /// Opens the model in a folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let vocabulary = Vocabulary::open(&folder.join(VOCABULARY_FILE))?;
        let mut weights = WeightsReader::open(&folder.join(WEIGHTS_FILE))?;
        let w = &mut weights;
        let words = w.read_matrix(
            "embeddings.word_embeddings.weight",
            vocabulary.len(),
            DIMENSIONS,
        )?;
        let kinds = w.read_matrix("embeddings.token_type_embeddings.weight", 2, DIMENSIONS)?;
        let places = w.read_matrix(
            "embeddings.position_embeddings.weight",
            POSITIONS,
            DIMENSIONS,
        )?;
        let layers = (0..LAYERS).map(|number| EncoderLayer::read_layer(w, number));
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self {
            word_embeddings: words,
            position_embeddings: places + kinds.row(0),
            norm: LayerNorm::read_norm(w, "embeddings.LayerNorm")?,
            layers,
            vocabulary,
        })
    }

    /// The vocabulary of the model.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Embeds a text. Only the beginning of a long text is read.
    pub fn embed_text(&self, text: &str) -> Vector {
        self.embed_prefix(text, MAX_TOKENS)
    }

    /// Embeds at most `tokens` tokens of a text.
    pub fn embed_prefix(&self, text: &str, tokens: usize) -> Vector {
        let tokens = self.vocabulary.token_ids(text, tokens.clamp(3, MAX_TOKENS));
        let mut hidden = Array2::zeros((tokens.len(), DIMENSIONS));
        for (place, token) in tokens.iter().enumerate() {
            let word = self
                .word_embeddings
                .row(usize::try_from(*token).unwrap_or(0));
            hidden
                .row_mut(place)
                .assign(&(&word + &self.position_embeddings.row(place)));
        }
        self.norm.apply(&mut hidden);
        for layer in &self.layers {
            layer.apply(&mut hidden);
        }
        Vector::new(hidden.sum_axis(Axis(0)).iter().copied())
    }
}

impl EncoderLayer {
    fn read_layer(weights: &mut WeightsReader, number: usize) -> Result<Self> {
        let mut dense = |name: &str, from: usize, to: usize| {
            let name = format!("encoder.layer.{number}.{name}");
            Ok(DenseLayer {
                weight: weights.read_matrix(&format!("{name}.weight"), to, from)?,
                bias: weights.read_vector(&format!("{name}.bias"), to)?,
            })
        };
        let query = dense("attention.self.query", DIMENSIONS, DIMENSIONS)?;
        let key = dense("attention.self.key", DIMENSIONS, DIMENSIONS)?;
        let value = dense("attention.self.value", DIMENSIONS, DIMENSIONS)?;
        let attended = dense("attention.output.dense", DIMENSIONS, DIMENSIONS)?;
        let widened = dense("intermediate.dense", DIMENSIONS, FEED_FORWARD_SIZE)?;
        let narrowed = dense("output.dense", FEED_FORWARD_SIZE, DIMENSIONS)?;
        let norm = |weights: &mut WeightsReader, name: &str| {
            LayerNorm::read_norm(weights, &format!("encoder.layer.{number}.{name}.LayerNorm"))
        };
        Ok(Self {
            query,
            key,
            value,
            attention_output: attended,
            attention_norm: norm(weights, "attention.output")?,
            intermediate: widened,
            output: narrowed,
            output_norm: norm(weights, "output")?,
        })
    }

    fn apply(&self, hidden: &mut Array2<f32>) {
        let mut query = self.query.apply(hidden);
        #[allow(clippy::cast_precision_loss, reason = "a small constant")]
        let scale = (HEAD_SIZE as f32).sqrt();
        query /= scale;
        let key = self.key.apply(hidden);
        let value = self.value.apply(hidden);
        let mut seen = Array2::zeros(hidden.dim());
        for head in 0..HEADS {
            let part = Slice::from(head * HEAD_SIZE..(head + 1) * HEAD_SIZE);
            let of = |all: &Array2<f32>| all.slice_axis(Axis(1), part).to_owned();
            let mut scores = of(&query).dot(&of(&key).t());
            scores.rows_mut().into_iter().for_each(softmax);
            seen.slice_axis_mut(Axis(1), part)
                .assign(&scores.dot(&of(&value)));
        }
        *hidden += &self.attention_output.apply(&seen);
        self.attention_norm.apply(hidden);
        let mut wide = self.intermediate.apply(hidden);
        wide.mapv_inplace(gelu);
        *hidden += &self.output.apply(&wide);
        self.output_norm.apply(hidden);
    }
}

impl DenseLayer {
    fn apply(&self, input: &Array2<f32>) -> Array2<f32> {
        // Most of the time is spent reading the weights, so two threads read half each.
        let (upper, lower) = self.weight.view().split_at(Axis(0), self.bias.len() / 2);
        let mut output = Array2::zeros((input.nrows(), self.bias.len()));
        let (left, right) = output.view_mut().split_at(Axis(1), self.bias.len() / 2);
        rayon::join(
            || multiply_transposed(input, &upper, left),
            || multiply_transposed(input, &lower, right),
        );
        output += &self.bias;
        output
    }
}

fn multiply_transposed(
    input: &Array2<f32>,
    weight: &ArrayView2<'_, f32>,
    mut output: ArrayViewMut2<'_, f32>,
) {
    general_mat_mul(1.0, input, &weight.t(), 0.0, &mut output);
}

impl LayerNorm {
    fn read_norm(weights: &mut WeightsReader, name: &str) -> Result<Self> {
        Ok(Self {
            weight: weights.read_vector(&format!("{name}.weight"), DIMENSIONS)?,
            bias: weights.read_vector(&format!("{name}.bias"), DIMENSIONS)?,
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

/// The GELU activation, with the error function to seven digits (Abramowitz and Stegun, 7.1.26).
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
    fn gelu_matches_reference_values() {
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
    fn opening_a_missing_model_fails() {
        let missing = EmbeddingModel::open(Path::new("/nowhere")).unwrap_err();
        assert!(missing.to_string().contains("vocab.txt"), "{missing}");
    }
}
