//! What an exchange is, and the headers that are written for it: those of the request to the server (headers that only
//! peers may send are removed, and the identity is written last), and those of the answer to the client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING,
};
use http::request::Parts;
use http::{Method, Request, StatusCode, Uri, Version};
use pingora_core::{Error, ErrorType};
use pingora_http::ResponseHeader;

use super::expired::Expiry;
use crate::relay::client::unread::AnswerWriter;
use crate::relay::client::{ClientSession, VerificationPermit};
use crate::relay::context::RequestContext;
use crate::relay::documents::Overlay;
use crate::relay::inspect::Asking;
use crate::relay::outcome::ExchangeFailure;
use crate::relay::plan::{self, Route};
use crate::relay::shared::Shared;
use crate::relay::upstream::frozen::{ReadBudget, Ticker};
use crate::relay::upstream::{
    ConnectionChoice, ConnectionPool, RequestKind, Token, UpstreamSession,
};
use crate::relay::watch::Revalidation;
use crate::request::caller::Caller;
use crate::request::headers::{
    FORWARDED_FOR, IF_READY, KEEP_ALIVE, NOT_EXECUTED, OF_RESOURCE, PEER_PROXIED, PROXY_CONNECTION,
    READY, REROUTED, SERVER_ID, set, stamp_address, strip_hop_by_hop,
};
use crate::request::surplus::keep_client_headers;
use crate::routing::decide::Row;
use crate::routing::table::ServerKind;

/// The parameters of one exchange.
pub struct Exchange<'a> {
    pub context: &'a RequestContext<'a>,
    /// Where the request is sent.
    pub route: &'a Route,
    /// The connections that it may use, and which of them.
    pub pool: Arc<ConnectionPool>,
    pub connection: ConnectionChoice,
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
    pub overlay: Option<Box<Overlay>>,
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
                || plan::can_leave(context, at, self.tried) && (!sent || self.budget.take()))
    }
}

impl Exchange<'_> {
    /// What the meaning of the answer depends on.
    pub(super) fn asking(&self) -> Asking<'_> {
        let context = self.context;
        Asking {
            method: &context.method,
            info: &context.info,
            server_kind: self.route.server_kind,
            no_such_resource: self.route.no_such_resource,
            for_peer: self.is_for_peer(),
        }
    }

    /// A peer's proxy gets the answer: a 404 that is passed on is marked as one that is not in doubt.
    fn is_for_peer(&self) -> bool {
        self.route.row == Row::Rerouted
    }

    /// What a long-running request depends on.
    pub(super) fn revalidation(&self) -> Revalidation<'_> {
        Revalidation {
            shared: self.context.shared,
            connection: &self.context.downstream.client,
            caller: &self.context.caller,
            trust: &self.pool.to.trust,
            presented: self.pool.to.presents_certificate,
            server_kind: self.route.server_kind,
        }
    }

    /// Writes the answer within the budget for slow clients. `length`: of the body, if known.
    pub(super) fn answer_writer(&self, length: Option<usize>) -> AnswerWriter<'_> {
        let context = self.context;
        let outflow = &context.downstream.outflow;
        let long = context.kind != RequestKind::Short;
        AnswerWriter::new(&context.shared.limits.unread, outflow, long, length)
    }

    /// Resolves when the server is suspected to be frozen and need not be waited for. `sent`: some of the request may
    /// have arrived.
    pub(super) async fn is_to_be_left(&self, sent: &AtomicBool) -> ExchangeFailure {
        let Some(leaving) = &self.leaving else {
            return std::future::pending().await;
        };
        let address = self.route.address;
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

    /// Returns a connection to the pool if the request `is_sent` completely. Otherwise the server would read the next
    /// request as the rest of this body.
    pub(super) async fn release(&self, up: UpstreamSession, is_sent: bool) {
        if is_sent && self.connection == ConnectionChoice::Any {
            self.pool.release(up, self.route.address).await;
        }
    }
}

