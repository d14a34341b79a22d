//! Finds out whether a server stores a watched resource in this etcd, and the resource's kind. Asks etcd for objects that
//! the server delivered. If there are none, asks the server for the metadata of one object, once ([`super::sample`]).

use std::net::SocketAddr;

use bytes::Bytes;
use etcd_client::{GetOptions, GetResponse};
use tokio::sync::Semaphore;

use super::apiservers::{AskServer, NoAnswer};
use super::follower::Anchor;
use super::sample::{ACCEPT_METADATA, KeyCount, ListedIn, Sample};
use super::shared_change_log::ProofJob;
use crate::cluster::connector::within;
use crate::cluster::etcd::range_end;
use crate::kube::media_type;

/// Requests to servers at the same time.
const AT_ONCE: usize = 4;
/// A list that came while etcd moved on is repeated once.
const LISTS: usize = 2;

/// Asks servers and etcd.
pub struct Prover<S> {
    servers: S,
    asking: Semaphore,
}

impl<S: AskServer> Prover<S> {
    pub fn new(servers: S) -> Self {
        Self {
            servers,
            asking: Semaphore::new(AT_ONCE),
        }
    }

    /// Whether a server stores the resource in this etcd.
    pub(super) async fn proof(
        &self,
        client: etcd_client::Client,
        root: &str,
        job: &ProofJob,
    ) -> Result<bool, Undecided> {
        let candidates = job.candidates.as_deref().unwrap_or_default();
        self.is_found(Etcd { client, root }, job, candidates).await
    }

    /// The kind of the resource, as a server's discovery has it; `None`: the server does not tell.
    pub(super) async fn kind(&self, job: &ProofJob) -> Result<Option<String>, Undecided> {
        let path = job.resource.document_path();
        let document = self.get(job.server, &path, media_type::JSON).await?;
        Ok(document.and_then(|document| job.resource.kind(&document)))
    }

    async fn is_found(
        &self,
        mut etcd: Etcd<'_>,
        job: &ProofJob,
        candidates: &[Anchor],
    ) -> Result<bool, Undecided> {
        for candidate in candidates {
            if etcd.has(candidate).await? {
                return Ok(true);
            }
        }
        let path = job.resource.list_path();
        for _ in 0..LISTS {
            let before = etcd.keys().await?;
            let listed = self.get(job.server, &path, ACCEPT_METADATA).await?;
            let Some(sample) = listed.and_then(|body| Sample::read(&body)) else {
                return Ok(false);
            };
            match (sample.compared(before, etcd.keys().await?), &sample.object) {
                (ListedIn::SameEtcd, Some(object)) => return etcd.has(object).await,
                (ListedIn::SameEtcd, None) => return Ok(true),
                (ListedIn::OtherEtcd, _) => return Ok(false),
                (ListedIn::MovedOn, _) => {}
            }
        }
        Ok(false)
    }

    /// The body of a 200; `None`: there will be none.
    async fn get(
        &self,
        server: SocketAddr,
        path: &str,
        accept: &'static str,
    ) -> Result<Option<Bytes>, Undecided> {
        let permit = self.asking.acquire().await;
        let answer = self.servers.get(server, path, accept).await;
        drop(permit);
        match answer {
            Ok(body) => Ok(Some(body)),
            Err(NoAnswer::Final) => Ok(None),
            Err(NoAnswer::NotNow) => Err(Undecided),
        }
    }
}

/// etcd or a server did not answer. It may be asked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Undecided;

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
        if is_it(now.map_err(|_| Undecided)?) {
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
        let answer = answer.map_err(|_| Undecided)?;
        Ok(KeyCount {
            revision: answer.header().ok_or(Undecided)?.revision(),
            keys: answer.count(),
        })
    }
}
