//! Authenticates the caller of each request from the connection's chain, the clock and the current CAs.
//!
//! Checking a chain costs signature verifications, so the connection keeps the verdict while it cannot
//! change: same generation of CA files, and no certificate or CA has become valid or expired.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use http::HeaderValue;
use rustls::pki_types::CertificateDer;

use super::credential;
use crate::tls::verify::{self, ClientCas};
use crate::x509::{Attribute, PresentedChain, unchanged};

/// The state of a client connection.
#[derive(Debug)]
pub struct ClientConnection {
    /// The client's address, as it goes into `X-Forwarded-For`.
    pub address: HeaderValue,
    /// Random; makes the requests of one connection prefer the same peer among equals.
    pub seed: u64,
    /// The certificates that the client presented, leaf first; empty if none.
    chain: Vec<CertificateDer<'static>>,
    /// The last verdict on the chain.
    verdict: ArcSwapOption<Verdict>,
    /// At least one request arrived.
    asked: AtomicBool,
}

impl ClientConnection {
    /// `chain`: the certificates that the client presented, leaf first; empty if none.
    pub fn new(address: std::net::IpAddr, seed: u64, chain: Vec<CertificateDer<'static>>) -> Self {
        // An address is always a valid header value.
        let address =
            HeaderValue::try_from(address.to_string()).unwrap_or(HeaderValue::from_static(""));
        Self {
            address,
            seed,
            chain,
            verdict: ArcSwapOption::empty(),
            asked: AtomicBool::new(false),
        }
    }

    /// Notes that a request arrived.
    pub fn ask(&self) {
        // Read first, so that the cache line stays shared.
        if !self.has_asked() {
            self.asked.store(true, Ordering::Relaxed);
        }
    }

    /// Whether any request arrived.
    pub fn has_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// The last valid Unix second of the certificate of the chain that expires next after `now`; `None` if all have
    /// expired.
    pub fn valid_until(&self, now: u64) -> Option<u64> {
        let ends = self.chain.iter().filter_map(verify::validity);
        ends.map(|validity| *validity.end())
            .filter(|end| *end >= now)
            .min()
    }
}

#[derive(Debug)]
struct Verdict {
    generation: u64,
    /// Unix seconds in which no certificate of the chain and no CA becomes valid or expires.
    unchanged: RangeInclusive<u64>,
    /// A peer, a user, or unverifiable.
    owner: Caller,
}

/// A certificate user, ready to be written as requestheader values.
#[derive(Debug, PartialEq, Eq)]
pub struct UserHeaders {
    /// The certificate's CN.
    pub user: HeaderValue,
    /// One for each O of the certificate.
    pub groups: Vec<HeaderValue>,
    /// The credential-id of the certificate, for apiservers that read it.
    pub credential: HeaderValue,
    /// The UID in the certificate, for apiservers that read it.
    pub uid: Option<HeaderValue>,
}

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Another proxy or a native kube-apiserver: the proxy trusts its requestheader and reroute headers.
    Peer,
    /// The owner of a certificate signed by `clientCAFile`.
    User(Arc<UserHeaders>),
    /// Has a bearer token, which the apiserver verifies.
    Bearer,
    /// Neither certificate nor token.
    Anonymous,
    /// An invalid certificate and no token: 401.
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

/// Authenticates client certificates with the current CAs.
#[derive(Debug)]
pub struct Authenticator {
    /// Changes whenever the CAs or names below do.
    pub generation: u64,
    /// The CAs.
    pub cas: ClientCas,
    /// Allowed CNs of requestheader clients; empty: any.
    pub allowed_names: Vec<String>,
}

impl Authenticator {
    /// The caller of a request on `connection` at `now`. `bearer`: the request has a token
    /// ([`super::token::is_there`]).
    pub fn caller(&self, connection: &ClientConnection, bearer: bool, now: SystemTime) -> Caller {
        let owner = match connection.chain.is_empty() {
            true => Caller::Anonymous,
            false => self.owner(connection, now),
        };
        match owner {
            Caller::Anonymous | Caller::Unverifiable if bearer => Caller::Bearer,
            owner => owner,
        }
    }

    /// Verifies the chain, unless that was done: it is too expensive to repeat for each request.
    fn owner(&self, connection: &ClientConnection, now: SystemTime) -> Caller {
        // A clock before 1970 makes every certificate invalid, which is the safe side.
        let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH);
        let now = since_epoch.unwrap_or(Duration::ZERO).as_secs();
        if let Some(verdict) = &*connection.verdict.load()
            && verdict.generation == self.generation
            && verdict.unchanged.contains(&now)
        {
            return verdict.owner.clone();
        }
        let (owner, unchanged) = match PresentedChain::parse(&connection.chain) {
            Some(presented) => {
                let all = presented.certificates().chain(self.cas.certificates());
                (self.authenticate(&presented, now), unchanged(all, now))
            }
            None => (Caller::Unverifiable, 0..=u64::MAX),
        };
        connection.verdict.store(Some(Arc::new(Verdict {
            generation: self.generation,
            unchanged,
            owner: owner.clone(),
        })));
        owner
    }

    fn authenticate(&self, presented: &PresentedChain, now: u64) -> Caller {
        let subject = presented.subject();
        let is_allowed = |name: &str| self.allowed_names.iter().any(|allowed| allowed == name);
        if self.cas.peers.trust(presented, now)
            && (self.allowed_names.is_empty() || common_name(&subject).is_some_and(is_allowed))
        {
            return Caller::Peer;
        }
        if self.cas.users.trust(presented, now)
            && let Some(headers) = user_headers(presented.leaf(), &subject)
        {
            return Caller::User(Arc::new(headers));
        }
        Caller::Unverifiable
    }
}

/// id-at-commonName
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// id-at-organizationName
const ORGANIZATION: &[u8] = &[0x55, 4, 10];

/// The last CN, as Go's crypto/x509 takes it.
fn common_name<'a>(subject: &[Attribute<'a>]) -> Option<&'a str> {
    let mut names = subject.iter().filter(|it| it.id == COMMON_NAME);
    names.next_back()?.text()
}

/// User and groups as header values; `None` if a value could be read differently as a header.
fn user_headers(der: &[u8], subject: &[Attribute<'_>]) -> Option<UserHeaders> {
    let user = header_value(common_name(subject)?)?;
    let organizations = subject.iter().filter(|it| it.id == ORGANIZATION);
    let groups = organizations
        .map(|organization| header_value(organization.text()?))
        .collect::<Option<_>>()?;
    let uid = match credential::uid(subject)? {
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
    let value = HeaderValue::from_bytes(name.as_bytes()).ok();
    value.filter(|_| plain)
}

#[cfg(test)]
mod tests;
