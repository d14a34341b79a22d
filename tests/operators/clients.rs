//! `docs/clients.md`: the quoted programs are those of `examples/`, and they work as described.
//! [`super::client_layer`] has more tests of the Rust one.

use std::fs::read_to_string;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::client_layer::{CONFIG_MAPS, Starting, kubeconfig};
use testkit::cluster::{Ground, LONG};
use testkit::double::{Fault, v1_20};
use testkit::kube::cache;
use testkit::pki::SERVER_NAME;
use testkit::process::{NotFound, Process};
use testkit::wait::eventually;

/// Of Go's compiler, with nothing in its cache yet.
const COMPILING: Duration = Duration::from_secs(600);

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The blocks of the document in this language.
fn quoted(language: &str) -> Vec<String> {
    let document = read_to_string(root().join("docs/clients.md")).unwrap();
    let fence = format!("\n```{language}\n");
    let blocks = document.split(&fence).skip(1);
    let blocks = blocks.map(|block| block.split("\n```\n").next().unwrap().to_owned());
    blocks.collect()
}

#[test]
fn the_document_quotes_programs_that_are_compiled_and_run_here() {
    for (language, file, blocks) in [
        ("rust", "crates/if-ready/examples/kube-rs/main.rs", 1),
        ("go", "examples/go/main.go", 2),
        ("python", "examples/python/if_ready.py", 1),
    ] {
        let program = read_to_string(root().join(file)).unwrap();
        let quoted = quoted(language);
        assert_eq!(quoted.len(), blocks, "{language}");
        for block in quoted {
            assert!(program.contains(&block), "not in {file}:\n{block}");
        }
    }
}

/// Output of a program, which must succeed.
async fn output(mut process: Process, time: Duration) -> String {
    let status = process.wait(time).await;
    assert!(status.success(), "{status}\n{}", process.log_tail());
    read_to_string(process.log()).unwrap()
}

fn start(mut command: Command, dir: &Path, what: &str, remedy: &str) -> Process {
    let log = dir.join("program.log");
    match Process::spawn(what, &mut command, &log) {
        Ok(process) => process,
        Err(NotFound) => testkit::missing(what, remedy),
    }
}

/// The Go program, compiled with the client-go of Kubernetes' source.
async fn go_program(dir: &Path) -> PathBuf {
    let source = cache().join("source");
    if !source.is_dir() {
        let what = format!("the source of Kubernetes v1.20.2 ({})", source.display());
        let remedy = "remove kube-apiserver beside it, and run tests/build-kubernetes.sh";
        testkit::missing(&what, remedy);
    }
    // As if it was in the source, whose vendored packages are for what is in it alone.
    let place = source.join(".go/src/k8s.io/kubernetes/cmd/if-ready/main.go");
    let program = dir.join("go-client");
    let overlay = json!({"Replace": {place.to_str().unwrap(): root().join("examples/go/main.go")}});
    std::fs::write(dir.join("overlay.json"), overlay.to_string()).unwrap();
    let mut command = Command::new("/usr/lib/go/bin/go");
    command
        .args(["build", "-overlay"])
        .arg(dir.join("overlay.json"))
        .arg("-o")
        .arg(&program)
        .arg("k8s.io/kubernetes/cmd/if-ready")
        .env("GOPATH", source.join(".go"))
        .env("GOCACHE", cache().join("go-build"))
        .envs([("GO111MODULE", "off"), ("GOENV", "off")])
        .envs([("CGO_ENABLED", "0"), ("GOPROXY", "off")])
        .env_remove("GOFLAGS")
        .env_remove("GOROOT");
    let process = start(command, dir, "go", "run tests/install.sh --kubernetes");
    output(process, COMPILING).await;
    program
}

