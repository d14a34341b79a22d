//! When the next node may be stopped: `status --wait`, what would be refused, and the script that goes by it.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use testkit::cluster::{Cluster, Ground, LONG, binary, patient};
use testkit::double::{Double, v1_20};
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

use crate::command::{Ended, run};

const ONLY_HERE: &str = "kube_interop_proxy_only_here_resources";

async fn wait(admin: SocketAddr, peers: &str, timeout: &str) -> Ended {
    let admin = admin.to_string();
    let arguments = [
        "status",
        "--admin",
        &admin,
        "--wait",
        "--peers",
        peers,
        "--timeout",
        timeout,
    ];
    run(&arguments).await
}

#[tokio::test]
async fn it_is_waited_until_enough_others_serve() {
    let mut cluster = Cluster::new().await;
    let ended = wait(cluster.proxy_a.admin(), "1", "60s").await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stdout, "nothing is lacking\n");
    let ended = wait(cluster.proxy_a.admin(), "2", "100ms").await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""));
    assert!(ended.stderr.contains("waiting: ready targets: 1 of 2\n"));
    assert!(
        ended.stderr.ends_with("not within 100ms\n"),
        "{}",
        ended.stderr
    );

    // B stops: what only it serves is refused, however few others are asked for.
    cluster.proxy_b.terminate().await;
    let ended = wait(cluster.proxy_a.admin(), "0", "1s").await;
    assert_eq!(ended.code, Some(1));
    let refused = "waiting: no server that can be asked serves autoscaling/v1 (";
    assert!(ended.stderr.contains(refused), "{}", ended.stderr);

    let waiting = wait(cluster.proxy_a.admin(), "1", "90s");
    let (ended, ()) = tokio::join!(waiting, cluster.proxy_b.start_again());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(
        cluster
            .client()
            .cert("admin")
            .get(testkit::cluster::HPAS)
            .await
            .code(),
        200
    );
}

#[tokio::test]
async fn a_proxy_that_does_not_run_yet_is_waited_for_too() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let mut proxy = Proxy::start(ground.proxy("a", double.addr()).until(Until::Ready)).await;
    proxy.kill();
    let waiting = wait(proxy.admin(), "0", "90s");
    let (ended, ()) = tokio::join!(waiting, proxy.start_again());
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    proxy.kill();
    let ended = wait(proxy.admin(), "0", "0s").await;
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stderr.contains("onnection refused"),
        "{}",
        ended.stderr
    );
}

