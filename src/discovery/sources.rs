//! Decides which peers' documents are read and when, and what the local apiserver lacks of them. No I/O; the caller
//! passes the time.
//!
//! Only [`super::reader`] writes it. A class of servers ([`super::classes`]) is a source as long as it lists resources
//! that the local apiserver lacks. Its documents stay while its servers cannot be reached, and go with their records.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::classes::{ServerClass, classes, contents};
use super::openapi::OpenApiFormat;
use super::peer_union::{by_name, union};
use crate::discovery::cache::{DocumentCache, WantedDocuments};
use crate::discovery::peer_discovery::{PeerOpenApi, SourceStatus};
use crate::kube::discovery::model::{Document, versions};
use crate::kube::gvr::ServedSet;
use crate::retry::{Backoff, jittered};
use crate::routing::table::Server;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Limit of all OpenAPI documents, in bytes. Above it no others are read.
const MOST_OPENAPI: usize = 128 << 20;

/// A class of servers and its documents.
#[derive(Debug)]
struct Tracked {
    key: u64,
    class: ServerClass,
    cache: DocumentCache,
    due: Instant,
    running: bool,
    /// The running job reads something that is not wanted any more.
    again: bool,
    failures: u32,
    /// Why not all documents are read.
    error: Option<String>,
}

/// Documents to be read.
#[derive(Debug)]
pub(super) struct ReadJob {
    /// For [`Sources::done`].
    key: u64,
    /// The server to read. Each job tries the next server of the class.
    pub(super) address: SocketAddr,
    /// The server has no proxy.
    pub(super) native: bool,
    pub(super) want: WantedDocuments,
    pub(super) cache: DocumentCache,
}

/// All sources.
#[derive(Debug, Default)]
pub(super) struct Sources {
    all: Vec<Tracked>,
    /// OpenAPI documents that are wanted.
    formats: BTreeSet<OpenApiFormat>,
    every: Duration,
    /// Random for each proxy, so that not all read the same server of a class.
    seed: usize,
    next_key: u64,
}

impl Sources {
    /// Documents are read again about once in `every`.
    pub(super) fn new(every: Duration, seed: usize) -> Self {
        Self {
            every,
            seed,
            ..Self::default()
        }
    }

    /// Finds the sources among all other servers. `local`: what the local apiserver serves itself.
    pub(super) fn plan(&mut self, servers: &[Server], local: &ServedSet, now: Instant) {
        let mut before = std::mem::take(&mut self.all);
        for class in classes(servers, local) {
            let mut known = before.iter().map(|tracked| contents(tracked.class.first()));
            let same = known.position(|known| known == contents(class.first()));
            let tracked = match same.map(|index| before.remove(index)) {
                Some(tracked) => tracked.update_class(class, now),
                None => {
                    self.next_key += 1;
                    let mut related = self.all.iter().chain(&before);
                    let related = related.find(|tracked| tracked.class.shares_a_server(&class));
                    let cache = related.map(|related| related.cache.clone());
                    Tracked {
                        key: self.next_key,
                        class,
                        cache: cache.unwrap_or_default(),
                        due: now,
                        running: false,
                        again: false,
                        failures: 0,
                        error: Some("not read yet".to_owned()),
                    }
                }
            };
            self.all.push(tracked);
        }
    }

    /// Removes all sources.
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Whether there is nothing to read.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Sets which OpenAPI documents are wanted from now on.
    pub(super) fn want(&mut self, formats: &BTreeSet<OpenApiFormat>, now: Instant) {
        let are_new = !formats.is_subset(&self.formats);
        self.formats.clone_from(formats);
        for tracked in &mut self.all {
            tracked.cache.release(formats);
            if are_new {
                tracked.read_again(now);
            }
        }
    }

    /// The next document to read now.
    pub(super) fn next_job(&mut self, now: Instant) -> Option<ReadJob> {
        let (full, seed) = (self.is_full(), self.seed);
        let mut due = self.all.iter_mut();
        let tracked = due.find(|tracked| tracked.can_be_asked() && tracked.due <= now)?;
        let targets = tracked.class.targets();
        let next = seed.wrapping_add(usize::try_from(tracked.failures).unwrap_or(0));
        let address = *targets.get(next.checked_rem(targets.len())?)?;
        let formats = self.formats.iter().copied();
        let is_read = |format: &OpenApiFormat| tracked.cache.openapi(*format).is_some();
        let openapi = formats.filter(|format| !full || is_read(format)).collect();
        tracked.running = true;
        Some(ReadJob {
            key: tracked.key,
            address,
            native: !tracked.class.first().kind.has_proxy(),
            want: WantedDocuments {
                group_versions: tracked.class.group_versions(),
                openapi,
            },
            cache: tracked.cache.clone(),
        })
    }

