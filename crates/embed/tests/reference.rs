//! Against what another implementation of the same model computes of the same weights.
//!
//! The weights are installed by the test command; without them there is nothing to compare.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use std::path::PathBuf;

use repertoire_embed::{Model, Vector};
use serde::Deserialize;

#[derive(Deserialize)]
struct Known {
    text: String,
    ids: Vec<u32>,
    /// The first numbers of the vector.
    begins: Vec<f32>,
}

#[test]
fn sentences_mean_what_they_mean_elsewhere() {
    let Some(folder) = std::env::var_os("REPERTOIRE_TEST_MODEL").map(PathBuf::from) else {
        eprintln!("REPERTOIRE_TEST_MODEL does not name a folder with the weights: skipped");
        return;
    };
    let model = Model::open(&folder).unwrap();
    let known: Vec<Known> = serde_json::from_str(include_str!("reference.json")).unwrap();
    for one in &known {
        assert_eq!(
            model.vocabulary().tokens(&one.text, 256),
            one.ids,
            "{}",
            one.text
        );
        let vector = model.embed(&one.text);
        for (got, want) in vector.numbers().zip(&one.begins) {
            assert!((got - want).abs() < 0.002, "{}: {got} {want}", one.text);
        }
    }
    let vector = |at: usize| -> Vector { model.embed(&known[at].text) };
    for (other, want) in [(1, 0.6946), (2, 0.9429), (3, 0.2569)] {
        let got = vector(0).cosine(&vector(other));
        assert!((got - want).abs() < 0.005, "{got} {want}");
    }
}
