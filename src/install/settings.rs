//! The proxy's configuration, derived from the apiserver's flags and what its files say. Pure.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde_yaml::{Mapping, Value};
use x509_parser::extensions::GeneralName;

use super::apiserver::{ApiServer, Mount};
use super::flags::Flags;
use super::layout::Layout;
use super::node::Node;
use super::yaml::{items, mapping, parse, set, text, write};
use crate::config::{self, Config};
use crate::x509::pem::{parse_certs, parsed};

/// Lists of `serving`, and the flags that they are.
const REQUEST_HEADERS: [(&str, &str); 5] = [
    ("requestHeaderAllowedNames", "requestheader-allowed-names"),
    (
        "requestHeaderUsernameHeaders",
        "requestheader-username-headers",
    ),
    ("requestHeaderGroupHeaders", "requestheader-group-headers"),
    (
        "requestHeaderExtraHeaderPrefixes",
        "requestheader-extra-headers-prefix",
    ),
    ("requestHeaderUidHeaders", "requestheader-uid-headers"),
];
const SERVER_NAME: &str = "kubernetes.default.svc";
/// How clients spread again after a restart, where nobody has said how.
const GOAWAY_CHANCE: f64 = 0.001;
const HEADER: &str = "# Written by `kube-interop-proxy install` from kube-apiserver's flags. What is left out has its default; \
                      all keys are in\n# config.example.yaml. `install` keeps what is added here.\n";

/// What the flags give.
pub(super) struct Derived {
    /// Null: the flags decide that it has its default.
    values: Value,
    /// Every file that it names.
    pub(super) files: Vec<PathBuf>,
    pub(super) warnings: Vec<String>,
    pub(super) address: SocketAddr,
}

/// Fills the sections in.
struct Builder<'b> {
    server: &'b ApiServer,
    node: &'b Node<'b>,
    flags: Flags,
    derived: Derived,
}

/// `addresses`: where else to listen.
pub(super) fn derive(
    server: &ApiServer,
    node: &Node<'_>,
    address: SocketAddr,
    addresses: &[IpAddr],
    layout: Layout,
) -> Result<Derived, String> {
    let mut builder = Builder {
        server,
        node,
        flags: server.flags()?,
        derived: Derived {
            values: parse(
                "it",
                "apiVersion: kube-interop-proxy/v1alpha1\nkind: ProxyConfiguration",
            )?,
            files: Vec::new(),
            warnings: Vec::new(),
            address,
        },
    };
    let (authority, name) = builder.certificate()?;
    builder.serving(addresses)?;
    builder.api_server(&authority, &name)?;
    builder.etcd()?;
    builder.set("peer", "advertiseAddress", address.to_string());
    builder.set_file("peer", "caFile", &authority);
    builder.set("peer", "serverName", name);
    if layout == Layout::NativeSidecar {
        // It is told to stop when its apiserver has ended, which starts again after it.
        builder.set("shutdown", "delay", "1s");
        builder.set("shutdown", "drain", "10s");
    }
    builder.derived.values = without_defaults(builder.derived.values)?;
    Ok(builder.derived)
}

