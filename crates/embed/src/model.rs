//! The transformer encoder.

use std::path::Path;

use pulp::Arch;

use crate::{
    ModelKind, QUANTIZED_FILE, Result, VOCABULARY_FILE, WEIGHTS_FILE,
    architecture::{Architecture, LayerWeight, Weight},
    math::{AttentionHead, Gelu, NormalizeRows, add},
    matrix::{Activations, Cores, QuantizedMatrix},
    tokens::Vocabulary,
    vector::Vector,
    weights::{WeightsReader, WeightsWriter},
};

/// A loaded model. It takes as much memory as its file of rounded weights: 23 MB for
/// `MiniLm`.
#[derive(Debug)]
pub struct EmbeddingModel {
    kind: ModelKind,
    vocabulary: Vocabulary,
    words: QuantizedMatrix,
    /// One row per position, with what every token of a first text adds.
    positions: Vec<f32>,
    norm: LayerNorm,
    /// What is added to the attention of two tokens, by bucket of their distance and by head.
    distance_bias: Vec<f32>,
    layers: Vec<EncoderLayer>,
}

#[derive(Debug)]
struct DenseLayer {
    weight: QuantizedMatrix,
    bias: Vec<f32>,
}

#[derive(Debug)]
struct LayerNorm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

#[derive(Debug)]
struct EncoderLayer {
    query: DenseLayer,
    key: DenseLayer,
    value: DenseLayer,
    attended: DenseLayer,
    attention_norm: LayerNorm,
    widen: DenseLayer,
    narrow: DenseLayer,
    output_norm: LayerNorm,
}

impl EmbeddingModel {
    /// Opens the model in a folder: rounded weights if they are there, else the published ones.
    pub fn open(kind: ModelKind, folder: &Path) -> Result<Self> {
        let sizes = kind.architecture();
        let vocabulary = Vocabulary::open(&folder.join(VOCABULARY_FILE), sizes.special_tokens)?;
        let quantized = folder.join(QUANTIZED_FILE);
        let path = if quantized.exists() {
            quantized
        } else {
            folder.join(WEIGHTS_FILE)
        };
        let mut weights = WeightsReader::open(&path)?;
        let mut source = WeightSource {
            kind,
            weights: &mut weights,
        };
        let words = source.matrix(Weight::Words, vocabulary.len(), sizes.hidden)?;
        let mut positions = source.floats(Weight::Positions, &[sizes.positions, sizes.hidden])?;
        if kind == ModelKind::MiniLm {
            let kinds = source.floats(Weight::Kinds, &[2, sizes.hidden])?;
            for row in positions.chunks_exact_mut(sizes.hidden) {
                add(row, &kinds[..sizes.hidden]);
            }
        }
        let distance_bias = match sizes.distance_buckets {
            Some(buckets) => source.floats(Weight::DistanceBias, &[buckets, sizes.heads])?,
            None => Vec::new(),
        };
        let norm = source.norm(Weight::InputNorm, sizes.hidden)?;
        let layers = (0..sizes.layers).map(|number| source.layer(number, sizes));
        Ok(Self {
            kind,
            layers: layers.collect::<Result<_>>()?,
            words,
            positions,
            norm,
            distance_bias,
            vocabulary,
        })
    }

    /// Rounds published weights to eight bits and writes them into a folder, with the vocabulary.
    pub fn quantize(kind: ModelKind, from: &Path, to: &Path) -> Result<()> {
        let model = Self::open(kind, from)?;
        let sizes = kind.architecture();
        let mut writer = WeightsWriter::default();
        let name = |weight| kind.weight_name(weight);
        writer.add_matrix(&name(Weight::Words), sizes.hidden, &model.words);
        let shape = [sizes.positions, sizes.hidden];
        writer.add_floats(&name(Weight::Positions), &shape, &model.positions);
        if kind == ModelKind::MiniLm {
            // The positions contain it already.
            let none = vec![0.0; 2 * sizes.hidden];
            writer.add_floats(&name(Weight::Kinds), &[2, sizes.hidden], &none);
        }
        if let Some(buckets) = sizes.distance_buckets {
            let shape = [buckets, sizes.heads];
            writer.add_floats(&name(Weight::DistanceBias), &shape, &model.distance_bias);
        }
        model.norm.write(&name(Weight::InputNorm), &mut writer);
        for (number, layer) in model.layers.iter().enumerate() {
            for (part, dense) in layer.dense_layers() {
                dense.write(&name(Weight::Layer(number, part)), &mut writer);
            }
            for (part, norm) in layer.norms() {
                norm.write(&name(Weight::Layer(number, part)), &mut writer);
            }
        }
        writer.write_to(&to.join(QUANTIZED_FILE))?;
        let vocabulary = to.join(VOCABULARY_FILE);
        std::fs::copy(from.join(VOCABULARY_FILE), &vocabulary).map_err(|source| {
            crate::Error::Io {
                path: vocabulary,
                source,
            }
        })?;
        Ok(())
    }

