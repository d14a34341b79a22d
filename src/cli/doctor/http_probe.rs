//! Requests to proxies, kube-apiservers and unknown servers; GETs only.
//!
//! A proxy is recognised by its response to a malformed path, which differs from that of Go's HTTP server and depends
//! neither on its configuration nor on its apiserver.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http::StatusCode;
use serde_json::Value;

use super::clock::{self, Skew};
use super::connection_failure::ConnectionFailure;
use crate::client::{Client, ClientMaker, ClientResponse};
use crate::relay::answer::Refusal;

/// Time limit for one request.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// No check of the proxy but that of the path's form applies to it.
const MALFORMED_PATH: &str = "/livez/%zz";

/// Response of `/readyz`.
#[derive(Debug, Clone)]
pub struct Readiness {
    pub status: StatusCode,
    /// Names of failed checks.
    pub missing: Vec<String>,
    pub skew: Option<Skew>,
    /// Time until the response, connecting included.
    pub elapsed: Duration,
}

/// What answers at an address.
#[derive(Debug)]
pub struct Observations<T> {
    /// Whether a proxy listens there.
    pub proxy: Result<bool, ConnectionFailure>,
    pub ready: Readiness,
    /// What it was asked besides.
    pub asked: T,
}

/// Looks at `address`, and asks more if anybody answers there.
pub async fn observe<T>(
    maker: &Arc<ClientMaker>,
    address: SocketAddr,
    asking: impl Future<Output = T>,
) -> Result<Observations<T>, ConnectionFailure> {
    let (sent, started) = (SystemTime::now(), Instant::now());
    let answer = maker.client(address).get("/readyz", &[]).await?;
    let elapsed = started.elapsed();
    let ready = Readiness {
        status: answer.status,
        missing: missing(&answer.body),
        skew: clock::skew(&answer.headers, sent, elapsed),
        elapsed,
    };
    let (proxy, asked) = tokio::join!(is_proxy(maker, address), asking);
    Ok(Observations {
        proxy,
        ready,
        asked,
    })
}

/// The body of a 200.
pub async fn body(client: &mut Client, path: &str) -> Option<Bytes> {
    let answer = client.get(path, &[]).await.ok()?;
    (answer.status == StatusCode::OK).then_some(answer.body)
}

/// Whether a kube-interop-proxy listens at `address`.
pub async fn is_proxy(
    maker: &Arc<ClientMaker>,
    address: SocketAddr,
) -> Result<bool, ConnectionFailure> {
    // On a new connection: Go closes it after such a request.
    let answer = maker.client(address).get(MALFORMED_PATH, &[]).await?;
    Ok(is_from_proxy(&answer))
}

fn is_from_proxy(answer: &ClientResponse) -> bool {
    let refusal = Refusal::BadTarget;
    let status: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    answer.status.as_u16() == refusal.code()
        && status["kind"] == "Status"
        && status["message"] == refusal.message()
}

/// Names of failed checks, from lines such as `[-]etcd failed: reason withheld`.
fn missing(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(body);
    let failed = text
        .lines()
        .filter_map(|line| line.strip_prefix("[-]")?.split(' ').next());
    failed.map(str::to_owned).take(8).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::relay::answer::StatusFormat;

    fn answer(status: u16, body: impl Into<Bytes>) -> ClientResponse {
        ClientResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.into(),
        }
    }

    #[test]
    fn a_proxy_is_known_by_its_own_words() {
        let refused = |refusal: Refusal| {
            refusal
                .response(1, None, StatusFormat::Json, false)
                .unwrap()
                .1
        };
        assert!(is_from_proxy(&answer(400, refused(Refusal::BadTarget))));
        assert!(!is_from_proxy(&answer(400, refused(Refusal::BadVersion))));
        // Go's.
        assert!(!is_from_proxy(&answer(400, "400 Bad Request")));
        assert!(!is_from_proxy(&answer(200, refused(Refusal::BadTarget))));
    }

    #[test]
    fn failed_checks_are_named() {
        let text = "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n";
        assert_eq!(missing(text.as_bytes()), ["etcd"]);
    }
}
