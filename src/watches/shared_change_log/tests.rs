use super::*;

const SERVER: ([u8; 4], u16) = ([127, 0, 0, 1], 6443);

fn at(revision: i64) -> WatchPosition {
    WatchPosition { revision, seen: 1 }
}

fn anchor(revision: i64, key: &str) -> Anchor {
    Anchor {
        key: key.to_owned(),
        revision,
    }
}

fn append(
    log: &SharedChangeLog,
    changes: &[(i64, &'static str)],
    through: Option<i64>,
    newest: i64,
) {
    let changes = changes.iter().map(|(at, key)| (*at, (*key).into()));
    log.append(log.next_revision(), changes, through, Some(newest));
}

fn widgets() -> WatchedResource {
    WatchedResource {
        group: "example.test".into(),
        version: "v1".into(),
        resource: "widgets".into(),
    }
}

/// A watch at `server` that ends.
fn register(log: &SharedChangeLog, server: SocketAddr, at: WatchPosition, anchor: Option<&Anchor>) {
    log.register(EndingWatch {
        server,
        resource: &widgets(),
        position: at,
        anchor,
        kind_wanted: false,
    });
}

async fn is_caught_up(log: &SharedChangeLog) -> bool {
    let caught_up = log.caught_up(SERVER.into(), false);
    timeout(Duration::ZERO, caught_up).await.is_ok()
}

#[tokio::test]
async fn what_is_caught_up_with_is_not_how_far_etcd_is() {
    let log = SharedChangeLog::new("/registry/pods/");
    register(&log, SERVER.into(), at(5), None);
    log.proved(SERVER.into(), true);
    assert!(!is_caught_up(&log).await);
    append(&log, &[], None, 9);
    append(&log, &[(5, "a/x")], Some(5), 9);
    assert!(!is_caught_up(&log).await, "etcd was at 9");
    append(&log, &[], Some(10), 10);
    assert!(is_caught_up(&log).await);
    append(&log, &[(12, "a/x")], Some(12), 30);
    assert!(is_caught_up(&log).await, "it was once");
}

#[tokio::test]
async fn a_watch_waits_for_the_proof_of_its_server_and_for_the_kind_if_it_wants_it() {
    let log = SharedChangeLog::new("/registry/pods/");
    let ending = EndingWatch {
        server: SERVER.into(),
        resource: &widgets(),
        position: at(5),
        anchor: None,
        kind_wanted: true,
    };
    log.register(ending);
    append(&log, &[], Some(10), 10);
    let other = ([127, 0, 0, 2], 6443).into();
    register(&log, other, at(5), None);
    assert_eq!(log.proof_jobs().len(), 2);
    log.proved(SERVER.into(), false);
    assert!(is_caught_up(&log).await, "it knows the kind");
    let wants_kind = async || {
        let caught_up = log.caught_up(SERVER.into(), true);
        timeout(Duration::ZERO, caught_up).await.is_ok()
    };
    assert!(!wants_kind().await);
    log.named(Some("Widget".to_owned()));
    assert!(wants_kind().await);
    let [left] = &log.proof_jobs()[..] else {
        panic!("the other server");
    };
    assert_eq!(left.server, other);
    log.register(ending);
    assert_eq!(log.kind().as_deref(), Some("Widget"));
}

#[tokio::test]
async fn nobody_waits_for_what_was_given_up_but_a_new_object_is_looked_for() {
    let log = SharedChangeLog::new("/registry/pods/");
    log.register(EndingWatch {
        server: SERVER.into(),
        resource: &widgets(),
        position: at(5),
        anchor: None,
        kind_wanted: true,
    });
    append(&log, &[], Some(10), 10);
    log.give_up();
    let caught_up = log.caught_up(SERVER.into(), true);
    assert!(timeout(Duration::ZERO, caught_up).await.is_ok());
    assert!(log.proof_jobs().is_empty() && log.kind().is_none());
    register(&log, SERVER.into(), at(7), Some(&anchor(7, "a/x")));
    assert_eq!(log.proof_jobs().len(), 1);
}

#[test]
fn it_begins_where_the_first_needs_it_and_goes_on_where_it_stopped() {
    let log = SharedChangeLog::new("/registry/pods/");
    for revision in [7, 5, 6] {
        register(&log, SERVER.into(), at(revision), None);
    }
    assert_eq!(log.next_revision(), 5);
    append(&log, &[(5, "a/x")], Some(8), 8);
    assert_eq!(log.next_revision(), 9);
    log.restart_from(20);
    assert_eq!(log.next_revision(), 20);
    assert_eq!(
        log.newest_safe(at(8), "", SERVER.into(), None),
        Err(Withheld::NotFound)
    );
    log.proved(SERVER.into(), true);
    assert_eq!(
        log.newest_safe(at(8), "", SERVER.into(), None),
        Err(Withheld::Forgotten)
    );
}

#[test]
fn one_server_s_objects_say_nothing_of_another_s() {
    let log = SharedChangeLog::new("/registry/pods/");
    let other = ([127, 0, 0, 2], 6443).into();
    register(&log, SERVER.into(), at(5), Some(&anchor(5, "a/x")));
    register(&log, other, at(5), Some(&anchor(5, "a/y")));
    assert_eq!(log.proof_jobs().len(), 2);
    append(&log, &[(5, "a/x")], Some(9), 9);
    assert_eq!(log.newest_safe(at(5), "", SERVER.into(), None), Ok(9));
    assert_eq!(
        log.newest_safe(at(5), "", other, None),
        Err(Withheld::NotFound)
    );
    let own = anchor(5, "a/x");
    assert_eq!(log.newest_safe(at(5), "", other, Some(&own)), Ok(9));
}

#[test]
fn what_a_server_delivered_to_others_counts_for_a_watch_that_saw_nothing() {
    let log = SharedChangeLog::new("/registry/pods/");
    let quiet = WatchPosition {
        revision: 5,
        seen: 0,
    };
    for delivered in [anchor(2, "a/x"), anchor(3, "a/y")] {
        register(&log, SERVER.into(), quiet, Some(&delivered));
    }
    assert_eq!(log.proof_jobs()[0].candidates.as_ref().unwrap().len(), 2);
    append(&log, &[], Some(9), 9);
    let answer = || log.newest_safe(quiet, "", SERVER.into(), None);
    assert_eq!(answer(), Err(Withheld::NotFound));
    log.proved(SERVER.into(), true);
    assert_eq!(answer(), Ok(9));
}

#[test]
fn of_many_objects_the_newest_are_looked_for() {
    let log = SharedChangeLog::new("/registry/pods/");
    for revision in 1..100 {
        for _ in 0..2 {
            register(
                &log,
                SERVER.into(),
                at(revision),
                Some(&anchor(revision, "a/x")),
            );
        }
    }
    let jobs = log.proof_jobs();
    let candidates = jobs[0].candidates.as_ref().unwrap();
    let revisions: Vec<_> = candidates.iter().map(|anchor| anchor.revision).collect();
    assert_eq!(revisions, (92..100).rev().collect::<Vec<_>>());
}
