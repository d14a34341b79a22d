//! The configuration file as a tree, and where a value is in it.

use std::fmt::Display;

/// Longest piece of the file that a message repeats, in characters.
const QUOTED_CHARS: usize = 60;

/// A value in the file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    /// No value, `null` or `~`: the same as leaving the key out, as in Kubernetes.
    Null,
    Flag(bool),
    /// An integer or floating point number, as text of any size.
    Number(String),
    /// Any other scalar, or a quoted one.
    Text(String),
    List(Vec<Node>),
    /// A mapping in the order of the file, repeated keys included.
    Map(Vec<(String, Node)>),
    /// A value with a YAML tag of its own.
    Tagged,
}

impl Node {
    /// The type, for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Flag(_) => "true or false",
            Self::Number(_) => "a number",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
            Self::Tagged => "a tagged value",
        }
    }

    /// The node as the key of a mapping.
    pub(super) fn into_key(self) -> String {
        match self {
            Self::Null => "null".to_owned(),
            Self::Flag(flag) => flag.to_string(),
            Self::Number(text) | Self::Text(text) => text,
            other => format!("({})", other.kind()),
        }
    }
}

/// Where a value is, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct KeyPath {
    /// The full name of its key, such as `serving.certFile` or `etcd.endpoints[1]`.
    pub(super) name: String,
    /// Its index among the entries or items of each level; of what is missing, those of the mapping that lacks it.
    pub(super) indices: Vec<usize>,
}

impl KeyPath {
    /// The key `name` below this one. `index`: among the mapping's entries, if it is there.
    pub(super) fn key(&self, name: &str, index: Option<usize>) -> Self {
        let name = one_line(shortened(name, QUOTED_CHARS));
        let name = match self.name.is_empty() {
            true => name,
            false => format!("{}.{name}", self.name),
        };
        self.below(name, index)
    }

    /// An item of the list that this path names.
    pub(super) fn item(&self, index: usize) -> Self {
        self.below(format!("{}[{index}]", self.name), Some(index))
    }

    fn below(&self, name: String, index: Option<usize>) -> Self {
        let indices = self.indices.iter().copied().chain(index).collect();
        Self { name, indices }
    }
}

/// Text from the file in quotes, shortened.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text, QUOTED_CHARS))
}

/// No more than so many characters of the text.
pub(crate) fn shortened(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Texts with something between them.
pub(crate) fn joined<T: Display>(texts: impl IntoIterator<Item = T>, between: &str) -> String {
    let texts: Vec<_> = texts.into_iter().map(|text| text.to_string()).collect();
    texts.join(between)
}

/// Escapes control characters, and those that reorder text or break lines.
pub(crate) fn one_line(text: impl Display) -> String {
    escaped(&text.to_string(), |c| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    })
}

/// Escapes all characters that are not `plain`.
pub(crate) fn escaped(text: &str, plain: fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match plain(c) {
            true => shown.push(c),
            false => shown.extend(c.escape_default()),
        }
    }
    shown
}
