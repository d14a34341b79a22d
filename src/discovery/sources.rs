//! Whose documents are kept, when they are read next, and what follows from them. No I/O; time comes in from outside.
//!
//! Written by [`super::gather`] alone. A class of servers ([`super::classes`]) is a source as long as it lists something
//! that the local apiserver lacks. What was read stays while its servers cannot be asked, and goes with their records.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::classes::{Class, classes, cover};
use super::gathered::{OpenApi, Source};
use super::held::{Held, Want};
use super::model::Document;
use super::openapi::Form;
use super::others::{Others, Peer, union};
use super::select::{by_name, select};
use crate::cluster::watch::jittered;
use crate::routing::table::{Custom, ServedSet, Server};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// OpenAPI documents that are kept, in bytes; nobody is asked for more of them.
const MOST_OPENAPI: usize = 128 << 20;

/// What sources are found by.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Known {
    /// All other servers.
    pub(super) servers: Vec<Server>,
    /// What belongs to nobody in particular.
    pub(super) custom: Arc<Custom>,
    /// What the local apiserver lists.
    pub(super) local: Arc<ServedSet>,
}

/// A class of servers and its documents.
#[derive(Debug)]
struct Tracked {
    key: u64,
    class: Class,
    held: Held,
    /// What of [`Tracked::held`] is lacking, and the names of what is lacking of it.
    described: Document,
    named: Document,
    openapi: Vec<Form>,
    due: Instant,
    running: bool,
    /// What is being read is not what is wanted any more.
    again: bool,
    failures: u32,
    read: Option<SystemTime>,
    error: Option<String>,
}

/// Documents to be read.
#[derive(Debug)]
pub(super) struct Job {
    /// To be told when it is done.
    pub(super) key: u64,
    /// What is asked; its addresses are tried one after the other, a job each.
    pub(super) address: SocketAddr,
    /// No proxy is there.
    pub(super) native: bool,
    /// What to read.
    pub(super) want: Want,
    /// What was read before.
    pub(super) held: Held,
}

/// All sources.
#[derive(Debug)]
pub(super) struct Sources {
    all: Vec<Tracked>,
    known: Option<Known>,
    every: Duration,
    /// Differs from proxy to proxy, so that not all ask the same server of a class.
    seed: usize,
    next_key: u64,
}

impl Sources {
    /// None yet. Documents are read anew about once in `every`.
    pub(super) fn new(every: Duration, seed: usize) -> Self {
        Self {
            all: Vec::new(),
            known: None,
            every,
            seed,
            next_key: 0,
        }
    }

    /// Finds the sources among what is known; whether it is something new.
    pub(super) fn plan(&mut self, known: &Known, now: Instant) -> bool {
        if self.known.as_ref() == Some(known) {
            return false;
        }
        let mut before = std::mem::take(&mut self.all);
        for class in classes(&known.servers, &known.local, &known.custom) {
            let same = before.iter().position(|tracked| tracked.class.is(&class));
            let tracked = match same.map(|index| before.remove(index)) {
                Some(tracked) => tracked.goes_on_as(class, now),
                None => {
                    self.next_key += 1;
                    let mut kin = self.all.iter().chain(&before);
                    let kin = kin.find(|tracked| tracked.class.shares_a_server(&class));
                    Tracked::new(self.next_key, class, kin.map(|kin| &kin.held), now)
                }
            };
            self.all.push(tracked);
        }
        self.known = Some(known.clone());
        true
    }

    /// Nothing is known: there are no sources.
    pub(super) fn clear(&mut self) -> bool {
        self.all.clear();
        self.known.take().is_some()
    }

    /// Whether there is nothing to read.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Which OpenAPI documents are wanted from now on.
    pub(super) fn want(&mut self, forms: &[Form], now: Instant) {
        let needed = cover(self.all.iter().map(|tracked| &tracked.class));
        let full = self.openapi_bytes() >= MOST_OPENAPI;
        for (tracked, needed) in self.all.iter_mut().zip(needed) {
            let wanted = forms.iter().copied();
            let wanted = wanted.filter(|form| needed && (!full || tracked.held.has_openapi(*form)));
            let wanted: Vec<Form> = wanted.collect();
            if wanted == tracked.openapi {
                continue;
            }
            tracked.held.release(&wanted);
            if !wanted.iter().all(|form| tracked.held.has_openapi(*form)) {
                tracked.anew(now);
            }
            tracked.openapi = wanted;
        }
    }

    /// Somebody to ask now.
    pub(super) fn next_job(&mut self, now: Instant) -> Option<Job> {
        let seed = self.seed;
        let mut due = self.all.iter_mut();
        let tracked = due.find(|tracked| tracked.is_due_by(now))?;
        let targets = tracked.class.targets();
        let turn = seed.wrapping_add(usize::try_from(tracked.failures).unwrap_or(0));
        let address = *targets.get(turn.checked_rem(targets.len())?)?;
        tracked.running = true;
        Some(Job {
            key: tracked.key,
            address,
            native: tracked.class.native,
            want: Want {
                resources: tracked.class.lacking.clone(),
                openapi: tracked.openapi.clone(),
            },
            held: tracked.held.clone(),
        })
    }

