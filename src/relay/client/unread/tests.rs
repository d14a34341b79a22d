use super::*;
use prometheus::Registry;

fn unread() -> Arc<UnreadBudget> {
    Arc::new(UnreadBudget::new(
        UnreadMetrics::new(&Registry::new()).unwrap(),
    ))
}

/// An answer of `weight` on `outflow` that waits.
fn waits(
    unread: &Arc<UnreadBudget>,
    outflow: &Arc<Outflow>,
    weight: usize,
    long: bool,
) -> Arc<WaitingAnswer> {
    unread.list(WaitingAnswer::new(outflow, weight, long, Waker::noop()))
}

fn seconds(unread: &UnreadBudget, count: u32) {
    for _ in 0..count {
        unread.tick();
    }
}

const MIB: usize = 1 << 20;

#[tokio::test]
async fn who_takes_nothing_for_a_minute_is_given_up_unless_it_is_long_running() {
    let (unread, outflow) = (unread(), Arc::default());
    let short = waits(&unread, &outflow, MIB, false);
    let long = waits(&unread, &outflow, MIB, true);
    let slow = waits(&unread, &outflow, MIB, false);
    seconds(&unread, STALL_SECONDS - 1);
    assert!(short.is(LISTED));
    slow.moves.store(1, Ordering::Relaxed);
    seconds(&unread, STALL_SECONDS - 1);
    assert!(short.is(GIVEN_UP) && long.is(LISTED) && slow.is(LISTED));
    assert_eq!(unread.held.load(Ordering::Relaxed), 2 * MIB);
    for waiting in [short, long, slow] {
        unread.unlist(&waiting);
    }
    assert_eq!(unread.held.load(Ordering::Relaxed), 0);
    assert_eq!(unread.shares.load(Ordering::Relaxed), 0);
    assert!(!unread.tick(), "nothing is left");
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
    assert!(slow.is(LISTED) && users.is(LISTED));
    let given_up = theirs.iter().filter(|waiting| waiting.is(GIVEN_UP));
    assert!(given_up.count() > 30);
    assert!(theirs[0].is(GIVEN_UP) && theirs[109].is(LISTED));
    assert!(unread.held.load(Ordering::Relaxed) <= BUDGET);
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
    let given_up = all.iter().filter(|waiting| waiting.is(GIVEN_UP));
    assert!(given_up.count() >= 1);
    assert!(all[0].is(GIVEN_UP) && all.last().unwrap().is(LISTED));
}

#[tokio::test]
async fn far_over_budget_whoever_holds_most_is_given_up_first() {
    let unread = unread();
    // By answers that do not wait at this moment: they are spared.
    unread.held.store(HARD_LIMIT - 5 * MIB, Ordering::Relaxed);
    let slow = waits(&unread, &Arc::default(), MIB, false);
    seconds(&unread, 5);
    let larger = waits(&unread, &Arc::default(), 10 * MIB, false);
    assert!(
        larger.is(GIVEN_UP),
        "nobody is above the share, and it holds most"
    );
    assert!(slow.is(LISTED), "although it has waited longest");
}

#[tokio::test]
async fn what_waits_no_more_is_forgotten() {
    let (unread, outflow) = (unread(), Arc::default());
    let mut answer_writer = AnswerWriter::new(&unread, &outflow, true, None);
    answer_writer.reserve(100).await.unwrap();
    let mut never = pin!(std::future::pending::<pingora_core::Result<()>>());
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..2 {
        let waiting = pin!(answer_writer.write(never.as_mut())).poll(&mut context);
        assert!(waiting.is_pending());
        assert!(unread.held.load(Ordering::Relaxed) > 0);
        answer_writer.write(pin!(async { Ok(()) })).await.unwrap();
        seconds(&unread, IDLE_SECONDS);
        assert_eq!(unread.held.load(Ordering::Relaxed), 0);
    }
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
    outflow.hand_over(10 * outflow::BACKLOG);
    assert!(outflow.has_room(), "nobody knows that it is full");
    outflow.wrote(100);
    outflow.hand_over(outflow::BACKLOG - 1);
    assert!(outflow.is_full(Waker::noop()), "it is to be listed");
    assert!(outflow.has_room());
    outflow.hand_over(1);
    let mut room = pin!(outflow.room());
    let mut context = Context::from_waker(Waker::noop());
    assert!(room.as_mut().poll(&mut context).is_pending());
    assert!(!outflow.is_full(Waker::noop()), "it is listed");
    outflow.wrote(1);
    assert!(room.poll(&mut context).is_ready());
    // All that was handed over before is written, or the socket would be full.
    outflow.hand_over(1);
    assert_eq!(outflow.backlog(), 1);
}

#[tokio::test]
async fn a_socket_that_takes_nothing_is_cut_off_unless_something_long_is_on_it() {
    let (unread, outflow) = (unread(), Arc::<Outflow>::default());
    assert!(outflow.is_full(Waker::noop()));
    unread.list_socket(&outflow);
    let long = outflow.long_running();
    seconds(&unread, 2 * STALL_SECONDS);
    assert!(!outflow.has_ended());
    drop(long);
    seconds(&unread, 1);
    assert!(outflow.has_ended());
    outflow.end();
    assert!(!unread.tick(), "nothing is left");
}
