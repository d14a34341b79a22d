use super::*;

fn at(revision: i64) -> WatchPosition {
    WatchPosition { revision, seen: 1 }
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

async fn is_caught_up(log: &SharedChangeLog) -> bool {
    timeout(Duration::ZERO, log.caught_up()).await.is_ok()
}

#[tokio::test]
async fn what_is_caught_up_with_is_not_how_far_etcd_is() {
    let log = SharedChangeLog::new("/registry/pods/");
    log.register(5);
    assert!(!is_caught_up(&log).await);
    append(&log, &[], None, 9);
    append(&log, &[(5, "a/x")], Some(5), 9);
    assert!(!is_caught_up(&log).await, "etcd was at 9");
    append(&log, &[], Some(10), 10);
    assert!(is_caught_up(&log).await);
    append(&log, &[(12, "a/x")], Some(12), 30);
    assert!(is_caught_up(&log).await, "it was once");
}

#[test]
fn it_begins_where_the_first_needs_it_and_goes_on_where_it_stopped() {
    let log = SharedChangeLog::new("/registry/pods/");
    for revision in [7, 5, 6] {
        log.register(revision);
    }
    assert_eq!(log.next_revision(), 5);
    append(&log, &[(5, "a/x")], Some(8), 8);
    assert_eq!(log.next_revision(), 9);
    log.restart_from(20);
    assert_eq!(log.next_revision(), 20);
    let answer = |stored_here| log.newest_safe(at(8), "", stored_here);
    assert_eq!(answer(false), Err(Withheld::NotFound));
    assert_eq!(answer(true), Err(Withheld::Forgotten));
}
