//! Whether an error says that a connection broke. Pure.
//!
//! Maps client-go's `net.IsConnectionReset`, `net.IsProbableEOF` and `net.IsHTTP2ConnectionLost` to the errors of hyper
//! and its connectors. Other errors are not retried: they would occur again (a refused connection, an unknown host
//! name, an invalid certificate), or they took long already (a timeout).

use std::error::Error;
use std::io;

/// Examines `error` and all its sources.
pub(super) fn is_broken(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            if is_broken_io(error.kind()) {
                return true;
            }
            // `io::Error::source` skips the wrapped error itself.
            next = error.get_ref().map(|inner| inner as _);
            continue;
        }
        if error.downcast_ref().is_some_and(is_broken_http) || is_goaway(error) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Go: ECONNRESET; `io.EOF` and `io.ErrUnexpectedEOF`; a write to a broken connection. h2 also reports `BrokenPipe` on
/// streams whose connection ended.
fn is_broken_io(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind, ConnectionReset | UnexpectedEof | BrokenPipe)
}

/// Go: `io.EOF` before or within the header; "use of closed network connection" twice; "http2: client connection lost",
/// which is an unanswered ping: the only timeout of hyper's clients.
fn is_broken_http(error: &hyper::Error) -> bool {
    error.is_incomplete_message() || error.is_closed() || error.is_canceled() || error.is_timeout()
}

/// Go: "http2: server sent GOAWAY and closed the connection". Recognized by its text, as in client-go:
/// the crate h2 is a dependency only where HTTP/2 is used.
fn is_goaway(error: &(dyn Error + 'static)) -> bool {
    error.to_string().starts_with("connection error received: ")
}

#[cfg(test)]
mod tests;
