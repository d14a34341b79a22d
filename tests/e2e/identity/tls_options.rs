//! Serving certificates by name, versions of TLS and cipher suites, as openssl and Go's TLS see them.

use std::net::SocketAddr;
use std::time::Duration;

use rustls::SupportedProtocolVersion;
use rustls::version::TLS12;
use tokio::process::Command;

use testkit::addr::Loopback;
use testkit::cluster::{Ground, LONG, Single};
use testkit::double::{DoubleOptions, v1_20};
use testkit::kubectl::Kubectl;
use testkit::openssl::{Forge, Wanted};
use testkit::pki::{LeafOptions, SERVER_NAME};
use testkit::proxy::ProxyOptions;
use testkit::wait::eventually;

const BROKEN: &str = "kube_interop_proxy_certificates_broken";
const EXPIRATION: &str = "kube_interop_proxy_certificate_expiration_timestamp_seconds";

/// What `openssl s_client` agreed on with the server.
#[derive(Debug, Default, PartialEq, Eq)]
struct Agreed {
    version: String,
    suite: String,
    subject: String,
}

/// A handshake; `None`: it failed.
async fn handshake(server: SocketAddr, name: Option<&str>, options: &[&str]) -> Option<Agreed> {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-brief", "-connect", &server.to_string()]);
    match name {
        Some(name) => command.args(["-servername", name]),
        None => command.arg("-noservername"),
    };
    let output = command.args(options).kill_on_drop(true).output();
    let output = tokio::time::timeout(LONG, output).await;
    let output = output.expect("an end of openssl").expect("openssl");
    let said = String::from_utf8_lossy(&output.stderr);
    let field = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().replace(' ', ""))
    };
    Some(Agreed {
        version: field("Protocol version:")?,
        suite: field("Ciphersuite:")?,
        subject: field("Peer certificate:").expect("a subject"),
    })
}

async fn subject(server: SocketAddr, name: Option<&str>, options: &[&str]) -> String {
    let agreed = handshake(server, name, options).await;
    agreed.unwrap_or_default().subject
}

/// A double with a proxy that has further certificates: `rsa.` (by its own names), `wild.` (explicit names) and that of
/// another address.
async fn certified() -> (Loopback, Forge, Single) {
    let ground = Ground::new().await;
    let forge = Forge::new(&ground.dir.path().join("forge"));
    let other = Loopback::new();
    forge.root("ca", &Wanted::authority("forge"));
    forge.key("rsa", "rsa:2048");
    for (name, names) in [
        ("rsa", "DNS:rsa.example.com,DNS:kubectl.example.com"),
        ("wild", "DNS:a.wild.example.com"),
        ("address", "DNS:address.example.com"),
    ] {
        let wanted = Wanted::new(&format!("/CN={name} certificate"));
        let wanted = wanted.extension(&format!("subjectAltName={names}"));
        forge.issue(name, "ca", &wanted);
    }
    let pair = |name: &str| {
        let file = |end: &str| forge.path(&format!("{name}.{end}")).display().to_string();
        format!("certFile: {}, keyFile: {}", file("crt"), file("key"))
    };
    let list = format!(
        "[{{{}}}, {{{}, names: ['*.wild.example.com']}}, {{{}, names: ['{}']}}]",
        pair("rsa"),
        pair("wild"),
        pair("address"),
        other.ip()
    );
    let additional = format!("['{}']", other.socket(6443));
    let double = DoubleOptions::new(ground.pki.dir(), v1_20());
    let single = Single::on(ground, double, |options| {
        options
            .set("serving.additionalBindAddresses", &additional)
            .set("serving.sniCertificates", &list)
    })
    .await;
    (other, forge, single)
}

#[tokio::test]
async fn clients_get_the_certificate_of_the_name_that_they_ask_for() {
    let (other, forge, single) = certified().await;
    let (serving, other) = (single.proxy.addr(), other.socket(6443));
    for tls in ["-tls1_2", "-tls1_3"] {
        for (server, name, expected) in [
            (serving, None, "CN=kube-apiserver"),
            (serving, Some(SERVER_NAME), "CN=kube-apiserver"),
            (serving, Some("nobody.example.com"), "CN=kube-apiserver"),
            (serving, Some("rsa.example.com"), "CN=rsacertificate"),
            (serving, Some("RSA.Example.COM"), "CN=rsacertificate"),
            (serving, Some("b.wild.example.com"), "CN=wildcertificate"),
            (serving, Some("a.b.wild.example.com"), "CN=kube-apiserver"),
            (other, None, "CN=addresscertificate"),
            (other, Some(SERVER_NAME), "CN=kube-apiserver"),
            (other, Some("rsa.example.com"), "CN=rsacertificate"),
        ] {
            let found = subject(server, name, &[tls]).await;
            assert_eq!(found, expected, "{name:?} at {server} with {tls}");
        }
    }
    // A client that knows no ECDSA: the default certificate is of no use to it.
    let old = ["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"];
    assert_eq!(subject(serving, None, &old).await, "CN=rsacertificate");
    // Go, which verifies.
    let kubectl = Kubectl::new(serving, &single.ground.pki, single.ground.dir.path());
    let kubectl = kubectl.cert(&single.ground.pki, "admin");
    let authority = forge.path("ca.crt").display().to_string();
    let authority = format!("--certificate-authority={authority}");
    let name = "--tls-server-name=kubectl.example.com";
    let arguments = ["get", "--raw", "/version", &authority, name];
    let version = kubectl.run(&arguments).await;
    assert!(version.contains("gitVersion"));
    let version = kubectl.run(&["get", "--raw", "/version"]).await;
    assert!(version.contains("gitVersion"));
}

