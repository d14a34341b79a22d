//! Authentication in kube-apiserver's order (front proxy, client certificate, token, anonymous), and authorization.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use http::{HeaderMap, header};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer as _, X509Certificate};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
    /// `requestheader`, `certificate`, `token` or `anonymous`.
    pub how: &'static str,
}

impl User {
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|name| name == group)
    }
}

/// The `--requestheader-*` flags.
#[derive(Clone, Debug)]
pub struct RequestHeaders {
    pub allowed_names: Vec<String>,
    pub username: Vec<String>,
    pub uid: Vec<String>,
    pub group: Vec<String>,
    pub extra_prefix: Vec<String>,
}

impl Default for RequestHeaders {
    fn default() -> Self {
        let one = |name: &str| vec![name.to_owned()];
        Self {
            allowed_names: one("front-proxy-client"),
            username: one("X-Remote-User"),
            uid: one("X-Remote-Uid"),
            group: one("X-Remote-Group"),
            extra_prefix: one("X-Remote-Extra-"),
        }
    }
}

pub struct Authenticator {
    front_proxy: Arc<dyn ClientCertVerifier>,
    users: Arc<dyn ClientCertVerifier>,
    tokens: HashMap<String, User>,
    pub headers: RequestHeaders,
}

impl Authenticator {
    /// Reads `front-proxy-ca.crt`, `ca.crt` and `tokens.csv`.
    pub fn new(pki: &Path, headers: RequestHeaders) -> Self {
        let tokens = std::fs::read_to_string(pki.join("tokens.csv")).expect("tokens.csv");
        Self {
            front_proxy: verifier(&pki.join("front-proxy-ca.crt")),
            users: verifier(&pki.join("ca.crt")),
            tokens: tokens.lines().filter_map(token_line).collect(),
            headers,
        }
    }

    /// `None` is a 401.
    pub fn authenticate(&self, chain: &[CertificateDer<'_>], headers: &HeaderMap) -> Option<User> {
        let mut failed = false;
        if let Some((leaf, rest)) = chain.split_first() {
            if let Ok(Some(user)) = self.asserted_user(leaf, rest, headers) {
                return Some(with_default_groups(user));
            }
            // A front proxy that names no user must itself be one.
            match self.certified_user(leaf, rest) {
                Ok(user) => return Some(with_default_groups(user)),
                Err(Refused) => failed = true,
            }
        }
        if let Some(token) = bearer(headers).or_else(|| subprotocol_token(headers)) {
            match self.of_token(&token) {
                Some(user) => return Some(user),
                None => failed = true,
            }
        }
        (!failed).then(|| User {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            how: "anonymous",
            ..User::default()
        })
    }

    /// The user of a token.
    pub fn of_token(&self, token: &str) -> Option<User> {
        self.tokens.get(token).cloned().map(with_default_groups)
    }

    fn asserted_user(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        headers: &HeaderMap,
    ) -> Result<Option<User>, Refused> {
        verify(&self.front_proxy, leaf, rest)?;
        let names = &self.headers.allowed_names;
        let cn = subject(leaf)
            .and_then(|subject| subject.cn)
            .unwrap_or_default();
        if !names.is_empty() && !names.contains(&cn) {
            return Err(Refused);
        }
        let first = |names: &[String]| {
            let values = names.iter().filter_map(|name| headers.get(name));
            values
                .map(text)
                .find(|value| !value.is_empty())
                .unwrap_or_default()
        };
        let name = first(&self.headers.username);
        let groups = self
            .headers
            .group
            .iter()
            .flat_map(|name| headers.get_all(name))
            .map(text);
        Ok((!name.is_empty()).then(|| User {
            name,
            uid: first(&self.headers.uid),
            groups: groups.filter(|group| !group.is_empty()).collect(),
            extra: self.extra(headers),
            how: "requestheader",
        }))
    }

    fn extra(&self, headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
        let mut extra = BTreeMap::new();
        for prefix in &self.headers.extra_prefix {
            let prefix = prefix.to_lowercase();
            for (name, value) in headers {
                if let Some(key) = name.as_str().strip_prefix(&prefix) {
                    let values: &mut Vec<String> = extra.entry(unescape(key)).or_default();
                    values.push(text(value));
                }
            }
        }
        extra
    }

    fn certified_user(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
    ) -> Result<User, Refused> {
        verify(&self.users, leaf, rest)?;
        let subject = subject(leaf).ok_or(Refused)?;
        Ok(User {
            name: subject.cn.filter(|cn| !cn.is_empty()).ok_or(Refused)?,
            groups: subject.orgs,
            how: "certificate",
            ..User::default()
        })
    }
}

struct Refused;

pub struct Subject {
    pub cn: Option<String>,
    pub orgs: Vec<String>,
}

pub fn subject(certificate: &CertificateDer<'_>) -> Option<Subject> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let name = certificate.subject();
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        value.as_str().unwrap_or_default().to_owned()
    };
    Some(Subject {
        cn: name.iter_common_name().map(text).last(),
        orgs: name.iter_organization().map(text).collect(),
    })
}

