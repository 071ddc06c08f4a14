use serde_json::json;

use super::*;

fn render(template: &str, context: &Json) -> Result<String> {
    let context = context.as_object().unwrap().clone().into_iter().collect();
    PromptEngine::new().render_str(template, &context)
}

fn refused(template: &str) -> String {
    let error = render(template, &json!({"x": "xy", "n": 3, "list": ["a", "b"]})).unwrap_err();
    format!("{}: {error}", error.code())
}

#[test]
fn what_prompts_are_made_of() {
    let context = json!({
        "entity_name": "Mira", "n": 3, "claims": [
            {"page_name": "Mira", "text": "has green eyes"},
            {"page_name": "Harbour", "text": "Mira's eyes are grey"},
        ],
    });
    let template = "About \"{{ entity_name }}\":\n\n{% for claim in claims %}Claim {{ loop.index }} \
                    (from [[{{ claim.page_name }}]]): {{ claim.text }}\n{% endfor %}\nEnd.";
    assert_eq!(
        render(template, &context).unwrap(),
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
        let got = render(template, &context).unwrap_or_else(|e| panic!("{template}: {e}"));
        assert_eq!(got, want, "{template}");
    }
}

#[test]
fn what_is_missing_is_named_with_its_line() {
    let error = render("one\ntwo {{ who.name }}", &json!({"who": {}})).unwrap_err();
    let want = Error::Undefined {
        line: Some(2),
        name: "who.name".into(),
    };
    assert_eq!(error, want);
    assert!(refused("\n\n{{ y }}").contains("line 3: `y` is not defined"));
    assert!(refused("{{ y | upper }}").starts_with("undefined_variable"));
    assert!(refused("{% for a in y %}{% endfor %}").contains("`y`"));
}

#[test]
fn t29_bombs_are_contained() {
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
        let error = refused(template);
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
        assert!(render(&template, &json!({"x": "x"})).is_err());
    }
    // Long, but what it needs it may have.
    let chain = format!("{{{{ x {} }}}}", "| upper ".repeat(200));
    assert_eq!(render(&chain, &json!({"x": "a"})).unwrap(), "A");
    let grown = format!("{{{{ x {} }}}}", "| join(x) ".repeat(20));
    assert!(render(&grown, &json!({"x": "abcdefgh"})).is_err());
    let long = json!({"x": "x".repeat(MAX_OUTPUT / 2)});
    let error = render("{{ x }}{{ x }}{{ x }}", &long).unwrap_err();
    assert!(
        error.to_string().contains("more than 1048576 bytes"),
        "{error}"
    );
    let slice = render("{{ x[5:1:-1] }}", &json!({"x": "abcdefgh"}));
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
        let error = render(template, &json!({"x": secret})).unwrap_err();
        assert!(!format!("{error} {error:?}").contains(secret), "{error:?}");
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_answered(template in "[{}%# a-z|~+*\\[\\]()'\"=,.\\n-]{0,200}") {
        let _ = render(&template, &json!({"a": "b", "x": [1, 2]}));
    }

    #[test]
    fn values_are_never_read_as_templates(value in ".{0,100}") {
        let got = render("{{ x }}", &json!({"x": value})).unwrap();
        proptest::prop_assert_eq!(got, value);
    }
}
