//! Reads the local apiserver's discovery periodically.
//!
//! Only an initialized apiserver is read: one that is starting lists less than it will serve. After a restart the served set
//! is unknown until it is read again. A group version that cannot be read keeps its last known resources.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::groups::ServedGroups;
use super::reader::{ReadError, Reader};
use super::state::LocalState;
use crate::client::ClientError;
use crate::kube::gvr::{Custom, Scopes, ServedSet};
use crate::kube::version::Versions;
use crate::log_throttle::{LogThrottle, warn_new};

/// The local apiserver's discovery, as last read.
#[derive(Debug, Clone, Default)]
pub struct LocalView {
    /// What it serves itself, without CRDs' resources and aggregated APIs; `None` while unknown.
    pub served: Option<Arc<ServedSet>>,
    /// What of `served` the apiserver could not say yet whether it is custom.
    pub doubted: Arc<ServedSet>,
    /// What it serves itself, as groups.
    pub groups: Arc<ServedGroups>,
    /// The epoch of the apiserver process that was read ([`LocalState::epoch`]).
    pub epoch: u64,
    /// The scopes of what it lists, custom resources left out.
    pub scopes: Arc<Scopes>,
    /// How often discovery was read successfully.
    pub reads: u64,
    /// When the last successful read began.
    pub read: Option<std::time::Instant>,
    pub versions: Option<Versions>,
}

/// Replaces what is known only by what differs.
fn update<T: PartialEq>(known: &mut Arc<T>, now: T) {
    if **known != now {
        *known = Arc::new(now);
    }
}

impl LocalView {
    /// The process of this epoch has told its versions, and to `reader`, since `begun`, what it serves itself.
    fn update(
        &mut self,
        (epoch, versions): (u64, Versions),
        served: Option<(ServedSet, ServedGroups)>,
        reader: &Reader,
        begun: std::time::Instant,
    ) {
        self.epoch = epoch;
        self.versions = Some(versions);
        let Some((served, groups)) = served else {
            return;
        };
        self.reads += 1;
        self.read = Some(begun);
        update(self.served.get_or_insert_default(), served);
        update(&mut self.doubted, reader.own.doubted());
        update(&mut self.groups, groups);
        update(&mut self.scopes, reader.last.scopes.clone());
    }
}

/// Shortest pause between two reads: changes often come in bursts.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
/// How soon the apiserver is asked again about a resource of which it could not say whether it is custom.
const DOUBT_PAUSE: Duration = Duration::from_secs(1);

/// Runs until all receivers of `view` are dropped. Aggregated APIs are not read, because their servers may hang.
/// `custom`: CRDs and aggregated APIs; `None` until etcd was read.
pub async fn run(
    mut reader: Reader,
    state: Arc<LocalState>,
    every: Duration,
    mut custom: watch::Receiver<Option<Arc<Custom>>>,
    view: watch::Sender<LocalView>,
) {
    let mut last_epoch = state.epoch();
    let mut earliest = Instant::now();
    let throttle = LogThrottle::default();
    loop {
        let epoch = state.epoch();
        // It may be initialized already.
        let is_another = std::mem::replace(&mut last_epoch, epoch) != epoch;
        if is_another {
            reader.forget();
        }
        if is_another || !state.is_initialized() {
            view.send_if_modified(|view| view.served.take().is_some());
        }
        sleep_until(earliest).await;
        if state.epoch() != epoch {
            continue;
        }
        let last = Instant::now();
        earliest = last + SHORTEST_PAUSE;
        if state.is_initialized() {
            let known = custom.borrow_and_update().clone();
            let begun = std::time::Instant::now();
            match read(&mut reader, known.as_deref()).await {
                Ok((served, versions)) if state.epoch() == epoch => {
                    state.is_of_version(&versions.binary, epoch);
                    if let Some(after) = throttle.recovered(&()) {
                        tracing::info!(?after, "discovery is read again");
                    }
                    // Before the view is locked.
                    let served = served.map(|served| {
                        let groups = reader.groups(&served);
                        (served, groups)
                    });
                    view.send_modify(|view| view.update((epoch, versions), served, &reader, begun));
                }
                Ok(_) => {}
                Err(error) => {
                    warn_new!(throttle, (), &error, "discovery cannot be read, retrying");
                    if matches!(error, ReadError::Client(ClientError::Refused)) {
                        state.refused();
                    }
                }
            }
        }
        if view.is_closed() {
            return;
        }
        // What is in doubt is in our record until then.
        let due = match reader.own.is_in_doubt() {
            true => last + every.min(DOUBT_PAUSE),
            false => last + every,
        };
        tokio::select! {
            () = sleep_until(due) => {}
            () = state.reread.notified() => {}
            Ok(()) = custom.changed() => {}
        }
    }
}

/// What the apiserver serves itself, which nobody knows before the CRDs are known, and its versions.
async fn read(
    reader: &mut Reader,
    custom: Option<&Custom>,
) -> Result<(Option<ServedSet>, Versions), ReadError> {
    let Some(custom) = custom else {
        return Ok((None, reader.versions().await?));
    };
    let (served, versions) = reader.read(custom).await?;
    Ok((Some(served), versions))
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::client::fake::{Reply, Server};

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn what_a_process_served_is_unknown_once_another_one_is_seen() {
        let (asked, mut first) = tokio::sync::mpsc::unbounded_channel();
        let server = Server::start(move |_| {
            let _ = asked.send(());
            Reply::Break
        })
        .await;
        let state = Arc::new(LocalState::default());
        state.answered(true, state.epoch());
        let known = LocalView {
            served: Some(Arc::default()),
            ..LocalView::default()
        };
        let (views, mut view) = watch::channel(known);
        let (_custom, custom) = watch::channel(None);
        let reader = Reader::new(server.client(HeaderMap::new(), LONG));
        let _running = tokio::spawn(run(reader, state.clone(), 10 * LONG, custom, views));
        first.recv().await;
        state.refused();
        state.answered(true, state.epoch());
        let unknown = view.wait_for(|view| view.served.is_none());
        let unknown = tokio::time::timeout(LONG, unknown).await;
        assert!(unknown.is_ok());
    }
}
