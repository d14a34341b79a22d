//! What etcd knows of other servers, and the lock that lets one node change at a time.

use std::collections::{HashMap, HashSet};
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
use crate::publish::identity::host_name;

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

/// A server as it is known, by its ID: records outlive servers.
type Known = (String, Record, Option<LiveKey>);

impl Servers {
    /// `config`: with paths of files that can be read here.
    pub(super) fn new(config: &Config) -> Result<Self, String> {
        let etcd = EtcdAccess::new(config)?;
        let own = config.peer.advertise_address;
        let servers = etcd.keys.of(Topic::Servers);
        Ok(Self {
            lock: servers.trim_end_matches("servers/").to_owned() + "installing",
            owner: format!("{} ({own})", host_name()),
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
        let known = decoded(&records, json::read).map(|(id, record)| {
            let live = lives.remove(&id);
            (id, record, live)
        });
        Ok(known.partition(|(_, record, _): &Known| record.endpoint == self.own))
    }

    /// Other servers that do not serve now, and are to be waited for.
    pub(super) async fn not_ready(&self) -> Result<Vec<String>, String> {
        let (own, others) = self.known().await?;
        Ok(waiting_for(&own, &others))
    }

    /// Whether others, who read the same, see that this server serves.
    pub(super) async fn is_seen(&self) -> Result<bool, String> {
        let (own, _) = self.known().await?;
        let mut lives = own.iter().filter_map(|(_, _, live)| live.as_ref());
        Ok(lives.any(|live| live.initialized && live.ready))
    }

    /// What other servers serve and this one does not, which its clients would not reach without the proxy.
    pub(super) async fn only_others_serve(&self) -> Result<Vec<String>, String> {
        let (own, others) = self.known().await?;
        let own = own.iter().map(|(_, record, _)| record);
        let alive = others.iter().filter(|(_, _, live)| live.is_some());
        let lines = alive.filter_map(|(id, record, _)| {
            let only = only_in(record, own.clone());
            let (name, names) = (name(id, record), plain_list(only.iter().map(|it| &it.0)));
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

    /// The IDs under which this server has left a record, once its proxy says no more that it lives.
    pub(super) async fn own_ids(&self) -> Result<Vec<String>, String> {
        let (own, _) = self.known().await?;
        match own.iter().any(|(_, _, live)| live.is_some()) {
            // That of a proxy that was killed ends by itself.
            true => Err("the proxy's key in etcd has not ended yet".to_owned()),
            false => Ok(own.into_iter().map(|(id, ..)| id).collect()),
        }
    }

    /// Deletes records of this server, which would outlive it.
    pub(super) async fn forget(&self, ids: &[String]) -> Result<(), String> {
        for id in ids {
            let key = self.etcd.keys.of(Topic::Servers) + id;
            let delete =
                async |mut client: Client| client.delete(key.as_str(), None).await.map_err(failed);
            self.etcd.ask(delete).await?;
        }
        Ok(())
    }
}

/// A server that is back under another ID has left a record, which ends by itself. One that is not ready waits for nobody: a
/// change takes nothing away.
fn waiting_for(own: &[Known], others: &[Known]) -> Vec<String> {
    let ready = own
        .iter()
        .filter_map(|(_, _, live)| Some(live.as_ref()?.ready));
    let ready: Vec<_> = ready.collect();
    if !ready.is_empty() && !ready.contains(&true) {
        return Vec::new();
    }
    let alive = others.iter().filter(|(_, _, live)| live.is_some());
    let alive: HashSet<_> = alive.map(|(_, record, _)| record.endpoint).collect();
    let waiting = others.iter().filter_map(|(id, record, live)| {
        let state = match live {
            Some(live) if live.ready => return None,
            Some(_) => "is not ready",
            None if alive.contains(&record.endpoint) => return None,
            None => "is absent (if it will not come back: kube-interop-proxy forget)",
        };
        Some(format!("{} {state}", name(id, record)))
    });
    waiting.collect()
}

fn name(id: &str, record: &Record) -> String {
    format!("{} at {}", plain(id), record.endpoint)
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn nobody_waits_for_an_id_under_which_a_server_was_known_before() {
        let known = |id: &str, endpoint: &str, ready: Option<bool>| -> Known {
            let record = from_value(json!({"endpoint": endpoint, "resources": {}})).unwrap();
            let live = ready.map(|ready| {
                let live = json!({"endpoint": endpoint, "initialized": true, "ready": ready});
                from_value(live).unwrap()
            });
            (id.to_owned(), record, live)
        };
        let (a, b) = ("10.0.0.11:6443", "10.0.0.12:6443");
        let mut others = vec![known("old", a, None), known("new", a, Some(true))];
        assert_eq!(waiting_for(&[], &others), [""; 0]);
        others[1] = known("new", a, Some(false));
        let expected = [format!("new at {a} is not ready")];
        for own in [None, Some(true)] {
            assert_eq!(waiting_for(&[known("own", b, own)], &others), expected);
        }
        // Two that are not ready do not wait for each other.
        assert_eq!(
            waiting_for(&[known("own", b, Some(false))], &others),
            [""; 0]
        );
        others[1] = known("other", b, Some(true));
        let waiting = waiting_for(&[], &others).join("");
        assert!(
            waiting.starts_with(&format!("old at {a} is absent")),
            "{waiting}"
        );
    }
}
