//! Adding what others list to discovery documents in Kubernetes' protobuf form. Pure.

use super::forms::{Error, What};
use super::others::Others;

/// As [`super::forms::merge`].
pub(super) fn merge(
    _what: What<'_>,
    _body: Option<&[u8]>,
    _others: &Others,
) -> Result<Option<Vec<u8>>, Error> {
    Ok(None)
}
