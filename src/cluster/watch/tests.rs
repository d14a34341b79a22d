use super::*;
use crate::cluster::fake::{FakeAnswer, FakeRequest, FakeSource};
use crate::cluster::source::{Batch, EtcdItem, Listing};

fn item(key: &str, revision: i64) -> EtcdItem {
    EtcdItem {
        key: key.into(),
        value: b"v".to_vec(),
        create_revision: 1,
        mod_revision: revision,
    }
}

fn put(key: &str, revision: i64) -> Batch {
    Batch {
        revision,
        changes: vec![Event::Apply(item(key, revision))],
    }
}

fn list(revision: i64) -> FakeAnswer {
    let listing = Listing {
        revision,
        items: vec![],
        rest: None,
    };
    FakeAnswer::List(Ok(listing))
}

fn progress(revision: i64) -> Result<Batch, SourceError> {
    Ok(Batch {
        revision,
        changes: vec![],
    })
}

fn broken() -> SourceError {
    SourceError::Ended("test".into())
}

/// Follows `fake` until `count` events were told.
async fn events(fake: &FakeSource, count: usize) -> Vec<Event> {
    let (sink, mut received) = queue(64);
    let replaced = watch::channel(Instant::now()).1;
    let follower = follow(fake.clone(), Topic::Live, sink, replaced, Arc::default());
    let follower = tokio::spawn(follower);
    let mut events = Vec::new();
    while events.len() < count {
        events.push(received.recv().await.unwrap().0.1);
    }
    follower.abort();
    events
}

#[tokio::test(start_paused = true)]
async fn one_list_then_a_watch_from_the_next_revision() {
    let fake = FakeSource::new(vec![
        FakeAnswer::List(Ok(Listing {
            revision: 7,
            items: vec![item("a", 3)],
            rest: None,
        })),
        FakeAnswer::Watch(vec![
            Ok(put("b", 8)),
            Ok(Batch {
                revision: 9,
                changes: vec![Event::Delete("a".into())],
            }),
        ]),
    ]);
    let expected = vec![
        Event::Init,
        Event::InitApply(item("a", 3)),
        Event::InitDone(7),
        Event::Apply(item("b", 8)),
        Event::Progress(8),
        Event::Delete("a".into()),
        Event::Progress(9),
    ];
    assert_eq!(events(&fake, 7).await, expected);
    assert_eq!(fake.asked(), [FakeRequest::List, FakeRequest::WatchFrom(8)]);
}

#[tokio::test(start_paused = true)]
async fn a_broken_watch_goes_on_where_progress_had_come_to() {
    let fake = FakeSource::new(vec![
        list(7),
        FakeAnswer::Watch(vec![Ok(put("a", 8)), progress(100), Err(broken())]),
        FakeAnswer::WatchFails(SourceError::Timeout),
        FakeAnswer::Watch(vec![Ok(put("b", 101))]),
    ]);
    let events = events(&fake, 7).await;
    assert_eq!(events.last(), Some(&Event::Progress(101)));
    assert_eq!(
        fake.asked(),
        [
            FakeRequest::List,
            FakeRequest::WatchFrom(8),
            FakeRequest::WatchFrom(101),
            FakeRequest::WatchFrom(101)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn only_compaction_causes_a_new_list() {
    let fake = FakeSource::new(vec![
        FakeAnswer::List(Err(broken())),
        list(7),
        FakeAnswer::Watch(vec![Err(SourceError::Compacted(50))]),
        list(60),
        FakeAnswer::Watch(vec![Ok(put("a", 61))]),
    ]);
    let events = events(&fake, 6).await;
    assert_eq!(
        events[..4],
        [
            Event::Init,
            Event::InitDone(7),
            Event::Init,
            Event::InitDone(60)
        ]
    );
    let expected = [
        FakeRequest::List,
        FakeRequest::List,
        FakeRequest::WatchFrom(8),
        FakeRequest::List,
        FakeRequest::WatchFrom(61),
    ];
    assert_eq!(fake.asked(), expected);
}

#[tokio::test(start_paused = true)]
async fn an_etcd_with_another_history_is_listed_again_and_followed_from_there() {
    let fake = FakeSource::new(vec![
        list(70),
        FakeAnswer::WatchFails(SourceError::OtherHistory("restored".into())),
        list(60),
        FakeAnswer::Watch(vec![Ok(put("a", 61))]),
    ]);
    let expected = vec![
        Event::Init,
        Event::InitDone(70),
        Event::OtherHistory,
        Event::Init,
        Event::InitDone(60),
        Event::Apply(item("a", 61)),
        Event::Progress(61),
    ];
    assert_eq!(events(&fake, 7).await, expected);
    let expected = [
        FakeRequest::List,
        FakeRequest::WatchFrom(71),
        FakeRequest::List,
        FakeRequest::WatchFrom(61),
    ];
    assert_eq!(fake.asked(), expected);
}

/// Found by somebody else, when it could not be seen here any more.
#[tokio::test(start_paused = true)]
async fn another_history_that_somebody_else_has_found_is_listed_once() {
    let fake = FakeSource::new(vec![
        list(70),
        FakeAnswer::Watch(vec![]),
        list(80),
        FakeAnswer::Watch(vec![]),
        list(90),
        FakeAnswer::Watch(vec![]),
    ]);
    let (sink, mut received) = queue(64);
    let replaced = watch::Sender::new(Instant::now());
    let follower = follow(
        fake.clone(),
        Topic::Live,
        sink,
        replaced.subscribe(),
        Arc::default(),
    );
    let follower = tokio::spawn(follower);
    let second = Duration::from_secs(1);
    tokio::time::sleep(second).await;
    let before = Instant::now();
    // Each is told twice, the second time when it was listed again.
    for _ in 0..2 {
        let since = Instant::now();
        for _ in 0..2 {
            replaced.send_replace(since);
            tokio::time::sleep(second).await;
        }
    }
    replaced.send_replace(before);
    tokio::time::sleep(second).await;
    follower.abort();
    let events = std::iter::from_fn(|| received.try_recv().ok()).map(|queued| queued.0.1);
    let lists = [70, 80, 90].map(|revision| [Event::Init, Event::InitDone(revision)]);
    let expected = lists.join(&Event::OtherHistory);
    assert_eq!(events.collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_lags_behind_does_not_move_the_position_back() {
    let fake = FakeSource::new(vec![
        list(7),
        FakeAnswer::Watch(vec![progress(5), Err(broken())]),
        FakeAnswer::Watch(vec![Ok(put("a", 8))]),
    ]);
    events(&fake, 5).await;
    assert_eq!(
        fake.asked(),
        [
            FakeRequest::List,
            FakeRequest::WatchFrom(8),
            FakeRequest::WatchFrom(8)
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn nobody_listening_ends_it() {
    let fake = FakeSource::new(vec![list(7), FakeAnswer::Watch(vec![Err(broken())])]);
    let (sink, received) = queue(1);
    drop(received);
    let replaced = watch::channel(Instant::now()).1;
    follow(fake, Topic::Live, sink, replaced, Arc::default()).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_after_the_second_compaction_in_a_row_waits() {
    let compacted = |revision| {
        let watch = vec![Err(SourceError::Compacted(revision + 1))];
        [list(revision), FakeAnswer::Watch(watch)]
    };
    for (count, waits) in [(2, false), (3, true)] {
        let fake = FakeSource::new((0..4).flat_map(compacted).collect());
        let begun = tokio::time::Instant::now();
        // Two for each list.
        events(&fake, 2 * count).await;
        assert_eq!(begun.elapsed() >= BACKOFF.first / 2, waits, "{count}");
    }
}
