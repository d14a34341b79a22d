//! The parameters of one exchange.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::expiry::Expiry;
use super::upload::Upload;
use crate::net::Destination;
use crate::relay::client::VerificationPermit;
use crate::relay::client::unread::AnswerWriter;
use crate::relay::context::RequestContext;
use crate::relay::documents::MergeRequest;
use crate::relay::inspect::Asking;
use crate::relay::outcome::ExchangeFailure;
use crate::relay::plan::{self, Route};
use crate::relay::upstream::frozen::{ReadBudget, Ticker};
use crate::relay::upstream::{
    ConnectionChoice, PoolChoice, RequestKind, Token, UpstreamGroup, UpstreamSession,
};
use crate::relay::watch::Revalidation;
use crate::routing::decide::Row;

/// The parameters of one exchange.
pub struct Exchange<'a> {
    pub context: &'a RequestContext<'a>,
    /// Where the request is sent.
    pub route: &'a Route,
    pub group: &'a UpstreamGroup,
    pub destination: Destination,
    pub pool_choice: PoolChoice,
    pub connection_choice: ConnectionChoice,
    /// The bearer token, if only an apiserver can verify it.
    pub token: Option<Token>,
    /// Held for an unverified caller.
    pub permit: Option<&'a VerificationPermit<'a>>,
    /// `X-Kubernetes-Ready` for the client.
    pub ready: Option<bool>,
    /// Set if the request may be sent to another server if nothing comes from this one.
    pub leaving: Option<Leaving<'a>>,
    /// What becomes of a 410.
    pub expiry: Expiry<'a>,
    /// Set if something is to be added to a discovery document.
    pub merge_request: Option<Box<MergeRequest>>,
}

/// A request that may be sent to another server while it waits for this one.
pub struct Leaving<'a> {
    /// Also after it was sent here.
    pub reads: bool,
    /// Another server has answered, and this one is only asked whether it says the same: it is left even if no other
    /// can be asked.
    pub has_answer: bool,
    /// The servers that have failed before.
    pub tried: &'a [SocketAddr],
    pub budget: &'a ReadBudget,
    pub ticker: &'a Arc<Ticker>,
}

impl Leaving<'_> {
    fn is_possible(&self, context: &RequestContext<'_>, at: SocketAddr, sent: bool) -> bool {
        (self.reads || !sent)
            && (self.has_answer
                || plan::can_leave(context.shared, context.request, at, self.tried)
                    && (!sent || self.budget.take()))
    }
}

impl Exchange<'_> {
    /// What the meaning of the answer depends on.
    pub(super) fn asking(&self) -> Asking<'_> {
        let request = self.context.request;
        Asking {
            method: request.method,
            info: request.info,
            server_kind: self.route.server_kind,
            no_such_resource: self.route.no_such_resource,
            for_peer: self.is_for_peer(),
        }
    }

    /// A peer's proxy gets the answer: a 404 that is passed on is marked as one that is not in doubt.
    pub(super) fn is_for_peer(&self) -> bool {
        self.route.row == Row::Rerouted
    }

    /// What a long-running request depends on.
    pub(super) fn revalidation(&self) -> Revalidation<'_> {
        Revalidation {
            shared: self.context.shared,
            connection: &self.context.downstream.client,
            caller: self.context.request.caller,
            trust: self.group.trust(),
            presented: self.presents_certificate(),
            server_kind: self.route.server_kind,
        }
    }

    /// Whether the proxy client certificate is presented.
    pub(super) fn presents_certificate(&self) -> bool {
        matches!(self.pool_choice, PoolChoice::Certificate)
    }

    /// Writes the answer within the budget for slow clients. `length`: of the body, if known.
    pub(super) fn answer_writer(&self, length: Option<usize>) -> AnswerWriter<'_> {
        let context = self.context;
        let outflow = &context.downstream.outflow;
        let long = context.kind != RequestKind::Short;
        AnswerWriter::new(&context.shared.limits.unread, outflow, long, length)
    }

    /// For an answer that is passed on as it arrives from `up`.
    pub(super) fn stream_writer(&self, up: &UpstreamSession) -> AnswerWriter<'_> {
        let writer = self.answer_writer(up.content_length());
        match up {
            UpstreamSession::H1(_) => writer.of_http1(),
            UpstreamSession::H2(_) => writer,
        }
    }

    /// Resolves when the server is suspected to be frozen and need not be waited for. `sent`: some of the request may
    /// have arrived.
    pub(super) async fn is_to_be_left(&self, sent: &AtomicBool) -> ExchangeFailure {
        let Some(leaving) = &self.leaving else {
            return std::future::pending().await;
        };
        let address = self.destination.address;
        let sent = || sent.load(Ordering::Relaxed);
        let elsewhere = || leaving.is_possible(self.context, address, sent());
        if leaving.reads {
            leaving.budget.read();
        }
        let frozen = &self.context.shared.servers.frozen;
        frozen
            .is_to_be_left(address, leaving.ticker, elsewhere)
            .await;
        ExchangeFailure::Frozen
    }

    /// Returns a connection to the pool if the request was sent completely. Otherwise the server would read the next
    /// request as the rest of this body.
    pub(super) async fn release(&self, up: UpstreamSession, upload: &Upload) {
        let kind = self.context.kind;
        if upload.is_sent()
            && kind != RequestKind::Upgrade
            && self.connection_choice == ConnectionChoice::Any
        {
            self.group
                .release(up, &self.destination, kind, &self.pool_choice)
                .await;
        }
    }
}
