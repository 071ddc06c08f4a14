//! `state::update`: operations on a value, applied one after the other.
//!
//! An operation that fails leaves the value unchanged and is reported; the others still apply.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The most segments of a path, and the most bytes of a segment.
const MAX_SEGMENTS: usize = 32;
const MAX_SEGMENT_BYTES: usize = 256;

/// One operation. A path with one segment names a field; an empty path names the value itself.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum UpdateOp {
    Set {
        #[serde(default)]
        path: ValuePath,
        #[serde(default)]
        value: Value,
    },
    Merge {
        #[serde(default)]
        path: ValuePath,
        value: Value,
    },
    Increment {
        #[serde(default)]
        path: ValuePath,
        #[serde(default = "one")]
        by: Value,
    },
    Decrement {
        #[serde(default)]
        path: ValuePath,
        #[serde(default = "one")]
        by: Value,
    },
    Append {
        #[serde(default)]
        path: ValuePath,
        value: Value,
    },
    Remove {
        #[serde(default)]
        path: ValuePath,
    },
}

fn one() -> Value {
    json!(1)
}

/// A position inside a value.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(untagged)]
pub(crate) enum ValuePath {
    #[default]
    Root,
    One(String),
    Many(Vec<String>),
}

impl ValuePath {
    fn segments(&self) -> &[String] {
        match self {
            Self::Root => &[],
            Self::One(one) if one.is_empty() => &[],
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// An operation that was not applied, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct UpdateOpError {
    op_index: usize,
    code: String,
    message: String,
}

/// Applies all operations; returns the new value and the operations that were not applied.
///
/// It runs on the store's thread, so its cost follows the operations, not the size of the value: each
/// operation is checked before it changes anything, so that nothing has to be undone.
pub(crate) fn apply_ops(mut value: Value, ops: Vec<UpdateOp>) -> (Value, Vec<UpdateOpError>) {
    let mut errors = Vec::new();
    for (op_index, op) in ops.into_iter().enumerate() {
        if let Err((code, message)) = apply_op(&mut value, op) {
            errors.push(UpdateOpError {
                op_index,
                code: code.to_owned(),
                message,
            });
        }
    }
    (value, errors)
}

type OpRefusal = (&'static str, String);

fn apply_op(value: &mut Value, op: UpdateOp) -> Result<(), OpRefusal> {
    match op {
        UpdateOp::Set { path, value: new } => {
            find_value(value, &path, "set.path")?;
            *create_value(value, &path) = new;
        }
        UpdateOp::Merge { path, value: new } => {
            let Value::Object(new) = new else {
                return Err(("merge.type_mismatch", "only an object can be merged".into()));
            };
            match find_value(value, &path, "merge.path")? {
                None | Some(Value::Null) => *create_value(value, &path) = Value::Object(new),
                Some(Value::Object(_)) => {
                    if let Value::Object(target) = create_value(value, &path) {
                        target.extend(new);
                    }
                }
                Some(_) => {
                    return Err(("merge.type_mismatch", "only an object takes a merge".into()));
                }
            }
        }
        UpdateOp::Increment { path, by } => {
            let sum = add_numbers(find_value(value, &path, "increment.path")?, &by, 1)?;
            *create_value(value, &path) = sum;
        }
        UpdateOp::Decrement { path, by } => {
            let sum = add_numbers(find_value(value, &path, "decrement.path")?, &by, -1)?;
            *create_value(value, &path) = sum;
        }
        UpdateOp::Append { path, value: new } => {
            let nested = path.segments().len() > 1;
            let can_append = match (find_value(value, &path, "append.path")?, &new) {
                (None | Some(Value::Null | Value::Array(_)), _)
                | (Some(Value::String(_)), Value::String(_)) => true,
                (Some(_), _) => false,
            };
            if !can_append {
                let message = "only an array or a text can be appended to".to_owned();
                return Err(("append.type_mismatch", message));
            }
            match (create_value(value, &path), new) {
                (Value::Array(items), new) => items.push(new),
                (Value::String(text), Value::String(more)) => text.push_str(&more),
                (target, new @ Value::String(_)) if !nested => *target = new,
                (target, new) => *target = json!([new]),
            }
        }
        UpdateOp::Remove { path } => remove_field(value, &path)?,
    }
    Ok(())
}

/// Returns the value at a path, if there is one. Fails if the path leads through something that has
/// no fields.
fn find_value<'a>(
    value: &'a Value,
    path: &ValuePath,
    what: &'static str,
) -> Result<Option<&'a Value>, OpRefusal> {
    let mut at = value;
    for segment in check_path(path, what)? {
        match at {
            Value::Null => return Ok(None),
            Value::Object(object) => match object.get(segment.as_str()) {
                Some(next) => at = next,
                None => return Ok(None),
            },
            _ => return Err(("path.not_an_object", format!("{segment:?} is no field"))),
        }
    }
    Ok(Some(at))
}

/// Returns the value at a path that was checked. Missing fields on the way are created as objects.
fn create_value<'a>(value: &'a mut Value, path: &ValuePath) -> &'a mut Value {
    let mut at = value;
    for segment in path.segments() {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[segment.as_str()];
    }
    at
}

