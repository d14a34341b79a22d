//! What clients saw during each fault and shortly after it, as a table. Pure.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use crate::rules::Verdict;

/// What still counts as seen during a fault.
const AFTERWARDS: Duration = Duration::from_secs(10);
/// What an attempt of a read may wait for each fault.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// The client that reads what only some versions serve.
pub const READER: &str = "versions";
/// The client that writes fields that only some keep.
pub const WRITER: &str = "fields";
/// The client whose objects the garbage collector must leave alone.
pub const OWNER: &str = "owners";
/// The client whose namespaces must be empty when they are gone.
pub const TENANT: &str = "tenants";
/// How the names of clients that run kubectl begin.
pub const KUBECTL: &str = "kubectl";

/// A request with all its attempts. Times are since the start.
#[derive(Clone, Debug)]
pub struct Request {
    pub client: String,
    pub from: Duration,
    pub until: Duration,
    pub attempts: usize,
    pub verdict: Verdict,
}

/// A fault from its injection until everything is ready again.
#[derive(Clone, Debug)]
pub struct Window {
    pub kind: String,
    /// What it explains.
    pub explains: &'static [Sort],
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
    pub sort: Sort,
}

/// What trouble is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Request,
    Watch,
    /// An upgraded one.
    Stream,
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
    /// When watches ended early.
    pub ended_watches: Vec<Duration>,
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

/// What clients saw in a whole run, by name.
pub type Totals = [(&'static str, String); 13];

impl Window {
    fn covers(&self, from: Duration, until: Duration) -> bool {
        from <= self.until + AFTERWARDS && until >= self.from
    }
}

impl Seen {
    /// Trouble while nothing was broken, nor shortly before.
    pub fn trouble_for_nothing(&self) -> Vec<String> {
        let explained = |trouble: &&Trouble| {
            let explains = |window: &&Window| window.explains.contains(&trouble.sort);
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

    /// Whether what only some versions serve was read, and no 404 was false.
    pub fn read_in_vain(&self) -> bool {
        let is_false = |request: &Request| matches!(request.verdict, Verdict::NotFound(_));
        self.requests.iter().any(|request| request.client == READER)
            && !self.requests.iter().any(is_false)
    }

    /// Of all clients whose names begin so.
    fn requests_of<'a>(&'a self, client: &'a str) -> impl Iterator<Item = &'a Request> {
        let requests = self.requests.iter();
        requests.filter(move |request| request.client.starts_with(client))
    }

    fn count_of(&self, client: &str) -> usize {
        self.requests_of(client).count()
    }

    /// `wrong`: what is wrong with writes and events besides.
    pub fn totals(&self, wrong: usize) -> Totals {
        let count = |is_it: fn(&Verdict) -> bool| {
            let verdicts = self.requests.iter().map(|request| &request.verdict);
            verdicts.filter(|verdict| is_it(verdict)).count()
        };
        let part = |count: usize, all: usize| match all {
            0 => "–".to_owned(),
            _ => format!("{count} of {all}"),
        };
        let part_of = |client, is_it: fn(&Verdict) -> bool| {
            let requests = self.requests_of(client);
            let those = requests.filter(|request| is_it(&request.verdict));
            part(those.count(), self.count_of(client))
        };
        let is_wrong = |verdict: &Verdict| verdict.violation().is_some();
        let longest = self
            .requests
            .iter()
            .map(|request| request.until - request.from)
            .max();
        let longest = longest.unwrap_or_default().as_secs_f64();
        let false_404s = count(|it| matches!(it, Verdict::NotFound(_)));
        let dropped = count(|it| matches!(it, Verdict::Dropped(_) | Verdict::DroppedAsSet));
        let refused = count(|it| matches!(it, Verdict::Early | Verdict::Refused(_)));
        let failed = self.requests.iter().filter(|request| {
            let failed = matches!(request.verdict, Verdict::Failed(_) | Verdict::Violation(_));
            failed && !request.client.starts_with(KUBECTL)
        });
        [
            ("requests", self.requests.len().to_string()),
            ("false 404s", part(false_404s, self.count_of(READER))),
            ("fields dropped", part(dropped, self.count_of(WRITER))),
            ("collected too early", part_of(OWNER, is_wrong)),
            ("left in namespaces", part_of(TENANT, is_wrong)),
            (
                "kubectl failed",
                part_of(KUBECTL, |it| *it != Verdict::Fine),
            ),
            ("false 403s", refused.to_string()),
            ("other failures", failed.count().to_string()),
            ("longest", format!("{longest:.1} s")),
            ("lists again", self.relists.len().to_string()),
            ("watches ended", self.ended_watches.len().to_string()),
            ("exec streams ended", self.ended_streams.len().to_string()),
            ("writes or events wrong", wrong.to_string()),
        ]
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
    fn failed(&mut self, why: &str) {
        self.failed += 1;
        let why = why.chars().take(60).collect();
        *self.reasons.entry(why).or_default() += 1;
    }

    fn count(&mut self, request: &Request) {
        self.requests += 1;
        self.longest = self.longest.max(request.until - request.from);
        self.repeated += usize::from(request.attempts > 1);
        match &request.verdict {
            Verdict::Fine | Verdict::DroppedAsSet => {}
            Verdict::Failed(why) => self.failed(why),
            Verdict::Early => self.failed("403, early"),
            Verdict::Refused(_)
            | Verdict::NotFound(_)
            | Verdict::Dropped(_)
            | Verdict::Misled(_)
            | Verdict::Violation(_) => self.violations += 1,
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
