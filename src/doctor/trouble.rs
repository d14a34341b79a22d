//! Why nobody could be spoken to: from an error of some depth to a cause, and from the cause to what to do. Pure.

use std::error::Error;
use std::io;

use rustls::{AlertDescription, CertificateError};

use super::finding::Finding;
use crate::client::ClientError;

/// Causes of causes that are looked at.
const DEPTH: usize = 16;
/// Names of a certificate that are shown.
const NAMES: usize = 8;

/// Why there was no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// Nobody listens.
    Refused,
    /// Nothing was heard in time.
    Silent,
    /// TCP failed, in the system's words.
    Unreachable(String),
    /// The server's certificate is of a CA that is not ours.
    UnknownAuthority,
    /// The server's certificate is for other names.
    WrongName {
        /// The name that was expected.
        expected: String,
        /// The names that it has.
        presented: Vec<String>,
    },
    /// The server's certificate has expired.
    Expired,
    /// The server's certificate is not valid yet.
    NotYetValid,
    /// Something else is wrong with the server's certificate.
    BadCertificate(String),
    /// The server does not take our client certificate, in TLS' own words.
    ClientRefused(String),
    /// What listens speaks no TLS.
    NotTls,
    /// The connection was closed without an answer.
    Closed,
    /// Anything else.
    Other(String),
}

/// What the configuration calls the parts of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// Who is spoken to, `etcd` for example.
    pub server: &'static str,
    /// The address.
    pub address: &'static str,
    /// The CA file.
    pub authority: &'static str,
    /// The name that is expected.
    pub name: &'static str,
    /// The client certificate.
    pub certificate: &'static str,
    /// Where the server's own certificate is configured.
    pub serving: &'static str,
}

impl Trouble {
    /// What an error comes down to.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        if let Some(error) = find::<rustls::Error>(error, DEPTH) {
            return Self::of_tls(error);
        }
        match find::<io::Error>(error, DEPTH) {
            Some(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => Self::Refused,
                io::ErrorKind::TimedOut => Self::Silent,
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe => Self::Closed,
                _ => Self::Unreachable(error.to_string()),
            },
            None => Self::Other(error.to_string()),
        }
    }

    /// What an error of the proxy's own HTTP client comes down to.
    pub fn of_client(error: &ClientError) -> Self {
        match error {
            ClientError::Refused => Self::Refused,
            ClientError::Timeout(_) => Self::Silent,
            ClientError::Connect(cause) => Self::of(cause),
            ClientError::Exchange(cause) => match Self::of(cause.as_ref()) {
                Self::Other(_) => Self::Closed,
                known => known,
            },
        }
    }

    fn of_tls(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(error) => Self::of_certificate(error),
            rustls::Error::AlertReceived(alert) => Self::of_alert(*alert),
            rustls::Error::InvalidMessage(_)
            | rustls::Error::InappropriateMessage { .. }
            | rustls::Error::InappropriateHandshakeMessage { .. } => Self::NotTls,
            error => Self::Other(error.to_string()),
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                Self::UnknownAuthority
            }
            CertificateError::NotValidForNameContext {
                expected,
                presented,
            } => Self::WrongName {
                expected: expected.to_str().into_owned(),
                presented: presented.iter().map(|name| bare(name)).collect(),
            },
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                Self::NotYetValid
            }
            error => Self::BadCertificate(format!("{error:?}")),
        }
    }

    fn of_alert(alert: AlertDescription) -> Self {
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

    /// How it is.
    pub fn what(&self, keys: &Keys) -> String {
        match self {
            Self::Refused => "connection refused".to_owned(),
            Self::Silent => "no answer in time".to_owned(),
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
                    names => names.get(..NAMES).unwrap_or(names).join(", "),
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

    /// What to do about it.
    pub fn advice(&self, keys: &Keys) -> String {
        let Keys {
            server,
            address,
            authority,
            name,
            certificate,
            serving,
        } = keys;
        match self {
            Self::Refused => format!("start {server} there, or correct {address}"),
            Self::Silent => {
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

    /// The line of it.
    pub fn finding(&self, about: &str, keys: &Keys) -> Finding {
        Finding::problem(about, self.what(keys), self.advice(keys))
    }
}

/// The first cause of this type; what is inside of I/O errors is none of their sources.
fn find<'e, T: Error + 'static>(error: &'e (dyn Error + 'static), depth: usize) -> Option<&'e T> {
    if depth == 0 {
        return None;
    }
    if let Some(found) = error.downcast_ref::<T>() {
        return Some(found);
    }
    let inside = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    let inside = inside.and_then(|inside| find::<T>(inside, depth - 1));
    inside.or_else(|| find::<T>(error.source()?, depth - 1))
}

/// webpki shows names as `DnsName("a")` and `IpAddress(::1)`.
fn bare(name: &str) -> String {
    let inside = name.split_once('(').map_or(name, |(_, inside)| inside);
    let inside = inside.strip_suffix(')').unwrap_or(inside);
    inside.trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: Keys = Keys {
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
        assert_eq!(Trouble::of_client(&outer), Trouble::UnknownAuthority);
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(Trouble::of(&refused), Trouble::Refused);
        let alert = rustls::Error::AlertReceived(AlertDescription::UnknownCA);
        assert_eq!(
            Trouble::of(&io_of(alert)),
            Trouble::ClientRefused("UnknownCA".to_owned())
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
        let trouble = Trouble::of(&io_of(error));
        assert_eq!(
            trouble.what(&KEYS),
            "its certificate is for cp-2.example, 10.0.0.12, not kubernetes.default.svc"
        );
    }
}
