//! Limits of open files. Each connection takes one.
//!
//! Clients get half of them, and their upstream connections the other half. The last ones are for the proxy itself:
//! etcd, the probe, discovery and the admin port continue when requests have used up all others.

use std::os::fd::{AsRawFd, RawFd};

use rustix::process::{Resource, getrlimit, setrlimit};

/// Files that requests must not use.
const OWN: u64 = 64;
/// Most clients at the same time: container runtimes allow a million files, and each client needs about 30 KiB.
const MOST_CLIENTS: u64 = 1 << 17;

/// Raises the soft limit to the hard limit, as every Go program does: systemd and many shells start with 1024 for
/// programs that use `select`.
pub fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

/// Most clients at the same time.
pub fn for_clients() -> usize {
    usize::try_from(clients(limit())).unwrap_or(usize::MAX)
}

/// Whether a request may use this file. The kernel gives the lowest free number, so the last files have the highest
/// numbers.
pub fn is_for_requests(file: &impl AsRawFd) -> bool {
    is_below(file.as_raw_fd(), limit())
}

fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn clients(limit: u64) -> u64 {
    (limit.saturating_sub(OWN) / 2).min(MOST_CLIENTS)
}

fn is_below(number: RawFd, limit: u64) -> bool {
    u64::try_from(number).is_ok_and(|number| number < limit.saturating_sub(OWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_half_of_what_the_proxy_does_not_need_itself() {
        for (limit, expected) in [(0, 0), (OWN, 0), (128, 32), (1024, 480), (1 << 20, 131_072)] {
            assert_eq!(clients(limit), expected, "{limit}");
        }
    }

    #[test]
    fn the_last_files_are_not_for_requests() {
        for (number, limit, expected) in [
            (0, OWN, false),
            (959, 1024, true),
            (960, 1024, false),
            (1023, 1024, false),
            (5, u64::MAX, true),
            (-1, 1024, false),
        ] {
            assert_eq!(is_below(number, limit), expected, "{number} of {limit}");
        }
    }
}
