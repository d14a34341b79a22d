//! The proxy's configuration, derived from the apiserver's flags and what its files say. Pure.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use http::Uri;
use http::uri::Scheme;
use indexmap::IndexSet;
use serde_yaml::{Mapping, Value};

use super::apiserver::{ApiServer, Mount};
use super::flags::Flags;
use super::layout::Layout;
use super::node::Node;
use super::yaml::{items, mapping, parse, set, text, write};
use crate::config::{self, Config, joined};
use crate::kube::gvr::resource_name;
use crate::kube::requestheader::NameList;
use crate::tls::sni::alternative_names;
use crate::x509::pem::{parse_certs, parsed};

const SERVER_NAME: &str = "kubernetes.default.svc";
/// How clients spread again after a restart, where nobody has said how.
const GOAWAY_CHANCE: f64 = 0.001;
/// kube-apiserver keeps both where either is.
const EVENTS: [&str; 2] = ["events", "events.events.k8s.io"];
const HEADER: &str = "# Written by `kube-interop-proxy install` from kube-apiserver's flags. What is left out has its default; \
                      all keys are in\n# config.example.yaml. `install` keeps what is added here.\n";

/// What the flags give.
pub(super) struct Derived<'d> {
    server: &'d ApiServer,
    node: &'d Node<'d>,
    flags: Flags,
    address: SocketAddr,
    /// Null: the flags decide that it has its default.
    values: Value,
    /// Every file that it names.
    pub(super) files: Vec<PathBuf>,
    pub(super) warnings: Vec<String>,
}

/// `addresses`: where else to listen.
pub(super) fn derive<'d>(
    server: &'d ApiServer,
    node: &'d Node<'d>,
    address: SocketAddr,
    addresses: &[IpAddr],
    layout: Layout,
) -> Result<Derived<'d>, String> {
    let head = "apiVersion: kube-interop-proxy/v1alpha1\nkind: ProxyConfiguration";
    let mut derived = Derived {
        server,
        node,
        flags: server.flags()?,
        address,
        values: parse("it", head)?,
        files: Vec::new(),
        warnings: Vec::new(),
    };
    let (authority, name) = derived.certificate()?;
    derived.serving(addresses)?;
    derived.api_server(&authority, &name)?;
    derived.etcd()?;
    derived.set("peer", "advertiseAddress", address.to_string());
    derived.set_file("peer", "caFile", &authority);
    derived.set("peer", "serverName", name);
    if layout == Layout::NativeSidecar {
        // It is told to stop when its apiserver has ended, which starts again after it.
        derived.set("shutdown", "delay", "1s");
        derived.set("shutdown", "drain", "10s");
    }
    derived.values = without_defaults(derived.values)?;
    Ok(derived)
}

