//! Observes peers, as this proxy would speak to them; GETs only.
//!
//! Whether a peer believes this proxy shows as it does with the apiserver beside us: an invented user, named in a request
//! that is marked as sent on by a peer, is forbidden by name to read what nobody may read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use tokio::time::timeout;

use super::{Belief, Peer, Seen};
use crate::client::{self, ClientMaker};
use crate::config::RequestHeaders;
use crate::doctor::ask;
use crate::doctor::trouble::Trouble;
use crate::local::requestheader::check::PATH;
use crate::local::requestheader::findings::{Finding, Recognised, recognised};
use crate::request::headers::{NOT_EXECUTED, PEER_PROXIED, REROUTED};

/// For one look at one peer: whether it answers, and how.
const PATIENCE: Duration = Duration::from_secs(10);
const ANONYMOUS: &str = "system:anonymous";

/// Looks at a peer.
pub async fn look(
    maker: Arc<ClientMaker>,
    names: RequestHeaders,
    peer: Peer,
) -> (Peer, Result<Seen, Trouble>) {
    let seen = timeout(PATIENCE, seen(&maker, &names, peer.address)).await;
    (peer, seen.unwrap_or(Err(Trouble::Silent)))
}

async fn seen(
    maker: &Arc<ClientMaker>,
    names: &RequestHeaders,
    address: SocketAddr,
) -> Result<Seen, Trouble> {
    let ready = ask::readyz(&mut maker.client(address)).await?;
    let (proxy, belief) =
        tokio::join!(ask::is_proxy(maker, address), belief(maker, names, address));
    Ok(Seen {
        proxy,
        ready,
        belief,
    })
}

async fn belief(maker: &Arc<ClientMaker>, names: &RequestHeaders, address: SocketAddr) -> Belief {
    let invented = format!("kube-interop-proxy-invented-{:016x}", rand::random::<u64>());
    let mut headers = match client::identity(names, &invented, &[]) {
        Ok(headers) => headers,
        Err(error) => return Belief::Unclear(error.to_string()),
    };
    mark(&mut headers);
    let answer = match ask::get(&mut maker.client(address), PATH, &headers).await {
        Ok(answer) => answer,
        Err(trouble) => return Belief::Unclear(trouble.what(&super::KEYS)),
    };
    // Only to peers it says this.
    if answer.headers.contains_key(NOT_EXECUTED) {
        return Belief::Given;
    }
    match recognised(names, &invented, answer.status, &answer.body) {
        Recognised::Yes => Belief::Given,
        Recognised::No(Finding::NotBelieved(_)) => Belief::Refused,
        // Whom a proxy or an apiserver does not take for a peer is refused, with our certificate, and never anonymous.
        Recognised::No(Finding::TakenFor { header, user }) if user == ANONYMOUS => {
            Belief::OtherHeaders(header)
        }
        Recognised::No(Finding::TakenFor { user, .. }) => Belief::TakenFor(user),
        Recognised::No(_) => Belief::Unclear(format!("it answers {}", answer.status)),
        Recognised::Unnamed => Belief::Unclear("everybody may read everything there".to_owned()),
    }
}

/// As requests are marked that a peer sent on.
fn mark(headers: &mut HeaderMap) {
    for name in [REROUTED, PEER_PROXIED] {
        headers.insert(name, HeaderValue::from_static("true"));
    }
}
