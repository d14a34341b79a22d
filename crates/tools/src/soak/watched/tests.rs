use std::future::pending;

use anyhow::{Context as _, anyhow};
use serde_json::json;
use tokio::time::timeout;

use super::*;

fn line(kind: &str, object: &Value) -> Heard {
    let event = json!({"type": kind, "object": object});
    heard(Ok(Some(event.to_string())))
}

fn object() -> Value {
    json!({"metadata": {"namespace": "n", "name": "it", "resourceVersion": "7"}})
}

#[test]
fn events_and_bookmarks_are_told() {
    for (kind, what) in [
        ("ADDED", What::Applied),
        ("MODIFIED", What::Applied),
        ("DELETED", What::Deleted),
    ] {
        let Heard::Event(event) = line(kind, &object()) else {
            panic!("{kind} is no event");
        };
        assert_eq!((event.revision, event.object.as_str()), (7, "n/it"));
        assert_eq!(event.what, what);
    }
    let bookmark = json!({"metadata": {"resourceVersion": "9"}});
    assert!(matches!(line("BOOKMARK", &bookmark), Heard::Bookmark(9)));
}

#[test]
fn only_an_error_with_410_asks_for_a_list() {
    assert!(matches!(
        line("ERROR", &json!({"code": 410})),
        Heard::Expired
    ));
    assert!(matches!(
        line("ERROR", &json!({"code": 500})),
        Heard::Broken(_)
    ));
}

#[test]
fn a_complete_line_that_is_no_event_is_garbage() {
    for text in ["", "{\"type\":\"ADD", "null", "{\"type\":\"OTHER\"}"] {
        let heard = heard(Ok(Some(text.to_owned())));
        assert!(matches!(heard, Heard::Garbage(_)), "{text}: {heard:?}");
    }
    assert!(matches!(line("ADDED", &json!({})), Heard::Garbage(_)));
    assert!(matches!(line("BOOKMARK", &json!({})), Heard::Garbage(_)));
}

#[tokio::test]
async fn silence_a_clean_end_and_a_broken_body_are_told_apart() {
    let elapsed = timeout(Duration::ZERO, pending()).await;
    let silence = elapsed.context("no more lines in time");
    assert!(matches!(heard(silence), Heard::Silence));
    assert!(matches!(heard(Ok(None)), Heard::CleanEnd));
    let broken = Err(anyhow!("reset")).context("the body broke off");
    assert!(matches!(heard(broken), Heard::Broken(_)));
}

#[test]
fn a_watch_may_end_after_half_an_hour_at_the_earliest() {
    assert!(!may_end(Duration::from_secs(1799)));
    assert!(may_end(Duration::from_secs(1800)));
}
