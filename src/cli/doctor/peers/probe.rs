//! Observes peers with the requests that a proxy sends; GETs only.
//!
//! To find out whether a peer trusts this proxy, the probe asserts an invented user in a request that is marked as
//! rerouted: a peer that trusts the proxy names that user in its 403.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::time::timeout;

use super::{PeerObservations, PeerServer, PeerTrust};
use crate::cli::doctor::connection_failure::ConnectionFailure;
use crate::cli::doctor::http_probe;
use crate::client::{self, ClientMaker};
use crate::config::RequestHeaders;
use crate::local::requestheader::check::PATH;
use crate::local::requestheader::findings::{TrustProblem, UserRecognition, recognised};
use crate::request::headers::{NOT_EXECUTED, PEER_PROXIED, REROUTED};

/// Time limit for one peer.
const PATIENCE: Duration = Duration::from_secs(10);
const ANONYMOUS: &str = "system:anonymous";

pub async fn probe(
    maker: Arc<ClientMaker>,
    names: RequestHeaders,
    peer: PeerServer,
) -> (PeerServer, Result<PeerObservations, ConnectionFailure>) {
    let observed = timeout(PATIENCE, observe(&maker, &names, peer.address)).await;
    (peer, observed.unwrap_or(Err(ConnectionFailure::TimedOut)))
}

async fn observe(
    maker: &Arc<ClientMaker>,
    names: &RequestHeaders,
    address: SocketAddr,
) -> Result<PeerObservations, ConnectionFailure> {
    let ready = http_probe::readyz(&mut maker.client(address)).await?;
    let (proxy, trust) = tokio::join!(
        http_probe::is_proxy(maker, address),
        trust(maker, names, address)
    );
    Ok(PeerObservations {
        proxy,
        ready,
        trust,
    })
}

async fn trust(maker: &Arc<ClientMaker>, names: &RequestHeaders, address: SocketAddr) -> PeerTrust {
    let invented = format!("kube-interop-proxy-invented-{:016x}", rand::random::<u64>());
    let mut headers = match client::identity(names, &invented, &[]) {
        Ok(headers) => headers,
        Err(error) => return PeerTrust::Unknown(error.to_string()),
    };
    mark_rerouted(&mut headers);
    let answer = match http_probe::get(&mut maker.client(address), PATH, &headers).await {
        Ok(answer) => answer,
        Err(failure) => return PeerTrust::Unknown(failure.description(&super::KEYS)),
    };
    // A proxy sends this header to trusted peers only.
    if answer.headers.contains_key(NOT_EXECUTED) {
        return PeerTrust::Trusted;
    }
    match recognised(names, &invented, answer.status, &answer.body) {
        UserRecognition::Yes => PeerTrust::Trusted,
        UserRecognition::No(TrustProblem::NotBelieved(_)) => PeerTrust::Rejected,
        // A server that does not take the certificate for a peer's answers 401, and never as anonymous.
        UserRecognition::No(TrustProblem::TakenFor { header, user }) if user == ANONYMOUS => {
            PeerTrust::OtherHeaders(header)
        }
        UserRecognition::No(TrustProblem::TakenFor { user, .. }) => PeerTrust::TakenFor(user),
        UserRecognition::No(_) => PeerTrust::Unknown(format!("it answers {}", answer.status)),
        UserRecognition::Unnamed => {
            PeerTrust::Unknown("everybody may read everything there".to_owned())
        }
    }
}

/// Adds the headers of rerouted requests.
fn mark_rerouted(headers: &mut HeaderMap) {
    for name in [REROUTED, PEER_PROXIED] {
        headers.insert(name, HeaderValue::from_static("true"));
    }
}
