//! An apiserver double, and before it the proxy or HAProxy, each with one processor.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::Ground;
use testkit::double::{Double, v1_20};
use testkit::process::Process;
use testkit::proxy::{Proxy, ProxyOptions, Until};
use testkit::wait::eventually;

/// HAProxy passes no user of a certificate on.
pub const AUTHORIZATION: &str = "Bearer tok-admin";
/// An object of about 1 KiB.
pub const OBJECT: &str = "/api/v1/namespaces/default/configmaps/x";

pub struct Lab {
    pub ground: Ground,
    pub double: Double,
}

/// What is measured.
pub enum Subject {
    Proxy(Box<Proxy>),
    HaProxy(Process, Loopback),
}

impl Lab {
    pub async fn new() -> Self {
        let ground = Ground::new().await;
        let double = ground.double(v1_20()).await;
        let direct = Client::new(double.addr(), &ground.pki).cert("admin");
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"},
            "data": {"x": "x".repeat(1 << 10)},
        });
        let path = "/api/v1/namespaces/default/configmaps";
        let created = direct.request("POST", path, object.to_string()).await;
        assert_eq!(created.code(), 201, "{}", created.text());
        Self { ground, double }
    }

    /// The proxy. `before`: a program that runs it, with its arguments.
    pub async fn proxy(&self, program: &Path, before: &[&str]) -> Subject {
        let Ground { dir, pki, etcd } = &self.ground;
        let options = ProxyOptions::new(
            program,
            dir.path(),
            pki,
            self.double.addr(),
            &etcd.endpoint(),
        )
        .server_id("cost")
        .set("identity.publishLease", "Never")
        // Requests of the proxy's own are not what is measured.
        .set("apiServer.discoveryInterval", "1h")
        .run_by(before.iter().map(ToString::to_string).collect())
        .until(Until::Ready);
        Subject::Proxy(Box::new(Proxy::start(options).await))
    }

    /// HAProxy with one thread, which presents the same client certificate.
    pub async fn haproxy(&self) -> Subject {
        let (dir, pki) = (self.ground.dir.path(), &self.ground.pki);
        let pem = |name: &str, file: &str| {
            let part =
                |ending: &str| std::fs::read_to_string(pki.path(&format!("{name}.{ending}")));
            let path = dir.join(file);
            std::fs::write(&path, part("crt").unwrap() + &part("key").unwrap()).unwrap();
            path.display().to_string()
        };
        let address = Loopback::new();
        let (server, client) = (
            pem("apiserver", "server.pem"),
            pem("front-proxy-client", "client.pem"),
        );
        let (listens, backend, ca) = (address.socket(6443), self.double.addr(), pki.file("ca.crt"));
        let text = format!(
            "global\n maxconn 80000\n nbthread 1\ndefaults\n mode http\n timeout connect 5s\n timeout client 1h\n \
             timeout server 1h\nfrontend f\n bind {listens} ssl crt {server} alpn h2,http/1.1 ca-file {ca} verify optional\n \
             default_backend b\nbackend b\n http-reuse always\n server s {backend} ssl alpn h2 crt {client} ca-file {ca} \
             verify required sni str(kubernetes.default.svc) verifyhost kubernetes.default.svc\n"
        );
        let config = dir.join("haproxy.cfg");
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new("taskset");
        command
            .args(["-c", "1", "haproxy", "-db", "-f"])
            .arg(&config);
        let process = Process::spawn("haproxy", &mut command, &dir.join("haproxy.log"));
        let process = process.expect("taskset; install util-linux and haproxy");
        let subject = Subject::HaProxy(process, address);
        let client = Client::new(listens, &self.ground.pki);
        eventually("HAProxy answers", Duration::from_secs(20), async || {
            client.fresh().try_get("/readyz").await.is_ok()
        })
        .await;
        subject
    }
}

impl Subject {
    pub fn address(&self) -> SocketAddr {
        match self {
            Self::Proxy(proxy) => proxy.addr(),
            Self::HaProxy(_, address) => address.socket(6443),
        }
    }

    pub fn process(&mut self) -> &mut Process {
        match self {
            Self::Proxy(proxy) => proxy.process(),
            Self::HaProxy(process, _) => process,
        }
    }
}

/// Asks for the object `number` times over HTTP/2, and returns what h2load says.
pub async fn load(to: SocketAddr, number: usize, connections: usize, streams: usize) -> String {
    let arguments = [
        ("-n", number),
        ("-c", connections),
        ("-m", streams),
        ("-t", 1),
    ];
    let mut command = tokio::process::Command::new("h2load");
    for (name, value) in arguments {
        command.arg(name).arg(value.to_string());
    }
    command
        .arg("-H")
        .arg(format!("authorization: {AUTHORIZATION}"));
    let output = command.arg(format!("https://{to}{OBJECT}")).output().await;
    let output = output.expect("h2load; install nghttp2-client").stdout;
    let text = String::from_utf8(output).unwrap();
    let all = format!("{number} succeeded");
    assert!(text.contains(&all), "not all were answered: {text}");
    text
}
