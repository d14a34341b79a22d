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

fn broken() -> SourceError {
    SourceError::Ended("test".into())
}

/// Follows `fake` until `count` events were told.
async fn events(fake: &FakeSource, count: usize) -> Vec<Event> {
    let (sink, mut received) = queue(64);
    let follower = tokio::spawn(follow(fake.clone(), Topic::Live, sink, Arc::default()));
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
        FakeAnswer::List(Ok(Listing {
            revision: 7,
            items: vec![],
            rest: None,
        })),
        FakeAnswer::Watch(vec![
            Ok(put("a", 8)),
            Ok(Batch {
                revision: 100,
                changes: vec![],
            }),
            Err(broken()),
        ]),
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
        FakeAnswer::List(Ok(Listing {
            revision: 7,
            items: vec![],
            rest: None,
        })),
        FakeAnswer::Watch(vec![Err(SourceError::Compacted(50))]),
        FakeAnswer::List(Ok(Listing {
            revision: 60,
            items: vec![],
            rest: None,
        })),
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
    let list = |revision| {
        FakeAnswer::List(Ok(Listing {
            revision,
            items: vec![],
            rest: None,
        }))
    };
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

#[tokio::test(start_paused = true)]
async fn a_member_that_lags_behind_does_not_move_the_position_back() {
    let fake = FakeSource::new(vec![
        FakeAnswer::List(Ok(Listing {
            revision: 7,
            items: vec![],
            rest: None,
        })),
        FakeAnswer::Watch(vec![
            Ok(Batch {
                revision: 5,
                changes: vec![],
            }),
            Err(broken()),
        ]),
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
    let fake = FakeSource::new(vec![
        FakeAnswer::List(Ok(Listing {
            revision: 7,
            items: vec![],
            rest: None,
        })),
        FakeAnswer::Watch(vec![Err(broken())]),
    ]);
    let (sink, received) = queue(1);
    drop(received);
    follow(fake, Topic::Live, sink, Arc::default()).await;
}

#[tokio::test(start_paused = true)]
async fn a_list_after_the_second_compaction_in_a_row_waits() {
    let compacted = |revision| {
        let listing = Listing {
            revision,
            items: vec![],
            rest: None,
        };
        let watch = vec![Err(SourceError::Compacted(revision + 1))];
        [FakeAnswer::List(Ok(listing)), FakeAnswer::Watch(watch)]
    };
    for (count, waits) in [(2, false), (3, true)] {
        let fake = FakeSource::new((0..4).flat_map(compacted).collect());
        let begun = tokio::time::Instant::now();
        // Two for each list.
        events(&fake, 2 * count).await;
        assert_eq!(begun.elapsed() >= BACKOFF.first / 2, waits, "{count}");
    }
}
