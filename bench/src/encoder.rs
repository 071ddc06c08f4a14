//! The sentence encoder beside candle and ONNX Runtime, on the same token ids, in turn.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use repertoire_embed::{EmbeddingModel, ModelKind};
use repertoire_registry::{Registry, RegistrySettings};

use crate::{
    measure::{format_duration, memory_kib, time_call},
    ranking::Corpus,
};

/// How often the peers take turns.
const ROUNDS: usize = 3;
/// How many texts of each length are encoded in a round.
const TEXTS: usize = 100;
/// The length of a long text in tokens.
const LONG_TOKENS: usize = 128;

/// The times of one encoder: for messages, then for long texts.
#[derive(Default)]
struct Times {
    messages: Vec<Duration>,
    long: Vec<Duration>,
}

impl Times {
    fn add(&mut self, all: &[Duration]) {
        let (messages, long) = all.split_at(all.len().min(TEXTS));
        self.messages.extend(messages);
        self.long.extend(long);
    }

    fn print(&mut self, name: &str, base: &[Duration; 2]) {
        let median = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or_default()
        };
        let (message, long) = (median(&mut self.messages), median(&mut self.long));
        println!(
            "| {name} | {} | {:.2}x | {} | {:.2}x |",
            format_duration(message),
            message.as_secs_f64() / base[0].as_secs_f64(),
            format_duration(long),
            long.as_secs_f64() / base[1].as_secs_f64()
        );
    }

    fn medians(&self) -> [Duration; 2] {
        [&self.messages, &self.long].map(|times| {
            let mut times = times.clone();
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or_default()
        })
    }
}

/// Runs a peer and reads the nanoseconds that each text took.
fn run_peer(command: &mut Command) -> Result<Vec<Duration>> {
    let output = command.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} failed: {errors}");
    let text = String::from_utf8(output.stdout)?;
    let times = text.lines().map(|line| {
        let nanos = line.split(' ').next().context("no time")?;
        Ok(Duration::from_nanos(nanos.parse()?))
    });
    times.collect()
}

pub(crate) fn run(model: &Path, candle: &Path, python: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    EmbeddingModel::quantize(ModelKind::MiniLm, model, folder.path())?;
    let before = memory_kib("VmRSS");
    let ours = EmbeddingModel::open(ModelKind::MiniLm, folder.path())?;
    let memory = memory_kib("VmRSS").saturating_sub(before) / 1024;
    let size = std::fs::metadata(folder.path().join(repertoire_embed::QUANTIZED_FILE))?.len();
    let corpus = Corpus::open(model)?;
    let messages = corpus.tuning.iter().map(|case| case.message.clone());
    let mut texts: Vec<String> = messages.take(TEXTS).collect();
    let skills = Registry::open(RegistrySettings::from_folders([
        crate::ranking::corpus_dir().join("skills"),
    ]))?;
    let snapshot = skills.snapshot();
    for entry in snapshot.skills().take(TEXTS) {
        texts.push(String::from_utf8(skills.read_body(entry)?.to_vec())?);
    }
    let ids: Vec<Vec<u32>> = texts
        .iter()
        .map(|text| ours.vocabulary().token_ids(text, LONG_TOKENS))
        .collect();
    let file = folder.path().join("ids.jsonl");
    let lines: Vec<String> = ids.iter().map(|ids| format!("{ids:?}")).collect();
    std::fs::write(&file, lines.join("\n"))?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/onnx/encode.py");
    let [mut all, mut one, mut on_candle, mut onnx_one, mut onnx_two] =
        [(); 5].map(|()| Times::default());
    for _ in 0..ROUNDS {
        let measure = |encode: &dyn Fn(&str)| -> Vec<Duration> {
            texts
                .iter()
                .map(|text| time_call(|| encode(text)).0)
                .collect()
        };
        all.add(&measure(&|text| {
            drop(ours.embed_message(text, LONG_TOKENS));
        }));
        one.add(&measure(&|text| {
            drop(ours.embed_prefix(text, LONG_TOKENS));
        }));
        let weights = model.join(repertoire_embed::WEIGHTS_FILE);
        on_candle.add(&run_peer(Command::new(candle).arg(weights).arg(&file))?);
        for (threads, times) in [("1", &mut onnx_one), ("2", &mut onnx_two)] {
            let mut command = Command::new(python);
            command.arg(&script).arg(threads).arg(&file);
            times.add(&run_peer(&mut command)?);
        }
    }
    println!(
        "{TEXTS} messages and {TEXTS} texts of {LONG_TOKENS} tokens, {ROUNDS} rounds in turn, \
         medians.\n\n| encoder | message | | {LONG_TOKENS} tokens | |\n|---|---|---|---|---|"
    );
    let base = all.medians();
    all.print("ours, 8 bit, all cores", &base);
    one.print("ours, 8 bit, one core", &base);
    on_candle.print("candle, 32 bit, all cores", &base);
    onnx_one.print("ONNX Runtime, 8 bit, one core", &base);
    onnx_two.print("ONNX Runtime, 8 bit, two cores", &base);
    println!(
        "\nOur weights: {} MB on disk, {memory} MiB in memory.",
        size / 1_000_000
    );
    Ok(())
}
