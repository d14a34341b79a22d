//! What the local apiserver serves, read again and again.
//!
//! Only an initialized apiserver is asked: one that is starting lists less than it will serve. A restart makes the set
//! unknown until it is read again. A group version that fails keeps what was known of it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::documents::Versions;
use super::reader::{ReadError, Reader};
use super::state::LocalState;
use crate::client::{Client, ClientError};
use crate::routing::table::{Custom, ServedSet};
use crate::trouble::{Trouble, chain};

/// What is known of the local apiserver's contents.
#[derive(Debug, Clone, Default)]
pub struct LocalView {
    /// Everything it lists, custom resources included; `None` while unknown.
    pub served: Option<Arc<ServedSet>>,
    /// The life of the apiserver in which that was read ([`LocalState::epoch`]).
    pub epoch: u64,
    /// How often discovery was read completely.
    pub reads: u64,
    /// Its versions.
    pub versions: Option<Versions>,
}

/// Changes often come in crowds; discovery is read at most this often.
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);

/// Reads discovery until nobody is interested. `custom`: aggregated APIs are not asked for, their servers may hang.
pub async fn run(
    client: Client,
    state: Arc<LocalState>,
    every: Duration,
    mut custom: watch::Receiver<Option<Arc<Custom>>>,
    view: watch::Sender<LocalView>,
) {
    let mut reader = Reader::new(client);
    let mut last = Instant::now();
    let trouble = Trouble::default();
    loop {
        let epoch = state.epoch();
        if state.is_initialized() {
            let skipped = custom.borrow_and_update().clone().unwrap_or_default();
            match reader.read(&skipped).await {
                Ok((served, versions)) if state.epoch() == epoch => {
                    state.is_of_version(&versions.binary, epoch);
                    if let Some(after) = trouble.is_over(&()) {
                        tracing::info!(?after, "discovery is read again");
                    }
                    view.send_modify(|view| {
                        view.epoch = epoch;
                        view.reads += 1;
                        view.versions = Some(versions);
                        if view.served.as_deref() != Some(&served) {
                            view.served = Some(Arc::new(served));
                        }
                    });
                }
                Ok(_) => {}
                Err(error) => {
                    if trouble.is_news((), chain(&error)) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "discovery cannot be read, trying on");
                    }
                    if matches!(error, ReadError::Client(ClientError::Refused)) {
                        state.refused();
                    }
                }
            }
        } else {
            reader.forget();
            view.send_if_modified(|view| view.served.take().is_some());
        }
        if view.is_closed() {
            return;
        }
        let due = last + every;
        tokio::select! {
            () = sleep_until(due) => {}
            () = state.reread() => sleep_until(last + SHORTEST_PAUSE).await,
            Ok(()) = custom.changed() => sleep_until(last + SHORTEST_PAUSE).await,
        }
        last = Instant::now();
    }
}