#[tokio::test]
async fn what_would_be_refused_is_told_and_counted() {
    let cluster = Cluster::new().await;
    let b = cluster.proxy_b.statusz().await;
    let resources = b["resources"].as_array().unwrap().iter();
    let only_here = resources.filter(|it| it["group"] == "autoscaling" && it["local"] == true);
    let only_here = only_here.count();
    assert!(only_here > 0);
    for (proxy, expected) in [(&cluster.proxy_a, 0), (&cluster.proxy_b, only_here)] {
        assert_eq!(proxy.metric(ONLY_HERE, &[]).await, expected as f64);
        let shown = run(&["status", "--admin", &proxy.admin().to_string()])
            .await
            .stdout;
        let line = shown.lines().find(|line| line.starts_with("Only here"));
        let told = line.is_some_and(|line| line.contains("autoscaling/v1 ("));
        assert_eq!(
            (line.is_some(), told),
            (expected > 0, expected > 0),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn waiting_takes_a_number_and_a_duration() {
    for arguments in [
        &["--peers", "1"][..],
        &["--timeout", "1s"],
        &["--wait", "--peers", "many"],
        &["--wait", "--peers", "-1"],
        &["--wait", "--peers", "1", "--timeout", "soon"],
        &["--wait", "--peers", "1", "--timeout", "5"],
        &["--wait", "--peers", "1", "--output", "json"],
    ] {
        let ended = run(&[&["status"], arguments].concat()).await;
        assert_eq!(ended.code, Some(64), "{arguments:?}");
    }
}

/// Three nodes whose proxies the script restarts.
struct Nodes {
    _doubles: Vec<Double>,
    proxies: Vec<Proxy>,
    ground: Ground,
}

const NAMES: [&str; 3] = ["cp-1", "cp-2", "cp-3"];

impl Nodes {
    async fn new() -> Self {
        let ground = Ground::new().await;
        let (mut doubles, mut proxies) = (Vec::new(), Vec::new());
        for name in NAMES {
            let double = ground.double(v1_20()).await;
            let options = patient(ground.proxy(name, double.addr()));
            proxies.push(Proxy::start(options.until(Until::Ready)).await);
            doubles.push(double);
        }
        Self {
            _doubles: doubles,
            proxies,
            ground,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.ground.dir.path().join(name)
    }

    fn script(&self, name: &str, text: &str) -> PathBuf {
        let file = self.file(name);
        fs::write(&file, format!("#!/bin/sh\nset -eu\n{text}")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    /// Runs the script; its command asks the test to restart a node, by a file, and waits for the answer.
    fn roll(&self, timeout: &str) -> tokio::task::JoinHandle<Output> {
        let dir = self.ground.dir.path().display().to_string();
        let program = binary().display();
        let mut on_node = "node=$1; shift 3\ncase $node in\n".to_owned();
        for (name, proxy) in NAMES.iter().zip(&self.proxies) {
            on_node += &format!(
                "{name}) exec {program} status --admin {} \"$@\" ;;\n",
                proxy.admin()
            );
        }
        let on_node = self.script("on-node", &format!("{on_node}esac\n"));
        // Not for ever: nobody answers once the test has failed.
        let restart = "touch \"$1/$2.asked\"\n\
                       timeout 120 sh -c 'until [ -e \"$0\" ]; do sleep 0.1; done' \"$1/$2.done\"\n\
                       test \"$(cat \"$1/$2.done\")\" = good\n";
        let restart = self.script("restart", restart);
        let mut command =
            Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/rolling.sh"));
        command.args(NAMES).arg("--").arg(restart).arg(dir);
        command.env("ON_NODE", on_node).env("TIMEOUT", timeout);
        command.stdin(Stdio::null());
        tokio::task::spawn_blocking(move || command.output().unwrap())
    }

    async fn until_asked(&self, name: &str) {
        let file = self.file(&format!("{name}.asked"));
        eventually(
            &format!("{name} is to be restarted"),
            2 * LONG,
            async || file.exists(),
        )
        .await;
    }

    fn done(&self, name: &str, result: &str) {
        // At once: the script reads it as soon as it is there.
        fs::write(self.file("result"), result).unwrap();
        fs::rename(self.file("result"), self.file(&format!("{name}.done"))).unwrap();
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[tokio::test]
async fn the_script_restarts_node_after_node_and_never_two_at_a_time() {
    let mut nodes = Nodes::new().await;
    let rolling = nodes.roll("90s");
    for (index, name) in NAMES.into_iter().enumerate() {
        nodes.until_asked(name).await;
        for proxy in &nodes.proxies {
            let status = proxy.statusz().await;
            let peers = status["peers"].as_array().unwrap().iter();
            let targets = peers.filter(|peer| peer["target"] == true).count();
            assert!(status["server"]["ready"] == true && targets == 2, "{name}");
        }
        for later in &NAMES[index + 1..] {
            assert!(!nodes.file(&format!("{later}.asked")).exists(), "{later}");
        }
        nodes.proxies[index].terminate().await;
        nodes.proxies[index].start_again().await;
        nodes.done(name, "good");
    }
    let output = rolling.await.unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert!(
        text(&output).ends_with("all nodes are done\n"),
        "{}",
        text(&output)
    );
}

#[tokio::test]
async fn the_script_stops_at_a_node_that_fails_or_does_not_come_back() {
    let mut nodes = Nodes::new().await;
    let rolling = nodes.roll("60s");
    nodes.until_asked("cp-1").await;
    nodes.done("cp-1", "bad");
    let output = rolling.await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output).contains("cp-1: the command has failed"),
        "{}",
        text(&output)
    );

    fs::remove_file(nodes.file("cp-1.asked")).unwrap();
    fs::remove_file(nodes.file("cp-1.done")).unwrap();
    let rolling = nodes.roll("5s");
    nodes.until_asked("cp-1").await;
    nodes.proxies[0].terminate().await;
    nodes.done("cp-1", "good");
    let output = rolling.await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output);
    assert!(
        said.contains("cp-1: not every server serves") && said.contains("not within 5s"),
        "{said}"
    );
    assert!(!nodes.file("cp-2.asked").exists());
}

#[test]
fn the_script_says_how_it_is_called() {
    for arguments in [
        &[][..],
        &["cp-1"],
        &["cp-1", "--"],
        &["--", "true"],
        &["-o", "--", "true"],
        &["a b", "--", "true"],
    ] {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/rolling.sh");
        let output = Command::new(script).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
    }
}

#[test]
fn the_script_stops_a_node_that_alone_serves_something_only_if_that_is_accepted() {
    let ground = tempfile::tempdir().unwrap();
    let on_node = ground.path().join("on-node");
    // Only the second node has something that no other serves.
    let text = "#!/bin/sh\ncase \"$1 $*\" in\n*--wait*) ;;\n\
                'cp-2 '*) echo 'Only here  apps/v9 (1): would be answered 503' ;;\nesac\n";
    fs::write(&on_node, text).unwrap();
    fs::set_permissions(&on_node, fs::Permissions::from_mode(0o755)).unwrap();
    let roll = |from: &str, only_here: &str| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/rolling.sh");
        let mut command = Command::new(script);
        command.args(NAMES).args(["--", "echo", "stopping"]);
        command.env("ON_NODE", &on_node).env("FROM", from);
        let output = command.env("ONLY_HERE", only_here).output().unwrap();
        (output.status.code(), self::text(&output))
    };
    let (code, said) = roll("", "");
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("\nstopping cp-1\n") && !said.contains("stopping cp-2"),
        "{said}"
    );
    let named = "cp-2: only here: apps/v9 (1): would be answered 503\n";
    assert!(
        said.contains(named) && said.contains("FROM=cp-2 ONLY_HERE=accept"),
        "{said}"
    );
    let (code, said) = roll("cp-2", "accept");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(named) && said.contains("\nstopping cp-3\n"),
        "{said}"
    );
    assert!(!said.contains("stopping cp-1"), "{said}");
}
