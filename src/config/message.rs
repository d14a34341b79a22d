//! Makes text from the file fit for a message of one line.

/// Longest piece of the file that a message repeats, in characters.
const QUOTED_CHARS: usize = 60;

/// Text from the file in quotes, shortened.
pub(super) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}

pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Escapes control characters and line separators.
pub(super) fn one_line(text: &str) -> String {
    let plain = |c: char| !c.is_control() && c != '\u{2028}' && c != '\u{2029}';
    if text.chars().all(plain) {
        return text.to_owned();
    }
    let escaped = |c: char| {
        if plain(c) {
            c.to_string()
        } else {
            c.escape_default().to_string()
        }
    };
    text.chars().map(escaped).collect()
}
