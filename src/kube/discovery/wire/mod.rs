//! Reads and writes discovery documents in JSON, with kube-apiserver's order of fields. Borrows texts where possible.

pub mod aggregated;
pub mod legacy;

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};

use super::model::Texts;

/// A text.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl std::ops::Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// A list of texts.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub struct List<'a>(#[serde(borrow, deserialize_with = "nullable")] pub Vec<Text<'a>>);

impl List<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The texts.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|text| &**text)
    }
}

impl<'a> From<&'a Texts> for List<'a> {
    fn from(texts: &'a Texts) -> Self {
        Self(texts.iter().map(|text| Text::from(&**text)).collect())
    }
}

/// Go writes an empty list as `null` unless it omits it.
fn nullable<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    value: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(value).map(Option::unwrap_or_default)
}
