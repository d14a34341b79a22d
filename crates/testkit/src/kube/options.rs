//! How a kube-apiserver is started.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::PORT;
use super::abilities::{self, Abilities, NATIVE, Need, Wanted};
use super::binaries::{self, Binary};
use crate::etcd::Etcd;
use crate::pki::Pki;

/// `--runtime-config` up to 1.22 without beta versions, but for the one that its own flow control needs.
pub const WITHOUT_BETAS: &str = "api/beta=false,flowcontrol.apiserver.k8s.io/v1beta1=true";

/// The apiserver's own mixed version proxy.
#[derive(Clone, Copy, Debug)]
pub struct Native {
    /// Whether it has `--peer-ca-file`, without which it reroutes nothing.
    pub reroutes: bool,
    /// Where its peers are to reach it, if not where it listens.
    pub advertises: Option<SocketAddr>,
}

#[derive(Clone, Debug)]
pub struct KubeOptions {
    pub(super) dir: PathBuf,
    pki: PathBuf,
    etcd: String,
    pub(super) host_name: String,
    pub(super) bind: Option<IpAddr>,
    advertise: Option<SocketAddr>,
    authorization: String,
    pub(super) runtime_config: Vec<String>,
    betas: bool,
    betas_of: Vec<&'static str>,
    feature_gates: Vec<String>,
    native: Option<Native>,
    args: Vec<String>,
    left_out: Vec<String>,
    pub(super) wait: bool,
    pub(super) binary: Option<&'static Binary>,
}

impl KubeOptions {
    /// `host_name`: the server's host name; must differ between servers. The log goes below `dir`.
    pub fn new(dir: &Path, pki: &Pki, etcd: &Etcd, host_name: &str) -> Self {
        Self {
            dir: dir.to_owned(),
            pki: pki.dir().to_owned(),
            etcd: etcd.endpoint(),
            host_name: host_name.to_owned(),
            bind: None,
            advertise: None,
            authorization: "RBAC".to_owned(),
            runtime_config: Vec::new(),
            betas: true,
            betas_of: Vec::new(),
            feature_gates: Vec::new(),
            native: None,
            args: Vec::new(),
            left_out: Vec::new(),
            wait: true,
            binary: None,
        }
    }

    /// `autoscaling/v1=false` for example.
    pub fn runtime_config(mut self, setting: &str) -> Self {
        self.runtime_config.push(setting.to_owned());
        self
    }

    /// Whether it serves beta versions, up to 1.22: to describe them in OpenAPI is a third of the work of its start.
    pub fn betas(mut self, serves: bool) -> Self {
        self.betas = serves;
        self
    }

    /// Without the other beta versions it serves those of this group, one of those that tests switch off.
    pub fn betas_of(mut self, group: &'static str) -> Self {
        self.betas_of.push(group);
        self
    }

    /// It serves no version of this group.
    pub fn without_group(self, group: &str) -> Self {
        let versions = abilities::all_versions(group);
        versions.fold(self, |options, version| {
            options.runtime_config(&format!("{group}/{version}=false"))
        })
    }

    /// It keeps no identity Lease, as none did before 1.26.
    pub fn without_identity(self) -> Self {
        self.feature_gate("APIServerIdentity=false")
    }

    /// v1.20.2, whatever the variable says.
    pub fn cached(self) -> Self {
        self.runs(binaries::cached())
    }

    /// This one, whose turn ever it is.
    pub fn runs(mut self, binary: &'static Binary) -> Self {
        self.binary = Some(binary);
        self
    }

