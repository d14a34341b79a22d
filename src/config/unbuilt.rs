//! Settings whose feature does not exist yet: the one value each of them may have until then.
//!
//! The value is also the default for as long as it stands here. Deleting a line makes the setting work, with the
//! default that [`super::sections`] gives it.

use super::file::Node;

/// The only value that `key` (its full path) may have in this version, if its feature is not built.
pub(super) fn only(key: &str) -> Option<Node> {
    let value: Node = match key {
        "discovery.mode" => "Local".into(),
        _ => return None,
    };
    Some(value)
}

/// Why `node` cannot be the value of `key` in this version.
pub(super) fn refusal(key: &str, node: &Node) -> Option<String> {
    let only = only(key).filter(|only| only != node)?;
    let (asked, only) = (shown(node)?, shown(&only)?);
    Some(format!(
        "{asked} is not built yet in this version; set it to {only}"
    ))
}

fn shown(node: &Node) -> Option<String> {
    match node {
        Node::Text(text) => Some(text.clone()),
        _ => None,
    }
}
