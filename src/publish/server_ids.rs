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
pub(super) struct Keeping {
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

impl Keeping {
    /// `before`: the keys under a former ID, whose knowledge is carried over.
    fn after(before: Option<&Self>, id: Arc<str>, keys: &EtcdKeys, endpoint: SocketAddr) -> Self {
        let key = |topic| EtcdKey::new(format!("{}{id}", keys.of(topic)));
        Self {
            live: key(Topic::Live),
            record: key(Topic::Servers),
            claim: claim_key(keys, Some(&id), endpoint),
            written: before.and_then(|before| before.written.clone()),
            at: None,
            since: None,
            lives: false,
            id,
        }
    }

    pub(super) fn is_due(&self, record: &Record, ttl: Duration) -> bool {
        self.written.as_ref() != Some(record)
            || self
                .at
                .is_none_or(|at| at.elapsed() > ttl / REWRITES_PER_LIFE)
    }
}

/// All our keys.
pub(super) struct ServerIds {
    /// Under our ID; `None` while there is none.
    pub(super) keeping: Option<Keeping>,
    /// Under the one before, while its live key exists.
    pub(super) former: Option<Keeping>,
    /// The claim of a proxy without ID. It is left to expire once there is an ID: peers see the live key through another
    /// watch, which may be later.
    pub(super) unnamed: EtcdKey,
}

impl ServerIds {
    pub(super) fn new(keys: &EtcdKeys, endpoint: SocketAddr) -> Self {
        Self {
            keeping: None,
            former: None,
            unnamed: claim_key(keys, None, endpoint),
        }
    }

    /// Our ID is now `id`.
    pub(super) fn take(&mut self, id: Option<Arc<str>>, keys: &EtcdKeys, endpoint: SocketAddr) {
        if self.keeping.as_ref().map(|keeping| &keeping.id) == id.as_ref() {
            return;
        }
        let before = self.keeping.take();
        let back = self
            .former
            .take_if(|former| Some(&former.id) == id.as_ref());
        let new = || id.map(|id| Keeping::after(before.as_ref(), id, keys, endpoint));
        self.keeping = back.or_else(new);
        let former = before.filter(|before| before.lives);
        self.former = former.or(self.former.take());
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
        let become_server = |ids: &mut ServerIds, id: &str, lives: bool| {
            ids.take(Some(id.into()), &keys, endpoint);
            if let Some(keeping) = &mut ids.keeping {
                keeping.lives = lives;
            }
            let former = ids.former.as_ref().map(|former| former.id.to_string());
            let now = ids.keeping.as_ref().map(|keeping| keeping.id.to_string());
            (now, former)
        };
        let expected =
            |now: &str, former: Option<&str>| (Some(now.to_owned()), former.map(str::to_owned));
        assert_eq!(become_server(&mut ids, "a", true), expected("a", None));
        assert_eq!(
            become_server(&mut ids, "b", false),
            expected("b", Some("a"))
        );
        assert_eq!(become_server(&mut ids, "c", true), expected("c", Some("a")));
        assert_eq!(become_server(&mut ids, "a", true), expected("a", Some("c")));
    }
}
