//! Apiservers that only their keys below `masterleases/` tell of.

use super::*;
use crate::cluster::bare::MAX_ASKED;
use crate::cluster::unproxied::{BareAnswer, NotRead};

const ENDPOINTS: &str = r#"{"apiVersion":"v1","kind":"Endpoints"}"#;

fn lease(ip: &str) -> (Topic, EtcdItem) {
    (Topic::MasterLeases, item(ip, ENDPOINTS, 3))
}

fn candidates(state: &ClusterState) -> Vec<String> {
    let candidates = state.candidates(Some("a")).into_keys();
    let bare = candidates.filter(|it| it.id.is_none());
    bare.map(|it| it.address.to_string()).collect()
}

fn read() -> BareAnswer {
    Ok(NativePeer {
        address: B.parse().unwrap(),
        created: 1,
        served: Arc::new([HPA.owned(), WIDGETS.owned()].into()),
        binary_version: "v1.20.2".into(),
        version: Some("1.20".parse().unwrap()),
        read: Instant::now(),
        since: Instant::now(),
    })
}

fn answers(state: &mut ClusterState, answer: BareAnswer) {
    let created = answer.as_ref().map_or(1, |read| read.created);
    state.bare_answered((B.parse().unwrap(), created), answer, Instant::now());
}

fn snapshot(state: &ClusterState) -> Snapshot {
    state.compile(Some("a"), &view(&[]))
}

/// Whether requests for what only B serves wait for it.
fn is_absent(state: &ClusterState) -> bool {
    holders(&snapshot(state)) == (vec![], true)
}

#[test]
fn it_is_unknown_what_it_serves_until_it_was_asked_and_then_it_is_a_target() {
    let mut state = state(vec![lease("10.0.0.2")]);
    assert_eq!(candidates(&state), [B]);
    let asked = snapshot(&state);
    assert!(asked.peer_unknown && asked.servers.is_empty());
    answers(&mut state, read());
    let known = snapshot(&state);
    assert!(!known.peer_unknown);
    assert_eq!(holders(&known), (vec![B], false));
    assert_eq!(known.servers[0].kind, ServerKind::Bare);
}

#[test]
fn what_it_served_is_unknown_once_another_process_is_there() {
    let (topic, first) = lease("10.0.0.2");
    let mut state = state(vec![(topic, first.clone())]);
    answers(&mut state, read());
    take(&mut state, topic, Event::Delete("10.0.0.2".into()));
    take(&mut state, topic, Event::Apply(created_anew(first)));
    let unknown = snapshot(&state);
    assert!(unknown.peer_unknown && unknown.targets.is_empty() && is_absent(&state));
    let asked = state.candidates(Some("a")).into_keys();
    assert_eq!(asked.map(|it| it.created).collect::<Vec<_>>(), [7]);
    let read = read().map(|read| NativePeer { created: 7, ..read });
    answers(&mut state, read);
    let known = snapshot(&state);
    assert!(!known.peer_unknown && holders(&known) == (vec![B], false));
}

/// From 1.36 on every apiserver has such an entry, also one whose proxy is not there any more.
#[test]
fn the_entry_of_an_apiserver_without_its_proxy_explains_nothing() {
    let mut state = state(vec![
        (Topic::Servers, record("b", B, 2)),
        entry("b", B, 4),
        lease("10.0.0.2"),
    ]);
    assert_eq!(candidates(&state), [B]);
    assert!(snapshot(&state).peer_unknown);
    let kept = state.unreachable_records(Some("a"));
    assert_eq!(kept, [("b".to_owned(), 2)].into());
    answers(&mut state, read());
    let known = snapshot(&state);
    assert!(!known.peer_unknown);
    assert_eq!(holders(&known), (vec![B], false));
    assert_eq!(known.servers.len(), 1);
}

