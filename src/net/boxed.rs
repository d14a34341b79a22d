//! Boxed futures of requests.

use std::pin::Pin;

/// A boxed future whose type the compiler does not know.
pub type Rare<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Begins `work` in its box. `Box::pin` would copy all of a new future into the box, though only the arguments are
/// there.
pub fn boxed<W: Future>(work: impl FnOnce() -> W) -> Pin<Box<W>> {
    // In this order: if memory were taken after `work`, that could fail, and `work` would need a place to be dropped
    // from.
    let place = Box::new_uninit();
    Box::into_pin(Box::write(place, work()))
}

/// Begins what requests seldom do, out of line. A `Box::pin` in its place would have `work` compiled into the poll of each
/// request, which then has room on the stack for all that it needs, and touches each page of that every time.
#[cold]
#[inline(never)]
pub fn rare<'a, W: Future + Send + 'a>(work: impl FnOnce() -> W) -> Rare<'a, W::Output> {
    boxed(work)
}
