//! `deploy/kubeadm`: the patch on the manifests of several kubeadm versions, and the resulting pod as processes.
//! `kubectl patch --local` applies a strategic merge patch with the same library as `kubeadm --patches`.

pub mod apart;
mod install;
mod node;
mod rolling;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use testkit::missing;

const PATCH: &str = "deploy/kubeadm/patches/kube-apiserver+strategic.yaml";
const CONFIG: &str = "deploy/kubeadm/proxy.yaml";
pub const VERSIONS: [&str; 5] = ["v1.20", "v1.24", "v1.28", "v1.31", "v1.36"];

/// A file of this project.
fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn yaml(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap();
    serde_yaml::from_str(&text).unwrap()
}

/// What kubeadm of this version writes.
fn manifest(version: &str) -> PathBuf {
    file(&format!("tests/data/kubeadm/kube-apiserver-{version}.yaml"))
}

/// The same with the patch that makes the proxy a second container.
pub fn patched(version: &str) -> Value {
    patched_with(version, PATCH)
}

fn patched_with(version: &str, patch: &str) -> Value {
    let mut kubectl = std::process::Command::new("kubectl");
    kubectl.args(["patch", "--local", "--type=strategic", "--output=json"]);
    kubectl.arg("-f").arg(manifest(version));
    kubectl.arg("--patch-file").arg(file(patch));
    let Ok(output) = kubectl.output() else {
        missing("kubectl", "run tests/install.sh --tests");
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{version}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let mut all = list(&pod["spec"], "containers").iter();
    all.find(|container| container["name"] == name).unwrap()
}

/// Command and arguments, as kubelet puts them together.
fn command_line(container: &Value) -> Vec<String> {
    let parts = list(container, "command").iter();
    let parts = parts.chain(list(container, "args"));
    parts
        .map(|part| part.as_str().unwrap().to_owned())
        .collect()
}

/// Of a flag that is there twice the last one counts.
fn flags(container: &Value) -> BTreeMap<String, String> {
    let words = command_line(container);
    let flags = words.iter().filter_map(|word| word.strip_prefix("--"));
    let pairs = flags.filter_map(|flag| flag.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Where a probe asks: host, port and path.
fn asked(container: &Value, probe: &str) -> (String, u64, String) {
    let get = &container[probe]["httpGet"];
    let text = |key: &str| get[key].as_str().unwrap_or_default().to_owned();
    let named = |port: &&Value| port["name"] == get["port"];
    let port = get["port"].as_u64().or_else(|| {
        let named = list(container, "ports").iter().find(named);
        named.and_then(|port| port["containerPort"].as_u64())
    });
    (text("host"), port.unwrap(), text("path"))
}

fn seconds(text: &str) -> u64 {
    text.strip_suffix('s').unwrap().parse().unwrap()
}

#[test]
fn the_apiserver_keeps_everything_but_its_address() {
    for version in VERSIONS {
        let (before, after) = (yaml(&manifest(version)), patched(version));
        let names: Vec<_> = list(&after["spec"], "containers")
            .iter()
            .map(|container| container["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["kube-apiserver", "kube-interop-proxy"], "{version}");
        let (old, new) = (
            container(&before, "kube-apiserver"),
            container(&after, "kube-apiserver"),
        );
        for key in ["command", "image", "volumeMounts", "resources", "ports"] {
            assert_eq!(old[key], new[key], "{version}: {key}");
        }
        for key in ["hostNetwork", "priorityClassName", "securityContext"] {
            assert_eq!(before["spec"][key], after["spec"][key], "{version}: {key}");
        }
        let mut flags = flags(new);
        let mut taken = |flag: &str| flags.remove(flag).unwrap_or_default();
        assert_eq!(taken("bind-address"), "127.0.0.1", "{version}");
        assert_eq!(taken("secure-port"), "6443", "{version}");
        // With the port this is what the Endpoints of the kubernetes Service say.
        assert_eq!(taken("advertise-address"), "10.0.0.11", "{version}");
        let delay = seconds(&taken("shutdown-delay-duration"));
        let shutdown = &yaml(&file("config.example.yaml"))["shutdown"];
        let proxys = ["delay", "drain"].map(|key| seconds(shutdown[key].as_str().unwrap()));
        let proxys: u64 = proxys.iter().sum();
        assert!(delay >= proxys, "{version}: {delay}");
        let grace = &after["spec"]["terminationGracePeriodSeconds"];
        let grace = grace.as_u64().unwrap();
        assert!(grace > delay, "{version}: {grace}");
        // The proxy may wait so long for its apiserver.
        assert!(grace > proxys + 77, "{version}: {grace}");
    }
}

#[test]
fn probes_ask_on_loopback_and_no_port_is_taken_twice() {
    for version in VERSIONS {
        let pod = patched(version);
        let apiserver = container(&pod, "kube-apiserver");
        let proxy = container(&pod, "kube-interop-proxy");
        for (container, probe, port, path) in [
            (apiserver, "startupProbe", 6443, "/livez"),
            (apiserver, "livenessProbe", 6443, "/livez"),
            (apiserver, "readinessProbe", 6443, "/readyz"),
            (proxy, "livenessProbe", 6450, "/livez"),
            (proxy, "readinessProbe", 6450, "/readyz"),
        ] {
            let there = ("127.0.0.1".to_owned(), port, path.to_owned());
            assert_eq!(asked(container, probe), there, "{version}: {probe}");
        }
        // kube-apiserver refuses a pod on the host's network that declares a port twice.
        assert_eq!(list(proxy, "ports").len(), 0, "{version}");
    }
    let config = yaml(&file(CONFIG));
    let (served, local) = (
        &config["serving"]["bindAddress"],
        &config["apiServer"]["address"],
    );
    assert_eq!(served, "10.0.0.11:6443");
    assert_eq!(served, &config["peer"]["advertiseAddress"]);
    assert_eq!(local, "127.0.0.1:6443");
}

#[test]
fn what_is_mounted_exists_and_every_file_of_the_configuration_is_mounted() {
    let config = std::fs::read_to_string(file(CONFIG)).unwrap();
    let files = |line: &str| {
        let (key, path) = line.trim().split_once(": ")?;
        (key.ends_with("File") && path.starts_with('/')).then(|| path.to_owned())
    };
    let mut wanted: Vec<String> = config.lines().filter_map(files).collect();
    assert_eq!(wanted.len(), 11, "{wanted:?}");
    for version in VERSIONS {
        let pod = patched(version);
        let volumes = list(&pod["spec"], "volumes");
        let mounts = |name: &str| list(container(&pod, name), "volumeMounts").to_vec();
        for mount in [mounts("kube-apiserver"), mounts("kube-interop-proxy")].concat() {
            let there = volumes.iter().any(|volume| volume["name"] == mount["name"]);
            assert!(there && mount["readOnly"] == true, "{version}: {mount}");
        }
        let proxy = container(&pod, "kube-interop-proxy");
        let flags = flags(proxy);
        wanted.push(flags["config"].clone());
        for path in &wanted {
            let is_in = |mount: &Value| path.starts_with(mount["mountPath"].as_str().unwrap());
            let mounted = list(proxy, "volumeMounts").iter().any(is_in);
            assert!(mounted, "{version}: {path}");
        }
        assert_eq!(proxy["securityContext"]["capabilities"]["drop"][0], "ALL");
    }
}

#[test]
fn the_configuration_has_the_apiservers_own_files() {
    let config = yaml(&file(CONFIG));
    for version in VERSIONS {
        let flags = flags(container(&patched(version), "kube-apiserver"));
        for (key, flag) in [
            ("/serving/certFile", "tls-cert-file"),
            ("/serving/keyFile", "tls-private-key-file"),
            ("/serving/clientCAFile", "client-ca-file"),
            (
                "/serving/requestHeaderClientCAFile",
                "requestheader-client-ca-file",
            ),
            ("/apiServer/proxyClientCertFile", "proxy-client-cert-file"),
            ("/apiServer/proxyClientKeyFile", "proxy-client-key-file"),
            ("/etcd/endpoints/0", "etcd-servers"),
            ("/etcd/caFile", "etcd-cafile"),
            ("/etcd/certFile", "etcd-certfile"),
            ("/etcd/keyFile", "etcd-keyfile"),
        ] {
            let value = config.pointer(key).and_then(Value::as_str);
            assert_eq!(value, Some(flags[flag].as_str()), "{version}: {key}");
        }
        // Left out of the configuration: its defaults.
        assert_eq!(flags["requestheader-allowed-names"], "front-proxy-client");
        assert_eq!(flags["requestheader-username-headers"], "X-Remote-User");
        assert_eq!(flags["requestheader-group-headers"], "X-Remote-Group");
        let prefix = &flags["requestheader-extra-headers-prefix"];
        assert_eq!(prefix, "X-Remote-Extra-", "{version}");
    }
}
