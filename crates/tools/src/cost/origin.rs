//! nginx in the place of the apiserver: it answers what is measured from files, and passes the rest to the double.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::cluster::{Ground, HPAS};
use testkit::pki::Pki;
use testkit::process::Process;

use super::haproxy::find;
use super::lab::{OBJECT, until_answered};
use super::rivals::nginx;

const PORT: u16 = 6443;
/// The answer to what only one apiserver of a pair serves.
pub const REROUTED: &str = HPAS;

pub struct Origin {
    address: Loopback,
    files: PathBuf,
    _process: Process,
}

impl Origin {
    pub async fn start(ground: &Ground, double: SocketAddr) -> Self {
        Self::at(ground, double, &[], None).await
    }

    /// It also listens at further addresses. `apis`: what it answers itself about groups.
    pub async fn at(
        ground: &Ground,
        double: SocketAddr,
        also: &[SocketAddr],
        apis: Option<&Value>,
    ) -> Self {
        let address = Loopback::new();
        let dir = ground.dir.path().join(format!("origin-{}", address.ip()));
        let files = dir.join("files");
        std::fs::create_dir_all(&files).unwrap();
        std::fs::write(files.join("object"), object()).unwrap();
        if let Some(apis) = apis {
            std::fs::write(files.join("apis"), apis.to_string()).unwrap();
        }
        let config = dir.join("nginx.conf");
        let listens = [&[address.socket(PORT)], also].concat();
        let text = config_text(&ground.pki, &dir, &listens, double, apis.is_some());
        std::fs::write(&config, text).unwrap();
        let program = find("nginx").expect("nginx; tests/install.sh --benches");
        let mut command = Command::new(program);
        command.arg("-c").arg(&config).arg("-p").arg(&dir);
        let process = Process::spawn("nginx", &mut command, &dir.join("log"));
        let mut process = process.expect("nginx");
        let client = Client::new(address.socket(PORT), &ground.pki);
        until_answered(&mut process, &client).await;
        Self {
            address,
            files,
            _process: process,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address.socket(PORT)
    }

    /// Lets it answer with a list of so many MiB. Returns the list's path.
    pub fn list(&self, size: usize) -> String {
        let item = object();
        let mut list = br#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":["#.to_vec();
        while list.len() < size << 20 {
            list.extend_from_slice(&item);
            list.push(b',');
        }
        list.pop();
        list.extend_from_slice(b"]}");
        std::fs::write(self.files.join(format!("list-{size}")), list).unwrap();
        format!("/api/v1/namespaces/list-{size}/configmaps")
    }
}

fn object() -> Vec<u8> {
    let object = serde_json::json!({
        "kind": "ConfigMap", "apiVersion": "v1",
        "metadata": {"name": "x", "namespace": "default", "resourceVersion": "1"},
        "data": {"x": "x".repeat(900)},
    });
    object.to_string().into_bytes()
}

fn config_text(
    pki: &Pki,
    dir: &Path,
    listens: &[SocketAddr],
    double: SocketAddr,
    groups: bool,
) -> String {
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let common = nginx(pki, dir, listens, double);
    let files = dir.join("files");
    let files = files.display();
    let groups = match groups {
        true => format!(
            "location = /apis {{ root {files}; types {{ }} default_type '{aggregated}'; try_files /apis =404; }}\n"
        ),
        false => String::new(),
    };
    common.replace(
        "# locations",
        &format!(
            "{groups}location = {OBJECT} {{ root {files}; try_files /object =404; }}\n\
             location = {REROUTED} {{ root {files}; try_files /object =404; }}\n\
             location ~ ^/api/v1/namespaces/(?<list>list-[0-9]+)/configmaps$ {{ root {files}; try_files /$list =404; }}\n"
        ),
    )
}
