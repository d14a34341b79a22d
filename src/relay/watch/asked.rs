//! Servers that did not go on with a watch, and when each may be asked again. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::retry::Backoff;

/// How often a server is asked that answers otherwise: it may be overloaded.
const ATTEMPTS: u32 = 4;
const AGAIN: Backoff = Backoff::between(Duration::from_secs(1), Duration::from_secs(5));

/// Servers that were asked in vain.
#[derive(Debug, Default)]
pub struct AskedServers(BTreeMap<SocketAddr, Asked>);

#[derive(Debug, Default)]
struct Asked {
    failures: u32,
    /// When it may be asked again.
    again: Option<Instant>,
    /// Its history does not reach back to this revision.
    expired: Option<i64>,
}

/// Whether a server is asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    Later,
    AFewTimes,
    /// From a later revision than this.
    After(i64),
}

impl AskedServers {
    /// `server` did not go on with it.
    pub fn failed(&mut self, server: SocketAddr, again: Again, now: Instant) {
        let asked = self.0.entry(server).or_default();
        asked.failures += 1;
        let few = asked.failures < ATTEMPTS;
        let later = now + AGAIN.random_pause(asked.failures);
        asked.again = match again {
            Again::Later => Some(later),
            Again::AFewTimes => few.then_some(later),
            Again::After(_) => few.then_some(now),
        };
        if let Again::After(revision) = again {
            asked.expired = Some(revision);
        }
    }

    /// Those that are not asked now for what comes after `revision`.
    pub fn avoided(&self, revision: i64, now: Instant) -> Vec<SocketAddr> {
        let avoided = self.0.iter().filter(|(_, asked)| {
            Some(revision) <= asked.expired || asked.again.is_none_or(|again| now < again)
        });
        avoided.map(|(server, _)| *server).collect()
    }

    /// The newest revision from which one of them does not have the history, or 0.
    pub fn expired(&self) -> i64 {
        let expired = self.0.values().filter_map(|asked| asked.expired);
        expired.max().unwrap_or_default()
    }

    /// Whether one of them may be asked again later.
    pub fn is_pending(&self, now: Instant) -> bool {
        self.0.values().any(|asked| asked.again > Some(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: ([u8; 4], u16) = ([127, 0, 0, 1], 6443);
    const LONG: Duration = Duration::from_secs(60);

    fn after(failures: &[Again]) -> (AskedServers, Instant) {
        let now = Instant::now();
        let mut asked = AskedServers::default();
        for again in failures {
            asked.failed(SERVER.into(), *again, now);
        }
        (asked, now)
    }

    #[test]
    fn a_server_without_the_history_is_asked_from_a_later_revision_a_few_times() {
        let (asked, now) = after(&[Again::After(10)]);
        assert_eq!(asked.avoided(10, now), [SERVER.into()]);
        assert_eq!(asked.avoided(11, now), []);
        assert_eq!((asked.expired(), asked.is_pending(now)), (10, false));
        let (asked, now) = after(&[Again::After(10); 4]);
        assert_eq!(asked.avoided(11, now + LONG), [SERVER.into()]);
    }

    #[test]
    fn a_server_that_fails_has_a_pause_and_one_that_answers_otherwise_an_end() {
        for (failures, is_asked_again) in [
            (&[Again::Later; 9][..], true),
            (&[Again::AFewTimes; 3], true),
            (&[Again::AFewTimes; 4], false),
        ] {
            let (asked, now) = after(failures);
            assert_eq!(asked.avoided(10, now), [SERVER.into()], "{failures:?}");
            assert_eq!(asked.is_pending(now), is_asked_again, "{failures:?}");
            let later = asked.avoided(10, now + LONG);
            assert_eq!(later.is_empty(), is_asked_again, "{failures:?}");
        }
    }
}
