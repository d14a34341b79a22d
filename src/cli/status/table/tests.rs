use serde_json::{Value, json};

use super::*;

const HOSTILE: &str = "\u{1b}]0;gone\u{7}\u{1b}[2J\n\u{9b}31m\u{202e}";

fn shown(status: &Value) -> String {
    let now = OffsetDateTime::parse("2026-01-01T00:00:00Z", &Rfc3339).unwrap();
    page(&serde_json::from_value(status.clone()).unwrap(), now)
}

/// The line that begins so, in words.
fn line<'a>(page: &'a str, start: &str) -> Vec<&'a str> {
    let found = page.lines().find(|line| line.starts_with(start));
    let found = found.unwrap_or_else(|| panic!("{start}: {page}"));
    found.split_whitespace().collect()
}

fn status() -> Value {
    let peer = |id, port, change: Value| {
        let mut peer = json!({
            "id": id, "endpoint": format!("10.0.0.{port}:6443"), "native": false, "live": true,
            "initialized": true, "target": true, "ready": true, "unhealthy": false, "known": true,
            "binaryVersion": "v1.20.2", "compatibilityVersion": "1.20",
        });
        for (key, value) in change.as_object().unwrap() {
            peer[key] = value.clone();
        }
        peer
    };
    let resource = |group, resource, local: bool, peers: Value| {
        json!({"group": group, "version": "v1", "resource": resource, "subresource": "",
            "local": local, "peers": peers})
    };
    json!({
        "server": {
            "id": "cp-1", "endpoint": "10.0.0.1:6443", "version": "0.1.0", "compatibilityVersion": "1.20",
            "ready": true, "missing": [], "initialized": true, "discoveryKnown": true,
        },
        "etcd": {"synced": true, "revision": 4711, "ageSeconds": 0.25, "undecodable": 0},
        "certificates": {
            "broken": ["serving"],
            "expire": {
                "etcd.caFile": "2036-01-01T00:00:00Z",
                "etcd.certFile": "2025-12-30T00:00:00Z",
                "serving.certFile": "2026-01-12T00:00:00Z",
                "peer.caFile": "2026-01-31T00:00:00Z",
            },
        },
        "facts": {"claims": []},
        "peers": [
            peer("cp-2", 2, json!({})),
            peer("cp-3", 3, json!({"compatibilityVersion": "1.19", "unhealthy": true})),
            peer("cp-4", 4, json!({"live": false, "target": false, "initialized": false, "known": false})),
            peer("cp-5", 5, json!({"target": false, "initialized": false, "known": false})),
            peer("cp-6", 6, json!({"native": true, "binaryVersion": null, "compatibilityVersion": null})),
            peer("cp-7", 7, json!({"target": false})),
            peer("10.0.0.8:6443", 8, json!({"bare": true, "target": false, "initialized": false, "known": false})),
        ],
        "resources": [
            resource("", "pods", true, json!(["cp-2", "cp-3", "cp-6"])),
            resource("autoscaling", "hpas", false, json!(["cp-2"])),
            resource("autoscaling", "others", false, json!(["cp-2"])),
            resource("autoscaling", "local", true, json!([])),
            resource("lost", "things", false, json!([])),
        ],
    })
}

#[test]
fn this_server_comes_first() {
    let page = shown(&status());
    assert!(page.starts_with("Server    cp-1\n"), "{page}");
    assert_eq!(line(&page, "Endpoint"), ["Endpoint", "10.0.0.1:6443"]);
    assert_eq!(
        line(&page, "Version"),
        ["Version", "0.1.0,", "apiserver", "1.20"]
    );
    assert_eq!(line(&page, "State"), ["State", "ready"]);
    assert_eq!(
        line(&page, "etcd "),
        [
            "etcd", "read,", "revision", "4711,", "last", "answer", "0.2", "s", "ago"
        ]
    );
}

#[test]
fn every_reason_for_not_being_ready_is_named() {
    let mut status = status();
    status["server"]["ready"] = false.into();
    status["server"]["missing"] = json!(["stopping", "the last /readyz was not 200"]);
    status["etcd"]["synced"] = false.into();
    status["facts"]["claims"] = json!(["cp-1/10.0.0.9:6443"]);
    let page = shown(&status);
    assert_eq!(line(&page, "State"), ["State", "NOT", "READY"]);
    assert!(
        page.contains("\n          stopping\n          the last /readyz was not 200\n"),
        "{page}"
    );
    assert!(page.contains("never read completely"), "{page}");
    assert!(
        page.contains("Duplicate cp-1/10.0.0.9:6443: a second proxy claims"),
        "{page}"
    );
}