impl Builder<'_> {
    fn set(&mut self, section: &str, key: &str, value: impl Into<Value>) {
        let values = &mut self.derived.values;
        if let Some(section) = mapping(values, &[section]) {
            set(section, key, Some(value.into()));
        }
    }

    /// An empty list is one that no flag gives.
    fn set_list(&mut self, section: &str, key: &str, items: Vec<String>) {
        let list = (!items.is_empty()).then(|| Value::from(items));
        self.set(section, key, list.unwrap_or_default());
    }

    fn set_file(&mut self, section: &str, key: &str, file: &str) {
        self.derived.files.push(file.into());
        self.set(section, key, file);
    }

    /// A key of the configuration that is a flag's value.
    fn set_flag(&mut self, section: &str, key: &str, flag: &str, why: &str) -> Result<(), String> {
        let value = self.flags.get(flag).map(str::to_owned);
        let value = value.ok_or_else(|| format!("kube-apiserver has no --{flag}: {why}"))?;
        self.set_file(section, key, &value);
        Ok(())
    }

    fn warn(&mut self, warning: String) {
        self.derived.warnings.push(warning);
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
        let beside = Path::new(file)
            .with_file_name("ca.crt")
            .display()
            .to_string();
        let known = ["client-ca-file", "kubelet-certificate-authority"];
        let known = known.iter().filter_map(|flag| self.flags.get(flag));
        let issued = |authority: &&str| {
            let certs = self
                .read(authority)
                .ok()
                .and_then(|text| parse_certs(&text).ok());
            let certs = certs.unwrap_or_default();
            let mut subjects = certs.iter().filter_map(parsed);
            subjects.any(|ca| ca.subject().as_raw() == leaf.issuer().as_raw())
        };
        let authority = known.chain([beside.as_str()]).find(issued);
        let authority = authority.ok_or_else(|| {
            format!(
                "no file that kube-apiserver is given has the CA of {file} ({}): peers could not verify it",
                leaf.issuer()
            )
        })?;
        let names = leaf.subject_alternative_name().ok().flatten();
        let names = names.iter().flat_map(|names| &names.value.general_names);
        let names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        });
        let names: Vec<_> = names.collect();
        // With the cluster's domain, where the short form is missing; as people make certificates, any of them.
        let in_domain = names
            .iter()
            .find(|it| it.starts_with("kubernetes.default.svc."));
        let name = match names.contains(&SERVER_NAME) {
            true => SERVER_NAME,
            false => in_domain.copied().ok_or_else(|| {
                format!(
                    "{file} is not valid for {SERVER_NAME}, by which proxies know each other: make it with that name (kubeadm's \
                     certSANs)"
                )
            })?,
        };
        Ok((authority.to_owned(), name.to_owned()))
    }

    fn serving(&mut self, addresses: &[IpAddr]) -> Result<(), String> {
        const S: &str = "serving";
        let port = self.derived.address.port();
        self.set(S, "bindAddress", self.derived.address.to_string());
        if !addresses.is_empty() {
            let also = addresses.iter().map(|ip| SocketAddr::new(*ip, port));
            let also = also.map(|it| it.to_string()).collect();
            self.set_list(S, "additionalBindAddresses", also);
        }
        self.set_flag(S, "certFile", "tls-cert-file", "")?;
        self.set_flag(
            S,
            "keyFile",
            "tls-private-key-file",
            "its certificate has no key",
        )?;
        self.set_flag(
            S,
            "clientCAFile",
            "client-ca-file",
            "it knows no users by certificate, and the proxy needs the CA of those",
        )?;
        let why = "it would reject the proxy's front-proxy credentials (see kubeadm's front-proxy certificates)";
        self.set_flag(
            S,
            "requestHeaderClientCAFile",
            "requestheader-client-ca-file",
            why,
        )?;
        self.request_headers();
        self.sni()?;
        self.tls_options();
        self.goaway_chance();
        Ok(())
    }

    fn request_headers(&mut self) {
        for (key, flag) in REQUEST_HEADERS {
            let given = self.flags.list(flag);
            match given.is_empty() && key == "requestHeaderAllowedNames" {
                // Any.
                true => self.set("serving", key, Value::Sequence(Vec::new())),
                false => self.set_list("serving", key, given),
            }
        }
    }

    fn goaway_chance(&mut self) {
        const S: &str = "serving";
        let chance = self
            .flags
            .get("goaway-chance")
            .and_then(|it| it.parse::<f64>().ok());
        match chance {
            Some(chance) if chance > 0.0 => self.set(S, "goawayChance", chance),
            None if self.node.servers > 1 => self.set(S, "goawayChance", GOAWAY_CHANCE),
            _ => {}
        }
    }

    /// `cert,key` or `cert,key:name,name`.
    fn sni(&mut self) -> Result<(), String> {
        const FLAG: &str = "tls-sni-cert-key";
        let given: Vec<_> = self.flags.each(FLAG).map(str::to_owned).collect();
        let mut all = Vec::new();
        for value in given {
            let (files, names) = value.split_once(':').unwrap_or((&value, ""));
            let (cert, key) = files
                .split_once(',')
                .ok_or_else(|| format!("--{FLAG}={value} is not CERT,KEY or CERT,KEY:NAMES"))?;
            self.derived.files.extend([cert.into(), key.into()]);
            let mut one = Mapping::new();
            one.insert("certFile".into(), cert.into());
            one.insert("keyFile".into(), key.into());
            if !names.is_empty() {
                one.insert("names".into(), names.split(',').collect::<Vec<_>>().into());
            }
            all.push(Value::Mapping(one));
        }
        self.set("serving", "sniCertificates", Value::Sequence(all));
        Ok(())
    }

    fn tls_options(&mut self) {
        let mut oldest = "VersionTLS12";
        match self.flags.get("tls-min-version") {
            Some("VersionTLS13") => oldest = "VersionTLS13",
            Some(old @ ("VersionTLS10" | "VersionTLS11")) => self.warn(format!(
                "--tls-min-version={old}: the proxy has TLS 1.2 and 1.3 only; clients with older ones are refused from now on"
            )),
            _ => {}
        }
        self.set("serving", "minTLSVersion", oldest);
        let suites = self.flags.list("tls-cipher-suites");
        let (known, other): (Vec<_>, Vec<_>) = suites
            .into_iter()
            .partition(|name| config::has_cipher_suite(name));
        if !other.is_empty() {
            let other = other.join(", ");
            let left = match known.is_empty() {
                true => "; none of the list is left, so it uses all that it has",
                false => "",
            };
            self.warn(format!(
                "--tls-cipher-suites: the proxy does not have {other}{left}"
            ));
        }
        self.set_list("serving", "cipherSuites", known);
    }

    fn api_server(&mut self, authority: &str, name: &str) -> Result<(), String> {
        const S: &str = "apiServer";
        let local = format!("127.0.0.1:{}", self.derived.address.port());
        self.set(S, "address", local);
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
        let mut elsewhere: Vec<String> = Vec::new();
        for given in self.flags.list("etcd-servers-overrides") {
            let (group, resource) = given
                .split_once('#')
                .and_then(|(resource, _)| resource.split_once('/'))
                .ok_or_else(|| {
                    format!("--etcd-servers-overrides: {given} is not GROUP/RESOURCE#SERVERS")
                })?;
            // kube-apiserver keeps both where either is.
            let names = match (group, resource) {
                ("" | "events.k8s.io", "events") => {
                    vec!["events".to_owned(), "events.events.k8s.io".to_owned()]
                }
                ("", resource) => vec![resource.to_owned()],
                (group, resource) => vec![format!("{resource}.{group}")],
            };
            let new = names.into_iter().filter(|name| !elsewhere.contains(name));
            let new: Vec<_> = new.collect();
            elsewhere.extend(new);
        }
        self.set_list(S, "otherResources", elsewhere);
        Ok(())
    }
}

