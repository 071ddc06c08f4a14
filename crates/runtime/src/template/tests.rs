use serde_json::json;

use super::*;

fn render_sample(template: &str, context: &Json) -> Result<String> {
    let context = context.as_object().unwrap().clone().into_iter().collect();
    TemplateEngine::new().render_str(template, &context)
}

fn refusal_text(template: &str) -> String {
    let error =
        render_sample(template, &json!({"x": "xy", "n": 3, "list": ["a", "b"]})).unwrap_err();
    format!("{}: {error}", error.code())
}

#[test]
fn common_prompt_constructs_render() {
    let context = json!({
        "entity_name": "Mira", "n": 3, "claims": [
            {"page_name": "Mira", "text": "has green eyes"},
            {"page_name": "Harbour", "text": "Mira's eyes are grey"},
        ],
    });
    let template = "About \"{{ entity_name }}\":\n\n{% for claim in claims %}Claim {{ loop.index }} \
                    (from [[{{ claim.page_name }}]]): {{ claim.text }}\n{% endfor %}\nEnd.";
    assert_eq!(
        render_sample(template, &context).unwrap(),
        "About \"Mira\":\n\nClaim 1 (from [[Mira]]): has green eyes\nClaim 2 (from [[Harbour]]): \
         Mira's eyes are grey\n\nEnd."
    );
    for (template, want) in [
        ("{{ entity_name | upper ~ '!' }}", "MIRA!"),
        ("{{ n + 1 }} {{ n - 1 }}", "4 2"),
        ("{{ missing | default('none') }}", "none"),
        ("{% if missing is defined %}a{% else %}b{% endif %}", "b"),
        (
            "{{ claims | length }} {{ claims[0].text | truncate(5) }}",
            "2 has…",
        ),
        ("{% set c = claims | first %}{{ c.page_name }}", "Mira"),
        (
            "{% set c = claims[1] %}{{ c.text | replace('grey', 'blue') }}",
            "Mira's eyes are blue",
        ),
        ("{% for x in ['a', 'b'] %}{{ x }}{% endfor %}", "ab"),
        ("{{ ['a', 'b'] | join(', ') }}", "a, b"),
        (
            "{% for k, v in claims[0] | items %}{{ k }}={{ v }};{% endfor %}",
            "page_name=Mira;text=has green eyes;",
        ),
        (
            "{% raw %}{{ x * 9 }}{% endraw %}{# {{ y * 9 }} #}.",
            "{{ x * 9 }}.",
        ),
        ("{% for i in range(3) %}{{ i }}{% endfor %}", "012"),
        (
            "{{ claims[0] | tojson }}",
            r#"{"page_name":"Mira","text":"has green eyes"}"#,
        ),
        ("a { b } {c}", "a { b } {c}"),
        ("{{ \"}}\" }}", "}}"),
    ] {
        let got = render_sample(template, &context).unwrap_or_else(|e| panic!("{template}: {e}"));
        assert_eq!(got, want, "{template}");
    }
}

#[test]
fn undefined_values_are_reported_with_their_line() {
    let error = render_sample("one\ntwo {{ who.name }}", &json!({"who": {}})).unwrap_err();
    let want = Error::UndefinedVariable {
        line: Some(2),
        name: "who.name".into(),
    };
    assert_eq!(error, want);
    assert!(refusal_text("\n\n{{ y }}").contains("line 3: `y` is not defined"));
    assert!(refusal_text("{{ y | upper }}").starts_with("undefined_variable"));
    assert!(refusal_text("{% for a in y %}{% endfor %}").contains("`y`"));
}

