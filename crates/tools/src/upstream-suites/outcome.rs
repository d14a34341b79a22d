//! What came of the tests, and the comparison. Pure.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub passed: BTreeSet<String>,
    pub failed: BTreeSet<String>,
    pub log: PathBuf,
}

impl Outcome {
    /// Of both: what passed in either alone has failed.
    pub fn and(self, other: Self) -> Self {
        let passed: BTreeSet<_> = &self.passed & &other.passed;
        let all = [&self.passed, &self.failed, &other.passed, &other.failed];
        let all: BTreeSet<_> = all.into_iter().flatten().cloned().collect();
        Self {
            failed: &all - &passed,
            passed,
            log: self.log,
        }
    }

    /// What did not pass here and passed there.
    pub fn worse_than(&self, other: &Self) -> BTreeSet<String> {
        other.passed.difference(&self.passed).cloned().collect()
    }

    fn word(&self, test: &str) -> &'static str {
        match (self.passed.contains(test), self.failed.contains(test)) {
            (_, true) => "FAILED",
            (true, false) => "ok",
            (false, false) => "not run",
        }
    }
}

pub struct Comparison {
    pub direct: Outcome,
    pub proxied: Outcome,
    /// Of what was worse, through proxies once more.
    pub again: Option<Outcome>,
}

impl Comparison {
    /// Whether there is something to compare with: the run without proxies ended no fewer tests, and some passed.
    pub fn is_proof(&self) -> bool {
        let ended = |outcome: &Outcome| outcome.passed.union(&outcome.failed).count();
        !self.direct.passed.is_empty() && ended(&self.direct) >= ended(&self.proxied)
    }

    /// What passes without proxies, and not through proxies, both times.
    pub fn only_proxied(&self) -> BTreeSet<String> {
        let worse = self.proxied.worse_than(&self.direct);
        match &self.again {
            None => worse,
            Some(again) => worse.difference(&again.passed).cloned().collect(),
        }
    }
}

/// What did not pass in all runs.
impl Display for Comparison {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<10}{:<10}{:<10}test", "direct", "proxied", "again")?;
        let (direct, proxied) = (&self.direct, &self.proxied);
        let runs = [direct, proxied];
        let all: BTreeSet<_> = (runs.iter())
            .flat_map(|run| run.passed.union(&run.failed))
            .collect();
        let differ =
            |test: &&&String| !direct.passed.contains(**test) || !proxied.passed.contains(**test);
        for test in all.iter().filter(differ) {
            let again = match &self.again {
                Some(again) if again.passed.contains(*test) => "ok",
                Some(again) if again.failed.contains(*test) => "FAILED",
                _ => "",
            };
            let (direct, proxied) = (direct.word(test), proxied.word(test));
            writeln!(f, "{direct:<10}{proxied:<10}{again:<10}{test}")?;
        }
        let only = self.only_proxied();
        writeln!(f, "{} tests; only through proxies: {only:#?}", all.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(passed: &[&str], failed: &[&str]) -> Outcome {
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Outcome {
            passed: set(passed),
            failed: set(failed),
            log: PathBuf::new(),
        }
    }

    #[test]
    fn what_fails_or_does_not_run_only_through_proxies_is_named() {
        let comparison = Comparison {
            direct: outcome(&["a", "b", "c", "d"], &["e"]),
            proxied: outcome(&["a"], &["b", "c", "e"]),
            again: Some(outcome(&["b"], &["c"])),
        };
        assert_eq!(
            comparison.only_proxied(),
            ["c", "d"].map(str::to_owned).into()
        );
        let text = comparison.to_string();
        let lines: Vec<Vec<_>> = (text.lines().skip(1))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[0], ["ok", "FAILED", "ok", "b"]);
        assert_eq!(lines[1], ["ok", "FAILED", "FAILED", "c"]);
        assert_eq!(lines[2], ["ok", "not", "run", "d"]);
        assert_eq!(lines[3], ["FAILED", "FAILED", "e"]);
        assert!(lines[4].starts_with(&["5", "tests;"]), "{text}");
    }

    #[test]
    fn of_several_direct_runs_that_counts_what_passed_in_all() {
        let both = outcome(&["a", "b"], &["c"]).and(outcome(&["a", "c", "d"], &["b"]));
        assert_eq!(both.passed, ["a".to_owned()].into());
        assert_eq!(both.failed, ["b", "c", "d"].map(str::to_owned).into());
    }

    #[test]
    fn a_direct_run_that_passed_nothing_or_ended_early_proves_nothing() {
        let proof = |direct, proxied| {
            let again = None;
            Comparison {
                direct,
                proxied,
                again,
            }
            .is_proof()
        };
        assert!(proof(outcome(&["a"], &["b"]), outcome(&["a", "b"], &[])));
        assert!(!proof(outcome(&["a"], &[]), outcome(&["a"], &["b"])));
        assert!(!proof(outcome(&[], &["a", "b"]), outcome(&[], &["a", "b"])));
    }

    #[test]
    fn what_fails_in_both_or_only_directly_is_no_difference() {
        let comparison = Comparison {
            direct: outcome(&["a"], &["b", "c"]),
            proxied: outcome(&["a", "c"], &["b"]),
            again: None,
        };
        assert!(comparison.only_proxied().is_empty());
    }
}
