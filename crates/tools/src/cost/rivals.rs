//! The programs that the proxy is compared with, configured for the same work: TLS with client certificates on both
//! sides, HTTP/2 on both sides (nginx: HTTP/1.1 upstream, it has no other), any upstream connection for any request,
//! forged identity removed and the true one written.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::{Value, json};
use testkit::pki::{Pki, SERVER_NAME};

use super::haproxy::{HaProxy, client_cas, find};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Rival {
    #[value(name = "haproxy")]
    HaProxy,
    Nginx,
    Envoy,
}

/// Where one runs.
pub struct Place<'a> {
    pub pki: &'a Pki,
    /// For its files.
    pub dir: &'a Path,
    pub listens: SocketAddr,
    pub upstream: SocketAddr,
    pub envoy: &'a Path,
}

impl Rival {
    pub fn name(self) -> &'static str {
        match self {
            Self::HaProxy => "HAProxy",
            Self::Nginx => "nginx",
            Self::Envoy => "Envoy",
        }
    }

    /// HAProxy, which the goals are set by, and of the others those that are there.
    pub fn installed(envoy: &Path) -> Vec<Self> {
        let mut installed = vec![Self::HaProxy];
        installed.extend(find("nginx").map(|_| Self::Nginx));
        installed.extend(find(envoy).map(|_| Self::Envoy));
        installed
    }

    /// Writes its configuration. Returns its program and arguments.
    pub fn configure(self, place: &Place<'_>) -> Vec<String> {
        let (file, text) = match self {
            Self::HaProxy => ("haproxy.cfg", haproxy(place)),
            Self::Nginx => (
                "nginx.conf",
                nginx(place.pki, place.dir, &[place.listens], place.upstream),
            ),
            Self::Envoy => ("envoy.json", envoy(place).to_string()),
        };
        let file = place.dir.join(file);
        std::fs::write(&file, text).unwrap();
        let (file, dir) = (file.display().to_string(), place.dir.display().to_string());
        let envoy = place.envoy.display().to_string();
        let command: &[&str] = match self {
            Self::HaProxy => return HaProxy::command(file.as_ref()),
            Self::Nginx => &["nginx", "-c", &file, "-p", &dir],
            Self::Envoy => &[
                &envoy,
                "-c",
                &file,
                "--concurrency",
                "1",
                "--log-level",
                "error",
                "--disable-hot-restart",
            ],
        };
        let mut command: Vec<_> = command.iter().map(ToString::to_string).collect();
        if let Some(found) = find(&command[0]) {
            command[0] = found.display().to_string();
        }
        command
    }
}

fn haproxy(place: &Place<'_>) -> String {
    let haproxy = HaProxy {
        pki: place.pki,
        dir: place.dir,
        listens: place.listens,
    };
    let upstream = place.upstream;
    haproxy.config(|tls| format!(" http-reuse always\n server s {upstream} alpn h2 {tls}\n"))
}

