//! Signatures of programs: which values go in, which come out.
//!
//! A text such as `claims: list[str] -> contradictions` is read here, with types from a list of
//! those that are harmless, and sent on in parts: read by DSPy, a name with a dot would import a
//! module.

use serde::Serialize;

use crate::error::{Error, Result};

/// The most bytes of a signature, fields of it, and depth of a type.
const MAX_TEXT: usize = 8 * 1024;
const MAX_FIELDS: usize = 32;
const MAX_DEPTH: usize = 4;

/// Names that DSPy takes for something else than a value.
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

/// What goes into a program, and what comes out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signature {
    /// What goes in.
    pub inputs: Vec<Field>,
    /// What comes out.
    pub outputs: Vec<Field>,
    /// What is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
}

/// One value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What it is.
    pub r#type: Type,
}

/// What a value is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Type {
    /// A text.
    Str,
    /// A whole number.
    Int,
    /// A number.
    Float,
    /// Yes or no.
    Bool,
    /// Whatever it is.
    Any,
    /// Several.
    List {
        /// Of what.
        of: Box<Type>,
    },
    /// Several, by name.
    Dict {
        /// Of what.
        of: Box<Type>,
    },
    /// One, or none.
    Optional {
        /// Of what.
        of: Box<Type>,
    },
    /// One of these texts.
    Literal {
        /// The texts.
        values: Vec<String>,
    },
}

impl Signature {
    /// Reads a signature.
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
        let refuse = |reason: String| Error::Call {
            call: "signature".to_owned(),
            reason,
        };
        if text.len() > MAX_TEXT {
            return Err(refuse(format!("it has more than {MAX_TEXT} bytes")));
        }
        let (inputs, outputs) = text
            .split_once("->")
            .ok_or_else(|| refuse("it has no `->`: write `input -> output`".to_owned()))?;
        let fields = |part: &str| -> std::result::Result<Vec<Field>, String> {
            split(part).into_iter().map(field).collect()
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

    /// Everything that goes in and comes out.
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        self.inputs.iter().chain(&self.outputs)
    }
}

/// Splits at commas that are not inside brackets or quotes.
fn split(text: &str) -> Vec<&str> {
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

fn field(text: &str) -> std::result::Result<Field, String> {
    let (name, kind) = match text.split_once(':') {
        Some((name, kind)) => (name.trim(), kind_of(kind.trim(), 0)?),
        None => (text, Type::Str),
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
    Ok(Field {
        name: name.to_owned(),
        r#type: kind,
    })
}

fn kind_of(text: &str, depth: usize) -> std::result::Result<Type, String> {
    if depth > MAX_DEPTH {
        return Err("a type nests too deep".to_owned());
    }
    let inner = |name: &str| -> Option<&str> {
        let rest = text.strip_prefix(name)?.trim_start().strip_prefix('[')?;
        rest.strip_suffix(']')
    };
    let of = |text: &str| kind_of(text.trim(), depth + 1).map(Box::new);
    Ok(match text {
        "str" => Type::Str,
        "int" => Type::Int,
        "float" => Type::Float,
        "bool" => Type::Bool,
        "Any" => Type::Any,
        "list" | "List" => Type::List {
            of: Box::new(Type::Any),
        },
        "dict" | "Dict" => Type::Dict {
            of: Box::new(Type::Any),
        },
        _ => {
            if let Some(one) = inner("list").or_else(|| inner("List")) {
                Type::List { of: of(one)? }
            } else if let Some(one) = inner("Optional") {
                Type::Optional { of: of(one)? }
            } else if let Some(pair) = inner("dict").or_else(|| inner("Dict")) {
                match split(pair)[..] {
                    ["str", value] => Type::Dict { of: of(value)? },
                    _ => return Err(format!("`{text}`: a dict is `dict[str, TYPE]`")),
                }
            } else if let Some(values) = inner("Literal") {
                let unquoted = |value: &str| {
                    let mark = value.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
                    let plain = value.strip_prefix(mark)?.strip_suffix(mark)?;
                    (!plain.contains([mark, '\\'])).then(|| plain.to_owned())
                };
                let values: Option<Vec<String>> = split(values).into_iter().map(unquoted).collect();
                match values {
                    Some(values) if !values.is_empty() => Type::Literal { values },
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
    fn types_are_told_in_parts() {
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
        fn any_text_is_answered(
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
