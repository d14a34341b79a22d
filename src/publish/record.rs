//! Keeps this server's two keys in etcd: what is known of it, and that it lives.
//!
//! Keys are rewritten with fresh etcd leases instead of kept alive: kine knows no keep-alive. The live key goes away
//! with its lease or at a stop; the record stays for `rerouting.absentServerGrace` after its last writing.
//!
//! Nothing is written while the live key says that somebody at another address has our ID: two servers that overwrite
//! each other's record would make everybody believe that nobody serves what one of them does not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, GetOptions, PutOptions};
use prometheus::IntGauge;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::cluster::catalog::Own;
use crate::cluster::etcd::{Connector, within};
use crate::cluster::keys::{Keys, Topic};
use crate::cluster::record::{Live, Record, pack};
use crate::cluster::source::SourceError;
use crate::cluster::watch::jittered;
use crate::local::discovery::LocalView;
use crate::local::state::LocalState;
use crate::routing::table::{Custom, ServedSet};

/// Everything the publisher works with.
pub struct Publisher {
    /// Where to write.
    pub connector: Connector,
    /// Below which prefix.
    pub keys: Keys,
    /// Who we are.
    pub own: Own,
    /// Initialized or not.
    pub state: Arc<LocalState>,
    /// What the apiserver lists.
    pub view: watch::Receiver<LocalView>,
    /// What of that every server has; `None` until known.
    pub custom: watch::Receiver<Option<Custom>>,
    /// 1 while another live proxy claims our ID.
    pub duplicate: IntGauge,
    /// Life of the live key without rewriting.
    pub live_ttl: Duration,
    /// Life of the record without rewriting.
    pub record_ttl: Duration,
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A stop waits no longer than this for etcd.
const FAREWELL: Duration = Duration::from_secs(3);

/// The record is rewritten this often within its life, so that it outlives its server by nearly all of it.
const REWRITES_PER_LIFE: u32 = 10;

/// The record as it was written last, and when.
#[derive(Default)]
struct Written {
    record: Option<Record>,
    at: Option<Instant>,
    /// etcd's revision of it.
    revision: i64,
}

/// Why nothing could be written.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error("another live proxy, at {0}, claims this server ID; identity.serverID must differ")]
    Duplicate(SocketAddr),
}

impl Written {
    fn is_due(&self, record: &Record, ttl: Duration) -> bool {
        self.record.as_ref() != Some(record)
            || self
                .at
                .is_none_or(|at| at.elapsed() > ttl / REWRITES_PER_LIFE)
    }
}

