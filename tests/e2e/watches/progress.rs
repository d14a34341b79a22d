//! An etcd whose requested progress overtakes changes, like 3.4 and 3.5 (etcd#15220). The proxy does not trust this
//! progress, and loses no change when a connection breaks.

use crate::etcd::following::{Following, LISTED, SERVERS};
use testkit::cluster::LONG;
use testkit::wait::eventually;

#[tokio::test]
async fn a_change_that_arrives_after_later_requested_progress_is_not_lost() {
    let following = Following::start("3.4.23").await;
    following.etcd.withhold();
    following.advance_to(LISTED + 2);
    let late = following.put_record("late", 20001);
    following.advance_to(LISTED + 10);
    following.until_progress_was_taken_in().await;
    following.until_known(&[]).await;
    following.etcd.deliver();
    following.until_known(&["late"]).await;

    // Another one, that the break comes before.
    following.etcd.withhold();
    following.put_record("later", 20002);
    following.advance_to(LISTED + 20);
    following.until_progress_was_taken_in().await;
    following.etcd.cut();
    following.until_watched_from(&[LISTED + 1, late + 1]).await;
    following.etcd.deliver();
    following.until_known(&["late", "later"]).await;
}

#[tokio::test]
async fn a_change_that_a_break_kept_away_after_later_requested_progress_is_not_lost() {
    let following = Following::start("3.5.12").await;
    following.etcd.withhold();
    following.advance_to(LISTED + 2);
    following.put_record("late", 20001);
    following.advance_to(LISTED + 10);
    following.until_progress_was_taken_in().await;
    following.etcd.cut();
    following
        .until_watched_from(&[LISTED + 1, LISTED + 1])
        .await;
    following.etcd.deliver();
    following.until_known(&["late"]).await;
}

#[tokio::test]
async fn an_etcd_that_says_no_version_is_not_asked_and_does_not_count() {
    let following = Following::start("").await;
    following.etcd.withhold();
    following.put_record("late", 20001);
    following.advance_to(LISTED + 10);
    following.etcd.announce();
    let gets = following.etcd.asked(SERVERS).gets;
    // Instead of asking for progress; and once more, what was announced has been taken in.
    eventually("the connection is asked", LONG, async || {
        following.etcd.asked(SERVERS).gets >= gets + 2
    })
    .await;
    following.etcd.cut();
    following
        .until_watched_from(&[LISTED + 1, LISTED + 1])
        .await;
    following.etcd.deliver();
    following.until_known(&["late"]).await;
    assert_eq!(following.etcd.asked(SERVERS).progress, 0);
}

#[tokio::test]
async fn requested_progress_of_an_etcd_that_orders_it_counts() {
    let following = Following::start("3.5.13").await;
    following.advance_to(LISTED + 10);
    following.until_progress_was_taken_in().await;
    following.etcd.cut();
    following
        .until_watched_from(&[LISTED + 1, LISTED + 11])
        .await;
    let known = following.put_record("new", 20001);
    following.until_known(&["new"]).await;
    assert_eq!(known, LISTED + 11);
}
