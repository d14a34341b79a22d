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
    escaped(text, |c| {
        !c.is_control() && c != '\u{2028}' && c != '\u{2029}'
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
