//! What `install kubeadm` writes: from a node's static pod manifest of kube-apiserver and what its files say to the proxy's
//! configuration, its own pod and the changed manifest, or one sentence why not. Pure: files are read by who calls.
//!
//! `apiserver` finds flags, files and probes in the manifest, changes it and undoes that; `flags` reads the flags; `settings`
//! makes the configuration of them; `layout` makes the proxy's container; `node` finds addresses. Every plan is made from the
//! manifest without the proxy, so a second one equals the first, whatever stood there.

pub mod difference;
pub mod state;

mod apiserver;
mod flags;
mod layout;
mod node;
mod settings;
mod yaml;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use serde_yaml::Value;

use self::apiserver::{ApiServer, PROXY, RESTARTED, proxy, without_notes};
use self::layout::{ContainerInputs, own_pod};
pub use self::layout::{DIRECTORY, IMAGE, Layout, Options};
pub use self::node::{MANIFESTS, Node, is_for_clients};
pub use self::settings::endpoint;
use self::state::{CONFIG, State};
use self::yaml::{parse, set, text as text_of, write};
use crate::config::settings::waiting;
use crate::config::{self, Config};

const NAME: &[&str] = &["metadata", "name"];
const NOT_CHANGED: &str = "the proxy cannot be put into the pod";

/// What a node needs.
pub struct Plan {
    pub layout: Layout,
    pub image: String,
    /// What stands there.
    pub before: State,
    /// What is to stand there.
    pub state: State,
    /// What is to be known or done by hand.
    pub warnings: Vec<String>,
    /// Files of the apiserver's container that the configuration names, and where they are on the node.
    pub files: Vec<(PathBuf, PathBuf)>,
}

impl Plan {
    /// The settings with each file at the place that it has on this machine.
    pub fn settings_with(&self, place: impl Fn(&Path) -> PathBuf) -> Result<Config, String> {
        let mut values = parse(CONFIG, self.state.text(CONFIG).unwrap_or_default())?;
        each_text(&mut values, &|text| {
            let mut files = self.files.iter();
            let (_, on_node) = files.find(|(file, _)| file == Path::new(text))?;
            Some(place(on_node).display().to_string())
        });
        settings::checked(&write(&values)?)
    }
}

/// Replaces texts of which `of` says with what.
fn each_text(value: &mut Value, of: &impl Fn(&str) -> Option<String>) {
    match value {
        Value::String(text) => *text = of(text).unwrap_or_else(|| text.clone()),
        Value::Sequence(items) => items.iter_mut().for_each(|it| each_text(it, of)),
        Value::Mapping(keys) => keys.values_mut().for_each(|it| each_text(it, of)),
        _ => {}
    }
}

/// What a node needs for the proxy; the error is one sentence that says why that cannot be told.
pub fn plan(node: &Node<'_>, options: &Options) -> Result<Plan, String> {
    let from = node.state();
    let before = from.pods().first().map(|(_, text)| text.as_str());
    let server = ApiServer::read(from.apiserver(), before.is_some())?;
    let installed = node.installed.as_ref();
    let there = proxy_in(&from).or(installed.and_then(proxy_in));
    let (there, image) = there.unwrap_or((Layout::OwnPod, IMAGE.to_owned()));
    let layout = options.layout.unwrap_or(there);
    let image = options.image.clone().unwrap_or(image);
    let flags = server.flags()?;
    let main = node.address(&flags)?;
    let (further, mut warnings) = node.further(&flags, main, &options.virtual_ips);
    let derived = settings::derive(&server, node, main, &further, layout)?;
    let (config, settings) = derived.text(from.text(CONFIG))?;
    warnings.extend(node.asks_on_loopback(main));
    warnings.extend(derived.warnings);
    match (layout, server.minor_version()) {
        (Layout::NativeSidecar, Some(minor @ ..29)) => {
            return Err(format!(
                "native sidecars need Kubernetes 1.29, and this is 1.{minor}: choose another --layout"
            ));
        }
        (Layout::NativeSidecar, _) => warnings
            .push("native sidecars need kubelet 1.29 or later: see `kubelet --version`".to_owned()),
        _ => {}
    }
    let mounts = derived.files.iter().map(|file| server.mount(file));
    let mounts = mounts.collect::<Result<Vec<_>, _>>()?;
    let inputs = ContainerInputs {
        image: &image,
        admin_port: settings.admin.bind_address.port(),
        serving_port: main.port(),
        mounts: &mounts,
    };
    let starts_anew = has_to_start(installed.unwrap_or(&from).text(CONFIG), &config);
    let mut changed = server.changed(layout)?;
    layout.add_to(&mut changed, &inputs).ok_or(NOT_CHANGED)?;
    let (pods, stamp) = match layout {
        Layout::OwnPod => (vec![named_pod(&from, &inputs, &config, starts_anew)?], None),
        _ => (Vec::new(), starts_anew.then(|| hash(&[&config]))),
    };
    let apiserver = kept_or_new(from.apiserver(), installed, changed, stamp)?;
    let hosts = mounts.into_iter().map(|it| it.host);
    Ok(Plan {
        layout,
        image,
        before: from,
        state: State::new(Some(config), pods, apiserver),
        warnings,
        files: derived.files.into_iter().zip(hosts).collect(),
    })
}

