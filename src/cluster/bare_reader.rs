//! Asks the addresses that may be bare apiservers' what is there ([`super::bare`]).
//!
//! Over mTLS with the proxy client certificate, as `system:apiserver`, and in `system:masters`: the path index `/`, which
//! alone names everything that an apiserver before 1.26 serves, is not for others. Only a ready apiserver is read, because
//! one that is starting lists less than it will serve. A proxy says in its answers that it is one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::bare::{BareAnswer, MASTER_LEASE_TTL};
use super::native::{Asking, SETTLE};
use super::native_peer::NativePeer;
use crate::client::{ClientError, ClientMaker};
use crate::kube::gvr::Custom;
use crate::local::reader::{ReadError, Reader};
use crate::log_throttle::{LogThrottle, chain};
use crate::retry::{Backoff, jittered};

/// While nobody answers.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
    jitter: 0.5,
};

/// So many failures in a row do not unmake what was read: a server that has much to do is still a target.
const TOLERATED: u32 = 2;

/// An address may lead to several servers. It is no bare server's before so many more answers in a row, each over a new
/// connection, came from none; and where a proxy had advertised itself and answered, so many.
const FIRST_DOUBTED: u32 = 2;
const DOUBTED: u32 = 3;

/// Addresses to ask, and whether a proxy has advertised itself there.
pub type Candidates = BTreeMap<SocketAddr, bool>;

/// Asks each of `addresses` about once in `every`, over one connection at a time, until their sender is dropped.
pub async fn run(
    maker: Arc<ClientMaker>,
    every: Duration,
    mut addresses: watch::Receiver<Candidates>,
    custom: watch::Receiver<Option<Arc<Custom>>>,
    answers: mpsc::Sender<(SocketAddr, BareAnswer)>,
) {
    let mut asking: BTreeMap<SocketAddr, Asking> = BTreeMap::new();
    loop {
        let now = addresses.borrow_and_update().clone();
        asking.retain(|address, _| now.contains_key(address));
        for address in now.into_keys() {
            asking.entry(address).or_insert_with(|| {
                let task = tokio::spawn(ask(
                    maker.clone(),
                    every,
                    address,
                    (addresses.clone(), custom.clone()),
                    answers.clone(),
                ));
                Asking::new(&task)
            });
        }
        if addresses.changed().await.is_err() {
            return;
        }
    }
}

async fn ask(
    maker: Arc<ClientMaker>,
    every: Duration,
    address: SocketAddr,
    (addresses, custom): (
        watch::Receiver<Candidates>,
        watch::Receiver<Option<Arc<Custom>>>,
    ),
    answers: mpsc::Sender<(SocketAddr, BareAnswer)>,
) {
    // A proxy's live key comes on another watch.
    tokio::time::sleep(SETTLE).await;
    tracing::info!(%address, "asking an apiserver that seems to have no proxy");
    let mut reader = Reader::of_apiserver(maker.client(address));
    let throttle = LogThrottle::default();
    let mut judge = Judge {
        doubted: FIRST_DOUBTED,
        ..Judge::default()
    };
    loop {
        let aggregated = custom.borrow().clone().unwrap_or_default();
        let result = read(&mut reader, address, &aggregated, &mut judge.answered).await;
        log(address, result.as_ref().err(), &throttle);
        // The next connection may lead to another server.
        match judge.doubted > 0 || matches!(result, Err(ReadError::Client(_) | ReadError::Proxy)) {
            true => reader = Reader::of_apiserver(maker.client(address)),
            false => reader.reconnect(),
        }
        judge.has_record = addresses.borrow().get(&address) == Some(&true);
        if let Some(answer) = judge.judge(result, Instant::now())
            && answers.send((address, answer)).await.is_err()
        {
            return;
        }
        tokio::time::sleep(judge.pause(every)).await;
    }
}