#[test]
fn ours_and_those_of_proxies_and_native_peers_are_explained() {
    let mut explained = Vec::from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"].map(lease));
    explained.push((Topic::Live, live("b", B, true, 3)));
    explained.push(entry("c", "10.0.0.3:6443", 4));
    // At another port there is another server.
    explained.push((Topic::Live, live("d", "10.0.0.4:7443", true, 5)));
    let mut state = state(explained);
    assert_eq!(candidates(&state), ["10.0.0.4:6443"]);
    take(&mut state, Topic::Live, Event::Delete("b".into()));
    assert_eq!(candidates(&state), [B, "10.0.0.4:6443"]);
}

#[test]
fn where_a_proxy_answered_there_is_no_server_and_where_nobody_does_nothing_is_certain() {
    for (answers_of, unknown) in [
        (vec![Err(NotRead::Proxy)], false),
        (vec![Err(NotRead::Proxy), Err(NotRead::Nobody)], false),
        (vec![Err(NotRead::Silent)], true),
        (vec![Err(NotRead::Silent), Err(NotRead::Nobody)], true),
    ] {
        let mut state = state(vec![lease("10.0.0.2")]);
        for answer in answers_of {
            answers(&mut state, answer);
        }
        let known = snapshot(&state);
        assert!(known.peer_unknown == unknown && known.servers.is_empty());
    }
}

#[test]
fn addresses_where_nobody_answers_may_be_those_of_proxies_that_none_advertises() {
    let mut state = state(vec![lease("10.0.0.2"), lease("10.0.0.3")]);
    let nobody = |state: &mut ClusterState, address: &str| {
        let address = address.parse().unwrap();
        state.bare_answered((address, 1), Err(NotRead::Nobody), Instant::now());
    };
    nobody(&mut state, B);
    nobody(&mut state, "10.0.0.3:6443");
    let is_unknown = |state: &ClusterState| state.has_unknown_bare_server();
    let mut proxy = |id: &str, address: &str, initialized| {
        let live = Event::Apply(live(id, address, initialized, 5));
        take(&mut state, Topic::Live, live);
        is_unknown(&state)
    };
    assert!(proxy("a", OWN, true), "one of two");
    assert!(proxy("c", "10.0.0.9:6443", false), "it is not ready");
    assert!(!proxy("c", "10.0.0.9:6443", true));
    take(
        &mut state,
        lease("10.0.0.9").0,
        Event::Apply(lease("10.0.0.9").1),
    );
    assert!(is_unknown(&state), "its apiserver advertises its address");
    state.ignored_addresses = Arc::new([B.parse::<SocketAddr>().unwrap().ip()].into());
    assert!(!is_unknown(&state) && candidates(&state) == ["10.0.0.3:6443"]);
}

#[test]
fn what_is_ignored_is_no_server_even_if_it_was_read() {
    let mut state = state(vec![lease("10.0.0.2")]);
    answers(&mut state, read());
    assert_eq!(snapshot(&state).targets.len(), 1);
    state.ignored_addresses = Arc::new([B.parse::<SocketAddr>().unwrap().ip()].into());
    assert!(state.expire_bare(Instant::now()));
    let known = snapshot(&state);
    assert!(known.servers.is_empty() && !known.peer_unknown);
}

#[test]
fn while_it_does_not_answer_nothing_is_certain_but_where_it_is_known_from_before() {
    let mut state = state(vec![lease("10.0.0.2")]);
    answers(&mut state, Err(NotRead::Silent));
    assert!(snapshot(&state).peer_unknown && snapshot(&state).servers.is_empty());
    let known = Event::Apply(record("b", B, 4));
    take(&mut state, Topic::Servers, known);
    assert!(!snapshot(&state).peer_unknown && is_absent(&state));
    take(&mut state, Topic::Servers, Event::Delete("b".into()));
    answers(&mut state, read());
    answers(&mut state, Err(NotRead::Silent));
    assert!(!snapshot(&state).peer_unknown && is_absent(&state));
}