impl Publisher {
    /// Writes until told to stop, then removes the live key.
    pub async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut written = Written::default();
        let mut client = None;
        let mut failures = 0;
        loop {
            // Not cut short by a stop: a write that is still under way could overtake the removal of the live key.
            let pause = match self.write(&mut client, &mut written).await {
                Ok(()) => {
                    failures = 0;
                    self.duplicate.set(0);
                    self.live_ttl / 3
                }
                Err(error) => {
                    client = None;
                    failures += 1;
                    self.duplicate
                        .set(matches!(error, PublishError::Duplicate(_)).into());
                    let cause = &error as &dyn std::error::Error;
                    tracing::warn!(
                        error = cause,
                        failures,
                        "own keys cannot be written to etcd"
                    );
                    jittered((self.live_ttl / 10 * failures).min(LONGEST_PAUSE))
                }
            };
            let rest = tokio::time::sleep(SHORTEST_PAUSE);
            let stopped = tokio::select! {
                () = tokio::time::sleep(pause) => false,
                () = self.state.changed() => false,
                Ok(()) = self.view.changed() => false,
                Ok(()) = self.custom.changed() => false,
                _ = &mut stop => true,
            };
            if stopped {
                break;
            }
            // Whatever makes things change: etcd is written to at most so often.
            rest.await;
        }
        let farewell = tokio::time::timeout(FAREWELL, self.say_farewell(client, written)).await;
        match farewell {
            Ok(Ok(())) => tracing::info!("own live key removed from etcd"),
            Ok(Err(error)) => {
                let cause = &error as &dyn std::error::Error;
                tracing::warn!(
                    error = cause,
                    "own live key could not be removed, it expires by itself"
                );
            }
            Err(_) => {
                tracing::warn!("own live key could not be removed in time, it expires by itself")
            }
        }
    }

    async fn write(
        &mut self,
        client: &mut Option<Client>,
        written: &mut Written,
    ) -> Result<(), PublishError> {
        let client = match client {
            Some(client) => client,
            None => client.insert(self.connector.connect().await?),
        };
        self.check_owner(client).await?;
        if revision(client, self.key(Topic::Servers)).await? != written.revision {
            // Deleted or overwritten.
            written.at = None;
        }
        let now = self.record();
        let known = now.is_some();
        // What was known stays written while it cannot be known better: a server that vanishes now still served it.
        if let Some(record) = now.or_else(|| written.record.clone())
            && written.is_due(&record, self.record_ttl)
        {
            let started = Instant::now();
            written.revision =
                put(client, self.key(Topic::Servers), &record, self.record_ttl).await?;
            (written.record, written.at) = (Some(record), Some(started));
        }
        // First what is known, then that it lives.
        let live = Live {
            endpoint: self.own.endpoint,
            initialized: self.state.is_initialized(),
            record_revision: known.then_some(written.revision),
        };
        put(client, self.key(Topic::Live), &live, self.live_ttl).await?;
        Ok(())
    }

    /// Whether somebody else lives under our ID.
    async fn check_owner(&self, client: &mut Client) -> Result<(), PublishError> {
        let answer = within(client.get(self.key(Topic::Live), None)).await?;
        // What cannot be decoded is nobody's.
        let live: Option<Live> = answer
            .kvs()
            .first()
            .and_then(|kv| serde_json::from_slice(kv.value()).ok());
        match live {
            Some(live) if live.endpoint != self.own.endpoint => {
                Err(PublishError::Duplicate(live.endpoint))
            }
            _ => Ok(()),
        }
    }

    async fn say_farewell(
        &mut self,
        client: Option<Client>,
        written: Written,
    ) -> Result<(), PublishError> {
        let mut client = match client {
            Some(client) => client,
            None => self.connector.connect().await?,
        };
        self.check_owner(&mut client).await?;
        within(client.delete(self.key(Topic::Live), None)).await?;
        // What was served stays known for the whole grace from now on.
        if let Some(record) = self.record().or(written.record) {
            put(
                &mut client,
                self.key(Topic::Servers),
                &record,
                self.record_ttl,
            )
            .await?;
        }
        Ok(())
    }

    fn key(&self, topic: Topic) -> String {
        format!("{}{}", self.keys.of(topic), self.own.id)
    }

    /// What can be said now; nothing while it is not known what the apiserver serves, or what of that is custom.
    fn record(&mut self) -> Option<Record> {
        let view = self.view.borrow_and_update();
        let custom = self.custom.borrow_and_update();
        let (served, custom) = view.served.as_ref().zip(custom.as_ref())?;
        let versions = view.versions.as_ref();
        Some(Record {
            endpoint: self.own.endpoint,
            binary_version: versions.map(|versions| versions.binary.clone()),
            compatibility_version: versions.and_then(|versions| versions.compatibility.clone()),
            history_start: None,
            resources: pack(&own_resources(served, custom)),
        })
    }
}

fn own_resources(served: &ServedSet, custom: &Custom) -> ServedSet {
    served
        .iter()
        .filter(|gvr| !custom.contains(gvr.borrow()))
        .cloned()
        .collect()
}

/// Writes under a fresh lease; the revision of the write.
async fn put<T: serde::Serialize>(
    client: &mut Client,
    key: String,
    value: &T,
    ttl: Duration,
) -> Result<i64, SourceError> {
    let value = serde_json::to_vec(value).map_err(|error| SourceError::Failed(error.into()))?;
    let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
    let lease = within(client.lease_grant(seconds, None)).await?.id();
    let options = PutOptions::new().with_lease(lease);
    let answer = within(client.put(key, value, Some(options))).await?;
    Ok(answer.header().map_or(0, |header| header.revision()))
}

/// The revision that wrote a key; 0: it is not there.
async fn revision(client: &mut Client, key: String) -> Result<i64, SourceError> {
    let answer = within(client.get(key, Some(GetOptions::new().with_keys_only()))).await?;
    Ok(answer.kvs().first().map_or(0, |kv| kv.mod_revision()))
}
