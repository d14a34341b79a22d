//! Plans for manifests as people have them, compared with what is expected of each. `UPDATE_DOCS=1 cargo test --lib install`
//! writes what is expected anew; read the difference then.

mod cases;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use self::cases::{CASES, Case};
use super::difference::difference;
use super::yaml::parse;
use super::*;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Certificates of a CA that is `kubernetes`, of one that is not, and a serving certificate of the first.
struct Files {
    ca: String,
    other_ca: String,
    leaf: String,
}

fn files(names: &[&str]) -> Files {
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        (pem, Issuer::new(params, key))
    };
    let (ca, issuer) = authority("kubernetes");
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let params = CertificateParams::new(names).unwrap();
    let key = KeyPair::generate().unwrap();
    Files {
        ca,
        other_ca: authority("others").0,
        leaf: params.signed_by(&key, &issuer).unwrap().pem(),
    }
}

impl Files {
    fn read(&self, path: &Path) -> Result<Vec<u8>, String> {
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = match name {
            "ca.crt" | "ca.pem" | "kubelet-ca.crt" => &self.ca,
            "users-ca.crt" => &self.other_ca,
            _ => &self.leaf,
        };
        Ok(text.clone().into_bytes())
    }
}

fn manifest(case: &Case) -> String {
    let path = match case.manifest.strip_prefix("kubeadm-") {
        Some(version) => format!("kubeadm/kube-apiserver-{version}.yaml"),
        None => format!("install/manifests/{}.yaml", case.manifest),
    };
    std::fs::read_to_string(data().join(path)).unwrap()
}

/// A node where `manifest`, `config` and `others` stand.
fn node<'f>(
    case: &Case,
    files: &'f Files,
    manifest: &str,
    config: Option<&str>,
    others: &[(String, String)],
) -> Node<'f> {
    let addresses = case.addresses.iter();
    let addresses = addresses.map(|(name, ip)| ((*name).to_owned(), ip.parse().unwrap()));
    Node {
        read: Box::new(|path| files.read(path)),
        manifest: manifest.to_owned(),
        config: config.map(str::to_owned),
        addresses: addresses.collect(),
        others: others.to_vec(),
        endpoint: case.endpoint.map(|(host, port)| (host.to_owned(), port)),
        servers: case.servers,
        installed: None,
    }
}

/// The plan for such a node.
fn planned(
    case: &Case,
    files: &Files,
    manifest: &str,
    config: Option<&str>,
    others: &[(String, String)],
) -> Result<Plan, String> {
    let virtual_ips = case.virtual_ips.iter().map(|ip| ip.parse().unwrap());
    let options = Options {
        layout: case.layout,
        image: Some("kube-interop-proxy:0.1.0".to_owned()),
        virtual_ips: virtual_ips.collect(),
    };
    plan(&node(case, files, manifest, config, others), &options)
}

impl Plan {
    fn config(&self) -> &str {
        self.state.text(CONFIG).unwrap()
    }

    /// The proxy's own pod.
    fn pod(&self) -> Option<&str> {
        self.state.pods().first().map(|(_, text)| text.as_str())
    }
}

fn others(case: &Case) -> Vec<(String, String)> {
    let pair = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
    case.others.iter().map(pair).collect()
}

fn shown(plan: &Result<Plan, String>, manifest: &str, base: &str) -> String {
    let plan = match plan {
        Ok(plan) => plan,
        Err(why) => return format!("why not: {why}\n"),
    };
    let changed = difference(
        &normal(manifest).unwrap(),
        &normal(plan.state.apiserver()).unwrap(),
    );
    let pod = plan.pod().map(|pod| difference(base, pod));
    let warnings = plan.warnings.iter().map(|it| format!("{it}\n"));
    format!(
        "{}\n== kube-apiserver.yaml ({:?})\n{changed}\n== kube-interop-proxy.yaml, beside that of kubeadm 1.36\n{}\n== to be known\n{}",
        plan.config(),
        plan.layout,
        pod.as_deref().unwrap_or("none\n"),
        warnings.collect::<String>(),
    )
}

