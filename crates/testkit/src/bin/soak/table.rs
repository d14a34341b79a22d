//! What clients saw during each fault and shortly after it, as a table. Pure.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use crate::rules::Verdict;

/// What still counts as seen during a fault.
const AFTERWARDS: Duration = Duration::from_secs(10);

/// A request with all its attempts. Times are since the start.
#[derive(Clone, Debug)]
pub struct Request {
    pub from: Duration,
    pub until: Duration,
    pub attempts: usize,
    pub verdict: Verdict,
}

/// A fault from its injection until everything is ready again.
#[derive(Clone, Debug)]
pub struct Window {
    pub kind: String,
    /// Whether it explains failures.
    pub is_noticed: bool,
    pub from: Duration,
    pub until: Duration,
}

/// An attempt that failed, a stream that ended, a watch that could not go on.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub from: Duration,
    pub until: Duration,
    pub what: String,
}

/// What the table is made of.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub requests: Vec<Request>,
    pub windows: Vec<Window>,
    /// When informers listed again.
    pub relists: Vec<Duration>,
    /// When upgraded streams ended.
    pub ended_streams: Vec<Duration>,
    /// What clients may see only while something is broken.
    pub troubles: Vec<Trouble>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub times: usize,
    pub requests: usize,
    pub repeated: usize,
    pub failed: usize,
    pub violations: usize,
    pub relists: usize,
    pub ended_streams: usize,
    /// The longest request, from its first attempt to the end of its last.
    pub longest: Duration,
    pub reasons: BTreeMap<String, usize>,
}

pub struct Table(pub BTreeMap<String, Row>);

impl Window {
    fn covers(&self, from: Duration, until: Duration) -> bool {
        from <= self.until + AFTERWARDS && until >= self.from
    }
}

impl Seen {
    /// Trouble while nothing was broken, nor shortly before.
    pub fn trouble_for_nothing(&self) -> Vec<String> {
        let explained = |trouble: &&Trouble| {
            let mut windows = self.windows.iter().filter(|window| window.is_noticed);
            windows.any(|window| window.covers(trouble.from, trouble.until))
        };
        let unexplained = self.troubles.iter().filter(|trouble| !explained(trouble));
        unexplained
            .map(|Trouble { from, until, what }| {
                format!("while nothing was broken, {from:.1?} to {until:.1?}: {what}")
            })
            .collect()
    }

    pub fn table(&self) -> Table {
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        for window in &self.windows {
            let row = rows.entry(window.kind.clone()).or_default();
            row.times += 1;
            let during = |request: &&Request| window.covers(request.from, request.until);
            for request in self.requests.iter().filter(during) {
                row.count(request);
            }
            let moments = |all: &[Duration]| {
                let during = all.iter().filter(|at| window.covers(**at, **at));
                during.count()
            };
            row.relists += moments(&self.relists);
            row.ended_streams += moments(&self.ended_streams);
        }
        let mut quiet = Row::default();
        let undisturbed = |request: &&Request| {
            let covered = |window: &Window| window.covers(request.from, request.until);
            !self.windows.iter().any(covered)
        };
        for request in self.requests.iter().filter(undisturbed) {
            quiet.count(request);
        }
        rows.insert("(nothing)".to_owned(), quiet);
        Table(rows)
    }
}

impl Row {
    fn count(&mut self, request: &Request) {
        self.requests += 1;
        self.longest = self.longest.max(request.until - request.from);
        self.repeated += usize::from(request.attempts > 1);
        match &request.verdict {
            Verdict::Fine => {}
            Verdict::Failed(why) => {
                self.failed += 1;
                let why = why.chars().take(60).collect();
                *self.reasons.entry(why).or_default() += 1;
            }
            Verdict::Refused(_) | Verdict::Violation(_) => self.violations += 1,
        }
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<32}{:>6}{:>10}{:>10}{:>8}{:>11}{:>9}{:>9}{:>9}",
            "fault",
            "times",
            "requests",
            "repeated",
            "failed",
            "violations",
            "relists",
            "streams",
            "longest"
        )?;
        for (kind, row) in &self.0 {
            writeln!(
                f,
                "{kind:<32}{:>6}{:>10}{:>10}{:>8}{:>11}{:>9}{:>9}{:>7.1} s",
                row.times,
                row.requests,
                row.repeated,
                row.failed,
                row.violations,
                row.relists,
                row.ended_streams,
                row.longest.as_secs_f64()
            )?;
            for (why, times) in &row.reasons {
                writeln!(f, "{:>38} x {why}", times)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
