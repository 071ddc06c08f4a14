//! The verdicts on the corpus of skill folders. The test command checks the `reference` column
//! against the reference validator itself.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::fs;

use common::{TestWorkspace, project_dir};

#[test]
fn verdicts_match_the_reference_except_where_documented() {
    let corpus = project_dir().join("corpus/validate");
    let table = fs::read_to_string(corpus.join("verdicts.tsv")).unwrap();
    let place = TestWorkspace::new();
    let mut rows = 0;
    let mut differing = Vec::new();
    for line in table.lines().skip(1) {
        let [case, reference, ours, strict] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("a row has four columns: {line}");
        };
        let folder = fs::read_dir(corpus.join(case))
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let folder = folder.to_str().unwrap();
        for (args, want) in [
            (vec!["validate", "--json", folder], ours),
            (vec!["validate", "--json", "--strict", folder], strict),
        ] {
            let run = place.run(&args);
            let verdict = if run.exit_code() == 0 {
                "valid"
            } else {
                "invalid"
            };
            assert_eq!(verdict, want, "{case}: {}", run.stdout());
            let answer: serde_json::Value = serde_json::from_str(&run.stdout()).unwrap();
            let problems = answer["skills"][0]["problems"].as_array().unwrap();
            assert_eq!(problems.is_empty(), want == "valid", "{case}");
            // Every problem has a line, except a missing, misnamed or unreadable document.
            for problem in problems {
                let whole = ["missing-document", "document-name", "not-utf8", "files"];
                let code = problem["code"].as_str().unwrap();
                assert!(
                    problem["line"].is_u64() || whole.contains(&code),
                    "{case}: {problem}"
                );
            }
        }
        if reference != ours {
            differing.push(case);
        }
        rows += 1;
    }
    let folders = fs::read_dir(&corpus)
        .unwrap()
        .flatten()
        .filter(|e| e.path().is_dir())
        .count();
    assert_eq!(rows, folders, "every folder has a row");
    assert!(rows >= 60);
    let documented = fs::read_to_string(project_dir().join("docs/validation.md")).unwrap();
    for case in &differing {
        assert!(
            documented.contains(&format!("`{case}`")),
            "{case} is not documented"
        );
    }
    assert_eq!(differing.len(), documented.matches("| `differs-").count());
}
