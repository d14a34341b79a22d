//! One request to one server after the other, until one answers.
//!
//! Nothing is sent twice that could write: when an exchange broke off after some of it was sent, only what just reads
//! is tried elsewhere. What was certainly not executed is tried elsewhere whatever the verb, as long as its body can be
//! sent again.
//!
//! When nobody is left, the client gets a 503 in one of two forms. With `Retry-After` client-go sends the request
//! again, whatever its verb; so a write that may have been executed gets the one without.

use std::net::SocketAddr;
use std::time::Instant;

use http::Method;
use pingora_core::ErrorType;
use pingora_core::protocols::http::ServerSession;
use pingora_http::RequestHeader;

use super::answer::Refusal;
use super::dress;
use super::forward::{Exchange, Failure, Outcome, Side};
use super::framing::Discreet;
use super::plan::{self, Asked, Plan, Step, Way};
use super::shared::Shared;
use super::upload::Upload;
use super::upstream::{Kind, Upstreams};
use crate::admin::documents::How;
use crate::admin::recent::Event;
use crate::request::who::{Caller, Connection};
use crate::trouble::Pace;

/// New tries with one server over other connections: each of those that are pooled may have been closed meanwhile.
const CONNECTIONS: u32 = 4;

/// A request on its way.
pub struct Request<'a> {
    /// What it asks for.
    pub asked: &'a Asked<'a>,
    /// Whose connection it came on.
    pub connection: &'a Connection,
    /// Its header, as it was read.
    pub header: Box<RequestHeader>,
    /// How it travels.
    pub kind: Kind,
    /// `X-Kubernetes-Ready` on the answer.
    pub tell: Option<bool>,
    /// When it was read.
    pub started: Instant,
}

/// What came of a request.
pub enum End {
    /// A server answered.
    Answered {
        /// Its status.
        code: u16,
        /// The client's connection can take another request.
        reusable: bool,
    },
    /// An upgraded connection came to its end, and with it the client's.
    Upgraded,
    /// The client is to be told this; who was asked last, if anybody was.
    Refused(Refusal, Option<SocketAddr>),
    /// The client's stream is to be reset.
    Broken,
}

impl<'a> Request<'a> {
    /// Whether it may be executed twice. `exec` over WebSocket is a GET too, and no reading.
    fn is_safe(&self) -> bool {
        let reads = matches!(
            *self.asked.method,
            Method::GET | Method::HEAD | Method::OPTIONS
        );
        reads && self.kind != Kind::Upgrade
    }

    /// Tries `way`, and then whoever else can serve it.
    pub async fn run(
        mut self,
        shared: &Shared,
        upstreams: &Upstreams,
        session: &mut ServerSession,
        mut upload: Upload,
        mut way: Way,
    ) -> End {
        let certificate = match self.dress(shared) {
            Ok(certificate) => certificate,
            Err(refusal) => return End::Refused(refusal, None),
        };
        let mut tried: Vec<SocketAddr> = Vec::new();
        let mut connections = 0;
        loop {
            let (exchange, header) = match self.exchange(shared, upstreams, certificate, &way) {
                Ok(exchange) => exchange,
                Err(error) => return End::Refused(unwritable(&error), None),
            };
            let failure = match exchange.run(session, header, &mut upload).await {
                Outcome::Broken => return End::Broken,
                Outcome::Answered { code, reusable } => {
                    self.answered(shared, &way, code);
                    return End::Answered { code, reusable };
                }
                Outcome::Upgraded => {
                    self.answered(shared, &way, 101);
                    return End::Upgraded;
                }
                // No server was asked, and none is to blame.
                Outcome::Failed(Failure::Unsent(error))
                    if *error.etype() == ErrorType::InvalidHTTPHeader =>
                {
                    return End::Refused(unwritable(&error), None);
                }
                Outcome::Failed(failure) => failure,
            };
            connections += 1;
            let same = failure.is_of_the_connection() && connections < CONNECTIONS;
            if !same {
                report(shared, &way, &failure);
                tried.push(way.address);
                connections = 0;
            }
            let last = self.refusal(&failure);
            if last.forbids_repetition() || !upload.can_begin_again() {
                return End::Refused(last, Some(way.address));
            }
            let Plan { tell, step } = plan::next(shared, self.asked, &tried, last);
            match step {
                Step::Forward(next) => {
                    if next.address != way.address {
                        shared.metrics.failed_over(&failure);
                    }
                    self.tell = tell;
                    way = next;
                }
                Step::Answer(refusal) => return End::Refused(refusal, Some(way.address)),
            }
        }
    }