fn verifier(ca: &Path) -> Arc<dyn ClientCertVerifier> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).expect("a CA file") {
        roots
            .add(certificate.expect("a certificate"))
            .expect("a CA certificate");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    builder.build().expect("a verifier")
}

fn verify(
    verifier: &Arc<dyn ClientCertVerifier>,
    leaf: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
) -> Result<(), Refused> {
    let verified = verifier.verify_client_cert(leaf, rest, UnixTime::now());
    verified.map(drop).map_err(|_| Refused)
}

/// Go trims what it reads from HTTP/1.1; `bearer` of an empty token is no token.
fn bearer(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

/// A token as a WebSocket subprotocol, which browsers can set.
fn subprotocol_token(headers: &HeaderMap) -> Option<String> {
    if headers.get(header::UPGRADE)? != "websocket" {
        return None;
    }
    let protocols = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let token = protocols
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|protocol| {
            let prefix = "base64url.bearer.authorization.k8s.io.";
            protocol.trim().strip_prefix(prefix)
        })?;
    let decoded = data_encoding::BASE64URL_NOPAD
        .decode(token.as_bytes())
        .ok()?;
    String::from_utf8(decoded)
        .ok()
        .filter(|token| !token.is_empty())
}

fn text(value: &http::HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes())
        .trim_matches([' ', '\t'])
        .to_owned()
}

fn unescape(key: &str) -> String {
    let bytes = key.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = (byte == b'%').then(|| key.get(at + 1..at + 3)).flatten();
        match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) => {
                out.push(decoded);
                at += 3;
            }
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).to_lowercase()
}

/// `token,user,uid,"group,group"`.
fn token_line(line: &str) -> Option<(String, User)> {
    let mut fields = line.splitn(4, ',');
    let mut next = || {
        fields
            .next()
            .map(|field| field.trim_matches('"').to_owned())
    };
    let (token, name, uid) = (next()?, next()?, next()?);
    let groups = next().unwrap_or_default();
    let groups = groups
        .split(',')
        .filter(|group| !group.is_empty())
        .map(str::to_owned)
        .collect();
    Some((
        token,
        User {
            name,
            uid,
            groups,
            how: "token",
            ..User::default()
        },
    ))
}

fn with_default_groups(mut user: User) -> User {
    if !user.is_in("system:authenticated") && user.name != "system:anonymous" {
        user.groups.push("system:authenticated".to_owned());
    }
    user
}

/// Lets a user, or everybody of a group, ask for anything below a path.
#[derive(Clone, Debug)]
pub struct Rule {
    pub who: String,
    pub path_prefix: String,
}

/// `rules`, and RBAC's own roles once it has bootstrapped them.
pub fn may(user: &User, path: &str, rules: &[Rule], bootstrapped: bool) -> bool {
    let applies = |rule: &Rule| {
        (rule.who == user.name || user.is_in(&rule.who)) && path.starts_with(&rule.path_prefix)
    };
    user.is_in("system:masters")
        || rules.iter().any(applies)
        || (bootstrapped && by_bootstrapped_role(user, path))
}

fn by_bootstrapped_role(user: &User, path: &str) -> bool {
    let is = |root: &str| {
        path.strip_prefix(root)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    ["/healthz", "/livez", "/readyz", "/version"]
        .into_iter()
        .any(is)
        || (user.is_in("system:monitoring") && is("/metrics"))
        || (user.is_in("system:authenticated") && is_discovery(path))
}

/// `/api`, `/api/v1`, `/apis`, `/apis/G`, `/apis/G/V`, `/openapi/…`: what `system:discovery` may read.
fn is_discovery(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts[..] {
        ["api", ..] => parts.len() <= 2,
        ["apis", ..] => parts.len() <= 3,
        ["openapi", ..] => true,
        _ => false,
    }
}
