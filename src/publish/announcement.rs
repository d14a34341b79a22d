//! Whether this server has announced itself: before, no load balancer should send requests here.
//!
//! A client that got an answer here may go to another proxy next. That one must know by then what this server serves, or
//! at least that it does not know it. So this server is announced once its record and its live key are in etcd and its
//! own watches show them; or, while another server has its ID, its claim. Watches of others may be a moment later than our
//! own, so they have had some time to see that a server comes. It stays announced, whatever etcd does later.
//!
//! Written by the publisher and `run`; read for `/readyz`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::absence::{Revisions, covers};

/// From the first key, which tells that a server comes, to the announcement: more than a change takes to every watch.
const NOTICE: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub struct Announcement {
    /// When the first key was written: a live key or a claim.
    coming: OnceLock<Instant>,
    made: AtomicBool,
    /// Why keys could not be written last.
    failure: ArcSwapOption<String>,
}

impl Announcement {
    pub fn is_made(&self) -> bool {
        self.made.load(Ordering::Relaxed)
    }

    /// Why it is not made yet; `None`: it is.
    pub fn missing(&self) -> Option<String> {
        let missing = "peers cannot know yet what this server serves";
        (!self.is_made()).then(|| match self.failure.load().as_deref() {
            None => missing.to_owned(),
            Some(failure) => format!("{missing}: {failure}"),
        })
    }

    /// A live key or a claim was written.
    pub(super) fn is_coming(&self) {
        self.coming.get_or_init(Instant::now);
    }

    /// The last attempt to write own keys succeeded, or why not.
    pub(super) fn written(&self, failure: Option<String>) {
        if !self.is_made() {
            self.failure.store(failure.map(Arc::new));
        }
    }
}

/// Makes the announcement once `seen` shows what was `written`.
pub(super) async fn run(
    announcement: Arc<Announcement>,
    mut written: watch::Receiver<Option<Revisions>>,
    mut seen: watch::Receiver<Revisions>,
) {
    loop {
        let is_seen = |written: &Revisions| covers(&seen.borrow_and_update(), written);
        if written.borrow_and_update().as_ref().is_some_and(is_seen) {
            break;
        }
        tokio::select! {
            Ok(()) = written.changed() => {}
            Ok(()) = seen.changed() => {}
            else => return,
        }
    }
    if let Some(coming) = announcement.coming.get() {
        tokio::time::sleep_until(*coming + NOTICE).await;
    }
    tracing::info!("this server is announced to its peers");
    announcement.made.store(true, Ordering::Relaxed);
    announcement.failure.store(None);
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: Revisions = [3, 4, 0, 0, 0];

    #[tokio::test(start_paused = true)]
    async fn others_are_given_notice() {
        let announcement = Arc::new(Announcement::default());
        let (_written, writes) = watch::channel(Some(WRITTEN));
        let (_seen, sights) = watch::channel(WRITTEN);
        let start = Instant::now();
        announcement.is_coming();
        tokio::time::advance(NOTICE / 2).await;
        announcement.is_coming();
        run(announcement.clone(), writes, sights).await;
        let noticed = start.elapsed();
        assert!(NOTICE <= noticed && noticed < 2 * NOTICE, "{noticed:?}");
        assert!(announcement.is_made());
    }

    #[tokio::test]
    async fn it_is_made_once_all_is_seen_and_stays_so() {
        let announcement = Arc::new(Announcement::default());
        let (written, writes) = watch::channel(None);
        let (seen, sights) = watch::channel(Revisions::default());
        let running = tokio::spawn(run(announcement.clone(), writes, sights));
        announcement.written(Some("etcd is down".to_owned()));
        let missing = announcement.missing().unwrap();
        assert!(missing.ends_with("serves: etcd is down"), "{missing}");
        announcement.written(None);
        // Keys of the process before, under the same ID.
        seen.send_replace([1, 2, 9, 9, 9]);
        written.send_replace(Some(WRITTEN));
        for missing in [[3, 3, 9, 9, 9], [2, 4, 9, 9, 9]] {
            seen.send_replace(missing);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert!(announcement.missing().is_some(), "{missing:?}");
        }
        seen.send_replace([3, 5, 0, 0, 0]);
        running.await.unwrap();
        assert!(announcement.is_made());
        announcement.written(Some("etcd is down".to_owned()));
        seen.send_replace(Revisions::default());
        assert_eq!(announcement.missing(), None);
    }
}
