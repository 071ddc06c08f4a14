//! Signatures of programs: their input and output fields.
//!
//! A text such as `claims: list[str] -> contradictions` is parsed here, with types from an allow
//! list, and sent on as structured data. Parsed by DSPy, a dotted name would import a module.

use serde::Serialize;

use crate::error::{Error, Result};

/// Limits of a signature: bytes, fields, and nesting of a type.
const MAX_TEXT: usize = 8 * 1024;
const MAX_FIELDS: usize = 32;
const MAX_DEPTH: usize = 4;

/// Names that have a special meaning in DSPy.
const RESERVED: [&str; 9] = [
    "config",
    "demos",
    "fields",
    "input_fields",
    "instructions",
    "lm",
    "output_fields",
    "signature",
    "traces",
];

/// The input and output fields of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signature {
    /// The input fields.
    pub inputs: Vec<SignatureField>,
    /// The output fields.
    pub outputs: Vec<SignatureField>,
    /// The instructions for the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

/// One field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SignatureField {
    /// Its name.
    pub name: String,
    /// Its type.
    pub r#type: FieldType,
}

/// The type of a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum FieldType {
    /// A text.
    Str,
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// A boolean.
    Bool,
    /// Any JSON value.
    Any,
    /// A list.
    List {
        /// The type of the items.
        of: Box<FieldType>,
    },
    /// A map with string keys.
    Dict {
        /// The type of the values.
        of: Box<FieldType>,
    },
    /// A value or null.
    Optional {
        /// The type of the value.
        of: Box<FieldType>,
    },
    /// One of these texts.
    Literal {
        /// The texts.
        values: Vec<String>,
    },
}

impl Signature {
    /// Parses a signature.
    ///
    /// ```
    /// use repertoire_runtime::sidecar::Signature;
    ///
    /// let signature = Signature::parse("claims: list[str], about -> contradictions")?;
    /// assert_eq!(signature.inputs.len(), 2);
    /// let refused = Signature::parse("q: os.PathLike -> a").unwrap_err();
    /// assert!(refused.to_string().contains("os.PathLike"));
    /// # Ok::<(), repertoire_runtime::Error>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self> {
        let refuse = |reason: String| Error::InvalidCall {
            call: "signature".to_owned(),
            reason,
        };
        if text.len() > MAX_TEXT {
            return Err(refuse(format!("it has more than {MAX_TEXT} bytes")));
        }
        let (inputs, outputs) = text
            .split_once("->")
            .ok_or_else(|| refuse("it has no `->`: write `input -> output`".to_owned()))?;
        let fields = |part: &str| -> std::result::Result<Vec<SignatureField>, String> {
            split_fields(part).into_iter().map(parse_field).collect()
        };
        let signature = Self {
            inputs: fields(inputs).map_err(refuse)?,
            outputs: fields(outputs).map_err(refuse)?,
            instructions: None,
        };
        let names: Vec<&str> = signature.fields().map(|field| &*field.name).collect();
        if signature.inputs.is_empty() || signature.outputs.is_empty() {
            return Err(refuse("it needs a value on either side of `->`".to_owned()));
        }
        if names.len() > MAX_FIELDS {
            return Err(refuse(format!("it has more than {MAX_FIELDS} values")));
        }
        for (at, name) in names.iter().enumerate() {
            if names[..at].contains(name) {
                return Err(refuse(format!("two values are called `{name}`")));
            }
        }
        Ok(signature)
    }

    /// All fields, inputs first.
    pub fn fields(&self) -> impl Iterator<Item = &SignatureField> {
        self.inputs.iter().chain(&self.outputs)
    }
}

