//! What a node says of addresses: those that it holds, those of virtual IPs, and who asks on loopback. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use serde_yaml::Value;

use super::apiserver::PROXY;
use super::flags::Flags;
use super::state::State;
use super::yaml::{items, parse, text};

/// Where static pods are.
pub const MANIFESTS: &str = "/etc/kubernetes/manifests";

/// Reads a file; the error says why not.
type Reader<'n> = Box<dyn Fn(&Path) -> Result<Vec<u8>, String> + 'n>;

/// What `install` has found on a node.
pub struct Node<'n> {
    /// Reads a file of the node.
    pub read: Reader<'n>,
    /// kube-apiserver's manifest.
    pub manifest: String,
    /// The proxy's configuration, if there is one.
    pub config: Option<String>,
    /// Name of interface and address. Empty: not known, because this is not that node.
    pub addresses: Vec<(String, IpAddr)>,
    /// Paths and contents of the other static pods' manifests, and of what keepalived and haproxy read.
    pub others: Vec<(String, String)>,
    /// Host and port that kubeconfigs name.
    pub endpoint: Option<(String, u16)>,
    /// How many control plane nodes there are.
    pub servers: usize,
    /// What the last `install` has put there. Somebody may have written a manifest anew or edited the configuration since.
    pub installed: Option<State>,
}

/// How CNI plugins and kube-proxy begin the names of interfaces of containers and of services: no client comes there.
const INNER: [&str; 22] = [
    "docker", "cni", "flannel", "cali", "veth", "kube-ipv", "kube-bri", "nodeloc", "tunl", "vxlan",
    "br-", "virbr", "cilium", "lxc", "weave", "ovn", "ovs", "genev", "antrea", "gke", "dummy",
    "podman",
];

impl Node<'_> {
    /// The files that `install` changes, as they are now.
    pub fn state(&self) -> State {
        let pods = self.others.iter().filter_map(|(path, text)| {
            let name = path.strip_prefix(MANIFESTS)?.strip_prefix('/')?;
            let is_own = name.ends_with(".yaml") && text.contains(PROXY) && is_own_pod(text);
            is_own.then(|| (name.to_owned(), text.clone()))
        });
        State::new(self.config.clone(), pods.collect(), self.manifest.clone())
    }

    /// Where the apiserver serves now, and where clients find it.
    pub(super) fn address(&self, flags: &Flags) -> Result<SocketAddr, String> {
        let port = flags.get("secure-port").unwrap_or("6443");
        let port = port.parse().ok().filter(|port| *port > 0);
        let port = port.ok_or("--secure-port is no port")?;
        let (advertised, bound) = (ip(flags, "advertise-address")?, ip(flags, "bind-address")?);
        if let Some(bound) = bound.filter(IpAddr::is_loopback)
            && advertised != Some(bound)
        {
            return Err(format!(
                "kube-apiserver listens on {bound} alone already, and no proxy of this program is in its pod or beside it: \
                 something else has its address (a service of the host?); remove that first"
            ));
        }
        let held: Vec<_> = self.outer().filter(IpAddr::is_ipv4).collect();
        let ip = match (advertised, bound, held.as_slice()) {
            (Some(ip), ..) | (None, Some(ip), _) | (None, None, &[ip]) => ip,
            _ => {
                let why = "kube-apiserver has no --advertise-address, and this node has not exactly one address: add the flag";
                return Err(why.to_owned());
            }
        };
        let is_held = ip.is_loopback() || self.addresses.iter().any(|(_, own)| *own == ip);
        if !self.addresses.is_empty() && !is_held {
            return Err(format!(
                "{ip}, which kube-apiserver advertises, is no address of this node: is this another node's manifest?"
            ));
        }
        Ok(SocketAddr::new(ip, port))
    }

    /// Addresses where the apiserver answers and the proxy shall too, and what cannot be decided here.
    pub(super) fn further(
        &self,
        flags: &Flags,
        main: SocketAddr,
        given: &[IpAddr],
    ) -> (Vec<IpAddr>, Vec<String>) {
        let mut all: BTreeSet<IpAddr> = given.iter().copied().collect();
        let mut warnings = Vec::new();
        // It listens everywhere if it is told no address.
        if let Ok(Some(bound)) = ip(flags, "bind-address") {
            all.insert(bound);
        } else {
            all.extend(self.outer());
            let others = self.others.iter();
            all.extend(others.flat_map(|(path, text)| virtual_ips(path, text)));
            let endpoint = self.endpoint.as_ref();
            let endpoint = endpoint.filter(|(_, port)| *port == main.port());
            match endpoint.map(|(host, _)| (host, host.parse())) {
                Some((_, Ok(ip))) => drop(all.insert(ip)),
                Some((host, Err(_))) if given.is_empty() => warnings.push(format!(
                    "controlPlaneEndpoint is the name {host}: if it is that of a virtual IP, which this node does not have \
                     now, name it with --virtual-ip"
                )),
                _ => {}
            }
        }
        all.retain(|ip| *ip != main.ip() && !ip.is_loopback() && !ip.is_unspecified());
        (all.into_iter().collect(), warnings)
    }

    /// Health checks that ask the apiserver beside the proxy.
    pub(super) fn asks_on_loopback(&self, main: SocketAddr) -> Vec<String> {
        let port = main.port();
        let wrong = ["localhost", "127.0.0.1", "[::1]"].map(|host| format!("{host}:{port}"));
        let mut found = Vec::new();
        for (path, text) in self.others.iter().filter(|(_, text)| !is_own_pod(text)) {
            for (number, line) in (1..).zip(text.lines()) {
                if let Some(asked) = wrong.iter().find(|asked| line.contains(asked.as_str())) {
                    found.push(format!(
                        "{path}, line {number}: asks {asked}, where only kube-apiserver answers, and not the proxy; write {main}"
                    ));
                }
            }
        }
        found
    }

    /// Addresses that clients may use.
    fn outer(&self) -> impl Iterator<Item = IpAddr> {
        let is_inner = |name: &str| INNER.iter().any(|inner| name.starts_with(inner));
        let outer = self.addresses.iter();
        let outer = outer.filter(move |(name, _)| !is_inner(name));
        outer.map(|(_, ip)| *ip).filter(is_for_clients)
    }
}

