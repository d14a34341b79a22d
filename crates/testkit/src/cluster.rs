//! Two different apiserver doubles, real etcd, and a proxy for each double.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use k8s_pb::apimachinery::pkg::apis::meta::v1::Status;
use k8s_pb::apimachinery::pkg::runtime::Unknown;
use prost::Message as _;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio_rustls::TlsAcceptor;

use crate::addr::Loopback;
use crate::client::Client;
use crate::double::tls::server_config;
use crate::double::{Double, DoubleOptions, Preset, v1_20, v1_36};
use crate::etcd::{Etcd, EtcdOptions};
use crate::kube::{self, KubeApiServer, KubeOptions};
use crate::pki::Pki;
use crate::process::program;
use crate::proxy::{Proxy, ProxyOptions, Until};
use crate::wait::eventually;

/// What only B serves.
pub const HPAS: &str = "/apis/autoscaling/v1/horizontalpodautoscalers";
/// The same, in a namespace.
pub const HPAS_IN_DEFAULT: &str =
    "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
pub const REROUTED: &str = "kubernetes_apiserver_rerouted_request_total";
/// What is awaited comes long before: a busy machine must not fail a test.
pub const LONG: Duration = Duration::from_secs(60);

/// Names a proxy that is built already, optimized for instance, in place of that of this build.
const PROGRAM: &str = "KUBE_INTEROP_PROXY_PROGRAM";

/// The proxy.
pub fn binary() -> &'static Path {
    static BINARY: LazyLock<PathBuf> = LazyLock::new(|| match std::env::var_os(PROGRAM) {
        Some(given) => PathBuf::from(given),
        None => program("kube-interop-proxy"),
    });
    &BINARY
}

/// Of a directory: what the test is called, whose thread this is. So it is in the arguments of its programs.
fn prefix() -> String {
    let thread = std::thread::current();
    let name = thread.name().and_then(|name| name.rsplit("::").next());
    let name = name.unwrap_or_default().chars().take(40);
    name.chain(['-']).collect()
}

/// Directory, PKI and etcd of one test.
pub struct Ground {
    pub dir: TempDir,
    pub pki: Pki,
    pub etcd: Etcd,
}

impl Ground {
    pub async fn new() -> Self {
        Self::with(EtcdOptions::default()).await
    }

    pub async fn with(etcd: EtcdOptions) -> Self {
        let dir = tempfile::Builder::new().prefix(&prefix()).tempdir();
        let dir = dir.unwrap();
        let pki = Pki::new(&dir.path().join("pki"));
        let etcd = Etcd::start_with(dir.path(), &pki, etcd).await;
        Self { dir, pki, etcd }
    }

    /// With what a first kube-apiserver writes: namespaces, roles, the Service `kubernetes`. Written once for all tests, it
    /// saves each of them a second of processor time. Which certificates that server had it does not tell.
    pub async fn bootstrapped() -> Self {
        Self::bootstrapped_with(EtcdOptions::default()).await
    }

    /// The same with another etcd.
    pub async fn bootstrapped_with(mut etcd: EtcdOptions) -> Self {
        static WRITTEN: OnceCell<Vec<u8>> = OnceCell::const_new();
        // Not all versions read what each of them writes.
        if !kube::are_given() {
            etcd.snapshot = Some(WRITTEN.get_or_init(Self::what_a_first_one_writes).await);
        }
        Self::with(etcd).await
    }

    async fn what_a_first_one_writes() -> Vec<u8> {
        let ground = Self::new().await;
        let mut server = KubeApiServer::start(ground.kube("first"), &ground.pki).await;
        let of_its_certificates =
            "/registry/configmaps/kube-system/extension-apiserver-authentication";
        // Both are written after it is ready. Without the Service its address would be taken, for minutes.
        for key in [
            of_its_certificates,
            "/registry/services/specs/default/kubernetes",
        ] {
            eventually(key, LONG, async || !ground.etcd.below(key).await.is_empty()).await;
        }
        server.kill();
        let mut etcd = ground.etcd.client().await;
        let deleted = etcd.delete(of_its_certificates, None).await;
        assert_eq!(deleted.expect("an answer of etcd").deleted(), 1);
        ground.etcd.snapshot().await
    }

    pub async fn double(&self, preset: Preset) -> Double {
        Double::start(DoubleOptions::new(self.pki.dir(), preset)).await
    }

