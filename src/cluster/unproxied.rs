//! Servers without a proxy: which are asked, and what they answered. Pure; [`super::asking`] asks them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::keys::MASTER_LEASE_TTL;
use crate::client::ClientError;
use crate::kube::gvr::ServedSet;
use crate::kube::version::KubernetesVersion;
use crate::local::reader::ReadError;
use crate::retry::jittered;
use crate::routing::table::{Server, ServerKind};

/// The user of native peers in requests to each other; its group is [`GROUP`].
pub const USER: &str = "system:apiserver";
/// The group of [`USER`].
pub const GROUP: &str = "system:authenticated";

/// A server that is asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unproxied {
    /// Of a native peer; `None`: it may be a bare apiserver.
    pub id: Option<String>,
    pub address: SocketAddr,
    /// The revision that created the key that tells of it: with another one another process may run there.
    pub created: i64,
}

/// Servers to ask, and whether a proxy has advertised itself there.
pub type Candidates = BTreeMap<Unproxied, bool>;

/// The discovery of a kube-apiserver without a proxy.
#[derive(Debug, Clone)]
pub struct NativePeer {
    pub address: SocketAddr,
    /// [`Unproxied::created`]
    pub created: i64,
    /// What it serves itself.
    pub served: Arc<ServedSet>,
    /// `gitVersion`.
    pub binary_version: String,
    /// Emulated version, where known.
    pub version: Option<KubernetesVersion>,
    /// When the last read began.
    pub read: Instant,
    /// When the first of those reads began that have all found just this.
    pub since: Instant,
}

impl NativePeer {
    /// A server of which this was read last, as if it were absent.
    pub(super) fn server(
        read: Option<&Self>,
        id: &str,
        kind: ServerKind,
        endpoint: SocketAddr,
    ) -> Server {
        Server {
            id: id.into(),
            endpoint,
            kind,
            live: false,
            initialized: false,
            target: false,
            ready: false,
            binary_version: read.map(|read| read.binary_version.clone()),
            version: read.and_then(|read| read.version),
            history_start: None,
            history_void: false,
            draining: false,
            known: false,
            served: read.map(|read| read.served.clone()),
        }
    }
}

/// What an address answered: the discovery of a ready apiserver, or why there is none.
pub type BareAnswer = Result<NativePeer, NotRead>;

/// Why an address gave no discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotRead {
    /// An apiserver's certificate, and no discovery: it is starting, or does not accept us.
    Unreadable,
    /// Nobody with an apiserver's certificate so far: it may be restarting.
    Silent,
    /// Nobody with an apiserver's certificate for longer than the key of a dead one lives.
    Nobody,
    /// A proxy, this one included.
    Proxy,
}

/// Wait for a proxy's other keys, which come on other watches than the one that names the address.
pub(super) const SETTLE: Duration = Duration::from_millis(250);

/// While an apiserver that was not read yet answers with failures.
const STARTING: Duration = Duration::from_secs(1);

/// While nobody answers: a quarter of the time for which nobody has, and within this.
const SILENCE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30);

/// So many failures in a row do not unmake what was read: a server that has much to do is still a target.
const TOLERATED: u32 = 2;

/// An address may lead to several servers. It is no bare server's before so many more answers in a row, each over a new
/// connection, came from none; and where a proxy had advertised itself and answered, so many.
const FIRST_DOUBTED: u32 = 2;
const DOUBTED: u32 = 3;

/// What the attempts to read the address of what may be a bare apiserver say together.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// When the first of those attempts ended that nobody has answered since.
    since: Option<Instant>,
    /// Somebody is starting there, as it seems.
    starting: bool,
    /// Failures that are still tolerated.
    tolerated: u32,
    /// Answers of no proxy that are still doubted: each is to come over a connection of its own.
    pub(super) doubted: u32,
    /// The last answer was one of these.
    doubts: bool,
    /// A proxy has answered.
    was_proxy: bool,
    /// A proxy has advertised itself there.
    pub(super) has_record: bool,
    /// An apiserver's certificate was there.
    pub(super) answered: bool,
}

impl Attempts {
    pub(super) fn new() -> Self {
        Self {
            doubted: FIRST_DOUBTED,
            ..Self::default()
        }
    }