/// Splits at commas that are not inside brackets or quotes.
fn split_fields(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut quoted, mut from) = (Vec::new(), 0_i32, None, 0);
    for (at, c) in text.char_indices() {
        match (quoted, c) {
            (Some(mark), _) => quoted = (c != mark).then_some(mark),
            (None, '\'' | '"') => quoted = Some(c),
            (None, '[') => depth += 1,
            (None, ']') => depth -= 1,
            (None, ',') if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text[from..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn parse_field(text: &str) -> std::result::Result<SignatureField, String> {
    let (name, kind) = match text.split_once(':') {
        Some((name, kind)) => (name.trim(), parse_type(kind.trim(), 0)?),
        None => (text, FieldType::Str),
    };
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name || name.len() > 64 {
        return Err(format!("`{name}` is no name of a value"));
    }
    if RESERVED.contains(&name) {
        return Err(format!(
            "`{name}` means something to DSPy: call the value something else"
        ));
    }
    Ok(SignatureField {
        name: name.to_owned(),
        r#type: kind,
    })
}

fn parse_type(text: &str, depth: usize) -> std::result::Result<FieldType, String> {
    if depth > MAX_DEPTH {
        return Err("a type nests too deep".to_owned());
    }
    let inner = |name: &str| -> Option<&str> {
        let rest = text.strip_prefix(name)?.trim_start().strip_prefix('[')?;
        rest.strip_suffix(']')
    };
    let of = |text: &str| parse_type(text.trim(), depth + 1).map(Box::new);
    Ok(match text {
        "str" => FieldType::Str,
        "int" => FieldType::Int,
        "float" => FieldType::Float,
        "bool" => FieldType::Bool,
        "Any" => FieldType::Any,
        "list" | "List" => FieldType::List {
            of: Box::new(FieldType::Any),
        },
        "dict" | "Dict" => FieldType::Dict {
            of: Box::new(FieldType::Any),
        },
        _ => {
            if let Some(one) = inner("list").or_else(|| inner("List")) {
                FieldType::List { of: of(one)? }
            } else if let Some(one) = inner("Optional") {
                FieldType::Optional { of: of(one)? }
            } else if let Some(pair) = inner("dict").or_else(|| inner("Dict")) {
                match split_fields(pair)[..] {
                    ["str", value] => FieldType::Dict { of: of(value)? },
                    _ => return Err(format!("`{text}`: a dict is `dict[str, TYPE]`")),
                }
            } else if let Some(values) = inner("Literal") {
                let unquoted = |value: &str| {
                    let mark = value.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
                    let plain = value.strip_prefix(mark)?.strip_suffix(mark)?;
                    (!plain.contains([mark, '\\'])).then(|| plain.to_owned())
                };
                let values: Option<Vec<String>> =
                    split_fields(values).into_iter().map(unquoted).collect();
                match values {
                    Some(values) if !values.is_empty() => FieldType::Literal { values },
                    _ => return Err(format!("`{text}`: a Literal lists texts in quotes")),
                }
            } else {
                return Err(format!(
                    "`{text}` is no type that can be used: there are str, int, float, bool, Any, \
                     list, dict, Optional and Literal"
                ));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_are_serialized_as_nested_objects() {
        let text = "a, b: list[dict[str, int]], c: Literal['x, y', \"z\"] -> d: Optional[float]";
        let signature = Signature::parse(text).unwrap();
        assert_eq!(
            json!(signature),
            json!({
                "inputs": [
                    {"name": "a", "type": {"type": "str"}},
                    {"name": "b", "type": {"type": "list",
                        "of": {"type": "dict", "of": {"type": "int"}}}},
                    {"name": "c", "type": {"type": "literal", "values": ["x, y", "z"]}},
                ],
                "outputs": [
                    {"name": "d", "type": {"type": "optional", "of": {"type": "float"}}},
                ],
            })
        );
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics_on_any_text(
            text in "[a-z:,\\[\\]'\" .>-]{0,60}|.{0,40}|[a-z]{1,3}(: (str|list\\[str\\]|Any))? -> [a-z]{1,3}",
        ) {
            if let Ok(signature) = Signature::parse(&text) {
                let names: Vec<_> = signature.fields().map(|field| &*field.name).collect();
                proptest::prop_assert!(names.iter().all(|name| !name.contains('.')));
            }
        }
    }

    #[test]
    fn t32_signatures_that_would_import_are_refused() {
        for text in [
            "q: evilmod.T -> a",
            "q -> a: os.PathLike",
            "q: list[evilmod.T] -> a",
            "q: __import__('os') -> a",
            "q: dict[evilmod.T, str] -> a",
            "q: Literal[evilmod.X] -> a",
            "q: 'evilmod.T' -> a",
            "q: list[list[list[list[list[list[str]]]]]] -> a",
            "__class__ -> a",
            "q.x -> a",
            "q -> a, q",
            "signature -> a",
            "config -> a",
            "q, lm -> a",
            "demos -> a",
            "q -> instructions",
            "q ->",
            "-> a",
            "q",
        ] {
            assert!(Signature::parse(text).is_err(), "{text}");
        }
    }
}
