//! Asks servers without a proxy for their discovery: native peers, and what may be bare apiservers ([`super::bare`]).
//!
//! Over mTLS with the proxy client certificate, as `system:apiserver`. Native peers are asked as they ask each other, in
//! `system:authenticated`, and in `system:masters` where it is asked whether a CRD's name is a built-in resource's
//! ([`crate::local::reader`]). What may be a bare apiserver is asked in `system:masters` only: the path index `/`, which
//! alone names everything that an apiserver before 1.26 serves, is not for others. It is read only when it is ready,
//! because one that is starting lists less than it will serve. A proxy says in its answers that it is one. Nobody is asked
//! before the CRDs are known: what they define would count as the server's own.
//!
//! Addresses come from `peerserverleases` and `masterleases` in etcd only, never from Lease objects, which API users can
//! write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::unproxied::{
    Attempts, BareAnswer, Candidates, GROUP, NativePeer, SETTLE, USER, Unproxied,
};
use crate::client::{self, ClientMaker, MakerError};
use crate::config::Config;
use crate::kube::gvr::Custom;
use crate::local::reader::{ReadError, Reader};
use crate::log_throttle::{LogThrottle, chain};
use crate::retry::jittered;
use crate::tls::credentials::Current;

/// In `system:masters` every path may be read.
const MASTERS: &str = "system:masters";
/// Longest wait for one document.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Makes clients of servers without a proxy, which send requests in this group. `timeout`: of one answer.
pub fn maker(
    config: &Config,
    credentials: &Current,
    group: &str,
    timeout: Duration,
) -> Result<ClientMaker, MakerError> {
    let identity = client::identity(&config.serving.request_headers, USER, &[group])?;
    ClientMaker::of_peers(config, credentials.clone(), identity, timeout)
}

/// The task: its inputs and outputs.
#[derive(Clone)]
pub struct UnproxiedReader {
    native: Arc<ClientMaker>,
    masters: Arc<ClientMaker>,
    /// Between two reads of one server.
    every: Duration,
    candidates: watch::Receiver<Candidates>,
    custom: watch::Receiver<Option<Arc<Custom>>>,
    answers: mpsc::Sender<(Unproxied, BareAnswer)>,
}

impl UnproxiedReader {
    /// `custom`: `None` until etcd was read. `answers`: of a native peer only what was read.
    pub fn new(
        config: &Config,
        credentials: &Current,
        candidates: watch::Receiver<Candidates>,
        custom: watch::Receiver<Option<Arc<Custom>>>,
        answers: mpsc::Sender<(Unproxied, BareAnswer)>,
    ) -> Result<Self, MakerError> {
        Ok(Self {
            native: Arc::new(maker(config, credentials, GROUP, TIMEOUT)?),
            masters: Arc::new(maker(config, credentials, MASTERS, TIMEOUT)?),
            every: config.api_server.discovery_interval,
            candidates,
            custom,
            answers,
        })
    }

    fn reader(&self, server: &Unproxied) -> Reader {
        let mut reader = Reader::new(self.masters.client(server.address));
        reader.no_proxy = server.id.is_none();
        if server.id.is_some() {
            let native = self.native.client(server.address);
            reader.lister = Some(std::mem::replace(&mut reader.client, native));
        }
        reader
    }

    /// Asks each of the candidates, over one connection at a time, until their sender is dropped.
    pub async fn run(mut self) {
        // A task ends when its set is dropped.
        let mut asking: BTreeMap<Unproxied, JoinSet<()>> = BTreeMap::new();
        loop {
            let now = self.candidates.borrow_and_update().clone();
            asking.retain(|server, _| now.contains_key(server));
            for server in now.into_keys() {
                asking.entry(server).or_insert_with_key(|server| {
                    let mut task = JoinSet::new();
                    task.spawn(Asking::new(server.clone(), self.clone()).run());
                    task
                });
            }
            if self.candidates.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Asks one server.
struct Asking {
    server: Unproxied,
    inputs: UnproxiedReader,
    reader: Reader,
    /// Of what may be a bare apiserver.
    attempts: Option<Attempts>,
    throttle: LogThrottle,
}

impl Asking {
    fn new(server: Unproxied, inputs: UnproxiedReader) -> Self {
        Self {
            reader: inputs.reader(&server),
            attempts: server.id.is_none().then(Attempts::new),
            server,
            inputs,
            throttle: LogThrottle::default(),
        }
    }

    async fn run(mut self) {
        // Other keys of a proxy come on other watches.
        tokio::time::sleep(SETTLE).await;
        if self.inputs.custom.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let (id, address) = (self.server.id.as_deref(), self.server.address);
        tracing::info!(id, %address, "asking a server without a proxy for its discovery");
        loop {
            let custom = self.inputs.custom.borrow().clone().unwrap_or_default();
            let result = self.read(&custom).await;
            self.log(result.as_ref().err());
            let (answer, pause) = self.conclude(result);
            if let Some(answer) = answer
                && let answer = (self.server.clone(), answer)
                && self.inputs.answers.send(answer).await.is_err()
            {
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// `custom`: what may not answer, and what every server serves.
    async fn read(&mut self, custom: &Custom) -> Result<NativePeer, ReadError> {
        if let Some(attempts) = &mut self.attempts {
            let ready = self.reader.get("/readyz").await;
            attempts.answered |= !matches!(ready, Err(ReadError::Client(_) | ReadError::Proxy));
            ready?;
        }
        let begun = Instant::now();
        let (served, versions) = self.reader.read(custom).await?;
        Ok(NativePeer {
            address: self.server.address,
            created: self.server.created,
            served: Arc::new(served),
            binary_version: versions.binary,
            version: versions.compatibility,
            read: begun,
            since: begun,
        })
    }

    /// What the result says, and the pause until the next read.
    fn conclude(
        &mut self,
        result: Result<NativePeer, ReadError>,
    ) -> (Option<BareAnswer>, Duration) {
        let every = self.inputs.every;
        let Some(attempts) = &mut self.attempts else {
            return (result.ok().map(Ok), jittered(every));
        };
        // The next connection may lead to another server.
        let failed = matches!(result, Err(ReadError::Client(_) | ReadError::Proxy));
        match failed || attempts.doubted > 0 {
            true => self.reader = self.inputs.reader(&self.server),
            false => self.reader.client.reset(),
        }
        attempts.has_record = self.inputs.candidates.borrow().get(&self.server) == Some(&true);
        let now = Instant::now();
        (attempts.conclude(result, now), attempts.pause(every, now))
    }

    fn log(&self, error: Option<&ReadError>) {
        let (id, address) = (self.server.id.as_deref(), self.server.address);
        match error.map(|error| chain(error)) {
            None => {
                if let Some(after) = self.throttle.recovered(&()) {
                    tracing::info!(id, %address, ?after, "a server without a proxy can be read");
                }
            }
            Some(error) if self.throttle.should_log((), error.clone()) => {
                let text = "a server without a proxy cannot be read, retrying";
                match id {
                    Some(_) => tracing::warn!(id, %address, error, "{text}"),
                    // It may be another address of a server that is known.
                    None => tracing::info!(%address, error, "{text}"),
                }
            }
            Some(_) => {}
        }
    }
}