#[test]
fn an_apiserver_that_cannot_be_read_is_no_target_and_nothing_is_certain() {
    let mut state = state(vec![lease("10.0.0.2")]);
    answers(&mut state, Err(NotRead::Unreadable));
    assert!(snapshot(&state).peer_unknown && snapshot(&state).targets.is_empty());
    answers(&mut state, read());
    answers(&mut state, Err(NotRead::Unreadable));
    assert!(snapshot(&state).peer_unknown && is_absent(&state));
}

#[test]
fn what_it_served_is_remembered_for_the_grace_after_it_is_gone() {
    let mut state = state(vec![lease("10.0.0.2")]);
    answers(&mut state, read());
    answers(&mut state, Err(NotRead::Nobody));
    assert!(is_absent(&state), "its key is still there");
    // While it is, nothing ends.
    let later = Instant::now() + 2 * GRACE;
    state.expire(later);
    assert!(is_absent(&state));
    let at = |second| later + Duration::from_secs(second);
    for second in 0..20 {
        for topic in [Topic::Live, Topic::MasterLeases] {
            state.take((topic, Event::Progress(9)), at(second));
        }
    }
    state.expire(at(20));
    let delete = Event::Delete("10.0.0.2".into());
    state.take((Topic::MasterLeases, delete), at(20));
    assert!(is_absent(&state) && !snapshot(&state).peer_unknown);
    assert!(candidates(&state).is_empty());
    assert_eq!(state.next_expiry(), Some(at(20) + GRACE));
    assert!(state.expire(at(20) + GRACE));
    assert!(snapshot(&state).servers.is_empty());
}

#[test]
fn a_proxy_beside_it_replaces_what_was_read_of_it() {
    let mut state = state(vec![lease("10.0.0.2")]);
    answers(&mut state, read());
    let apply = |item| Event::Apply(item);
    let empty = r#"{"endpoint":"10.0.0.2:6443","resources":{}}"#;
    take(&mut state, Topic::Servers, apply(item("b", empty, 4)));
    take(&mut state, Topic::Live, apply(live("b", B, true, 5)));
    assert!(state.expire_bare(Instant::now()));
    let known = snapshot(&state);
    assert_eq!(known.servers.len(), 1);
    assert!(known.servers[0].kind.has_proxy() && known.holders(HPA).is_none());
}

#[test]
fn what_is_read_of_it_replaces_the_record_of_its_former_proxy_as_long_as_it_answers() {
    let mut state = state(vec![lease("10.0.0.2"), (Topic::Servers, record("b", B, 2))]);
    let ids = |state: &ClusterState| {
        let servers = snapshot(state).servers.into_iter();
        servers.map(|it| it.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&state), ["b"]);
    answers(&mut state, read());
    assert_eq!(ids(&state), [B]);
    answers(&mut state, Err(NotRead::Nobody));
    assert_eq!(ids(&state), [B, "b"]);
    assert!(is_absent(&state));
}

#[test]
fn the_newest_record_at_its_address_must_not_end_while_it_lives_and_cannot_be_read() {
    let mut state = state(vec![
        lease("10.0.0.2"),
        (Topic::Servers, record("a", OWN, 2)),
        (Topic::Servers, record("b-before", B, 2)),
        (Topic::Servers, record("b", B, 3)),
        (Topic::Servers, record("elsewhere", "10.0.0.9:6443", 4)),
    ]);
    let kept = |state: &ClusterState| state.unreachable_records(Some("a"));
    assert_eq!(kept(&state), [("b".to_owned(), 3)].into());
    answers(&mut state, Err(NotRead::Nobody));
    assert_eq!(kept(&state), [("b".to_owned(), 3)].into());
    answers(&mut state, read());
    assert!(kept(&state).is_empty(), "it tells itself");
    answers(&mut state, Err(NotRead::Nobody));
    let back = Event::Apply(live("b", B, true, 5));
    take(&mut state, Topic::Live, back);
    assert!(kept(&state).is_empty(), "its proxy is back");
    take(&mut state, Topic::Live, Event::Delete("b".into()));
    assert_eq!(kept(&state).len(), 1);
    let delete = Event::Delete("10.0.0.2".into());
    take(&mut state, Topic::MasterLeases, delete);
    assert!(kept(&state).is_empty(), "its apiserver is gone");
}