    /// `None`: nothing else than before.
    pub(super) fn conclude(
        &mut self,
        result: Result<NativePeer, ReadError>,
        now: Instant,
    ) -> Option<BareAnswer> {
        self.doubts = false;
        let is_silent = match &result {
            // A certificate that is not an apiserver's ends the connection before anything is sent.
            Err(ReadError::Client(error)) => is_silence(error, self.answered),
            _ => false,
        };
        self.since = is_silent.then(|| self.since.unwrap_or(now));
        self.starting = match &result {
            Ok(_) | Err(ReadError::Proxy) => false,
            Err(_) => self.starting || is_silent || self.doubted > 0,
        };
        let answer = match result {
            // A load balancer's address, before several servers.
            Ok(_) if self.was_proxy && !self.has_record => return None,
            Ok(_) if self.doubted > 0 => {
                self.doubted -= 1;
                self.doubts = true;
                return None;
            }
            Ok(native) => {
                self.was_proxy = false;
                Ok(native)
            }
            Err(ReadError::Proxy) => {
                self.doubted = DOUBTED;
                self.was_proxy = true;
                Err(NotRead::Proxy)
            }
            Err(_) if is_silent => {
                let is_long = self.since.is_some_and(|it| now - it >= MASTER_LEASE_TTL);
                // Where a proxy was, nobody restarts.
                match self.was_proxy || is_long {
                    true => Err(NotRead::Nobody),
                    false => Err(NotRead::Silent),
                }
            }
            Err(_) if self.was_proxy && self.doubted > 0 => return None,
            Err(_) if self.tolerated > 0 => {
                self.tolerated -= 1;
                return None;
            }
            Err(_) => Err(NotRead::Unreadable),
        };
        self.tolerated = match answer {
            Ok(_) => TOLERATED,
            Err(_) => 0,
        };
        Some(answer)
    }

    pub(super) fn pause(&self, every: Duration, now: Instant) -> Duration {
        match self.since {
            Some(since) => {
                let pause = (now - since) / 4;
                jittered(pause.clamp(*SILENCE.start(), *SILENCE.end()))
            }
            // Soon certain.
            None if self.doubts => jittered(SETTLE),
            None if self.starting => jittered(every.min(STARTING)),
            None => jittered(every),
        }
    }
}

