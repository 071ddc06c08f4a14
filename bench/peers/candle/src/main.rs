//! Encodes token ids with all-MiniLM-L6-v2 on candle and prints how long each text took.
//!
//! Arguments: the weights, and a file with one JSON array of token ids per line.

use std::time::Instant;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let config: Config = serde_json::from_value(serde_json::json!({
        "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6,
        "num_attention_heads": 12, "intermediate_size": 1536, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0, "max_position_embeddings": 512, "type_vocab_size": 2,
        "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0,
        "model_type": "bert",
    }))?;
    let started = Instant::now();
    let weights = std::fs::read(&args[1])?;
    let vars = VarBuilder::from_buffered_safetensors(weights, DType::F32, &Device::Cpu)?;
    let model = BertModel::load(vars, &config)?;
    eprintln!("opened in {:?}", started.elapsed());
    for line in std::fs::read_to_string(&args[2])?.lines() {
        let ids: Vec<u32> = serde_json::from_str(line)?;
        let started = Instant::now();
        let ids = Tensor::new(&ids[..], &Device::Cpu)?.unsqueeze(0)?;
        let kinds = ids.zeros_like()?;
        let output = model.forward(&ids, &kinds, None)?;
        let vector = output.mean(1)?.to_vec2::<f32>()?;
        println!("{} {}", started.elapsed().as_nanos(), vector[0][0]);
    }
    Ok(())
}
