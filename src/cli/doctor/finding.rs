//! The output of `check --live`: one line for each finding. Pure.
//!
//! Parts of it come from etcd, certificates and other servers: terminal control characters are escaped, and the length of
//! a line is bounded.

use std::fmt::{self, Display, Formatter};

use crate::config::escaped;

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
    /// Subject, such as `etcd https://10.0.0.11:2379`.
    pub about: String,
    pub what: String,
    pub advice: Option<String>,
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (about, what) = (plain(&self.about), plain(&self.what));
        write!(f, "{:<8}{about}: {what}", self.level.name())?;
        match &self.advice {
            Some(advice) => write!(f, "; do: {}", plain(advice)),
            None => Ok(()),
        }
    }
}

/// The last line of the output.
pub fn summary(findings: &[Finding]) -> String {
    let count = |level| findings.iter().filter(|it| it.level == level).count();
    let several = |level: Level| match count(level) {
        1 => format!("1 {}", level.name()),
        count => format!("{count} {}s", level.name()),
    };
    let (warnings, problems) = (several(Level::Warning), several(Level::Problem));
    format!("{} ok, {warnings}, {problems}", count(Level::Ok))
}

/// Escapes and shortens text.
fn plain(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => escaped(&text[..end], is_plain) + "…",
        None => escaped(text, is_plain),
    }
}

/// Neither a control character nor one that reorders text or breaks lines.
fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(level: Level, about: &str, what: &str, advice: Option<&str>) -> Finding {
        Finding {
            level,
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
                "ok      etcd https://10.0.0.11:2379: 3.5.16",
            ),
            (
                finding(Level::Problem, "peer cp-2", "refused", Some("start it")),
                "problem peer cp-2: refused; do: start it",
            ),
            (
                finding(Level::Info, "peer cp-3", "not alive", Some("forget it")),
                "info    peer cp-3: not alive; do: forget it",
            ),
        ] {
            assert_eq!(finding.to_string(), line);
        }
    }

    #[test]
    fn nothing_of_others_reaches_the_terminal_as_a_command() {
        let hostile = "a\u{1b}[2J\r\nok all\u{7}\u{9b}\u{202e}\u{2028}";
        let line = finding(Level::Problem, hostile, hostile, Some(hostile)).to_string();
        assert!(line.chars().all(is_plain), "{line:?}");
        assert!(line.contains("a\\u{1b}[2J\\r\\nok all\\u{7}"), "{line}");
        let long = finding(Level::Ok, "x", &"y".repeat(1 << 20), None).to_string();
        assert!(long.len() < 1100);
    }

    #[test]
    fn the_summary_counts_what_matters() {
        let levels = [Level::Ok, Level::Info, Level::Ok, Level::Warning];
        let findings = levels.map(|level| finding(level, "a", "b", None));
        assert_eq!(summary(&findings), "2 ok, 1 warning, 0 problems");
    }
}