#[test]
fn t29_expansion_bombs_are_refused() {
    for (template, want) in [
        ("{{ 'x' * 100000000 }}", "`*` is not available"),
        ("{{ (1,) * 100000000 }}", "`*` is not available"),
        (
            "{% for a in range(999) %}{% for b in range(999) %}{{ x }}{% endfor %}{% endfor %}",
            "steps to render",
        ),
        ("{% for a in range(100001) %}{% endfor %}", "at most 1000"),
        ("{% include 'a' %}", "`include` is not available"),
        ("{% import 'a' as b %}", "`import` is not available"),
        ("{% extends 'a' %}", "`extends` is not available"),
        (
            "{% macro m() %}{{ m() }}{% endmacro %}",
            "`macro` is not available",
        ),
        ("{% call m() %}{% endcall %}", "`call` is not available"),
        (
            "{% filter upper %}x{% endfilter %}",
            "`filter` is not available",
        ),
        (
            "{% autoescape true %}x{% endautoescape %}",
            "`autoescape` is not available",
        ),
        ("{% set y %}{{ x }}{{ x }}{% endset %}", "with a block"),
        ("{% set x = x ~ x %}", "put together"),
        ("{% set x = x + x %}", "put together"),
        ("{% set x = [x, x] %}", "put together"),
        ("{% set x = (x, x) %}", "put together"),
        ("{% set x = x, x %}", "put together"),
        ("{% set x = {'a': x} %}", "put together"),
        ("{% set x = x | default([x, x]) %}", "put together"),
        ("{% with y = [x, x] %}{% endwith %}", "put together"),
        ("{% for x in [[x, x]] %}{% endfor %}", "list within a list"),
        (
            "{% for x in list recursive %}{{ loop(x) }}{% endfor %}",
            "recursive",
        ),
        ("{{ x | replace('', 'yyyy') }}", "non-empty"),
    ] {
        let error = refusal_text(template);
        assert!(error.contains(want), "{template}: {error}");
    }
    let chains = [
        format!("{{{{ {} true }}}}", "not ".repeat(400)),
        format!("{{{{ {}1 }}}}", "-".repeat(1500)),
        format!("{{{{ x {} }}}}", "if x else x ".repeat(100)),
        format!("{{{{ {}x{} }}}}", "(".repeat(900), ")".repeat(900)),
        format!("{{{{ {}x{} }}}}", "[".repeat(900), "]".repeat(900)),
        format!("{{{{ x {} }}}}", "~ x ".repeat(100)),
        format!("{{{{ x{} }}}}", " ".repeat(4000)),
        "x".repeat(MAX_TEMPLATE + 1),
        format!(
            "{}x{}",
            "{% if x %}".repeat(3000),
            "{% endif %}".repeat(3000)
        ),
    ];
    for template in chains {
        assert!(render_sample(&template, &json!({"x": "x"})).is_err());
    }
    // Long, but within the limits.
    let chain = format!("{{{{ x {} }}}}", "| upper ".repeat(200));
    assert_eq!(render_sample(&chain, &json!({"x": "a"})).unwrap(), "A");
    let grown = format!("{{{{ x {} }}}}", "| join(x) ".repeat(20));
    assert!(render_sample(&grown, &json!({"x": "abcdefgh"})).is_err());
    let long = json!({"x": "x".repeat(MAX_OUTPUT / 2)});
    let error = render_sample("{{ x }}{{ x }}{{ x }}", &long).unwrap_err();
    assert!(
        error.to_string().contains("more than 1048576 bytes"),
        "{error}"
    );
    let slice = render_sample("{{ x[5:1:-1] }}", &json!({"x": "abcdefgh"}));
    assert_eq!(slice.unwrap(), "fedc");
}

#[test]
fn errors_do_not_repeat_values() {
    let secret = "hunter2hunter2";
    for template in [
        "{{ x.y.z }}",
        "{{ x | indent(x) }}",
        "{{ x + 1 }}",
        "{{ x | nothing }}",
    ] {
        let error = render_sample(template, &json!({"x": secret})).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(secret), "{error:?}");
    }
}

proptest::proptest! {
    #[test]
    fn rendering_never_panics_on_any_text(template in "[{}%# a-z|~+*\\[\\]()'\"=,.\\n-]{0,200}") {
        let _ = render_sample(&template, &json!({"a": "b", "x": [1, 2]}));
    }

    #[test]
    fn values_are_never_read_as_templates(value in ".{0,100}") {
        let got = render_sample("{{ x }}", &json!({"x": value})).unwrap();
        proptest::prop_assert_eq!(got, value);
    }
}
