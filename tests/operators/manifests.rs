//! What is below `deploy/` for an apiserver to read is accepted by a real one, field by field; the configuration of the hosted
//! base becomes one that the proxy accepts; the systemd unit is one.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use testkit::cluster::{Ground, binary};
use testkit::kube::KubeApiServer;
use testkit::kubectl::Kubectl;
use testkit::missing;
use testkit::pki::Pki;

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("deploy")
        .join(path)
}

fn output(command: &mut Command, remedy: &str) -> Output {
    let name = command.get_program().to_string_lossy().into_owned();
    let Ok(output) = command.output() else {
        missing(&name, remedy);
    };
    output
}

fn text(output: &Output) -> String {
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&said).into_owned()
}

/// The hosted base as kustomize puts it together.
fn hosted() -> String {
    let mut kubectl = Command::new("kubectl");
    kubectl.arg("kustomize").arg(deploy("hosted"));
    let output = output(&mut kubectl, "run tests/install.sh --tests");
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The only object of this kind.
fn one(rendered: &str, kind: &str) -> Value {
    let documents = serde_yaml::Deserializer::from_str(rendered);
    let objects =
        documents.map(|document| -> Value { serde::Deserialize::deserialize(document).unwrap() });
    let mut found: Vec<_> = objects.filter(|object| object["kind"] == kind).collect();
    assert_eq!(found.len(), 1, "{kind}");
    found.remove(0)
}

/// A real kube-apiserver with the namespaces that the manifests name, and its administrator.
async fn real(ground: &Ground) -> (KubeApiServer, Kubectl) {
    // No controllers run here that would make service accounts.
    let options = ground
        .kube("cp-1")
        .betas(true)
        .arg("--disable-admission-plugins=ServiceAccount")
        .arg("--allow-privileged=true");
    let server = KubeApiServer::start(options, &ground.pki).await;
    let kubectl = Kubectl::new(server.addr(), &ground.pki, ground.dir.path());
    let kubectl = kubectl.cert(&ground.pki, "admin");
    kubectl
        .run(&["create", "namespace", "kube-apiserver-lease"])
        .await;
    (server, kubectl)
}

#[tokio::test]
async fn a_real_apiserver_accepts_all_manifests() {
    let ground = Ground::new().await;
    let (_server, kubectl) = real(&ground).await;
    let read = |path: &str| std::fs::read_to_string(deploy(path)).unwrap();
    let mut manifests = vec![
        ("rbac.yaml".to_owned(), read("rbac.yaml")),
        ("secure.yaml".to_owned(), read("prometheus/secure.yaml")),
        ("hosted".to_owned(), hosted()),
    ];
    for version in super::kubeadm::VERSIONS {
        let pod = super::kubeadm::patched(version);
        manifests.push((format!("kubeadm {version}"), pod.to_string()));
    }
    let apart = super::kubeadm::apart::manifests();
    manifests.extend(apart.into_iter().map(|(name, pod)| (name, pod.to_string())));
    for (name, manifest) in manifests {
        let create = ["create", "--dry-run=server", "--validate=true", "-f", "-"];
        let said = kubectl.output_with_input(&create, &manifest).await;
        assert!(said.success, "{name}: {}", said.stderr);
        assert!(
            said.stdout.contains("created (server dry run)"),
            "{name}: {}",
            said.stdout
        );
        let wrong = manifest.replace("\"spec\":{", "\"spec\":{\"invented\":1,");
        let wrong = wrong.replace("\nspec:\n", "\nspec:\n  invented: 1\n");
        let wrong = wrong.replace("\nrules:\n", "\ninvented: 1\nrules:\n");
        let said = kubectl.output_with_input(&create, &wrong).await;
        assert!(!said.success, "{name}: an unknown field was accepted");
    }
}

async fn may(kubectl: &Kubectl, user: &str, verb: &str, what: &str, namespace: &str) -> bool {
    let user = format!("--as={user}");
    let asked = ["auth", "can-i", verb, what, &user, "--namespace", namespace];
    kubectl.output(&asked).await.stdout.trim() == "yes"
}

#[tokio::test]
async fn prometheus_may_read_metrics_and_finds_the_proxies() {
    let ground = Ground::new().await;
    let (_server, kubectl) = real(&ground).await;
    let file = deploy("prometheus/secure.yaml").display().to_string();
    kubectl.run(&["create", "-f", &file]).await;
    let user = "system:serviceaccount:monitoring:prometheus-k8s";
    assert!(may(&kubectl, user, "get", "/metrics", "").await);
    assert!(!may(&kubectl, user, "get", "/logs", "").await);
    assert!(!may(&kubectl, user, "get", "secrets", "kube-system").await);

    let read = |path: &str| std::fs::read_to_string(deploy(path)).unwrap();
    let service = one(&read("prometheus/secure.yaml"), "Service");
    let monitor = one(&read("prometheus/servicemonitor.yaml"), "ServiceMonitor");
    let selected = &monitor["spec"]["selector"]["matchLabels"];
    assert_eq!(service["metadata"]["labels"], *selected);
    assert_eq!(
        service["metadata"]["namespace"],
        monitor["metadata"]["namespace"]
    );
    let port = &monitor["spec"]["endpoints"][0]["port"];
    assert_eq!(service["spec"]["ports"][0]["name"], *port);
    let own = one(&read("kubeadm/kube-interop-proxy.yaml"), "Pod");
    for (label, value) in service["spec"]["selector"].as_object().unwrap() {
        assert_eq!(own["metadata"]["labels"][label], *value, "{label}");
    }
    // The other one finds proxies in kube-apiserver pods too.
    let monitor = one(&read("prometheus/podmonitor.yaml"), "PodMonitor");
    let patched = super::kubeadm::VERSIONS.map(super::kubeadm::patched);
    for pod in patched.iter().chain([&own]) {
        let labels = &pod["metadata"]["labels"];
        for wanted in monitor["spec"]["selector"]["matchExpressions"]
            .as_array()
            .unwrap()
        {
            let values = wanted["values"].as_array().unwrap();
            let found = &labels[wanted["key"].as_str().unwrap()];
            assert!(values.contains(found), "{wanted}: {labels}");
        }
        let containers = pod["spec"]["containers"].as_array().unwrap();
        let kept = &monitor["spec"]["podMetricsEndpoints"][0]["relabelings"][0];
        let is_kept = |it: &&Value| it["name"] == kept["regex"];
        assert_eq!(containers.iter().filter(is_kept).count(), 1, "{labels}");
    }
}

#[tokio::test]
async fn the_roles_grant_what_the_proxy_asks_and_no_more() {
    let ground = Ground::new().await;
    let (_server, kubectl) = real(&ground).await;
    let rbac = deploy("rbac.yaml").display().to_string();
    kubectl.run(&["create", "-f", &rbac]).await;
    let user = "system:kube-interop-proxy";
    let may = async |verb, what, namespace| may(&kubectl, user, verb, what, namespace).await;
    // The first of identity.leaseNamespaces, and the other one.
    let (first, other) = ("kube-system", "kube-apiserver-lease");
    let names = "configmaps/extension-apiserver-authentication";
    for (verb, what, namespace) in [
        ("get", "/readyz", ""),
        ("get", "/version", ""),
        ("get", "/", ""),
        ("get", "/api", ""),
        ("get", "/api/v1", ""),
        ("get", "/apis", ""),
        ("get", "/apis/apps/v1", ""),
        ("get", "/openapi/v2", ""),
        ("get", "/openapi/v3", ""),
        ("create", "tokenreviews.authentication.k8s.io", ""),
        ("create", "subjectaccessreviews.authorization.k8s.io", ""),
        ("get", names, first),
        ("get", "leases.coordination.k8s.io", first),
        ("create", "leases.coordination.k8s.io", first),
        ("update", "leases.coordination.k8s.io", first),
        ("delete", "leases.coordination.k8s.io", first),
        ("delete", "leases.coordination.k8s.io", other),
    ] {
        assert!(
            may(verb, what, namespace).await,
            "{verb} {what} {namespace}"
        );
    }
    for (verb, what, namespace) in [
        ("list", "leases.coordination.k8s.io", first),
        ("update", "leases.coordination.k8s.io", other),
        ("delete", "leases.coordination.k8s.io", "default"),
        ("get", "configmaps/other", first),
        ("get", "secrets", first),
        ("create", "pods", "default"),
        ("get", "/logs", ""),
        ("post", "/api", ""),
    ] {
        assert!(
            !may(verb, what, namespace).await,
            "{verb} {what} {namespace}"
        );
    }
}

#[test]
fn the_hosted_base_puts_the_proxy_before_the_apiserver() {
    let rendered = hosted();
    let deployment = one(&rendered, "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let containers = pod["containers"].as_array().unwrap();
    let names: Vec<_> = containers
        .iter()
        .map(|container| &container["name"])
        .collect();
    assert_eq!(names, ["kube-apiserver", "kube-interop-proxy"]);
    let arguments: Vec<_> = containers[0]["args"].as_array().unwrap().iter().collect();
    assert_eq!(
        arguments,
        ["--bind-address=127.0.0.1", "--shutdown-delay-duration=70s"]
    );
    assert_eq!(pod["terminationGracePeriodSeconds"], 150);
    let init = &pod["initContainers"][0];
    let volumes = pod["volumes"].as_array().unwrap();
    for container in containers.iter().chain([init]) {
        for mount in container["volumeMounts"].as_array().unwrap() {
            let there = volumes.iter().any(|volume| volume["name"] == mount["name"]);
            assert!(there, "{mount}");
        }
    }
    // A new configuration is a new name, so a rollout.
    let map = one(&rendered, "ConfigMap");
    let template = &volumes
        .iter()
        .find(|volume| volume["configMap"].is_object());
    let used = &template.unwrap()["configMap"]["name"];
    assert_eq!(used, &map["metadata"]["name"]);
    assert_ne!(used, "kube-interop-proxy");
    // The Service leads where the proxy listens, and the policy lets nothing else in.
    let port = &one(&rendered, "Service")["spec"]["ports"][0]["targetPort"];
    let open = &one(&rendered, "NetworkPolicy")["spec"]["ingress"][0]["ports"];
    assert_eq!((port, open.as_array().unwrap().len()), (&6443.into(), 1));
    assert_eq!(&open[0]["port"], port);
    assert_eq!(containers[1]["readinessProbe"]["httpGet"]["port"], *port);
}

#[test]
fn the_init_container_makes_a_configuration_that_the_proxy_accepts() {
    let rendered = hosted();
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    for (secret, files) in [
        (
            "apiserver",
            [
                ("apiserver.crt", "tls.crt"),
                ("apiserver.key", "tls.key"),
                ("ca.crt", "ca.crt"),
            ],
        ),
        (
            "front-proxy-client",
            [
                ("front-proxy-client.crt", "tls.crt"),
                ("front-proxy-client.key", "tls.key"),
                ("front-proxy-ca.crt", "ca.crt"),
            ],
        ),
        (
            "etcd-client",
            [
                ("etcd-client.crt", "tls.crt"),
                ("etcd-client.key", "tls.key"),
                ("etcd-ca.crt", "ca.crt"),
            ],
        ),
        (
            "ca",
            [
                ("ca.crt", "ca.crt"),
                ("ca.crt", "tls.crt"),
                ("ca.key", "tls.key"),
            ],
        ),
    ] {
        let to = dir.path().join("etc/kubernetes/pki").join(secret);
        std::fs::create_dir_all(&to).unwrap();
        for (from, name) in files {
            std::fs::copy(pki.path(from), to.join(name)).unwrap();
        }
    }
    let here = |text: &str| {
        let root = dir.path().display();
        text.replace("/etc/kubernetes", &format!("{root}/etc/kubernetes"))
            .replace("/run/kube-interop-proxy", &format!("{root}/run"))
    };
    let map = one(&rendered, "ConfigMap");
    let template = dir.path().join("etc/kubernetes/kube-interop-proxy");
    std::fs::create_dir_all(&template).unwrap();
    std::fs::create_dir_all(dir.path().join("run")).unwrap();
    let config = here(map["data"]["proxy.yaml"].as_str().unwrap());
    std::fs::write(template.join("proxy.yaml"), config).unwrap();
    let deployment = one(&rendered, "Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    // As kubelet fills them in.
    let words = pod["initContainers"][0]["command"].as_array().unwrap();
    let words = words.iter().map(|word| {
        let word = word.as_str().unwrap();
        here(
            &word
                .replace("$(POD_IP)", "127.0.0.21")
                .replace("$(POD_NAME)", "kube-apiserver-0"),
        )
    });
    let words: Vec<_> = words.collect();
    let made = output(
        Command::new(&words[0]).args(&words[1..]),
        "apt-get install sed",
    );
    assert!(made.status.success(), "{}", text(&made));
    let made = dir.path().join("run/proxy.yaml");
    let config = std::fs::read_to_string(&made).unwrap();
    assert!(
        config.contains("bindAddress: 127.0.0.21:6443")
            && config.contains("serverID: kube-apiserver-0")
    );
    let mut check = Command::new(binary());
    let checked = output(
        check.args(["check", "--config"]).arg(made),
        "run cargo build",
    );
    assert!(checked.status.success(), "{}", text(&checked));
}

#[test]
fn the_systemd_unit_is_one_and_is_confined() {
    let unit = std::fs::read_to_string(deploy("systemd/kube-interop-proxy.service")).unwrap();
    let here = unit.replace(
        "/usr/local/bin/kube-interop-proxy",
        &binary().display().to_string(),
    );
    assert_ne!(unit, here);
    let nothing_before = !unit.contains("ExecStartPre=") && !unit.contains("ExecCondition=");
    assert!(nothing_before, "it starts where `check` fails");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kube-interop-proxy.service");
    std::fs::write(&path, here).unwrap();
    let analyze = |arguments: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        output(
            command.args(arguments).arg(&path),
            "run tests/install.sh --tests",
        )
    };
    let verified = analyze(&["verify", "--man=no"]);
    assert!(verified.status.success(), "{}", text(&verified));
    // It knows the unit's own lines best: an unknown one is only said.
    assert!(
        !text(&verified).contains("kube-interop-proxy.service"),
        "{}",
        text(&verified)
    );
    // 0 is the best, 100 what a unit without any of these lines has.
    let secure = analyze(&["security", "--offline=true", "--no-pager", "--threshold=20"]);
    assert!(secure.status.success(), "{}", text(&secure));
}

#[test]
fn the_image_has_what_the_manifests_start() {
    let recipe = std::fs::read_to_string(deploy("../Containerfile")).unwrap();
    let lines: Vec<_> = recipe.lines().collect();
    let last = lines
        .iter()
        .rposition(|line| line.starts_with("FROM "))
        .unwrap();
    let image = lines[last..].join("\n");
    // With this directory on PATH.
    assert!(image.starts_with("FROM debian:"), "{image}");
    assert!(
        image.contains(" /usr/local/bin/kube-interop-proxy\n"),
        "{image}"
    );
    assert!(
        image.contains("\nENTRYPOINT [\"/usr/local/bin/kube-interop-proxy\"]"),
        "{image}"
    );
    let script = std::fs::read_to_string(deploy("release/image.sh")).unwrap();
    assert!(script.contains("--env PATH=/usr/local/bin "), "{script}");
    let pod = &one(&hosted(), "Deployment")["spec"]["template"]["spec"];
    // That has no sed.
    let init = &pod["initContainers"][0];
    assert_eq!(init["command"][0], "sed");
    assert_ne!(init["image"], pod["containers"][1]["image"]);
    let user = &pod["containers"][1]["securityContext"]["runAsUser"];
    assert!(
        image.contains(&format!("\nUSER {user}:{user}\n")),
        "{image}"
    );
    let number = format!("--user {user}:{user} ");
    assert!(script.contains(&number), "{script}");
    assert_eq!(&pod["securityContext"]["fsGroup"], user);
    // Newest version of Rust that the program may need.
    let rust = format!("FROM rust:{}-", env!("CARGO_PKG_RUST_VERSION"));
    assert!(lines.iter().any(|line| line.starts_with(&rust)), "{rust}");
}
