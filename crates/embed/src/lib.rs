//! Sentence embeddings: converts text to vectors.
//!
//! One model, all-MiniLM-L6-v2, runs on the CPU: [`Vocabulary`] produces the tokens, six layers of
//! a BERT encoder transform them, and their mean is scaled to length one. Nothing is downloaded
//! here; the caller passes the folder that contains the two model files.

mod model;
mod tokens;
mod vector;
mod weights;

use std::path::PathBuf;

pub use model::EmbeddingModel;
pub use tokens::Vocabulary;
pub use vector::{DIMENSIONS, Vector};

/// The files a model is made of.
pub const MODEL_FILES: [&str; 2] = [WEIGHTS_FILE, VOCABULARY_FILE];
/// The weights, as safetensors.
pub const WEIGHTS_FILE: &str = "model.safetensors";
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
    #[error("{path} is not a file of all-MiniLM-L6-v2: {reason}")]
    Format {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;