#[tokio::test]
async fn only_the_versions_and_suites_of_the_configuration_are_spoken() {
    const ALL: [&str; 3] = [
        "TLS_AES_256_GCM_SHA384",
        "TLS_AES_128_GCM_SHA256",
        "TLS_CHACHA20_POLY1305_SHA256",
    ];
    const ONLY_TLS12: &[&SupportedProtocolVersion] = &[&TLS12];
    const AES_256: &str = "ECDHE-ECDSA-AES256-GCM-SHA384";
    for (key, value, tls12, tls13) in [
        ("minTLSVersion", "VersionTLS13", None, &ALL[..]),
        (
            "cipherSuites",
            "[TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]",
            Some(AES_256),
            &ALL[..],
        ),
        (
            "cipherSuites",
            "[TLS_AES_256_GCM_SHA384, TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]",
            Some(AES_256),
            &ALL[..1],
        ),
        ("cipherSuites", "[TLS_AES_256_GCM_SHA384]", None, &ALL[..1]),
    ] {
        let set = |options: ProxyOptions| options.set(&format!("serving.{key}"), value);
        let world = Single::with(set).await;
        let server = world.proxy.addr();
        let name = Some(SERVER_NAME);
        for suite in [
            AES_256,
            "ECDHE-ECDSA-AES128-GCM-SHA256",
            "ECDHE-ECDSA-AES256-SHA",
        ] {
            let agreed = handshake(server, name, &["-tls1_2", "-cipher", suite]).await;
            let expected = tls12.filter(|only| *only == suite);
            let found = agreed.as_ref().map(|agreed| agreed.suite.as_str());
            assert_eq!(found, expected, "{value}: {suite}");
        }
        for suite in ALL {
            let agreed = handshake(server, name, &["-tls1_3", "-ciphersuites", suite]).await;
            let agreed = agreed.map(|agreed| agreed.version);
            let expected = tls13.contains(&suite).then_some("TLSv1.3");
            assert_eq!(agreed.as_deref(), expected, "{value}: {suite}");
        }
        if tls12.is_some() {
            let client = world.client().cert("admin").tls(ONLY_TLS12).http2();
            assert_eq!(client.get("/version").await.code(), 200);
        }
        // Go's defaults.
        let kubectl = Kubectl::new(server, &world.ground.pki, world.ground.dir.path());
        let kubectl = kubectl.cert(&world.ground.pki, "admin");
        let version = kubectl.run(&["get", "--raw", "/version"]).await;
        assert!(version.contains("gitVersion"), "{value}");
    }
}

#[tokio::test]
async fn a_certificate_of_a_name_is_replaced_like_the_others() {
    let (_other, forge, mut single) = certified().await;
    let name = Some("rsa.example.com");
    let pki = &single.ground.pki;
    let path = |end: &str| forge.path(&format!("rsa.{end}"));
    let copy = |from: &str| {
        std::fs::copy(pki.path(&format!("{from}.crt")), path("crt")).unwrap();
        std::fs::copy(pki.path(&format!("{from}.key")), path("key")).unwrap();
    };
    let (crt, key) = (std::fs::read(path("crt")), std::fs::read(path("key")));
    let broken = async || single.proxy.metric(BROKEN, &[("files", "serving")]).await;
    // A chain that is longer than a message of TLS may be.
    let long = String::from_utf8(crt.as_ref().unwrap().repeat(200)).unwrap();
    for (file, contents) in [("crt", "nonsense"), ("key", ""), ("crt", &long)] {
        std::fs::write(path(file), contents).unwrap();
        eventually("that is noticed", LONG, async || broken().await == 1.0).await;
        let found = subject(single.proxy.addr(), name, &[]).await;
        assert_eq!(found, "CN=rsacertificate", "{file}");
        std::fs::write(path("crt"), crt.as_ref().unwrap()).unwrap();
        std::fs::write(path("key"), key.as_ref().unwrap()).unwrap();
        eventually("it is good again", LONG, async || broken().await == 0.0).await;
    }
    let renewed = LeafOptions::server("renewed", &["rsa.example.com"])
        .for_another(Duration::from_secs(60 * 60));
    pki.leaf("renewed", "ca", &renewed);
    copy("renewed");
    eventually("the new one is in use", LONG, async || {
        subject(single.proxy.addr(), name, &[]).await == "CN=renewed"
    })
    .await;
    let labels = [("file", "serving.sniCertificates[0].certFile")];
    let expires = renewed.not_after.unix_timestamp() as f64;
    let is_its_own = |end| end == expires;
    single
        .proxy
        .until_metric(EXPIRATION, &labels, is_its_own)
        .await;
    let log = single.proxy.process().log().to_owned();
    eventually("that it expires is logged", LONG, async || {
        let log = std::fs::read_to_string(&log).unwrap();
        let is_it = |line: &str| line.contains(labels[0].1) && line.contains("will expire soon");
        log.lines().any(is_it)
    })
    .await;
}