impl Derived<'_> {
    fn set(&mut self, section: &str, key: &str, value: impl Into<Value>) {
        if let Some(section) = mapping(&mut self.values, &[section]) {
            set(section, &[key], Some(value.into()));
        }
    }

    /// An empty list is one that no flag gives.
    fn set_list(&mut self, section: &str, key: &str, items: Vec<String>) {
        let list = (!items.is_empty()).then(|| Value::from(items));
        self.set(section, key, list.unwrap_or_default());
    }

    fn set_file(&mut self, section: &str, key: &str, file: &str) {
        self.files.push(file.into());
        self.set(section, key, file);
    }

    /// A key of the configuration that is a flag's value.
    fn set_flag(&mut self, section: &str, key: &str, flag: &str, why: &str) -> Result<(), String> {
        let value = self.flags.get(flag).map(str::to_owned);
        let value = value.ok_or_else(|| format!("kube-apiserver has no --{flag}: {why}"))?;
        self.set_file(section, key, &value);
        Ok(())
    }

    fn read(&self, file: &str) -> Result<Vec<u8>, String> {
        let Mount { host, .. } = self.server.mount(Path::new(file))?;
        (self.node.read)(&host).map_err(|error| format!("{}: {error}", host.display()))
    }

    /// The CAs of the serving certificate, and the name to verify it by.
    fn certificate(&self) -> Result<(String, String), String> {
        const FLAG: &str = "tls-cert-file";
        let file = self.flags.get(FLAG).ok_or_else(|| {
            format!("kube-apiserver has no --{FLAG}: it makes itself a certificate that nobody can verify")
        })?;
        let certs = parse_certs(&self.read(file)?).map_err(|error| format!("{file}: {error}"))?;
        let leaf = certs.first().and_then(parsed);
        let leaf = leaf.ok_or_else(|| format!("{file}: its certificate cannot be read"))?;
        let beside = Path::new(file).with_file_name("ca.crt");
        let beside = beside.display().to_string();
        let known = ["client-ca-file", "kubelet-certificate-authority"];
        let known = known.iter().filter_map(|flag| self.flags.get(flag));
        let issued = |authority: &&str| {
            let text = self.read(authority).unwrap_or_default();
            let certs = parse_certs(&text).unwrap_or_default();
            let mut subjects = certs.iter().filter_map(parsed);
            subjects.any(|ca| ca.subject().as_raw() == leaf.issuer().as_raw())
        };
        let authority = known.chain([beside.as_str()]).find(issued).ok_or_else(|| {
            format!(
                "no file that kube-apiserver is given has the CA of {file} ({}): peers could not verify it",
                leaf.issuer()
            )
        })?;
        // With the cluster's domain, where the short form is missing; as people make certificates, any of them.
        let is_ours = |name: &&str| {
            let domain = name.strip_prefix(SERVER_NAME);
            domain.is_some_and(|domain| domain.is_empty() || domain.starts_with('.'))
        };
        let names = alternative_names(&leaf).filter(is_ours);
        let name = names.min_by_key(|name| *name != SERVER_NAME).ok_or_else(|| {
            format!(
                "{file} is not valid for {SERVER_NAME}, by which proxies know each other: make it with that name (kubeadm's \
                 certSANs)"
            )
        })?;
        Ok((authority.to_owned(), name.to_owned()))
    }

    fn serving(&mut self, addresses: &[IpAddr]) -> Result<(), String> {
        const S: &str = "serving";
        let port = self.address.port();
        self.set(S, "bindAddress", self.address.to_string());
        let also = addresses.iter().map(|ip| SocketAddr::new(*ip, port));
        let also = also.map(|it| it.to_string()).collect();
        self.set_list(S, "additionalBindAddresses", also);
        self.set_flag(S, "certFile", "tls-cert-file", "")?;
        let why = "its certificate has no key";
        self.set_flag(S, "keyFile", "tls-private-key-file", why)?;
        let why = "it knows no users by certificate, and the proxy needs the CA of those";
        self.set_flag(S, "clientCAFile", "client-ca-file", why)?;
        let why = "it would reject the proxy's front-proxy credentials (see kubeadm's front-proxy certificates)";
        let key = "requestHeaderClientCAFile";
        self.set_flag(S, key, "requestheader-client-ca-file", why)?;
        // Without the flag: any.
        let names = self.flags.list("requestheader-allowed-names");
        self.set(S, "requestHeaderAllowedNames", names);
        for list in NameList::ALL {
            if let Some((section, key)) = config::names_key(list).split_once('.') {
                self.set_list(section, key, self.flags.list(list.field()));
            }
        }
        self.sni()?;
        self.tls_options();
        let given = self.flags.get("goaway-chance");
        let given = given.and_then(|it| it.parse::<f64>().ok());
        let chance = given.or((self.node.servers > 1).then_some(GOAWAY_CHANCE));
        if let Some(chance) = chance.filter(|chance| *chance > 0.0) {
            self.set(S, "goawayChance", chance);
        }
        Ok(())
    }

    /// `cert,key` or `cert,key:name,name`.
    fn sni(&mut self) -> Result<(), String> {
        const FLAG: &str = "tls-sni-cert-key";
        let mut all = Vec::new();
        for value in self.flags.each(FLAG) {
            let (files, names) = value.split_once(':').unwrap_or((value, ""));
            let (cert, key) = files
                .split_once(',')
                .ok_or_else(|| format!("--{FLAG}={value} is not CERT,KEY or CERT,KEY:NAMES"))?;
            self.files.extend([cert.into(), key.into()]);
            let mut one = Mapping::new();
            one.insert("certFile".into(), cert.into());
            one.insert("keyFile".into(), key.into());
            if !names.is_empty() {
                one.insert("names".into(), names.split(',').collect::<Vec<_>>().into());
            }
            all.push(one);
        }
        self.set("serving", "sniCertificates", all);
        Ok(())
    }

    fn tls_options(&mut self) {
        let mut oldest = "VersionTLS12";
        match self.flags.get("tls-min-version") {
            Some("VersionTLS13") => oldest = "VersionTLS13",
            Some(old @ ("VersionTLS10" | "VersionTLS11")) => self.warnings.push(format!(
                "--tls-min-version={old}: the proxy has TLS 1.2 and 1.3 only; clients with older ones are refused from now on"
            )),
            _ => {}
        }
        self.set("serving", "minTLSVersion", oldest);
        let suites = self.flags.list("tls-cipher-suites").into_iter();
        let (known, other): (Vec<_>, Vec<_>) =
            suites.partition(|name| config::suite_named(name).is_some());
        if !other.is_empty() {
            let other = other.join(", ");
            let left = match known.is_empty() {
                true => "; none of the list is left, so it uses all that it has",
                false => "",
            };
            self.warnings.push(format!(
                "--tls-cipher-suites: the proxy does not have {other}{left}"
            ));
        }
        self.set_list("serving", "cipherSuites", known);
    }

    fn api_server(&mut self, authority: &str, name: &str) -> Result<(), String> {
        const S: &str = "apiServer";
        self.set(S, "address", format!("127.0.0.1:{}", self.address.port()));
        self.set(S, "serverName", name);
        self.set_file(S, "caFile", authority);
        let why = "the proxy would have no certificate with which to say who asks";
        self.set_flag(S, "proxyClientCertFile", "proxy-client-cert-file", why)?;
        self.set_flag(S, "proxyClientKeyFile", "proxy-client-key-file", why)
    }

    fn etcd(&mut self) -> Result<(), String> {
        const S: &str = "etcd";
        let servers = self.flags.list("etcd-servers");
        let https = servers.first().is_some_and(|it| it.starts_with("https:"));
        if servers.is_empty() {
            return Err("kube-apiserver has no --etcd-servers".to_owned());
        }
        let servers = servers.iter().map(|it| it.trim_end_matches('/').to_owned());
        self.set_list(S, "endpoints", servers.collect());
        if https {
            let why = "etcd at https needs it";
            self.set_flag(S, "caFile", "etcd-cafile", why)?;
            self.set_flag(S, "certFile", "etcd-certfile", why)?;
            self.set_flag(S, "keyFile", "etcd-keyfile", why)?;
        }
        let prefix = self.flags.get("etcd-prefix").unwrap_or("/registry");
        let prefix = format!("/{}", prefix.trim_matches('/'));
        self.set(S, "prefix", prefix);
        let mut elsewhere = IndexSet::new();
        for given in self.flags.list("etcd-servers-overrides") {
            let (group, resource) = given
                .split_once('#')
                .and_then(|(resource, _)| resource.split_once('/'))
                .ok_or_else(|| {
                    format!("--etcd-servers-overrides: {given} is not GROUP/RESOURCE#SERVERS")
                })?;
            let name = resource_name(group, resource);
            match EVENTS.contains(&name.as_str()) {
                true => elsewhere.extend(EVENTS.map(str::to_owned)),
                false => elsewhere.extend([name]),
            }
        }
        self.set_list(S, "otherResources", elsewhere.into_iter().collect());
        Ok(())
    }

    /// The text of the configuration, and what it says. What `before` has beyond what is derived stays; if nothing is
    /// different, its text does.
    pub(super) fn text(&self, before: Option<&str>) -> Result<(String, Config), String> {
        let old = parse("proxy.yaml", before.unwrap_or("{}"))?;
        let text = format!("{HEADER}{}", write(&merged(&old, &self.values))?);
        let config = checked(&text)?;
        let same = before.filter(|before| config::parse(before).as_ref() == Ok(&config));
        Ok((same.map_or(text, str::to_owned), config))
    }
}

