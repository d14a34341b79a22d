//! What is in front of each apiserver.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use testkit::pki::Pki;
use testkit::process::Process;

use crate::haproxy::{HaProxy, failing_over};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Front {
    Nothing,
    #[value(name = "haproxy")]
    HaProxy,
    Proxy,
}

/// Kubernetes' own mixed version proxy, within each apiserver.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum NativeProxy {
    Off,
    /// Without `--peer-ca-file`: it reroutes nothing.
    On,
    Reroutes,
}

impl NativeProxy {
    /// `None`: it is off.
    pub fn reroutes(self) -> Option<bool> {
        match self {
            Self::Off => None,
            Self::On => Some(false),
            Self::Reroutes => Some(true),
        }
    }
}

/// By `/readyz`, as a user that the header names: the apiserver refuses who shows this certificate and is nobody.
const CHECK: &str = "uri /readyz hdr x-remote-user haproxy";

impl Front {
    /// Whether what clients see through it is right or wrong, and not only counted.
    pub fn is_judged(self) -> bool {
        self == Self::Proxy
    }
}

impl Display for Front {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing",
            Self::HaProxy => "HAProxy",
            Self::Proxy => "kube-interop-proxy",
        })
    }
}

/// HAProxy in front of the first of these apiservers, which asks the others when that one is gone.
pub fn start_haproxy(
    pki: &Pki,
    dir: &Path,
    listens: SocketAddr,
    servers: &[SocketAddr],
) -> Process {
    std::fs::create_dir(dir).expect("a directory");
    // Upgraded streams need HTTP/1.1 on both sides.
    let text = HaProxy { pki, dir, listens }
        .config(|tls| failing_over(servers, CHECK, &format!("alpn http/1.1 {tls}")));
    let file = dir.join("haproxy.cfg");
    std::fs::write(&file, text).expect("its configuration");
    let words = HaProxy::command(&file);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let process = Process::spawn("haproxy", &mut command, &dir.join("haproxy.log"));
    process.expect("haproxy; tests/install.sh --benches")
}
