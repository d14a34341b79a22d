//! kube-apiserver's static pod: where its flags, files and probes are, and what of it is changed for the proxy. Pure.
//!
//! What was changed is noted in an annotation of the manifest itself. So it can be undone in whatever became of the
//! manifest since: what somebody else wrote anew has neither the change nor the note.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_yaml::{Mapping, Value};

use super::flags::Flags;
use super::layout::Layout;
use super::yaml::{at, items, list, mapping, parse, retain, set, text};

/// Name of the proxy's container, of its volume, and of everything else that is its own.
pub(super) const PROXY: &str = "kube-interop-proxy";
/// What was changed: a [`Changed`] as JSON.
const CHANGED: &str = "kube-interop-proxy/changed";
/// Makes the pod another one for kubelet, which starts it anew at once.
pub(super) const RESTARTED: &str = "kube-interop-proxy/restarted";
const ADVERTISED: &str = "kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint";
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
pub(super) const ANNOTATIONS: &[&str] = &["metadata", "annotations"];
pub(super) const GRACE: &str = "terminationGracePeriodSeconds";
pub(super) const PROBES: [&str; 3] = ["startupProbe", "livenessProbe", "readinessProbe"];
const HANDLERS: [&str; 2] = ["httpGet", "tcpSocket"];
const LOOPBACK: &str = "--bind-address=127.0.0.1";
const WHAT: &str = "the manifest of kube-apiserver";

/// What was changed in the manifest, so that it can be undone.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Changed {
    /// Words at the end of `args`.
    args: Vec<String>,
    /// Hosts of the probes before, by probe.
    hosts: Vec<(String, Option<String>)>,
    grace: Option<Grace>,
    default_container: bool,
}

/// The grace period was changed.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Grace {
    before: Option<u64>,
}

/// A manifest without the proxy.
pub(super) struct ApiServer {
    pub(super) pod: Value,
    /// Its place in `containers`.
    index: usize,
    /// A proxy stood in it, or it was changed for one; also by an `uninstall` that was broken off.
    pub(super) had_proxy: bool,
}

impl ApiServer {
    /// `has_own_pod`: a static pod of the proxy stands beside it.
    pub(super) fn read(manifest: &str, has_own_pod: bool) -> Result<Self, String> {
        let mut pod = parse(WHAT, manifest)?;
        if pod.get("kind").and_then(Value::as_str) != Some("Pod") {
            return Err(format!("{WHAT} is not one of kind Pod"));
        }
        let layout = proxy(&pod).map(|(layout, _)| layout);
        let changed = changed(&pod, layout, has_own_pod)?;
        take_out(&mut pod, &changed);
        let index = apiserver(&pod)?;
        let spec = pod.get_mut("spec");
        if let Some(containers) = spec.and_then(|spec| list(spec, "containers")) {
            restore(&mut containers[index], &changed);
        }
        let this = Self {
            pod,
            index,
            had_proxy: layout.is_some() || !changed.args.is_empty(),
        };
        let mut words = words(this.container()).into_iter();
        if !words.any(|word| word.starts_with("--")) {
            return Err(format!(
                "{WHAT} has no flags in `command` and `args`: a shell or a script gives them to it"
            ));
        }
        Ok(this)
    }

    pub(super) fn container(&self) -> &Value {
        &items(&self.pod, &["spec", "containers"])[self.index]
    }

    /// The flags behind the program's name.
    pub(super) fn flags(&self) -> Result<Flags, String> {
        let words = words(self.container());
        let program = words.iter().position(|word| is_apiserver(word));
        match program {
            Some(program) => Ok(Flags::read(&words[program + 1..])),
            None if words[0].starts_with("--") => Ok(Flags::read(&words)),
            None => Err(format!(
                "kube-apiserver is started by {}: its flags cannot be read there, nor one be added; write them into \
                 `command`, one an item",
                words[0]
            )),
        }
    }

    /// The minor version in the image's tag.
    pub(super) fn minor_version(&self) -> Option<u32> {
        let (_, tag) = text(self.container(), &["image"]).rsplit_once(":v1.")?;
        let minor = tag.split(|c: char| !c.is_ascii_digit()).next()?;
        minor.parse().ok()
    }

