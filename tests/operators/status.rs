//! `status`: the state of a running proxy, for people and for scripts.

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::command::{Ended, SOON, run};
use testkit::addr::Loopback;
use testkit::cluster::{Cluster, LONG, Single, binary};
use testkit::wait::eventually;

async fn status(admin: SocketAddr, more: &[&str]) -> Ended {
    let admin = admin.to_string();
    run(&[&["status", "--admin", &admin], more].concat()).await
}

/// The words of the first line that begins with this word.
fn line(text: &str, start: &str) -> String {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut lines = text.lines().map(words);
    let found = lines.find(|line| line.split(' ').next() == Some(start));
    found.unwrap_or_else(|| panic!("{start}: {text}"))
}

fn is_tame(text: &str) -> bool {
    let tame = |c: char| c == '\n' || c == ' ' || c.is_ascii_graphic();
    text.chars().all(tame)
}

#[tokio::test]
async fn a_ready_proxy_is_0_whatever_is_wrong_with_its_peers() {
    let mut cluster = Cluster::new().await;
    let admin = cluster.proxy_a.admin();
    let ended = status(admin, &[]).await;
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(line(&ended.stdout, "Server"), "Server a");
    assert_eq!(line(&ended.stdout, "State"), "State ready");
    let endpoint = cluster.proxy_b.addr();
    let peer = line(&ended.stdout, "b");
    assert_eq!(peer, format!("b {endpoint} v1.20.2 target"));
    let difference = line(&ended.stdout, "autoscaling/v1");
    assert!(difference.ends_with(" b a"), "{difference}");
    assert!(!ended.stdout.contains("apps/v1"), "{}", ended.stdout);

    cluster.proxy_b.kill();
    eventually("B is shown as absent", LONG, async || {
        let ended = status(admin, &[]).await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        line(&ended.stdout, "b").ends_with(" absent")
    })
    .await;
    let ended = status(admin, &[]).await;
    let difference = line(&ended.stdout, "autoscaling/v1");
    assert!(
        difference.contains(" none that can be asked a"),
        "{difference}"
    );
}

#[tokio::test]
async fn a_proxy_that_is_not_ready_is_1_and_says_why() {
    let mut single = Single::new().await;
    single.double.stop().await;
    let admin = single.proxy.admin();
    eventually("it is not ready", LONG, async || {
        status(admin, &[]).await.code == Some(1)
    })
    .await;
    let ended = status(admin, &[]).await;
    assert_eq!(ended.stderr, "");
    assert_eq!(line(&ended.stdout, "State"), "State NOT READY");
    assert!(
        ended
            .stdout
            .contains("the last /readyz of the apiserver was not 200"),
        "{}",
        ended.stdout
    );
    let json = status(admin, &["-o", "json"]).await;
    assert_eq!((json.code, json.stderr.as_str()), (Some(1), ""));
}

#[tokio::test]
async fn hostile_values_from_etcd_steer_no_terminal_and_json_stays_json() {
    let single = Single::new().await;
    let id = "\u{1b}[2J\u{9b}31m\u{7f}\u{202e}evil\n";
    let record = r#"{"endpoint":"127.0.0.1:1","binaryVersion":"\u001b]0;x\u0007","resources":{"\u001b[1m/v1":["x"]}}"#;
    let mut etcd = single.ground.etcd.client().await;
    let key = format!("/kube-interop-proxy/registry/servers/{id}");
    etcd.put(key, record, None).await.unwrap();
    let admin = single.proxy.admin();
    eventually("it is shown", LONG, async || {
        status(admin, &[]).await.stdout.contains("evil")
    })
    .await;
    let table = status(admin, &[]).await.stdout;
    assert!(
        is_tame(&table) && table.contains("\\u{1b}[1m/v1"),
        "{table}"
    );
    let json = status(admin, &["--output", "json"]).await;
    assert_eq!(json.code, Some(0), "{}", json.stderr);
    assert!(is_tame(&json.stdout), "{}", json.stdout);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["peers"][0]["id"], id);
    assert_eq!(json["server"]["id"], "a");
    let asked = single.proxy.statusz().await;
    assert_eq!(json["resources"], asked["resources"]);
}

#[tokio::test]
async fn a_reader_that_has_gone_is_no_failure() {
    let single = Single::new().await;
    let mut child = Command::new(binary())
        .args([
            "status",
            "-o",
            "json",
            "--admin",
            &single.proxy.admin().to_string(),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = tokio::task::spawn_blocking(move || child.wait_with_output());
    let output = output.await.unwrap().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(0));
}

#[tokio::test]
async fn what_cannot_be_asked_is_1_with_one_line_that_says_why() {
    let nobody = Loopback::new();
    let closed = nobody.socket(6450);
    let ended = status(closed, &[]).await;
    assert_eq!(ended.code, Some(1));
    let line = ended.one_line();
    assert!(line.contains(&closed.to_string()), "{line}");
    assert!(
        line.contains("Connection refused") && line.contains("admin.bindAddress"),
        "{line}"
    );

    for (answer, said) in [
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "answered with 404",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            "something else",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{\"server\":{",
            "cannot be read",
        ),
        ("SSH-2.0-\u{1b}[2J\r\n", "cannot be read"),
        ("", "cannot be read"),
    ] {
        let ended = status(answers(answer).await, &[]).await;
        assert_eq!(ended.code, Some(1), "{answer}");
        let line = ended.one_line();
        assert!(line.contains(said) && is_tame(line), "{answer}: {line}");
    }
}

/// A server that reads a request, answers with this, and hangs up.
async fn answers(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(tcp.read_u8().await.unwrap());
        }
        tcp.write_all(answer.as_bytes()).await.unwrap();
    });
    address
}

#[tokio::test]
async fn whoever_accepts_and_is_silent_is_not_waited_for_long() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let started = Instant::now();
    let ended = status(silent.local_addr().unwrap(), &[]).await;
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.one_line().contains("no answer within 5 s"),
        "{}",
        ended.stderr
    );
    assert!(started.elapsed() < SOON);
}

#[tokio::test]
async fn a_name_that_leads_there_will_do() {
    let single = Single::new().await;
    let admin = single.proxy.admin();
    let IpAddr::V4(ip) = admin.ip() else {
        panic!("{admin}");
    };
    // No address as the admin port takes one, and one to whoever looks up names: inet_aton(3).
    let name = format!("127.{}:{}", ip.to_bits() & 0xff_ffff, admin.port());
    let ended = run(&["status", "--admin", &name]).await;
    assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
}

#[tokio::test]
async fn bad_usage_is_64() {
    for arguments in [
        &["status", "-o", "yaml"][..],
        &["status", "-o"],
        &["status", "--admin", "127.0.0.1"],
        &["status", "--admin", "http://127.0.0.1:6450"],
        &["status", "--admin", "127.0.0.1:0"],
        &["status", "127.0.0.1:6450"],
    ] {
        assert_eq!(run(arguments).await.code, Some(64), "{arguments:?}");
    }
}
