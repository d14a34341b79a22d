//! Text for a terminal: tables, and values from other programs. Pure.

use crate::config::{escaped, joined};

/// Escapes everything but printable ASCII, so that a value can neither control a terminal nor look like another one. Names
/// of servers, addresses and resources are ASCII.
pub(super) fn plain(value: &str) -> String {
    escaped(value, |c| c == ' ' || c.is_ascii_graphic())
}

/// Values from other programs, with commas.
pub(super) fn plain_list<T: AsRef<str>>(values: impl IntoIterator<Item = T>) -> String {
    joined(values.into_iter().map(|it| plain(it.as_ref())), ", ")
}

/// Lines of a name, in a column of this width, and a value.
pub(super) fn fields(width: usize, fields: &[(&str, String)]) -> String {
    let lines = fields.iter().map(|(name, value)| {
        let line = format!("{name:<width$}{value}");
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

/// Rows below headings; `None`: there are no rows.
pub(super) fn table<const COLUMNS: usize>(
    headings: [&str; COLUMNS],
    rows: impl IntoIterator<Item = [String; COLUMNS]>,
) -> Option<String> {
    let mut all = vec![headings.map(str::to_owned)];
    all.extend(rows);
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max();
    let widths: [_; COLUMNS] = std::array::from_fn(|column| width(column).unwrap_or_default());
    let lines = all.iter().map(|row| {
        let cells = row.iter().zip(widths);
        let cells = cells.map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", joined(cells, "  ").trim_end())
    });
    (all.len() > 1).then(|| lines.collect())
}

/// A duration in one unit.
pub(super) fn span(seconds: f64) -> String {
    const MINUTE: f64 = 60.0;
    const HOUR: f64 = 60.0 * MINUTE;
    const DAY: f64 = 24.0 * HOUR;
    match seconds {
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 2.0 * MINUTE => format!("{s:.0} s"),
        s if s < 2.0 * HOUR => format!("{:.0} min", s / MINUTE),
        s if s < 2.0 * DAY => format!("{:.0} h", s / HOUR),
        s => format!("{:.0} days", s / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_printable_ascii_is_shown() {
        let hostile = "\u{1b}[2J\r\n\u{9b}31m\u{202e}x\u{7f}\0é";
        let shown = plain(hostile);
        assert!(
            shown.chars().all(|c| c == ' ' || c.is_ascii_graphic()),
            "{shown}"
        );
        assert_eq!(
            plain("cp-1.example [fd00::1]:6443"),
            "cp-1.example [fd00::1]:6443"
        );
        assert_eq!(plain("a\u{1b}b"), "a\\u{1b}b");
    }

    #[test]
    fn columns_stand_below_each_other() {
        let headings = ["ID", "STATE", "NOTE"];
        assert_eq!(table(headings, []), None);
        let rows = [
            ["a".into(), "ready".into(), "x".repeat(30)],
            ["b".repeat(20), "gone".into(), "short".into()],
        ];
        let lines = table(headings, rows).unwrap();
        let places: Vec<_> = lines.lines().map(|line| line.chars().nth(22)).collect();
        assert_eq!(places, [Some('S'), Some('r'), Some('g')]);
    }

    #[test]
    fn spans_have_one_unit() {
        let spans = [0.25, 42.0, 600.0, 36_000.0, 8.64e6].map(span);
        assert_eq!(spans, ["0.2 s", "42 s", "10 min", "10 h", "100 days"]);
    }
}