#[test]
fn a_record_at_a_former_port_of_a_proxy_that_lives_may_end() {
    let mut state = state(vec![
        lease("10.0.0.2"),
        (Topic::Servers, record("former", "10.0.0.2:7443", 2)),
    ]);
    assert_eq!(state.unreachable_records(Some("a")).len(), 1);
    take(&mut state, Topic::Live, Event::Apply(live("b", B, true, 5)));
    assert!(state.unreachable_records(Some("a")).is_empty());
}

#[test]
fn what_was_read_through_a_load_balancer_is_forgotten_when_a_proxy_answers() {
    let mut state = state(vec![lease("10.0.0.2")]);
    answers(&mut state, read());
    assert_eq!(snapshot(&state).targets.len(), 1);
    answers(&mut state, Err(NotRead::Proxy));
    assert!(snapshot(&state).servers.is_empty());
}

#[test]
fn addresses_that_no_server_can_have_are_named_and_not_asked() {
    let odd = [
        "",
        "x",
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "::",
        "169.254.169.254",
        "fe80::1",
        "224.0.0.1",
        "255.255.255.255",
        "10.0.0.7:80",
        "10.0.0.7/..",
        "::ffff:127.0.0.1",
    ];
    let mut all = Vec::from(odd.map(lease));
    all.push((Topic::MasterLeases, item("10.0.0.5", "garbage", 3)));
    all.push((Topic::MasterLeases, item("10.0.0.6", "k8s:enc:x", 3)));
    all.push(lease("fd00::8"));
    let state = state(all);
    let asked = ["10.0.0.5:6443", "10.0.0.6:6443", "[fd00::8]:6443"];
    assert_eq!(candidates(&state), asked);
    // The value of 10.0.0.5 too.
    assert_eq!(state.undecodables.list().len(), odd.len() + 1);
}

#[test]
fn only_so_many_are_asked_and_of_the_others_nothing_is_certain() {
    let all = (0..1000).map(|n| lease(&format!("10.1.{}.{}", n / 250, n % 250 + 1)));
    let mut state = state(all.collect());
    let asked = candidates(&state);
    assert_eq!(asked.len(), MAX_ASKED);
    for address in asked {
        state.bare_answered(
            (address.parse().unwrap(), 1),
            Err(NotRead::Nobody),
            Instant::now(),
        );
    }
    assert!(snapshot(&state).peer_unknown);
}

#[test]
fn where_etcd_does_not_permit_to_read_them_there_are_none() {
    let mut state = ClusterState::new(OWN.parse().unwrap(), 0, TTL, GRACE);
    let required = Topic::all(0).filter(|topic| !topic.is_optional());
    for topic in required {
        take(&mut state, topic, Event::Init);
        take(&mut state, topic, Event::InitDone(1));
    }
    assert!(!state.synced());
    let (topic, item) = lease("10.0.0.2");
    assert!(take(&mut state, topic, Event::Forbidden));
    assert!(!take(&mut state, topic, Event::Forbidden));
    assert!(state.synced());
    take(&mut state, topic, Event::Init);
    take(&mut state, topic, Event::InitApply(item));
    take(&mut state, topic, Event::InitDone(5));
    assert_eq!(candidates(&state), [B], "it was granted");
    take(&mut state, topic, Event::Forbidden);
    assert!(candidates(&state).is_empty());
}

