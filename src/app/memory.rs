//! Gives memory back to the system that a burst of requests has taken.
//!
//! mimalloc looks for what was freed some time ago only when one of its pages becomes full or empty. A proxy that a
//! thousand watches have come to, and that has been quiet since then, would keep what their beginnings took.

use std::hint::black_box;
use std::time::Duration;

use tokio::time::interval;

const INTERVAL: Duration = Duration::from_secs(5);
/// In a page of its own: mimalloc keeps no pages of that size.
const LARGE: usize = 1 << 20;

pub(super) async fn give_back() {
    let mut ticks = interval(INTERVAL);
    loop {
        ticks.tick().await;
        drop(black_box(Vec::<u8>::with_capacity(LARGE)));
    }
}
