//! Valid configuration files, and the problems reported for invalid ones.

mod files;
mod problems;
mod properties;
mod reference;
mod reloaded;
mod rules;
pub(super) mod survey;
mod tls_options;
mod values;

use std::path::Path;
use std::time::Duration;

use super::*;

/// The required keys only.
pub(super) const MINIMAL: &str = "\
apiVersion: kube-interop-proxy/v1alpha1
kind: ProxyConfiguration
serving:
  bindAddress: 10.0.0.11:6443
  certFile: serving.crt
  keyFile: serving.key
  clientCAFile: ca.crt
  requestHeaderClientCAFile: front-proxy-ca.crt
apiServer:
  caFile: ca.crt
  proxyClientCertFile: front-proxy-client.crt
  proxyClientKeyFile: front-proxy-client.key
etcd:
  endpoints: [https://127.0.0.1:2379]
  caFile: etcd-ca.crt
  certFile: etcd.crt
  keyFile: etcd.key
peer:
  advertiseAddress: 10.0.0.11:6443
  caFile: ca.crt
";

const EXAMPLE: &str = include_str!("../../config.example.yaml");

/// `MINIMAL` with one piece of it replaced.
pub(super) fn minimal_with(from: &str, to: &str) -> String {
    assert_eq!(
        MINIMAL.matches(from).count(),
        1,
        "{from:?} must be there once"
    );
    MINIMAL.replace(from, to)
}

/// `MINIMAL` with a section behind it.
pub(super) fn minimal_and(section: &str) -> String {
    format!("{MINIMAL}{section}\n")
}

pub(super) fn problems(text: &str) -> Vec<String> {
    let problems = parse(text).expect_err("must be refused");
    problems.iter().map(Problem::to_string).collect()
}

#[test]
fn everything_but_the_required_keys_has_the_default_of_the_documentation() {
    let config = parse(MINIMAL).unwrap();
    assert_eq!(
        config.serving.bind_address,
        "10.0.0.11:6443".parse().unwrap()
    );
    assert_eq!(config.serving.tls.cert_file, Path::new("serving.crt"));
    assert_eq!(config.serving.tls.key_file, Path::new("serving.key"));
    assert_eq!(config.serving.client_ca_file, Path::new("ca.crt"));
    assert_eq!(
        config.serving.request_header_client_ca_file,
        Path::new("front-proxy-ca.crt")
    );
    assert_eq!(
        config.serving.request_header_allowed_names,
        ["front-proxy-client"]
    );
    assert_eq!(config.serving.request_headers.username, ["x-remote-user"]);
    assert_eq!(config.serving.request_headers.uid, ["x-remote-uid"]);
    assert_eq!(config.serving.request_headers.group, ["x-remote-group"]);
    assert_eq!(
        config.serving.request_headers.extra_prefixes,
        ["x-remote-extra-"]
    );
    assert!(config.serving.sni_certificates.is_empty());
    assert_eq!(config.serving.min_tls_version, MinTlsVersion::VersionTLS12);
    assert!(config.serving.cipher_suites.is_empty());
    assert_eq!(config.api_server.address, "127.0.0.1:6443".parse().unwrap());
    assert_eq!(config.api_server.server_name, "kubernetes.default.svc");
    assert_eq!(config.api_server.internal_user, "system:kube-interop-proxy");
    assert_eq!(config.api_server.probe_interval, Duration::from_millis(500));
    assert_eq!(
        config.api_server.discovery_interval,
        Duration::from_secs(10)
    );
    assert_eq!(config.etcd.endpoints, ["https://127.0.0.1:2379"]);
    assert_eq!(
        config.etcd.ca_file.as_deref(),
        Some(Path::new("etcd-ca.crt"))
    );
    assert_eq!(config.etcd.client.unwrap().key_file, Path::new("etcd.key"));
    assert_eq!(config.etcd.prefix, "/registry");
    assert!(config.etcd.other_resources.is_empty());
    assert_eq!(config.identity.server_id, None);
    assert_eq!(
        config.identity.lease_namespaces,
        ["kube-system", "kube-apiserver-lease"]
    );
    assert_eq!(config.identity.renew_interval, Duration::from_secs(10));
    assert_eq!(config.identity.lease_duration, Duration::from_secs(3600));
    assert_eq!(
        config.peer.advertise_address,
        "10.0.0.11:6443".parse().unwrap()
    );
    assert_eq!(config.peer.server_name, "kubernetes.default.svc");
    assert_eq!(config.peer.lease_ttl, Duration::from_secs(15));
    assert!(config.if_ready.enabled);
    assert_eq!(config.if_ready.mode, IfReadyMode::Retry);
    assert_eq!(config.if_ready.enforce, Enforce::OptIn);
    assert_eq!(config.if_ready.retry_after_seconds, 5);
    assert_eq!(config.if_ready.retry_after_jitter_seconds, 0);
    assert!(config.rerouting.enabled);
    assert_eq!(config.rerouting.unsynced, Unsynced::Reject);
    assert_eq!(
        config.rerouting.absent_server_grace,
        Duration::from_secs(3600)
    );
    assert!(config.version_awareness.enabled);
    assert_eq!(
        config.version_awareness.header,
        "x-kubernetes-compatibility-version"
    );
    assert_eq!(config.shutdown.delay, Duration::from_secs(5));
    assert_eq!(config.shutdown.drain, Duration::from_secs(60));
    assert_eq!(config.admin.bind_address, "127.0.0.1:6450".parse().unwrap());
    assert_eq!(config.admin.secure_bind_address, None);
}

#[test]
fn modes_have_defaults() {
    let config = parse(MINIMAL).unwrap();
    assert_eq!(config.identity.publish_lease, PublishLease::Auto);
    assert_eq!(config.discovery.mode, DiscoveryMode::Merged);
}

#[test]
fn the_example_has_every_default() {
    let example = parse(EXAMPLE).unwrap();
    let pki = |file: &str| Path::new("/etc/kubernetes/pki").join(file);
    let mut minimal = parse(MINIMAL).unwrap();
    minimal.serving.tls.cert_file = pki("apiserver.crt");
    minimal.serving.tls.key_file = pki("apiserver.key");
    minimal.serving.client_ca_file = pki("ca.crt");
    minimal.serving.request_header_client_ca_file = pki("front-proxy-ca.crt");
    minimal.api_server.ca_file = pki("ca.crt");
    minimal.api_server.proxy_client.cert_file = pki("front-proxy-client.crt");
    minimal.api_server.proxy_client.key_file = pki("front-proxy-client.key");
    minimal.etcd.ca_file = Some(pki("etcd/ca.crt"));
    minimal.etcd.client = Some(KeyPair {
        cert_file: pki("apiserver-etcd-client.crt"),
        key_file: pki("apiserver-etcd-client.key"),
    });
    minimal.peer.ca_file = pki("ca.crt");
    assert_eq!(example, minimal);
}

/// A wrong key in every section makes the program list the keys that it knows.
#[test]
fn the_example_has_every_key() {
    let mut unknown = String::from("q: 0\n");
    for line in EXAMPLE
        .lines()
        .filter(|line| line.starts_with(char::is_alphabetic) && line.ends_with(':'))
    {
        unknown += &format!("{line}\n  q: 0\n");
    }
    let known = problems(&unknown).into_iter().filter_map(|problem| {
        let keys = problem.split_once("expected one of ")?.1.to_owned();
        Some(keys.split(", ").map(str::to_owned).collect::<Vec<_>>())
    });
    let known: Vec<String> = known.flatten().collect();
    assert_eq!(
        known.len(),
        16 + 15 + 8 + 6 + 5 + 5 + 5 + 4 + 4 + 1 + 2 + 4 + 2 + 2 + 1
    );
    for key in known {
        let written = EXAMPLE
            .lines()
            .any(|line| line.trim_start().starts_with(&format!("{key}:")));
        assert!(written, "{key} is not in config.example.yaml");
    }
}

#[test]
fn all_settings_at_once_in_another_style() {
    let text = EXAMPLE
        .replace(
            "bindAddress: 10.0.0.11:6443",
            "\"bindAddress\": '[2001:db8::11]:6443'",
        )
        .replace(
            "serverID: \"\"",
            "serverID: apiserver-tqsyvnc7rs47fayzipsuqpfg4m",
        )
        .replace(
            "requestHeaderUidHeaders: [X-Remote-Uid]",
            "requestHeaderUidHeaders: []",
        )
        .replace(
            "otherResources: []",
            "otherResources: [events, events.events.k8s.io]",
        )
        .replace("delay: 5s", "delay: 0s")
        .replace("mode: Retry", "mode: Annotate")
        .replace("enforce: OptIn", "enforce: Always")
        .replace("retryAfterJitterSeconds: 0", "retryAfterJitterSeconds: 60")
        .replace("unsynced: Reject", "unsynced: ServeLocal");
    let config = parse(&text).unwrap();
    assert_eq!(
        config.serving.bind_address,
        "[2001:db8::11]:6443".parse().unwrap()
    );
    assert_eq!(
        config.identity.server_id.unwrap(),
        "apiserver-tqsyvnc7rs47fayzipsuqpfg4m"
    );
    assert!(config.serving.request_headers.uid.is_empty());
    assert_eq!(
        config.etcd.other_resources,
        ["events", "events.events.k8s.io"]
    );
    assert_eq!(config.shutdown.delay, Duration::ZERO);
    assert_eq!(config.rerouting.unsynced, Unsynced::ServeLocal);
    assert_eq!(config.if_ready.mode, IfReadyMode::Annotate);
    assert_eq!(config.if_ready.enforce, Enforce::Always);
    assert_eq!(config.if_ready.retry_after_jitter_seconds, 60);
}

#[test]
fn nothing_at_a_key_is_the_same_as_leaving_it_out() {
    let text = minimal_and("shutdown:\nadmin: ~\nwatch:\n  resumeRouting: null");
    assert_eq!(parse(&text), parse(MINIMAL));
    let text = minimal_with("  certFile: serving.crt", "  certFile:");
    assert_eq!(
        problems(&text),
        ["serving.certFile (line 5): required, but missing"]
    );
}

#[test]
fn anchors_work() {
    let text = MINIMAL.replace(
        "  bindAddress: 10.0.0.11:6443",
        "  bindAddress: &node 10.0.0.11:6443",
    );
    let text = text.replace(
        "  advertiseAddress: 10.0.0.11:6443",
        "  advertiseAddress: *node",
    );
    assert_eq!(parse(&text), parse(MINIMAL));
}

#[test]
fn json_works() {
    let text = r#"{"apiVersion": "kube-interop-proxy/v1alpha1", "kind": "ProxyConfiguration",
        "serving": {"bindAddress": "10.0.0.11:6443", "certFile": "serving.crt", "keyFile": "serving.key",
            "clientCAFile": "ca.crt", "requestHeaderClientCAFile": "front-proxy-ca.crt"},
        "apiServer": {"caFile": "ca.crt", "proxyClientCertFile": "front-proxy-client.crt",
            "proxyClientKeyFile": "front-proxy-client.key"},
        "etcd": {"endpoints": ["https://127.0.0.1:2379"],
            "caFile": "etcd-ca.crt", "certFile": "etcd.crt", "keyFile": "etcd.key"},
        "peer": {"advertiseAddress": "10.0.0.11:6443", "caFile": "ca.crt"}}"#;
    assert_eq!(parse(text), parse(MINIMAL));
    assert_eq!(
        problems(&text.replace(
            "\"caFile\": \"etcd-ca.crt\"",
            "\"caFile\": \"etcd-ca.crt\",\n\"caFiles\": 1"
        )),
        [
            "etcd.caFiles (line 8): unknown key; expected one of endpoints, caFile, certFile, keyFile, prefix, otherResources"
        ]
    );
}
