//! How an exchange with an apiserver ends, and with it the client's request.
//!
//! Data only, for every level: an exchange with one server, all servers that were tried, the client's connection. An
//! exchange that came to nothing is an [`ExchangeFailure`]; another server may be tried then.

use std::sync::Arc;

use bytes::Bytes;
use http::header::HeaderValue;
use pingora_core::ErrorType;
use pingora_http::ResponseHeader;

/// How a request ended for its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// An answer was delivered to its end.
    Answered {
        /// The HTTP status.
        code: u16,
        /// The client's connection can take another request.
        reusable: bool,
    },
    /// An upgraded connection ended, and the client's connection with it.
    Upgraded,
    /// The client went away or received half an answer: its stream is reset.
    Broken,
    /// Nothing was done: the stream is refused, and the client may send the request on another connection.
    Declined,
}

/// An answer with its whole body. It is kept while other servers are asked, and passed on if none of them answers
/// otherwise.
#[derive(Debug, Clone)]
pub struct KeptAnswer {
    pub response: Box<ResponseHeader>,
    pub body: Bytes,
}

/// A 410 to a watch.
#[derive(Debug, Clone)]
pub enum Expired {
    /// It is the HTTP status: nothing was sent to the client.
    Answer(Arc<KeptAnswer>),
    /// It is the first event: the client has the header of this answer.
    Event(Arc<ExpiredEvent>),
}

/// A 410 as the first event of an answer.
#[derive(Debug)]
pub struct ExpiredEvent {
    /// Of the answer.
    pub content_type: Option<HeaderValue>,
    /// The event and all bytes that came with it.
    pub body: Bytes,
}

/// Why an exchange failed before anything was sent to the client, but for the header of a watch ([`Expired`]).
#[derive(Debug)]
pub enum ExchangeFailure {
    /// No connection, or nothing was written to it: nothing was executed.
    Unsent(Box<pingora_core::Error>),
    /// The server did not process the request (REFUSED_STREAM, or a GOAWAY below the stream).
    Unprocessed(Box<pingora_core::Error>),
    NotExecuted {
        /// Because of the resource: the peer itself works.
        of_resource: bool,
    },
    /// The apiserver is shutting down and accepts no requests.
    Terminating(Arc<KeptAnswer>),
    /// The server cannot answer this read at the moment, and others may.
    Unavailable(Arc<KeptAnswer>),
    /// The server does not understand the request, and a newer one may.
    NotUnderstood(Arc<KeptAnswer>),
    /// "No such resource", from an apiserver that may not know a new custom resource yet.
    NoSuchResource(Arc<KeptAnswer>),
    /// "No such resource", from a server that is listed as serving it; with the answer, if that could be read.
    DoubtfulNotFound(Option<Arc<KeptAnswer>>),
    /// A read waited for a server that is suspected to be frozen, or a request that was not sent.
    Frozen,
    /// A discovery document could not be merged.
    Unmerged,
    /// The watch begins at a revision that is too old for this server.
    Expired(Expired),
    /// The server was asked to go on with a watch that is too old for another one, and does not.
    NotContinued,
    /// The exchange broke off after part of the request was sent: it may have been executed.
    BrokeOff {
        error: Box<pingora_core::Error>,
        /// The connection had been used before. A server may close such a connection at any time.
        reused: bool,
    },
}

impl ExchangeFailure {
    /// It broke off, and not because the server has closed a connection that was kept.
    pub fn broke_off(error: Box<pingora_core::Error>) -> Self {
        let reused = false;
        Self::BrokeOff { error, reused }
    }

    /// Whether the request may have been executed.
    pub fn maybe_executed(&self) -> bool {
        matches!(self, ExchangeFailure::BrokeOff { .. })
    }

    /// Whether the server does not know the resource, as it says.
    pub fn is_no_such_resource(&self) -> bool {
        matches!(
            self,
            ExchangeFailure::NoSuchResource(_)
                | ExchangeFailure::DoubtfulNotFound(_)
                | ExchangeFailure::NotExecuted { of_resource: true }
        )
    }

    /// Whether the connection was refused.
    pub fn is_refused(&self) -> bool {
        matches!(self, ExchangeFailure::Unsent(error) if *error.etype() == ErrorType::ConnectRefused)
    }

    /// Whether the request may succeed on another connection to the same server.
    pub fn is_of_the_connection(&self) -> bool {
        matches!(
            self,
            ExchangeFailure::Unprocessed(_) | ExchangeFailure::BrokeOff { reused: true, .. }
        )
    }

    /// Name for metrics and logs.
    pub fn name(&self) -> &'static str {
        match self {
            ExchangeFailure::Unsent(_) => "unsent",
            ExchangeFailure::Unprocessed(_) => "unprocessed",
            ExchangeFailure::NotExecuted { .. } => "not_executed",
            ExchangeFailure::Terminating(_) => "terminating",
            ExchangeFailure::Unavailable(_) => "unavailable",
            ExchangeFailure::NotUnderstood(_) => "not_understood",
            ExchangeFailure::NoSuchResource(_) => "no_such_resource",
            ExchangeFailure::DoubtfulNotFound(_) => "doubtful_not_found",
            ExchangeFailure::Frozen => "frozen",
            ExchangeFailure::Unmerged => "unmerged",
            ExchangeFailure::Expired(_) => "expired",
            ExchangeFailure::NotContinued => "not_continued",
            ExchangeFailure::BrokeOff { .. } => "broke_off",
        }
    }

    /// The error, if there is one.
    pub fn error(&self) -> Option<&pingora_core::Error> {
        match self {
            ExchangeFailure::Unsent(error)
            | ExchangeFailure::Unprocessed(error)
            | ExchangeFailure::BrokeOff { error, .. } => Some(error),
            _ => None,
        }
    }
}
