//! What connections and requests are made with, and what knows neither: sockets and their limit, pieces of HTTP/2 bodies,
//! writes that are put together, errors, and boxed futures. For `relay` and the listeners.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

mod dial;
mod errors;
pub mod files;
mod io;

pub use self::dial::dial;
pub use self::errors::{RedactedError, is_unprocessed};
pub use self::io::{
    Flush, WriteBatch, batched, buffered, lengths_agree, poll_receive, poll_send, receive, release,
    single_length,
};

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

/// Locks what is as good after a panic as before.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
