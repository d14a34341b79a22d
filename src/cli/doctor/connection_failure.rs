//! Why a connection failed: finds the cause in a chain of errors, and the advice for it. Pure.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::{AlertDescription, CertificateError};
use tokio::time::timeout;

use super::finding::Finding;
use super::told;
use crate::client::ClientError;
use crate::cluster::source::SourceError;

/// Most names of a certificate that are shown.
const MAX_NAMES: usize = 8;

#[derive(Debug, Clone, PartialEq)]
pub enum ConnectionFailure {
    Refused,
    TimedOut,
    /// TCP failed, with the system's message.
    Unreachable(String),
    /// The TLS handshake failed, or the server ended it.
    Tls(rustls::Error),
    Other(String),
}

/// Names in messages: configuration keys of a connection, and where the server is configured.
#[derive(Debug, Clone, Copy)]
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

/// Gives up after `limit`.
pub async fn within<T>(
    limit: Duration,
    probe: impl Future<Output = Result<T, ConnectionFailure>>,
) -> Result<T, ConnectionFailure> {
    let probed = timeout(limit, probe).await;
    probed.unwrap_or(Err(ConnectionFailure::TimedOut))
}

impl From<io::Error> for ConnectionFailure {
    fn from(error: io::Error) -> Self {
        Self::caused_by(&error).unwrap_or_else(|| Self::Other(error.to_string()))
    }
}

impl From<ClientError> for ConnectionFailure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused => Self::Refused,
            ClientError::Timeout(_) => Self::TimedOut,
            error => Self::caused_by(&error).unwrap_or_else(Self::closed),
        }
    }
}

impl From<SourceError> for ConnectionFailure {
    fn from(error: SourceError) -> Self {
        match error {
            SourceError::Timeout => Self::TimedOut,
            error => Self::Other(error.said()),
        }
    }
}

impl ConnectionFailure {
    /// The cause in a chain of errors, if it is known.
    fn caused_by(error: &(dyn Error + 'static)) -> Option<Self> {
        if let Some(error) = find_source::<rustls::Error>(error) {
            return Some(Self::Tls(error.clone()));
        }
        let cause = find_source::<io::Error>(error)?;
        Some(match cause.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut => Self::TimedOut,
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Self::closed(),
            _ => Self::Unreachable(cause.to_string()),
        })
    }

    fn closed() -> Self {
        Self::Other("it closed the connection without an answer".to_owned())
    }

    /// Whether the server answers a TLS handshake with something else.
    pub fn is_not_tls(&self) -> bool {
        use rustls::Error::{InappropriateHandshakeMessage, InappropriateMessage, InvalidMessage};
        matches!(
            self,
            Self::Tls(
                InvalidMessage(_)
                    | InappropriateMessage { .. }
                    | InappropriateHandshakeMessage { .. }
            )
        )
    }

    /// What happened.
    pub fn description(&self, keys: &ConfigKeys) -> String {
        self.finding("", keys).what
    }

    pub fn finding(&self, about: &str, keys: &ConfigKeys) -> Finding {
        use rustls::Error::{AlertReceived, InvalidCertificate};
        let (server, address) = (keys.server, keys.address);
        let why = match self {
            Self::Refused => return told::refused(about, server, address),
            Self::TimedOut => return told::timed_out(about, server),
            Self::Unreachable(why) => return told::unreachable(about, why, address),
            Self::Tls(InvalidCertificate(error)) => return bad_certificate(about, error, keys),
            Self::Tls(AlertReceived(alert)) if refuses_certificate(*alert) => {
                let alert = format!("{alert:?}");
                return told::certificate_refused(about, keys.certificate, alert, server);
            }
            Self::Tls(AlertReceived(alert)) => format!("it ended the TLS handshake: {alert:?}"),
            _ if self.is_not_tls() => "what listens there speaks no TLS".to_owned(),
            Self::Tls(error) => error.to_string(),
            Self::Other(why) => why.clone(),
        };
        told::no_use(about, why, address, server)
    }
}

/// The server's certificate is not accepted here.
fn bad_certificate(about: &str, error: &CertificateError, keys: &ConfigKeys) -> Finding {
    let serving = keys.serving;
    match error {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            told::unknown_authority(about, keys.authority, serving)
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let names = presented.iter().take(MAX_NAMES).map(|name| bare_name(name));
            let names = match names.collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => "no name at all".to_owned(),
                names => names,
            };
            told::wrong_name(about, names, expected.to_str(), serving, keys.name)
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            told::server_expired(about, serving)
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            told::server_not_yet_valid(about, serving)
        }
        error => told::bad_certificate(about, format!("{error:?}"), serving),
    }
}

fn refuses_certificate(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::CertificateRequired
            | Alert::NoCertificate
            | Alert::UnknownCA
            | Alert::AccessDenied
            // Go's server, about a client's certificate in TLS 1.2.
            | Alert::DecryptError
    )
}

/// The first error of this type in the chain. `io::Error` does not report its inner error as a source.
fn find_source<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    if let Some(found) = error.downcast_ref::<T>() {
        return Some(found);
    }
    let outer = error.downcast_ref::<io::Error>();
    let inside = outer.and_then(io::Error::get_ref);
    let inside = inside.and_then(|inside| find_source::<T>(inside));
    inside.or_else(|| find_source::<T>(error.source()?))
}

/// webpki shows names as `DnsName("a")` and `IpAddress(::1)`.
fn bare_name(name: &str) -> &str {
    let inside = name.split_once('(').map_or(name, |(_, inside)| inside);
    inside.strip_suffix(')').unwrap_or(inside).trim_matches('"')
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(ConnectionFailure::from(refused), ConnectionFailure::Refused);
        let alert = rustls::Error::AlertReceived(AlertDescription::UnknownCA);
        assert_eq!(
            ConnectionFailure::from(io_of(alert)).description(&KEYS),
            "it does not take etcd.certFile (UnknownCA)"
        );
    }

    #[test]
    fn a_wrong_name_says_which_names_there_are() {
        let error = rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext {
            expected: "kubernetes.default.svc".try_into().unwrap(),
            presented: vec![
                "DnsName(\"cp-2.example\")".into(),
                "IpAddress(10.0.0.12)".into(),
            ],
        });
        let failure = ConnectionFailure::from(io_of(error));
        assert_eq!(
            failure.description(&KEYS),
            "its certificate is for cp-2.example, 10.0.0.12, not kubernetes.default.svc"
        );
    }
}