/// Writes the headers that are the same for every server. Returns whether the proxy client certificate is presented.
pub fn for_any_server(
    context: &RequestContext<'_>,
    header: &mut Parts,
) -> pingora_core::Result<bool> {
    let (shared, caller) = (context.shared, &context.caller);
    let headers = &mut header.headers;
    if *caller != Caller::Peer {
        let forged = shared.callers.privileged.strip(headers);
        if forged > 0 {
            shared.metrics.rejected_headers.inc_by(forged as u64);
        }
    }
    if context.settings.if_ready.enabled {
        headers.remove(IF_READY);
    }
    // Over HTTP/2 pingora drops the apiserver's own 100, and curl would wait a second for it: the proxy sends it.
    headers.remove(EXPECT);
    strip_hop_by_hop(
        headers,
        header.version,
        context.kind == RequestKind::Upgrade,
    )?;
    // The identity comes last, so that `ClientConnection` cannot remove it.
    if let Caller::User(user) = caller {
        shared.callers.privileged.stamp(headers, user)?;
    }
    let certificate = shared.callers.user(caller, headers).is_some();
    if *caller != Caller::Peer || !headers.contains_key(FORWARDED_FOR) {
        stamp_address(headers, &context.downstream.client.address)?;
    }
    Ok(certificate)
}

/// Removes headers that the server may believe and the configuration does not name, and writes the marks that limit a
/// request to one reroute.
pub fn for_server_kind(
    context: &RequestContext<'_>,
    headers: &mut HeaderMap,
    server_kind: ServerKind,
) -> pingora_core::Result<()> {
    if context.caller != Caller::Peer {
        remove_surplus(context.shared, headers, &context.caller, server_kind);
    }
    match server_kind {
        ServerKind::Proxied | ServerKind::Native | ServerKind::Bare => {
            set(headers, REROUTED, HeaderValue::from_static("true"))?;
            set(headers, PEER_PROXIED, HeaderValue::from_static("true"))
        }
        // The apiserver gets only its own mark. Without it a native apiserver would pass the request on again.
        ServerKind::Local => match headers.remove(REROUTED) {
            Some(_) => set(headers, PEER_PROXIED, HeaderValue::from_static("true")),
            None => Ok(()),
        },
    }
}

/// As long as it is not known which headers the server believes over a connection that presents the proxy client
/// certificate, only those that clients need go over one.
fn remove_surplus(
    shared: &Shared,
    headers: &mut HeaderMap,
    caller: &Caller,
    server_kind: ServerKind,
) {
    let surplus = shared.local.surplus_headers();
    let certificate = matches!(caller, Caller::User(_)) || server_kind == ServerKind::Proxied;
    // An apiserver publishes its names after it has started.
    let starting = server_kind == ServerKind::Local && !shared.local.is_initialized();
    if certificate && (starting || !surplus.is_known()) {
        return keep_client_headers(headers, &shared.callers.privileged);
    }
    let forged = surplus.strip(headers, &shared.callers.privileged);
    if forged > 0 {
        shared.metrics.rejected_headers.inc_by(forged as u64);
    }
}

/// A header that a server was sent. Its fields are a list: a copy of the map would take more time and several times the
/// memory, for a case that is rare.
pub(super) struct SentHeader {
    method: Method,
    uri: Uri,
    version: Version,
    fields: Vec<(HeaderName, HeaderValue)>,
}

impl SentHeader {
    pub(super) fn of(header: &Parts) -> Self {
        let fields = header.headers.iter();
        Self {
            method: header.method.clone(),
            uri: header.uri.clone(),
            version: header.version,
            fields: fields
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        }
    }

    /// The header once more.
    pub(super) fn again(&self) -> Box<Parts> {
        let mut header = Request::new(()).into_parts().0;
        header.method = self.method.clone();
        header.uri = self.uri.clone();
        header.version = self.version;
        for (name, value) in &self.fields {
            header.headers.append(name, value.clone());
        }
        Box::new(header)
    }
}

