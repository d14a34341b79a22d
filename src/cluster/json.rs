//! Reads JSON that others wrote, without repeating what it contains: serde's messages quote values, which may be
//! anything, and must not come into logs and pages. serde takes an array for an object; here it is none. Pure.

use serde::de::{self, DeserializeOwned};

/// Where JSON cannot be read, and not what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("its JSON cannot be read at line {0}, column {1}")]
pub struct JsonError(usize, usize);

impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> Self {
        Self(error.line(), error.column())
    }
}

/// Reads an object.
pub fn read<T: DeserializeOwned>(value: &[u8]) -> Result<T, JsonError> {
    if value.trim_ascii_start().starts_with(b"[") {
        return Err(<serde_json::Error as de::Error>::custom("an array").into());
    }
    Ok(serde_json::from_slice(value)?)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

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
            ("", "line 1, column 0"),
            ("{\n\"secret", "line 2, column 7"),
            ("{secret}", "line 1, column 2"),
            (r#"{"number":"secret"}"#, "line 1, column 18"),
        ] {
            let error = read::<Outer>(text.as_bytes()).unwrap_err();
            let expected = format!("its JSON cannot be read at {expected}");
            assert_eq!(error.to_string(), expected, "{text}");
            assert!(std::error::Error::source(&error).is_none());
            assert!(!format!("{error:?}").contains("secret"));
        }
    }
}
