//! The validated configuration.
//!
//! A [`Config`] is always valid: [`load`] and [`parse`] return either one, or every [`Problem`] of the file. Defaults
//! stand in `sections`, next to the keys.
//!
//! From text to `Config`: `file` (YAML to a `tree`), `section` (the keys of any mapping), `sections` (every key),
//! `values`, `headers`, `etcd` and `tls_options` (single values), `validate` (the whole, and rules across sections, which read
//! `facts`), `files` and [`crate::x509::pem`] (certificates and keys). `problem` collects problems, `lines` finds their
//! lines. [`effective`] has the value of each key as text, [`settings`] what is read again while the proxy runs.

pub mod duration;
pub mod effective;
pub mod settings;

mod etcd;
mod facts;
mod file;
mod files;
mod headers;
mod lines;
mod message;
mod problem;
mod section;
mod sections;
mod tls_options;
mod tree;
mod validate;
mod values;

#[cfg(test)]
mod tests;

use crate::x509::pem::PemError;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderName;
use rustls::CipherSuite;

use effective::EffectiveValues;
pub(crate) use files::SHARED_AUTHORITY;
pub use problem::Problem;

/// The whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub serving: ServingConfig,
    pub api_server: ApiServerConfig,
    pub etcd: EtcdConfig,
    pub identity: IdentityConfig,
    pub peer: PeerConfig,
    pub if_ready: IfReadyConfig,
    pub rerouting: ReroutingConfig,
    pub version_awareness: VersionAwarenessConfig,
    pub discovery: DiscoveryConfig,
    pub watch: WatchConfig,
    pub shutdown: ShutdownConfig,
    pub admin: AdminConfig,
    pub tracing: TracingConfig,
    pub logging: LoggingConfig,
}

/// Spans of requests.
#[derive(Debug, Clone, PartialEq)]
pub struct TracingConfig {
    /// host:port of an OTLP receiver, gRPC without TLS; `None`: no spans. Default none.
    pub endpoint: Option<String>,
    /// How many of a million requests without a `traceparent` are sampled. Default 0.
    pub sampling_rate_per_million: u32,
}

/// The TLS port for clients and peers.
#[derive(Debug, Clone, PartialEq)]
pub struct ServingConfig {
    /// Address to listen on; port 0: any free port (for tests). Required.
    pub bind_address: SocketAddr,
    /// Further addresses to listen on, which this host need not have yet. Default none.
    pub additional_bind_addresses: Vec<SocketAddr>,
    /// Serving certificate. Required.
    pub tls: KeyPair,
    /// CAs of users' client certificates. Required.
    pub client_ca_file: PathBuf,
    /// CAs of peers' client certificates. Required.
    pub request_header_client_ca_file: PathBuf,
    /// Common names of peers' certificates; empty: any. Default `front-proxy-client`.
    pub request_header_allowed_names: Vec<String>,
    /// Headers in which peers and this proxy assert users.
    pub request_headers: RequestHeaders,
    /// Share of short HTTP/2 requests whose connection ends with them; at most 0.02. Default 0.
    pub goaway_chance: f64,
    /// Further serving certificates, for clients that ask for one of their names. Default none.
    pub sni_certificates: Vec<SniCertificate>,
    pub min_tls_version: MinTlsVersion,
    /// Cipher suites that may be used; empty: all. Default empty.
    pub cipher_suites: Vec<CipherSuite>,
}

/// A serving certificate and the names that it is for.
#[derive(Debug, Clone, PartialEq)]
pub struct SniCertificate {
    pub pair: KeyPair,
    /// Empty: the names in the certificate. Default empty.
    pub names: Vec<SniName>,
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SniName {
    /// A DNS name in lower case; its first label may be `*`.
    Domain(String),
    /// The address that it connected to, if it sends no name.
    Address(IpAddr),
}

/// Oldest version of TLS. Default 1.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinTlsVersion {
    Tls12,
    Tls13,
}

/// A certificate and its private key, PEM files.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyPair {
    /// The chain, leaf first.
    pub cert_file: PathBuf,
    /// The private key, not encrypted.
    pub key_file: PathBuf,
}

/// The kube-apiserver's `--requestheader-*` headers; all distinct, and without another meaning.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestHeaders {
    /// A user's name; at least one. Default `X-Remote-User`.
    pub username: Vec<HeaderName>,
    /// A user's UID; may be empty. Default `X-Remote-Uid`.
    pub uid: Vec<HeaderName>,
    /// A user's groups; at least one. Default `X-Remote-Group`.
    pub group: Vec<HeaderName>,
    /// Prefixes of headers with extra attributes, lower case; may be empty. Default `x-remote-extra-`.
    pub extra_prefixes: Vec<String>,
}