    /// A kube-apiserver on this etcd, without the beta versions that few tests are about: it starts sooner.
    pub fn kube(&self, host_name: &str) -> KubeOptions {
        KubeOptions::new(self.dir.path(), &self.pki, &self.etcd, host_name).betas(false)
    }

    /// For hand-written servers: a listener at a unique address, and the apiserver's certificate.
    pub async fn listen(&self, alpn: &[&str]) -> (Loopback, TcpListener, TlsAcceptor) {
        let address = Loopback::new();
        let listener = TcpListener::bind(address.socket(6443)).await.unwrap();
        let tls = server_config(self.pki.dir(), alpn);
        (address, listener, TlsAcceptor::from(Arc::new(tls)))
    }

    pub fn proxy(&self, id: &str, api_server: SocketAddr) -> ProxyOptions {
        let endpoint = self.etcd.endpoint();
        ProxyOptions::new(binary(), self.dir.path(), &self.pki, api_server, &endpoint).server_id(id)
    }

    /// A proxy beside a hand-written server, which says nothing of use but that it is ready.
    pub async fn proxy_beside(&self, server: SocketAddr) -> Proxy {
        let proxy = Proxy::start(self.proxy("a", server)).await;
        eventually("it sees its server, and etcd is read", LONG, async || {
            let status = proxy.statusz().await;
            status["server"]["initialized"] == true && status["etcd"]["synced"] == true
        })
        .await;
        proxy
    }
}

/// One apiserver double with a proxy, which is ready unless the test wants it otherwise.
pub struct Single {
    pub double: Double,
    pub proxy: Proxy,
    pub ground: Ground,
}

impl Single {
    pub async fn new() -> Self {
        Self::with(|options| options).await
    }

    pub async fn with(change: impl Fn(ProxyOptions) -> ProxyOptions) -> Self {
        Self::build(&["h2", "http/1.1"], change).await
    }

