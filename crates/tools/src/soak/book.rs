//! What all clients and faults write down while the cluster runs.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::exchange::{Answer, Outcome};
use crate::plan::{Kind, NODES};
use crate::rules::Verdict;
use crate::table::{Request, Seen, Sort, Trouble, Wait, Window};
use crate::writes::Write;

/// Of an attempt of a read.
const SHORT: Duration = Duration::from_millis(200);
/// Requests that take longer are named, with what their attempts were answered.
const SLOW: Duration = Duration::from_secs(10);

/// An apiserver that is up.
struct Server {
    minor: u32,
    since: Duration,
    is_stopping: bool,
}

/// The time until which a server has to answer.
#[derive(Clone, Copy)]
pub enum Until {
    Stopping,
    /// It serves all along its shutdown delay.
    Gone,
}

/// How many violations are told of a run that is only counted.
const TOLD: usize = 20;
/// After it is ready, until everybody knows of a server.
const KNOWN: Duration = Duration::from_secs(3);

pub struct Book {
    start: Instant,
    stopped: AtomicBool,
    seen: Mutex<Seen>,
    /// With the number of the kind.
    writes: Mutex<Vec<(usize, Write)>>,
    violations: Mutex<Vec<String>>,
    /// From when until when an apiserver was starting.
    starts: Mutex<Vec<(Duration, Option<Duration>)>>,
    servers: Mutex<[Option<Server>; NODES]>,
    /// When the first server of a version came, the last time.
    came: Mutex<Option<Duration>>,
    /// When the last server of a version went, the last time.
    gone: Mutex<Option<Duration>>,
    /// Or else the first violations are told, and all are counted.
    judges: bool,
}

/// A request with all its attempts.
pub struct Exchange {
    pub what: String,
    pub from: Duration,
    /// When the last attempt began.
    pub last: Duration,
    pub attempts: Vec<Outcome>,
}

impl Exchange {
    /// Of the last attempt.
    pub fn answer(&self) -> Option<&Answer> {
        self.attempts.last().and_then(Outcome::answer)
    }

    pub fn code(&self) -> Option<u16> {
        self.answer().map(|answer| answer.code)
    }

    /// The object that was created.
    pub fn created(&self) -> Option<&Value> {
        let answer = self.answer().filter(|answer| answer.code == 201)?;
        Some(&answer.body)
    }

    pub fn describe(&self) -> String {
        let attempts: Vec<_> = self.attempts.iter().map(Outcome::describe).collect();
        format!(
            "{} from {:.1?}: {}",
            self.what,
            self.from,
            attempts.join(", then ")
        )
    }
}

impl Book {
    pub fn new(judges: bool) -> Self {
        Self {
            start: Instant::now(),
            stopped: AtomicBool::new(false),
            seen: Mutex::default(),
            writes: Mutex::default(),
            violations: Mutex::default(),
            starts: Mutex::default(),
            servers: Mutex::default(),
            came: Mutex::default(),
            gone: Mutex::default(),
            judges,
        }
    }

    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub fn say(&self, line: &str) {
        println!("[{:6.1} s] {line}", self.now().as_secs_f64());
    }