#[test]
fn the_state_of_a_peer_is_in_words() {
    let page = shown(&status());
    for (id, words) in [
        ("cp-2", "v1.20.2 target"),
        ("cp-3", "v1.20.2 as 1.19 target: unhealthy, asked last"),
        ("cp-4", "v1.20.2 absent"),
        (
            "cp-5",
            "v1.20.2 live: not initialized, resources not current",
        ),
        ("cp-6", "- target: native mixed version proxy"),
        ("cp-7", "v1.20.2 live: another server has its address"),
        (
            "10.0.0.8:6443",
            "v1.20.2 bare: not initialized, resources not current, without a proxy",
        ),
    ] {
        let line = line(&page, id);
        assert_eq!(line[2..].join(" "), words);
    }
}

#[test]
fn differences_name_who_serves_and_who_does_not() {
    let page = shown(&status());
    let lines: Vec<_> = page
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for wanted in [
        "autoscaling/v1 2 cp-2 cp-1, cp-3, cp-6",
        "autoscaling/v1 1 cp-1 cp-2, cp-3, cp-6",
        "lost/v1 1 none that can be asked cp-1, cp-2, cp-3, cp-6",
    ] {
        assert!(lines.iter().any(|line| line == wanted), "{wanted}: {page}");
    }
    assert!(!page.contains("pods"), "{page}");
}

#[test]
fn what_is_not_known_makes_no_difference() {
    let mut status = status();
    status["server"]["discoveryKnown"] = false.into();
    status["resources"] = json!([
        {"group": "", "version": "v1", "resource": "pods", "local": false, "peers": ["cp-2", "cp-3", "cp-6"]}
    ]);
    let page = shown(&status);
    assert!(
        !page.contains("DIFFERENCE") && !page.contains("the same"),
        "{page}"
    );
    status["server"]["discoveryKnown"] = true.into();
    status["resources"][0]["local"] = true.into();
    assert!(shown(&status).contains("serve the same"));
}

#[test]
fn only_certificates_that_need_somebody_are_shown() {
    let page = shown(&status());
    assert_eq!(line(&page, "etcd.certFile")[1..3], ["EXPIRED", "2"]);
    assert_eq!(
        line(&page, "serving.certFile")[1..4],
        ["expires", "in", "11"]
    );
    assert!(line(&page, "serving ").contains(&"cannot"), "{page}");
    assert!(!page.contains("caFile"), "{page}");
}

#[test]
fn hostile_values_cannot_steer_a_terminal() {
    let mut status = status();
    fn poison(value: &mut Value) {
        match value {
            Value::String(text) => *text = format!("{text}{HOSTILE}"),
            Value::Array(values) => values.iter_mut().for_each(poison),
            Value::Object(fields) => {
                fields.insert(HOSTILE.to_owned(), HOSTILE.into());
                fields.values_mut().for_each(poison);
            }
            _ => {}
        }
    }
    status["server"]["ready"] = false.into();
    status["server"]["missing"] = json!([""]);
    status["facts"]["claims"] = json!([""]);
    poison(&mut status);
    let page = shown(&status);
    let tame = |c: char| c == '\n' || c == ' ' || c.is_ascii_graphic();
    assert!(page.chars().all(tame), "{page}");
    assert_eq!(page.lines().count(), page.split('\n').count() - 1);
}

#[test]
fn fields_that_are_missing_break_nothing() {
    let page = shown(&json!({"server": {}, "peers": [{}], "resources": [{}]}));
    assert!(page.starts_with("Server    has no ID yet\n"), "{page}");
}

#[test]
fn versions_that_differ_are_told_with_what_becomes_of_requests() {
    let mut status = status();
    assert!(!shown(&status).contains("Mixed"));
    for (policy, left, expected) in [
        ("Oldest", 0, "all to the oldest\n"),
        (
            "Newest",
            7,
            "all to the newest; requests that stayed nevertheless: 7\n",
        ),
        (
            "Any",
            0,
            "each to its own server: writes through an older one drop fields that it does not know\n",
        ),
    ] {
        status["window"] = json!({
            "versions": ["1.24", "1.36"], "since": "2026-11-26T14:03:00Z", "policy": policy, "left": left,
        });
        let line = format!("Mixed     1.24 and 1.36, since 2026-11-26T14:03:00Z, {expected}");
        let page = shown(&status);
        assert!(page.contains(&line), "{page}");
    }
}

#[test]
fn a_configuration_file_that_is_not_in_use_is_told() {
    let mut status = status();
    assert!(!shown(&status).contains("Config"));
    status["config"] = json!({
        "problems": ["discovery.mode (line 3): \"Merge\" is not one of these"],
        "needsRestart": ["peer.leaseTTL: 15s -> 20s"],
    });
    let page = shown(&status);
    for line in [
        "Config    the file cannot be used: discovery.mode (line 3): \"Merge\" is not one of these\n",
        "Config    at the next start, peer.leaseTTL: 15s -> 20s\n",
    ] {
        assert!(page.contains(line), "{page}");
    }
}

#[test]
fn what_would_be_refused_if_this_server_stopped_is_told() {
    let page = shown(&status());
    let told = "Only here autoscaling/v1 (1): would be answered 503 if this server stopped\n";
    assert!(page.contains(told), "{page}");
}
