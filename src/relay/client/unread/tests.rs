use std::pin::pin;
use std::task::Context;

use prometheus::Registry;

use super::super::connection::*;
use super::*;
use crate::relay::upstream::{LONG_RUNNING_WINDOW, STREAM_WINDOW};

fn unread() -> Arc<UnreadBudget> {
    Arc::new(UnreadBudget::new(
        UnreadMetrics::new(&Registry::new()).unwrap(),
    ))
}

/// An answer of `weight` on `outflow` that waits.
fn waits(unread: &Arc<UnreadBudget>, outflow: &Arc<Outflow>, weight: usize, long: bool) -> u64 {
    unread.list(Wait::new(outflow, weight, long, Waker::noop()))
}

fn is_listed(unread: &UnreadBudget, id: u64) -> bool {
    lock(&unread.0).waits.contains_key(&id)
}

fn seconds(unread: &UnreadBudget, count: u32) {
    for _ in 0..count {
        lock(&unread.0).tick();
    }
}

const MIB: usize = 1 << 20;

#[tokio::test]
async fn who_takes_nothing_for_a_minute_is_given_up_unless_it_is_long_running() {
    let (unread, outflow) = (unread(), Arc::default());
    let short = waits(&unread, &outflow, MIB, false);
    let long = waits(&unread, &outflow, MIB, true);
    seconds(&unread, STALL_SECONDS - 1);
    assert!(is_listed(&unread, short));
    let late = waits(&unread, &outflow, MIB, false);
    seconds(&unread, STALL_SECONDS - 1);
    assert!(!is_listed(&unread, short));
    assert!(is_listed(&unread, long) && is_listed(&unread, late));
    assert_eq!(lock(&unread.0).held, 2 * MIB);
    for id in [short, long, late] {
        lock(&unread.0).remove(id);
    }
    assert_eq!(lock(&unread.0).held, 0);
    assert_eq!(lock(&unread.0).shares, 0);
    assert!(!lock(&unread.0).tick(), "nothing is left");
}

#[tokio::test]
async fn over_budget_those_are_given_up_that_hold_more_than_their_share() {
    let unread = unread();
    let (modest, greedy, peer) = (Arc::default(), Arc::default(), Arc::<Outflow>::default());
    peer.mark_as_peer();
    let slow = waits(&unread, &modest, MIB, false);
    let users = waits(&unread, &peer, 150 * MIB, false);
    seconds(&unread, 30);
    let theirs: Vec<_> = (0..110)
        .map(|_| waits(&unread, &greedy, MIB, false))
        .collect();
    // Whoever has waited longest is not the one who is to blame.
    assert!(is_listed(&unread, slow) && is_listed(&unread, users));
    let given_up = theirs.iter().filter(|id| !is_listed(&unread, **id));
    assert!(given_up.count() > 30);
    assert!(!is_listed(&unread, theirs[0]) && is_listed(&unread, theirs[109]));
    assert!(lock(&unread.0).held <= BUDGET);
}

#[tokio::test]
async fn of_those_that_hold_no_more_than_their_share_the_longest_wait_is_given_up() {
    let unread = unread();
    let each = 8 * MIB;
    let mut all = Vec::new();
    for number in 0..=BUDGET / each {
        all.push(waits(&unread, &Arc::default(), each, number % 2 == 0));
        if number == 3 {
            seconds(&unread, 5);
        }
    }
    assert!(!is_listed(&unread, all[0]) && is_listed(&unread, *all.last().unwrap()));
}

#[tokio::test]
async fn far_over_budget_whoever_holds_most_is_given_up_first() {
    let unread = unread();
    // By half events that are kept: they are spared.
    lock(&unread.0).held = HARD_LIMIT - 5 * MIB;
    let slow = waits(&unread, &Arc::default(), MIB, false);
    seconds(&unread, 5);
    let larger = waits(&unread, &Arc::default(), 10 * MIB, false);
    assert!(
        !is_listed(&unread, larger),
        "nobody is above the share, and it holds most"
    );
    assert!(is_listed(&unread, slow), "although it has waited longest");
}

#[tokio::test]
async fn what_waits_no_more_counts_no_more_and_who_was_taken_off_the_list_is_given_up() {
    let (unread, outflow) = (unread(), Arc::default());
    let mut answer_writer = AnswerWriter::new(&unread, &outflow, true, None);
    answer_writer.reserve(100).await.unwrap();
    let mut never = pin!(std::future::pending::<pingora_core::Result<()>>());
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..2 {
        let waiting = pin!(answer_writer.write(never.as_mut())).poll(&mut context);
        assert!(waiting.is_pending());
        assert!(lock(&unread.0).held > 0);
        answer_writer.write(pin!(async { Ok(()) })).await.unwrap();
        assert_eq!(lock(&unread.0).held, 0);
    }
    let waiting = pin!(answer_writer.write(never.as_mut())).poll(&mut context);
    assert!(waiting.is_pending());
    let id = answer_writer.waits.unwrap();
    lock(&unread.0).give_up(id, ResetReason::Budget);
    assert!(answer_writer.write(never.as_mut()).await.is_err());
}

#[tokio::test]
async fn half_events_are_kept_within_the_share_of_a_connection_and_the_budget() {
    let unread = unread();
    let outflows: Vec<Arc<Outflow>> = (0..10).map(|_| Arc::default()).collect();
    let writer = |outflow| AnswerWriter::new(&unread, outflow, true, None);
    let mut writers: Vec<_> = outflows.iter().map(writer).collect();
    assert!(writers[0].keeps(COMMON_EVENT - 1));
    assert_eq!(lock(&unread.0).held, 0);
    assert!(!writers[0].keeps(17 * MIB) && writers[0].keeps(16 * MIB));
    assert!(writers[0].keeps(MIB));
    assert_eq!(lock(&unread.0).held, MIB);
    let kept = writers.iter_mut().map(|writer| writer.keeps(16 * MIB));
    assert_eq!(kept.filter(|kept| *kept).count() * 16 * MIB, KEPT);
    drop(writers);
    assert_eq!(lock(&unread.0).held, 0);
    assert_eq!(lock(&unread.0).shares, 0);
}

#[test]
fn small_pieces_weigh_more_and_short_answers_less() {
    let weight = |length, piece| unread_weight(STREAM_WINDOW as usize, length, piece);
    let usual = weight(None, usize::MAX);
    assert!(weight(Some(1000), 1000) < usual / 2);
    assert!(weight(None, 10) > 4 * usual);
    assert!(weight(Some(usize::MAX), 0) >= usual - EACH_PIECE);
}

#[test]
fn thousands_of_watches_may_wait_at_once() {
    let large_event = unread_weight(LONG_RUNNING_WINDOW as usize, None, usize::MAX);
    assert!(6_500 * (LONG_RUNNING + large_event) < BUDGET);
}

#[tokio::test]
async fn a_connection_takes_no_more_while_its_socket_is_full() {
    let outflow = Outflow::default();
    outflow.hand_over(10 * BACKLOG);
    assert!(outflow.has_room(), "nobody knows that it is full");
    outflow.wrote(100);
    outflow.hand_over(BACKLOG - 1);
    outflow.is_full();
    assert!(outflow.has_room());
    outflow.hand_over(1);
    let mut room = pin!(outflow.until(|| outflow.has_room()));
    let mut context = Context::from_waker(Waker::noop());
    assert!(room.as_mut().poll(&mut context).is_pending());
    outflow.wrote(1);
    assert!(room.poll(&mut context).is_ready());
    // All that was handed over before is written, or the socket would be full.
    outflow.hand_over(1);
    assert_eq!(outflow.backlog(), 1);
}
