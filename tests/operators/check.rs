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
        ("admin.bindAddress", "\"10.0.0.1:10260\""),
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
            text.lines().any(|line| line.starts_with(key)),
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
                text.lines().any(|line| line.starts_with(key)),
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
        &["run"],
        &["check"],
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
    // This package's builds may name the commit; builds for tests do not ask git for it.
    let commit = said
        .trim_end()
        .strip_prefix(concat!(
            "kube-interop-proxy ",
            env!("CARGO_PKG_VERSION"),
            " (commit "
        ))
        .and_then(|rest| rest.strip_suffix(')'));
    assert_eq!(commit, Some(env!("KUBE_INTEROP_PROXY_COMMIT")), "{said}");
    assert!(run(&["--help"]).status.success());
}
