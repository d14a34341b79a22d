//! The sections of the file: every key once, with its default and its rules.
//!
//! Each function reads all keys of its section before it returns `None`, so that all their problems are noted.
//! To add a setting: a field in [`super`], a line here, the key in `config.example.yaml`, and `UPDATE_DOCS=1 cargo test --lib
//! reference`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderName;

use super::facts::Facts;
use super::files::{self, CertAndKey, KeyedFile};
use super::section::Section;
use super::{
    AdminConfig, ApiServerConfig, BareServersMode, DiscoveryConfig, DiscoveryMode, Enforce,
    EtcdConfig, IdentityConfig, IfReadyConfig, IfReadyMode, KeyPair, LoggingConfig, PeerConfig,
    PublishLease, RequestHeaders, ReroutingConfig, ServingConfig, ShutdownConfig, SniCertificate,
    TracingConfig, Unsynced, VersionAwarenessConfig, WatchConfig, etcd, headers, tls_options,
    values,
};

/// Highest `serving.goawayChance`, as in kube-apiserver: one request in fifty.
const MAX_GOAWAY_CHANCE: f64 = 0.02;

/// `serving`
pub(super) fn serving(s: &mut Section<'_, '_>, facts: &mut Facts<'_>) -> Option<ServingConfig> {
    let bind_address = s.required("bindAddress", values::address);
    facts.serving = bind_address;
    let additional_bind_addresses = s.list("additionalBindAddresses", &[], |node| {
        let address = values::destination(node);
        facts.additional.push(address.as_ref().ok().copied());
        address
    });
    let (tls, pair) = key_pair(s, ["certFile", "keyFile"], facts);
    facts.files.serving = pair;
    let client_ca_file = client_authorities(s, "clientCAFile", facts);
    let request_header_client_ca_file = client_authorities(s, "requestHeaderClientCAFile", facts);
    let allowed_names = s.list(
        "requestHeaderAllowedNames",
        &["front-proxy-client"],
        values::common_name,
    );
    let request_headers = request_headers(s, facts);
    let goaway_chance = s.or("goawayChance", 0u32, values::share(MAX_GOAWAY_CHANCE));
    let sni_certificates = sni_certificates(s, facts);
    let min_tls_version = s.or(
        "minTLSVersion",
        "VersionTLS12",
        tls_options::minimum_version,
    );
    let cipher_suites = s.list("cipherSuites", &[], tls_options::cipher_suite);
    if let (Some(users), Some(peers)) = (&client_ca_file, &request_header_client_ca_file)
        && allowed_names.as_ref().is_some_and(Vec::is_empty)
    {
        keep_apart(s, users, peers, facts);
    }
    Some(ServingConfig {
        bind_address: bind_address?,
        additional_bind_addresses: additional_bind_addresses?,
        tls: tls?,
        client_ca_file: client_ca_file?,
        request_header_client_ca_file: request_header_client_ca_file?,
        request_header_allowed_names: allowed_names?,
        request_headers: request_headers?,
        goaway_chance: goaway_chance?,
        sni_certificates: sni_certificates?,
        min_tls_version: min_tls_version?,
        cipher_suites: cipher_suites?,
    })
}

fn sni_certificates(s: &mut Section<'_, '_>, facts: &mut Facts<'_>) -> Option<Vec<SniCertificate>> {
    let keys = "certFile, keyFile and, if wanted, names";
    s.mappings("sniCertificates", keys, |s| {
        let (pair, files) = key_pair(s, ["certFile", "keyFile"], facts);
        facts.files.sni.push(files);
        let names = s.list("names", &[], tls_options::sni_name);
        Some(SniCertificate {
            pair: pair?,
            names: names?,
        })
    })
}

/// Without allowed names only the CAs distinguish peers from users.
fn keep_apart(s: &mut Section<'_, '_>, users: &Path, peers: &Path, facts: &mut Facts<'_>) {
    const PEERS: &str = "requestHeaderClientCAFile";
    if users == peers {
        s.problem(PEERS, files::SHARED_AUTHORITY);
        return;
    }
    let users: KeyedFile = (s.path("clientCAFile"), users.to_owned());
    facts.files.apart = Some((users, (s.path(PEERS), peers.to_owned())));
}

