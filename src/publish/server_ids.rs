//! Our keys under our server ID, and under the one before while it is being left.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::etcd_key::EtcdKey;
use crate::cluster::keys::{EtcdKeys, Topic, claim};
use crate::cluster::record::Record;
use crate::cluster::state::canonical;

/// How often the record is rewritten within its lifetime, so that it outlives its server by nearly that time.
const REWRITES_PER_LIFE: u32 = 10;

/// Our keys under one server ID.
pub(super) struct IdKeys {
    pub(super) id: Arc<str>,
    pub(super) live: EtcdKey,
    pub(super) record: EtcdKey,
    pub(super) claim: EtcdKey,
    /// The last written record, the time of the write, and the revision since which its contents are unchanged.
    pub(super) written: Option<Record>,
    pub(super) at: Option<Instant>,
    pub(super) since: Option<i64>,
    /// The live key is ours.
    pub(super) lives: bool,
}

impl IdKeys {
    pub(super) fn is_due(&self, record: &Record, ttl: Duration) -> bool {
        let is_old = |at: Instant| at.elapsed() > ttl / REWRITES_PER_LIFE;
        self.written.as_ref() != Some(record) || self.at.is_none_or(is_old)
    }
}

/// All our keys.
pub(super) struct ServerIds {
    /// Under our ID, the last one, and under those before it while their live keys exist.
    pub(super) named: Vec<IdKeys>,
    /// The claim of a proxy without ID. It is left to expire once there is an ID: peers see the live key through another
    /// watch, which may be later.
    pub(super) unnamed: EtcdKey,
}

impl ServerIds {
    pub(super) fn new(keys: &EtcdKeys, endpoint: SocketAddr) -> Self {
        Self {
            named: Vec::new(),
            unnamed: claim_key(keys, None, endpoint),
        }
    }

    /// Our ID is now `id`.
    pub(super) fn take(&mut self, id: Arc<str>, keys: &EtcdKeys, endpoint: SocketAddr) {
        if self.named.last().is_some_and(|now| now.id == id) {
            return;
        }
        let key = |topic| EtcdKey::new(format!("{}{id}", keys.of(topic)));
        let back = self.named.iter().position(|keys| keys.id == id);
        let now = match back {
            Some(index) => self.named.remove(index),
            None => IdKeys {
                live: key(Topic::Live),
                record: key(Topic::Servers),
                claim: claim_key(keys, Some(&id), endpoint),
                written: self.named.last().and_then(|last| last.written.clone()),
                at: None,
                since: None,
                lives: false,
                id,
            },
        };
        self.named.retain(|former| former.lives);
        self.named.push(now);
    }

    /// The keys under former IDs.
    pub(super) fn take_former(&mut self) -> Vec<IdKeys> {
        let now = self.named.split_off(self.named.len().saturating_sub(1));
        std::mem::replace(&mut self.named, now)
    }
}

fn claim_key(keys: &EtcdKeys, id: Option<&str>, endpoint: SocketAddr) -> EtcdKey {
    let claim = claim(id, canonical(endpoint));
    EtcdKey::new(format!("{}{claim}", keys.of(Topic::Claims)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_id_is_left_only_after_its_live_key_was_written() {
        let keys = EtcdKeys::new("/registry", &[]);
        let endpoint = "10.0.0.1:6443".parse().unwrap();
        let mut ids = ServerIds::new(&keys, endpoint);
        let mut become_server = |id: &str, lives: bool| {
            ids.take(id.into(), &keys, endpoint);
            ids.named.last_mut().unwrap().lives = lives;
            let ids = ids.named.iter().map(|keys| keys.id.to_string());
            ids.collect::<Vec<_>>()
        };
        assert_eq!(become_server("a", true), ["a"]);
        assert_eq!(become_server("b", false), ["a", "b"]);
        assert_eq!(become_server("c", true), ["a", "c"]);
        assert_eq!(become_server("a", true), ["c", "a"]);
        let former: Vec<_> = ids.take_former();
        let former: Vec<_> = former.iter().map(|keys| &*keys.id).collect();
        assert_eq!((former, ids.named.len()), (vec!["c"], 1));
    }
}