    /// The volume that has this file of the container, and where it is mounted.
    pub(super) fn mount(&self, file: &Path) -> Result<Mount, String> {
        let mounts = items(self.container(), &["volumeMounts"]);
        let of = |mount: &&Value| file.starts_with(text(mount, &["mountPath"]));
        let deepest = |mount: &&Value| Path::new(text(mount, &["mountPath"])).components().count();
        let found = mounts.iter().filter(of).max_by_key(deepest);
        let volume = found.and_then(|mount| {
            let named = |volume: &&Value| volume.get("name") == mount.get("name");
            items(&self.pod, &["spec", "volumes"]).iter().find(named)
        });
        let host = volume.and_then(|it| at(it, &["hostPath", "path"])?.as_str());
        let (Some(mount), Some(volume), Some(host)) = (found, volume, host) else {
            let file = file.display();
            return Err(format!(
                "{file} is in no hostPath volume of kube-apiserver: the proxy cannot be given it"
            ));
        };
        let below = file.strip_prefix(text(mount, &["mountPath"]));
        let below = below.unwrap_or(file);
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if !below.components().all(is_plain) {
            return Err(format!("{} is no plain path", file.display()));
        }
        // Without a slash at the end where it is the volume itself.
        let mut host = PathBuf::from(host);
        host.extend(Path::new(text(mount, &["subPath"])));
        host.extend(below);
        let mut mount = mount.clone();
        set(&mut mount, &["readOnly"], Some(true.into()));
        Ok(Mount {
            host,
            mount,
            volume: volume.clone(),
        })
    }

    /// With these words behind the flags, and the probes on loopback; the proxy's container is added by [`super::layout`].
    pub(super) fn changed(&self, layout: Layout) -> Result<Value, String> {
        const NOT_ONE: &str =
            "the manifest of kube-apiserver is not a pod's: a list or mapping is something else";
        let mut pod = self.pod.clone();
        let mut changed = Changed {
            args: layout.words_beside(&self.flags()?),
            default_container: layout != Layout::OwnPod,
            ..Changed::default()
        };
        let spec = pod.get_mut("spec").ok_or(NOT_ONE)?;
        if let Some(wanted) = layout.grace() {
            let before = spec.get(GRACE).and_then(Value::as_u64);
            if before.is_none_or(|before| before < wanted) {
                changed.grace = Some(Grace { before });
                set(spec, &[GRACE], Some(wanted.into()));
            }
        }
        let containers = list(spec, "containers").ok_or(NOT_ONE)?;
        let container = containers.get_mut(self.index).ok_or(NOT_ONE)?;
        let args = list(container, "args").ok_or(NOT_ONE)?;
        args.extend(changed.args.iter().map(|word| word.as_str().into()));
        for [probe, handler] in handlers() {
            if let Some(asked) = at(container, &[probe, handler]) {
                let before = asked.get("host").and_then(Value::as_str).map(str::to_owned);
                changed.hosts.push((probe.to_owned(), before));
                let loopback = Some("127.0.0.1".into());
                set(container, &[probe, handler, "host"], loopback);
            }
        }
        let annotations = mapping(&mut pod, ANNOTATIONS).ok_or(NOT_ONE)?;
        changed.default_container &= annotations.get(DEFAULT_CONTAINER).is_none();
        if changed.default_container {
            let name = text(self.container(), &["name"]);
            set(annotations, &[DEFAULT_CONTAINER], Some(name.into()));
        }
        let note = serde_json::to_string(&changed).map_err(|error| error.to_string())?;
        set(annotations, &[CHANGED], Some(note.into()));
        Ok(pod)
    }
}

/// A file of the container on the node.
pub(super) struct Mount {
    pub(super) host: PathBuf,
    pub(super) mount: Value,
    pub(super) volume: Value,
}

/// The manifest without our notes, for a comparison.
pub(super) fn without_notes(pod: &Value) -> Value {
    let mut pod = pod.clone();
    remove_annotations(&mut pod, &[CHANGED, RESTARTED]);
    pod
}

/// Where a probe names a host.
fn handlers() -> impl Iterator<Item = [&'static str; 2]> {
    let of = |probe| HANDLERS.map(|handler| [probe, handler]);
    PROBES.into_iter().flat_map(of)
}

fn is_apiserver(word: &str) -> bool {
    let name = Path::new(word).file_name();
    name.is_some_and(|name| name == "kube-apiserver" || name == "apiserver")
}

fn words(container: &Value) -> Vec<String> {
    let parts = ["command", "args"].map(|key| items(container, &[key]));
    parts.concat().iter().map(word).collect()
}

/// A flag alone in quotes, or a number, is a word too.
fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        _ => String::new(),
    }
}