fn request_headers(s: &mut Section<'_, '_>, facts: &mut Facts<'_>) -> Option<RequestHeaders> {
    const USERNAME: &str = "requestHeaderUsernameHeaders";
    const GROUP: &str = "requestHeaderGroupHeaders";
    const EXTRA: &str = "requestHeaderExtraHeaderPrefixes";
    let username = header_names(s, USERNAME, "X-Remote-User", facts);
    let username = s.not_empty(USERNAME, username);
    let uid = header_names(s, "requestHeaderUidHeaders", "X-Remote-Uid", facts);
    let group = header_names(s, GROUP, "X-Remote-Group", facts);
    let group = s.not_empty(GROUP, group);
    let path = s.path(EXTRA);
    let extra_prefixes = s.list(EXTRA, &["X-Remote-Extra-"], |node| {
        let prefix = headers::prefix(node)?;
        facts
            .headers
            .push(headers::HeaderRole::prefix(path.clone(), &prefix));
        Ok(prefix)
    });
    Some(RequestHeaders {
        username: username?,
        uid: uid?,
        group: group?,
        extra_prefixes: extra_prefixes?,
    })
}

fn header_names(
    s: &mut Section<'_, '_>,
    key: &'static str,
    default: &str,
    facts: &mut Facts<'_>,
) -> Option<Vec<HeaderName>> {
    let path = s.path(key);
    s.list(key, &[default], |node| {
        let name = headers::name(node)?;
        facts
            .headers
            .push(headers::HeaderRole::name(path.clone(), &name));
        Ok(name)
    })
}

/// `apiServer`
pub(super) fn api_server(
    s: &mut Section<'_, '_>,
    facts: &mut Facts<'_>,
) -> Option<ApiServerConfig> {
    let address = s.or("address", "127.0.0.1:6443", values::destination);
    facts.api_server = address;
    let server_name = s.or("serverName", "kubernetes.default.svc", values::server_name);
    let ca_file = authorities(s, "caFile", facts);
    let (proxy_client, pair) = key_pair(s, ["proxyClientCertFile", "proxyClientKeyFile"], facts);
    facts.files.clients.push(pair);
    let internal_user = s.or("internalUser", "system:kube-interop-proxy", values::user);
    let probe_interval = s.or(
        "probeInterval",
        "500ms",
        values::duration(Duration::from_millis(10)),
    );
    let discovery_interval = s.or(
        "discoveryInterval",
        "10s",
        values::duration(Duration::from_millis(100)),
    );
    Some(ApiServerConfig {
        address: address?,
        server_name: server_name?,
        ca_file: ca_file?,
        proxy_client: proxy_client?,
        internal_user: internal_user?,
        probe_interval: probe_interval?,
        discovery_interval: discovery_interval?,
    })
}

/// `etcd`
pub(super) fn etcd(s: &mut Section<'_, '_>, facts: &mut Facts<'_>) -> Option<EtcdConfig> {
    let endpoints = s.required_list("endpoints", etcd::endpoint);
    let https = endpoints
        .as_ref()
        .and_then(|endpoints| all_https(s, endpoints));
    let [ca_file, cert_file, key_file] = ["caFile", "certFile", "keyFile"].map(|key| {
        let file = s.optional(key, values::path(facts.base))?;
        match (https, &file) {
            (Some(true), None) => s.problem(key, "required with https endpoints, but missing"),
            (Some(false), Some(_)) => s.problem(key, "has no use with http endpoints; remove it"),
            _ => {}
        }
        Some(file)
    });
    let named =
        |key: &str, file: &Option<Option<PathBuf>>| Some((s.path(key), file.clone().flatten()?));
    facts.files.authorities.extend(named("caFile", &ca_file));
    facts.files.clients.push(CertAndKey {
        cert: named("certFile", &cert_file),
        key: named("keyFile", &key_file),
    });
    let prefix = s.or("prefix", "/registry", etcd::prefix);
    let other_resources = s.list("otherResources", &[], values::resource);
    let client = cert_file?.zip(key_file?);
    Some(EtcdConfig {
        endpoints: endpoints?,
        ca_file: ca_file?,
        client: client.map(|(cert_file, key_file)| KeyPair {
            cert_file,
            key_file,
        }),
        prefix: prefix?,
        other_resources: other_resources?,
    })
}

/// Whether the endpoints use TLS; `None`: only some of them do.
fn all_https(s: &mut Section<'_, '_>, endpoints: &[String]) -> Option<bool> {
    let https = endpoints
        .iter()
        .filter(|endpoint| endpoint.starts_with("https:"))
        .count();
    if https > 0 && https < endpoints.len() {
        s.problem("endpoints", "must be all https or all http");
        return None;
    }
    Some(https > 0)
}

