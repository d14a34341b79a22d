//! Keeps the pages of `docs/` that are made of the code as the code is.

use std::path::Path;

/// Fails where `docs/<name>` is not `text`; with `UPDATE_DOCS` in the environment it is made so.
#[track_caller]
pub(crate) fn assert_current(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = found.lines().zip(text.lines()).find(|(a, b)| a != b);
    assert!(
        found == text,
        "docs/{name} is not what the code says ({differs:?}); run UPDATE_DOCS=1 cargo test --lib reference"
    );
}

/// Text as a cell of a table.
pub(crate) fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// `a`, `b`, `c` as code.
pub(crate) fn code<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}
