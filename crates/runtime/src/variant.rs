//! Chooses the variant of an artifact for a model.

use crate::dispatch::ArtifactInfo;

/// Substrings of model ids by family, the most specific first.
const FAMILIES: [(&str, &[&str]); 17] = [
    ("anthropic", &["claude"]),
    ("openai", &["gpt-", "chatgpt", "davinci", "codex"]),
    ("google", &["gemini", "gemma", "palm"]),
    ("deepseek", &["deepseek"]),
    ("meta", &["llama"]),
    (
        "mistral",
        &[
            "mistral",
            "mixtral",
            "codestral",
            "ministral",
            "magistral",
            "devstral",
        ],
    ),
    ("qwen", &["qwen", "qwq"]),
    ("cohere", &["command-", "command_", "c4ai", "aya-"]),
    ("xai", &["grok"]),
    ("microsoft", &["phi-", "phi3", "phi4", "wizardlm"]),
    ("huggingface", &["smollm", "zephyr"]),
    ("moonshot", &["kimi", "moonshot"]),
    ("zai", &["glm-", "chatglm"]),
    ("minimax", &["minimax", "abab"]),
    ("amazon", &["nova-", "titan"]),
    ("ibm", &["granite"]),
    ("nvidia", &["nemotron"]),
];

/// Returns the family of a model, from its id: the part before the first `/` names the provider.
///
/// An unknown model belongs to the family of its provider.
///
/// ```
/// use repertoire_runtime::variant::family_of;
///
/// assert_eq!(family_of("anthropic/claude-sonnet-4-5"), "anthropic");
/// assert_eq!(family_of("openrouter/anthropic/claude-haiku"), "anthropic");
/// assert_eq!(family_of("ollama/llama3.2:3b"), "meta");
/// assert_eq!(family_of("openai/o3-mini"), "openai");
/// assert_eq!(family_of("lab/experiment-7"), "lab");
/// ```
pub fn family_of(model_id: &str) -> String {
    let id = model_id.to_ascii_lowercase();
    let (provider, model) = id.split_once('/').unwrap_or(("", &id));
    let name = model.rsplit('/').next().unwrap_or(model);
    for (family, words) in FAMILIES {
        if words.iter().any(|word| name.contains(word)) {
            return family.to_owned();
        }
    }
    // The o-series has no distinctive word: o1, o3-mini, o4-mini-high.
    let rest = name.strip_prefix('o').unwrap_or_default();
    if rest.starts_with(|c: char| c.is_ascii_digit()) {
        return "openai".to_owned();
    }
    if provider.is_empty() { name } else { provider }.to_owned()
}

/// Returns the variant of an artifact for a family: the one that names the family, else the one
/// that names none, else the first by ordinal.
///
/// Of variants with the same ordinal, the first in the list wins.
pub fn choose_variant<'a>(variants: &[&'a ArtifactInfo], family: &str) -> Option<&'a ArtifactInfo> {
    let find = |wanted: Option<&str>| {
        let mut variants = variants.iter().copied();
        variants.find(|info| info.artifact.model_variant.as_deref() == wanted)
    };
    find(Some(family))
        .or_else(|| find(None))
        // A variant named `default` also counts as one without a family.
        .or_else(|| find(Some("default")))
        .or_else(|| {
            variants
                .iter()
                .copied()
                .min_by_key(|info| info.artifact.ordinal)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant_info(ordinal: i64, variant: Option<&str>) -> ArtifactInfo {
        let json = serde_json::json!({
            "kind": "prompt_template", "name": "p", "ordinal": ordinal, "content": "x",
            "model_variant": variant,
        });
        ArtifactInfo {
            id: ordinal.to_string(),
            artifact: serde_json::from_value(json).unwrap(),
        }
    }

    #[test]
    fn the_exact_family_comes_first_then_the_default_then_the_lowest_ordinal() {
        let all = [
            variant_info(5, Some("openai")),
            variant_info(3, Some("anthropic")),
            variant_info(9, None),
        ];
        let all: Vec<&ArtifactInfo> = all.iter().collect();
        assert_eq!(choose_variant(&all, "openai"), Some(all[0]));
        assert_eq!(choose_variant(&all, "anthropic"), Some(all[1]));
        assert_eq!(choose_variant(&all, "meta"), Some(all[2]));
        assert_eq!(choose_variant(&all[..2], "meta"), Some(all[1]));
        assert_eq!(choose_variant(&[], "meta"), None);
        let named = [
            variant_info(1, Some("openai")),
            variant_info(2, Some("default")),
        ];
        let named: Vec<&ArtifactInfo> = named.iter().collect();
        assert_eq!(choose_variant(&named, "meta"), Some(named[1]));
    }

    #[test]
    fn common_models_map_to_their_family() {
        for (id, family) in [
            ("openai/gpt-4o-mini", "openai"),
            ("openai/gpt-5.1", "openai"),
            ("openai/o1", "openai"),
            ("anthropic/claude-opus-4-1", "anthropic"),
            ("ollama/qwen3:8b", "qwen"),
            ("ollama/gemma3", "google"),
            ("ollama/phi4", "microsoft"),
            ("ollama/mistral-nemo", "mistral"),
            ("groq/llama-3.3-70b-versatile", "meta"),
            ("deepseek/deepseek-chat", "deepseek"),
            ("openrouter/google/gemini-2.5-pro", "google"),
            ("together/meta-llama/Llama-3.3-70B-Instruct-Turbo", "meta"),
            ("xai/grok-4", "xai"),
            ("local/smollm2-135m-instruct", "huggingface"),
            ("moonshot/kimi-k2", "moonshot"),
            ("zai/glm-4.6", "zai"),
            ("host/opus-something", "host"),
            ("plain", "plain"),
        ] {
            assert_eq!(family_of(id), family, "{id}");
        }
    }
}
