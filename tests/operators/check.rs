//! The command line: usage, `check`, exit codes.

use std::path::Path;
use std::process::{Command, Output};

use testkit::addr::Loopback;
use testkit::cluster::binary;
use testkit::pki::{LeafOptions, Pki};
use testkit::proxy::ProxyOptions;

fn run(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().unwrap()
}

fn check(file: &Path) -> (Option<i32>, String) {
    let output = run(&["check", "--config", file.to_str().unwrap()]);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// A good configuration as text, and a directory to write it to.
fn good() -> (tempfile::TempDir, Pki, serde_yaml::Value) {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::new(&dir.path().join("pki"));
    let options = ProxyOptions::new(
        binary(),
        dir.path(),
        &pki,
        "127.0.0.9:6443".parse().unwrap(),
        "https://127.0.0.9:2379",
    );
    let config = options.config(&Loopback::new());
    (dir, pki, config)
}

fn set(config: &mut serde_yaml::Value, key: &str, value: &str) {
    let mut place = config;
    for part in key.split('.') {
        place = &mut place[part];
    }
    *place = serde_yaml::from_str(value).unwrap();
}

#[test]
fn a_good_configuration_has_no_problems() {
    let (dir, _pki, config) = good();
    let file = dir.path().join("config.yaml");
    std::fs::write(&file, serde_yaml::to_string(&config).unwrap()).unwrap();
    let (code, text) = check(&file);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn every_problem_is_named_with_its_key() {
    let (dir, pki, good) = good();
    pki.leaf("other", "ca", &LeafOptions::client("other"));
    let other_key = pki.file("other.key");
    let not_pem = pki.file("tokens.csv");
    let cases = [
        ("serving.certFile", "/no/such/file.crt"),
        ("serving.keyFile", other_key.as_str()),
        ("serving.clientCAFile", not_pem.as_str()),
        ("serving.bindAddress", "0.0.0.0:6443"),
        ("peer.advertiseAddress", "10.0.0.300:6443"),
        ("apiServer.probeInterval", "soon"),
        ("apiServer.serverName", "\"\""),
        ("etcd.endpoints", "[]"),
        ("ifReady.retryAfterSeconds", "-1"),
        ("ifReady.mode", "Sometimes"),
        ("shutdown.drain", "[1, 2]"),
        ("discovery.mode", "Mine"),
        ("admin.bindAddress", "\"10.0.0.1:6450\""),
        ("serving.invented", "true"),
    ];
    let mut all = good.clone();
    let file = dir.path().join("config.yaml");
    for (key, value) in cases {
        let mut one = good.clone();
        set(&mut one, key, value);
        set(&mut all, key, value);
        std::fs::write(&file, serde_yaml::to_string(&one).unwrap()).unwrap();
        let (code, text) = check(&file);
        assert_eq!(code, Some(1), "{key}: {text}");
        assert!(
            text.lines().any(|line| line.contains(&format!(": {key}"))),
            "{key}: {text}"
        );
    }
    std::fs::write(&file, serde_yaml::to_string(&all).unwrap()).unwrap();
    let (code, text) = check(&file);
    assert_eq!(code, Some(1));
    for (key, _) in cases {
        // A key that is compared with a certificate cannot be judged while that cannot be read.
        if key != "serving.keyFile" {
            assert!(
                text.lines().any(|line| line.contains(&format!(": {key}"))),
                "{key} all at once: {text}"
            );
        }
    }
}

#[test]
fn a_missing_file_is_a_problem_with_a_name() {
    let (code, text) = check(Path::new("/no/such/config.yaml"));
    assert_eq!(code, Some(1));
    assert!(text.contains("/no/such/config.yaml"), "{text}");
}

#[test]
fn bad_usage_is_64_and_so_is_running_with_a_bad_configuration() {
    for arguments in [
        &[][..],
        &["fly"],
        &["run", "--config"],
        &["version", "--what"],
    ] {
        assert_eq!(run(arguments).status.code(), Some(64), "{arguments:?}");
    }
    assert_eq!(
        run(&["run", "--config", "/no/such/config.yaml"])
            .status
            .code(),
        Some(64)
    );
}

#[test]
fn a_log_filter_that_cannot_be_understood_is_bad_usage() {
    let mut command = Command::new(binary());
    command
        .env("RUST_LOG", "info,access=loud")
        .args(["run", "--config", "/no/such"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .starts_with("RUST_LOG")
    );
}

#[test]
fn version_and_help_are_no_errors() {
    let version = run(&["version"]);
    assert!(version.status.success());
    let said = String::from_utf8(version.stdout).unwrap();
    // Builds for tests do not ask git for it; a packed program names it.
    let commit = said
        .trim_end()
        .strip_prefix(concat!(
            "kube-interop-proxy ",
            env!("CARGO_PKG_VERSION"),
            " (commit "
        ))
        .and_then(|rest| rest.strip_suffix(')'))
        .unwrap_or_else(|| panic!("{said}"));
    let is_hash = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(
        is_hash || commit == env!("KUBE_INTEROP_PROXY_COMMIT"),
        "{said}"
    );
    for asked in [&["--version"][..], &["-V"]] {
        let output = run(asked);
        assert!(output.status.success(), "{asked:?}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), said, "{asked:?}");
    }
    for asked in [
        &["--help"][..],
        &["-h"],
        &["check", "-h"],
        &["run", "--help"],
    ] {
        let output = run(asked);
        assert!(output.status.success(), "{asked:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Usage: kube-interop-proxy"), "{text}");
    }
}

#[test]
fn without_an_option_the_configuration_is_where_install_puts_it() {
    // Nobody installs a proxy on a machine that runs tests; if somebody has, its file is what is checked.
    let path = "/etc/kubernetes/kube-interop-proxy/proxy.yaml";
    let output = run(&["check"]);
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(Path::new(path).exists() || text.contains(path), "{text}");
    let told = run(&["run", "--help"]).stdout;
    assert!(String::from_utf8(told).unwrap().contains(path));
}

/// What it says of the servers, `check --live` says too; this machine need not be a control plane node.
#[test]
fn a_node_is_looked_at_before_the_proxy_is_installed() {
    let output = run(&["check", "--pre", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let code = i32::from(json["problems"] != 0);
    assert_eq!(output.status.code(), Some(code), "{json}");
    let findings = json["findings"].as_array().unwrap();
    for (about, codes) in [
        ("kubelet", ["KIP-117", "KIP-118"]),
        ("container runtime", ["KIP-119", "KIP-120"]),
        ("this node", ["KIP-110", "KIP-111"]),
    ] {
        let found = findings.iter().find(|it| it["about"] == about);
        let code = found.unwrap_or_else(|| panic!("{about}: {json}"))["code"].as_str();
        assert!(codes.contains(&code.unwrap()), "{about}: {json}");
    }
    for other in [&["--live"][..], &["--config", "/etc/hostname"]] {
        let arguments = [&["check", "--pre"], other].concat();
        assert_eq!(run(&arguments).status.code(), Some(64), "{arguments:?}");
    }
}

#[test]
fn problems_are_told_to_people_and_to_programs_with_their_codes() {
    let (dir, _pki, mut config) = good();
    set(&mut config, "serving.invented", "true");
    set(&mut config, "ifReady.mode", "Sometimes");
    let file = dir.path().join("config.yaml");
    std::fs::write(&file, serde_yaml::to_string(&config).unwrap()).unwrap();
    let said = |output: &[&str]| {
        let arguments = [&["check", "--config", file.to_str().unwrap()], output].concat();
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = said(&[]);
    let about = format!("configuration {}: ", file.display());
    for (code, key) in [
        ("004", "serving.invented (line "),
        ("007", "ifReady.mode (line "),
    ] {
        let line = format!("problem KIP-{code} {about}{key}");
        let link = format!("; see docs/findings.md#kip-{code}");
        let is_told = |it: &str| it.starts_with(&line) && it.ends_with(&link);
        assert!(text.lines().any(is_told), "{code}: {text}");
    }
    assert!(text.ends_with("\n0 ok, 0 warnings, 2 problems\n"), "{text}");

    let short = said(&["-o", "short"]);
    assert_eq!(short.lines().count(), 2, "{short}");
    assert!(!short.contains("; do: "), "{short}");

    let json: serde_json::Value = serde_json::from_str(&said(&["-o", "json"])).unwrap();
    assert_eq!(json["problems"], 2);
    let codes: Vec<_> = json["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["code"])
        .collect();
    assert!(codes.iter().any(|it| **it == "KIP-004"), "{json}");
    assert!(codes.iter().any(|it| **it == "KIP-007"), "{json}");
}