/// Writes the response header; `end`: there is no body. Returns when it began to.
pub(super) async fn pass_header(
    exchange: &Exchange<'_>,
    down: &mut ClientSession,
    mut response: Box<ResponseHeader>,
    end: bool,
) -> pingora_core::Result<Instant> {
    let RequestContext {
        shared,
        downstream,
        kind,
        method,
        meter,
        ..
    } = exchange.context;
    // On an upgrade `Connection` is about the upgrade, and the client's protocol writes the rest.
    if response.status != StatusCode::SWITCHING_PROTOCOLS {
        if shared.shutdown.is_draining() || ends_connection(exchange, &response) {
            down.end_connection(downstream);
        }
        // Waiting requests may go on: it is known whether the connection ends.
        if let Some(permit) = exchange.permit {
            permit.end();
        }
        strip_hop_by_hop_of_answer(&mut response);
    } else if *kind != RequestKind::Upgrade {
        return Error::e_explain(ErrorType::InvalidHTTPHeader, "101 to what is no upgrade");
    }
    write_marks(exchange, &mut response)?;
    let now = Instant::now();
    meter.answer_begins(response.status.as_u16(), now);
    match down {
        ClientSession::H2(_) => {}
        ClientSession::H1(session) => {
            if *kind != RequestKind::Upgrade && shared.shutdown.is_leaving() {
                session.set_keepalive(None);
            }
            frame_for_http1(session.req_header().version, &mut response, method)?;
        }
    }
    down.write_header(response, end).await?;
    Ok(now)
}

/// Writes what this proxy says of an answer, and removes what only it may say.
fn write_marks(exchange: &Exchange<'_>, response: &mut ResponseHeader) -> pingora_core::Result<()> {
    let (context, shared) = (exchange.context, exchange.context.shared);
    // Only for peers' proxies: an apiserver must not forge it.
    if matches!(
        response.status,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::NOT_FOUND
    ) {
        response.remove_header(&NOT_EXECUTED);
    }
    if exchange.is_for_peer() && response.status == StatusCode::NOT_FOUND {
        response.insert_header(NOT_EXECUTED, OF_RESOURCE)?;
    }
    // Only for peers' proxies, too.
    if response.headers.contains_key(SERVER_ID) {
        response.remove_header(&SERVER_ID);
    }
    if context.may_seek_a_proxy() {
        response.insert_header(SERVER_ID, shared.server_id_header())?;
    }
    // Only this proxy sets it: the value of another proxy is about another apiserver.
    if context.settings.if_ready.enabled && response.headers.contains_key(READY) {
        response.remove_header(&READY);
    }
    if let Some(ready) = exchange.ready {
        shared.metrics.ready_answered(ready);
        response.insert_header(
            READY,
            HeaderValue::from_static(if ready { "true" } else { "false" }),
        )?;
    }
    Ok(())
}

/// Whether the client is to send no more requests on its connection: the apiserver did not authenticate it, or,
/// over an HTTP/1.1 connection for this client alone, the apiserver closes it. An answer from a pod behind `proxy`
/// does not count.
fn ends_connection(exchange: &Exchange<'_>, response: &ResponseHeader) -> bool {
    let context = exchange.context;
    let refused = response.status == StatusCode::UNAUTHORIZED && !context.info.is_proxied();
    match context.caller {
        Caller::Peer => false,
        Caller::Anonymous if exchange.route.details.ends_anonymous => true,
        _ => refused || says_close(&response.headers),
    }
}

/// Removes hop-by-hop headers from an answer, and those that `Connection` lists.
fn strip_hop_by_hop_of_answer(response: &mut ResponseHeader) {
    if response.version == Version::HTTP_2 {
        // They are malformed there (RFC 9113 §8.2.2): h2 lets none through.
        return;
    }
    for name in listed_in_connection(&response.headers) {
        response.remove_header(&name);
    }
    for name in [&CONNECTION, &KEEP_ALIVE, &PROXY_CONNECTION] {
        response.remove_header(name);
    }
}

