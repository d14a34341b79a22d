//! Reads a document field by field, for documents that another version of this program wrote: a field that is missing,
//! or has another type than here, gets its default and spoils no other field.

use std::collections::BTreeMap;

use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;

/// A type of the document. The source must be a [`Value`]: a stream could not go on behind a value of the wrong type.
pub(super) trait Lenient: Default + DeserializeOwned {
    /// The value, or the default where the source holds something else.
    fn lenient<'de, D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        Ok(Self::deserialize(source).unwrap_or_default())
    }
}

impl Lenient for bool {}
impl Lenient for i64 {}
impl Lenient for u64 {}
impl Lenient for f64 {}
impl Lenient for String {}
impl Lenient for Value {}
impl<T: Lenient> Lenient for Option<T> {}

impl<T: Lenient> Lenient for Vec<T> {
    fn lenient<'de, D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let items = Vec::<Item<T>>::deserialize(source).unwrap_or_default();
        Ok(items.into_iter().map(|item| item.0).collect())
    }
}

impl<T: Lenient> Lenient for BTreeMap<String, T> {
    fn lenient<'de, D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        let items = BTreeMap::<String, Item<T>>::deserialize(source).unwrap_or_default();
        Ok(items.into_iter().map(|(key, item)| (key, item.0)).collect())
    }
}

/// An element of a list or a mapping.
struct Item<T>(T);

impl<'de, T: Lenient> Deserialize<'de> for Item<T> {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        T::lenient(source).map(Self)
    }
}

/// Declares sections of the document: every field is read leniently and has its name in camel case.
macro_rules! sections {
    ($(
        $(#[$about:meta])*
        pub struct $name:ident { $( $(#[$field_about:meta])* pub $field:ident: $type:ty, )* }
    )*) => { $(
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        pub struct $name {
            $(
                $(#[$field_about])*
                #[serde(deserialize_with = "Lenient::lenient")]
                pub $field: $type,
            )*
        }

        impl Lenient for $name {}
    )* };
}

pub(super) use sections;