/// The manifest of today without the proxy; `None`: it has nothing of it. `has_own_pod`: one stands beside it.
pub fn without_proxy(manifest: &str, has_own_pod: bool) -> Result<Option<String>, String> {
    let server = ApiServer::read(manifest, has_own_pod)?;
    match server.had_proxy {
        true => write(&server.pod).map(Some),
        false => Ok(None),
    }
}

/// The manifest in the form in which it is written, so that a difference shows nothing else.
pub fn normal(manifest: &str) -> Result<String, String> {
    write(&parse("the manifest", manifest)?)
}

/// How a proxy is there, and its image.
fn proxy_in(state: &State) -> Option<(Layout, String)> {
    let own = state.pods().into_iter();
    let own = own.map(|(_, text)| (Some(Layout::OwnPod), text.as_str()));
    let mut all = [(None, state.apiserver())].into_iter().chain(own);
    all.find_map(|(own, text)| {
        let pod = parse("the manifest", text).ok()?;
        let (layout, container) = proxy(&pod)?;
        Some((
            own.unwrap_or(layout),
            text_of(container, &["image"]).to_owned(),
        ))
    })
}

/// Whether the proxy, which was put there with the configuration `before`, goes by this one only when it starts anew.
fn has_to_start(before: Option<&str>, config: &str) -> bool {
    let values = |text: &str| config::parse_at(Path::new(CONFIG), text.to_owned()).ok();
    match (before.and_then(values), values(config)) {
        (Some(before), Some(now)) => !waiting(&before.values, &now.values).is_empty(),
        _ => true,
    }
}

/// A manifest that says the same stays as it was written. `stamp`: the configuration is another one, with which the pod has
/// to start anew. Who wrote over the one that was `installed` may wait, as kubeadm does, for a pod that is not that one.
fn kept_or_new(
    before: &str,
    installed: Option<&State>,
    mut pod: Value,
    stamp: Option<String>,
) -> Result<String, String> {
    let read = |text| parse("the manifest of kube-apiserver", text);
    if stamp.is_none() && without_notes(&read(before)?) == without_notes(&pod) {
        return Ok(before.to_owned());
    }
    let was = installed.and_then(|it| read(it.apiserver()).ok());
    let again = was.filter(|it| *it == pod).map(|_| hash(&[before]));
    if let Some(stamp) = stamp.or(again) {
        let note = ["metadata", "annotations", RESTARTED];
        set(&mut pod, &note, Some(stamp.into()));
    }
    write(&pod)
}

/// Name and text of the proxy's own pod. For each content it is a pod of another name, so that kubelet starts the new one
/// while the old one drains, and the new proxy takes over. A file that says the same stays.
fn named_pod(
    from: &State,
    inputs: &ContainerInputs<'_>,
    config: &str,
    starts_anew: bool,
) -> Result<(String, String), String> {
    let mut pod = own_pod(inputs).ok_or(NOT_CHANGED)?;
    if let Some(before) = from.pods().first()
        && !starts_anew
    {
        let mut there = without_notes(&parse("the proxy's pod", &before.1)?);
        set(&mut there, NAME, None);
        if there == pod {
            return Ok((*before).clone());
        }
    }
    let name = format!("{PROXY}-{}", hash(&[&write(&pod)?, config]));
    set(&mut pod, NAME, Some(name.into()));
    let text = write(&pod)?;
    // A call that was broken off may have written it.
    let there = from.pods().into_iter().find(|(_, there)| *there == text);
    Ok(match there {
        Some(there) => there.clone(),
        None => (from.free_name().to_owned(), text),
    })
}

fn hash(texts: &[&str]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, texts.concat().as_bytes());
    HEXLOWER.encode(&digest.as_ref()[..4])
}
