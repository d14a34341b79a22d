//! What clients saw during each fault and shortly after it, as a table. Pure.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use crate::rules::Verdict;

/// What still counts as seen during a fault.
const AFTERWARDS: Duration = Duration::from_secs(10);
/// What an attempt of a read may wait for each fault.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

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
    /// Whether upgraded streams may end.
    pub ends_streams: bool,
    /// Whether reads may wait for its end.
    pub holds_reads: bool,
    pub from: Duration,
    pub until: Duration,
}

/// An attempt that failed, a stream that ended, a watch that could not go on.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub from: Duration,
    pub until: Duration,
    pub what: String,
    /// Of an upgraded stream.
    pub of_stream: bool,
}

/// An attempt of a read, with its connection.
#[derive(Clone, Debug)]
pub struct Wait {
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
    pub waits: Vec<Wait>,
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
    /// The longest attempt of a read.
    pub longest_wait: Duration,
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
            let explains =
                |window: &&Window| window.is_noticed || trouble.of_stream && window.ends_streams;
            let mut windows = self.windows.iter().filter(explains);
            windows.any(|window| window.covers(trouble.from, trouble.until))
        };
        let unexplained = self.troubles.iter().filter(|trouble| !explained(trouble));
        unexplained
            .map(
                |Trouble {
                     from, until, what, ..
                 }| {
                    format!("while nothing was broken, {from:.1?} to {until:.1?}: {what}")
                },
            )
            .collect()
    }

    /// Reads that waited for what another server could have answered.
    pub fn waited_for_nothing(&self) -> Vec<String> {
        let too_long = |wait: &&Wait| {
            let during = |window: &&Window| window.covers(wait.from, wait.until);
            let windows: Vec<_> = self.windows.iter().filter(during).collect();
            let bound = LONGEST_WAIT * u32::try_from(windows.len()).unwrap_or(1).max(1);
            wait.until - wait.from > bound && !windows.iter().any(|window| window.holds_reads)
        };
        let waits = self.waits.iter().filter(too_long);
        waits
            .map(|Wait { from, until, what }| {
                format!("a read that waited, {from:.1?} to {until:.1?}: {what}")
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
            let waits = self.waits.iter();
            let during = waits.filter(|wait| window.covers(wait.from, wait.until));
            let longest = during.map(|wait| wait.until - wait.from).max();
            row.longest_wait = row.longest_wait.max(longest.unwrap_or_default());
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
            "{:<32}{:>6}{:>10}{:>10}{:>8}{:>11}{:>9}{:>9}{:>9}{:>9}",
            "fault",
            "times",
            "requests",
            "repeated",
            "failed",
            "violations",
            "relists",
            "streams",
            "longest",
            "a read"
        )?;
        for (kind, row) in &self.0 {
            writeln!(
                f,
                "{kind:<32}{:>6}{:>10}{:>10}{:>8}{:>11}{:>9}{:>9}{:>7.1} s{:>7.1} s",
                row.times,
                row.requests,
                row.repeated,
                row.failed,
                row.violations,
                row.relists,
                row.ended_streams,
                row.longest.as_secs_f64(),
                row.longest_wait.as_secs_f64()
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