/// Whether nobody answered. Who has `answered` before and takes too long has much to do.
fn is_silence(error: &ClientError, answered: bool) -> bool {
    match error {
        ClientError::Refused | ClientError::Connect(_) => true,
        ClientError::Timeout(_) => !answered,
        ClientError::Exchange(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kube::gvr::ServedSet;

    fn read() -> Result<NativePeer, ReadError> {
        Ok(NativePeer {
            address: ([10, 0, 0, 2], 6443).into(),
            created: 1,
            served: Arc::new(ServedSet::new()),
            binary_version: "v1.20.2".to_owned(),
            version: None,
            read: Instant::now(),
            since: Instant::now(),
        })
    }

    fn failed() -> Result<NativePeer, ReadError> {
        let (path, status) = (
            "/readyz".to_owned(),
            http::StatusCode::INTERNAL_SERVER_ERROR,
        );
        Err(ReadError::Status { path, status })
    }

    fn refused() -> Result<NativePeer, ReadError> {
        Err(ClientError::Refused.into())
    }

    fn concluded(results: Vec<Result<NativePeer, ReadError>>) -> Vec<&'static str> {
        concluded_by(
            Attempts {
                has_record: true,
                ..Attempts::default()
            },
            results,
        )
    }

    fn concluded_by(
        mut attempts: Attempts,
        results: Vec<Result<NativePeer, ReadError>>,
    ) -> Vec<&'static str> {
        let mut names = Vec::new();
        for result in results {
            names.push(match attempts.conclude(result, Instant::now()) {
                None => "-",
                Some(Ok(_)) => "read",
                Some(Err(NotRead::Unreadable)) => "unreadable",
                Some(Err(NotRead::Silent)) => "silent",
                Some(Err(NotRead::Nobody)) => "nobody",
                Some(Err(NotRead::Proxy)) => "proxy",
            });
        }
        names
    }

    #[test]
    fn what_was_read_outlives_some_failures_and_no_refused_connection() {
        let results = vec![failed(), read(), failed(), failed(), failed(), failed()];
        let expected = ["unreadable", "read", "-", "-", "unreadable", "unreadable"];
        assert_eq!(concluded(results), expected);
        let results = vec![read(), refused(), failed(), read(), failed()];
        assert_eq!(
            concluded(results),
            ["read", "silent", "unreadable", "read", "-"]
        );
    }

    #[test]
    fn where_a_proxy_answered_several_others_must_answer_in_a_row() {
        let proxy = || Err(ReadError::Proxy);
        let results = vec![
            proxy(),
            read(),
            read(),
            proxy(),
            read(),
            read(),
            read(),
            read(),
        ];
        let expected = ["proxy", "-", "-", "proxy", "-", "-", "-", "read"];
        assert_eq!(concluded(results), expected);
        let results = vec![proxy(), refused(), failed(), read(), read(), read(), read()];
        let expected = ["proxy", "nobody", "-", "-", "-", "-", "read"];
        assert_eq!(concluded(results), expected);
    }

    #[test]
    fn an_address_that_led_to_a_proxy_and_is_not_a_proxys_own_is_a_load_balancers() {
        let mut results = vec![Err(ReadError::Proxy)];
        results.extend((0..10).map(|_| read()));
        let names = concluded_by(Attempts::default(), results);
        assert_eq!(names[0], "proxy");
        assert!(names[1..].iter().all(|name| *name == "-"), "{names:?}");
    }

    #[test]
    fn who_has_answered_and_takes_too_long_is_there() {
        let slow = || Err(ClientError::Timeout(Duration::from_secs(5)).into());
        assert_eq!(concluded(vec![slow()]), ["silent"]);
        let new = Attempts::new();
        let results = vec![failed(), read(), read(), read()];
        let expected = ["unreadable", "-", "-", "read"];
        assert_eq!(concluded_by(new, results), expected);
        let busy = Attempts {
            answered: true,
            ..Attempts::default()
        };
        let results = vec![slow(), read(), slow(), slow(), slow()];
        let expected = ["unreadable", "read", "-", "-", "unreadable"];
        assert_eq!(concluded_by(busy, results), expected);
    }

    #[test]
    fn nobody_is_there_only_when_the_key_of_a_dead_one_would_have_ended() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        for (seconds, nobody) in [(0, false), (14, false), (15, true), (60, true)] {
            let answer = attempts.conclude(refused(), start + Duration::from_secs(seconds));
            let found = matches!(answer, Some(Err(NotRead::Nobody)));
            assert_eq!(found, nobody, "{seconds}");
        }
        attempts.conclude(failed(), start);
        let answer = attempts.conclude(refused(), start + Duration::from_secs(60));
        assert!(
            matches!(answer, Some(Err(NotRead::Silent))),
            "it answered meanwhile"
        );
    }

    #[test]
    fn while_nobody_answers_the_pauses_grow() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        let every = Duration::from_secs(10);
        for (silent, longest) in [(0, 1), (4, 1), (20, 5), (60, 15), (600, 30)] {
            let now = start + Duration::from_secs(silent);
            attempts.conclude(refused(), now);
            let pause = attempts.pause(every, now).as_secs_f64() / f64::from(longest);
            assert!((0.5..=1.0).contains(&pause), "{silent} s: {pause}");
        }
        // Somebody is there again, and is starting.
        attempts.conclude(failed(), start);
        assert!(attempts.pause(every, start) <= STARTING);
        attempts.conclude(read(), start);
        assert!(attempts.pause(every, start) > STARTING);
    }

    #[test]
    fn an_apiserver_that_starts_where_a_proxy_was_is_asked_each_second() {
        let (mut attempts, every) = (Attempts::new(), Duration::from_secs(10));
        attempts.has_record = true;
        let now = Instant::now();
        for result in [Err(ReadError::Proxy), refused(), failed(), failed()] {
            attempts.conclude(result, now);
        }
        assert!(attempts.pause(every, now) <= STARTING);
        attempts.conclude(Err(ReadError::Proxy), now);
        assert!(attempts.pause(every, now) > STARTING);
        // A load balancer's address.
        attempts.has_record = false;
        for result in [refused(), read()] {
            attempts.conclude(result, now);
        }
        assert!(attempts.pause(every, now) > STARTING);
    }

    #[test]
    fn an_answer_that_is_doubted_is_soon_certain_and_who_starts_is_asked_each_second() {
        let (mut attempts, every) = (Attempts::new(), Duration::from_secs(10));
        attempts.conclude(failed(), Instant::now());
        assert!((SETTLE..=STARTING).contains(&attempts.pause(every, Instant::now())));
        for _ in 0..FIRST_DOUBTED {
            assert!(attempts.conclude(read(), Instant::now()).is_none());
            assert!(attempts.pause(every, Instant::now()) <= SETTLE);
        }
        assert!(matches!(
            attempts.conclude(read(), Instant::now()),
            Some(Ok(_))
        ));
        assert!(attempts.pause(every, Instant::now()) > STARTING);
    }
}