    /// Which model it is.
    pub fn kind(&self) -> ModelKind {
        self.kind
    }

    /// The vocabulary of the model.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// Embeds a message on all cores, because a user waits for it. Only the beginning of a long text
    /// is read.
    pub fn embed_text(&self, text: &str) -> Vector {
        self.embed_message(text, usize::MAX)
    }

    /// The same for at most `tokens` tokens.
    pub fn embed_message(&self, text: &str, tokens: usize) -> Vector {
        self.embed_on(text, tokens, Cores::All)
    }

    /// Embeds at most `tokens` tokens of a text on one core, while other cores embed other texts.
    pub fn embed_prefix(&self, text: &str, tokens: usize) -> Vector {
        self.embed_on(text, tokens, Cores::One)
    }

    fn embed_on(&self, text: &str, tokens: usize, cores: Cores) -> Vector {
        let sizes = self.kind.architecture();
        let most = tokens.clamp(3, sizes.max_tokens);
        let tokens = self.vocabulary.token_ids(text, most);
        let hidden = sizes.hidden;
        let mut state = vec![0.0; tokens.len() * hidden];
        let positions = self.positions.chunks_exact(hidden);
        let positions = positions.skip(sizes.first_position);
        for ((row, token), position) in state.chunks_exact_mut(hidden).zip(&tokens).zip(positions) {
            self.words
                .copy_row(usize::try_from(*token).unwrap_or(0), row);
            add(row, position);
        }
        self.norm.apply(&mut state, sizes.epsilon);
        let distance_bias = self.distance_bias_of(tokens.len());
        for layer in &self.layers {
            layer.apply(&mut state, sizes, &distance_bias, cores);
        }
        // The mean of the tokens; the length of the sum is scaled to one anyway.
        let mut sum = vec![0.0; hidden];
        for row in state.chunks_exact(hidden) {
            add(&mut sum, row);
        }
        Vector::new(&sum)
    }

    /// What is added to the attention of two tokens, for each head, by their distance.
    fn distance_bias_of(&self, tokens: usize) -> Vec<Vec<f32>> {
        let sizes = self.kind.architecture();
        let Some(buckets) = sizes.distance_buckets else {
            return Vec::new();
        };
        let head = |head: usize| {
            (0..2 * tokens).map(move |place| {
                let bucket = distance_bucket(tokens, place, buckets);
                self.distance_bias[bucket * sizes.heads + head]
            })
        };
        (0..sizes.heads)
            .map(|number| head(number).collect())
            .collect()
    }
}

/// The bucket of the distance `place - tokens`: half of the buckets are for tokens that follow, and
/// of each half the first are exact and the others grow with the distance.
fn distance_bucket(tokens: usize, place: usize, buckets: usize) -> usize {
    let half = buckets / 2;
    let exact = half / 2;
    let distance = place.abs_diff(tokens);
    let within = if distance < exact {
        distance
    } else {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "small positive numbers"
        )]
        let wider = {
            let ratio = (distance as f32 / exact as f32).ln() / (128.0 / exact as f32).ln();
            exact + (ratio * (half - exact) as f32) as usize
        };
        wider.min(half - 1)
    };
    if place > tokens {
        half + within
    } else {
        within
    }
}

/// Reads the weights of one model.
struct WeightSource<'a> {
    kind: ModelKind,
    weights: &'a mut WeightsReader,
}

impl WeightSource<'_> {
    fn floats(&mut self, weight: Weight, shape: &[usize]) -> Result<Vec<f32>> {
        self.weights
            .read_floats(&self.kind.weight_name(weight), shape)
    }

    fn matrix(&mut self, weight: Weight, rows: usize, columns: usize) -> Result<QuantizedMatrix> {
        self.weights
            .read_matrix(&self.kind.weight_name(weight), rows, columns)
    }

    fn norm(&mut self, weight: Weight, length: usize) -> Result<LayerNorm> {
        let name = self.kind.weight_name(weight);
        Ok(LayerNorm {
            weight: self
                .weights
                .read_floats(&format!("{name}.weight"), &[length])?,
            bias: self
                .weights
                .read_floats(&format!("{name}.bias"), &[length])?,
        })
    }

    fn layer(&mut self, number: usize, sizes: Architecture) -> Result<EncoderLayer> {
        let (hidden, wide) = (sizes.hidden, sizes.feed_forward);
        let mut dense = |part, from: usize, to: usize| {
            let name = self.kind.weight_name(Weight::Layer(number, part));
            Ok(DenseLayer {
                weight: self
                    .weights
                    .read_matrix(&format!("{name}.weight"), to, from)?,
                bias: self.weights.read_floats(&format!("{name}.bias"), &[to])?,
            })
        };
        Ok(EncoderLayer {
            query: dense(LayerWeight::Query, hidden, hidden)?,
            key: dense(LayerWeight::Key, hidden, hidden)?,
            value: dense(LayerWeight::Value, hidden, hidden)?,
            attended: dense(LayerWeight::Attended, hidden, hidden)?,
            widen: dense(LayerWeight::Widen, hidden, wide)?,
            narrow: dense(LayerWeight::Narrow, wide, hidden)?,
            attention_norm: self.norm(Weight::Layer(number, LayerWeight::AttentionNorm), hidden)?,
            output_norm: self.norm(Weight::Layer(number, LayerWeight::OutputNorm), hidden)?,
        })
    }
}