    pub(super) fn binary(&self) -> &'static Binary {
        let given = self.binary;
        given.unwrap_or_else(|| binaries::of(&self.dir, &self.host_name))
    }

    /// `APIServerIdentity=true` for example.
    pub fn feature_gate(mut self, gate: &str) -> Self {
        self.feature_gates.push(gate.to_owned());
        self
    }

    /// Its own mixed version proxy is on, if its version has one.
    pub fn native(mut self, native: Option<Native>) -> Self {
        self.native = native;
        self
    }

    /// `--authorization-mode`.
    pub fn authorization(mut self, mode: &str) -> Self {
        mode.clone_into(&mut self.authorization);
        self
    }

    /// `--bind-address`, in place of an address of its own.
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// `--advertise-address`; its port is not published.
    pub fn advertise(mut self, address: SocketAddr) -> Self {
        self.advertise = Some(address);
        self
    }

    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// None of the usual flags that begin so, `requestheader-` for example.
    pub fn without(mut self, flags: &str) -> Self {
        self.left_out.push(format!("--{flags}"));
        self
    }

    /// [`KubeApiServer::start`](super::KubeApiServer::start) returns at once.
    pub fn do_not_wait(mut self) -> Self {
        self.wait = false;
        self
    }

    /// Panics if the version cannot do what a test wants: such a test asks before whether it can.
    pub(super) fn flags(&self, binary: &Binary, address: IpAddr) -> Vec<String> {
        let plan = binary.abilities().plan(&self.wanted(binary, address));
        assert!(
            plan.lacking.is_empty(),
            "kube-apiserver {} lacks {:?}; what a test needs it says with `kube::lacks`",
            binary.abilities().version,
            plan.lacking
        );
        plan.flags
    }

    fn wanted(&self, binary: &Binary, address: IpAddr) -> Wanted {
        let file = |flag: &str, name: &str| self::file(&self.pki, flag, name);
        let advertise = self.advertise.map_or(address, |advertised| advertised.ip());
        let mut flags = vec![
            format!("--bind-address={address}"),
            format!("--secure-port={PORT}"),
            format!("--advertise-address={advertise}"),
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            format!("--authorization-mode={}", self.authorization),
            format!("--etcd-servers={}", self.etcd),
            file("proxy-client-cert-file", "front-proxy-client.crt"),
            file("proxy-client-key-file", "front-proxy-client.key"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            file("service-account-key-file", "sa.pub"),
            file("service-account-signing-key-file", "sa.key"),
        ];
        flags.extend(of_any_server(&self.pki));
        let mut optional = vec!["--requestheader-uid-headers=X-Remote-Uid".to_owned()];
        for flags in [&mut flags, &mut optional] {
            flags.retain(|flag| !self.left_out.iter().any(|start| flag.starts_with(start)));
        }
        flags.extend(self.args.iter().cloned());
        let mut gates = self.feature_gates.clone();
        gates.extend(binary.gates(&self.feature_gates));
        let storage_versions = gates.iter().any(|gate| gate == "StorageVersionAPI=true");
        // Of a group version that is named twice, the last counts.
        let mut runtime_config = match storage_versions {
            // It can neither write them without the first, nor start without the versions that it stores.
            true => vec!["internal.apiserver.k8s.io/v1alpha1=true".to_owned()],
            false => self.runtime_config_of_betas(binary.abilities()),
        };
        runtime_config.extend_from_slice(&self.runtime_config);
        if writes_what_others_cannot_read(binary) {
            flags.push("--enable-priority-and-fairness=false".to_owned());
            runtime_config.push("flowcontrol.apiserver.k8s.io/v1=false".to_owned());
        }
        let has_native = binary.abilities().meets(Need::Gate(NATIVE));
        if let Some(native) = self.native.filter(|_| has_native) {
            gates.push(format!("{NATIVE}=true"));
            if let Some(advertised) = native.advertises {
                flags.push(format!("--peer-advertise-ip={}", advertised.ip()));
                flags.push(format!("--peer-advertise-port={}", advertised.port()));
            }
            flags.extend(native.reroutes.then(|| file("peer-ca-file", "ca.crt")));
        }
        Wanted {
            flags,
            optional,
            runtime_config,
            gates,
        }
    }

    fn runtime_config_of_betas(&self, abilities: &Abilities) -> Vec<String> {
        if self.betas || !abilities.meets(Need::Before(23)) {
            return Vec::new();
        }
        let mut settings = vec![WITHOUT_BETAS.to_owned()];
        for group in &self.betas_of {
            let versions = abilities.versions_of(group).into_iter();
            let betas = versions.filter(|version| version.contains("beta"));
            settings.extend(betas.map(|version| format!("{group}/{version}=true")));
        }
        settings
    }
}

/// From 1.29 on FlowSchemas are stored in a version that older apiservers do not know: on the same etcd these would never
/// become ready.
fn writes_what_others_cannot_read(binary: &Binary) -> bool {
    binary.abilities().meets(Need::Since(29)) && binaries::others_meet(Need::Before(29))
}

/// The flags of every apiserver: its certificates, and whose front-proxy credentials it accepts.
pub(crate) fn of_any_server(pki: &Path) -> Vec<String> {
    let file = |flag: &str, name: &str| file(pki, flag, name);
    vec![
        file("etcd-cafile", "etcd-ca.crt"),
        file("etcd-certfile", "etcd-client.crt"),
        file("etcd-keyfile", "etcd-client.key"),
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        file("client-ca-file", "ca.crt"),
        file("token-auth-file", "tokens.csv"),
        file("requestheader-client-ca-file", "front-proxy-ca.crt"),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
    ]
}

fn file(pki: &Path, flag: &str, name: &str) -> String {
    format!("--{flag}={}", pki.join(name).display())
}