    /// When somebody is to be asked next.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waiting = self.all.iter().filter(|tracked| tracked.can_be_asked());
        waiting.map(|tracked| tracked.due).min()
    }

    /// A job is done: what is held now, and what failed.
    pub(super) fn done(&mut self, key: u64, held: Held, error: Option<String>, now: Instant) {
        let every = self.every;
        let tracked = self.all.iter_mut().find(|tracked| tracked.key == key);
        // Otherwise it is nobody's any more.
        if let Some(tracked) = tracked {
            tracked.done(held, error, every, now);
        }
    }

    /// What there is to add to the local apiserver's discovery.
    pub(super) fn others(&self) -> Others {
        let Some(known) = &self.known else {
            return Others::default();
        };
        let ranks = self
            .all
            .iter()
            .map(|tracked| tracked.class.rank.compatibility());
        let compatibility: Vec<_> = ranks.collect();
        let peers = self.all.iter().zip(&compatibility);
        let peers = peers.flat_map(|(tracked, compatibility)| {
            let peer = |document, target| Peer {
                id: tracked.class.id(),
                compatibility: compatibility.as_deref(),
                document,
                target,
            };
            // A name counts for less than what anybody's document says.
            [
                peer(&tracked.described, tracked.is_reachable()),
                peer(&tracked.named, false),
            ]
        });
        union(&peers.collect::<Vec<_>>(), &known.custom)
    }

    /// Their OpenAPI documents, of each form that is wanted and was asked of everybody.
    pub(super) fn openapi(&self, forms: &[Form]) -> OpenApi {
        let of = |form: Form| {
            let needed = self.all.iter().filter(|it| it.openapi.contains(&form));
            let mut documents = Vec::new();
            for tracked in needed {
                match tracked.held.openapi(form) {
                    Some(document) => documents.extend(document.cloned()),
                    // Not asked yet.
                    None if tracked.failures == 0 && tracked.is_reachable() => return None,
                    None => {}
                }
            }
            Some((form, documents))
        };
        OpenApi {
            documents: forms.iter().filter_map(|form| of(*form)).collect(),
        }
    }

    fn openapi_bytes(&self) -> usize {
        self.all
            .iter()
            .map(|tracked| tracked.held.openapi_bytes())
            .sum()
    }

    /// For people.
    pub(super) fn told(&self) -> Vec<Source> {
        self.all.iter().map(Tracked::told).collect()
    }
}

impl Tracked {
    /// `kin`: what was read of a server of it before it changed.
    fn new(key: u64, class: Class, kin: Option<&Held>, now: Instant) -> Self {
        let mut held = kin.cloned().unwrap_or_default();
        held.doubt();
        let mut tracked = Self {
            key,
            class,
            held,
            described: Document::default(),
            named: Document::default(),
            openapi: Vec::new(),
            due: now,
            running: false,
            again: false,
            failures: 0,
            read: None,
            error: None,
        };
        tracked.describe();
        tracked
    }

    fn goes_on_as(mut self, class: Class, now: Instant) -> Self {
        let other = self.class.lacking != class.lacking;
        let back = !self.is_reachable();
        self.class = class;
        if other {
            // Only what was lacking then was kept.
            self.held.doubt();
            self.describe();
            self.anew(now);
        } else if back {
            self.due = now;
        }
        self
    }

    /// Something that is not there is wanted.
    fn anew(&mut self, now: Instant) {
        self.again = self.running;
        self.due = now;
    }

    fn is_reachable(&self) -> bool {
        self.class.members.iter().any(|member| member.target)
    }

    fn can_be_asked(&self) -> bool {
        !self.running && self.is_reachable()
    }

    fn is_due_by(&self, now: Instant) -> bool {
        self.can_be_asked() && self.due <= now
    }

    fn done(&mut self, held: Held, error: Option<String>, every: Duration, now: Instant) {
        self.held = held;
        self.held.release(&self.openapi);
        self.running = false;
        if std::mem::take(&mut self.again) {
            self.describe();
            self.held.doubt();
            self.due = now;
            return;
        }
        self.describe();
        let error = error.or_else(|| match self.named.served().len() {
            0 => None,
            count => Some(format!(
                "{count} resources that it serves are in no document"
            )),
        });
        let pause = match error {
            None => {
                self.failures = 0;
                self.read = Some(SystemTime::now());
                jittered(every)
            }
            Some(_) => {
                self.failures = self.failures.saturating_add(1);
                self.pause(every)
            }
        };
        self.error = error;
        self.due = now + pause;
    }

    /// None as long as there are others who were not asked.
    fn pause(&self, every: Duration) -> Duration {
        let others = u32::try_from(self.class.targets().len()).unwrap_or(u32::MAX);
        match self.failures.checked_sub(others) {
            None => Duration::ZERO,
            Some(more) => {
                let full = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(more));
                jittered(full.min(every))
            }
        }
    }

    /// After a change of what is lacking, or held.
    fn describe(&mut self) {
        let lacking = &self.class.lacking;
        let selected = self.held.documents().map(|part| select(part, lacking));
        let groups = selected.flat_map(|part| part.groups).collect();
        self.described = Document { groups };
        let known = self.described.served();
        self.named = by_name(&lacking.difference(&known).cloned().collect());
    }

    fn told(&self) -> Source {
        Source {
            servers: self
                .class
                .members
                .iter()
                .map(|member| member.id.clone())
                .collect(),
            version: self.class.version.clone(),
            reachable: self.is_reachable(),
            group_versions: self.class.group_versions().len(),
            by_name: self
                .named
                .groups
                .iter()
                .map(|group| group.versions.len())
                .sum(),
            read: self.read,
            error: self.error.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