    /// Clients begin nothing new.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub fn violation(&self, what: String) {
        let mut violations = self.violations.lock().unwrap();
        match self.judges {
            true => self.say(&format!("VIOLATION {what}")),
            false if violations.len() < TOLD => self.say(&what),
            false => {}
        }
        violations.push(what);
    }

    pub fn request(&self, client: &str, exchange: &Exchange, verdict: Verdict) {
        if let Some(why) = verdict.violation() {
            let attempts: Vec<_> = exchange.attempts.iter().map(Outcome::describe).collect();
            let what = &exchange.what;
            let from = exchange.from;
            self.violation(format!(
                "{client}: {what} from {from:.1?}: {why} ({attempts:?})"
            ));
        }
        let until = self.now();
        if until - exchange.from > SLOW {
            self.say(&format!("slow: {client}: {}", exchange.describe()));
        }
        self.seen().requests.push(Request {
            client: client.to_owned(),
            from: exchange.from,
            until,
            attempts: exchange.attempts.len(),
            verdict,
        });
    }

    /// An apiserver starts; the start's number.
    pub fn starts(&self) -> usize {
        let now = self.now();
        let mut starts = self.starts.lock().unwrap();
        starts.push((now, None));
        starts.len() - 1
    }

    pub fn has_started(&self, number: usize) {
        let now = self.now();
        self.starts.lock().unwrap()[number].1 = Some(now);
    }

    /// Whether an apiserver was starting at some time since then.
    pub fn was_starting_since(&self, from: Duration) -> bool {
        let starts = self.starts.lock().unwrap();
        let lasts = |until: Option<Duration>| until.is_none_or(|until| until >= from);
        starts.iter().any(|(_, until)| lasts(*until))
    }

    /// The node's apiserver is up, with this minor version.
    pub fn server_is_up(&self, node: usize, minor: u32) {
        let since = self.now();
        let mut servers = self.servers.lock().unwrap();
        if servers.iter().flatten().all(|it| it.minor != minor) {
            *self.came.lock().unwrap() = Some(since);
        }
        servers[node] = Some(Server {
            minor,
            since,
            is_stopping: false,
        });
    }

    /// The node's apiserver is told to stop.
    pub fn server_stops(&self, node: usize) {
        if let Some(server) = &mut self.servers.lock().unwrap()[node] {
            server.is_stopping = true;
        }
    }

    pub fn server_is_gone(&self, node: usize) {
        let mut servers = self.servers.lock().unwrap();
        let gone = servers[node].take();
        let is_left = |gone: &Server| servers.iter().flatten().any(|it| it.minor == gone.minor);
        if gone.is_some_and(|gone| !is_left(&gone)) {
            *self.gone.lock().unwrap() = Some(self.now());
        }
    }

    /// The newest minor version of the apiservers that are up.
    pub fn newest(&self) -> Option<u32> {
        let servers = self.servers.lock().unwrap();
        servers.iter().flatten().map(|server| server.minor).max()
    }

    /// Whether an apiserver is up, or was since then, that is older than this minor version.
    pub fn has_older(&self, minor: u32, since: Duration) -> bool {
        let servers = self.servers.lock().unwrap();
        let mut up = servers.iter().flatten();
        up.any(|server| server.minor < minor) || self.has_lost_a_version(since)
    }

    /// Whether the first apiserver of a version has come since then.
    pub fn has_got_a_version(&self, since: Duration) -> bool {
        *self.came.lock().unwrap() >= Some(since)
    }

    /// Whether the last apiserver of a version has gone since then.
    pub fn has_lost_a_version(&self, since: Duration) -> bool {
        *self.gone.lock().unwrap() >= Some(since)
    }

    /// Whether one and the same apiserver of these versions was known to all from this time until now.
    pub fn is_answerable(&self, minors: &Range<u32>, from: Duration, until: Until) -> bool {
        let is_it = |server: &Server| {
            let counts = match until {
                Until::Stopping => !server.is_stopping,
                Until::Gone => true,
            };
            counts && minors.contains(&server.minor) && server.since + KNOWN <= from
        };
        self.servers.lock().unwrap().iter().flatten().any(is_it)
    }

    pub fn write(&self, kind: usize, write: Write) {
        self.writes.lock().unwrap().push((kind, write));
    }

    pub fn window(&self, kind: Kind, from: Duration) {
        let until = self.now();
        self.seen().windows.push(Window {
            kind: kind.to_string(),
            explains: kind.explains(),
            holds_reads: kind.holds_reads(),
            from,
            until,
        });
    }

    /// This program itself had to wait: nobody is to blame for a read that did.
    pub fn stalled(&self, from: Duration) {
        let until = self.now();
        self.seen().windows.push(Window {
            kind: "(a busy machine)".to_owned(),
            explains: &[],
            holds_reads: true,
            from,
            until,
        });
    }

    /// What may only be while something is broken.
    pub fn trouble(&self, from: Duration, what: String) {
        self.note_trouble(from, what, Sort::Request);
    }

    fn note_trouble(&self, from: Duration, what: String, sort: Sort) {
        let until = self.now();
        self.seen().troubles.push(Trouble {
            from,
            until,
            what,
            sort,
        });
    }

    /// An attempt of a read ended. What took no time need not be kept.
    pub fn waited(&self, from: Duration, what: String) {
        let until = self.now();
        if until - from < SHORT {
            return;
        }
        self.seen().waits.push(Wait { from, until, what });
    }

    pub fn relist(&self, informer: &str, revision: i64) {
        let (now, what) = (self.now(), format!("410: {informer} from {revision}"));
        self.say(&what);
        self.seen().relists.push(now);
        self.trouble(now, what);
    }

    /// A watch ended although its apiserver's own timeout cannot be why.
    pub fn watch_ended(&self, what: String) {
        let now = self.now();
        self.seen().ended_watches.push(now);
        self.note_trouble(now, what, Sort::Watch);
    }

    /// An upgraded stream ended, or did not begin.
    pub fn stream_ended(&self, why: String) {
        let now = self.now();
        self.seen().ended_streams.push(now);
        self.note_trouble(now, why, Sort::Stream);
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    pub fn writes_to(&self, kind: usize) -> Vec<Write> {
        let writes = self.writes.lock().unwrap();
        let of_kind = writes.iter().filter(|(of, _)| *of == kind);
        of_kind.map(|(_, write)| write.clone()).collect()
    }

    pub fn violations(&self) -> usize {
        self.violations.lock().unwrap().len()
    }
}
