//! The three ways in which the proxy can run beside an apiserver that is a static pod. Each is what people apply by hand, the
//! files in `deploy/kubeadm`, made to fit the node. Pure.

use clap::ValueEnum;
use serde_yaml::Value;

use super::apiserver::{GRACE, Mount, PROBES, PROXY};
use super::flags::Flags;
use super::yaml::{at, items, list, mapping, parse, set, text};
use crate::config::duration;

/// Where the configuration is, on the node and in the container.
pub const DIRECTORY: &str = "/etc/kubernetes/kube-interop-proxy";
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
            Self::OwnPod => {
                include_str!("../../deploy/kubeadm/patches-own-pod/kube-apiserver+strategic.yaml")
            }
            Self::Sidecar => {
                include_str!("../../deploy/kubeadm/patches/kube-apiserver+strategic.yaml")
            }
            Self::NativeSidecar => include_str!(
                "../../deploy/kubeadm/patches-native-sidecar/kube-apiserver+strategic.yaml"
            ),
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
            let (flag, wanted) = word
                .trim_start_matches('-')
                .split_once('=')
                .unwrap_or_default();
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
        let own = |list: &str| {
            let mut all = items(&patch, &["spec", list]).iter();
            all.find(|it| text(it, &["name"]) == PROXY).cloned()
        };
        let (mut container, volume) = (own(key)?, own("volumes")?);
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
    set(pod.get_mut("metadata")?, "name", None);
    let spec = pod.get_mut("spec")?;
    fit(list(spec, "containers")?.first_mut()?, inputs)?;
    let volumes = list(spec, "volumes")?;
    let own = volumes.pop()?;
    volumes.clear();
    for Mount { volume, .. } in inputs.mounts {
        if !volumes.contains(volume) {
            volumes.push(volume.clone());
        }
    }
    volumes.push(own);
    Some(pod)
}

/// Makes a container that is written by hand that of this node.
fn fit(container: &mut Value, inputs: &ContainerInputs<'_>) -> Option<()> {
    set(container, "image", Some(inputs.image.into()));
    for probe in PROBES {
        if let Some(probe) = container.get_mut(probe) {
            set(
                probe.get_mut("httpGet")?,
                "port",
                Some(inputs.admin_port.into()),
            );
        }
    }
    if inputs.serving_port < PRIVILEGED {
        let capabilities = mapping(container, &["securityContext", "capabilities"])?;
        list(capabilities, "add")?.push(BIND_LOW_PORTS.into());
    }
    let mounts = list(container, "volumeMounts")?;
    let own = mounts.pop()?;
    let all = inputs.mounts.iter().map(|it| it.mount.clone());
    *mounts = all.chain([own]).collect();
    Some(())
}