impl Derived {
    /// The text of the configuration, and what it says. What `before` has beyond what is derived stays; if nothing is
    /// different, its text does.
    pub(super) fn text(&self, before: Option<&str>) -> Result<(String, Config), String> {
        let old = match before {
            Some(before) => parse("proxy.yaml", before)?,
            None => Value::Mapping(Mapping::new()),
        };
        let text = format!("{HEADER}{}", write(&merged(&old, &self.values))?);
        let config = checked(&text)?;
        match before.filter(|before| config::parse(before).as_ref() == Ok(&config)) {
            Some(before) => Ok((before.to_owned(), config)),
            None => Ok((text, config)),
        }
    }
}

pub(super) fn checked(text: &str) -> Result<Config, String> {
    config::parse(text).map_err(|problems| {
        let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
        format!(
            "what kube-apiserver is given makes no configuration of the proxy: {}",
            problems.join("; ")
        )
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
            if let Some(section) = mapping(&mut fewer, &[&section]) {
                set(section, &key, Some(Value::Null));
            }
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
            set(&mut values, &name, Some(section.clone()));
        } else if let Some(into) = mapping(&mut values, &[&name]) {
            for key in keys(section) {
                let value = match (key.as_str(), &section[&key]) {
                    (_, Value::Null) => None,
                    ("additionalBindAddresses", value) => Some(union(into.get(&key), value)),
                    // An operator's own choices.
                    ("goawayChance" | "delay" | "drain", value) => {
                        into.get(&key).or(Some(value)).cloned()
                    }
                    (_, value) => Some(value.clone()),
                };
                set(into, &key, value);
            }
        }
    }
    values
}

fn union(old: Option<&Value>, new: &Value) -> Value {
    let old = old
        .and_then(Value::as_sequence)
        .cloned()
        .unwrap_or_default();
    let address = |it: &Value| it.as_str().and_then(|it| it.parse::<SocketAddr>().ok());
    let known: Vec<_> = old.iter().map(address).collect();
    let new = new.as_sequence().into_iter().flatten();
    let new = new.filter(|it| !known.contains(&address(it))).cloned();
    old.iter().cloned().chain(new).collect()
}

/// The last part of a kubeconfig's server, if it is `https://HOST:PORT`.
pub fn endpoint(kubeconfig: &str) -> Option<(String, u16)> {
    let config = parse("kubeconfig", kubeconfig).ok()?;
    let cluster = items(&config, &["clusters"]).first()?;
    let server = text(cluster, &["cluster", "server"]).strip_prefix("https://")?;
    let server = server.split('/').next()?;
    match server.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && !port.ends_with(']') => {
            Some((host.trim_matches(['[', ']']).to_owned(), port.parse().ok()?))
        }
        _ => Some((server.trim_matches(['[', ']']).to_owned(), 443)),
    }
}