/// `identity`
pub(super) fn identity(s: &mut Section<'_, '_>) -> Option<IdentityConfig> {
    const PUBLISH_LEASE: &[(&str, PublishLease)] = &[
        ("Auto", PublishLease::Auto),
        ("Always", PublishLease::Always),
        ("Never", PublishLease::Never),
    ];
    let server_id = s.or("serverID", "", values::server_id);
    let namespaces = &["kube-system", "kube-apiserver-lease"];
    let lease_namespaces = s.list("leaseNamespaces", namespaces, values::namespace);
    let publish_lease = s.or("publishLease", "Auto", values::choice(PUBLISH_LEASE));
    let renew_interval = s.or(
        "renewInterval",
        "10s",
        values::duration(Duration::from_millis(100)),
    );
    let lease_duration = s.or(
        "leaseDuration",
        "1h",
        values::whole_seconds(Duration::from_secs(1)),
    );
    if publish_lease.is_some_and(|publish| publish != PublishLease::Never)
        && lease_namespaces.as_ref().is_some_and(Vec::is_empty)
    {
        s.problem(
            "leaseNamespaces",
            "must not be empty: the first is where the Lease is kept",
        );
    }
    if let (Some(renew), Some(duration)) = (renew_interval, lease_duration)
        && renew >= duration
    {
        s.problem("renewInterval", "must be shorter than leaseDuration");
    }
    Some(IdentityConfig {
        server_id: server_id?,
        lease_namespaces: lease_namespaces?,
        publish_lease: publish_lease?,
        renew_interval: renew_interval?,
        lease_duration: lease_duration?,
    })
}

/// `peer`
pub(super) fn peer(s: &mut Section<'_, '_>, facts: &mut Facts<'_>) -> Option<PeerConfig> {
    let advertise_address = s.required("advertiseAddress", values::address);
    facts.peer = advertise_address;
    let ca_file = authorities(s, "caFile", facts);
    let server_name = s.or("serverName", "kubernetes.default.svc", values::server_name);
    let lease_ttl = s.or(
        "leaseTTL",
        "15s",
        values::whole_seconds(Duration::from_secs(2)),
    );
    Some(PeerConfig {
        advertise_address: advertise_address?,
        ca_file: ca_file?,
        server_name: server_name?,
        lease_ttl: lease_ttl?,
    })
}

/// `ifReady`
pub(super) fn if_ready(s: &mut Section<'_, '_>) -> Option<IfReadyConfig> {
    const MODE: &[(&str, IfReadyMode)] = &[
        ("Retry", IfReadyMode::Retry),
        ("Annotate", IfReadyMode::Annotate),
    ];
    const ENFORCE: &[(&str, Enforce)] = &[("OptIn", Enforce::OptIn), ("Always", Enforce::Always)];
    let enabled = s.or("enabled", true, values::flag);
    let mode = s.or("mode", "Retry", values::choice(MODE));
    let enforce = s.or("enforce", "OptIn", values::choice(ENFORCE));
    let retry_after_seconds = s.or("retryAfterSeconds", 5, values::number(1..=3600));
    let jitter = s.or("retryAfterJitterSeconds", 0, values::number(0..=3600));
    Some(IfReadyConfig {
        enabled: enabled?,
        mode: mode?,
        enforce: enforce?,
        retry_after_seconds: retry_after_seconds?,
        retry_after_jitter_seconds: jitter?,
    })
}

/// `rerouting`
pub(super) fn rerouting(s: &mut Section<'_, '_>) -> Option<ReroutingConfig> {
    const UNSYNCED: &[(&str, Unsynced)] = &[
        ("Reject", Unsynced::Reject),
        ("ServeLocal", Unsynced::ServeLocal),
    ];
    const BARE_SERVERS: &[(&str, BareServersMode)] = &[
        ("Auto", BareServersMode::Auto),
        ("Ignore", BareServersMode::Ignore),
    ];
    let enabled = s.or("enabled", true, values::flag);
    let unsynced = s.or("unsynced", "Reject", values::choice(UNSYNCED));
    let absent_server_grace = s.or(
        "absentServerGrace",
        "1h",
        values::duration(Duration::from_secs(1)),
    );
    let bare_servers = s.or("bareServers", "Auto", values::choice(BARE_SERVERS));
    let ignored_addresses = s.list("ignoredAddresses", &[], values::ip);
    Some(ReroutingConfig {
        enabled: enabled?,
        unsynced: unsynced?,
        absent_server_grace: absent_server_grace?,
        bare_servers: bare_servers?,
        ignored_addresses: ignored_addresses?,
    })
}

