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

/// The mapping at this path, made if it is not there.
pub(super) fn mapping<'v>(value: &'v mut Value, path: &[&str]) -> Option<&'v mut Value> {
    path.iter().try_fold(value, |value, key| {
        let inner = value.as_mapping_mut()?.entry((*key).into());
        let inner = inner.or_insert(Value::Null);
        if inner.is_null() {
            *inner = Value::Mapping(Mapping::new());
        }
        inner.is_mapping().then_some(inner)
    })
}

/// The list below `key`, made if it is not there.
pub(super) fn list<'v>(value: &'v mut Value, key: &str) -> Option<&'v mut Vec<Value>> {
    let entry = value.as_mapping_mut()?.entry(key.into());
    let inner = entry.or_insert(Value::Null);
    if inner.is_null() {
        *inner = Value::Sequence(Vec::new());
    }
    inner.as_sequence_mut()
}

/// `None` removes the key.
pub(super) fn set(value: &mut Value, key: &str, to: Option<Value>) {
    let Some(mapping) = value.as_mapping_mut() else {
        return;
    };
    match to {
        Some(to) => drop(mapping.insert(key.into(), to)),
        None => drop(mapping.shift_remove(key)),
    }
}

/// Removes the items of a list that are not `kept`, and the list if nothing is left.
pub(super) fn retain(value: &mut Value, key: &str, kept: impl Fn(&Value) -> bool) {
    let Some(list) = value.get_mut(key).and_then(Value::as_sequence_mut) else {
        return;
    };
    let before = list.len();
    list.retain(kept);
    if list.is_empty() && before > 0 {
        set(value, key, None);
    }
}

/// One document; `what` is named in the message.
pub(super) fn parse(what: &str, text: &str) -> Result<Value, String> {
    let mut value: Value = serde_yaml::from_str(text)
        .map_err(|error| format!("{what} is not one document of YAML: {error}"))?;
    value
        .apply_merge()
        .map_err(|error| format!("{what} is not valid YAML: {error}"))?;
    match value.is_mapping() {
        true => Ok(value),
        false => Err(format!("{what} is empty, or no mapping")),
    }
}

pub(super) fn write(value: &Value) -> Result<String, String> {
    serde_yaml::to_string(value).map_err(|error| format!("cannot be written as YAML: {error}"))
}