impl EncoderLayer {
    fn dense_layers(&self) -> [(LayerWeight, &DenseLayer); 6] {
        [
            (LayerWeight::Query, &self.query),
            (LayerWeight::Key, &self.key),
            (LayerWeight::Value, &self.value),
            (LayerWeight::Attended, &self.attended),
            (LayerWeight::Widen, &self.widen),
            (LayerWeight::Narrow, &self.narrow),
        ]
    }

    fn norms(&self) -> [(LayerWeight, &LayerNorm); 2] {
        [
            (LayerWeight::AttentionNorm, &self.attention_norm),
            (LayerWeight::OutputNorm, &self.output_norm),
        ]
    }

    fn apply(
        &self,
        state: &mut [f32],
        sizes: Architecture,
        distance_bias: &[Vec<f32>],
        cores: Cores,
    ) {
        let hidden = sizes.hidden;
        let input = Activations::quantize(hidden, state);
        let projected = [&self.query, &self.key, &self.value]
            .map(|dense| dense.weight.multiply(&input, &dense.bias, cores));
        let head_size = hidden / sizes.heads;
        let mut attended = vec![0.0; state.len()];
        for head in 0..sizes.heads {
            let head = AttentionHead {
                output: &mut attended,
                projected: projected.each_ref().map(|numbers| &**numbers),
                stride: hidden,
                start: head * head_size,
                size: head_size,
                distance_bias: distance_bias.get(head).map(|bias| &**bias),
            };
            Arch::new().dispatch(head);
        }
        add(state, &self.attended.apply(&attended, hidden, cores));
        self.attention_norm.apply(state, sizes.epsilon);
        let mut wide = self.widen.apply(state, hidden, cores);
        Arch::new().dispatch(Gelu(&mut wide));
        add(state, &self.narrow.apply(&wide, sizes.feed_forward, cores));
        self.output_norm.apply(state, sizes.epsilon);
    }
}

impl DenseLayer {
    fn apply(&self, input: &[f32], columns: usize, cores: Cores) -> Vec<f32> {
        let input = Activations::quantize(columns, input);
        self.weight.multiply(&input, &self.bias, cores)
    }

    fn write(&self, name: &str, writer: &mut WeightsWriter) {
        let columns = self.weight.values().len() / self.bias.len();
        writer.add_matrix(&format!("{name}.weight"), columns, &self.weight);
        writer.add_floats(&format!("{name}.bias"), &[self.bias.len()], &self.bias);
    }
}

impl LayerNorm {
    fn apply(&self, rows: &mut [f32], epsilon: f32) {
        Arch::new().dispatch(NormalizeRows {
            rows,
            weight: &self.weight,
            bias: &self.bias,
            epsilon,
        });
    }

    fn write(&self, name: &str, writer: &mut WeightsWriter) {
        let length = self.weight.len();
        writer.add_floats(&format!("{name}.weight"), &[length], &self.weight);
        writer.add_floats(&format!("{name}.bias"), &[length], &self.bias);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_a_missing_model_fails() {
        for kind in ModelKind::ALL {
            let missing = EmbeddingModel::open(*kind, Path::new("/nowhere")).unwrap_err();
            assert!(missing.to_string().contains("vocab.txt"), "{missing}");
        }
    }

    #[test]
    fn distances_fall_into_buckets_on_both_sides() {
        let bucket = |distance: i32| {
            let place = usize::try_from(500 + distance).unwrap();
            distance_bucket(500, place, 32)
        };
        assert_eq!(
            [bucket(0), bucket(-1), bucket(-7), bucket(-8)],
            [0, 1, 7, 8]
        );
        assert_eq!([bucket(1), bucket(7), bucket(8)], [17, 23, 24]);
        assert_eq!([bucket(-16), bucket(-127), bucket(-400)], [10, 15, 15]);
        assert_eq!(bucket(400), 31);
    }
}
