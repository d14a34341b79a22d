//! Requests to proxies, kube-apiservers and unknown servers, and why one has no answer; GETs only.
//!
//! A proxy is recognised by its response to a malformed path, which differs from that of Go's HTTP server and depends
//! neither on its configuration nor on its apiserver.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::DATE;
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;
use tokio::time::timeout;

use super::finding::Finding;
use super::told;
use crate::cli::etcd::hung_up;
use crate::client::{Client, ClientError, ClientMaker, ClientResponse};
use crate::cluster::source::SourceError;
use crate::config::joined;
use crate::log_throttle::chain;
use crate::relay::answer::Refusal;

/// How rustls tells that the server ended the handshake.
const ALERT: &str = "received fatal alert: ";
/// Time limit for one request.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// No check of the proxy but that of the path's form applies to it.
const MALFORMED_PATH: &str = "/livez/%zz";
/// Seconds of difference from which on a clock is worth a warning.
const NOTICEABLE: f64 = 1.0;
/// Seconds from which on new tokens and certificates of one machine are not valid yet on the other.
const HARMFUL: f64 = 60.0;

/// Makes the clients of one sort of servers.
pub type Maker = Arc<ClientMaker>;

/// Names in messages: configuration keys of a connection, and where the server is configured.
pub struct ConfigKeys {
    /// For example `etcd`.
    pub server: &'static str,
    pub address: &'static str,
    pub authority: &'static str,
    pub name: &'static str,
    pub certificate: &'static str,
    /// Where the server's certificate is configured.
    pub serving: &'static str,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ConnectionFailure {
    Refused,
    TimedOut,
    /// The server answers a TLS handshake with something else.
    NotTls,
    /// The server does not take the client certificate, and says so.
    CertificateRefused(String),
    Other(String),
}

/// Gives up after `limit`.
pub async fn within<T>(
    limit: Duration,
    probe: impl Future<Output = Result<T, ConnectionFailure>>,
) -> Result<T, ConnectionFailure> {
    let probed = timeout(limit, probe).await;
    probed.unwrap_or(Err(ConnectionFailure::TimedOut))
}

impl From<ClientError> for ConnectionFailure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused => Self::Refused,
            ClientError::Timeout(_) => Self::TimedOut,
            error => Self::caused_by(chain(&error)),
        }
    }
}

impl From<SourceError> for ConnectionFailure {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Timeout => Self::TimedOut,
            error => match Self::caused_by(error.said()) {
                Self::Other(why) if hung_up(&error) && !why.contains(ALERT) => {
                    Self::CertificateRefused(why)
                }
                failure => failure,
            },
        }
    }
}

impl ConnectionFailure {
    /// By the texts of rustls and of the system: etcd's client library keeps no more of a cause.
    fn caused_by(why: String) -> Self {
        let alert = why.split_once(ALERT).map_or("", |(_, alert)| alert);
        let mut refusals = ["Certificate", "UnknownCA", "AccessDenied", "DecryptError"].iter();
        let is_refusal = refusals.any(|about| alert.contains(about));
        match &why {
            _ if is_refusal => Self::CertificateRefused(alert.to_owned()),
            why if why.contains("Connection refused") => Self::Refused,
            why if why.contains("timed out") => Self::TimedOut,
            why if why.contains("corrupt message") => Self::NotTls,
            _ => Self::Other(why),
        }
    }

    /// What happened.
    pub fn description(&self, keys: &ConfigKeys) -> String {
        self.finding("", keys).what
    }

    pub fn finding(&self, about: &str, keys: &ConfigKeys) -> Finding {
        const INVALID: &str = "invalid peer certificate: ";
        let (server, address, serving) = (keys.server, keys.address, keys.serving);
        let why = match self {
            Self::Refused => return told::refused(about, server, address),
            Self::TimedOut => return told::timed_out(about, server),
            Self::CertificateRefused(how) => {
                return told::certificate_refused(about, keys.certificate, how, server);
            }
            Self::NotTls => "what listens there speaks no TLS",
            Self::Other(why) => why,
        };
        match why.split_once(INVALID).map(|(_, why)| why) {
            Some("UnknownIssuer" | "BadSignature") => {
                told::unknown_authority(about, keys.authority, serving)
            }
            Some(why) if why.contains("not valid for name") => {
                told::wrong_name(about, why, serving, keys.name)
            }
            Some(why) => told::bad_certificate(about, why, serving),
            None => told::no_use(about, why, address, server),
        }
    }
}

/// What answers at an address.
pub struct Observations<T> {
    pub is_proxy: bool,
    /// Of `/readyz`.
    pub status: StatusCode,
    /// Names of failed checks, with commas.
    pub missing: String,
    /// If its clock is off.
    pub clock: Option<Finding>,
    /// What it was asked besides.
    pub asked: T,
}

/// Looks at `address`, and asks more if anybody answers there.
pub async fn observe<T>(
    about: &str,
    maker: &Maker,
    address: SocketAddr,
    asking: impl Future<Output = T>,
) -> Result<Observations<T>, ConnectionFailure> {
    let sent = SystemTime::now();
    let answer = maker.client(address).get("/readyz").await?;
    let clock = skew(&answer.headers, sent, SystemTime::now());
    let (is_proxy, asked) = tokio::join!(is_proxy(maker, address), asking);
    Ok(Observations {
        is_proxy: is_proxy?,
        status: answer.status,
        missing: missing(&answer.body),
        clock: clock.and_then(|skew| clock_finding(about, skew)),
        asked,
    })
}

/// The body of a 200.
pub async fn body(client: &mut Client, path: &str) -> Option<Bytes> {
    let answer = client.get(path).await.ok()?;
    (answer.status == StatusCode::OK).then_some(answer.body)
}

