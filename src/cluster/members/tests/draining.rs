//! Servers that drain: their keys, and what in them does not count.

use super::*;

const SINCE: i64 = 70;

fn draining(id: &str, endpoint: &str, since: i64, revision: i64) -> (Topic, EtcdItem) {
    let value = format!(r#"{{"endpoint":"{endpoint}","historyStart":{since},"later":1}}"#);
    (Topic::Draining, item(id, value, revision))
}

/// The servers to which watches from before all other histories are sent, and since when they have history.
fn asked(state: &ClusterState) -> Vec<(Arc<str>, Option<i64>)> {
    let snapshot = state.compile(Some("a"), &view(&[]));
    let holders = snapshot.holders(HPA).map(|(_, holders)| &holders.draining);
    assert_eq!(holders.unwrap_or(&vec![]), &snapshot.draining);
    let servers = snapshot
        .draining
        .iter()
        .map(|index| &snapshot.servers[*index]);
    let servers = servers.map(|server| {
        assert!(!server.target && !server.live && !server.ready && !server.history_void);
        (server.id.clone(), server.history_start)
    });
    servers.collect()
}

fn none() -> Vec<(Arc<str>, Option<i64>)> {
    Vec::new()
}

#[test]
fn who_drains_is_asked_for_watches_once_it_is_not_live_and_until_its_key_is_gone() {
    let mut state = state(vec![
        (Topic::Servers, record("b", B, 2)),
        (Topic::Live, live("b", B, true, 3)),
    ]);
    // Its apiserver's own, as from 1.36 on.
    let (topic, its) = entry("b", B, 3);
    take(&mut state, topic, Event::Apply(its));
    let (topic, key) = draining("b", B, SINCE, 4);
    assert!(take(&mut state, topic, Event::Apply(key)));
    assert_eq!(asked(&state), none(), "it is live");
    take(&mut state, Topic::Live, Event::Delete("b".into()));
    assert_eq!(asked(&state), [("b".into(), Some(SINCE))]);
    let (_, renewed) = draining("b", B, SINCE, 5);
    assert!(!take(&mut state, topic, Event::Apply(renewed)));
    assert!(take(&mut state, topic, Event::Delete("b".into())));
    assert_eq!(asked(&state), none());
}

#[test]
fn a_key_counts_only_with_a_record_at_its_address_that_is_not_ours_or_anothers() {
    for (what, messages) in [
        ("no record", vec![draining("b", B, SINCE, 4)]),
        (
            "another address than the record's",
            vec![
                (Topic::Servers, record("b", B, 2)),
                draining("b", "10.0.0.9:6443", SINCE, 4),
            ],
        ),
        (
            "this server, before its start, under its ID and under another one",
            vec![
                (Topic::Servers, record("a", OWN, 2)),
                (Topic::Servers, record("a-before", OWN, 3)),
                draining("a", OWN, SINCE, 4),
                draining("a-before", OWN, SINCE, 4),
            ],
        ),
        (
            "another server is at its address now",
            vec![
                (Topic::Servers, record("b", B, 2)),
                (Topic::Live, live("b-next", B, false, 3)),
                draining("b", B, SINCE, 4),
            ],
        ),
    ] {
        assert_eq!(asked(&state(messages)), none(), "{what}");
    }
}

#[test]
fn a_history_of_another_etcd_does_not_count() {
    let void = format!(r#"{{"endpoint":"{B}","historyVoid":true,"resources":{{}}}}"#);
    let void = vec![
        (Topic::Servers, item("b", void, 2)),
        draining("b", B, SINCE, 4),
    ];
    assert_eq!(asked(&state(void)), none());

    let known = vec![
        (Topic::Servers, record("b", B, 2)),
        draining("b", B, SINCE, 4),
    ];
    let mut state = state(known);
    assert_eq!(asked(&state).len(), 1);
    take(&mut state, Topic::Servers, Event::OtherHistory);
    assert_eq!(asked(&state), none());
    take(&mut state, Topic::Servers, Event::Init);
    take(&mut state, Topic::Servers, Event::InitDone(4));
    take(&mut state, Topic::Servers, Event::Apply(record("b", B, 6)));
    assert_eq!(asked(&state), none(), "the key is from before");
    let (topic, key) = draining("b", B, SINCE + 1, 7);
    take(&mut state, topic, Event::Apply(key));
    assert_eq!(asked(&state), [("b".into(), Some(SINCE + 1))]);
}

#[test]
fn what_cannot_be_decoded_is_counted_and_leaves_what_was_known() {
    let mut state = state(vec![
        (Topic::Servers, record("b", B, 2)),
        draining("b", B, SINCE, 4),
    ]);
    let hostile = [
        "",
        "k8s:enc:aescbc",
        "null",
        r#"["10.0.0.2:6443",1]"#,
        r#"{"endpoint":"10.0.0.2:6443"}"#,
        r#"{"endpoint":"elsewhere","historyStart":1}"#,
        r#"{"endpoint":"10.0.0.2:6443","historyStart":1e400}"#,
        r#"{"endpoint":"10.0.0.2:6443","historyStart":9223372036854775808}"#,
        r#"{"endpoint":"10.0.0.2:6443","historyStart":"1"}"#,
    ];
    for (number, value) in hostile.into_iter().enumerate() {
        let revision = 5 + i64::try_from(number).unwrap();
        let event = Event::Apply(item("b", value, revision));
        assert!(!take(&mut state, Topic::Draining, event), "{value}");
        assert_eq!(state.undecodables.count, number as u64 + 1, "{value}");
    }
    assert_eq!(asked(&state), [("b".into(), Some(SINCE))]);
}

#[test]
fn only_so_many_keys_are_kept() {
    let mut state = state(vec![(Topic::Servers, record("b", B, 2))]);
    let foreign = |number: i64| {
        let (topic, key) = draining(&format!("foreign-{number}"), B, SINCE, number);
        let created = EtcdItem {
            create_revision: number,
            ..key
        };
        (topic, Event::Apply(created))
    };
    let first = draining("b", B, SINCE, 4);
    take(&mut state, first.0, Event::Apply(first.1));
    for (topic, event) in (10..500).map(foreign) {
        take(&mut state, topic, event);
    }
    assert_eq!(state.draining.iter().count(), 64);
    assert_eq!(state.undecodables.count, 490 - 63);
    assert_eq!(asked(&state), [("b".into(), Some(SINCE))]);
}