/// Whether an answer says that its connection will be closed.
fn says_close(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(CONNECTION).iter();
    values.any(|value| {
        let mut words = value.as_bytes().split(|byte| *byte == b',');
        words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
    })
}

fn listed_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let values = headers.get_all(CONNECTION).iter();
    values
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .collect()
}

/// Sets how an answer's body is delimited for an HTTP/1 client.
fn frame_for_http1(
    client: Version,
    response: &mut ResponseHeader,
    method: &Method,
) -> pingora_core::Result<()> {
    let bodiless = *method == Method::HEAD
        || response.status.is_informational()
        || matches!(
            response.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
    let chunked =
        client >= Version::HTTP_11 && !bodiless && !response.headers.contains_key(CONTENT_LENGTH);
    if chunked {
        response.insert_header(TRANSFER_ENCODING, HeaderValue::from_static("chunked"))?;
    } else {
        response.remove_header(&TRANSFER_ENCODING);
    }
    // Some clients would wait for a body, and read the next answer as the body.
    if response.status == StatusCode::NO_CONTENT {
        response.remove_header(&CONTENT_LENGTH);
    }
    response.set_version(Version::HTTP_11);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(fields: &[(String, Vec<u8>)]) -> Parts {
        let mut request = Request::put("https://host:6443/api/v1/pods?x=1");
        for (name, value) in fields {
            request = request.header(name, &value[..]);
        }
        request.body(()).unwrap().into_parts().0
    }

    proptest! {
        #[test]
        fn a_header_is_the_same_afterwards(
            fields in prop::collection::vec(("[a-d]{1,2}|accept|authorization", "[ -~\u{80}-\u{ff}]{0,40}"), 0..20),
            sensitive in any::<bool>(),
        ) {
            let fields: Vec<_> = fields.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
            let mut header = header(&fields);
            header.version = Version::HTTP_2;
            for value in header.headers.values_mut() {
                value.set_sensitive(sensitive);
            }
            let again = SentHeader::of(&header).again();
            prop_assert_eq!(&again.headers, &header.headers);
            let list = |header: &Parts| -> Vec<_> {
                let fields = header.headers.iter();
                fields.map(|(name, value)| (name.clone(), value.clone(), value.is_sensitive())).collect()
            };
            prop_assert_eq!(list(&again), list(&header));
            prop_assert_eq!((again.method, again.uri, again.version), (header.method, header.uri, header.version));
        }
    }

    #[test]
    fn an_answer_without_a_body_names_no_length_unless_it_is_that_of_another() {
        let length_left = |status, method| {
            let mut response = ResponseHeader::build(status, None).unwrap();
            response.insert_header(CONTENT_LENGTH, 5).unwrap();
            frame_for_http1(Version::HTTP_11, &mut response, &method).unwrap();
            assert!(!response.headers.contains_key(TRANSFER_ENCODING));
            response.headers.contains_key(CONTENT_LENGTH)
        };
        assert!(!length_left(204, Method::GET));
        // The length of the GET answer, or of the document that the client has.
        assert!(length_left(200, Method::HEAD));
        assert!(length_left(304, Method::GET));
        assert!(length_left(200, Method::GET));
    }

    #[test]
    fn what_connection_lists_goes_with_it() {
        let mut response = ResponseHeader::build(200, None).unwrap();
        for (name, value) in [
            ("connection", "X-One,, x-two ,\u{e9}"),
            ("connection", "close"),
            ("keep-alive", "timeout=5"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-two", "2"),
            ("x-three", "3"),
        ] {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            response.append_header(name, value).unwrap();
        }
        strip_hop_by_hop_of_answer(&mut response);
        let left: Vec<_> = response.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["x-three"]);
    }
}
