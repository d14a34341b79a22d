//! Questions that are put to several kinds of servers: proxies, kube-apiservers, whatever listens.
//!
//! All of them are GETs. A proxy is recognised by what it says itself to a path that Go's HTTP server refuses without a
//! word about why: no configuration, no version and no state of its apiserver changes that, and no apiserver says it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;

use super::clock::{self, Skew};
use super::trouble::Trouble;
use crate::client::{Answer, Client, ClientMaker};
use crate::config::Config;
use crate::relay::answer::Refusal;
use crate::tls::credentials::{Credentials, Current, Trust};
use crate::tls::reading::Reading;
use crate::tls::store::TlsError;

/// For one look.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// A path that is exempt from everything but its form.
const MALFORMED: &str = "/livez/%zz";

/// What `/readyz` said.
#[derive(Debug, Clone)]
pub struct Ready {
    /// Its status.
    pub status: StatusCode,
    /// What is missing, in the server's words.
    pub missing: Vec<String>,
    /// What its clock says.
    pub skew: Option<Skew>,
    /// Until it was answered, connecting included.
    pub took: Duration,
}

/// Connections are made with the certificates of this moment: to servers of `ca_file`, whatever becomes of the others.
pub fn trusting(
    config: &Config,
    ca_file: &std::path::Path,
    reading: &Reading<'_>,
) -> Result<Current, TlsError> {
    let trust = Arc::new(Trust::read(
        ca_file,
        &config.api_server.proxy_client,
        reading,
    )?);
    Ok(Arc::new(ArcSwap::from_pointee(Credentials {
        local: trust.clone(),
        peers: trust,
    })))
}

/// Asks for `/readyz`.
pub async fn readyz(client: &mut Client) -> Result<Ready, Trouble> {
    let (asked, started) = (SystemTime::now(), Instant::now());
    let answer = get(client, "/readyz", &HeaderMap::new()).await?;
    let took = started.elapsed();
    Ok(Ready {
        status: answer.status,
        missing: missing(&answer.body),
        skew: clock::skew(&answer.headers, asked, took),
        took,
    })
}

/// GET, tried once.
pub async fn get(client: &mut Client, path: &str, headers: &HeaderMap) -> Result<Answer, Trouble> {
    let headers: Vec<(HeaderName, HeaderValue)> = headers
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let answer = client.get(path, &headers).await;
    answer.map_err(|error| Trouble::of_client(&error))
}

/// Whether what listens at `address` is a proxy like this one.
pub async fn is_proxy(maker: &Arc<ClientMaker>, address: SocketAddr) -> Result<bool, Trouble> {
    // A connection of its own: Go closes it after such a request.
    let answer = get(&mut maker.client(address), MALFORMED, &HeaderMap::new()).await?;
    Ok(says_it(&answer))
}

#[derive(Deserialize)]
struct Status {
    kind: String,
    message: String,
}

fn says_it(answer: &Answer) -> bool {
    let refusal = Refusal::BadTarget;
    let status: Option<Status> = serde_json::from_slice(&answer.body).ok();
    answer.status.as_u16() == refusal.code()
        && status
            .is_some_and(|status| status.kind == "Status" && status.message == refusal.message())
}

/// The names of failed checks, in kube-apiserver's form: `[-]etcd failed: reason withheld`.
fn missing(body: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(body);
    let failed = text
        .lines()
        .filter_map(|line| line.strip_prefix("[-]")?.split(' ').next());
    failed.map(str::to_owned).take(8).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::relay::accept::Form;

    fn answer(status: u16, body: impl Into<Bytes>) -> Answer {
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.into(),
        }
    }

    #[test]
    fn a_proxy_is_known_by_its_own_words() {
        let refused = |refusal: Refusal| refusal.response(1, None, Form::Json, false).unwrap().1;
        assert!(says_it(&answer(400, refused(Refusal::BadTarget))));
        assert!(!says_it(&answer(400, refused(Refusal::BadVersion))));
        // Go's.
        assert!(!says_it(&answer(400, "400 Bad Request")));
        assert!(!says_it(&answer(200, refused(Refusal::BadTarget))));
    }

    #[test]
    fn failed_checks_are_named() {
        let text = "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n";
        assert_eq!(missing(text.as_bytes()), ["etcd"]);
    }
}