pub(super) fn checked(text: &str) -> Result<Config, String> {
    config::parse(text).map_err(|problems| {
        let problems = joined(problems, "; ");
        format!("what kube-apiserver is given makes no configuration of the proxy: {problems}")
    })
}

/// Makes null what is the default of its key.
fn without_defaults(mut values: Value) -> Result<Value, String> {
    let nothing = Value::Mapping(Mapping::new());
    let Ok(config) = config::parse(&write(&merged(&nothing, &values))?) else {
        // What is wrong may be right with what an operator has added.
        return Ok(values);
    };
    for section in keys(&values) {
        for key in keys(&values[&section]) {
            let mut fewer = values.clone();
            set(&mut fewer, &[&section, &key], Some(Value::Null));
            let text = write(&merged(&nothing, &fewer))?;
            if config::parse(&text).as_ref() == Ok(&config) {
                values = fewer;
            }
        }
    }
    Ok(values)
}

fn keys(value: &Value) -> Vec<String> {
    let keys = value.as_mapping().into_iter().flat_map(Mapping::keys);
    keys.filter_map(|key| Some(key.as_str()?.to_owned()))
        .collect()
}

/// What is derived goes first. Addresses that somebody added stay, and so does what the flags do not decide alone.
fn merged(old: &Value, derived: &Value) -> Value {
    let mut values = old.clone();
    for name in keys(derived) {
        let section = &derived[&name];
        if !section.is_mapping() {
            set(&mut values, &[&name], Some(section.clone()));
        } else if let Some(into) = mapping(&mut values, &[&name]) {
            for key in keys(section) {
                let value = match (key.as_str(), &section[&key]) {
                    ("additionalBindAddresses", _) => union(into, section, &key),
                    (_, Value::Null) => None,
                    // An operator's own choices.
                    ("goawayChance" | "delay" | "drain", value) => {
                        into.get(&key).or(Some(value)).cloned()
                    }
                    (_, value) => Some(value.clone()),
                };
                set(into, &[&key], value);
            }
        }
    }
    values
}

/// Without the one where it listens anyway, which may have been another one before.
fn union(old: &Value, new: &Value, key: &str) -> Option<Value> {
    let address = |it: &Value| it.as_str().and_then(|it| it.parse::<SocketAddr>().ok());
    let mut all = Vec::new();
    for value in items(old, &[key]).iter().chain(items(new, &[key])) {
        let is_it = |known: &Value| address(known) == address(value);
        if !is_it(&new["bindAddress"]) && !all.iter().any(is_it) {
            all.push(value.clone());
        }
    }
    (!all.is_empty()).then_some(Value::Sequence(all))
}

/// Host and port of a kubeconfig's server, if it is `https`.
pub fn endpoint(kubeconfig: &str) -> Option<(String, u16)> {
    let config = parse("kubeconfig", kubeconfig).ok()?;
    let cluster = items(&config, &["clusters"]).first()?;
    let server: Uri = text(cluster, &["cluster", "server"]).parse().ok()?;
    let host = server.host()?.trim_matches(['[', ']']).to_owned();
    let is_https = server.scheme() == Some(&Scheme::HTTPS);
    is_https.then(|| (host, server.port_u16().unwrap_or(443)))
}