fn remove_field(value: &mut Value, path: &ValuePath) -> Result<(), OpRefusal> {
    let Some((last, above)) = check_path(path, "remove.path")?.split_last() else {
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

fn check_path<'a>(path: &'a ValuePath, what: &'static str) -> Result<&'a [String], OpRefusal> {
    let segments = path.segments();
    if segments.len() > MAX_SEGMENTS {
        let code = match what {
            "merge.path" => "merge.path.too_deep",
            _ => "path.too_deep",
        };
        return Err((code, format!("{what}: at most {MAX_SEGMENTS} segments")));
    }
    for segment in segments {
        if segment.is_empty() || segment.len() > MAX_SEGMENT_BYTES {
            let message = format!("{what}: a segment has 1 to {MAX_SEGMENT_BYTES} bytes");
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

fn add_numbers(now: Option<&Value>, by: &Value, sign: i64) -> Result<Value, OpRefusal> {
    let refuse = |what: &str| ("increment.not_number", format!("{what} is not a number"));
    let zero = json!(0);
    let now = now.filter(|now| !now.is_null()).unwrap_or(&zero);
    let whole = now.as_i64().zip(by.as_i64());
    let whole = whole.and_then(|(now, by)| now.checked_add(by.checked_mul(sign)?));
    if let Some(sum) = whole {
        return Ok(json!(sum));
    }
    let now = now.as_f64().ok_or_else(|| refuse("the value"))?;
    let by = by.as_f64().ok_or_else(|| refuse("`by`"))?;
    Ok(json!(if sign < 0 { now - by } else { now + by }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_ops(value: Value, ops: Value) -> (Value, Vec<String>) {
        let (value, errors) = apply_ops(value, serde_json::from_value(ops).unwrap());
        (value, errors.into_iter().map(|error| error.code).collect())
    }

    #[test]
    fn each_operation_changes_the_value() {
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
        let (value, errors) = run_ops(json!(null), ops);
        assert_eq!(
            value,
            json!({"n": -3, "b": {"x": 1, "y": 2}, "list": [{"k": 1}, 2], "text": "ab", "a.b": true})
        );
        assert!(errors.is_empty());
    }

    #[test]
    fn t46_the_cost_of_an_update_follows_the_operations() {
        // With a copy of the value for each operation this would take hours.
        let long = json!({"text": "x".repeat(8 * 1024 * 1024), "n": 0});
        let ops = vec![json!({"type": "increment", "path": "n"}); 50_000];
        let (value, errors) = run_ops(long, json!(ops));
        assert_eq!((&value["n"], errors.len()), (&json!(50_000), 0));
    }

    #[test]
    fn invalid_operations_are_reported_and_the_others_applied() {
        let ops = json!([
            {"type": "increment", "path": "text"},
            {"type": "merge", "value": 1},
            {"type": "append", "path": "n", "value": 1},
            {"type": "set", "path": "__proto__", "value": 1},
            {"type": "merge", "path": vec!["x"; 33], "value": {}},
            {"type": "increment", "path": "n"},
        ]);
        let (value, errors) = run_ops(json!({"text": "t", "n": 1}), ops);
        assert_eq!(value, json!({"text": "t", "n": 2}));
        assert_eq!(
            errors,
            [
                "increment.not_number",
                "merge.type_mismatch",
                "append.type_mismatch",
                "path.forbidden_segment",
                "merge.path.too_deep"
            ]
        );
        // A failed operation leaves the value unchanged.
        let kept = json!({"a": [1, 2, 3]});
        let wrong = json!([{"type": "increment", "path": "b", "by": "no"}]);
        assert_eq!(run_ops(kept.clone(), wrong).0, kept);
        let nested = json!([{"type": "merge", "path": ["a", "x"], "value": {}}]);
        let refused = vec!["path.not_an_object".to_owned()];
        assert_eq!(run_ops(kept.clone(), nested), (kept, refused));
        let (value, _) = run_ops(
            json!({"n": i64::MAX}),
            json!([{"type": "increment", "path": "n"}]),
        );
        assert!(value["n"].as_f64().unwrap() > 9e18);
    }
}