#[tokio::test]
async fn gos_client_waits_for_a_starting_server() {
    let starting = Starting::new().await;
    let dir = starting.ground.dir.path();
    let mut command = Command::new(go_program(dir).await);
    command.arg(kubeconfig(&starting.ground.pki, starting.proxy.addr()));
    let admin = starting.proxy.client(&starting.ground.pki).cert("admin");
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "found"}});
    let made = admin.request("POST", CONFIG_MAPS, object.to_string()).await;
    assert_eq!(made.code(), 201, "who does not ask is served");
    starting.double.take_requests();
    let process = start(command, dir, "the Go program", "");
    starting.initialize_after(1).await;
    let output = output(process, LONG).await;
    assert_eq!(output.lines().last(), Some("found"), "{output}");
}

/// Runs steps with the client of the example, `VERB NAMESPACE`, and prints what each came to.
const STEPS: &str = r#"
import sys

sys.path.insert(0, sys.argv[1])
from if_ready import if_ready_client
from kubernetes import client, config

settings = client.Configuration()
config.load_kube_config(sys.argv[2], client_configuration=settings)
settings.assert_hostname = sys.argv[3]
api = client.CoreV1Api(if_ready_client(settings))
for step in sys.argv[4:]:
    verb, namespace = step.split()
    try:
        if verb == "create":
            api.create_namespaced_config_map(namespace, {"metadata": {"name": "made"}})
        else:
            api.list_namespaced_config_map(namespace)
        print(step, "ok", flush=True)
    except client.ApiException as error:
        print(step, error.status, flush=True)
    except Exception as error:
        print(step, type(error).__name__, flush=True)
"#;

fn python(ground: &Ground, addr: SocketAddr, steps: &[&str]) -> Process {
    // Debian's, whatever else is on the path.
    let mut command = Command::new("/usr/bin/python3");
    command
        .args(["-B", "-c", STEPS])
        .arg(root().join("examples/python"))
        .arg(kubeconfig(&ground.pki, addr))
        .arg(SERVER_NAME)
        .args(steps);
    start(
        command,
        ground.dir.path(),
        "python3",
        "run tests/install.sh --tests",
    )
}

#[tokio::test]
async fn pythons_client_waits_for_a_starting_server() {
    let starting = Starting::new().await;
    let steps = ["create default", "list default"];
    let process = python(&starting.ground, starting.proxy.addr(), &steps);
    starting.initialize_after(1).await;
    let output = output(process, LONG).await;
    assert_eq!(output, "create default ok\nlist default ok\n");
    assert_eq!(starting.double.count(CONFIG_MAPS), 2);
}

#[tokio::test]
async fn pythons_client_repeats_what_client_go_repeats() {
    let ground = Ground::new().await;
    let double = ground.double(v1_20()).await;
    let of = |namespace| format!("/api/v1/namespaces/{namespace}/");
    for (namespace, fault) in [
        ("refusing", Fault::Status(503, Some(0))),
        ("failing", Fault::Status(500, Some(0))),
        ("silent", Fault::Status(503, None)),
        ("broken", Fault::Reset),
        ("waiting", Fault::Status(429, Some(1))),
        ("breaking", Fault::Reset),
    ] {
        double.set_fault(&of(namespace), Some(fault));
    }
    let steps = [
        "create refusing",
        "create failing",
        "create silent",
        "create broken",
        "create waiting",
        "list breaking",
    ];
    let process = python(&ground, double.addr(), &steps);
    for namespace in ["waiting", "breaking"] {
        let path = of(namespace);
        eventually("a step of the program", LONG, async || {
            double.count(&path) > 0
        })
        .await;
        double.set_fault(&path, None);
    }
    let output = output(process, LONG).await;
    let outcomes: Vec<_> = output.lines().collect();
    let expected = [
        "create refusing 503",
        "create failing 500",
        "create silent 503",
        "create broken ProtocolError",
        "create waiting ok",
        "list breaking ok",
    ];
    assert_eq!(outcomes, expected);
    let tries = ["refusing", "failing", "silent", "broken", "waiting"];
    let tries = tries.map(|namespace| double.count(&of(namespace)));
    assert_eq!(tries, [11, 11, 1, 1, 2]);
}