fn log(address: SocketAddr, error: Option<&ReadError>, throttle: &LogThrottle<()>) {
    match error {
        Some(error) if throttle.should_log((), chain(error)) => {
            let error = error as &dyn std::error::Error;
            tracing::info!(%address, error, "no apiserver without a proxy can be read there, trying on");
        }
        Some(_) => {}
        None => {
            if let Some(after) = throttle.recovered(&()) {
                tracing::info!(%address, ?after, "an apiserver without a proxy can be read there");
            }
        }
    }
}

/// What the attempts to read an address say together. Pure.
#[derive(Debug, Default)]
struct Judge {
    /// Attempts in a row that nobody answered.
    silent: u32,
    /// When the first of them ended.
    since: Option<Instant>,
    /// Failures that are still tolerated.
    tolerated: u32,
    /// Answers of no proxy that are still doubted.
    doubted: u32,
    /// A proxy has answered.
    was_proxy: bool,
    /// A proxy has advertised itself there.
    has_record: bool,
    /// An apiserver's certificate was there.
    answered: bool,
}

impl Judge {
    /// `None`: nothing else than before.
    fn judge(&mut self, result: Result<NativePeer, ReadError>, now: Instant) -> Option<BareAnswer> {
        let answer = match result {
            // A load balancer's address, before several servers.
            Ok(_) if self.was_proxy && !self.has_record => return None,
            Ok(_) if self.doubted > 0 => {
                self.doubted -= 1;
                (self.silent, self.since) = (0, None);
                return None;
            }
            Ok(native) => {
                self.was_proxy = false;
                BareAnswer::Read(native)
            }
            Err(ReadError::Proxy) => {
                self.doubted = DOUBTED;
                self.was_proxy = true;
                BareAnswer::Proxy
            }
            // A certificate that is not an apiserver's ends the connection before anything is sent.
            Err(ReadError::Client(ref error)) if is_silence(error, self.answered) => {
                let since = *self.since.get_or_insert(now);
                // Where a proxy was, nobody restarts.
                match self.was_proxy || now - since >= MASTER_LEASE_TTL {
                    true => BareAnswer::Nobody,
                    false => BareAnswer::Silent,
                }
            }
            Err(_) if self.was_proxy && self.doubted > 0 => return None,
            Err(_) if self.tolerated > 0 => {
                self.tolerated -= 1;
                return None;
            }
            Err(_) => BareAnswer::Unreadable,
        };
        self.tolerated = match answer {
            BareAnswer::Read(_) => TOLERATED,
            _ => 0,
        };
        match answer {
            BareAnswer::Nobody | BareAnswer::Silent => self.silent = self.silent.saturating_add(1),
            _ => (self.silent, self.since) = (0, None),
        }
        Some(answer)
    }