/// The local kube-apiserver.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiServerConfig {
    /// Where it listens. Default `127.0.0.1:6443`.
    pub address: SocketAddr,
    /// Name that its certificate must have; never empty. Default `kubernetes.default.svc`.
    pub server_name: String,
    /// CAs of its certificate. Required.
    pub ca_file: PathBuf,
    /// Client certificate with which the proxy asserts users, to it and to peers. Required.
    pub proxy_client: KeyPair,
    /// User of the proxy's own requests. Default `system:kube-interop-proxy`.
    pub internal_user: String,
    /// Interval of reading `/readyz`; at least 10ms. Default 500ms.
    pub probe_interval: Duration,
    /// Interval of reading discovery; at least 100ms. Default 10s.
    pub discovery_interval: Duration,
}

/// The cluster's etcd.
#[derive(Debug, Clone, PartialEq)]
pub struct EtcdConfig {
    /// `scheme://host:port`, all https or, on loopback, all http; at least one. Required.
    pub endpoints: Vec<String>,
    /// CAs of etcd's certificates; `Some` exactly with https.
    pub ca_file: Option<PathBuf>,
    /// Client certificate for etcd; `Some` exactly with https.
    pub client: Option<KeyPair>,
    /// The kube-apiserver's `--etcd-prefix`: starts with a slash and does not end with one. Default `/registry`.
    pub prefix: String,
    /// Resources that the kube-apiserver keeps in another etcd, `resource` or `resource.group`. Default none.
    pub other_resources: Vec<String>,
}

/// Server ID of the kube-apiserver, and its identity Lease.
#[derive(Debug, Clone, PartialEq)]
pub struct IdentityConfig {
    /// ID of the kube-apiserver, a Lease name of at most 63 bytes. Default none: the proxy finds it.
    pub server_id: Option<String>,
    /// Namespaces of identity Leases. Default `kube-system` and `kube-apiserver-lease`.
    pub lease_namespaces: Vec<String>,
    pub publish_lease: PublishLease,
    /// Interval of renewing that Lease; shorter than its duration. Default 10s.
    pub renew_interval: Duration,
    /// Duration of that Lease, in whole seconds. Default 1h.
    pub lease_duration: Duration,
}

/// Whether the proxy keeps an identity Lease. Default `Auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PublishLease {
    /// If the kube-apiserver publishes none.
    Auto,
    /// Always, unless another process keeps the Lease: a kube-apiserver's own Lease is never overwritten.
    Always,
    /// Never; expired Leases of other proxies are not deleted either.
    Never,
}

/// How other proxies reach this one, and how it verifies them.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerConfig {
    /// Where peers reach this proxy; port 0: the port that was bound (for tests). Required.
    pub advertise_address: SocketAddr,
    /// CAs of peers' serving certificates. Required.
    pub ca_file: PathBuf,
    /// Name that peers' certificates must have; never empty. Default `kubernetes.default.svc`.
    pub server_name: String,
    /// How long this proxy counts as live after its last renewal; whole seconds, at least 2s. Default 15s.
    pub lease_ttl: Duration,
}

/// KEP-3028: requests that need an initialized server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IfReadyConfig {
    /// Whether the proxy obeys `X-Kubernetes-If-Ready`. Default true.
    pub enabled: bool,
    pub mode: IfReadyMode,
    pub enforce: Enforce,
    /// `Retry-After` of the proxy's own 503s, 1 to 3600 seconds. Default 5.
    pub retry_after_seconds: u32,
    /// Upper limit of random seconds that are added to it in each response, 0 to 3600. Default 0.
    pub retry_after_jitter_seconds: u32,
}

/// What happens to a request while the server is not initialized. Default `Retry`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfReadyMode {
    /// The proxy rejects it with 503 and `Retry-After`.
    Retry,
    /// The server processes it; a response header says that the server was not ready.
    Annotate,
}

/// Which requests need an initialized server. Default `OptIn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforce {
    /// Those with `X-Kubernetes-If-Ready`.
    OptIn,
    /// All except health, metrics and version.
    Always,
}

/// KEP-4020: requests for resources that the local server does not serve.
#[derive(Debug, Clone, PartialEq)]
pub struct ReroutingConfig {
    /// Whether they go to a peer that serves the resource. Default true.
    pub enabled: bool,
    pub unsynced: Unsynced,
    /// How long requests for resources that only an absent server served get 503 instead of 404; at least 1s. Default
    /// 1h.
    pub absent_server_grace: Duration,
    pub bare_servers: BareServersMode,
    /// Advertised addresses that lead to no server of their own. Default none.
    pub ignored_addresses: Vec<IpAddr>,
}

/// What apiservers without a proxy count as. Default `Auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BareServersMode {
    /// They are peers.
    Auto,
    /// They are not looked for.
    Ignore,
}

