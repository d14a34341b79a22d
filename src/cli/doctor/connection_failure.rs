//! Why a connection failed: finds the cause in a chain of errors, and the advice for it. Pure.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError};

use super::finding::Finding;
use crate::client::ClientError;

/// Most nested errors that are searched.
const MAX_DEPTH: usize = 16;
/// Most names of a certificate that are shown.
const MAX_NAMES: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionFailure {
    Refused,
    TimedOut,
    /// TCP failed, with the system's message.
    Unreachable(String),
    /// The server's certificate is signed by an unknown CA.
    UnknownAuthority,
    /// The server's certificate is for other names.
    WrongName {
        expected: String,
        presented: Vec<String>,
    },
    /// The server's certificate, as the next two.
    Expired,
    NotYetValid,
    BadCertificate(String),
    /// The server rejects the client certificate with this TLS alert.
    ClientRefused(String),
    NotTls,
    Closed,
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

impl ConnectionFailure {
    pub fn from_error(error: &(dyn Error + 'static)) -> Self {
        if let Some(error) = find_source::<rustls::Error>(error, MAX_DEPTH) {
            return Self::from_tls(error);
        }
        match find_source::<io::Error>(error, MAX_DEPTH) {
            Some(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => Self::Refused,
                io::ErrorKind::TimedOut => Self::TimedOut,
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe => Self::Closed,
                _ => Self::Unreachable(error.to_string()),
            },
            None => Self::Other(error.to_string()),
        }
    }

    pub fn from_client_error(error: &ClientError) -> Self {
        match error {
            ClientError::Refused => Self::Refused,
            ClientError::Timeout(_) => Self::TimedOut,
            ClientError::Connect(cause) => Self::from_error(cause),
            ClientError::Exchange(cause) => match Self::from_error(cause.as_ref()) {
                Self::Other(_) => Self::Closed,
                known => known,
            },
        }
    }

    fn from_tls(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(error) => Self::from_certificate(error),
            rustls::Error::AlertReceived(alert) => Self::from_alert(*alert),
            rustls::Error::InvalidMessage(_)
            | rustls::Error::InappropriateMessage { .. }
            | rustls::Error::InappropriateHandshakeMessage { .. } => Self::NotTls,
            error => Self::Other(error.to_string()),
        }
    }

    fn from_certificate(error: &CertificateError) -> Self {
        match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Self::UnknownAuthority
            }
            CertificateError::NotValidForNameContext {
                expected,
                presented,
            } => Self::WrongName {
                expected: expected.to_str().into_owned(),
                presented: presented.iter().map(|name| bare_name(name)).collect(),
            },
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            error => Self::BadCertificate(format!("{error:?}")),
        }
    }

    fn from_alert(alert: AlertDescription) -> Self {
        match alert {
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::NoCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            // Go's server, about a client's certificate in TLS 1.2.
            | AlertDescription::DecryptError => Self::ClientRefused(format!("{alert:?}")),
            alert => Self::Other(format!("it ended the TLS handshake: {alert:?}")),
        }
    }

    pub fn description(&self, keys: &ConfigKeys) -> String {
        match self {
            Self::Refused => "connection refused".to_owned(),
            Self::TimedOut => "no answer in time".to_owned(),
            Self::Unreachable(why) => format!("cannot be reached: {why}"),
            Self::UnknownAuthority => {
                format!("its certificate is signed by no CA of {}", keys.authority)
            }
            Self::WrongName {
                expected,
                presented,
            } => {
                let names = match presented.as_slice() {
                    [] => "no name at all".to_owned(),
                    names => names.get(..MAX_NAMES).unwrap_or(names).join(", "),
                };
                format!("its certificate is for {names}, not {expected}")
            }
            Self::Expired => "its certificate has expired".to_owned(),
            Self::NotYetValid => "its certificate is not valid yet".to_owned(),
            Self::BadCertificate(why) => format!("its certificate cannot be used: {why}"),
            Self::ClientRefused(alert) => {
                format!("it does not take {} ({alert})", keys.certificate)
            }
            Self::NotTls => "what listens there speaks no TLS".to_owned(),
            Self::Closed => "it closed the connection without an answer".to_owned(),
            Self::Other(why) => why.clone(),
        }
    }

    pub fn advice(&self, keys: &ConfigKeys) -> String {
        let ConfigKeys {
            server,
            address,
            authority,
            name,
            certificate,
            serving,
        } = keys;
        match self {
            Self::Refused => format!("start {server} there, or correct {address}"),
            Self::TimedOut => {
                format!("see whether {server} there hangs, or a firewall is in between")
            }
            Self::Unreachable(_) => format!("correct {address}, or the way there"),
            Self::UnknownAuthority => {
                format!("put the CA that signed {serving} into {authority}")
            }
            Self::WrongName { .. } => {
                format!("add the name to {serving}, or make {name} one that it has")
            }
            Self::Expired => format!("renew {serving}"),
            Self::NotYetValid => format!("set the clock here or there right, or renew {serving}"),
            Self::BadCertificate(_) => format!("replace {serving}"),
            Self::ClientRefused(_) => format!(
                "make {certificate} one that is valid, and signed by a CA which {server} trusts for clients"
            ),
            Self::NotTls | Self::Closed | Self::Other(_) => {
                format!("see that {address} leads to {server}, and read its log")
            }
        }
    }

    pub fn finding(&self, about: &str, keys: &ConfigKeys) -> Finding {
        Finding::problem(about, self.description(keys), self.advice(keys))
    }
}

/// The first error of this type in the chain. `io::Error` does not report its inner error as a source.
fn find_source<'e, T: Error + 'static>(
    error: &'e (dyn Error + 'static),
    depth: usize,
) -> Option<&'e T> {
    if depth == 0 {
        return None;
    }
    if let Some(found) = error.downcast_ref::<T>() {
        return Some(found);
    }
    let inside = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    let inside = inside.and_then(|inside| find_source::<T>(inside, depth - 1));
    inside.or_else(|| find_source::<T>(error.source()?, depth - 1))
}

/// webpki shows names as `DnsName("a")` and `IpAddress(::1)`.
fn bare_name(name: &str) -> String {
    let inside = name.split_once('(').map_or(name, |(_, inside)| inside);
    let inside = inside.strip_suffix(')').unwrap_or(inside);
    inside.trim_matches('"').to_owned()
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
            ConnectionFailure::from_client_error(&outer),
            ConnectionFailure::UnknownAuthority
        );
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(
            ConnectionFailure::from_error(&refused),
            ConnectionFailure::Refused
        );
        let alert = rustls::Error::AlertReceived(AlertDescription::UnknownCA);
        assert_eq!(
            ConnectionFailure::from_error(&io_of(alert)),
            ConnectionFailure::ClientRefused("UnknownCA".to_owned())
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
        let failure = ConnectionFailure::from_error(&io_of(error));
        assert_eq!(
            failure.description(&KEYS),
            "its certificate is for cp-2.example, 10.0.0.12, not kubernetes.default.svc"
        );
    }
}
