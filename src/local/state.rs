//! What is known of the local apiserver. Written by the probe (and by requests that find the connection refused),
//! read by every request with one atomic load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::{Notify, watch};

use super::requestheader::Belief;
use crate::request::credential::{self, Details};

/// State of the apiserver process beside us.
#[derive(Debug, Default)]
pub struct LocalState {
    /// Twice the number of times that the process was seen to be gone (the epoch), plus 1 if `/readyz` answered 200 since
    /// the last of them (KEP-3028: initialized). Later failures do not undo it.
    epoch_and_initialized: AtomicU64,
    /// The last `/readyz` was 200.
    ready: AtomicBool,
    /// The epoch in which it was found, and the etcd revision since which the apiserver has watch history.
    history: ArcSwapOption<(u64, i64)>,
    /// The epoch in which its version was read, and what that gives certificate users.
    user_details: ArcSwapOption<(u64, Details)>,
    /// Whether it takes our word about users.
    belief: Belief,
    /// The last `/readyz` was 401 or 403: so it does not take our word about ourselves.
    shut_out: AtomicBool,
    /// Wakes all who follow changes.
    changed: watch::Sender<()>,
    /// Wakes the probe: this may be another process now.
    suspected: Notify,
    /// Wakes discovery: what the apiserver serves may have changed.
    reread: Notify,
}

impl LocalState {
    /// Whether the apiserver is initialized.
    pub fn is_initialized(&self) -> bool {
        self.epoch_and_initialized.load(Ordering::Relaxed) & 1 == 1
    }

    /// Whether its last `/readyz` was 200.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// The etcd revision since which the apiserver has watch history (KEP-1904), never too low; `i64::MAX` while
    /// that is not known.
    pub fn history_start(&self) -> i64 {
        let history = self.history.load();
        match history.as_deref() {
            Some((epoch, start)) if *epoch == self.epoch() => *start,
            _ => i64::MAX,
        }
    }

    /// The apiserver that was asked in `epoch` had all of its watch history's beginning by etcd revision `start`.
    pub fn begins_at(&self, start: i64, epoch: u64) {
        self.history.store(Some(Arc::new((epoch, start))));
        self.changed.send_replace(());
    }

    /// What the apiserver gives certificate users, by its version; nothing while that is not known.
    pub fn user_details(&self) -> Details {
        let known = self.user_details.load();
        match known.as_deref() {
            Some((epoch, details)) if *epoch == self.epoch() => *details,
            _ => Details::default(),
        }
    }

    /// The apiserver that was asked in `epoch` is of this version.
    pub fn is_of_version(&self, version: &str, epoch: u64) {
        let known = Arc::new((epoch, credential::details(version)));
        self.user_details.store(Some(known));
    }

    /// Whether this apiserver process is known to take our word about users.
    pub fn believes_us(&self) -> bool {
        self.belief.is_given(self.epoch())
    }

    /// Why that is not known; `None` if it is.
    pub fn doubts_about_us(&self) -> Option<String> {
        self.belief.doubts(self.epoch())
    }

    /// Whether it is there to be asked about that: initialized, or not for us to know.
    pub fn can_be_asked(&self) -> bool {
        self.is_initialized() || self.shut_out.load(Ordering::Relaxed)
    }

    /// Whether the last `/readyz` was answered 401 or 403.
    pub fn shut_out(&self, shut_out: bool) {
        if self.shut_out.swap(shut_out, Ordering::Relaxed) != shut_out {
            self.changed.send_replace(());
        }
    }

    /// What the check of it says, and who wants it.
    pub fn belief(&self) -> &Belief {
        &self.belief
    }

    /// Changes each time that the process is seen to be gone; to be taken before `/readyz` is asked.
    pub fn epoch(&self) -> u64 {
        self.epoch_and_initialized.load(Ordering::Relaxed) >> 1
    }

    /// The epoch, if the apiserver is initialized in it; to be taken before it is asked what must be this process's answer.
    pub fn initialized_epoch(&self) -> Option<u64> {
        let state = self.epoch_and_initialized.load(Ordering::Relaxed);
        (state & 1 == 1).then_some(state >> 1)
    }

