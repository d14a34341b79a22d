//! The file is read again, however it is written; a wrong one, or none, changes nothing.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use serde_yaml::Value;
use testkit::cluster::{LONG, Single};
use testkit::process::Signal;
use testkit::wait::eventually;

use super::{BROKEN, PODS, RELOADS, lines, log};

const SECONDS: &str = "ifReady.retryAfterSeconds";
const AS_BEFORE: &str = "the previous configuration file is back";
const UNUSABLE: &str = "the configuration file cannot be used";

/// Makes `link` lead to `target`, at once.
fn link(target: &str, link: &Path) {
    let new = link.with_file_name("new-link");
    symlink(target, &new).unwrap();
    fs::rename(&new, link).unwrap();
}

#[tokio::test]
async fn however_a_file_is_written_it_is_read_again() {
    let mut single = Single::new().await;
    let proxy = &mut single.proxy;
    proxy.reconfigure(SECONDS, "7");
    proxy.until_setting(SECONDS, "7").await;

    let file = proxy.config_file().to_owned();
    fs::write(&file, proxy.changed_config(SECONDS, "8")).unwrap();
    proxy.until_setting(SECONDS, "8").await;

    // As kubelet mounts a ConfigMap.
    let directory = file.parent().unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let version = |version: &str, text: &str| {
        fs::create_dir(directory.join(version)).unwrap();
        fs::write(directory.join(version).join(name), text).unwrap();
        link(version, &directory.join("..data"));
    };
    version("..1", &fs::read_to_string(&file).unwrap());
    link(&format!("..data/{name}"), &file);
    version("..2", &proxy.changed_config(SECONDS, "9"));
    proxy.until_setting(SECONDS, "9").await;

    // The same contents at another place are no change.
    assert_eq!(proxy.metric(RELOADS, &[("result", "applied")]).await, 3.0);
    assert_eq!(proxy.metric(RELOADS, &[("result", "failed")]).await, 0.0);
    assert_eq!(
        lines(proxy, "changed=\"ifReady.retryAfterSeconds: 8 -> 9\""),
        1
    );
}

#[tokio::test]
async fn a_file_that_is_written_byte_by_byte_is_used_as_a_whole() {
    let before = |options: testkit::proxy::ProxyOptions| {
        options.set(SECONDS, "7").set("discovery.mode", "Local")
    };
    let mut single = Single::with(before).await;
    let proxy = &mut single.proxy;
    proxy.changed_config(SECONDS, "9");
    let text = proxy.changed_config("discovery.mode", "Newest");
    // What is required comes last: no part of the file is a configuration, however long a byte takes.
    let mut config: serde_yaml::Mapping = serde_yaml::from_str(&text).unwrap();
    let peer = config.remove("peer").unwrap();
    config.insert(Value::from("peer"), peer);
    let text = serde_yaml::to_string(&config).unwrap();

    let mut file = fs::File::create(proxy.config_file()).unwrap();
    for (written, byte) in text.bytes().enumerate() {
        file.write_all(&[byte]).unwrap();
        tokio::time::sleep(Duration::from_millis(3)).await;
        if written % 50 == 0 {
            let settings = &proxy.statusz().await["config"]["settings"];
            let seen = (&settings[SECONDS], &settings["discovery.mode"]);
            let whole = [
                (&json!("7"), &json!("Local")),
                (&json!("9"), &json!("Newest")),
            ];
            assert!(whole.contains(&seen), "{seen:?}");
        }
    }
    proxy.until_setting("discovery.mode", "Newest").await;
    proxy.until_setting(SECONDS, "9").await;
    assert_eq!(proxy.metric(RELOADS, &[("result", "applied")]).await, 1.0);
}

#[tokio::test]
async fn a_wrong_file_and_a_missing_one_change_nothing_and_are_named() {
    let mut single = Single::new().await;
    let admin = single.client().cert("admin");
    let proxy = &mut single.proxy;
    let original = fs::read_to_string(proxy.config_file()).unwrap();
    let line = original.lines().count() + 2;
    let wrong = "rerouting:\n  unsynced: Never\n  enabld: false\n";
    proxy.replace_config(&format!("{original}{wrong}"));
    proxy
        .until_metric(BROKEN, &[], |broken| broken == 1.0)
        .await;
    let expected = [
        format!("rerouting.unsynced (line {line}): \"Never\" is not one of Reject, ServeLocal"),
        format!(
            "rerouting.enabld (line {}): unknown key; expected one of enabled, unsynced, absentServerGrace, bareServers, \
             ignoredAddresses",
            line + 1
        ),
    ];
    let config = &proxy.statusz().await["config"];
    assert_eq!(config["problems"], json!(expected));
    assert_eq!(config["settings"]["rerouting.enabled"], "true");
    assert!(lines(proxy, UNUSABLE) == 1 && log(proxy).contains("enabld"));
    assert_eq!(admin.get(PODS).await.code(), 200);

    fs::remove_file(proxy.config_file()).unwrap();
    proxy
        .until_metric(RELOADS, &[("result", "failed")], |failed| failed == 2.0)
        .await;
    eventually("it is named that the file is gone", LONG, async || {
        let problems = proxy.statusz().await["config"]["problems"].to_string();
        let named = problems.contains("no such file");
        named.then_some(()).ok_or(problems)
    })
    .await;
    assert_eq!(admin.get(PODS).await.code(), 200);

    proxy.replace_config(&original);
    proxy
        .until_metric(BROKEN, &[], |broken| broken == 0.0)
        .await;
    assert_eq!(proxy.statusz().await["config"]["problems"], json!([]));
    assert_eq!(lines(proxy, AS_BEFORE), 1);
    assert_eq!(proxy.metric(RELOADS, &[("result", "applied")]).await, 0.0);
    proxy.reconfigure("rerouting.enabled", "false");
    proxy.until_setting("rerouting.enabled", "false").await;
}

#[tokio::test]
async fn sighup_ends_nothing() {
    let mut single = Single::new().await;
    let admin = single.client().cert("admin");
    let proxy = &mut single.proxy;
    proxy.process().signal(Signal::Hup);
    proxy.reconfigure(SECONDS, "7");
    proxy.until_setting(SECONDS, "7").await;
    assert_eq!(admin.get(PODS).await.code(), 200);
}

#[tokio::test]
async fn keys_that_need_a_restart_are_named_and_hold_up_no_others() {
    let mut single = Single::new().await;
    let proxy = &mut single.proxy;
    proxy.changed_config("shutdown.drain", "9s");
    proxy.reconfigure("rerouting.enabled", "false");
    proxy.until_setting("rerouting.enabled", "false").await;
    let config = &proxy.statusz().await["config"];
    assert_eq!(config["needsRestart"], json!(["shutdown.drain: 5s -> 9s"]));
    let log = log(proxy);
    let line = log
        .lines()
        .find(|line| line.contains("read again"))
        .unwrap();
    assert!(
        line.contains(" WARN ")
            && line.contains("changed=\"rerouting.enabled: true -> false\"")
            && line.contains("needs_restart=\"shutdown.drain: 5s -> 9s\""),
        "{line}"
    );
    proxy.terminate().await;
    proxy.start_again().await;
    let config = &proxy.statusz().await["config"];
    assert_eq!(config["needsRestart"], json!([]));
    assert_eq!(config["settings"]["rerouting.enabled"], "false");
}
