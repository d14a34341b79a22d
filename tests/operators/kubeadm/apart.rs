//! The proxy as a native sidecar of the apiserver's pod, and as a static pod of its own: what differs from the second container
//! of [`super::patched`], and that nothing else does.

use serde_json::{Value, json};

use super::{VERSIONS, asked, container, file, flags, list, manifest, patched, patched_with};
use super::{seconds, yaml};

const NATIVE: &str = "deploy/kubeadm/patches-native-sidecar/kube-apiserver+strategic.yaml";
const OWN_POD: &str = "deploy/kubeadm/patches-own-pod/kube-apiserver+strategic.yaml";
const POD: &str = "deploy/kubeadm/kube-interop-proxy.yaml";
/// The longest that kube-apiserver takes for its last requests after `--shutdown-delay-duration`: `--request-timeout`.
const LAST_REQUESTS: u64 = 60;
/// For the proxy's end after `shutdown.drain`.
const PROXY_EXIT: u64 = 2;

/// kubelet and kubeadm know native sidecars from 1.29 on.
fn knows_sidecars(version: &&&str) -> bool {
    !["v1.20", "v1.24", "v1.28"].contains(version)
}

/// Manifests to be shown to an apiserver, by name. For one that does not know native sidecars the proxy is an ordinary
/// container there.
pub fn manifests() -> Vec<(String, Value)> {
    let mut all = vec![(POD.to_owned(), yaml(&file(POD)))];
    for version in VERSIONS {
        let name = format!("{OWN_POD} {version}");
        all.push((name, patched_with(version, OWN_POD)));
        let mut pod = patched_with(version, NATIVE);
        let spec = pod["spec"].as_object_mut().unwrap();
        let mut sidecars = spec.remove("initContainers").unwrap();
        let mut proxy = sidecars.as_array_mut().unwrap().remove(0);
        proxy.as_object_mut().unwrap().remove("restartPolicy");
        spec["containers"].as_array_mut().unwrap().push(proxy);
        all.push((format!("{NATIVE} {version}"), pod));
    }
    all
}

/// The apiserver's container differs from kubeadm's in arguments and in the host of its probes alone.
#[track_caller]
fn changes_only_the_address(version: &str, pod: &Value) {
    let before = yaml(&manifest(version));
    let mut old = container(&before, "kube-apiserver").clone();
    let mut new = container(pod, "kube-apiserver").clone();
    assert_eq!(flags(&new)["bind-address"], "127.0.0.1", "{version}");
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        assert_eq!(asked(&new, probe).0, "127.0.0.1", "{version}: {probe}");
        for container in [&mut old, &mut new] {
            container[probe]["httpGet"]["host"] = json!("");
        }
    }
    new.as_object_mut().unwrap().remove("args");
    assert_eq!(old, new, "{version}");
}

/// Takes out of `proxy` what only it has, by name; the rest must be that of the second container.
#[track_caller]
fn is_otherwise_the_second_container(mut proxy: Value, but: &[&str]) {
    let pod = patched("v1.31");
    let mut second = container(&pod, "kube-interop-proxy").clone();
    for name in but {
        assert_ne!(proxy[*name], second[*name], "{name}");
        for container in [&mut proxy, &mut second] {
            container.as_object_mut().unwrap().remove(*name);
        }
    }
    assert_eq!(proxy, second);
}

#[test]
fn a_native_sidecar_starts_first_and_is_otherwise_the_second_container() {
    for version in VERSIONS.iter().filter(knows_sidecars) {
        let pod = patched_with(version, NATIVE);
        assert_eq!(list(&pod["spec"], "containers").len(), 1, "{version}");
        let sidecars = list(&pod["spec"], "initContainers");
        let [proxy] = sidecars else {
            panic!("{version}: {sidecars:?}");
        };
        assert_eq!(proxy["restartPolicy"], "Always", "{version}");
        // Not of the apiserver, which is started after it.
        let (host, port, path) = asked(proxy, "startupProbe");
        let there = (host.as_str(), port, path.as_str());
        assert_eq!(there, ("127.0.0.1", 6450, "/livez"), "{version}");
        let but = ["restartPolicy", "startupProbe", "livenessProbe"];
        is_otherwise_the_second_container(proxy.clone(), &but);
        let liveness = asked(proxy, "livenessProbe");
        assert_eq!(liveness, asked(proxy, "startupProbe"), "{version}");
        changes_only_the_address(version, &pod);
    }
}

/// They end one after the other, within one grace period.
#[test]
fn the_grace_period_is_enough_for_the_apiserver_and_then_for_a_native_sidecar() {
    let page = std::fs::read_to_string(file("docs/layouts.md")).unwrap();
    let line = page.lines().find_map(|line| {
        let values = line.strip_prefix("echo 'shutdown: {")?;
        values.strip_suffix("}' >> /etc/kubernetes/kube-interop-proxy/proxy.yaml")
    });
    let values = line.expect("the values for a native sidecar").split(", ");
    let of_proxy: u64 = values
        .map(|value| seconds(value.split_once(": ").unwrap().1))
        .sum();
    for version in VERSIONS.iter().filter(knows_sidecars) {
        let pod = patched_with(version, NATIVE);
        let flags = flags(container(&pod, "kube-apiserver"));
        let of_apiserver = seconds(&flags["shutdown-delay-duration"]) + LAST_REQUESTS;
        let grace = &pod["spec"]["terminationGracePeriodSeconds"];
        let needed = of_apiserver + of_proxy + PROXY_EXIT;
        assert!(grace.as_u64().unwrap() > needed, "{version}: {needed}");
    }
}

#[test]
fn the_apiserver_of_a_proxy_in_its_own_pod_keeps_everything_but_its_address() {
    for version in VERSIONS {
        let (before, mut after) = (yaml(&manifest(version)), patched_with(version, OWN_POD));
        changes_only_the_address(version, &after);
        let args = list(container(&after, "kube-apiserver"), "args");
        assert_eq!(args, ["--bind-address=127.0.0.1"], "{version}");
        after["spec"]["containers"] = before["spec"]["containers"].clone();
        assert_eq!(after, before, "{version}");
    }
}

#[test]
fn the_own_pod_is_otherwise_the_second_container() {
    let pod = yaml(&file(POD));
    let sidecar = patched("v1.31");
    let proxy = container(&pod, "kube-interop-proxy").clone();
    is_otherwise_the_second_container(proxy, &[]);
    for key in [
        "hostNetwork",
        "priorityClassName",
        "terminationGracePeriodSeconds",
    ] {
        assert_eq!(pod["spec"][key], sidecar["spec"][key], "{key}");
    }
    let volumes = list(&pod["spec"], "volumes");
    for mount in list(container(&pod, "kube-interop-proxy"), "volumeMounts") {
        let of = |volumes: &[Value]| {
            let mut all = volumes.iter();
            let volume = all.find(|volume| volume["name"] == mount["name"]);
            volume.map(|volume| volume["hostPath"]["path"].clone())
        };
        let there = of(volumes);
        assert!(there.is_some(), "{mount}");
        assert_eq!(there, of(list(&sidecar["spec"], "volumes")), "{mount}");
    }
}
