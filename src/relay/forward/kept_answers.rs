//! Answers that are kept while other servers are tried, and passed on if none of them answers otherwise.
//!
//! An apiserver that is shutting down turns requests away ([`crate::relay::inspect::turned_away`]). An apiserver may
//! learn of a CustomResourceDefinition, or of a version of one, later than others: its "no such resource" counts when
//! every target has answered the same. Neither request was executed, so any verb may be sent again.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::relay::outcome::{ExchangeFailure, KeptAnswer};
use crate::relay::plan::Route;

/// An answer, and the route to the server that gave it.
pub(super) type AnswerOf = Box<(Route, Arc<KeptAnswer>)>;

/// The answers that were kept for one request, each with where it came from.
#[derive(Default)]
pub(super) struct KeptAnswers {
    /// Of a server that turned the request away.
    pub(super) turned_away: Option<AnswerOf>,
    /// "No such resource", of the local apiserver.
    no_such_resource: Option<AnswerOf>,
    /// "No such resource" that counts ([`crate::relay::inspect::denials`]), the first one, and all servers that it came
    /// from.
    pub(super) denial: Option<AnswerOf>,
    pub(super) denying: Vec<SocketAddr>,
    /// A server failed for another reason, so it may serve the resource.
    contradicted: bool,
}

impl KeptAnswers {
    pub(super) fn add(&mut self, route: &Route, failure: &ExchangeFailure) {
        match failure {
            ExchangeFailure::Terminating(answer) | ExchangeFailure::Unavailable(answer) => {
                self.turned_away = Some(Box::new((route.clone(), answer.clone())));
            }
            ExchangeFailure::NoSuchResource(answer) => {
                self.no_such_resource = Some(Box::new((route.clone(), answer.clone())));
            }
            _ => {}
        }
        self.contradicted |= !failure.is_no_such_resource();
    }

    /// "No such resource" that counts.
    pub(super) fn add_denial(&mut self, route: &Route, answer: &Arc<KeptAnswer>) {
        self.denying.push(route.address);
        self.denial
            .get_or_insert_with(|| Box::new((route.clone(), answer.clone())));
    }

    /// Whether the next server is asked only because one has answered "no such resource".
    pub(super) fn may_be_known_elsewhere(&self) -> bool {
        self.no_such_resource.is_some()
    }

    /// "No such resource", if all servers that were asked have answered so.
    pub(super) fn unanimous(self) -> Option<AnswerOf> {
        self.no_such_resource.filter(|_| !self.contradicted)
    }
}
