//! Whether an error says that a connection broke. Pure.
//!
//! client-go's `net.IsConnectionReset`, `net.IsProbableEOF` and `net.IsHTTP2ConnectionLost`, for what hyper and its
//! connectors say in their place. What else goes wrong would go wrong again, or has taken its time already: a refused
//! connection, a name that is not found, a certificate that is not good, a timeout.

use std::error::Error;
use std::io;

/// Looks through everything that `error` was made of.
pub(super) fn is_broken(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            if is_broken_io(error.kind()) {
                return true;
            }
            // Its source is that of the error inside, which would be passed over.
            next = error.get_ref().map(|inner| inner as _);
            continue;
        }
        if error.downcast_ref().is_some_and(is_broken_http) || is_farewell(error) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Go: ECONNRESET; `io.EOF` and `io.ErrUnexpectedEOF`; a write on a broken connection, which is also what h2 says to
/// streams whose connection came to its end.
fn is_broken_io(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(kind, ConnectionReset | UnexpectedEof | BrokenPipe)
}

/// Go: `io.EOF` before or within the header; "use of closed network connection" twice; "http2: client connection lost",
/// which is a ping without an answer, the only time limit of hyper's clients.
fn is_broken_http(error: &hyper::Error) -> bool {
    error.is_incomplete_message() || error.is_closed() || error.is_canceled() || error.is_timeout()
}

/// Go: "http2: server sent GOAWAY and closed the connection". Known by its text, as in client-go: h2 is in the tree of
/// those only who speak HTTP/2.
fn is_farewell(error: &(dyn Error + 'static)) -> bool {
    error.to_string().starts_with("connection error received: ")
}

#[cfg(test)]
mod tests;