/// The address that a flag gives; `None`: any.
fn ip(flags: &Flags, flag: &str) -> Result<Option<IpAddr>, String> {
    let ip = flags.get(flag).map(|given| {
        let ip = given.parse::<IpAddr>();
        ip.map_err(|_| format!("--{flag}={given} is no IP address"))
    });
    Ok(ip.transpose()?.filter(|ip| !ip.is_unspecified()))
}

/// Whether clients on other machines can use an address of this one.
pub fn is_for_clients(address: &IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !is_link_local
}

/// Whether this is the manifest of the proxy's own static pod.
fn is_own_pod(manifest: &str) -> bool {
    parse("", manifest).is_ok_and(|pod| {
        matches!(items(&pod, &["spec", "containers"]), [only] if text(only, &["name"]) == PROXY)
    })
}

/// The virtual IPs that a manifest of kube-vip or keepalived, or keepalived's configuration, names.
fn virtual_ips(path: &str, contents: &str) -> Vec<IpAddr> {
    let ip = |word: &str| {
        let word = word.split('/').next()?;
        let ip = word.trim_matches(|c: char| "'\"[]()".contains(c));
        ip.parse().ok()
    };
    if path.ends_with(".conf") {
        let blocks = contents.split("virtual_ipaddress").skip(1);
        let blocks = blocks.filter_map(|rest| rest.split_once('{')?.1.split('}').next());
        let words = blocks.flat_map(str::split_whitespace);
        return words.filter_map(ip).collect();
    }
    let Ok(pod) = parse("", contents) else {
        return Vec::new();
    };
    let is_virtual = |env: &&Value| {
        let name = text(env, &["name"]);
        ["address", "vip_address"].contains(&name) || name.contains("VIRTUAL_IP")
    };
    let containers = items(&pod, &["spec", "containers"]).iter();
    let envs = containers.flat_map(|it| items(it, &["env"]));
    let values = envs.filter(is_virtual).map(|env| text(env, &["value"]));
    // Behind a colon is a port, or it is a part of an IPv6 address.
    let words = values.flat_map(|it| it.split([',', ' ', ':']).chain([it]));
    words.filter_map(ip).collect()
}
