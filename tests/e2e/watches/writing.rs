//! What the writers of a test share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use testkit::cluster::LONG;
use testkit::wait::eventually;

#[derive(Default)]
pub(crate) struct Writing {
    pub(crate) written: AtomicUsize,
    pub(crate) stop: AtomicBool,
}

impl Writing {
    /// Returns when this many more were written.
    pub(crate) async fn more(&self, number: usize) {
        let goal = self.written.load(Ordering::Relaxed) + number;
        eventually("more is written", LONG, async || {
            self.written.load(Ordering::Relaxed) >= goal
        })
        .await;
    }
}
