//! Finds out whether a server stores a watched resource in this etcd, and the resource's kind: asks the server for the
//! metadata of one object ([`super::sample`]), and etcd for that object. The server is the local apiserver, or a peer, which
//! is asked for what its own apiserver says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use etcd_client::{GetOptions, GetResponse};
use http::header::{ACCEPT, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use tokio::time::Instant;

use super::sample::{self, ACCEPT_METADATA, Anchor, KeyCount, ListedIn, Sample};
use crate::client::{ClientError, ClientMaker, MakerError};
use crate::cluster::connector::within;
use crate::config::Config;
use crate::discovery::clients;
use crate::kube::gvr::Gvr;
use crate::kube::media_type;
use crate::log_throttle::chain;

/// Longest wait for the answer of a server.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Asks a server.
pub trait AskServer: Send + Sync + 'static {
    /// The body of a 200; `None`: the server refuses.
    fn get(
        &self,
        server: SocketAddr,
        path: &str,
        accept: &'static str,
    ) -> impl Future<Output = Result<Option<Bytes>, NoAnswer>> + Send;
}

/// Why there is no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoAnswer {
    /// etcd does not answer.
    Etcd,
    /// The server may answer later, or too much happened meanwhile. It may have lost its etcd for a moment.
    NotNow,
    /// Nothing listens there any more.
    Gone,
}

/// Asks servers and etcd.
pub struct Prover<S>(pub S);

impl<S: AskServer> Prover<S> {
    /// The kind of the resource, as the server's discovery has it.
    pub(super) async fn kind(
        &self,
        server: SocketAddr,
        resource: &Gvr,
    ) -> Result<Option<String>, NoAnswer> {
        let path = resource.group_version().path();
        let document = self.0.get(server, &path, media_type::JSON).await?;
        Ok(document.and_then(|document| sample::kind(resource, &document)))
    }

    /// Whether the server stores the resource below `root` in this etcd; `None`: it does not tell.
    pub async fn is_stored(
        &self,
        mut etcd: etcd_client::Client,
        server: SocketAddr,
        root: &str,
        resource: &Gvr,
    ) -> Result<Option<bool>, NoAnswer> {
        let before = keys(&mut etcd, root).await?;
        let path = sample::list_path(resource);
        let listed = self.0.get(server, &path, ACCEPT_METADATA).await?;
        let Some(sample) = listed.and_then(|body| Sample::read(&body)) else {
            return Ok(None);
        };
        let after = keys(&mut etcd, root).await?;
        match (sample.compared(before, after), &sample.object) {
            (ListedIn::SameEtcd, Some(object)) => {
                Ok(has(&mut etcd, root, object).await?.then_some(true))
            }
            (ListedIn::SameEtcd, None) => Ok(Some(true)),
            (ListedIn::OtherEtcd, _) => Ok(Some(false)),
            (ListedIn::MovedOn, _) => Err(NoAnswer::NotNow),
        }
    }
}

/// Whether the object has, or had, this revision.
async fn has(
    etcd: &mut etcd_client::Client,
    root: &str,
    Anchor { key, revision }: &Anchor,
) -> Result<bool, NoAnswer> {
    let key = format!("{root}{key}");
    let options = || GetOptions::new().with_keys_only();
    let is_it = |answer: GetResponse| {
        let mut found = answer.kvs().iter();
        found.any(|kv| kv.mod_revision() == *revision)
    };
    let now = within(etcd.get(key.as_str(), Some(options()))).await;
    if is_it(now.map_err(|_| NoAnswer::Etcd)?) {
        return Ok(true);
    }
    // The revision may be compacted.
    let then = options().with_revision(*revision);
    let then = within(etcd.get(key.as_str(), Some(then))).await;
    Ok(then.is_ok_and(is_it))
}

/// A linearizable read of the revision and of the number of keys below `root`.
async fn keys(etcd: &mut etcd_client::Client, root: &str) -> Result<KeyCount, NoAnswer> {
    let options = GetOptions::new().with_prefix().with_count_only();
    let answer = within(etcd.get(root, Some(options))).await;
    let answer = answer.map_err(|_| NoAnswer::Etcd)?;
    Ok(KeyCount {
        revision: answer.header().ok_or(NoAnswer::Etcd)?.revision(),
        keys: answer.count(),
    })
}

/// Asks the local apiserver and its peers.
pub struct ApiServers {
    local: SocketAddr,
    local_maker: Arc<ClientMaker>,
    peers: Arc<ClientMaker>,
}

impl ApiServers {
    /// `local_maker`: makes clients of the local apiserver.
    pub fn new(config: &Config, local_maker: Arc<ClientMaker>) -> Result<Self, MakerError> {
        // A peer's proxy asks its own apiserver.
        let peers = clients::of_proxies(config, &local_maker.credentials, TIMEOUT)?;
        Ok(Self {
            local: config.api_server.address,
            local_maker,
            peers: Arc::new(peers),
        })
    }
}

impl AskServer for ApiServers {
    async fn get(
        &self,
        server: SocketAddr,
        path: &str,
        accept: &'static str,
    ) -> Result<Option<Bytes>, NoAnswer> {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
        let maker = match server == self.local {
            true => &self.local_maker,
            false => &self.peers,
        };
        let mut client = maker.client(server);
        let deadline = Instant::now() + TIMEOUT;
        let asking = client.call(Method::GET, path, headers, None, deadline);
        let answer = asking.await.map_err(|error| {
            let causes = chain(&error);
            tracing::debug!(%server, path, error = causes, "no metadata for last bookmarks");
            match error {
                ClientError::Refused => NoAnswer::Gone,
                _ => NoAnswer::NotNow,
            }
        })?;
        if answer.status == StatusCode::OK {
            return Ok(Some(answer.body));
        }
        tracing::debug!(%server, path, status = %answer.status, "no metadata for last bookmarks");
        match answer.status.is_server_error() || answer.status == StatusCode::TOO_MANY_REQUESTS {
            true => Err(NoAnswer::NotNow),
            false => Ok(None),
        }
    }
}
