//! This proxy's own keys, as its watches show them. Pure.

use super::keys::claim;
use super::state::ClusterState;

/// Revisions of this proxy's keys; 0: absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnKeys {
    pub record: i64,
    pub live: i64,
    /// The claim that it has in place of these.
    pub claim: i64,
}

impl OwnKeys {
    /// Whether these are at least as new as `written`.
    pub fn cover(&self, written: &Self) -> bool {
        self.record >= written.record && self.live >= written.live && self.claim >= written.claim
    }
}

impl ClusterState {
    /// The keys of the server `own`.
    pub fn own_keys(&self, own: Option<&str>) -> OwnKeys {
        let claim = claim(own, self.own_endpoint);
        let claim = self.claims.listed(&claim);
        let record = own.and_then(|id| self.servers.get(id));
        let live = own.and_then(|id| self.live.listed(id));
        OwnKeys {
            record: record.map_or(0, |at| at.revision),
            live: live.map_or(0, |at| at.revision),
            claim: claim.map_or(0, |at| at.revision),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_cover_older_ones_and_those_that_were_not_written() {
        let keys = |record, live, claim| OwnKeys {
            record,
            live,
            claim,
        };
        let written = keys(3, 4, 0);
        for (seen, covers) in [
            (keys(0, 0, 0), false),
            (keys(3, 0, 0), false),
            (keys(0, 4, 0), false),
            (keys(2, 4, 0), false),
            (keys(3, 4, 0), true),
            (keys(5, 6, 7), true),
        ] {
            assert_eq!(seen.cover(&written), covers, "{seen:?}");
        }
        assert!(!keys(3, 4, 0).cover(&keys(0, 0, 5)));
    }
}