/// nginx from `listens` to `upstream`. Further locations go where it says so.
pub fn nginx(pki: &Pki, dir: &Path, listens: &[SocketAddr], upstream: SocketAddr) -> String {
    let listens: String = listens
        .iter()
        .map(|address| format!("listen {address} ssl http2; "))
        .collect();
    let clients = client_cas(pki, dir);
    let file = |name: &str| pki.file(name);
    let (server, server_key, ca) = (file("apiserver.crt"), file("apiserver.key"), file("ca.crt"));
    let (client, client_key) = (
        file("front-proxy-client.crt"),
        file("front-proxy-client.key"),
    );
    let files = dir.display();
    // Its own directory for everything that it may write.
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {files}/{kind};\n"))
        .concat();
    format!(
        "daemon off; master_process off; pid {files}/pid; error_log {files}/errors;
events {{ worker_connections 8192; }}
http {{
access_log off; default_type application/json; sendfile on; tcp_nodelay on;
keepalive_requests 1000000000; keepalive_timeout 1h; http2_max_concurrent_streams 250;
{temporary}
map $ssl_client_i_dn $user {{ default $ssl_client_s_dn; \"~front-proxy-ca\" $http_x_remote_user; }}
upstream next {{ server {upstream}; keepalive 1024; keepalive_requests 1000000000; }}
server {{
{listens}ssl_certificate {server}; ssl_certificate_key {server_key};
ssl_client_certificate {clients}; ssl_verify_client optional; ssl_session_cache builtin:20000;
ssl_protocols TLSv1.2 TLSv1.3; proxy_ssl_protocols TLSv1.2 TLSv1.3;
# locations
location / {{
proxy_pass https://next; proxy_http_version 1.1; proxy_buffering off; proxy_read_timeout 1h;
proxy_set_header Host $host; proxy_set_header Connection \"\"; proxy_set_header X-Remote-User $user;
proxy_set_header X-Forwarded-For $remote_addr;
proxy_ssl_certificate {client}; proxy_ssl_certificate_key {client_key};
proxy_ssl_trusted_certificate {ca}; proxy_ssl_verify on; proxy_ssl_name {SERVER_NAME}; proxy_ssl_server_name on;
}} }} }}
"
    )
}

fn envoy(place: &Place<'_>) -> Value {
    let pki = place.pki;
    let address = |address: SocketAddr| json!({"socket_address": {"address": address.ip(), "port_value": address.port()}});
    let tls = |kind: &str, certificate: &str, ca: &str, alpn: &[&str]| {
        let files = |name: &str| {
            let file = |ending: &str| json!({"filename": pki.file(&format!("{name}.{ending}"))});
            json!({"certificate_chain": file("crt"), "private_key": file("key")})
        };
        json!({
            "@type": format!("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.{kind}TlsContext"),
            "common_tls_context": {
                "alpn_protocols": alpn, "tls_certificates": [files(certificate)],
                "validation_context": {"trusted_ca": {"filename": ca}},
            },
        })
    };
    let extension = |name: &str| format!("type.googleapis.com/envoy.extensions.{name}");
    let manager = json!({
        "@type": extension("filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "cost", "use_remote_address": true, "stream_idle_timeout": "0s",
        "forward_client_cert_details": "SANITIZE_SET", "set_current_client_cert_details": {"subject": true},
        "http2_protocol_options": {"max_concurrent_streams": 250},
        "route_config": {"virtual_hosts": [{
            "name": "all", "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "next", "timeout": "0s"}}],
        }]},
        "http_filters": [{"name": "router", "typed_config": {"@type": extension("filters.http.router.v3.Router")}}],
    });
    let mut upstream_tls = tls(
        "Upstream",
        "front-proxy-client",
        &pki.file("ca.crt"),
        &["h2"],
    );
    upstream_tls["sni"] = json!(SERVER_NAME);
    let most = 1_000_000;
    json!({"static_resources": {
        "listeners": [{
            "address": address(place.listens),
            "filter_chains": [{
                "transport_socket": {
                    "name": "tls",
                    "typed_config": tls("Downstream", "apiserver", &client_cas(pki, place.dir), &["h2", "http/1.1"]),
                },
                "filters": [{"name": "http", "typed_config": manager}],
            }],
        }],
        "clusters": [{
            "name": "next", "type": "STATIC",
            "circuit_breakers": {"thresholds": [
                {"max_connections": most, "max_requests": most, "max_pending_requests": most}
            ]},
            "load_assignment": {"cluster_name": "next", "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": address(place.upstream)}}]}
            ]},
            "transport_socket": {"name": "tls", "typed_config": upstream_tls},
            "typed_extension_protocol_options": {
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": extension("upstreams.http.v3.HttpProtocolOptions"),
                    "explicit_http_config": {"http2_protocol_options": {}},
                },
            },
        }],
    }})
}
