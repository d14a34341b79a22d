//! A real apiserver with current machinery, from the cache of `tests/build-modern-apiserver.sh`: the HTTP stack of
//! kube-apiserver 1.36 or later, with ConfigMaps. Authenticated users may use those of the namespace `default`.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use super::addr::Loopback;
use super::client::Client;
use super::etcd::Etcd;
use super::kube::{caches, of_any_server, until_ready};
use super::notes;
use super::pki::Pki;
use super::process::{NotFound, Process};

const PORT: u16 = 6443;
const START: Duration = Duration::from_secs(60);

pub struct ModernApiServer {
    address: SocketAddr,
    /// Held for as long as it may listen there; `None` if the address was given.
    _own: Option<Loopback>,
    process: Process,
    admin: Client,
}

impl ModernApiServer {
    /// `more`: further flags, with kube-apiserver's names. Returns when `/readyz` is 200; the log goes into `dir`.
    pub async fn start(dir: &Path, pki: &Pki, etcd: &Etcd, more: &[&str]) -> Self {
        let own = Loopback::new();
        let mut server = Self::start_at(own.ip(), dir, pki, etcd, more).await;
        server._own = Some(own);
        server
    }

    /// The same at an address that the test holds.
    pub async fn start_at(ip: IpAddr, dir: &Path, pki: &Pki, etcd: &Etcd, more: &[&str]) -> Self {
        notes::started(name());
        let address = SocketAddr::new(ip, PORT);
        let log = dir.join(format!("modern-apiserver-{ip}.log"));
        let mut command = Command::new(binary());
        command.args(flags(pki, etcd, ip)).args(more);
        let mut process = match Process::spawn("modern-apiserver", &mut command, &log) {
            Ok(process) => process,
            Err(NotFound) => {
                let what = format!("an apiserver of today ({})", binary().display());
                super::missing(&what, "run tests/build-modern-apiserver.sh")
            }
        };
        let admin = Client::new(address, pki).cert("admin");
        until_ready(&mut process, &admin, START).await;
        Self {
            address,
            _own: None,
            process,
            admin,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Asks the server itself, as the cluster's administrator.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// With its version.
fn name() -> &'static str {
    static NAME: LazyLock<String> = LazyLock::new(|| {
        let output = Command::new(binary()).arg("--version").output();
        let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let version = said.unwrap_or_default();
        format!(
            "modern-apiserver {}",
            version.trim_start_matches("Kubernetes").trim()
        )
    });
    &NAME
}

fn binary() -> PathBuf {
    caches().join("modern-apiserver/modern-apiserver")
}

fn flags(pki: &Pki, etcd: &Etcd, ip: IpAddr) -> Vec<String> {
    let own = [
        format!("--bind-address={ip}"),
        format!("--secure-port={PORT}"),
        format!("--etcd-servers={}", etcd.endpoint()),
        "--requestheader-uid-headers=X-Remote-Uid".to_owned(),
    ];
    own.into_iter().chain(of_any_server(pki.dir())).collect()
}
