//! Who is asking: decided anew for each request from the connection's chain, the clock and the current CAs.
//!
//! Checking a chain costs signature verifications, so a verdict is kept with the connection and reused while it
//! cannot have changed: same generation of CA files, and inside the validity of every certificate of the chain and of every
//! CA, or else within the same second.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::credential;
use crate::tls::verify::{self, ClientCas};

/// What is known of a client connection, kept for its life.
#[derive(Debug)]
pub struct Connection {
    /// The client's address, as it goes into `X-Forwarded-For`.
    pub address: HeaderValue,
    /// A number drawn once, so that one client's requests keep to one peer among equals.
    pub seed: u64,
    certificate: Option<ClientCertificate>,
    /// A request came.
    asked: AtomicBool,
}

impl Connection {
    /// A connection from `address`; `chain` is what the client presented, leaf first, empty if nothing.
    pub fn new(address: std::net::IpAddr, seed: u64, chain: Vec<CertificateDer<'static>>) -> Self {
        // An address is always a valid header value.
        let address =
            HeaderValue::try_from(address.to_string()).unwrap_or(HeaderValue::from_static(""));
        let certificate = (!chain.is_empty()).then(|| ClientCertificate {
            chain,
            verdict: ArcSwapOption::empty(),
        });
        Self {
            address,
            seed,
            certificate,
            asked: AtomicBool::new(false),
        }
    }

    /// Notes that a request came.
    pub fn ask(&self) {
        // Read first: the line stays shared.
        if !self.has_asked() {
            self.asked.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a request ever came.
    pub fn has_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Unix seconds until which every certificate of the chain is valid; none without a chain.
    pub fn valid_until(&self) -> Option<u64> {
        let certificate = self.certificate.as_ref()?;
        Some(*validity(&certificate.chain)?.end())
    }
}

#[derive(Debug)]
struct ClientCertificate {
    chain: Vec<CertificateDer<'static>>,
    verdict: ArcSwapOption<Verdict>,
}

#[derive(Debug)]
struct Verdict {
    generation: u64,
    /// Unix seconds between which every certificate of the chain is valid, and the CAs are as they are now.
    validity: RangeInclusive<u64>,
    owner: Owner,
}

#[derive(Debug, Clone)]
enum Owner {
    Peer,
    User(Arc<UserHeaders>),
    Unverifiable,
}

/// A certificate user, ready to be written as requestheader values.
#[derive(Debug, PartialEq, Eq)]
pub struct UserHeaders {
    /// The certificate's CN.
    pub user: HeaderValue,
    /// One for each O of the certificate.
    pub groups: Vec<HeaderValue>,
    /// Which certificate it is, for apiservers that want to know.
    pub credential: HeaderValue,
    /// The UID in the certificate, for apiservers that read it.
    pub uid: Option<HeaderValue>,
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Another proxy or a native kube-apiserver: its requestheader and reroute headers are believed.
    Peer,
    /// The owner of a certificate signed by `clientCAFile`.
    User(Arc<UserHeaders>),
    /// `Authorization: Bearer …`, to be judged by the apiserver.
    Bearer,
    /// Neither certificate nor token.
    Anonymous,
    /// A certificate that proves nothing, and no token: 401.
    Unverifiable,
}

impl Caller {
    /// For the access log.
    pub fn name(&self) -> &'static str {
        match self {
            Caller::Peer => "peer",
            Caller::User(_) => "user",
            Caller::Bearer => "bearer",
            Caller::Anonymous => "anonymous",
            Caller::Unverifiable => "unverifiable",
        }
    }
}

/// What certificates are judged by at this moment.
#[derive(Debug)]
pub struct Judge {
    /// Changes whenever the CAs or names below do.
    pub generation: u64,
    /// The CAs.
    pub cas: ClientCas,
    /// CNs that make a requestheader client; empty: any.
    pub allowed_names: Vec<String>,
}

impl Judge {
    /// Who asks on `connection`, at `now`; `bearer`: with a token ([`super::token::is_there`]).
    pub fn caller(&self, connection: &Connection, bearer: bool, now: SystemTime) -> Caller {
        let Some(certificate) = &connection.certificate else {
            return if bearer {
                Caller::Bearer
            } else {
                Caller::Anonymous
            };
        };
        match self.owner(certificate, now) {
            Owner::Peer => Caller::Peer,
            Owner::User(headers) => Caller::User(headers),
            Owner::Unverifiable if bearer => Caller::Bearer,
            Owner::Unverifiable => Caller::Unverifiable,
        }
    }

