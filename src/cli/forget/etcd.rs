//! What etcd knows of a server that is to be forgotten, and the deletion of its record.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use etcd_client::{Client, Compare, CompareOp, Txn, TxnOp};

use crate::cli::etcd::EtcdAccess;
use crate::cli::text::plain;
use crate::cluster::codec;
use crate::cluster::connector::failed;
use crate::cluster::json;
use crate::cluster::keys::Topic;
use crate::cluster::record::{LiveKey, Record};
use crate::cluster::source::EtcdItem;

/// What etcd knows of servers.
pub(super) struct KnownServers {
    /// Of the server that is asked for.
    pub(super) record: Option<EtcdItem>,
    /// Why it is not absent. The keys of a dead server expire after `peer.leaseTTL`.
    pub(super) alive: Option<String>,
    /// Records of other servers that can be read.
    pub(super) others: Vec<Record>,
    /// All servers, and whether they live.
    pub(super) ids: BTreeMap<String, bool>,
}

impl KnownServers {
    pub(super) async fn read(etcd: &EtcdAccess, id: &str) -> Result<Self, String> {
        // What announces life is read last: who comes back meanwhile is seen.
        use Topic::{Claims, Live, PeerEndpoints, Servers};
        let topics = [Servers, Claims, Live, PeerEndpoints];
        let [records, claims, lives, entries] = etcd.list(topics).await?;
        let of = |items: &[EtcdItem]| items.iter().find(|item| item.key == id).cloned();
        let others = records.iter().filter(|other| other.key != id);
        let others = others.filter_map(|other| json::read(&other.value).ok());
        let absent = records.iter().map(|item| (item.key.clone(), false));
        let alive = lives.iter().chain(&entries);
        let alive = alive.map(|item| (item.key.clone(), true));
        Ok(Self {
            record: of(&records),
            alive: sign_of_life(id, of(&lives), of(&entries), &claims),
            others: others.collect(),
            ids: absent.chain(alive).collect(),
        })
    }
}

/// Deletes the record if nothing has changed since its `revision`. Otherwise returns what is known now.
pub(super) async fn drop(
    etcd: &EtcdAccess,
    id: &str,
    revision: i64,
) -> Result<Option<KnownServers>, String> {
    let absent = |key: String| Compare::version(key, CompareOp::Equal, 0);
    let key = |topic: Topic| etcd.keys.of(topic) + id;
    let txn = Txn::new()
        .when([
            Compare::mod_revision(key(Topic::Servers), CompareOp::Equal, revision),
            absent(key(Topic::Live)),
            absent(key(Topic::PeerEndpoints)),
            absent(etcd.keys.claims(id)).with_prefix(),
        ])
        .and_then([TxnOp::delete(key(Topic::Servers), None)]);
    let request = async |mut client: Client| client.txn(txn.clone()).await.map_err(failed);
    if etcd.ask(request).await?.succeeded() {
        return Ok(None);
    }
    let known = KnownServers::read(etcd, id).await?;
    // An earlier attempt whose response was lost may have deleted it.
    let is_gone = known.record.is_none() && known.alive.is_none();
    Ok((!is_gone).then_some(known))
}

/// `live`: exists while its proxy lives; `entry`: below `peerserverleases` while its apiserver lives, written by a proxy
/// too; `claims`: of proxies that may not use their ID.
fn sign_of_life(
    id: &str,
    live: Option<EtcdItem>,
    entry: Option<EtcdItem>,
    claims: &[EtcdItem],
) -> Option<String> {
    let shown = |address: Option<SocketAddr>| {
        address.map_or_else(|| "an unknown address".to_owned(), |at| at.to_string())
    };
    if let Some(live) = live {
        let at = json::read::<LiveKey>(&live.value).map(|key| key.endpoint);
        return Some(format!("its proxy at {} has a live key", shown(at.ok())));
    }
    if let Some(entry) = entry {
        let at = codec::endpoints(&entry.value).map(|value| value.address);
        let at = shown(at.ok());
        return Some(format!(
            "the apiserver at {at} has an entry below peerserverleases"
        ));
    }
    let mut claims = claims.iter().filter_map(|claim| claim.key.split_once('/'));
    let (_, at) = claims.find(|(claimed, _)| *claimed == id)?;
    Some(format!("a proxy at {} claims this ID", plain(at)))
}

#[cfg(test)]
mod tests;
