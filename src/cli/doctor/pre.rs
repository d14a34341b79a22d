//! `check --pre`: whether the proxy can be installed on this kubeadm node. What `install kubeadm` would write is looked at as
//! `check --live` does, with the kube-apiserver at the address that it has now.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use clap::ValueEnum as _;
use http::StatusCode;

use super::finding::Finding;
use super::{live, told};
use crate::cli::{fetch, install};
use crate::local::process;

/// Where kubelet says that it is healthy, by default.
const KUBELET: &str = "127.0.0.1:10248";
/// Where container runtimes listen, as kubeadm looks for them.
const RUNTIMES: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/dockershim.sock",
];
const NODE: &str = "this node";
const PROXY: &str = "kube-interop-proxy";

/// `file`: where the configuration would be.
pub async fn examine(file: &Path) -> Vec<Finding> {
    let mut findings = vec![kubelet().await, runtime(&RUNTIMES)];
    let (plan, mut config) = match install::planned() {
        Ok(planned) => planned,
        Err(why) => {
            findings.push(told::not_installable(NODE, why));
            return findings;
        }
    };
    let layout = plan.layout.to_possible_value();
    let layout = layout.map(|it| it.get_name().to_owned());
    findings.push(told::installable(NODE, layout.unwrap_or_default()));
    findings.extend(plan.warnings.iter().map(|it| told::to_know(NODE, it)));
    let [serving, admin] = [config.serving.bind_address, config.admin.bind_address];
    for (port, expected) in [
        (serving.port(), &["kube-apiserver", PROXY][..]),
        (admin.port(), &[PROXY]),
    ] {
        findings.push(held(port, &process::holders(port), expected));
    }
    // As long as the kube-apiserver has not left it to the proxy.
    let listeners = process::listeners(serving.port());
    if !listeners.iter().any(IpAddr::is_loopback) {
        config.api_server.address = config.peer.advertise_address;
    }
    findings.extend(live(&config, file, false).await);
    findings
}

/// Whether one of the expected programs holds the port, or nobody does.
fn held(port: u16, holders: &BTreeSet<String>, expected: &[&str]) -> Finding {
    let about = format!("port {port}");
    // The kernel keeps 15 bytes of a name.
    let is_expected = |it: &&String| expected.iter().any(|name| name.starts_with(it.as_str()));
    match (holders.iter().find(|it| !is_expected(it)), holders.first()) {
        (Some(other), _) => told::held_by_other(about, other),
        (None, Some(program)) => told::held(about, program),
        (None, None) => told::free_port(about),
    }
}

async fn kubelet() -> Finding {
    const ABOUT: &str = "kubelet";
    let why = match fetch::get(KUBELET, "/healthz").await {
        Ok(answer) if answer.status == StatusCode::OK => {
            let said = Command::new("kubelet").arg("--version").output();
            let said = said.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned());
            let unknown = || "one of unknown version".to_owned();
            return told::kubelet(ABOUT, said.ok().unwrap_or_else(unknown));
        }
        Ok(answer) => format!("/healthz says {}", answer.status),
        Err(error) => format!("{KUBELET}: {error}"),
    };
    told::no_kubelet(ABOUT, why)
}

fn runtime(sockets: &[&str]) -> Finding {
    const ABOUT: &str = "container runtime";
    let connects = |socket: &&&str| UnixStream::connect(socket).is_ok();
    match sockets.iter().find(connects) {
        Some(socket) => told::runtime(ABOUT, socket),
        None => told::no_runtime(ABOUT, sockets.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_free_or_held_by_who_may_hold_it() {
        let of = |holders: &[&str]| {
            let holders: BTreeSet<_> = holders.iter().map(ToString::to_string).collect();
            held(6443, &holders, &["kube-apiserver", PROXY]).to_string()
        };
        assert_eq!(of(&[]), "ok      KIP-116 port 6443: free");
        let held = of(&["kube-apiserver"]);
        assert!(
            held.starts_with("ok      KIP-114 port 6443: kube-apiserver listens"),
            "{held}"
        );
        assert!(
            of(&["kube-interop-pr"]).starts_with("ok      KIP-114"),
            "the kernel's name"
        );
        let taken = of(&["haproxy", "kube-apiserver"]);
        assert!(
            taken.starts_with("warning KIP-115 port 6443: haproxy listens there; do: if"),
            "{taken}"
        );
        assert!(
            of(&["?"]).starts_with("warning KIP-115"),
            "nobody knows who"
        );
    }

    #[test]
    fn a_runtime_is_found_by_its_socket() {
        let dir = tempfile::tempdir().unwrap();
        let (dead, alive) = (dir.path().join("dead.sock"), dir.path().join("alive.sock"));
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        let [dead, alive] = [dead, alive].map(|it| it.display().to_string());
        let none = runtime(&[&dead, &alive]).to_string();
        assert!(none.contains("KIP-120") && none.contains(&dead), "{none}");
        let _listener = std::os::unix::net::UnixListener::bind(&alive).unwrap();
        let found = runtime(&[&dead, &alive]).to_string();
        assert!(
            found.starts_with("ok      KIP-119 container runtime: ") && found.contains(&alive),
            "{found}"
        );
    }
}
