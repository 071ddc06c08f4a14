use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn parse_to_json(yaml: &str) -> Value {
    Value::Object(Frontmatter::parse(yaml, 1).unwrap().to_json())
}

#[test]
fn scalars_follow_the_yaml_core_schema() {
    let yaml = "a: 1\nb: -2.5\nc: true\nd: ~\ne: '1'\nf: 0x1F\ng: 1.0.0\nh: 2026-01-02\ni: yes\nj: .inf\nk: 1e3\nl:\nm: 12:30\nn: \"x\\ny\"\no: 18446744073709551615\np: -\nq: 0o17\n";
    // `p: -` would start a sequence, so leave it out of the sample.
    let yaml = yaml.replace("p: -\n", "");
    assert_eq!(
        parse_to_json(&yaml),
        json!({"a":1,"b":-2.5,"c":true,"d":null,"e":"1","f":31,"g":"1.0.0","h":"2026-01-02",
               "i":"yes","j":".inf","k":1000.0,"l":null,"m":"12:30","n":"x\ny",
               "o":18_446_744_073_709_551_615_u64,"q":15})
    );
}

#[test]
fn key_order_and_nesting_are_preserved() {
    let text =
        serde_json::to_string(&parse_to_json("z: 1\na:\n  - x\n  - k: v\nm: {q: [1]}\n")).unwrap();
    assert_eq!(text, r#"{"z":1,"a":["x",{"k":"v"}],"m":{"q":[1]}}"#);
}

#[test]
fn t6_duplicates_tags_and_depth_are_refused() {
    let code = |yaml: &str| Frontmatter::parse(yaml, 1).unwrap_err().code();
    assert_eq!(code("a: 1\na: 2\n"), "invalid_frontmatter");
    assert_eq!(code("a:\n  b: 1\n  b: 2\n"), "invalid_frontmatter");
    assert_eq!(code("a: !!python/object x\n"), "invalid_frontmatter");
    assert_eq!(code("a: !x y\n"), "invalid_frontmatter");
    assert_eq!(
        code(&format!("a: {}", "[".repeat(60))),
        "frontmatter_too_large"
    );
    assert_eq!(
        code(&format!("a: {}\n", "x".repeat(MAX_BYTES))),
        "frontmatter_too_large"
    );
    assert_eq!(code("- a\n"), "invalid_frontmatter");
    assert_eq!(code(""), "invalid_frontmatter");
    assert_eq!(code("a: b\n...\nc: d\n"), "invalid_frontmatter");
    assert_eq!(code("? [a]\n: b\n"), "invalid_frontmatter");
    assert_eq!(code("a: *missing\n"), "invalid_frontmatter");
}

#[test]
fn t6_an_alias_bomb_is_refused_quickly() {
    let mut yaml = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
    for (name, of) in ["b", "c", "d", "e", "f", "g", "h", "i"]
        .iter()
        .zip("abcdefgh".chars())
    {
        let list = vec![format!("*{of}"); 9].join(", ");
        writeln!(yaml, "{name}: &{name} [{list}]").unwrap();
    }
    let start = Instant::now();
    assert_eq!(
        Frontmatter::parse(&yaml, 1).unwrap_err().code(),
        "frontmatter_too_large"
    );
    assert!(start.elapsed() < Duration::from_millis(10));
}

#[test]
fn t6_aliases_of_long_texts_are_bounded_too() {
    let long = "x".repeat(50_000);
    let yaml = format!("a: &a {long}\nb: [*a, *a, *a, *a, *a, *a, *a, *a]\n");
    assert_eq!(
        Frontmatter::parse(&yaml, 1).unwrap_err().code(),
        "frontmatter_too_large"
    );
    let short = "a: &a some text\nb: [*a, *a, *a]\n";
    assert!(Frontmatter::parse(short, 1).is_ok());
}

#[test]
fn t6_many_lines_and_keys_parse_in_linear_time() {
    let mut yaml = "\n".repeat(40_000);
    for n in 0..1500 {
        writeln!(yaml, "k{n}: {{}}").unwrap();
    }
    let start = Instant::now();
    let front = Frontmatter::parse(&yaml, 1).unwrap();
    assert_eq!(front.fields().len(), 1500);
    assert!(start.elapsed() < Duration::from_secs(2));
}

#[test]
fn unsupported_yaml_is_reported_with_its_line() {
    let front = Frontmatter::from_document("---\nname: a\nx: &k 1\ny: *k\nz: [1]\n---\n").unwrap();
    assert_eq!(
        front.unsupported_yaml(),
        [
            (3, UnsupportedYaml::Anchor),
            (4, UnsupportedYaml::Anchor),
            (5, UnsupportedYaml::Flow)
        ]
    );
    assert_eq!(front.get("z").unwrap().line, 5);
}

#[test]
fn fences_are_whole_lines_and_must_be_closed() {
    assert_eq!(
        split_document("---\r\nname: a\r\n---\r\nb").unwrap().body,
        "b"
    );
    assert_eq!(
        split_document("---\nd: a --- b\n---\nx").unwrap().yaml,
        "d: a --- b\n"
    );
    for bad in [
        "",
        "x",
        "--- x\n---\n",
        "----\n---\n",
        "---\nname: a\n",
        "\u{feff}---\n---\n",
    ] {
        assert_eq!(
            split_document(bad).unwrap_err().code(),
            "missing_frontmatter",
            "{bad:?}"
        );
    }
    assert_eq!(split_document("---\n---\nrest").unwrap().body, "rest");
    assert_eq!(strip_frontmatter("no frontmatter"), "no frontmatter");
}

proptest! {
    #[test]
    fn parsing_any_yaml_never_panics(text in "[a-c:\\-\\[\\]{}&*!'\"|>#\n ,?%@`~0-9.]{0,200}") {
        let _ = Frontmatter::parse(&text, 1);
    }

    #[test]
    fn quoted_strings_round_trip(value in "[^\u{0}-\u{1f}\u{7f}-\u{9f}\u{feff}\u{fffe}\u{ffff}\u{2028}\u{2029}]{0,60}") {
        let yaml = format!("k: {}\n", serde_json::to_string(&value).unwrap());
        let front = Frontmatter::parse(&yaml, 1).unwrap();
        prop_assert_eq!(front.get_text("k"), Some(value.as_str()));
    }
}
