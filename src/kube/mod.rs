//! Kubernetes' names and documents. Pure: nothing here depends on the proxy.

pub mod client_headers;
pub mod discovery;
pub mod envelope;
pub mod gvr;
pub mod media_type;
pub mod requestheader;
pub mod version;

use serde::{Deserialize, Deserializer};

/// For a field of a JSON document: Go writes an empty list as `null` unless it omits it.
pub fn nullable<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(
    value: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(value).map(Option::unwrap_or_default)
}
