//! `install kubeadm` and `uninstall kubeadm` on a node whose kubelet is played: it starts what the manifests in the directory
//! say as processes, whenever they change. etcd, kube-apiserver 1.20.2 and the proxy are real.
//!
//! As kubelet from 1.22 on does, it starts a pod of the same name only when the one before has ended, and starts again what
//! has ended by itself, after a while.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinHandle;

use super::node::{NODE, Node, Said, run};
use super::{command_line, list, manifest};
use testkit::cluster::{LONG, binary};
use testkit::process::{Process, Signal};
use testkit::wait::eventually;

/// kubelet's own pause begins with 10 s.
const BACK_OFF: Duration = Duration::from_secs(2);
const BETWEEN_REQUESTS: Duration = Duration::from_millis(20);
/// The fake kubelet has no such image.
const NO_IMAGE: &str = "registry.example/nowhere:1";
const SHUTDOWN: &str = "shutdown: {delay: 4s, drain: 2s}\n";

/// A container as a process.
struct Container {
    spec: Value,
    process: Option<Process>,
    ended: Instant,
}

struct Pod {
    name: String,
    text: String,
    containers: Vec<Container>,
}

struct Kubelet {
    node: Arc<Node>,
    /// By the name of the manifest's file.
    pods: BTreeMap<String, Pod>,
    ending: Vec<(String, Process)>,
    started: usize,
}

/// Plays until it is dropped.
struct Playing {
    stop: Arc<AtomicBool>,
    sleeps: Arc<AtomicBool>,
    task: Option<JoinHandle<()>>,
}

