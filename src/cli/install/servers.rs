//! What etcd knows of other servers, and the lock that lets one node change at a time.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};

use crate::cli::etcd::{EtcdAccess, decoded, only_in};
use crate::cli::text::{plain, plain_list};
use crate::cluster::connector::{failed, within};
use crate::cluster::json;
use crate::cluster::keys::Topic;
use crate::cluster::record::{LiveKey, Record};
use crate::config::Config;

/// Lifetime of the lock of a process that was killed, in seconds.
const LOCK_TTL: i64 = 30;
/// The lock is written anew so often.
pub(super) const LOCK_RENEWAL: Duration = Duration::from_secs(8);

/// The cluster's etcd, as the node's proxy and apiserver use it.
pub(super) struct Servers {
    etcd: EtcdAccess,
    lock: String,
    /// What stands in the lock: which node's it is. A call that was killed has left it to the next one there.
    owner: String,
    own: SocketAddr,
}

/// A server as it is known: records outlive servers.
struct Known {
    id: String,
    record: Record,
    live: Option<LiveKey>,
}

impl Servers {
    /// `config`: with paths of files that can be read here.
    pub(super) fn new(config: &Config) -> Result<Self, String> {
        let etcd = EtcdAccess::new(config)?;
        let own = config.peer.advertise_address;
        let system = rustix::system::uname();
        let servers = etcd.keys.of(Topic::Servers);
        Ok(Self {
            lock: servers.trim_end_matches("servers/").to_owned() + "installing",
            owner: format!("{} ({own})", system.nodename().to_string_lossy()),
            own,
            etcd,
        })
    }

    /// How many apiservers say in etcd that they live.
    pub(super) async fn count(&self) -> Result<usize, String> {
        let [leases] = self.etcd.list([Topic::MasterLeases]).await?;
        Ok(leases.len())
    }

    /// This server under each of its IDs, and the others.
    async fn known(&self) -> Result<(Vec<Known>, Vec<Known>), String> {
        let [records, lives] = self.etcd.list([Topic::Servers, Topic::Live]).await?;
        let mut lives: HashMap<_, _> = decoded(&lives, json::read).collect();
        let known = decoded(&records, json::read).map(|(id, record)| Known {
            live: lives.remove(&id),
            record,
            id,
        });
        Ok(known.partition(|it| it.record.endpoint == self.own))
    }

    /// Other servers that do not serve now.
    pub(super) async fn not_ready(&self) -> Result<Vec<String>, String> {
        let (_, others) = self.known().await?;
        Ok(waiting_for(&others))
    }

    /// Whether others, who read the same, see that this server serves.
    pub(super) async fn is_seen(&self) -> Result<bool, String> {
        let (own, _) = self.known().await?;
        let mut lives = own.iter().filter_map(|it| it.live.as_ref());
        Ok(lives.any(|live| live.initialized && live.ready))
    }

    /// What other servers serve and this one does not, which its clients would not reach without the proxy.
    pub(super) async fn only_others_serve(&self) -> Result<Vec<String>, String> {
        let (own, others) = self.known().await?;
        let own = own.iter().map(|it| &it.record);
        let lines = others.iter().filter_map(|other| {
            other.live.as_ref()?;
            let only = only_in(&other.record, own.clone());
            let (name, names) = (other.name(), plain_list(only.iter().map(|(name, _)| name)));
            let line = format!("{name} serves what kube-apiserver here does not: {names}");
            (!only.is_empty()).then_some(line)
        });
        Ok(lines.collect())
    }

    /// Takes the lock, or keeps it if it is ours; else returns whose it is.
    pub(super) async fn lock(&self) -> Result<Option<String>, String> {
        let (key, owner) = (self.lock.as_str(), self.owner.as_str());
        let take = async |mut client: Client| {
            let lease = within(client.lease_grant(LOCK_TTL, None)).await?.id();
            let write = || TxnOp::put(key, owner, Some(PutOptions::new().with_lease(lease)));
            for is_ours in [
                Compare::version(key, CompareOp::Equal, 0),
                Compare::value(key, CompareOp::Equal, owner),
            ] {
                let write = Txn::new().when([is_ours]).and_then([write()]);
                if client.txn(write).await.map_err(failed)?.succeeded() {
                    return Ok(None);
                }
            }
            let found = client.get(key, None).await.map_err(failed)?;
            let owner = found.kvs().first();
            let owner = owner.map(|it| plain(&String::from_utf8_lossy(it.value())));
            Ok(owner.or_else(|| Some("another process".to_owned())))
        };
        self.etcd.ask(take).await
    }

    /// Gives the lock back.
    pub(super) async fn unlock(&self) {
        let (key, owner) = (self.lock.as_str(), self.owner.as_str());
        let delete = Txn::new()
            .when([Compare::value(key, CompareOp::Equal, owner)])
            .and_then([TxnOp::delete(key, None)]);
        let delete = async |mut client: Client| client.txn(delete.clone()).await.map_err(failed);
        // It ends by itself, too.
        let _ = self.etcd.ask(delete).await;
    }

    /// Deletes the record of this server, which would outlive it.
    pub(super) async fn forget_own(&self) -> Result<(), String> {
        let (own, _) = self.known().await?;
        for own in own.iter().filter(|it| it.live.is_none()) {
            let key = self.etcd.keys.of(Topic::Servers) + &own.id;
            let delete =
                async |mut client: Client| client.delete(key.as_str(), None).await.map_err(failed);
            self.etcd.ask(delete).await?;
        }
        Ok(())
    }
}

/// A server that is back under another ID has left a record, which ends by itself.
fn waiting_for(others: &[Known]) -> Vec<String> {
    let is_back = |gone: &Known| {
        let mut others = others.iter();
        others.any(|it| it.live.is_some() && it.record.endpoint == gone.record.endpoint)
    };
    let waiting = others.iter().filter_map(|it| {
        let state = match &it.live {
            Some(live) if live.ready => return None,
            Some(_) => "is not ready",
            None if is_back(it) => return None,
            None => "is absent (if it will not come back: kube-interop-proxy forget)",
        };
        Some(format!("{} {state}", it.name()))
    });
    waiting.collect()
}

impl Known {
    fn name(&self) -> String {
        format!("{} at {}", plain(&self.id), self.record.endpoint)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn nobody_waits_for_an_id_under_which_a_server_was_known_before() {
        let known = |id: &str, endpoint: &str, ready: Option<bool>| Known {
            id: id.to_owned(),
            record: from_value(json!({"endpoint": endpoint, "resources": {}})).unwrap(),
            live: ready.map(|ready| {
                let live = json!({"endpoint": endpoint, "initialized": true, "ready": ready});
                from_value(live).unwrap()
            }),
        };
        let (a, b) = ("10.0.0.11:6443", "10.0.0.12:6443");
        let mut others = vec![known("old", a, None), known("new", a, Some(true))];
        assert_eq!(waiting_for(&others), [""; 0]);
        others[1] = known("new", a, Some(false));
        assert_eq!(waiting_for(&others), [format!("new at {a} is not ready")]);
        others[1] = known("other", b, Some(true));
        let waiting = waiting_for(&others).join("");
        assert!(
            waiting.starts_with(&format!("old at {a} is absent")),
            "{waiting}"
        );
    }
}