    /// The apiserver speaks only this, by ALPN.
    pub async fn speaking(alpn: &[&'static str]) -> Self {
        Self::build(alpn, |options| options).await
    }

    async fn build(alpn: &[&'static str], change: impl Fn(ProxyOptions) -> ProxyOptions) -> Self {
        let ground = Ground::new().await;
        let mut options = DoubleOptions::new(ground.pki.dir(), v1_20());
        options.alpn = alpn.to_vec();
        Self::on(ground, options, change).await
    }

    /// Any double; `change`: of the proxy's options.
    pub async fn on(
        ground: Ground,
        double: DoubleOptions,
        change: impl FnOnce(ProxyOptions) -> ProxyOptions,
    ) -> Self {
        let double = Double::start(double).await;
        let options = ground.proxy("a", double.addr()).until(Until::Ready);
        let proxy = Proxy::start(change(options)).await;
        double.take_requests();
        Self {
            double,
            proxy,
            ground,
        }
    }

    /// A client of the proxy, without identity.
    pub fn client(&self) -> Client {
        self.proxy.client(&self.ground.pki)
    }

    /// The administrator over HTTP/1.1 and over HTTP/2.
    pub fn admins(&self) -> [Client; 2] {
        let client = self.client().cert("admin");
        [client.http1(), client.http2()]
    }
}

/// Before an apiserver of HTTP/2, and before one of HTTP/1.1.
pub async fn of_each_version() -> [Single; 2] {
    let (http2, http1) = tokio::join!(Single::new(), Single::speaking(&["http/1.1"]));
    [http2, http1]
}

/// For tests that are not about dying: a busy machine may keep a proxy from writing its live key for longer than it
/// lives in the others.
pub fn patient(options: ProxyOptions) -> ProxyOptions {
    options.set("peer.leaseTTL", "10s")
}

/// A without the autoscaling group, B with it.
pub struct Cluster {
    pub a: Double,
    pub b: Double,
    pub proxy_a: Proxy,
    pub proxy_b: Proxy,
    pub ground: Ground,
}

impl Cluster {
    /// Both of Kubernetes 1.20: legacy discovery.
    pub async fn new() -> Self {
        Self::with(v1_20(), patient).await
    }

    /// Both of Kubernetes 1.36: aggregated discovery.
    pub async fn modern() -> Self {
        Self::with(v1_36(), patient).await
    }

    /// `change`: of both proxies' options.
    pub async fn with(preset: Preset, change: impl Fn(ProxyOptions) -> ProxyOptions) -> Self {
        Self::on(Ground::new().await, preset, |_, options| change(options)).await
    }

    /// `change`: of the options of the proxy with this ID.
    pub async fn on(
        ground: Ground,
        preset: Preset,
        change: impl Fn(&str, ProxyOptions) -> ProxyOptions,
    ) -> Self {
        let a = ground
            .double(preset.clone().without_group("autoscaling"))
            .await;
        let b = ground.double(preset).await;
        let ready = |id, addr| change(id, ground.proxy(id, addr)).until(Until::Ready);
        let (proxy_a, proxy_b) = tokio::join!(
            Proxy::start(ready("a", a.addr())),
            Proxy::start(ready("b", b.addr())),
        );
        let cluster = Self {
            a,
            b,
            proxy_a,
            proxy_b,
            ground,
        };
        cluster.until_a_knows("b", "autoscaling").await;
        a_and_b_are_quiet(&cluster);
        cluster
    }

    /// A client of A's proxy, without identity.
    pub fn client(&self) -> Client {
        self.proxy_a.client(&self.ground.pki)
    }

    /// Waits until A's proxy would send requests for `group` to `peer`.
    pub async fn until_a_knows(&self, peer: &str, group: &str) {
        let what = format!("A's proxy knows that {peer} serves {group}");
        eventually(&what, LONG, async || {
            let status = self.proxy_a.statusz().await;
            lists(&status, peer, group) && is_known(&status, peer)
        })
        .await;
    }
}

/// Whether what `peer` serves is known as it is now.
fn is_known(status: &Value, peer: &str) -> bool {
    let peers = status["peers"].as_array().into_iter().flatten();
    peers
        .filter(|found| found["id"] == peer)
        .any(|found| found["known"] == true)
}

/// Clears the recorded requests of the proxies themselves.
fn a_and_b_are_quiet(cluster: &Cluster) {
    cluster.a.take_requests();
    cluster.b.take_requests();
}

/// Whether a status page says that `peer` can be asked for something of `group`.
pub fn lists(status: &Value, peer: &str, group: &str) -> bool {
    let resources = status["resources"].as_array().unwrap();
    resources.iter().any(|resource| {
        let peers = resource["peers"].as_array().unwrap();
        resource["group"] == group && peers.contains(&peer.into())
    })
}

/// The `metav1.Status` of the proxy's own answers.
#[track_caller]
pub fn assert_refused(answer: &crate::streaming::Response, message: &str) {
    assert_eq!(answer.code(), 503, "{}", answer.text());
    let retry_after: u32 = answer.header("retry-after").parse().expect("Retry-After");
    if answer.header("content-type") == "application/vnd.kubernetes.protobuf" {
        let status = decode_status(answer);
        let details = status.details.clone().unwrap_or_default();
        assert_eq!(status.reason(), "ServiceUnavailable");
        assert_eq!(status.code(), 503);
        assert_eq!(
            u32::try_from(details.retry_after_seconds()),
            Ok(retry_after)
        );
        assert!(status.message().contains(message), "{}", status.message());
        return;
    }
    let status = answer.json();
    assert_eq!(
        (&status["kind"], &status["apiVersion"]),
        (&"Status".into(), &"v1".into())
    );
    assert_eq!(status["reason"], "ServiceUnavailable");
    assert_eq!(status["code"], 503);
    assert_eq!(status["details"]["retryAfterSeconds"], retry_after);
    let said = status["message"].as_str().unwrap();
    assert!(said.contains(message), "{said}");
}

/// The same without `Retry-After`: client-go does not repeat the request.
#[track_caller]
pub fn assert_refused_for_good(answer: &crate::streaming::Response, message: &str) {
    assert_eq!(answer.code(), 503, "{}", answer.text());
    assert_eq!(answer.header("retry-after"), "");
    let status = answer.json();
    assert_eq!(status["reason"], "ServiceUnavailable");
    assert!(status.get("details").is_none(), "{status}");
    let said = status["message"].as_str().unwrap();
    assert!(said.contains(message), "{said}");
}

/// A `Status` in protobuf.
pub fn decode_status(answer: &crate::streaming::Response) -> Status {
    let kind = "application/vnd.kubernetes.protobuf";
    assert_eq!(answer.header("content-type"), kind);
    let envelope = answer.body.strip_prefix(b"k8s\0").expect("the envelope");
    let unknown = Unknown::decode(envelope).unwrap();
    let kind = unknown.type_meta.as_ref().unwrap();
    assert_eq!((kind.api_version(), kind.kind()), ("v1", "Status"));
    Status::decode(unknown.raw()).unwrap()
}