    fn pause(&self, every: Duration) -> Duration {
        match self.silent {
            // Soon certain.
            0 if (1..DOUBTED).contains(&self.doubted) => jittered(SETTLE),
            0 => jittered(every),
            silent => BACKOFF.random_pause(silent),
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

/// `custom`: what may not answer, and what every server serves. `answered` is set if an apiserver is there.
async fn read(
    reader: &mut Reader,
    address: SocketAddr,
    custom: &Custom,
    answered: &mut bool,
) -> Result<NativePeer, ReadError> {
    let ready = reader.check_ready().await;
    *answered |= !matches!(ready, Err(ReadError::Client(_) | ReadError::Proxy));
    ready?;
    let begun = Instant::now();
    let (served, versions) = reader.read(custom).await?;
    Ok(NativePeer {
        address,
        served: Arc::new(served),
        binary_version: versions.binary,
        version: versions.compatibility,
        read: begun,
        since: begun,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::gvr::ServedSet;

    fn read() -> Result<NativePeer, ReadError> {
        Ok(NativePeer {
            address: ([10, 0, 0, 2], 6443).into(),
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

    fn judged(results: Vec<Result<NativePeer, ReadError>>) -> Vec<&'static str> {
        judged_by(
            Judge {
                has_record: true,
                ..Judge::default()
            },
            results,
        )
    }

    fn judged_by(
        mut judge: Judge,
        results: Vec<Result<NativePeer, ReadError>>,
    ) -> Vec<&'static str> {
        let mut names = Vec::new();
        for result in results {
            names.push(match judge.judge(result, Instant::now()) {
                None => "-",
                Some(BareAnswer::Read(_)) => "read",
                Some(BareAnswer::Unreadable) => "unreadable",
                Some(BareAnswer::Silent) => "silent",
                Some(BareAnswer::Nobody) => "nobody",
                Some(BareAnswer::Proxy) => "proxy",
            });
        }
        names
    }

    #[test]
    fn what_was_read_outlives_some_failures_and_no_refused_connection() {
        let results = vec![failed(), read(), failed(), failed(), failed(), failed()];
        let expected = ["unreadable", "read", "-", "-", "unreadable", "unreadable"];
        assert_eq!(judged(results), expected);
        let results = vec![read(), refused(), failed(), read(), failed()];
        assert_eq!(
            judged(results),
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
        assert_eq!(judged(results), expected);
        let results = vec![proxy(), refused(), failed(), read(), read(), read(), read()];
        let expected = ["proxy", "nobody", "-", "-", "-", "-", "read"];
        assert_eq!(judged(results), expected);
    }

    #[test]
    fn an_address_that_led_to_a_proxy_and_is_not_a_proxys_own_is_a_load_balancers() {
        let mut results = vec![Err(ReadError::Proxy)];
        results.extend((0..10).map(|_| read()));
        let names = judged_by(Judge::default(), results);
        assert_eq!(names[0], "proxy");
        assert!(names[1..].iter().all(|name| *name == "-"), "{names:?}");
    }

    #[test]
    fn who_has_answered_and_takes_too_long_is_there() {
        let slow = || Err(ClientError::Timeout(Duration::from_secs(5)).into());
        assert_eq!(judged(vec![slow()]), ["silent"]);
        let new = Judge {
            doubted: FIRST_DOUBTED,
            ..Judge::default()
        };
        let results = vec![failed(), read(), read(), read()];
        let expected = ["unreadable", "-", "-", "read"];
        assert_eq!(judged_by(new, results), expected);
        let busy = Judge {
            answered: true,
            ..Judge::default()
        };
        let results = vec![slow(), read(), slow(), slow(), slow()];
        let expected = ["unreadable", "read", "-", "-", "unreadable"];
        assert_eq!(judged_by(busy, results), expected);
    }

    #[test]
    fn nobody_is_there_only_when_the_key_of_a_dead_one_would_have_ended() {
        let (mut judge, start) = (Judge::default(), Instant::now());
        for (seconds, nobody) in [(0, false), (14, false), (15, true), (60, true)] {
            let answer = judge.judge(refused(), start + Duration::from_secs(seconds));
            let found = matches!(answer, Some(BareAnswer::Nobody));
            assert_eq!(found, nobody, "{seconds}");
        }
        judge.judge(failed(), start);
        let answer = judge.judge(refused(), start + Duration::from_secs(60));
        assert!(
            matches!(answer, Some(BareAnswer::Silent)),
            "it answered meanwhile"
        );
    }

    #[test]
    fn while_nobody_answers_the_pauses_grow() {
        let (mut judge, every) = (Judge::default(), Duration::from_secs(10));
        for least in [500, 1000, 2000, 4000, 8000, 15_000, 15_000] {
            judge.judge(refused(), Instant::now());
            let pause = judge.pause(every);
            assert!(pause >= Duration::from_millis(least), "{pause:?}");
            assert!(pause <= BACKOFF.longest);
        }
        judge.judge(failed(), Instant::now());
        assert!(judge.pause(every) <= every);
    }
}
