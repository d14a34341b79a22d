//! The configuration: what an operator writes, checked, as the rest of the program sees it.
//!
//! A [`Config`] exists only when everything in it holds: [`load`] and [`parse`] return either one or every
//! [`Problem`] of the file. The types here have no defaults of their own; those stand in `sections`, next to the keys.
//!
//! On the way from text to `Config`: `file` (YAML to a tree), `section` (the keys of any mapping), `sections` (every key
//! there is), `values`, `headers` and `etcd` (single values), `validate` (the whole, and rules across sections), `files`
//! and [`pem`] (certificates and keys). `problem` collects what is wrong, `lines` finds where.

pub mod duration;
pub mod pem;

mod etcd;
mod file;
mod files;
mod headers;
mod lines;
mod problem;
mod section;
mod sections;
mod validate;
mod values;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderName;

pub(crate) use files::SHARED_AUTHORITY;
pub use problem::Problem;

/// Everything the program can be told.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The TLS port for clients and peers.
    pub serving: Serving,
    /// The kube-apiserver beside this proxy.
    pub api_server: ApiServer,
    /// The cluster's etcd.
    pub etcd: Etcd,
    /// Who the kube-apiserver is, and its Lease.
    pub identity: Identity,
    /// How other proxies reach this one, and how it verifies them.
    pub peer: Peer,
    /// KEP-3028: requests that want an initialized server.
    pub if_ready: IfReady,
    /// KEP-4020: requests for what the local server does not serve.
    pub rerouting: Rerouting,
    /// Choice among servers by version.
    pub version_awareness: VersionAwareness,
    /// Discovery and OpenAPI documents.
    pub discovery: Discovery,
    /// Watches across restarts (KEP-1904).
    pub watch: Watch,
    /// Stopping.
    pub shutdown: Shutdown,
    /// The operator's port.
    pub admin: Admin,
}

/// The TLS port for clients and peers.
#[derive(Debug, Clone, PartialEq)]
pub struct Serving {
    /// Where to listen. One address; port 0 is any free one (for tests). Required.
    pub bind_address: SocketAddr,
    /// What to show to clients. Required.
    pub tls: KeyPair,
    /// Authorities of users' client certificates. Required.
    pub client_ca_file: PathBuf,
    /// Authorities of peers' client certificates. Required.
    pub request_header_client_ca_file: PathBuf,
    /// Common names of peers' certificates; empty: any. Default `front-proxy-client`.
    pub request_header_allowed_names: Vec<String>,
    /// Headers in which peers, and this proxy, name users.
    pub request_headers: RequestHeaders,
}

/// A certificate and its private key, PEM files.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyPair {
    /// The chain, its own certificate first.
    pub cert_file: PathBuf,
    /// The private key, not encrypted.
    pub key_file: PathBuf,
}

/// The kube-apiserver's `--requestheader-*` headers; all of them distinct and without another meaning.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestHeaders {
    /// A user's name; at least one. Default `X-Remote-User`.
    pub username: Vec<HeaderName>,
    /// A user's UID; may be empty. Default `X-Remote-Uid`.
    pub uid: Vec<HeaderName>,
    /// A user's groups; at least one. Default `X-Remote-Group`.
    pub group: Vec<HeaderName>,
    /// Starts of headers with anything else, lower case; may be empty. Default `x-remote-extra-`.
    pub extra_prefixes: Vec<String>,
}

/// The kube-apiserver beside this proxy.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiServer {
    /// Its port. Default `127.0.0.1:6443`.
    pub address: SocketAddr,
    /// Name its certificate must have; never empty. Default `kubernetes.default.svc`.
    pub server_name: String,
    /// Authorities of its certificate. Required.
    pub ca_file: PathBuf,
    /// Client certificate with which users are asserted, here and to peers. Required.
    pub proxy_client: KeyPair,
    /// User of the proxy's own requests. Default `system:kube-interop-proxy`.
    pub internal_user: String,
    /// Between two looks at `/readyz`; at least 10ms. Default 500ms.
    pub probe_interval: Duration,
    /// Between two reads of discovery; at least 100ms. Default 10s.
    pub discovery_interval: Duration,
}

/// The cluster's etcd.
#[derive(Debug, Clone, PartialEq)]
pub struct Etcd {
    /// `scheme://host:port`, all https or, on loopback, all http; at least one. Required.
    pub endpoints: Vec<String>,
    /// Authorities of etcd's certificates; there exactly with https.
    pub ca_file: Option<PathBuf>,
    /// Client certificate for etcd; there exactly with https.
    pub client: Option<KeyPair>,
    /// The kube-apiserver's `--etcd-prefix`: starts with a slash and does not end with one. Default `/registry`.
    pub prefix: String,
    /// Resources that the kube-apiserver keeps in another etcd, `resource` or `resource.group`. Default none.
    pub other_resources: Vec<String>,
}

/// Who the kube-apiserver is, and its Lease.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// ID of the kube-apiserver, a Lease name of at most 63 bytes. Default none: found out.
    pub server_id: Option<String>,
    /// Where identity Leases are. Default `kube-system` and `kube-apiserver-lease`.
    pub lease_namespaces: Vec<String>,
    /// Whether the proxy keeps the Lease.
    pub publish_lease: PublishLease,
    /// Between two renewals of that Lease; shorter than its duration. Default 10s.
    pub renew_interval: Duration,
    /// How long that Lease is valid, in whole seconds. Default 1h.
    pub lease_duration: Duration,
}

/// Whether the proxy keeps an identity Lease. Default `Auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishLease {
    /// Where the kube-apiserver publishes none.
    Auto,
    /// Unless somebody else keeps one of that name: the kube-apiserver's own is never overwritten.
    Always,
    /// Never; nor are those of dead proxies collected.
    Never,
}