/// Whether a kube-interop-proxy listens at `address`.
pub async fn is_proxy(maker: &Maker, address: SocketAddr) -> Result<bool, ConnectionFailure> {
    // On a new connection: Go closes it after such a request.
    let answer = maker.client(address).get(MALFORMED_PATH).await?;
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
fn missing(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let failed = text.lines().filter_map(|line| line.strip_prefix("[-]"));
    joined(failed.filter_map(|line| line.split(' ').next()), ", ")
}

/// Minimum number of seconds by which the clock of a server is ahead of this machine's; negative: behind. `None`: it did
/// not tell.
///
/// `Date` has whole seconds, and the response took some time: so the difference is a range. A response through a proxy has
/// that proxy's time, which is its machine's.
fn skew(headers: &HeaderMap, sent: SystemTime, received: SystemTime) -> Option<f64> {
    let text = headers.get(DATE)?.to_str().ok()?;
    let there = OffsetDateTime::parse(text, &Rfc2822).ok()?.unix_timestamp() as f64;
    let since = |here: SystemTime| {
        let here = here.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        Some(there - here.as_secs_f64())
    };
    let (behind, ahead) = (since(sent)? + 1.0, since(received)?);
    Some(if ahead > 0.0 { ahead } else { behind.min(0.0) })
}

fn clock_finding(about: &str, skew: f64) -> Option<Finding> {
    let about = format!("clock of {about}");
    let side = if skew > 0.0 { "ahead of" } else { "behind" };
    let by = format!("{:.0} s {side}", skew.abs());
    match skew.abs() {
        off if off > HARMFUL => Some(told::clock_wrong(about, by)),
        off if off > NOTICEABLE => Some(told::clock_off(about, by)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use rustls::{AlertDescription, CertificateError};

    use super::*;
    use crate::relay::answer::StatusFormat;

    const KEYS: ConfigKeys = ConfigKeys {
        server: "etcd",
        address: "etcd.endpoints",
        authority: "etcd.caFile",
        name: "etcd.endpoints",
        certificate: "etcd.certFile",
        serving: "its serving certificate",
    };

    fn io_of(error: rustls::Error) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }

    #[test]
    fn the_cause_is_found_inside_of_other_errors() {
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let outer = ClientError::Exchange(Box::new(ClientError::Connect(io_of(unknown))));
        assert_eq!(
            ConnectionFailure::from(outer).description(&KEYS),
            "its certificate is signed by no CA of etcd.caFile"
        );
        let of_etcd =
            |said: &str| ConnectionFailure::from(SourceError::Failed(said.to_owned().into()));
        let refused = of_etcd("tcp connect error: Connection refused");
        assert_eq!(refused, ConnectionFailure::Refused);
        for (said, expected) in [
            ("transport error: connection closed", "it rejects"),
            ("received fatal alert: UnknownCA", "it rejects"),
            ("received fatal alert: HandshakeFailure", "received fatal"),
        ] {
            let told = of_etcd(said).description(&KEYS);
            assert!(told.starts_with(expected), "{told}");
        }
        for (alert, said) in [
            (
                AlertDescription::UnknownCA,
                "it rejects etcd.certFile (UnknownCA)",
            ),
            (
                AlertDescription::ProtocolVersion,
                "received fatal alert: ProtocolVersion",
            ),
        ] {
            let error = io_of(rustls::Error::AlertReceived(alert));
            let failure = ConnectionFailure::from(ClientError::Connect(error));
            assert!(failure.description(&KEYS).contains(said), "{failure:?}");
        }
    }

    #[test]
    fn a_wrong_name_says_which_names_there_are() {
        let error = rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected: "kubernetes.default.svc".try_into().unwrap(),
            presented: vec!["DnsName(\"cp-2.example\")".into()],
        });
        let failure = ConnectionFailure::from(ClientError::Connect(io_of(error)));
        let said = failure.description(&KEYS);
        assert!(
            said.contains("kubernetes.default.svc") && said.contains("cp-2.example"),
            "{said}"
        );
    }

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
        let text =
            "[+]ping ok\n[-]etcd failed: reason withheld\n[-]x failed\nreadyz check failed\n";
        assert_eq!(missing(text.as_bytes()), "etcd, x");
    }

    fn at(date: &str, sent: f64, took: f64) -> Option<f64> {
        let headers = HeaderMap::from_iter([(DATE, date.parse().unwrap())]);
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds);
        skew(&headers, at(sent), at(sent + took))
    }

    #[test]
    fn only_what_is_certain_of_a_clock_counts() {
        // 784111777 in Unix time.
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        assert_eq!(at(date, 784_111_777.0, 0.1), Some(0.0));
        assert_eq!(at(date, 784_111_777.9, 0.0), Some(0.0));
        assert_eq!(at(date, 784_111_770.0, 10.0), Some(0.0));
        assert_eq!(at(date, 784_111_770.0, 1.0), Some(6.0));
        assert_eq!(at(date, 784_111_780.0, 1.0), Some(-2.0));
        assert_eq!(at("yesterday", 0.0, 0.0), None);
    }

    #[test]
    fn a_minute_is_a_problem_and_seconds_are_not() {
        let of = |skew| clock_finding("peer b", skew).unwrap().to_string();
        assert_eq!(clock_finding("peer b", 0.9), None);
        assert!(
            of(-3.0)
                .starts_with("warning KIP-100 clock of peer b: 3 s behind this machine's; do: ")
        );
        assert!(
            of(61.0).starts_with("problem KIP-101 clock of peer b: 61 s ahead of this machine's")
        );
    }
}
