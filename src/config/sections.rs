//! The configuration's types, and every key once: its field, its name in the file, its default and its rule.
//!
//! To add a setting: a line here, the key in `config.example.yaml`, and `UPDATE_DOCS=1 cargo test --lib reference`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http::HeaderName;
use rustls::CipherSuite;

use super::section::Section;
use super::values::{address, duration, flag, numeric, whole_seconds};
use super::{headers, values};

/// Highest `serving.goawayChance`, as in kube-apiserver: one request in fifty.
const MAX_GOAWAY_CHANCE: f64 = 0.02;

/// Names of `kube-apiserver`'s certificate and of its peers'.
const SERVER_NAME: &str = "kubernetes.default.svc";

/// Structs, and how each is read from a section of the file.
macro_rules! sections {
    ($(
        $(#[$about:meta])*
        pub struct $name:ident($section:ident) {
            $($(#[$about_field:meta])* pub $field:ident: $type:ty = $read:expr;)*
        }
    )*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name {
            $($(#[$about_field])* pub $field: $type,)*
        }

        impl $name {
            /// Reads all keys before it gives up, so that all their problems are noted.
            pub(super) fn read($section: &mut Section<'_, '_>) -> Option<Self> {
                $(let $field = $read;)*
                Some(Self { $($field: $field?,)* })
            }
        }
    )*};
}

/// Enums whose variants have their names in the file.
macro_rules! choices {
    ($(
        $(#[$about:meta])*
        pub enum $name:ident { $($(#[$about_variant:meta])* $variant:ident,)* }
    )*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$about_variant])* $variant,)*
        }

        impl $name {
            const NAMES: &[(&str, Self)] = &[$((stringify!($variant), Self::$variant)),*];
        }
    )*};
}

sections! {
    /// The whole configuration.
    pub struct Config(s) {
        pub serving: ServingConfig = s.section("serving", ServingConfig::read);
        pub api_server: ApiServerConfig = s.section("apiServer", ApiServerConfig::read);
        pub etcd: EtcdConfig = s.section("etcd", EtcdConfig::read);
        pub identity: IdentityConfig = s.section("identity", IdentityConfig::read);
        pub peer: PeerConfig = s.section("peer", PeerConfig::read);
        pub if_ready: IfReadyConfig = s.section("ifReady", IfReadyConfig::read);
        pub rerouting: ReroutingConfig = s.section("rerouting", ReroutingConfig::read);
        pub version_awareness: VersionAwarenessConfig = s.section("versionAwareness", VersionAwarenessConfig::read);
        pub discovery: DiscoveryConfig = s.section("discovery", DiscoveryConfig::read);
        pub watch: WatchConfig = s.section("watch", WatchConfig::read);
        pub shutdown: ShutdownConfig = s.section("shutdown", ShutdownConfig::read);
        pub admin: AdminConfig = s.section("admin", AdminConfig::read);
        pub tracing: TracingConfig = s.section("tracing", TracingConfig::read);
        pub logging: LoggingConfig = s.section("logging", LoggingConfig::read);
    }

    /// The TLS port for clients and peers.
    pub struct ServingConfig(s) {
        /// Address to listen on; port 0: any free port (for tests). Required.
        pub bind_address: SocketAddr = s.required("bindAddress", address);
        /// Further addresses to listen on, which this host need not have yet. Default none.
        pub additional_bind_addresses: Vec<SocketAddr> = s.list("additionalBindAddresses", &[], values::destination);
        /// Serving certificate. Required.
        pub tls: KeyPair = KeyPair::read(s, "certFile", "keyFile");
        /// CAs of users' client certificates. Required.
        pub client_ca_file: PathBuf = s.file("clientCAFile");
        /// CAs of peers' client certificates. Required.
        pub request_header_client_ca_file: PathBuf = s.file("requestHeaderClientCAFile");
        /// Common names of peers' certificates; empty: any. Default `front-proxy-client`.
        pub request_header_allowed_names: Vec<String> =
            s.list("requestHeaderAllowedNames", &["front-proxy-client"], values::common_name);
        /// Headers in which peers and this proxy assert users.
        pub request_headers: RequestHeaders = RequestHeaders::read(s);
        /// Share of short HTTP/2 requests whose connection ends with them; at most 0.02. Default 0.
        pub goaway_chance: f64 = s.or("goawayChance", "0", numeric("a number", 0.0..=MAX_GOAWAY_CHANCE));
        /// Further serving certificates, for clients that ask for one of their names. Default none.
        pub sni_certificates: Vec<SniCertificate> = s.mappings("sniCertificates", SniCertificate::read);
        pub min_tls_version: MinTlsVersion = s.or("minTLSVersion", "VersionTLS12", values::choice(MinTlsVersion::NAMES));
        /// Cipher suites that may be used; empty: all. Default empty.
        pub cipher_suites: Vec<CipherSuite> = s.list("cipherSuites", &[], values::cipher_suite);
    }

    /// A serving certificate and the names that it is for.
    pub struct SniCertificate(s) {
        pub pair: KeyPair = KeyPair::read(s, "certFile", "keyFile");
        /// Empty: the names in the certificate. Default empty.
        pub names: Vec<SniName> = s.list("names", &[], values::sni_name);
    }

    /// The kube-apiserver's `--requestheader-*` headers; all distinct, and without another meaning.
    pub struct RequestHeaders(s) {
        /// A user's name; at least one. Default `X-Remote-User`.
        pub username: Vec<HeaderName> = s.list("requestHeaderUsernameHeaders", &["X-Remote-User"], headers::name);
        /// A user's UID; may be empty. Default `X-Remote-Uid`.
        pub uid: Vec<HeaderName> = s.list("requestHeaderUidHeaders", &["X-Remote-Uid"], headers::name);
        /// A user's groups; at least one. Default `X-Remote-Group`.
        pub group: Vec<HeaderName> = s.list("requestHeaderGroupHeaders", &["X-Remote-Group"], headers::name);
        /// Prefixes of headers with extra attributes, lower case; may be empty. Default `x-remote-extra-`.
        pub extra_prefixes: Vec<String> =
            s.list("requestHeaderExtraHeaderPrefixes", &["X-Remote-Extra-"], headers::prefix);
    }

    /// The local kube-apiserver.
    pub struct ApiServerConfig(s) {
        /// Where it listens. Default `127.0.0.1:6443`.
        pub address: SocketAddr = s.or("address", "127.0.0.1:6443", values::destination);
        /// Name that its certificate must have; never empty. Default `kubernetes.default.svc`.
        pub server_name: String = s.or("serverName", SERVER_NAME, values::server_name);
        /// CAs of its certificate. Required.
        pub ca_file: PathBuf = s.file("caFile");
        /// Client certificate with which the proxy asserts users, to it and to peers. Required.
        pub proxy_client: KeyPair = KeyPair::read(s, "proxyClientCertFile", "proxyClientKeyFile");
        /// User of the proxy's own requests. Default `system:kube-interop-proxy`.
        pub internal_user: String = s.or("internalUser", "system:kube-interop-proxy", values::user);
        /// Interval of reading `/readyz`; at least 10ms. Default 500ms.
        pub probe_interval: Duration = s.or("probeInterval", "500ms", duration(Duration::from_millis(10)));
        /// Interval of reading discovery; at least 100ms. Default 10s.
        pub discovery_interval: Duration = s.or("discoveryInterval", "10s", duration(Duration::from_millis(100)));
    }

    /// The cluster's etcd.
    pub struct EtcdConfig(s) {
        /// `scheme://host:port`, all https or, on loopback, all http; at least one. Required.
        pub endpoints: Vec<String> = s.list("endpoints", &[], values::endpoint);
        /// CAs of etcd's certificates; `Some` exactly with https.
        pub ca_file: Option<PathBuf> = s.optional_file("caFile");
        /// Client certificate for etcd; `Some` exactly with https.
        pub client: Option<KeyPair> = KeyPair::read_optional(s, "certFile", "keyFile");
        /// The kube-apiserver's `--etcd-prefix`: starts with a slash and does not end with one. Default `/registry`.
        pub prefix: String = s.or("prefix", "/registry", values::key_prefix);
        /// Resources that the kube-apiserver keeps in another etcd, `resource` or `resource.group`. Default none.
        pub other_resources: Vec<String> = s.list("otherResources", &[], values::resource);
    }

    /// Server ID of the kube-apiserver, and its identity Lease.
    pub struct IdentityConfig(s) {
        /// ID of the kube-apiserver, a Lease name of at most 63 bytes. Default none: the proxy finds it.
        pub server_id: Option<String> = s.or("serverID", "''", values::server_id);
        /// Namespaces of identity Leases. Default `kube-system` and `kube-apiserver-lease`.
        pub lease_namespaces: Vec<String> =
            s.list("leaseNamespaces", &["kube-system", "kube-apiserver-lease"], values::namespace);
        pub publish_lease: PublishLease = s.or("publishLease", "Auto", values::choice(PublishLease::NAMES));
        /// Interval of renewing that Lease; shorter than its duration. Default 10s.
        pub renew_interval: Duration = s.or("renewInterval", "10s", duration(Duration::from_millis(100)));
        /// Duration of that Lease, in whole seconds. Default 1h.
        pub lease_duration: Duration = s.or("leaseDuration", "1h", whole_seconds(Duration::from_secs(1)));
    }

    /// How other proxies reach this one, and how it verifies them.
    pub struct PeerConfig(s) {
        /// Where peers reach this proxy; port 0: the port that was bound (for tests). Required.
        pub advertise_address: SocketAddr = s.required("advertiseAddress", address);
        /// CAs of peers' serving certificates. Required.
        pub ca_file: PathBuf = s.file("caFile");
        /// Name that peers' certificates must have; never empty. Default `kubernetes.default.svc`.
        pub server_name: String = s.or("serverName", SERVER_NAME, values::server_name);
        /// How long this proxy counts as live after its last renewal; whole seconds, at least 2s. Default 15s.
        pub lease_ttl: Duration = s.or("leaseTTL", "15s", whole_seconds(Duration::from_secs(2)));
    }

    /// KEP-3028: requests that need an initialized server.
    #[derive(Copy, Eq)]
    pub struct IfReadyConfig(s) {
        /// Whether the proxy obeys `X-Kubernetes-If-Ready`. Default true.
        pub enabled: bool = s.or("enabled", "true", flag);
        pub mode: IfReadyMode = s.or("mode", "Retry", values::choice(IfReadyMode::NAMES));
        pub enforce: Enforce = s.or("enforce", "OptIn", values::choice(Enforce::NAMES));
        /// `Retry-After` of the proxy's own 503s, 1 to 3600 seconds. Default 5.
        pub retry_after_seconds: u32 = s.or("retryAfterSeconds", "5", numeric("a whole number", 1..=3600));
        /// Upper limit of random seconds that are added to it in each response, 0 to 3600. Default 0.
        pub retry_after_jitter_seconds: u32 = s.or("retryAfterJitterSeconds", "0", numeric("a whole number", 0..=3600));
    }

    /// KEP-4020: requests for resources that the local server does not serve.
    pub struct ReroutingConfig(s) {
        /// Whether they go to a peer that serves the resource. Default true.
        pub enabled: bool = s.or("enabled", "true", flag);
        pub unsynced: Unsynced = s.or("unsynced", "Reject", values::choice(Unsynced::NAMES));
        /// How long requests for resources that only an absent server served get 503 instead of 404; at least 1s. Default
        /// 1h.
        pub absent_server_grace: Duration = s.or("absentServerGrace", "1h", duration(Duration::from_secs(1)));
        pub bare_servers: BareServersMode = s.or("bareServers", "Auto", values::choice(BareServersMode::NAMES));
        /// Advertised addresses that lead to no server of their own. Default none.
        pub ignored_addresses: Vec<IpAddr> = s.list("ignoredAddresses", &[], values::ip);
    }

    /// Selection of servers by version.
    pub struct VersionAwarenessConfig(s) {
        /// Whether servers are chosen by version while versions differ. Default true.
        pub enabled: bool = s.or("enabled", "true", flag);
        /// The header with the version. Default `X-Kubernetes-Compatibility-Version`.
        pub header: HeaderName = s.or("header", "X-Kubernetes-Compatibility-Version", headers::name);
        pub default: DefaultVersion = s.or("default", "Any", values::choice(DefaultVersion::NAMES));
        /// With `default: Any`, whether a client of Kubernetes that is newer than the local server goes to a server that is
        /// not older than it, by its `User-Agent`. Default true.
        pub user_agents: bool = s.or("userAgents", "true", flag);
    }

    /// Discovery and OpenAPI documents.
    pub struct DiscoveryConfig(s) {
        pub mode: DiscoveryMode = s.or("mode", "Merged", values::choice(DiscoveryMode::NAMES));
    }

    /// Watches across restarts (KEP-1904).
    #[derive(Copy, Eq)]
    pub struct WatchConfig(s) {
        /// Whether a watch goes to a peer that still has the history that it needs. Default true.
        pub resume_routing: bool = s.or("resumeRouting", "true", flag);
        /// Whether watches get a last bookmark when the proxy stops. Default true.
        pub bookmark_on_shutdown: bool = s.or("bookmarkOnShutdown", "true", flag);
        /// Whether a watch whose apiserver stops goes on at another. Default true.
        pub hand_over: bool = s.or("handOver", "true", flag);
        /// How long such a watch is held open while nobody can serve it; may be 0. Default 30s.
        pub hand_over_timeout: Duration = s.or("handOverTimeout", "30s", duration(Duration::ZERO));
    }

    /// Graceful shutdown.
    pub struct ShutdownConfig(s) {
        /// How long the proxy still serves everything after `/readyz` has begun to fail; may be 0. Default 5s.
        pub delay: Duration = s.or("delay", "5s", duration(Duration::ZERO));
        /// The period over which long-running requests are ended; may be 0. Default 60s.
        pub drain: Duration = s.or("drain", "60s", duration(Duration::ZERO));
    }

    /// The admin ports.
    pub struct AdminConfig(s) {
        /// Plain HTTP on a loopback address; port 0: any free port (for tests). Default `127.0.0.1:6450`.
        pub bind_address: SocketAddr = s.or("bindAddress", "127.0.0.1:6450", values::loopback);
        /// Where metrics and health are served to other hosts over TLS; port 0: any free port (for tests). Default none.
        pub secure_bind_address: Option<SocketAddr> = s.optional("secureBindAddress", address);
    }

    /// Spans of requests.
    pub struct TracingConfig(s) {
        /// host:port of an OTLP receiver, gRPC without TLS; `None`: no spans. Default none.
        pub endpoint: Option<String> = s.or("endpoint", "''", values::host_and_port);
        /// How many of a million requests without a `traceparent` are sampled. Default 0.
        pub sampling_rate_per_million: u32 = s.or("samplingRatePerMillion", "0", numeric("a whole number", 0..=1_000_000));
    }

    /// Log lines.
    pub struct LoggingConfig(s) {
        /// Which lines are written, as tracing's directives. Default `info,access=off,pingora_core=warn`.
        pub filter: String = s.or("filter", "info,access=off,pingora_core=warn", values::log_filter);
    }
}

choices! {
    /// Whether the proxy keeps an identity Lease. Default `Auto`.
    pub enum PublishLease {
        /// If the kube-apiserver publishes none.
        Auto,
        /// Always, unless another process keeps the Lease: a kube-apiserver's own Lease is never overwritten.
        Always,
        /// Never; expired Leases of other proxies are not deleted either.
        Never,
    }

    /// What happens to a request while the server is not initialized. Default `Retry`.
    pub enum IfReadyMode {
        /// The proxy rejects it with 503 and `Retry-After`.
        Retry,
        /// The server processes it; a response header says that the server was not ready.
        Annotate,
    }

    /// Which requests need an initialized server. Default `OptIn`.
    pub enum Enforce {
        /// Those with `X-Kubernetes-If-Ready`.
        OptIn,
        /// All except health, metrics and version.
        Always,
    }

    /// What apiservers without a proxy count as. Default `Auto`.
    pub enum BareServersMode {
        /// They are peers.
        Auto,
        /// They are not looked for.
        Ignore,
    }

    /// What happens to requests before etcd was read completely for the first time. Default `Reject`.
    pub enum Unsynced {
        /// The proxy answers 503.
        Reject,
        /// The local server answers them.
        ServeLocal,
    }

    /// Which servers come first while versions differ, for requests that name no version. Default `Any`.
    pub enum DefaultVersion {
        /// The local server.
        Any,
        /// The oldest server: all write what every server understands.
        Oldest,
        /// The newest server: no field is dropped.
        Newest,
    }

    /// Oldest version of TLS. Default `VersionTLS12`.
    pub enum MinTlsVersion {
        VersionTLS12,
        VersionTLS13,
    }

    /// Whose discovery documents clients see. Default `Merged`.
    pub enum DiscoveryMode {
        /// Documents of all servers, merged.
        Merged,
        /// Documents of the newest server.
        Newest,
        /// Documents of the local server.
        Local,
    }
}

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SniName {
    /// A DNS name in lower case; its first label may be `*`.
    Domain(String),
    /// The address that it connected to, if it sends no name.
    Address(IpAddr),
}

/// A certificate and its private key, PEM files.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyPair {
    /// The chain, leaf first.
    pub cert_file: PathBuf,
    /// The private key, not encrypted.
    pub key_file: PathBuf,
}

impl KeyPair {
    fn read(s: &mut Section<'_, '_>, cert: &'static str, key: &'static str) -> Option<Self> {
        let (cert_file, key_file) = (s.file(cert), s.file(key));
        Some(Self {
            cert_file: cert_file?,
            key_file: key_file?,
        })
    }

    fn read_optional(
        s: &mut Section<'_, '_>,
        cert: &'static str,
        key: &'static str,
    ) -> Option<Option<Self>> {
        let (cert_file, key_file) = (s.optional_file(cert), s.optional_file(key));
        let pair = cert_file?.zip(key_file?);
        Some(pair.map(|(cert_file, key_file)| Self {
            cert_file,
            key_file,
        }))
    }
}