    /// When the next document is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let waiting = self.all.iter().filter(|tracked| tracked.can_be_asked());
        waiting.map(|tracked| tracked.due).min()
    }

    /// A job is done, with what it read into its cache, and its error.
    pub(super) fn done(&mut self, mut job: ReadJob, error: Option<String>, now: Instant) {
        job.cache.release(&self.formats);
        let mut all = self.all.iter_mut();
        // The source may be gone.
        if let Some(tracked) = all.find(|tracked| tracked.key == job.key) {
            tracked.done(job.cache, error, self.every, now);
        }
    }

    /// What the local apiserver's discovery lacks.
    pub(super) fn others(&self) -> Document {
        let documents: Vec<_> = self.all.iter().map(Tracked::documents).collect();
        let described = self.all.iter().zip(&documents);
        let described = described.map(|(it, (described, _))| (described, it.class.is_reachable()));
        // Names count less than documents.
        let named = documents.iter().map(|(_, named)| (named, false));
        union(&described.chain(named).collect::<Vec<_>>())
    }

    /// OpenAPI documents in each wanted format that all sources were asked for.
    pub(super) fn openapi(&self, formats: &BTreeSet<OpenApiFormat>) -> PeerOpenApi {
        let full = self.is_full();
        let of = |format: OpenApiFormat| {
            let mut documents = Vec::new();
            for tracked in &self.all {
                match tracked.cache.openapi(format) {
                    Some(document) => documents.extend(document.cloned()),
                    // Not asked yet.
                    None if tracked.failures == 0 && tracked.class.is_reachable() && !full => {
                        return None;
                    }
                    None => {}
                }
            }
            Some((format, documents))
        };
        formats.iter().filter_map(|format| of(*format)).collect()
    }

    fn is_full(&self) -> bool {
        let bytes = self.all.iter().map(|it| it.cache.openapi_bytes());
        bytes.sum::<usize>() >= MOST_OPENAPI
    }

    /// For the status page.
    pub(super) fn status(&self) -> Vec<SourceStatus> {
        self.all.iter().map(Tracked::status).collect()
    }
}

impl Tracked {
    fn update_class(mut self, class: ServerClass, now: Instant) -> Self {
        let other = self.class.lacking != class.lacking;
        let back = !self.class.is_reachable();
        self.class = class;
        if other {
            self.read_again(now);
        } else if back {
            self.due = now;
        }
        self
    }

    /// Something else is wanted: reads again at once.
    fn read_again(&mut self, now: Instant) {
        self.again = self.running;
        self.due = now;
    }

    fn can_be_asked(&self) -> bool {
        !self.running && self.class.is_reachable()
    }

    fn done(&mut self, cache: DocumentCache, error: Option<String>, every: Duration, now: Instant) {
        self.cache = cache;
        self.running = false;
        if std::mem::take(&mut self.again) {
            self.due = now;
            return;
        }
        let error = error.or_else(|| match self.documents().1.served().len() {
            0 => None,
            count => Some(format!(
                "{count} resources that it serves are in no document"
            )),
        });
        let pause = match error {
            None => {
                self.failures = 0;
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

    /// Zero until every server of the class was tried.
    fn pause(&self, every: Duration) -> Duration {
        let others = u32::try_from(self.class.targets().len()).unwrap_or(u32::MAX);
        match self.failures.checked_sub(others) {
            None => Duration::ZERO,
            Some(more) => {
                let backoff = Backoff::between(FIRST_PAUSE, every);
                backoff.random_pause(more.saturating_add(1))
            }
        }
    }

    /// The part of what was read that the local apiserver lacks, and the names of lacking resources that are not in it.
    fn documents(&self) -> (Document, Document) {
        let lacking = &self.class.lacking;
        let described = self.cache.document(lacking);
        let named = by_name(lacking.difference(&described.served()));
        (described, named)
    }

    fn status(&self) -> SourceStatus {
        let members = self.class.members.iter();
        let (_, named) = self.documents();
        let state = match (self.class.is_reachable(), &self.error) {
            (false, _) => "unreachable",
            (true, None) => "read",
            (true, Some(_)) => "failing",
        };
        SourceStatus {
            binary_version: self.class.first().binary_version.clone(),
            error: self.error.clone(),
            group_versions: self.class.group_versions().len(),
            servers: members.map(|member| member.id.to_string()).collect(),
            state: state.to_owned(),
            undescribed: versions(&named.groups).count(),
        }
    }
}

#[cfg(test)]
mod tests;
