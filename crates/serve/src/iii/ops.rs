//! `state::update`: small changes of a value, applied one after the other.
//!
//! An operation that does not fit leaves the value as it is and is reported; the others count.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// How deep a path may go, how long a segment may be.
const MAX_SEGMENTS: usize = 32;
const MAX_SEGMENT: usize = 256;

/// One change. A path of one word is a field of the value; an empty one is the value itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum Op {
    Set {
        #[serde(default)]
        path: Path,
        #[serde(default)]
        value: Value,
    },
    Merge {
        #[serde(default)]
        path: Path,
        value: Value,
    },
    Increment {
        #[serde(default)]
        path: Path,
        #[serde(default = "one")]
        by: Value,
    },
    Decrement {
        #[serde(default)]
        path: Path,
        #[serde(default = "one")]
        by: Value,
    },
    Append {
        #[serde(default)]
        path: Path,
        value: Value,
    },
    Remove {
        #[serde(default)]
        path: Path,
    },
}

fn one() -> Value {
    json!(1)
}

/// Where in a value.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(untagged)]
pub(crate) enum Path {
    #[default]
    Root,
    One(String),
    Many(Vec<String>),
}

impl Path {
    fn segments(&self) -> &[String] {
        match self {
            Self::Root => &[],
            Self::One(one) if one.is_empty() => &[],
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// Why an operation was not applied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct OpError {
    op_index: usize,
    code: String,
    message: String,
}

/// The value after all operations, and those that were not applied.
pub(crate) fn apply(mut value: Value, ops: Vec<Op>) -> (Value, Vec<OpError>) {
    let mut errors = Vec::new();
    for (op_index, op) in ops.into_iter().enumerate() {
        let before = value.clone();
        if let Err((code, message)) = apply_one(&mut value, op) {
            value = before;
            errors.push(OpError {
                op_index,
                code: code.to_owned(),
                message,
            });
        }
    }
    (value, errors)
}

type Refused = (&'static str, String);

fn apply_one(value: &mut Value, op: Op) -> Result<(), Refused> {
    match op {
        Op::Set { path, value: new } => *place(value, &path, "set.path")? = new,
        Op::Merge { path, value: new } => {
            let Value::Object(new) = new else {
                return Err(("merge.type_mismatch", "only an object can be merged".into()));
            };
            let target = place(value, &path, "merge.path")?;
            if target.is_null() {
                *target = Value::Object(Map::new());
            }
            match target {
                Value::Object(target) => target.extend(new),
                _ => return Err(("merge.type_mismatch", "only an object takes a merge".into())),
            }
        }
        Op::Increment { path, by } => add(place(value, &path, "increment.path")?, &by, 1)?,
        Op::Decrement { path, by } => add(place(value, &path, "decrement.path")?, &by, -1)?,
        Op::Append { path, value: new } => {
            let nested = path.segments().len() > 1;
            let target = place(value, &path, "append.path")?;
            match (&mut *target, new) {
                (Value::Array(items), new) => items.push(new),
                (Value::String(text), Value::String(more)) => text.push_str(&more),
                (Value::Null, new @ Value::String(_)) if !nested => *target = new,
                (Value::Null, new) => *target = json!([new]),
                _ => {
                    let message = "only an array or a text can be appended to".to_owned();
                    return Err(("append.type_mismatch", message));
                }
            }
        }
        Op::Remove { path } => remove(value, &path)?,
    }
    Ok(())
}

/// The place a path names; what is not there yet becomes an object, and nothing else does.
fn place<'a>(
    value: &'a mut Value,
    path: &Path,
    what: &'static str,
) -> Result<&'a mut Value, Refused> {
    let mut at = value;
    for segment in check(path, what)? {
        if at.is_null() {
            *at = Value::Object(Map::new());
        }
        match at {
            Value::Object(object) => at = object.entry(segment.clone()).or_insert(Value::Null),
            _ => return Err(("path.not_an_object", format!("{segment:?} is no field"))),
        }
    }
    Ok(at)
}

fn remove(value: &mut Value, path: &Path) -> Result<(), Refused> {
    let Some((last, above)) = check(path, "remove.path")?.split_last() else {
        *value = Value::Null;
        return Ok(());
    };
    let mut at = value;
    for segment in above {
        match at.get_mut(segment.as_str()) {
            Some(next) => at = next,
            None => return Ok(()),
        }
    }
    if let Value::Object(object) = at {
        object.shift_remove(last);
    }
    Ok(())
}

fn check<'a>(path: &'a Path, what: &'static str) -> Result<&'a [String], Refused> {
    let segments = path.segments();
    if segments.len() > MAX_SEGMENTS {
        let code = match what {
            "merge.path" => "merge.path.too_deep",
            _ => "path.too_deep",
        };
        return Err((code, format!("{what}: at most {MAX_SEGMENTS} segments")));
    }
    for segment in segments {
        if segment.is_empty() || segment.len() > MAX_SEGMENT {
            let message = format!("{what}: a segment has 1 to {MAX_SEGMENT} bytes");
            return Err(("path.invalid_segment", message));
        }
        if matches!(segment.as_str(), "__proto__" | "constructor" | "prototype") {
            return Err((
                "path.forbidden_segment",
                format!("{what}: {segment:?} is not allowed"),
            ));
        }
    }
    Ok(segments)
}

fn add(target: &mut Value, by: &Value, sign: i64) -> Result<(), Refused> {
    let refuse = |what: &str| ("increment.type_mismatch", format!("{what} is no number"));
    let now = if target.is_null() {
        json!(0)
    } else {
        target.clone()
    };
    let whole = now.as_i64().zip(by.as_i64());
    let whole = whole.and_then(|(now, by)| now.checked_add(by.checked_mul(sign)?));
    if let Some(sum) = whole {
        *target = json!(sum);
        return Ok(());
    }
    let now = now.as_f64().ok_or_else(|| refuse("the value"))?;
    let by = by.as_f64().ok_or_else(|| refuse("`by`"))?;
    *target = json!(if sign < 0 { now - by } else { now + by });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(value: Value, ops: Value) -> (Value, Vec<String>) {
        let (value, errors) = apply(value, serde_json::from_value(ops).unwrap());
        (value, errors.into_iter().map(|error| error.code).collect())
    }

    #[test]
    fn operations_do_what_they_say() {
        let ops = json!([
            {"type": "set", "path": "a", "value": 1},
            {"type": "increment", "path": "n", "by": 2},
            {"type": "decrement", "path": "n", "by": 5},
            {"type": "merge", "value": {"b": {"x": 1}}},
            {"type": "merge", "path": ["b"], "value": {"y": 2}},
            {"type": "append", "path": "list", "value": {"k": 1}},
            {"type": "append", "path": "list", "value": 2},
            {"type": "append", "path": "text", "value": "a"},
            {"type": "append", "path": "text", "value": "b"},
            {"type": "remove", "path": "a"},
            {"type": "set", "path": "a.b", "value": true},
        ]);
        let (value, errors) = run(json!(null), ops);
        assert_eq!(
            value,
            json!({"n": -3, "b": {"x": 1, "y": 2}, "list": [{"k": 1}, 2], "text": "ab", "a.b": true})
        );
        assert!(errors.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_reported_and_the_rest_counts() {
        let ops = json!([
            {"type": "increment", "path": "text"},
            {"type": "merge", "value": 1},
            {"type": "append", "path": "n", "value": 1},
            {"type": "set", "path": "__proto__", "value": 1},
            {"type": "merge", "path": vec!["x"; 33], "value": {}},
            {"type": "increment", "path": "n"},
        ]);
        let (value, errors) = run(json!({"text": "t", "n": 1}), ops);
        assert_eq!(value, json!({"text": "t", "n": 2}));
        assert_eq!(
            errors,
            [
                "increment.type_mismatch",
                "merge.type_mismatch",
                "append.type_mismatch",
                "path.forbidden_segment",
                "merge.path.too_deep"
            ]
        );
        // What fails, and what is in the way, leaves everything as it was.
        let kept = json!({"a": [1, 2, 3]});
        let wrong = json!([{"type": "increment", "path": "b", "by": "no"}]);
        assert_eq!(run(kept.clone(), wrong).0, kept);
        let nested = json!([{"type": "merge", "path": ["a", "x"], "value": {}}]);
        let refused = vec!["path.not_an_object".to_owned()];
        assert_eq!(run(kept.clone(), nested), (kept, refused));
        let (value, _) = run(
            json!({"n": i64::MAX}),
            json!([{"type": "increment", "path": "n"}]),
        );
        assert!(value["n"].as_f64().unwrap() > 9e18);
    }
}