/// What happens to requests before etcd was read completely for the first time. Default `Reject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// The proxy answers 503.
    Reject,
    /// The local server answers them.
    ServeLocal,
}

/// Selection of servers by version.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionAwarenessConfig {
    /// Whether clients can request a version. Default true.
    pub enabled: bool,
    /// The header with the version. Default `X-Kubernetes-Compatibility-Version`.
    pub header: HeaderName,
}

/// Discovery and OpenAPI documents.
#[derive(Debug, Clone, PartialEq)]
pub struct DiscoveryConfig {
    pub mode: DiscoveryMode,
}

/// Whose discovery documents clients see. Default `Merged`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscoveryMode {
    /// Documents of all servers, merged.
    Merged,
    /// Documents of the newest server.
    Newest,
    /// Documents of the local server.
    Local,
}

/// Watches across restarts (KEP-1904).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchConfig {
    /// Whether a watch goes to a peer that still has the history that it needs. Default true.
    pub resume_routing: bool,
    /// Whether watches get a last bookmark when the proxy stops. Default true.
    pub bookmark_on_shutdown: bool,
}

/// Graceful shutdown.
#[derive(Debug, Clone, PartialEq)]
pub struct ShutdownConfig {
    /// How long the proxy still serves everything after `/readyz` has begun to fail; may be 0. Default 5s.
    pub delay: Duration,
    /// The period over which long-running requests are ended; may be 0. Default 60s.
    pub drain: Duration,
}

/// The admin ports.
#[derive(Debug, Clone, PartialEq)]
pub struct AdminConfig {
    /// Plain HTTP on a loopback address; port 0: any free port (for tests). Default `127.0.0.1:10260`.
    pub bind_address: SocketAddr,
    /// Where metrics and health are served to other hosts over TLS; port 0: any free port (for tests). Default none.
    pub secure_bind_address: Option<SocketAddr>,
}

/// Log lines.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggingConfig {
    /// Which lines are written, as tracing's directives. Default `info,access=off,pingora_core=warn`.
    pub filter: String,
}

/// A configuration with what is needed to notice that its file has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedConfig {
    pub config: Config,
    pub values: EffectiveValues,
    /// The file's contents.
    pub text: String,
}

/// Reads a configuration file and checks everything in it, including the files that it names.
///
/// Relative paths start from the directory of the file. Problems are in the order of the file.
pub fn load(path: &Path) -> Result<Config, Vec<Problem>> {
    load_to_run(path).map(|loaded| loaded.config)
}

/// Reads the configuration, with what is needed to notice that the file has changed.
pub fn load_to_run(path: &Path) -> Result<LoadedConfig, Vec<Problem>> {
    load_with(path, files::check)
}

/// Like [`load`], but an expired or not yet valid certificate of the proxy is a problem, too.
pub fn check(path: &Path) -> Result<Config, Vec<Problem>> {
    load_with(path, files::check_all).map(|loaded| loaded.config)
}

/// Like [`load`], but does not read the files that the configuration names.
pub fn load_without_files(path: &Path) -> Result<Config, Vec<Problem>> {
    load_with(path, |_, _| {}).map(|loaded| loaded.config)
}

fn load_with(
    path: &Path,
    check: fn(&files::Files, &mut problem::Problems),
) -> Result<LoadedConfig, Vec<Problem>> {
    let text = read(path).map_err(|problem| vec![problem])?;
    let (config, values) = validate::config(&text, base(path), check)?;
    Ok(LoadedConfig {
        config,
        values,
        text,
    })
}

/// Reads a configuration from text; does not read the files that it names.
pub fn parse(text: &str) -> Result<Config, Vec<Problem>> {
    parse_at(Path::new(""), text).map(|(config, _)| config)
}

/// Parses the contents of the file at `path`.
pub(crate) fn parse_at(path: &Path, text: &str) -> Result<(Config, EffectiveValues), Vec<Problem>> {
    validate::config(text, base(path), |_, _| {})
}

/// Relative paths start there.
fn base(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// The contents of a configuration file.
fn read(path: &Path) -> Result<String, Problem> {
    read_text(path).map_err(|message| file_problem(path, &message))
}

/// Reads the file while the proxy runs: it must not be a pipe, which would be waited for.
pub(crate) fn read_again(path: &Path) -> Result<String, Problem> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(file_problem(path, "is not a file")),
        _ => read(path),
    }
}

fn file_problem(path: &Path, message: &str) -> Problem {
    Problem::of_file(None, format!("{}: {message}", path.display()))
}

fn read_text(path: &Path) -> Result<String, String> {
    let open = |path| File::open(path).map_err(PemError::from);
    let mut bytes = Vec::new();
    // One byte more than allowed, so that `file::parse` can reject a file that is too large.
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
