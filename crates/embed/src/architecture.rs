//! The two models: their sizes, and how their published files name the weights.

/// A model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelKind {
    /// all-MiniLM-L6-v2: small and fast.
    MiniLm,
    /// all-mpnet-base-v2: finds more, and takes seven times as long.
    Mpnet,
}

impl ModelKind {
    /// Every model.
    pub const ALL: &[Self] = &[Self::MiniLm, Self::Mpnet];

    /// The name under which the model was published.
    pub fn published_name(self) -> &'static str {
        match self {
            Self::MiniLm => "all-MiniLM-L6-v2",
            Self::Mpnet => "all-mpnet-base-v2",
        }
    }

    /// How many components its vectors have.
    pub fn dimensions(self) -> usize {
        self.architecture().hidden
    }

    pub(crate) fn architecture(self) -> Architecture {
        match self {
            Self::MiniLm => Architecture {
                layers: 6,
                hidden: 384,
                heads: 12,
                feed_forward: 1536,
                positions: 512,
                first_position: 0,
                max_tokens: 256,
                epsilon: 1e-12,
                special_tokens: ["[CLS]", "[SEP]"],
                distance_buckets: None,
            },
            Self::Mpnet => Architecture {
                layers: 12,
                hidden: 768,
                heads: 12,
                feed_forward: 3072,
                positions: 514,
                // The first two positions mean padding.
                first_position: 2,
                max_tokens: 384,
                epsilon: 1e-5,
                special_tokens: ["<s>", "</s>"],
                distance_buckets: Some(32),
            },
        }
    }

    /// The name of a weight in the published file.
    pub(crate) fn weight_name(self, weight: Weight) -> String {
        let layer = |number: usize, name: &str| format!("encoder.layer.{number}.{name}");
        match weight {
            Weight::Words => "embeddings.word_embeddings.weight".to_owned(),
            Weight::Positions => "embeddings.position_embeddings.weight".to_owned(),
            Weight::Kinds => "embeddings.token_type_embeddings.weight".to_owned(),
            Weight::DistanceBias => "encoder.relative_attention_bias.weight".to_owned(),
            Weight::InputNorm => "embeddings.LayerNorm".to_owned(),
            Weight::Layer(number, part) => layer(
                number,
                match (self, part) {
                    (Self::MiniLm, LayerWeight::Query) => "attention.self.query",
                    (Self::MiniLm, LayerWeight::Key) => "attention.self.key",
                    (Self::MiniLm, LayerWeight::Value) => "attention.self.value",
                    (Self::MiniLm, LayerWeight::Attended) => "attention.output.dense",
                    (Self::MiniLm, LayerWeight::AttentionNorm) => "attention.output.LayerNorm",
                    (Self::Mpnet, LayerWeight::Query) => "attention.attn.q",
                    (Self::Mpnet, LayerWeight::Key) => "attention.attn.k",
                    (Self::Mpnet, LayerWeight::Value) => "attention.attn.v",
                    (Self::Mpnet, LayerWeight::Attended) => "attention.attn.o",
                    (Self::Mpnet, LayerWeight::AttentionNorm) => "attention.LayerNorm",
                    (_, LayerWeight::Widen) => "intermediate.dense",
                    (_, LayerWeight::Narrow) => "output.dense",
                    (_, LayerWeight::OutputNorm) => "output.LayerNorm",
                },
            ),
        }
    }
}

/// The sizes of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Architecture {
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) heads: usize,
    pub(crate) feed_forward: usize,
    pub(crate) positions: usize,
    /// The position of the first token.
    pub(crate) first_position: usize,
    /// The model was trained on texts of at most this many tokens.
    pub(crate) max_tokens: usize,
    /// Added to the variance before its root is taken.
    pub(crate) epsilon: f32,
    /// The tokens before and after a text.
    pub(crate) special_tokens: [&'static str; 2],
    /// How many distances of two tokens the model tells apart, if it does.
    pub(crate) distance_buckets: Option<usize>,
}

/// A weight of a model.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Weight {
    Words,
    Positions,
    Kinds,
    DistanceBias,
    InputNorm,
    Layer(usize, LayerWeight),
}

/// A weight of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LayerWeight {
    Query,
    Key,
    Value,
    Attended,
    AttentionNorm,
    Widen,
    Narrow,
    OutputNorm,
}