#[test]
fn the_plan_of_every_manifest_is_the_expected_one() {
    let files_of = |case: &Case| files(case.names);
    let first = &CASES[0];
    let base = planned(first, &files_of(first), &manifest(first), None, &[]).unwrap();
    let base = base.pod().unwrap().to_owned();
    let mut used = BTreeSet::new();
    for case in CASES {
        let before = manifest(case);
        let plan = planned(case, &files_of(case), &before, case.config, &others(case));
        let base = match case.name == first.name {
            true => "",
            false => &base,
        };
        let path = format!("../tests/data/install/expected/{}.txt", case.name);
        crate::reference::assert_current(&path, &shown(&plan, &before, base));
        used.insert(case.manifest.to_owned());
    }
    for entry in std::fs::read_dir(data().join("install/manifests")).unwrap() {
        let name = entry
            .unwrap()
            .path()
            .file_stem()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        assert!(used.contains(&name), "{name} has no case");
    }
    assert!(CASES.len() > 50, "{}", CASES.len());
}

#[test]
fn a_second_plan_changes_nothing() {
    for case in CASES {
        let (files, mut others) = (files(case.names), others(case));
        let Ok(first) = planned(case, &files, &manifest(case), case.config, &others) else {
            continue;
        };
        others.retain(|(path, _)| !path.ends_with("kube-interop-proxy.yaml"));
        for (name, pod) in first.state.pods() {
            others.push((format!("{MANIFESTS}/{name}"), pod.clone()));
        }
        let (manifest, config) = (first.state.apiserver(), first.config());
        let second = planned(case, &files, manifest, Some(config), &others).unwrap();
        assert_eq!(second.state, first.state, "{}", case.name);
    }
}

#[test]
fn what_is_taken_out_leaves_what_was_there_before() {
    for case in CASES {
        let before = manifest(case);
        let Ok(plan) = planned(
            case,
            &files(case.names),
            &before,
            case.config,
            &others(case),
        ) else {
            continue;
        };
        let has_own_pod = plan.pod().is_some();
        let after = without_proxy(plan.state.apiserver(), has_own_pod)
            .unwrap()
            .expect("it was changed");
        let plain = without_proxy(&before, has_own_pod).unwrap();
        let plain = plain.unwrap_or_else(|| normal(&before).unwrap());
        assert_eq!(after, plain, "{}", case.name);
        assert_eq!(
            without_proxy(&after, has_own_pod),
            Ok(None),
            "{}",
            case.name
        );
    }
}

/// The patches of `deploy/kubeadm`, applied by hand, leave what kubeadm wrote.
#[test]
fn what_was_done_by_hand_is_undone_too() {
    for (name, version) in [
        ("hand-second-container", "v1.31"),
        ("hand-native-sidecar", "v1.36"),
        ("hand-own-pod", "v1.20"),
    ] {
        let read = |path: &str| std::fs::read_to_string(data().join(path)).unwrap();
        let before = read(&format!("kubeadm/kube-apiserver-{version}.yaml"));
        let patched = read(&format!("install/manifests/{name}.yaml"));
        let after = without_proxy(&patched, true)
            .unwrap()
            .expect("it was changed");
        let [after, before] = [after, before].map(|text| parse("it", &text).unwrap());
        assert_eq!(after, before, "{name}");
    }
}

#[test]
fn another_image_or_configuration_is_another_pod() {
    let case = &CASES[0];
    let files = files(case.names);
    let name = |plan: &Plan| {
        let pod = parse("it", plan.pod().unwrap()).unwrap();
        yaml::text(&pod, &["metadata", "name"]).to_owned()
    };
    let first = planned(case, &files, &manifest(case), None, &[]).unwrap();
    let pods = [(
        "/etc/kubernetes/manifests/a.yaml".to_owned(),
        first.pod().unwrap().to_owned(),
    )];
    // An operator's own key stays; nothing says that the proxy does not go by it yet.
    let edited = format!("{}rerouting:\n  absentServerGrace: 2h\n", first.config());
    let manifest = first.state.apiserver();
    let second = planned(case, &files, manifest, Some(&edited), &pods).unwrap();
    assert_eq!((second.config(), second.pod()), (&*edited, first.pod()));
    let moved = Case {
        servers: 3,
        ..case.clone()
    };
    let third = planned(&moved, &files, manifest, Some(&edited), &pods).unwrap();
    assert!(
        third.config().contains("goawayChance: 0.001"),
        "{}",
        third.config()
    );
    assert!(
        third.config().contains("absentServerGrace: 2h"),
        "{}",
        third.config()
    );
    assert_ne!(name(&first), name(&third));
}

