//! Tests that the generated pages of `docs/` are current.

use std::cell::RefCell;
use std::path::Path;

use prometheus::core::Collector;

/// Fails if `docs/<name>` is not `text`; if the environment variable `UPDATE_DOCS` is set, writes it first.
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

/// Escapes text for a cell of a table.
pub(crate) fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// `a`, `b`, `c` as code.
pub(crate) fn code<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// What a registered metric says of itself.
pub(crate) struct RegisteredMetric {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) labels: Vec<String>,
    pub(crate) help: String,
}

thread_local! {
    /// Metrics registered in this thread.
    pub(crate) static REGISTERED: RefCell<Vec<RegisteredMetric>> = const { RefCell::new(Vec::new()) };
}

/// Notes a metric that was registered.
pub(crate) fn note(collector: &impl Collector) {
    let families = collector.collect();
    let kinds = families
        .iter()
        .map(|it| format!("{:?}", it.get_field_type()));
    let metrics = collector.desc().into_iter().zip(kinds);
    let metrics = metrics.map(|(desc, kind)| RegisteredMetric {
        name: desc.fq_name.clone(),
        kind: kind.to_lowercase(),
        labels: desc.variable_labels.clone(),
        help: desc.help.clone(),
    });
    REGISTERED.with_borrow_mut(|all| all.extend(metrics));
}
