//! Reads JSON that others wrote, without repeating what it contains: serde's messages quote values, which may be
//! anything, and must not come into logs and pages. serde takes an array for an object; here it is none. Pure.

use serde::de::{self, DeserializeOwned};
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
    if value.trim_ascii_start().starts_with(b"[") {
        return Err(<serde_json::Error as de::Error>::custom("an array").into());
    }
    Ok(serde_json::from_slice(value)?)
}

/// For a field: `null` is what stands where nothing does.
pub(super) fn or_default<'de, D, T>(field: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    struct Outer {
        inner: Option<Inner>,
        number: Option<u8>,
    }

    #[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
    struct Inner {
        flag: Option<bool>,
    }

    #[test]
    fn an_object_is_an_object() {
        let flag = Some(Inner { flag: Some(true) });
        let outer = |inner| Outer {
            inner,
            number: None,
        };
        for (text, expected) in [
            ("{}", outer(None)),
            (r#"{"inner":null}"#, outer(None)),
            (r#"{"inner":{}}"#, outer(Some(Inner::default()))),
            (
                r#"{"inner":{"flag":true,"later":[]},"later":1}"#,
                outer(flag),
            ),
        ] {
            assert_eq!(read::<Outer>(text.as_bytes()).unwrap(), expected, "{text}");
        }
        for text in ["[]", " [null,1]", "null"] {
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