#[test]
fn layout_and_image_stay_when_somebody_writes_the_manifest_anew() {
    let case = &CASES[0];
    let files = files(case.names);
    for layout in [Layout::OwnPod, Layout::Sidecar, Layout::NativeSidecar] {
        let image = Some("registry.example/proxy:2".to_owned());
        let asked = Options {
            layout: Some(layout),
            image,
            ..Options::default()
        };
        let plain = manifest(case);
        let first = plan(&node(case, &files, &plain, None, &[]), &asked).unwrap();
        let pods = first.state.pods().into_iter();
        let pods: Vec<_> = pods
            .map(|(name, pod)| (format!("{MANIFESTS}/{name}"), pod.clone()))
            .collect();
        for (manifest, installed) in [
            (first.state.apiserver(), None),
            (plain.as_str(), Some(first.state.clone())),
        ] {
            let mut there = node(case, &files, manifest, Some(first.config()), &pods);
            there.installed = installed;
            let again = plan(&there, &Options::default()).unwrap();
            assert_eq!((again.layout, &again.image), (layout, &first.image));
            assert_eq!(again.pod(), first.pod());
            assert!(
                again
                    .state
                    .files()
                    .iter()
                    .any(|(_, it)| it.contains(&first.image))
            );
        }
    }
}

#[test]
fn an_edited_key_that_takes_effect_at_the_next_start_alone_brings_it_about() {
    let case = &CASES[0];
    let files = files(case.names);
    for layout in [Layout::OwnPod, Layout::Sidecar] {
        let asked = Options {
            layout: Some(layout),
            ..Options::default()
        };
        let plain = manifest(case);
        let first = plan(&node(case, &files, &plain, None, &[]), &asked).unwrap();
        let pods = first.state.pods().into_iter();
        let pods: Vec<_> = pods
            .map(|(name, pod)| (format!("{MANIFESTS}/{name}"), pod.clone()))
            .collect();
        let edited = |key: &str| {
            let config = format!("{}{key}\n", first.config());
            let mut there = node(case, &files, first.state.apiserver(), Some(&config), &pods);
            there.installed = Some(first.state.clone());
            let again = plan(&there, &asked).unwrap();
            assert_eq!(again.config(), config);
            let pods = again.state.pods().into_iter().cloned().collect();
            let apiserver = again.state.apiserver().to_owned();
            State::new(first.state.text(CONFIG).map(str::to_owned), pods, apiserver)
        };
        assert_eq!(edited("rerouting: {unsynced: ServeLocal}"), first.state);
        assert_ne!(edited("rerouting: {absentServerGrace: 2h}"), first.state);
    }
}

/// kubeadm waits for a pod with another hash, even if it writes again what it has written before.
#[test]
fn a_manifest_that_was_written_over_becomes_another_pod_than_before() {
    let case = &CASES[0];
    let files = files(case.names);
    let plain = manifest(case);
    for layout in [Layout::OwnPod, Layout::Sidecar] {
        let asked = Options {
            layout: Some(layout),
            ..Options::default()
        };
        let mut last = plan(&node(case, &files, &plain, None, &[]), &asked).unwrap();
        for _ in 0..3 {
            let mut there = node(case, &files, &plain, Some(last.config()), &[]);
            there.installed = Some(last.state.clone());
            let next = plan(&there, &asked).unwrap();
            let [before, after] =
                [&last, &next].map(|plan| parse("it", plan.state.apiserver()).unwrap());
            assert_ne!(before, after);
            assert_eq!(without_notes(&before), without_notes(&after));
            last = next;
        }
    }
}
