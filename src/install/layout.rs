//! The three ways in which the proxy can run beside an apiserver that is a static pod. Each is what people apply by hand, the
//! files in `deploy/kubeadm`, made to fit the node. Pure.

use std::net::IpAddr;

use clap::{Args, ValueEnum};
use indexmap::IndexSet;
use serde_yaml::Value;

use super::apiserver::{GRACE, Mount, PROBES, own};
use super::flags::Flags;
use super::yaml::{at, items, list, mapping, parse, set};
use crate::config::duration;

/// Where the configuration is, on the node and in the container.
pub const DIRECTORY: &str = "/etc/kubernetes/kube-interop-proxy";
const OWN_POD: &str =
    include_str!("../../deploy/kubeadm/patches-own-pod/kube-apiserver+strategic.yaml");
const SIDECAR: &str = include_str!("../../deploy/kubeadm/patches/kube-apiserver+strategic.yaml");
const NATIVE_SIDECAR: &str =
    include_str!("../../deploy/kubeadm/patches-native-sidecar/kube-apiserver+strategic.yaml");
/// Ports below are for who has this capability.
const PRIVILEGED: u16 = 1024;
const BIND_LOW_PORTS: &str = "NET_BIND_SERVICE";

/// How the proxy runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// A static pod of its own: an upgrade of the apiserver does not stop it.
    OwnPod,
    /// A second container of the apiserver's pod.
    Sidecar,
    /// A native sidecar of the apiserver's pod; kubelet must be 1.29 or later.
    NativeSidecar,
}

/// The image that the scripts of `deploy/release` make.
pub const IMAGE: &str = concat!("kube-interop-proxy:", env!("CARGO_PKG_VERSION"));

/// What was asked for.
#[derive(Clone, Default, Args)]
pub struct Options {
    /// How the proxy runs. By default as it does now, or as a pod of its own.
    #[arg(long, value_enum)]
    pub layout: Option<Layout>,
    /// Image of the proxy. By default the one that it has now; at first, and with --image-archive, that of this version.
    #[arg(long)]
    pub image: Option<String>,
    /// A virtual IP that this node may get, if neither kube-vip's nor keepalived's files nor kubeconfigs name it. Can be given
    /// several times.
    #[arg(long = "virtual-ip", value_name = "ADDRESS")]
    pub virtual_ips: Vec<IpAddr>,
}

/// What the proxy's container needs to know.
pub(super) struct ContainerInputs<'i> {
    pub(super) image: &'i str,
    pub(super) admin_port: u16,
    pub(super) serving_port: u16,
    pub(super) mounts: &'i [Mount],
}

impl Layout {
    /// What people apply by hand to the apiserver's pod. The reasons are there.
    fn patch(self) -> Value {
        let text = match self {
            Self::OwnPod => OWN_POD,
            Self::Sidecar => SIDECAR,
            Self::NativeSidecar => NATIVE_SIDECAR,
        };
        parse("the patch", text).unwrap_or_default()
    }

    /// Flags of the apiserver.
    pub(super) fn words(self) -> Vec<String> {
        let patch = self.patch();
        let containers = items(&patch, &["spec", "containers"]).iter();
        let args = containers.flat_map(|it| items(it, &["args"]));
        args.filter_map(|it| Some(it.as_str()?.to_owned()))
            .collect()
    }

    /// Without times that are as long already.
    pub(super) fn words_beside(self, flags: &Flags) -> Vec<String> {
        let is_new = |word: &String| {
            let word = word.trim_start_matches('-');
            let (flag, wanted) = word.split_once('=').unwrap_or_default();
            let given = flags.get(flag).and_then(duration::parse);
            given.is_none() || given < duration::parse(wanted)
        };
        self.words().into_iter().filter(is_new).collect()
    }

    /// The least grace period of the apiserver's pod; `None`: as it is.
    pub(super) fn grace(self) -> Option<u64> {
        at(&self.patch(), &["spec", GRACE]).and_then(Value::as_u64)
    }

    /// Puts the proxy's container into the apiserver's pod.
    pub(super) fn add_to(self, pod: &mut Value, inputs: &ContainerInputs<'_>) -> Option<()> {
        let key = match self {
            Self::OwnPod => return Some(()),
            Self::Sidecar => "containers",
            Self::NativeSidecar => "initContainers",
        };
        let patch = self.patch();
        let (mut container, volume) = (own(&patch, key)?.clone(), own(&patch, "volumes")?.clone());
        fit(&mut container, inputs)?;
        let spec = pod.get_mut("spec")?;
        list(spec, key)?.push(container);
        list(spec, "volumes")?.push(volume);
        Some(())
    }
}

/// The proxy's own static pod, without a name.
pub(super) fn own_pod(inputs: &ContainerInputs<'_>) -> Option<Value> {
    let by_hand = include_str!("../../deploy/kubeadm/kube-interop-proxy.yaml");
    let mut pod = parse("the pod", by_hand).ok()?;
    set(&mut pod, &["metadata", "name"], None);
    let spec = pod.get_mut("spec")?;
    fit(list(spec, "containers")?.first_mut()?, inputs)?;
    let volumes = inputs.mounts.iter().map(|it| &it.volume);
    replace(list(spec, "volumes")?, volumes)?;
    Some(pod)
}

/// Replaces all but the last, which is the proxy's own; each is there once.
fn replace<'m>(list: &mut Vec<Value>, by: impl Iterator<Item = &'m Value>) -> Option<()> {
    let own = list.pop()?;
    let unique: IndexSet<_> = by.collect();
    *list = unique.into_iter().cloned().chain([own]).collect();
    Some(())
}

/// Makes a container that is written by hand that of this node.
fn fit(container: &mut Value, inputs: &ContainerInputs<'_>) -> Option<()> {
    set(container, &["image"], Some(inputs.image.into()));
    for probe in PROBES {
        let port = Some(inputs.admin_port.into());
        set(container, &[probe, "httpGet", "port"], port);
    }
    if inputs.serving_port < PRIVILEGED {
        let capabilities = mapping(container, &["securityContext", "capabilities"])?;
        list(capabilities, "add")?.push(BIND_LOW_PORTS.into());
    }
    let mounts = list(container, "volumeMounts")?;
    replace(mounts, inputs.mounts.iter().map(|it| &it.mount))
}