/// `versionAwareness`
pub(super) fn version_awareness(
    s: &mut Section<'_, '_>,
    facts: &mut Facts<'_>,
) -> Option<VersionAwarenessConfig> {
    let enabled = s.or("enabled", true, values::flag);
    let header = s.or(
        "header",
        "X-Kubernetes-Compatibility-Version",
        headers::name,
    );
    if let Some(header) = &header {
        facts
            .headers
            .push(headers::HeaderRole::name(s.path("header"), header));
    }
    Some(VersionAwarenessConfig {
        enabled: enabled?,
        header: header?,
    })
}

/// `discovery`
pub(super) fn discovery(s: &mut Section<'_, '_>) -> Option<DiscoveryConfig> {
    const MODE: &[(&str, DiscoveryMode)] = &[
        ("Merged", DiscoveryMode::Merged),
        ("Newest", DiscoveryMode::Newest),
        ("Local", DiscoveryMode::Local),
    ];
    let mode = s.or("mode", "Merged", values::choice(MODE))?;
    Some(DiscoveryConfig { mode })
}

/// `watch`
pub(super) fn watch(s: &mut Section<'_, '_>) -> Option<WatchConfig> {
    let resume_routing = s.or("resumeRouting", true, values::flag);
    let bookmark_on_shutdown = s.or("bookmarkOnShutdown", true, values::flag);
    Some(WatchConfig {
        resume_routing: resume_routing?,
        bookmark_on_shutdown: bookmark_on_shutdown?,
    })
}

/// `shutdown`
pub(super) fn shutdown(s: &mut Section<'_, '_>) -> Option<ShutdownConfig> {
    let delay = s.or("delay", "5s", values::duration(Duration::ZERO));
    let drain = s.or("drain", "60s", values::duration(Duration::ZERO));
    Some(ShutdownConfig {
        delay: delay?,
        drain: drain?,
    })
}

/// `admin`
pub(super) fn admin(s: &mut Section<'_, '_>, facts: &mut Facts<'_>) -> Option<AdminConfig> {
    let bind_address = s.or("bindAddress", "127.0.0.1:10260", values::loopback);
    facts.admin = bind_address;
    let secure_bind_address = s.optional("secureBindAddress", values::address);
    facts.secure_admin = secure_bind_address.flatten();
    Some(AdminConfig {
        bind_address: bind_address?,
        secure_bind_address: secure_bind_address?,
    })
}

/// `tracing`
pub(super) fn tracing(s: &mut Section<'_, '_>) -> Option<TracingConfig> {
    let endpoint = s.or("endpoint", "", values::host_and_port);
    let rate = s.or(
        "samplingRatePerMillion",
        0u32,
        values::number(0..=1_000_000),
    );
    Some(TracingConfig {
        endpoint: endpoint?,
        sampling_rate_per_million: rate?,
    })
}

/// `logging`
pub(super) fn logging(s: &mut Section<'_, '_>) -> Option<LoggingConfig> {
    let filter = s.or(
        "filter",
        "info,access=off,pingora_core=warn",
        values::log_filter,
    );
    Some(LoggingConfig { filter: filter? })
}

/// The path of a required CA file, to be checked later.
fn authorities(
    s: &mut Section<'_, '_>,
    key: &'static str,
    facts: &mut Facts<'_>,
) -> Option<PathBuf> {
    let file = s.required(key, values::path(facts.base))?;
    facts.files.authorities.push((s.path(key), file.clone()));
    Some(file)
}

/// The path of a required file with CAs of clients, to be checked later.
fn client_authorities(
    s: &mut Section<'_, '_>,
    key: &'static str,
    facts: &mut Facts<'_>,
) -> Option<PathBuf> {
    let file = s.required(key, values::path(facts.base))?;
    let named = (s.path(key), file.clone());
    facts.files.client_authorities.push(named);
    Some(file)
}

/// The paths of a required certificate and its key, also as a pair to be checked later.
fn key_pair(
    s: &mut Section<'_, '_>,
    [cert, key]: [&'static str; 2],
    facts: &Facts<'_>,
) -> (Option<KeyPair>, CertAndKey) {
    let cert_file = s.required(cert, values::path(facts.base));
    let key_file = s.required(key, values::path(facts.base));
    let pair = CertAndKey {
        cert: cert_file.clone().map(|file| (s.path(cert), file)),
        key: key_file.clone().map(|file| (s.path(key), file)),
    };
    let files = cert_file.zip(key_file);
    (
        files.map(|(cert_file, key_file)| KeyPair {
            cert_file,
            key_file,
        }),
        pair,
    )
}
