//! Reads what peers' discovery says, where the local apiserver's says less, and publishes it.
//!
//! The only writer of [`Gathered`]. Whose documents are read, and when, is decided in `sources`: nobody's where
//! all list the same. What follows from a change of what is known is published at once, by name where no document was
//! read yet; documents follow.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::clients::Clients;
use super::gathered::{Gathered, Gathering};
use super::held::Held;
use super::newest::Rank;
use super::openapi::Form;
use super::sources::{Job, Known, Sources};
use crate::admin::gathering::GatherMetrics;
use crate::cluster::catalog::Published;
use crate::local::discovery::LocalView;
use crate::local::reader::ReadError;
use crate::trouble::{Trouble, chain};

/// Servers that are asked at the same time.
const AT_ONCE: usize = 4;
/// Documents that did not change are asked for once in so many intervals of discovery.
const INTERVALS: u32 = 6;
const FORMS: [Form; 3] = [Form::V3Index, Form::V2Protobuf, Form::V2Json];

/// What the task works with.
pub struct Gather {
    /// Who serves what.
    pub published: Published,
    /// What the local apiserver lists.
    pub view: watch::Receiver<LocalView>,
    /// Readers.
    pub gathering: Arc<Gathering>,
    /// Clients for peers; `None`: nobody is asked, only the local apiserver's age is published.
    pub clients: Option<Clients>,
    /// `apiServer.discoveryInterval`
    pub discovery_interval: Duration,
    /// Counts.
    pub metrics: GatherMetrics,
}

/// A job that is done.
struct Done {
    key: u64,
    address: SocketAddr,
    /// What is held now.
    held: Held,
    outcome: Result<(), ReadError>,
}

impl Gather {
    /// Runs until dropped.
    pub async fn run(mut self) {
        let every = self.discovery_interval * INTERVALS;
        let mut sources = Sources::new(every, rand::thread_rng().r#gen());
        let mut snapshots = self.published.changed.subscribe();
        let mut running: JoinSet<Done> = JoinSet::new();
        let trouble = Trouble::default();
        let mut news = true;
        loop {
            let now = Instant::now();
            let view = self.view.borrow_and_update().clone();
            news |= self.plan(&mut sources, &view, now);
            let wanted = self.wanted();
            sources.want(&wanted, now);
            while running.len() < AT_ONCE
                && let Some(job) = sources.next_job(now)
            {
                self.start(job, &mut running);
            }
            if std::mem::take(&mut news) {
                self.publish(&sources, &view, &wanted);
            }
            let due = sources.next_due().filter(|_| running.len() < AT_ONCE);
            let due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = due => {}
                Ok(()) = snapshots.changed() => {}
                Ok(()) = self.view.changed() => {}
                () = self.gathering.wish() => news = true,
                Some(Ok(done)) = running.join_next() => {
                    self.finish(&mut sources, done, &trouble);
                    news = true;
                }
            }
        }
    }

    /// Whether something is known that was not.
    fn plan(&self, sources: &mut Sources, view: &LocalView, now: Instant) -> bool {
        let snapshot = self.published.snapshot.load();
        if self.clients.is_none() || !snapshot.synced {
            return sources.clear() || self.gathering.load().local != rank(view);
        }
        // Until it is known what the local apiserver lists, nobody knows what it lacks: what was published says whose life
        // it was made for.
        let Some(local) = view.served.clone() else {
            return false;
        };
        let known = Known {
            servers: snapshot.servers.clone(),
            custom: snapshot.custom.clone(),
            local,
        };
        let published = self.gathering.load();
        sources.plan(&known, now)
            || published.epoch != Some(view.epoch)
            || published.served != view.served
    }

    /// OpenAPI documents that somebody needs.
    fn wanted(&self) -> Vec<Form> {
        let wanted = |form: &Form| self.gathering.is_wanted(*form);
        FORMS.into_iter().filter(wanted).collect()
    }

    fn start(&self, job: Job, running: &mut JoinSet<Done>) {
        let Some(clients) = &self.clients else { return };
        let mut client = clients.client(job.address, job.native);
        running.spawn(async move {
            let mut held = job.held;
            let outcome = held.read(&mut client, &job.want).await;
            Done {
                key: job.key,
                address: job.address,
                held,
                outcome,
            }
        });
    }

    fn finish(&self, sources: &mut Sources, done: Done, trouble: &Trouble<SocketAddr>) {
        let peer = done.address;
        self.metrics.read(done.outcome.is_ok());
        let error = done.outcome.err().map(|error| chain(&error));
        match &error {
            Some(error) if trouble.is_news(peer, format!("{peer} {error}")) => {
                tracing::warn!(%peer, error, "documents of a peer cannot be read, trying on");
            }
            Some(_) => {}
            None => drop(trouble.is_over(&peer)),
        }
        sources.done(done.key, done.held, error, Instant::now());
    }

    fn publish(&self, sources: &Sources, view: &LocalView, wanted: &[Form]) {
        let synced = self.published.snapshot.load().synced;
        if sources.is_empty() {
            self.gathering.unwant();
        }
        let gathered = Gathered {
            generation: 0,
            epoch: view.served.as_ref().filter(|_| synced).map(|_| view.epoch),
            local: rank(view),
            served: view.served.clone(),
            others: sources.others(),
            openapi: sources.openapi(wanted),
        };
        let told = sources.told();
        self.metrics.sources(&told, gathered.openapi.bytes());
        self.gathering.tell(told);
        self.gathering.publish(gathered);
    }
}

fn rank(view: &LocalView) -> Option<Rank> {
    let versions = view.versions.as_ref()?;
    Some(Rank::new(versions.compatibility, Some(&versions.binary)))
}
