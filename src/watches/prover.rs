//! Finds out whether a server stores a watched resource in this etcd, and the resource's kind: asks the server for the
//! metadata of one object ([`super::sample`]), and etcd for that object.

use std::net::SocketAddr;

use bytes::Bytes;
use etcd_client::{GetOptions, GetResponse};

use super::apiservers::{AskServer, NoAnswer};
use super::sample::{ACCEPT_METADATA, Anchor, KeyCount, ListedIn, Sample, WatchedResource};
use crate::cluster::connector::within;
use crate::cluster::etcd::range_end;
use crate::kube::media_type;

/// Asks servers and etcd.
pub struct Prover<S>(pub S);

/// Who did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Undecided {
    Etcd,
    /// It may answer later, or too much happened meanwhile.
    Server,
    /// It does not exist any more.
    ServerGone,
}

impl<S: AskServer> Prover<S> {
    /// The kind of the resource, as the server's discovery has it.
    pub(super) async fn kind(
        &self,
        server: SocketAddr,
        resource: &WatchedResource,
    ) -> Result<Option<String>, Undecided> {
        let path = resource.document_path();
        let document = self.get(server, &path, media_type::JSON).await?;
        Ok(document.and_then(|document| resource.kind(&document)))
    }

    /// Whether the server stores the resource below `root` in this etcd; `None`: it does not tell.
    pub async fn is_stored(
        &self,
        client: etcd_client::Client,
        server: SocketAddr,
        root: &str,
        resource: &WatchedResource,
    ) -> Result<Option<bool>, Undecided> {
        let mut etcd = Etcd { client, root };
        let before = etcd.keys().await?;
        let path = resource.list_path();
        let listed = self.get(server, &path, ACCEPT_METADATA).await?;
        let Some(sample) = listed.and_then(|body| Sample::read(&body)) else {
            return Ok(None);
        };
        match (sample.compared(before, etcd.keys().await?), &sample.object) {
            (ListedIn::SameEtcd, Some(object)) => Ok(etcd.has(object).await?.then_some(true)),
            (ListedIn::SameEtcd, None) => Ok(Some(true)),
            (ListedIn::OtherEtcd, _) => Ok(Some(false)),
            (ListedIn::MovedOn, _) => Err(Undecided::Server),
        }
    }

    /// The body of a 200; `None`: it refuses.
    async fn get(
        &self,
        server: SocketAddr,
        path: &str,
        accept: &'static str,
    ) -> Result<Option<Bytes>, Undecided> {
        match self.0.get(server, path, accept).await {
            Ok(body) => Ok(Some(body)),
            Err(NoAnswer::Refused) => Ok(None),
            Err(NoAnswer::NotNow) => Err(Undecided::Server),
            Err(NoAnswer::Gone) => Err(Undecided::ServerGone),
        }
    }
}

/// etcd, for one resource.
struct Etcd<'a> {
    client: etcd_client::Client,
    root: &'a str,
}

impl Etcd<'_> {
    /// Whether the object has, or had, this revision.
    async fn has(&mut self, Anchor { key, revision }: &Anchor) -> Result<bool, Undecided> {
        let key = format!("{}{key}", self.root);
        let options = || GetOptions::new().with_keys_only();
        let is_it = |answer: GetResponse| {
            let mut found = answer.kvs().iter();
            found.any(|kv| kv.mod_revision() == *revision)
        };
        let now = within(self.client.get(key.as_str(), Some(options()))).await;
        if is_it(now.map_err(|_| Undecided::Etcd)?) {
            return Ok(true);
        }
        // The revision may be compacted.
        let then = options().with_revision(*revision);
        let then = within(self.client.get(key.as_str(), Some(then))).await;
        Ok(then.is_ok_and(is_it))
    }

    /// A linearizable read of the revision and of the number of keys.
    async fn keys(&mut self) -> Result<KeyCount, Undecided> {
        let options = GetOptions::new()
            .with_range(range_end(self.root))
            .with_count_only();
        let answer = within(self.client.get(self.root, Some(options))).await;
        let answer = answer.map_err(|_| Undecided::Etcd)?;
        Ok(KeyCount {
            revision: answer.header().ok_or(Undecided::Etcd)?.revision(),
            keys: answer.count(),
        })
    }
}