    /// Writes the headers that are the same wherever it goes; whether the proxy client certificate goes with it.
    fn dress(&mut self, shared: &Shared) -> Result<bool, Refusal> {
        let caller = self.asked.caller;
        dress::for_anybody(shared, &mut self.header, self.connection, caller, self.kind)
            .map_err(|error| unwritable(&error))
    }

    fn exchange<'s>(
        &self,
        shared: &'s Shared,
        upstreams: &'s Upstreams,
        certificate: bool,
        way: &Way,
    ) -> pingora_core::Result<(Exchange<'s>, Box<RequestHeader>)>
    where
        'a: 's,
    {
        let mut header = self.header.clone();
        dress::for_side(&mut header, way.side)?;
        let merging = way
            .overlay
            .as_ref()
            .map(|overlay| overlay.begin(shared, &mut header));
        if let Caller::User(who) = self.asked.caller {
            let privileged = &shared.privileged;
            privileged.stamp_details(&mut header, who, way.details)?;
        }
        let group = match way.side {
            Side::Local => &upstreams.local,
            Side::Peer | Side::Native => &upstreams.peers,
        };
        let exchange = Exchange {
            shared,
            info: self.asked.info,
            caller: self.asked.caller,
            connection: self.connection,
            group,
            destination: group.at(way.address),
            kind: self.kind,
            // Tokens and anonymous requests go to a proxy under our certificate: only a peer's reroute mark is
            // believed. An apiserver would take an anonymous request with our certificate for one with a bad one.
            certificate: certificate || way.side == Side::Peer,
            side: way.side,
            tell: self.tell,
            pass_no_such_resource: way.pass_no_such_resource,
            merging: merging.transpose()?.flatten(),
            started: self.started,
        };
        Ok((exchange, header))
    }

    fn answered(&self, shared: &Shared, way: &Way, code: u16) {
        if way.side != Side::Local {
            shared.health.answered(way.address);
            shared.metrics.rerouted(code, way.rerouted_as.as_ref());
            shared.recent.rerouted.add(|| {
                let request = Some((self.asked.method, self.asked.info));
                Event::new(request, Some(way.address), code, way.row.name())
            });
            if way.overlay.is_some() {
                shared.metrics.documents.count(How::Rerouted);
            }
        }
    }

    /// What the client is told if nobody else can be asked after `failure`.
    fn refusal(&self, failure: &Failure) -> Refusal {
        match failure {
            Failure::DoubtfulNotFound => Refusal::DoubtfulNotFound,
            _ => Refusal::Failed {
                maybe_executed: failure.maybe_executed() && !self.is_safe(),
            },
        }
    }
}

fn unwritable(error: &pingora_core::Error) -> Refusal {
    static PACE: Pace = Pace::new();
    if let Some(left_out) = PACE.admit() {
        tracing::warn!(error = %Discreet(error), left_out, "request headers cannot be written");
    }
    Refusal::BadTarget
}

/// Tells those who want to know of a server's failure.
fn report(shared: &Shared, way: &Way, failure: &Failure) {
    static PACE: Pace = Pace::new();
    let refused = failure.is_refused();
    let worth_a_line = match (way.side, failure) {
        (Side::Local, _) if refused => {
            shared.local.refused();
            None
        }
        // It was asked for a document that others are known to have, and is not expected to.
        (Side::Local, Failure::DoubtfulNotFound) if way.overlay.is_some() => None,
        // It is there, and serves something else than was believed.
        (_, Failure::DoubtfulNotFound) => {
            shared.local.doubt();
            PACE.admit()
        }
        // What is wrong may be on our side.
        (Side::Local, _) | (_, Failure::Unmerged) => PACE.admit(),
        _ => shared.health.failed(way.address).then_some(0),
    };
    if refused && way.side != Side::Local {
        // Only wanted while it is doubted that somebody lives; there is no harm in dropping it.
        let _ = shared.published.refused.try_send(way.address);
    }
    let (address, failure, error) = (way.address, failure.name(), failure.error().map(Discreet));
    let error = error.map(tracing::field::display);
    match worth_a_line {
        Some(left_out) => {
            tracing::info!(to = ?way.side, %address, failure, error, left_out, "exchange failed");
        }
        None => tracing::debug!(to = ?way.side, %address, failure, error, "exchange failed"),
    }
}
