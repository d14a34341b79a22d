//! When keys with a TTL are written again. Pure.
//!
//! A key is written again after a third of its TTL. The rest is enough to find two etcd members frozen, one after the other,
//! and to write through a third.

use std::time::Duration;

use crate::cluster::connector::REQUEST_TIMEOUT;

/// Between two writes.
pub fn pause(ttl: Duration) -> Duration {
    ttl / 3
}

/// Timeout of one request.
pub fn request_limit(ttl: Duration) -> Duration {
    (ttl / 6).min(REQUEST_TIMEOUT)
}

/// After this many failures in a row.
pub fn pause_after(failures: u32, ttl: Duration) -> Duration {
    (ttl / 20).saturating_mul(failures).min(pause(ttl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_frozen_members_leave_time_to_write_over_a_third() {
        // The shortest that the configuration allows, the default, a long one.
        for seconds in [2, 15, 3600] {
            let ttl = Duration::from_secs(seconds);
            let lost: Duration = (1..=2)
                .map(|failures| request_limit(ttl) + pause_after(failures, ttl))
                .sum();
            let left = ttl.checked_sub(pause(ttl) + lost);
            assert!(left.is_some_and(|left| left >= ttl / 6), "{ttl:?} {left:?}");
        }
    }

    #[test]
    fn no_pause_is_longer_than_between_two_writings() {
        let ttl = Duration::from_secs(15);
        assert_eq!(pause_after(u32::MAX, ttl), pause(ttl));
        assert!(pause_after(1, ttl) < Duration::from_secs(1));
    }
}
