//! Errors of connections: what they mean for a request, and what of them may be logged.

use std::fmt;

use pingora_core::{Error, ErrorType};

/// Whether the server did not process the request: REFUSED_STREAM, or a GOAWAY below its stream. pingora calls more
/// errors retriable: HTTP_1_1_REQUIRED, for example, may come after the request was executed.
pub fn is_unprocessed(error: &Error) -> bool {
    let cause = error.root_cause().downcast_ref::<h2::Error>();
    cause.is_some_and(|cause| {
        let refused = cause.is_reset() && cause.reason() == Some(h2::Reason::REFUSED_STREAM);
        let below = cause.is_go_away() && cause.reason() == Some(h2::Reason::NO_ERROR);
        cause.is_remote() && (refused || below)
    })
}

/// Formats an error for the log. Parse errors of pingora quote their input (tokens, cookies, bodies), so only their
/// type is written.
pub struct RedactedError<'e>(pub &'e Error);

impl fmt::Display for RedactedError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(error) = self;
        let kind = error.root_etype();
        match kind {
            ErrorType::InvalidHTTPHeader | ErrorType::Custom(_) => f.write_str(kind.as_str()),
            _ => error.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_parsed_is_not_quoted() {
        let said = |error: Box<Error>| RedactedError(&error).to_string();
        let quoting = || Error::explain(ErrorType::InvalidHTTPHeader, "buf: Bearer x");
        assert_eq!(said(quoting()), "InvalidHTTPHeader");
        let chunk = Error::explain(ErrorType::new("InvalidChunk"), "Bearer x was not LF");
        assert_eq!(said(chunk), "InvalidChunk");
        let around = Error::because(ErrorType::ReadError, "reading", quoting());
        assert_eq!(said(around), "InvalidHTTPHeader");
        let plain = Error::explain(ErrorType::ConnectRefused, "connecting");
        assert!(said(plain).ends_with("ConnectRefused context: connecting"));
    }
}
