//! Finds out whether a server stores a watched resource in this etcd, and the resource's kind. Asks etcd for objects that
//! the server delivered. If there are none, asks the server for the metadata of one object, once ([`super::sample`]).

use std::net::SocketAddr;

use bytes::Bytes;
use etcd_client::{GetOptions, GetResponse};
use tokio::sync::Semaphore;

use super::apiservers::AskServer;
use super::follower::Anchor;
use super::sample::{ACCEPT_METADATA, EmptyList, KeyCount, Sample};
use super::shared_change_log::{ProofJob, SharedChangeLog};
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

    /// Does a job. `etcd`: `None` if it cannot be reached.
    pub(super) async fn run(
        &self,
        etcd: Option<etcd_client::Client>,
        log: &SharedChangeLog,
        job: ProofJob,
    ) {
        if let Some(candidates) = &job.candidates {
            let found = match etcd {
                Some(etcd) => self.is_found(etcd, log, &job, candidates).await,
                None => false,
            };
            log.proved(job.server, found);
        }
        if job.kind_wanted {
            let path = job.resource.document_path();
            let document = self.get(job.server, &path, media_type::JSON).await;
            log.named(document.and_then(|document| job.resource.kind(&document)));
        }
    }

    async fn is_found(
        &self,
        etcd: etcd_client::Client,
        log: &SharedChangeLog,
        job: &ProofJob,
        candidates: &[Anchor],
    ) -> bool {
        let mut etcd = Etcd {
            client: etcd,
            root: &log.root,
        };
        for candidate in candidates {
            if etcd.has(candidate).await {
                return true;
            }
        }
        let path = job.resource.list_path();
        for _ in 0..LISTS {
            let Some(before) = etcd.keys().await else {
                return false;
            };
            let listed = self.get(job.server, &path, ACCEPT_METADATA).await;
            let Some(sample) = listed.and_then(|body| Sample::read(&body)) else {
                return false;
            };
            if let Some(object) = &sample.object {
                return etcd.has(object).await;
            }
            let Some(after) = etcd.keys().await else {
                return false;
            };
            match sample.when_empty(before, after) {
                EmptyList::SameEtcd => return true,
                EmptyList::OtherEtcd => return false,
                EmptyList::MovedOn => {}
            }
        }
        false
    }

    /// The body of a 200.
    async fn get(&self, server: SocketAddr, path: &str, accept: &'static str) -> Option<Bytes> {
        let _permit = self.asking.acquire().await.ok()?;
        self.servers.get(server, path, accept).await
    }
}

/// etcd, for one resource.
struct Etcd<'a> {
    client: etcd_client::Client,
    root: &'a str,
}

impl Etcd<'_> {
    /// Whether the object has, or had, this revision. A failed request counts as no.
    async fn has(&mut self, Anchor { key, revision }: &Anchor) -> bool {
        let key = format!("{}{key}", self.root);
        let options = || GetOptions::new().with_keys_only();
        let is_it =
            |answer: GetResponse| answer.kvs().iter().any(|kv| kv.mod_revision() == *revision);
        let now = within(self.client.get(key.as_str(), Some(options()))).await;
        if now.is_ok_and(is_it) {
            return true;
        }
        let then = options().with_revision(*revision);
        let then = within(self.client.get(key.as_str(), Some(then))).await;
        then.is_ok_and(is_it)
    }

    /// A linearizable read of the revision and of the number of keys.
    async fn keys(&mut self) -> Option<KeyCount> {
        let options = GetOptions::new()
            .with_range(range_end(self.root))
            .with_count_only();
        let answer = within(self.client.get(self.root, Some(options)))
            .await
            .ok()?;
        Some(KeyCount {
            revision: answer.header()?.revision(),
            keys: answer.count(),
        })
    }
}
