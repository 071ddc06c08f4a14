//! What sentences mean, as vectors.
//!
//! One model, all-MiniLM-L6-v2, computed on the CPU: tokens by [`Vocabulary`], six layers of a
//! BERT encoder, the mean over the tokens, length one. Nothing is downloaded here: whoever opens
//! the model says where its two files are.

mod model;
mod tokens;
mod vector;
mod weights;

use std::path::PathBuf;

pub use model::Model;
pub use tokens::Vocabulary;
pub use vector::{DIMENSIONS, Vector};

/// The files a model is made of.
pub const FILES: [&str; 2] = [WEIGHTS, VOCABULARY];
/// The weights, as safetensors.
pub const WEIGHTS: &str = "model.safetensors";
/// The words and parts of words, one a line.
pub const VOCABULARY: &str = "vocab.txt";

/// Why a model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{path} is not a file of all-MiniLM-L6-v2: {reason}")]
    Format {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// What may go wrong here.
pub type Result<T> = std::result::Result<T, Error>;
