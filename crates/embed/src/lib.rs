//! Sentence embeddings: converts text to vectors.
//!
//! A model runs on the CPU with weights of eight bits: [`Vocabulary`] produces the tokens, the layers
//! of a transformer transform them, and their mean is scaled to length one. Two models are known
//! ([`ModelKind`]). Nothing is downloaded here; the caller passes the folder that contains the files.

mod architecture;
mod lanes;
mod math;
mod matrix;
mod model;
mod tokens;
mod vector;
mod weights;

use std::path::PathBuf;

pub use architecture::ModelKind;
pub use model::EmbeddingModel;
pub use tokens::Vocabulary;
pub use vector::{Vector, VectorTable};

/// The published weights, as safetensors.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// The weights rounded to eight bits, as safetensors.
pub const QUANTIZED_FILE: &str = "model.int8.safetensors";
/// The vocabulary, one token per line.
pub const VOCABULARY_FILE: &str = "vocab.txt";

/// An error while opening a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// A file has an unexpected format.
    #[error("{path} is not a file of the sentence model: {reason}")]
    Format {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