/// How other proxies reach this one, and how it verifies them.
#[derive(Debug, Clone, PartialEq)]
pub struct Peer {
    /// Where peers find this proxy; port 0 is the one that was bound (for tests). Required.
    pub advertise_address: SocketAddr,
    /// Authorities of peers' serving certificates. Required.
    pub ca_file: PathBuf,
    /// Name that peers' certificates must have; never empty. Default `kubernetes.default.svc`.
    pub server_name: String,
    /// After how long without a sign a peer is gone; whole seconds, at least 2s. Default 15s.
    pub lease_ttl: Duration,
}

/// KEP-3028: requests that want an initialized server.
#[derive(Debug, Clone, PartialEq)]
pub struct IfReady {
    /// Whether `X-Kubernetes-If-Ready` is acted upon. Default true.
    pub enabled: bool,
    /// What happens while the server is not initialized.
    pub mode: IfReadyMode,
    /// Which requests it happens to.
    pub enforce: Enforce,
    /// `Retry-After` of the proxy's own 503s, 1 to 3600 seconds. Default 5.
    pub retry_after_seconds: u32,
    /// At most so many seconds are added to it, drawn for each answer, 0 to 3600. Default 0.
    pub retry_after_jitter_seconds: u32,
}

/// What happens to a request while the server is not initialized. Default `Retry`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfReadyMode {
    /// It is refused with 503 and `Retry-After`.
    Retry,
    /// It is processed, and the response says that the server was not ready.
    Annotate,
}

/// Which requests want an initialized server. Default `OptIn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforce {
    /// Those that say so.
    OptIn,
    /// All but health, metrics and version.
    Always,
}

/// KEP-4020: requests for what the local server does not serve.
#[derive(Debug, Clone, PartialEq)]
pub struct Rerouting {
    /// Whether they go to a peer that does. Default true.
    pub enabled: bool,
    /// What happens before etcd was read for the first time.
    pub unsynced: Unsynced,
    /// How long what a vanished server served is answered 503 and not 404; at least 1s. Default 1h.
    pub absent_server_grace: Duration,
}

/// What happens to requests before etcd was read for the first time. Default `Reject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// They are answered 503.
    Reject,
    /// The local server answers them.
    ServeLocal,
}

/// Choice among servers by version.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionAwareness {
    /// Whether clients can ask for a version. Default true.
    pub enabled: bool,
    /// The header in which they do. Default `X-Kubernetes-Compatibility-Version`.
    pub header: HeaderName,
}

/// Discovery and OpenAPI documents.
#[derive(Debug, Clone, PartialEq)]
pub struct Discovery {
    /// Whose documents clients see.
    pub mode: DiscoveryMode,
}

/// Whose discovery documents clients see. Default `Merged`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscoveryMode {
    /// Those of all servers in one.
    Merged,
    /// Those of the newest server.
    Newest,
    /// Those of the local server.
    Local,
}

/// Watches across restarts (KEP-1904).
#[derive(Debug, Clone, PartialEq)]
pub struct Watch {
    /// Whether a watch goes to a peer that still has the history it asks for. Default true.
    pub resume_routing: bool,
    /// Whether watches get a last bookmark when the proxy stops. Default true.
    pub bookmark_on_shutdown: bool,
}

/// Stopping.
#[derive(Debug, Clone, PartialEq)]
pub struct Shutdown {
    /// How long everything is still served after `/readyz` has begun to fail; may be 0. Default 5s.
    pub delay: Duration,
    /// Over how long long-running requests are ended; may be 0. Default 60s.
    pub drain: Duration,
}

/// The operator's port: plain HTTP.
#[derive(Debug, Clone, PartialEq)]
pub struct Admin {
    /// A loopback address; port 0 is any free one (for tests). Default `127.0.0.1:10260`.
    pub bind_address: SocketAddr,
}

/// Reads a configuration file and checks everything in it, the files that it names included.
///
/// Relative paths in it start from its own directory. The problems come in the order of the file.
pub fn load(path: &Path) -> Result<Config, Vec<Problem>> {
    load_with(path, files::check)
}

/// Like [`load`]; a certificate of the proxy's own that has expired, or is not valid yet, is a problem too.
pub fn check(path: &Path) -> Result<Config, Vec<Problem>> {
    load_with(path, files::check_all)
}

/// Like [`load`], without a look at the files that it names: for whoever looks at those one by one.
pub fn load_without_files(path: &Path) -> Result<Config, Vec<Problem>> {
    load_with(path, |_, _| {})
}

fn load_with(
    path: &Path,
    check: fn(&files::Files, &mut problem::Problems),
) -> Result<Config, Vec<Problem>> {
    let text = read(path).map_err(|message| {
        let message = format!("{}: {message}", path.display());
        vec![Problem::of_file(None, message)]
    })?;
    let base = path.parent().unwrap_or(Path::new(""));
    validate::config(&text, base, check)
}

/// Reads a configuration from text, without a look at the files that it names.
pub fn parse(text: &str) -> Result<Config, Vec<Problem>> {
    validate::config(text, Path::new(""), |_, _| {})
}

fn read(path: &Path) -> Result<String, String> {
    let open = |path| File::open(path).map_err(pem::PemError::from);
    let mut bytes = Vec::new();
    // One byte more than is allowed, so that what is too large is seen as such.
    let limit = file::MAX_BYTES as u64 + 1;
    let read = open(path).and_then(|file| Ok(file.take(limit).read_to_end(&mut bytes)?));
    read.map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| {
        let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        format!("not UTF-8 text (line {line})")
    })
}