impl Playing {
    fn start(node: &Arc<Node>) -> Self {
        let [stop, sleeps] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let mut kubelet = Kubelet {
            node: Arc::clone(node),
            pods: BTreeMap::new(),
            ending: Vec::new(),
            started: 0,
        };
        let (told, asleep) = (Arc::clone(&stop), Arc::clone(&sleeps));
        let task = tokio::task::spawn_blocking(move || {
            while !told.load(Ordering::Relaxed) {
                if !asleep.load(Ordering::Relaxed) {
                    kubelet.look();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self {
            stop,
            sleeps,
            task: Some(task),
        }
    }

    async fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.take().unwrap().await.unwrap();
    }
}

/// A test that fails would wait for it for ever.
impl Drop for Playing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Kubelet {
    fn look(&mut self) {
        let files = manifests(&self.node);
        // Beside what stands for the proxy's configuration.
        let leaving = self.node.path("leaving");
        let _ = match self.node.path("kube-interop-proxy/leaving").exists() {
            true => fs::write(leaving, ""),
            false => fs::remove_file(leaving),
        };
        self.ending
            .retain_mut(|(_, process)| process.exited().is_none());
        let stale: Vec<_> = self
            .pods
            .iter()
            .filter(|(file, pod)| files.get(*file) != Some(&pod.text))
            .map(|(file, _)| file.clone())
            .collect();
        for file in stale {
            let pod = self.pods.remove(&file).unwrap();
            for container in pod.containers {
                if let Some(mut process) = container.process {
                    process.signal(Signal::Term);
                    self.ending.push((pod.name.clone(), process));
                }
            }
        }
        for (file, text) in files {
            if self.pods.contains_key(&file) {
                continue;
            }
            // What is written at this moment, and may be empty, is read the next time.
            let pod = serde_yaml::from_str::<Value>(&text).unwrap_or_default();
            let Some(name) = pod["metadata"]["name"].as_str().map(str::to_owned) else {
                continue;
            };
            if self.ending.iter().any(|(ending, _)| *ending == name) {
                continue;
            }
            let containers = list(&pod["spec"], "containers")
                .iter()
                .map(|spec| Container {
                    spec: spec.clone(),
                    process: None,
                    ended: Instant::now() - BACK_OFF,
                });
            let containers = containers.collect();
            self.pods.insert(
                file,
                Pod {
                    name,
                    text,
                    containers,
                },
            );
        }
        for pod in self.pods.values_mut() {
            for container in &mut pod.containers {
                if let Some(process) = &mut container.process
                    && process.exited().is_some()
                {
                    container.process = None;
                    container.ended = Instant::now();
                }
                if container.process.is_none()
                    && container.ended.elapsed() >= BACK_OFF
                    && container.spec["image"] != NO_IMAGE
                {
                    self.started += 1;
                    container.process = Some(start(&self.node, &container.spec, self.started));
                }
            }
        }
    }
}

/// Paths in the manifest are the container's; the processes get those of the test.
fn start(node: &Node, spec: &Value, number: usize) -> Process {
    let name = spec["name"].as_str().unwrap();
    let words = command_line(spec);
    let words = words[1..]
        .iter()
        .map(|word| match word.strip_prefix("--config=") {
            None => node.here(word),
            Some(_) => {
                let config = fs::read_to_string(node.path("kube-interop-proxy/proxy.yaml"))
                    .unwrap_or_default();
                let own = node.path(&format!("config-{number}.yaml"));
                fs::write(&own, node.here(&config) + SHUTDOWN).unwrap();
                format!("--config={}", own.display())
            }
        });
    node.spawn(&format!("{name}-{number}"), node.program(name).args(words))
}

fn manifests(node: &Node) -> BTreeMap<String, String> {
    let entries = fs::read_dir(node.path("manifests")).unwrap().flatten();
    let files = entries.filter_map(|it| {
        let name = it.file_name().into_string().unwrap();
        (!name.starts_with('.')).then_some(())?;
        Some((name, fs::read_to_string(it.path()).ok()?))
    });
    files.collect()
}

/// A node with the manifest that kubeadm 1.20 writes.
async fn prepared() -> Arc<Node> {
    let node = Arc::new(Node::new().await);
    fs::create_dir_all(node.path("manifests")).unwrap();
    let text = fs::read_to_string(manifest("v1.20"))
        .unwrap()
        .replace("10.0.0.11", NODE);
    fs::write(node.path("manifests/kube-apiserver.yaml"), text).unwrap();
    node
}

async fn command(node: &Node, arguments: &[&str]) -> Said {
    let mut command = node.command(binary());
    let root = node.path("../..");
    command.args(arguments).arg("--root").arg(root);
    run(command).await
}

async fn works(node: &Node) {
    eventually("kubectl works", LONG, async || {
        let said = node
            .kubectl(&["get", "namespace", "default", "-o", "name"])
            .await;
        said.success.then_some(()).ok_or(said.err)
    })
    .await;
}

/// How many requests, each over a connection of its own, were answered, and what became of the others.
async fn asked_until(node: Arc<Node>, stop: Arc<AtomicBool>) -> (usize, Vec<String>) {
    let (mut answered, mut failed) = (0, Vec::new());
    let url = format!("https://{NODE}:6443/api/v1/namespaces/default");
    while !stop.load(Ordering::Relaxed) {
        let said = run(node.curl(&["--fail", &url])).await;
        match said.success {
            true => answered += 1,
            false => failed.push(said.err),
        }
        // A loop without a pause would take a processor from all the other tests.
        tokio::time::sleep(BETWEEN_REQUESTS).await;
    }
    (answered, failed)
}

fn yaml(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap()
}

fn all_files(node: &Node) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for directory in [
        "manifests",
        "kube-interop-proxy",
        "kube-interop-proxy/before",
    ] {
        for entry in fs::read_dir(node.path(directory))
            .into_iter()
            .flatten()
            .flatten()
        {
            if entry.path().is_file() {
                found.insert(entry.path(), fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_shows_the_difference_and_changes_nothing() {
    let node = prepared().await;
    let before = all_files(&node);
    let said = command(&node, &["install", "kubeadm", "--dry-run"]).await;
    assert!(said.success, "{}", said.err);
    for line in [
        "+   bindAddress: 127.0.0.11:6443",
        "-         host: 127.0.0.11",
        "+     - --bind-address=127.0.0.1",
        "+   - name: kube-interop-proxy",
    ] {
        assert!(
            said.out.lines().any(|it| it == line),
            "{line}: {}",
            said.out
        );
    }
    let said = command(&node, &["install", "kubeadm"]).await;
    assert!(!said.success && said.err.contains("--yes"), "{}", said.err);
    let said = command(&node, &["uninstall", "kubeadm", "--dry-run"]).await;
    said.changes_nothing();
    assert_eq!(all_files(&node), before);

    let out = node.path("out");
    let said = command(
        &node,
        &["install", "kubeadm", "--output-dir", out.to_str().unwrap()],
    )
    .await;
    assert!(said.success, "{}", said.err);
    let mut names: Vec<_> = fs::read_dir(&out)
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "kube-apiserver.yaml",
            "kube-interop-proxy.yaml",
            "proxy.yaml"
        ]
    );
    assert_eq!(all_files(&node), before);
    // What it writes is what `check` finds good.
    let config = fs::read_to_string(out.join("proxy.yaml")).unwrap();
    fs::write(out.join("proxy.yaml"), node.here(&config)).unwrap();
    let mut check = node.command(binary());
    check
        .args(["check", "--config"])
        .arg(out.join("proxy.yaml"));
    let said = run(check).await;
    assert!(said.success, "{}{}", said.out, said.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_said_in_one_sentence_and_changes_nothing() {
    let node = prepared().await;
    let path = node.path("manifests/kube-apiserver.yaml");
    let good = fs::read_to_string(&path).unwrap();
    for (text, expected) in [
        (
            None,
            "no such file; is this a control plane node that kubeadm made?",
        ),
        (
            Some(good.replace("--client-ca-file", "--other-file")),
            "has no --client-ca-file",
        ),
        (
            Some(good.replace("apiserver.crt", "missing.crt")),
            "missing.crt: No such file",
        ),
    ] {
        match text {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let before = all_files(&node);
        let said = command(&node, &["install", "kubeadm", "--yes"]).await;
        assert!(
            !said.success && said.err.contains(expected),
            "{expected}: {}",
            said.err
        );
        assert_eq!(said.err.lines().count(), 1, "{}", said.err);
        assert_eq!(all_files(&node), before);
    }
    fs::remove_file(&path).unwrap();
    fs::write(node.path("elsewhere.yaml"), &good).unwrap();
    std::os::unix::fs::symlink(node.path("elsewhere.yaml"), &path).unwrap();
    let said = command(&node, &["install", "kubeadm", "--yes"]).await;
    assert!(
        !said.success && said.err.contains("is a symbolic link"),
        "{}",
        said.err
    );
}

/// Runs `install` where `/etc/kubernetes` (`$D`) was made into something else by these commands of the shell.
async fn installed_where(node: &Node, prepare: &str) -> Said {
    let script = format!("{prepare}\n\"$@\" && exit 0\nls \"$D/manifests\"\nexit 1");
    let mut command = node.command("unshare");
    command
        .args(["--mount", "sh", "-e", "-c", &script, "sh"])
        .arg(binary());
    command
        .args(["install", "kubeadm", "--yes", "--timeout=2s", "--root"])
        .arg(node.path("../.."));
    command
        .env("D", node.path(""))
        .env("T", node.path("../copy"));
    run(command).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_written_is_told_before_anything_is_changed() {
    let node = prepared().await;
    let before = all_files(&node);
    for (prepare, expected) in [
        (
            "mount --bind \"$D\" \"$D\"; mount -o remount,ro,bind \"$D\"",
            "Read-only file system",
        ),
        (
            "cp -r \"$D\" \"$T\"; mount -t tmpfs -o size=320k none \"$D\"; cp -r \"$T/.\" \"$D\"",
            "No space left on device",
        ),
        (
            "mkdir -p \"$D/kube-interop-proxy\"; mount -t tmpfs none \"$D/kube-interop-proxy\"",
            "are on two file systems",
        ),
    ] {
        let said = installed_where(&node, prepare).await;
        assert!(
            !said.success && said.err.contains(expected),
            "{expected}: {}",
            said.err
        );
        assert!(
            said.out.ends_with("\nkube-apiserver.yaml\n"),
            "{}",
            said.out
        );
        assert_eq!(all_files(&node), before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_its_proxy_and_another_one_and_is_as_before_without() {
    let node = prepared().await;
    let kubelet = Playing::start(&node);
    let original = manifests(&node)["kube-apiserver.yaml"].clone();
    works(&node).await;

    let said = command(&node, &["install", "kubeadm", "--yes"]).await;
    assert!(said.success, "{}{}", said.out, said.err);
    works(&node).await;
    assert!(node.admin("/readyz").await.success);
    assert!(manifests(&node)["kube-apiserver.yaml"].contains("--bind-address=127.0.0.1"));
    assert_eq!(
        fs::read_to_string(node.path("kube-interop-proxy/before/kube-apiserver.yaml")).unwrap(),
        original
    );

    // Asked twice, it changes nothing, and no proxy is to leave any more.
    let files = all_files(&node);
    fs::write(node.path("kube-interop-proxy/leaving"), "").unwrap();
    let said = command(&node, &["install", "kubeadm", "--yes"]).await;
    said.changes_nothing();
    assert_eq!(all_files(&node), files);

    let next = [
        "install",
        "kubeadm",
        "--yes",
        "--image=kube-interop-proxy:next",
    ];
    // Another image is another pod, which takes over: who asks all the time notices nothing.
    let stop = Arc::new(AtomicBool::new(false));
    let asking = tokio::spawn(asked_until(Arc::clone(&node), Arc::clone(&stop)));
    let said = command(&node, &next).await;
    assert!(said.success, "{}{}", said.out, said.err);
    stop.store(true, Ordering::Relaxed);
    let (answered, failed) = asking.await.unwrap();
    assert!(
        answered >= 5 && failed.is_empty(),
        "{answered} answered, {failed:?}"
    );
    let pods: Vec<_> = manifests(&node)
        .into_iter()
        .filter(|(name, _)| name != "kube-apiserver.yaml")
        .collect();
    let [(file, text)] = pods.as_slice() else {
        panic!("{pods:?}")
    };
    assert_eq!(file, "kube-interop-proxy-2.yaml");
    assert!(text.contains("kube-interop-proxy:next"), "{text}");
    works(&node).await;

    // Somebody who does not know the proxy writes another manifest, as an upgrade does.
    let newer = original.replace(
        "    - --allow-privileged=true\n",
        "    - --allow-privileged=true\n    - --v=1\n",
    );
    assert_ne!(newer, original);
    // kubelet is slow: the kube-apiserver from before, which is ready, is not taken for the new one.
    kubelet.sleeps.store(true, Ordering::Relaxed);
    fs::write(node.path("manifests/kube-apiserver.yaml"), &newer).unwrap();
    let mut install = node.command(binary());
    install.args(next).arg("--root").arg(node.path("../.."));
    let log = node.path("install.log");
    let mut install = Process::spawn("install", &mut install, &log).unwrap();
    eventually("it waits for kubelet", LONG, async || {
        let said = fs::read_to_string(&log).unwrap();
        said.contains("has not stopped the kube-apiserver")
            .then_some(())
            .ok_or(said)
    })
    .await;
    kubelet.sleeps.store(false, Ordering::Relaxed);
    let ended = install.wait(LONG).await;
    assert!(ended.success(), "{}", install.log_tail());
    let now = manifests(&node)["kube-apiserver.yaml"].clone();
    assert!(
        now.contains("--v=1") && now.contains("--bind-address=127.0.0.1"),
        "{now}"
    );
    works(&node).await;

    let leases = ["get", "leases", "--namespace=kube-system", "--output=name"];
    assert_ne!(node.kubectl(&leases).await.out, "", "its Lease");
    let said = command(&node, &["uninstall", "kubeadm", "--yes"]).await;
    assert!(said.success, "{}{}", said.out, said.err);
    let left = manifests(&node);
    assert_eq!(left.keys().collect::<Vec<_>>(), ["kube-apiserver.yaml"]);
    assert_eq!(yaml(&left["kube-apiserver.yaml"]), yaml(&newer));
    assert!(!node.path("kube-interop-proxy").exists());
    assert!(!node.admin("/livez").await.success, "the proxy is gone");
    works(&node).await;
    let keys = node
        .etcdctl(&["get", "--prefix", "--keys-only", "/kube-interop-proxy/"])
        .await;
    assert_eq!(keys.out.trim(), "", "what the proxy kept in etcd");
    assert_eq!(node.kubectl(&leases).await.out, "", "its Lease");
    kubelet.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn told_to_stop_it_says_how_to_go_on_and_holds_no_lock() {
    let node = prepared().await;
    let kubelet = Playing::start(&node);
    let original = manifests(&node)["kube-apiserver.yaml"].clone();
    works(&node).await;
    let image = format!("--image={NO_IMAGE}");
    let lock = async || {
        let key = "/kube-interop-proxy/registry/installing";
        node.etcdctl(&["get", key]).await.out
    };
    for signal in [Signal::Int, Signal::Term] {
        let mut install = node.command(binary());
        install.args(["install", "kubeadm", "--yes", &image]);
        install.arg("--root").arg(node.path("../.."));
        let log = node.path("install.log");
        let mut install = Process::spawn("install", &mut install, &log).unwrap();
        eventually("there is a pod of the proxy", LONG, async || {
            !lock().await.is_empty() && manifests(&node).len() == 2
        })
        .await;
        install.signal(signal);
        assert!(!install.wait(LONG).await.success());
        let said = install.log_tail();
        assert!(said.contains("the same command goes on"), "{said}");
        assert_eq!(lock().await, "", "the lock");
    }
    let said = command(&node, &["uninstall", "kubeadm", "--yes"]).await;
    assert!(said.success, "{}{}", said.out, said.err);
    let left = manifests(&node);
    assert_eq!(left.keys().collect::<Vec<_>>(), ["kube-apiserver.yaml"]);
    assert_eq!(yaml(&left["kube-apiserver.yaml"]), yaml(&original));
    works(&node).await;

    // Without etcd neither kube-apiserver comes back nor can anybody ask what others serve.
    let said = command(&node, &["install", "kubeadm", "--yes"]).await;
    assert!(said.success, "{}{}", said.out, said.err);
    node.signal_etcd(Signal::Stop);
    let out = ["uninstall", "kubeadm", "--yes", "--timeout=60s"];
    let said = command(&node, &out).await;
    assert!(
        !said.success && said.err.contains("--force"),
        "{}",
        said.err
    );
    let said = command(&node, &[&out[..], &["--force"]].concat()).await;
    assert!(said.success, "{}{}", said.out, said.err);
    assert!(said.err.contains("note: "), "{}", said.err);
    assert_eq!(manifests(&node).len(), 1);
    assert!(!node.path("kube-interop-proxy").exists());
    node.signal_etcd(Signal::Cont);
    works(&node).await;
    kubelet.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_start_is_put_back_and_what_was_broken_off_goes_on() {
    let node = prepared().await;
    let kubelet = Playing::start(&node);
    let original = manifests(&node);
    works(&node).await;
    // A change was broken off in a cluster that the node has left since. What stood there then is not what stands here.
    let kept = node.path("kube-interop-proxy/before");
    fs::create_dir_all(&kept).unwrap();
    for (name, text) in [
        ("kube-interop-proxy.yaml", "metadata: {name: former}\n"),
        ("kube-apiserver.yaml", &original["kube-apiserver.yaml"]),
        ("unfinished", ""),
    ] {
        fs::write(kept.join(name), text).unwrap();
    }
    let image = format!("--image={NO_IMAGE}");
    let said = command(
        &node,
        &["install", "kubeadm", "--yes", "--timeout=5s", &image],
    )
    .await;
    assert!(
        !said.success && said.err.contains("everything is as it was before"),
        "{}{}",
        said.out,
        said.err
    );
    assert_eq!(manifests(&node), original);
    assert!(!node.path("kube-interop-proxy").exists());
    works(&node).await;

    // Another node has the lock.
    let held = node
        .etcdctl(&["put", "/kube-interop-proxy/registry/installing", "cp-2"])
        .await;
    assert!(held.success, "{}", held.err);
    let said = command(&node, &["install", "kubeadm", "--yes", "--timeout=1s"]).await;
    assert!(
        !said.success && said.err.contains("another node is changed: cp-2"),
        "{}",
        said.err
    );
    assert_eq!(manifests(&node), original);
    node.etcdctl(&["del", "/kube-interop-proxy/registry/installing"])
        .await;

    // Ended between the proxy's manifest and the apiserver's: the node works, and the next call goes on.
    let out = node.path("out");
    let said = command(
        &node,
        &["install", "kubeadm", "--output-dir", out.to_str().unwrap()],
    )
    .await;
    assert!(said.success, "{}", said.err);
    let own = node.path("kube-interop-proxy");
    fs::create_dir_all(own.join("before")).unwrap();
    fs::write(
        own.join("before/kube-apiserver.yaml"),
        &original["kube-apiserver.yaml"],
    )
    .unwrap();
    fs::write(own.join("before/unfinished"), "").unwrap();
    fs::copy(out.join("proxy.yaml"), own.join("proxy.yaml")).unwrap();
    fs::copy(
        out.join("kube-interop-proxy.yaml"),
        node.path("manifests/kube-interop-proxy.yaml"),
    )
    .unwrap();
    works(&node).await;
    let said = command(&node, &["install", "kubeadm", "--yes"]).await;
    assert!(said.success, "{}{}", said.out, said.err);
    assert!(!own.join("before/unfinished").exists());
    works(&node).await;
    kubelet.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kubeadm_puts_back_after_an_upgrade_that_failed_stays() {
    let node = prepared().await;
    let kubelet = Playing::start(&node);
    let path = node.path("manifests/kube-apiserver.yaml");
    let original = fs::read_to_string(&path).unwrap();
    works(&node).await;
    let install = ["install", "kubeadm", "--yes", "--layout=sidecar"];
    let said = command(&node, &install).await;
    assert!(said.success, "{}{}", said.out, said.err);
    let with_proxy = fs::read_to_string(&path).unwrap();

    // The upgrade, and an `install` that nothing comes of.
    fs::write(&path, original.replace("--allow-privileged=true", "--v=1")).unwrap();
    let mut again = node.command(binary());
    again
        .args(install)
        .args(["--timeout=4s", "--image", NO_IMAGE]);
    again.arg("--root").arg(node.path("../.."));
    let log = node.path("install.log");
    let mut again = Process::spawn("install", &mut again, &log).unwrap();
    eventually("install has written its manifest", LONG, async || {
        fs::read_to_string(&path)
            .unwrap()
            .contains(NO_IMAGE)
            .then_some(())
    })
    .await;
    fs::write(&path, &with_proxy).unwrap();
    // In the pod both drain before the next two start.
    assert!(!again.wait(3 * LONG).await.success());
    let said = again.log_tail();
    assert!(said.contains("everything is as it was before"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), with_proxy);
    works(&node).await;
    assert!(node.admin("/readyz").await.success);
    kubelet.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_any_step_it_leaves_a_node_that_works_and_the_next_call_goes_on() {
    let node = prepared().await;
    let kubelet = Playing::start(&node);
    works(&node).await;
    let steps: [fn(&Node) -> bool; 3] = [
        |node| node.path("kube-interop-proxy/before/unfinished").exists(),
        |node| node.path("manifests/kube-interop-proxy.yaml").exists(),
        |node| manifests(node)["kube-apiserver.yaml"].contains("--bind-address=127.0.0.1"),
    ];
    for step in steps {
        let mut install = node.command(binary());
        install
            .args(["install", "kubeadm", "--yes", "--root"])
            .arg(node.path("../.."));
        let log = node.path("install.log");
        let mut install = Process::spawn("install", &mut install, &log).unwrap();
        eventually("the step is taken", LONG, async || {
            (step(&node) || install.exited().is_some()).then_some(())
        })
        .await;
        install.kill();
        works(&node).await;
    }
    let said = command(&node, &["install", "kubeadm", "--yes"]).await;
    assert!(said.success, "{}{}", said.out, said.err);
    assert!(!node.path("kube-interop-proxy/before/unfinished").exists());
    works(&node).await;
    let said = command(&node, &["uninstall", "kubeadm", "--yes"]).await;
    assert!(said.success, "{}{}", said.out, said.err);
    assert!(!node.path("kube-interop-proxy").exists());
    kubelet.end().await;
}