    /// A `/readyz` was answered that was asked in `epoch`. An answer from before a restart counts for nothing.
    pub fn answered(&self, ok: bool, epoch: u64) {
        if ok {
            let (before, after) = (epoch << 1, epoch << 1 | 1);
            match self.epoch_and_initialized.compare_exchange(
                before,
                after,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    tracing::info!("the local apiserver is initialized");
                    self.reread.notify_one();
                }
                Err(now) if now == after => {}
                Err(_) => return,
            }
        }
        if self.ready.swap(ok, Ordering::Relaxed) != ok {
            self.changed.send_replace(());
        }
    }

    /// `/readyz` was not answered; the process may still be the same.
    pub fn silent(&self) {
        if self.ready.swap(false, Ordering::Relaxed) {
            self.changed.send_replace(());
        }
    }

    /// The process is gone, and what comes next is not initialized: a connection was refused, or the probe found another.
    pub fn refused(&self) {
        let was_ready = self.ready.swap(false, Ordering::Relaxed);
        let next = |state: u64| Some(((state >> 1) + 1) << 1);
        let before =
            self.epoch_and_initialized
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let was_initialized = before.is_ok_and(|state| state & 1 == 1);
        if was_initialized {
            tracing::warn!(
                "the local apiserver is gone or another: not initialized until its next /readyz"
            );
            self.reread.notify_one();
        }
        // Every request of a client may end here: only a change is worth waking somebody.
        if was_ready || was_initialized {
            self.changed.send_replace(());
        }
    }

    /// An answer contradicts what is known of the served set: read discovery again.
    pub fn doubt(&self) {
        self.reread.notify_one();
    }

    /// Tells of changes of readiness, and of the history's start, from now on, to any number of waiters.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Something says that this may be another process now.
    pub fn suspect(&self) {
        self.suspected.notify_one();
    }

    /// Resolves when something said so. One waiter.
    pub async fn suspicion(&self) {
        self.suspected.notified().await;
    }

    /// Resolves when discovery should be read without waiting for its interval. One waiter.
    pub async fn reread(&self) {
        self.reread.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initialized_once_stays_so_while_readyz_fails() {
        let state = LocalState::default();
        state.answered(false, 0);
        assert!(!state.is_initialized());
        state.answered(true, 0);
        state.answered(false, 0);
        state.silent();
        assert!(state.is_initialized() && !state.is_ready());
    }

    #[test]
    fn a_refused_connection_means_a_new_process() {
        let state = LocalState::default();
        state.answered(true, state.epoch());
        state.refused();
        assert!(!state.is_initialized() && !state.is_ready());
        state.answered(true, state.epoch());
        assert!(state.is_initialized() && state.is_ready());
    }

    #[test]
    fn a_change_wakes_everybody_and_nothing_else_does() {
        let state = LocalState::default();
        let mut waiters = [state.changes(), state.changes()];
        let mut woken = || {
            waiters.each_mut().map(|waiter| {
                let changed = waiter.has_changed().unwrap();
                waiter.mark_unchanged();
                changed
            })
        };
        state.answered(false, state.epoch());
        assert_eq!(woken(), [false; 2]);
        state.answered(true, state.epoch());
        assert_eq!(woken(), [true; 2]);
        state.refused();
        assert_eq!(woken(), [true; 2]);
        state.refused();
        assert_eq!(woken(), [false; 2]);
    }

    #[test]
    fn the_history_of_the_process_before_is_not_that_of_the_next() {
        let state = LocalState::default();
        assert_eq!(state.history_start(), i64::MAX);
        let epoch = state.epoch();
        state.begins_at(70, epoch);
        assert_eq!(state.history_start(), 70);
        state.refused();
        assert_eq!(state.history_start(), i64::MAX);
        state.begins_at(80, epoch);
        assert_eq!(state.history_start(), i64::MAX);
    }

    #[test]
    fn the_version_of_the_process_before_is_not_that_of_the_next() {
        let state = LocalState::default();
        assert!(!state.user_details().credential_id);
        state.is_of_version("v1.36.0", state.epoch());
        assert!(state.user_details().credential_id);
        state.refused();
        assert!(!state.user_details().credential_id);
        state.is_of_version("v1.20.2", state.epoch());
        assert!(!state.user_details().credential_id);
    }

    #[test]
    fn an_answer_of_the_process_before_says_nothing_of_the_next() {
        let state = LocalState::default();
        let asked_in = state.epoch();
        state.refused();
        state.answered(true, asked_in);
        assert!(!state.is_initialized() && !state.is_ready());
    }
}
