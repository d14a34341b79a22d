use super::*;

fn at(revision: i64) -> WatchPosition {
    WatchPosition {
        seen: 1,
        ..WatchPosition::all_of(revision)
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

async fn is_caught_up(log: &SharedChangeLog) -> bool {
    timeout(Duration::ZERO, log.complete_through(0))
        .await
        .is_ok()
}

#[tokio::test]
async fn what_is_caught_up_with_is_not_how_far_etcd_is() {
    let log = SharedChangeLog::new(PODS, 0);
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
    let log = SharedChangeLog::new(PODS, 0);
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

const PODS: &str = "/registry/pods/";

#[test]
fn who_needs_more_than_a_log_has_gets_another_one() {
    let (logs, _opened) = ChangeLogs::new();
    let first = logs.register(PODS, 7, 0).unwrap();
    // It is not read yet.
    assert!(Arc::ptr_eq(&first, &logs.register(PODS, 5, 0).unwrap()));
    append(&first, &[], Some(9), 9);
    assert!(Arc::ptr_eq(&first, &logs.register(PODS, 5, 0).unwrap()));
    let second = logs.register(PODS, 4, 0).unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    assert!(Arc::ptr_eq(&second, &logs.register(PODS, 7, 0).unwrap()));
    // No other would have more.
    second.restart_from(20);
    assert!(Arc::ptr_eq(&second, &logs.register(PODS, 3, 0).unwrap()));
}

#[test]
fn who_needs_more_than_etcd_was_asked_for_gets_another_one() {
    let (logs, _opened) = ChangeLogs::new();
    let first = logs.register(PODS, 7, 0).unwrap();
    let begin = first.next_revision();
    // etcd has not answered yet.
    let second = logs.register(PODS, 5, 0).unwrap();
    first.append(begin, [].into_iter(), Some(9), Some(9));
    append(&second, &[], Some(9), 9);
    let safe = |log: &SharedChangeLog| log.newest_safe(WatchPosition::all_of(4), "", true);
    assert_eq!(
        (safe(&first), safe(&second)),
        (Err(Withheld::Forgotten), Ok(9))
    );
}

#[test]
fn what_was_read_before_a_restore_counts_for_nothing() {
    let (logs, _opened) = ChangeLogs::new();
    let before = logs.register(PODS, 7, 0).unwrap();
    append(&before, &[], Some(9), 9);
    let after = logs.register(PODS, 7, 1).unwrap();
    assert!(!Arc::ptr_eq(&before, &after) && after.next_revision() == 7);
    assert!(Arc::ptr_eq(&after, &logs.register(PODS, 7, 1).unwrap()));
}

#[tokio::test(start_paused = true)]
async fn a_log_that_nobody_needs_ends() {
    let (logs, mut opened) = ChangeLogs::new();
    let log = logs.register(PODS, 7, 0).unwrap();
    let filled = opened.recv().await.unwrap();
    let ends = unused(&logs.logs, &filled);
    let mut ends = std::pin::pin!(ends);
    assert!(timeout(10 * UNUSED, ends.as_mut()).await.is_err());
    drop(log);
    ends.await;
    let again = logs.register(PODS, 7, 0).unwrap();
    assert!(!Arc::ptr_eq(&filled, &again));
}