    fn owner(&self, certificate: &ClientCertificate, now: SystemTime) -> Owner {
        // A clock before 1970 makes every certificate invalid, which is the safe side.
        let since_epoch = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or(Duration::ZERO);
        if let Some(verdict) = &*certificate.verdict.load()
            && verdict.generation == self.generation
            && verdict.validity.contains(&since_epoch.as_secs())
        {
            return verdict.owner.clone();
        }
        let owner = self.judge(&certificate.chain, UnixTime::since_unix_epoch(since_epoch));
        let now = since_epoch.as_secs();
        // One from outside the validity holds for that second: judging costs too much to be done as often as anybody asks.
        let validity = validity(&certificate.chain)
            .filter(|validity| validity.contains(&now))
            .unwrap_or(now..=now);
        let verdict = Verdict {
            generation: self.generation,
            validity: overlap(&validity, &self.cas.unchanged(now)),
            owner: owner.clone(),
        };
        certificate.verdict.store(Some(Arc::new(verdict)));
        owner
    }

    fn judge(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Owner {
        let Some(der) = chain.first() else {
            return Owner::Unverifiable;
        };
        let Ok((_, leaf)) = X509Certificate::from_der(der) else {
            return Owner::Unverifiable;
        };
        if self.cas.is_peer(chain, now) && self.is_allowed_name(&leaf) {
            return Owner::Peer;
        }
        if self.cas.is_user(chain, now)
            && let Some(headers) = user_headers(der, &leaf)
        {
            return Owner::User(Arc::new(headers));
        }
        Owner::Unverifiable
    }

    fn is_allowed_name(&self, leaf: &X509Certificate<'_>) -> bool {
        self.allowed_names.is_empty()
            || common_name(leaf)
                .is_some_and(|name| self.allowed_names.iter().any(|allowed| allowed == name))
    }
}

/// Unix seconds in which every certificate of the chain is valid; `None` if one cannot be read.
fn validity(chain: &[CertificateDer<'_>]) -> Option<RangeInclusive<u64>> {
    let whole = 0..=u64::MAX;
    chain.iter().try_fold(whole, |both, der| {
        Some(overlap(&both, &verify::validity(der)?))
    })
}

fn overlap(one: &RangeInclusive<u64>, other: &RangeInclusive<u64>) -> RangeInclusive<u64> {
    *one.start().max(other.start())..=*one.end().min(other.end())
}

/// The last CN, as Go's crypto/x509 takes it.
fn common_name<'a>(certificate: &'a X509Certificate<'_>) -> Option<&'a str> {
    certificate
        .subject()
        .iter_common_name()
        .last()?
        .as_str()
        .ok()
}

/// User and groups as headers; `None` where one of them could be read differently behind a header.
fn user_headers(der: &[u8], certificate: &X509Certificate<'_>) -> Option<UserHeaders> {
    let user = header_value(common_name(certificate)?)?;
    let groups = certificate
        .subject()
        .iter_organization()
        .map(|organization| header_value(organization.as_str().ok()?))
        .collect::<Option<_>>()?;
    let uid = match credential::uid(certificate.subject()).ok()? {
        Some(uid) => Some(header_value(uid)?),
        None => None,
    };
    Some(UserHeaders {
        user,
        groups,
        credential: credential::id(der)?,
        uid,
    })
}

/// Go trims header values, so `system:masters ` must never become one: a CSR for it is approved by Kubernetes.
fn header_value(name: &str) -> Option<HeaderValue> {
    let plain = !name.is_empty() && name.trim() == name && !name.chars().any(char::is_control);
    plain
        .then(|| HeaderValue::from_bytes(name.as_bytes()).ok())
        .flatten()
}

#[cfg(test)]
mod tests;