#[test]
fn keys_that_all_vanish_after_a_gap_count_until_their_apiservers_had_time_to_write() {
    let mut state = state(vec![lease("10.0.0.2")]);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    state.take((Topic::Live, Event::Progress(4)), at(0));
    state.take((Topic::MasterLeases, Event::Progress(4)), at(0));
    answers(&mut state, read());
    let delete = Event::Delete("10.0.0.2".into());
    state.take((Topic::MasterLeases, delete.clone()), at(60));
    assert_eq!(candidates(&state), [B]);
    // It is used on, and asked whether it is the same.
    let (topic, first) = lease("10.0.0.2");
    state.take((topic, Event::Apply(created_anew(first))), at(61));
    let used = snapshot(&state);
    assert!(used.targets.len() == 1 && used.peer_unknown);
    state.take((topic, delete), at(62));
    state.expire(at(77));
    assert!(candidates(&state).is_empty());
}

#[test]
fn a_proxy_that_does_not_tell_of_the_process_beside_it_proves_nothing() {
    let (topic, first) = lease("10.0.0.2");
    for answer in [NotRead::Proxy, NotRead::Silent, NotRead::Nobody] {
        let mut state = state(vec![
            (topic, first.clone()),
            (Topic::Servers, record("b", B, 2)),
            (Topic::Live, live("b", B, true, 3)),
        ]);
        // It drains, or cannot write any more.
        take(&mut state, Topic::Live, Event::Delete("b".into()));
        answers(&mut state, Err(answer));
        assert!(
            !snapshot(&state).peer_unknown,
            "{answer:?}: its record tells"
        );
        take(&mut state, topic, Event::Delete("10.0.0.2".into()));
        assert!(!snapshot(&state).peer_unknown);
        let (address, anew) = (B.parse().unwrap(), created_anew(first.clone()));
        take(&mut state, topic, Event::Apply(anew));
        state.bare_answered((address, 7), Err(answer), Instant::now());
        assert!(
            snapshot(&state).peer_unknown,
            "{answer:?}: it may have been upgraded"
        );
        take(&mut state, Topic::Live, Event::Apply(live("b", B, true, 8)));
        assert!(!snapshot(&state).peer_unknown);
    }
}

#[test]
fn an_apiserver_that_wrote_its_key_anew_after_etcd_had_paused_is_the_same() {
    let (topic, first) = lease("10.0.0.2");
    let mut state = state(vec![
        (topic, first.clone()),
        (Topic::Servers, record("b", B, 2)),
        (Topic::Live, live("b", B, true, 3)),
    ]);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    take(&mut state, Topic::Live, Event::Delete("b".into()));
    state.take((Topic::Live, Event::Progress(4)), at(0));
    state.take((topic, Event::Progress(4)), at(0));
    for (second, created) in [(60, 7), (120, 9)] {
        let delete = Event::Delete("10.0.0.2".into());
        state.take((topic, delete), at(second));
        let anew = EtcdItem {
            create_revision: created,
            ..first.clone()
        };
        state.take((topic, Event::Apply(anew)), at(second + 1));
        let asked = (B.parse().unwrap(), created);
        state.bare_answered(asked, Err(NotRead::Silent), at(second + 1));
        assert!(!snapshot(&state).peer_unknown, "{second}");
    }
}

#[test]
fn what_a_former_process_served_is_not_remembered_for_as_long_as_the_next_one_lives() {
    let (topic, first) = lease("10.0.0.2");
    let mut state = state(vec![(topic, first.clone())]);
    answers(&mut state, read());
    take(&mut state, topic, Event::Apply(created_anew(first)));
    let address: SocketAddr = B.parse().unwrap();
    let later = Instant::now() + GRACE;
    state.bare_answered(
        (address, 7),
        Err(NotRead::Nobody),
        later - Duration::from_secs(9),
    );
    assert!(is_absent(&state));
    state.take((topic, Event::Progress(9)), later);
    assert!(state.expire_bare(later + Duration::from_secs(9)));
    assert!(snapshot(&state).holders(HPA).is_none());
}
