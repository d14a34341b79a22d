//! The output of `check`: one line for each finding, or one JSON document. Pure.
//!
//! Parts of it come from etcd, certificates and other servers: terminal control characters are escaped, and the length of
//! a line is bounded.

use std::fmt::{self, Display, Formatter};

use serde_json::{Value, json};

use crate::config::{one_line, shortened};

/// Longest part of a line, in characters.
const MAX_CHARS: usize = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Ok,
    Info,
    /// It works, but should be improved.
    Warning,
    /// It does not work.
    Problem,
}

impl Level {
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// One line of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub level: Level,
    /// The number of its code, which stays the same.
    pub code: u16,
    /// Subject, such as `etcd https://10.0.0.11:2379`.
    pub about: String,
    pub what: String,
    pub advice: Option<String>,
}

/// The code as it is printed: `KIP-017`.
pub fn code(number: u16) -> String {
    format!("KIP-{number:03}")
}

impl Finding {
    /// Where the code is explained: the heading of a page.
    fn link(&self) -> String {
        format!("docs/findings.md#kip-{:03}", self.code)
    }

    /// What it is about, and what was found.
    fn short(&self) -> String {
        let (level, code) = (self.level.name(), code(self.code));
        let (about, what) = (plain(&self.about), plain(&self.what));
        format!("{level:<8}{code} {about}: {what}")
    }

    fn json(&self) -> Value {
        json!({
            "code": code(self.code),
            "level": self.level.name(),
            "about": plain(&self.about),
            "what": plain(&self.what),
            "advice": self.advice.as_deref().map(plain),
            "link": self.link(),
        })
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.short())?;
        match &self.advice {
            Some(advice) => write!(f, "; do: {}; see {}", plain(advice), self.link()),
            None => Ok(()),
        }
    }
}

/// All findings, and how many there are of each level.
pub fn text(findings: &[Finding]) -> String {
    let lines = findings.iter().map(|finding| format!("{finding}\n"));
    let several = |level: Level| match count(findings, level) {
        1 => format!("1 {}", level.name()),
        count => format!("{count} {}s", level.name()),
    };
    let (warnings, problems) = (several(Level::Warning), several(Level::Problem));
    let ok = count(findings, Level::Ok);
    lines.collect::<String>() + &format!("{ok} ok, {warnings}, {problems}\n")
}

/// Problems and warnings only, without what to do.
pub fn short(findings: &[Finding]) -> String {
    let worth = findings.iter().filter(|it| it.level >= Level::Warning);
    worth.map(|it| it.short() + "\n").collect()
}

/// `docs/commands.md` has the fields.
pub fn json(findings: &[Finding]) -> String {
    let document = json!({
        "ok": count(findings, Level::Ok),
        "info": count(findings, Level::Info),
        "warnings": count(findings, Level::Warning),
        "problems": count(findings, Level::Problem),
        "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(),
    });
    format!("{document:#}\n")
}

fn count(findings: &[Finding], level: Level) -> usize {
    findings.iter().filter(|it| it.level == level).count()
}

/// Escapes and shortens text.
fn plain(text: &str) -> String {
    one_line(shortened(text, MAX_CHARS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(level: Level, about: &str, what: &str, advice: Option<&str>) -> Finding {
        Finding {
            level,
            code: 17,
            about: about.to_owned(),
            what: what.to_owned(),
            advice: advice.map(str::to_owned),
        }
    }

    #[test]
    fn a_finding_is_one_line_of_a_fixed_form() {
        for (finding, line) in [
            (
                finding(Level::Ok, "etcd https://10.0.0.11:2379", "3.5.16", None),
                "ok      KIP-017 etcd https://10.0.0.11:2379: 3.5.16",
            ),
            (
                finding(Level::Problem, "peer cp-2", "refused", Some("start it")),
                "problem KIP-017 peer cp-2: refused; do: start it; see docs/findings.md#kip-017",
            ),
            (
                finding(Level::Info, "peer cp-3", "not alive", Some("forget it")),
                "info    KIP-017 peer cp-3: not alive; do: forget it; see docs/findings.md#kip-017",
            ),
        ] {
            assert_eq!(finding.to_string(), line);
        }
    }

    #[test]
    fn nothing_of_others_reaches_the_terminal_as_a_command() {
        let hostile = "a\u{1b}[2J\r\nok all\u{7}\u{9b}\u{202e}\u{2028}";
        let line = finding(Level::Problem, hostile, hostile, Some(hostile)).to_string();
        assert_eq!(line, one_line(&line));
        assert!(
            !line.contains(['\u{1b}', '\u{202e}', '\u{2028}']),
            "{line:?}"
        );
        assert!(line.contains("a\\u{1b}[2J\\r\\nok all\\u{7}"), "{line}");
        let long = finding(Level::Ok, "x", &"y".repeat(1 << 20), None).to_string();
        assert!(long.len() < 1100);
    }

    #[test]
    fn the_summary_counts_what_matters() {
        let levels = [Level::Ok, Level::Info, Level::Ok, Level::Warning];
        let findings = levels.map(|level| finding(level, "a", "b", None));
        assert!(text(&findings).ends_with("\n2 ok, 1 warning, 0 problems\n"));
        assert_eq!(short(&findings), "warning KIP-017 a: b\n");
    }

    #[test]
    fn the_document_has_the_fields_that_are_promised() {
        let findings = [
            finding(Level::Ok, "etcd", "3.5", None),
            finding(
                Level::Problem,
                "peer \u{1b}[2J",
                "refused",
                Some("start it"),
            ),
        ];
        let document: Value = serde_json::from_str(&json(&findings)).unwrap();
        let expected = serde_json::json!({
            "ok": 1, "info": 0, "warnings": 0, "problems": 1,
            "findings": [
                {"code": "KIP-017", "level": "ok", "about": "etcd", "what": "3.5", "advice": null,
                 "link": "docs/findings.md#kip-017"},
                {"code": "KIP-017", "level": "problem", "about": "peer \\u{1b}[2J", "what": "refused",
                 "advice": "start it", "link": "docs/findings.md#kip-017"},
            ],
        });
        assert_eq!(document, expected);
    }
}