fn apiserver(pod: &Value) -> Result<usize, String> {
    let containers = items(pod, &["spec", "containers"]);
    let named = |it: &Value| text(it, &["name"]) == "kube-apiserver";
    let runs = |it: &Value| words(it).iter().any(|word| is_apiserver(word));
    let found = containers.iter().position(named);
    let found = found.or_else(|| containers.iter().position(runs));
    let index = found.ok_or_else(|| format!("{WHAT} has no container that runs kube-apiserver"))?;
    if words(&containers[index]).is_empty() {
        return Err(format!("{WHAT} has no flags: neither `command` nor `args`"));
    }
    if at(pod, &["spec", "hostNetwork"]) != Some(&Value::Bool(true)) {
        let why = "kube-apiserver is not on the host's network (hostNetwork: true): a proxy in another pod would not reach it on \
                   loopback; see deploy/hosted";
        return Err(why.to_owned());
    }
    Ok(index)
}

/// The proxy's container in the apiserver's pod, and what that makes of it.
pub(super) fn proxy(pod: &Value) -> Option<(Layout, &Value)> {
    let sidecar = own(pod, "containers").map(|it| (Layout::Sidecar, it));
    sidecar.or_else(|| Some((Layout::NativeSidecar, own(pod, "initContainers")?)))
}

/// What is the proxy's in a list of a pod.
pub(super) fn own<'p>(pod: &'p Value, list: &str) -> Option<&'p Value> {
    let mut all = items(pod, &["spec", list]).iter();
    all.find(|it| text(it, &["name"]) == PROXY)
}

/// Where there is a proxy, in the pod or beside it, what `docs/` tells people to write by hand is for it.
fn changed(pod: &Value, layout: Option<Layout>, has_own_pod: bool) -> Result<Changed, String> {
    match at(pod, &["metadata", "annotations", CHANGED]).and_then(Value::as_str) {
        Some(note) => serde_json::from_str(note)
            .map_err(|error| format!("{WHAT}: the annotation {CHANGED} was damaged: {error}")),
        None if layout.is_some() || has_own_pod => by_hand(pod, layout),
        None => Ok(Changed::default()),
    }
}

/// Takes the proxy out of the pod.
fn take_out(pod: &mut Value, changed: &Changed) {
    remove_annotations(pod, &[CHANGED, RESTARTED]);
    if changed.default_container {
        remove_annotations(pod, &[DEFAULT_CONTAINER]);
    }
    if let Some(grace) = &changed.grace {
        set(pod, &["spec", GRACE], grace.before.map(Value::from));
    }
    for key in ["containers", "initContainers", "volumes"] {
        retain(pod, &["spec", key], |it| text(it, &["name"]) != PROXY);
    }
}

/// Makes the apiserver's container what it was.
fn restore(container: &mut Value, changed: &Changed) {
    for word in &changed.args {
        let last = items(container, &["args"])
            .iter()
            .rposition(|it| it == word);
        let mut index = 0..;
        retain(container, &["args"], |_| index.next() != last);
    }
    for (probe, before) in &changed.hosts {
        for handler in HANDLERS {
            let before = before.as_deref().map(Value::from);
            set(container, &[probe, handler, "host"], before);
        }
    }
}

/// Also the annotations themselves, if none are left.
fn remove_annotations(pod: &mut Value, names: &[&str]) {
    for name in names {
        set(pod, &["metadata", "annotations", name], None);
    }
    let left = at(pod, ANNOTATIONS).and_then(Value::as_mapping);
    if left.is_some_and(Mapping::is_empty) {
        set(pod, ANNOTATIONS, None);
    }
}

/// What the patches of `deploy/kubeadm` have changed.
fn by_hand(pod: &Value, layout: Option<Layout>) -> Result<Changed, String> {
    let container = &items(pod, &["spec", "containers"])[apiserver(pod)?];
    let args: Vec<_> = items(container, &["args"]).iter().map(word).collect();
    if !args.iter().any(|word| word == LOOPBACK) {
        return Ok(Changed::default());
    }
    let words = layout.unwrap_or(Layout::OwnPod).words();
    let ours = args.into_iter().filter(|it| words.contains(it));
    let host = text(pod, &["metadata", "annotations", ADVERTISED]).rsplit_once(':');
    let host = host.map(|(host, _)| host.trim_matches(['[', ']']).to_owned());
    let asks_loopback =
        |[probe, handler]: &[&str; 2]| text(container, &[probe, handler, "host"]) == "127.0.0.1";
    let hosts = handlers().filter(asks_loopback);
    let hosts = hosts.map(|[probe, _]| (probe.to_owned(), host.clone()));
    Ok(Changed {
        args: ours.collect(),
        hosts: hosts.collect(),
        grace: layout.map(|_| Grace { before: None }),
        default_container: layout.is_some(),
    })
}
