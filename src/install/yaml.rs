//! Reading and changing YAML values whose meaning is not known as a whole: what is not named here stays as it is. Pure.

use serde_yaml::{Mapping, Value};

/// The value at this path of keys.
pub(super) fn at<'v>(value: &'v Value, path: &[&str]) -> Option<&'v Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

/// The text at this path; empty if there is none.
pub(super) fn text<'v>(value: &'v Value, path: &[&str]) -> &'v str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The items of the list at this path.
pub(super) fn items<'v>(value: &'v Value, path: &[&str]) -> &'v [Value] {
    let list = at(value, path).and_then(Value::as_sequence);
    list.map_or(&[], Vec::as_slice)
}

/// The value below `key`, made if it is not there.
fn entry<'v>(value: &'v mut Value, key: &str, empty: impl Into<Value>) -> Option<&'v mut Value> {
    let entry = value.as_mapping_mut()?.entry(key.into());
    let inner = entry.or_insert(Value::Null);
    if inner.is_null() {
        *inner = empty.into();
    }
    Some(inner)
}

/// The mapping at this path, made if it is not there.
pub(super) fn mapping<'v>(value: &'v mut Value, path: &[&str]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, key| {
        entry(value, key, Mapping::new()).filter(|inner| inner.is_mapping())
    })
}

/// The list below `key`, made if it is not there.
pub(super) fn list<'v>(value: &'v mut Value, key: &str) -> Option<&'v mut Vec<Value>> {
    entry(value, key, Vec::<Value>::new())?.as_sequence_mut()
}

/// The value at this path, to be changed.
fn at_mut<'v>(value: &'v mut Value, path: &[&str]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, key| value.get_mut(key))
}

/// Sets the key at the end of this path if there is a mapping for it; `None` removes the key.
pub(super) fn set(value: &mut Value, path: &[&str], to: Option<Value>) {
    let Some((key, above)) = path.split_last() else {
        return;
    };
    match (at_mut(value, above).and_then(Value::as_mapping_mut), to) {
        (Some(mapping), Some(to)) => drop(mapping.insert((*key).into(), to)),
        (Some(mapping), None) => drop(mapping.shift_remove(*key)),
        (None, _) => {}
    }
}

/// Removes the items of a list that are not `kept`, and the list if nothing is left.
pub(super) fn retain(value: &mut Value, path: &[&str], kept: impl FnMut(&Value) -> bool) {
    let Some(Value::Sequence(list)) = at_mut(value, path) else {
        return;
    };
    let before = list.len();
    list.retain(kept);
    if list.is_empty() && before > 0 {
        set(value, path, None);
    }
}

/// One document; `what` is named in the message.
pub(super) fn parse(what: &str, text: &str) -> Result<Value, String> {
    let mut value: Value = serde_yaml::from_str(text)
        .map_err(|error| format!("{what} is not one document of YAML: {error}"))?;
    let merged = value.apply_merge();
    merged.map_err(|error| format!("{what} is not valid YAML: {error}"))?;
    match value.is_mapping() {
        true => Ok(value),
        false => Err(format!("{what} is empty, or no mapping")),
    }
}

pub(super) fn write(value: &Value) -> Result<String, String> {
    serde_yaml::to_string(value).map_err(|error| format!("cannot be written as YAML: {error}"))
}
