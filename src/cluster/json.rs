//! Reads JSON that others wrote: strictly, and without repeating what it contains. Pure.
//!
//! serde takes an array for an object whose fields come in order, and `[]` for one that has none of them. Its messages
//! quote values, which may be anything: they must not come into logs and pages.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;

/// Why JSON cannot be read: what is wrong and where, not what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its JSON {problem} at line {line}, column {column}")]
pub struct JsonError {
    problem: &'static str,
    line: usize,
    column: usize,
}

impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> Self {
        let problem = match error.classify() {
            Category::Data => "has not the form that is expected",
            Category::Eof => "ends too early",
            Category::Syntax | Category::Io => "is broken",
        };
        Self {
            problem,
            line: error.line(),
            column: error.column(),
        }
    }
}

/// Reads an object.
pub fn read<T: DeserializeOwned>(value: &[u8]) -> Result<T, JsonError> {
    let JsonObject(read) = serde_json::from_slice(value)?;
    Ok(read)
}

/// A value that is an object in JSON, not an array.
#[derive(Debug, Clone, Copy, Default)]
pub struct JsonObject<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = JsonObject<T>;

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields)).map(JsonObject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    struct Outer {
        inner: Option<JsonObject<Inner>>,
        number: Option<u8>,
    }

    #[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
    struct Inner {
        flag: Option<bool>,
    }

    impl PartialEq for JsonObject<Inner> {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }

    #[test]
    fn an_object_is_an_object() {
        let flag = Some(JsonObject(Inner { flag: Some(true) }));
        let outer = |inner| Outer {
            inner,
            number: None,
        };
        for (text, expected) in [
            ("{}", outer(None)),
            (r#"{"inner":null}"#, outer(None)),
            (r#"{"inner":{}}"#, outer(Some(JsonObject::default()))),
            (
                r#"{"inner":{"flag":true,"later":[]},"later":1}"#,
                outer(flag),
            ),
        ] {
            assert_eq!(read::<Outer>(text.as_bytes()).unwrap(), expected, "{text}");
        }
        for text in [
            "[]",
            "[null,1]",
            "null",
            r#"{"inner":[]}"#,
            r#"{"inner":[true]}"#,
        ] {
            assert!(read::<Outer>(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn errors_say_where_and_not_what() {
        for (text, expected) in [
            ("", "ends too early at line 1, column 0"),
            ("{\n\"secret", "ends too early at line 2, column 7"),
            ("{secret}", "is broken at line 1, column 2"),
            (
                r#"{"number":"secret"}"#,
                "has not the form that is expected at line 1, column 18",
            ),
        ] {
            let error = read::<Outer>(text.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), format!("its JSON {expected}"), "{text}");
            assert!(std::error::Error::source(&error).is_none());
            assert!(!format!("{error:?}").contains("secret"));
        }
    }
}
