//! Compares the corpus of skill folders with the reference validator.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{
    commands::{CheckCount, project_dir},
    install,
};

const REQUIREMENTS: &str = "xtask/requirements-validate.txt";

/// Runs the validator's own command on each folder given, in one process.
const SCRIPT: &str = "\
import sys
from click.testing import CliRunner
from skills_ref.cli import main
for path in sys.stdin.read().splitlines():
    code = CliRunner().invoke(main, ['validate', path]).exit_code
    print('valid' if code == 0 else 'invalid', path, sep='\\t')
";

pub(crate) fn run() -> Result<CheckCount> {
    let python = install::install_python(REQUIREMENTS, "skills-ref")?;
    let corpus = project_dir().join("corpus/validate");
    let mut folders = BTreeMap::new();
    for entry in fs::read_dir(&corpus)? {
        let entry = entry?;
        if entry.path().is_dir() {
            let skill = fs::read_dir(entry.path())?
                .next()
                .context("an empty case")??
                .path();
            folders.insert(entry.file_name().to_string_lossy().into_owned(), skill);
        }
    }
    let list: Vec<_> = folders.values().map(|f| f.to_string_lossy()).collect();
    let input = project_dir().join("target/xtask/validate-input.txt");
    fs::write(&input, list.join("\n"))?;
    let output = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(fs::File::open(&input)?)
        .output()?;
    ensure!(
        output.status.success(),
        "the reference validator failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let verdicts: BTreeMap<String, String> = String::from_utf8(output.stdout)?
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .map(|(verdict, path)| (path.to_owned(), verdict.to_owned()))
        .collect();
    let table = fs::read_to_string(corpus.join("verdicts.tsv"))?;
    let mut count = CheckCount::default();
    for row in table.lines().skip(1) {
        let mut columns = row.split('\t');
        let (case, recorded) = columns.next().zip(columns.next()).context("a short row")?;
        let folder = folders
            .get(case)
            .with_context(|| format!("no folder for {case}"))?;
        let verdict = verdicts.get(&*folder.to_string_lossy());
        if verdict.is_some_and(|v| v == recorded) {
            count.passed += 1;
        } else {
            eprintln!("{case}: recorded {recorded}, the reference says {verdict:?}");
            count.failed += 1;
        }
    }
    Ok(count)
}
