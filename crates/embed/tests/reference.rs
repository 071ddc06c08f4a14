//! Compares embeddings with those of another implementation that uses the same weights in full
//! precision.
//!
//! The weights are installed by the test command; without them the test fails.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

#[path = "../../core/tests/support/part.rs"]
mod part;

use std::path::PathBuf;

use repertoire_embed::{EmbeddingModel, ModelKind, Vector};
use serde::Deserialize;

#[derive(Deserialize)]
struct ReferenceEmbedding {
    text: String,
    ids: Vec<u32>,
    /// The first numbers of the vector.
    begins: Vec<f32>,
}

#[test]
fn embeddings_match_the_reference_implementation() {
    let Some(folder) = part::installed_part("REPERTOIRE_TEST_MODEL").map(PathBuf::from) else {
        return;
    };
    let model = EmbeddingModel::open(ModelKind::MiniLm, &folder).unwrap();
    let known: Vec<ReferenceEmbedding> =
        serde_json::from_str(include_str!("../../../corpus/embeddings/reference.json")).unwrap();
    for one in &known {
        assert_eq!(
            model.vocabulary().token_ids(&one.text, 256),
            one.ids,
            "{}",
            one.text
        );
        let vector = model.embed_text(&one.text);
        for (got, want) in vector.components().zip(&one.begins) {
            assert!((got - want).abs() < 0.015, "{}: {got} {want}", one.text);
        }
    }
    let vector = |at: usize| -> Vector { model.embed_text(&known[at].text) };
    for (other, want) in [(1, 0.6946), (2, 0.9429), (3, 0.2569)] {
        let got = vector(0).cosine_similarity(&vector(other));
        assert!((got - want).abs() < 0.02, "{got} {want}");
    }
}
