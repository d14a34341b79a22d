//! The answer as JSON, safe for a terminal. Pure.

use std::fmt::Write as _;

use serde_json::Value;

/// Indented. Everything but ASCII is escaped, which is the same JSON: text may hold what steers a terminal.
pub(super) fn indented(status: &Value) -> String {
    let mut text = String::new();
    for c in format!("{status:#}\n").chars() {
        if c.is_ascii() && c != '\u{7f}' {
            text.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Cannot fail: it is a String.
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_the_same_json_and_steers_no_terminal() {
        let status =
            json!({"server": {"id": "\u{1b}[2J\u{9b}31m\u{7f}\u{202e}é😀", "ready": true}});
        let text = indented(&status);
        assert!(
            text.chars()
                .all(|c| c == '\n' || c == ' ' || c.is_ascii_graphic()),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), status);
    }
}
