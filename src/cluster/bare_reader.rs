//! Asks the addresses that may be bare apiservers' what is there ([`super::bare`]).
//!
//! Over mTLS with the proxy client certificate, as `system:apiserver`, and in `system:masters`: the path index `/`, which
//! alone names everything that an apiserver before 1.26 serves, is not for others. Only a ready apiserver is read, because
//! one that is starting lists less than it will serve. A proxy says in its answers that it is one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use super::bare::BareAnswer;
use super::native::{Asking, SETTLE, maker_for};
use super::state::NativePeer;
use crate::client::{ClientError, ClientMaker, MakerError};
use crate::config::Config;
use crate::kube::gvr::Custom;
use crate::local::reader::{ReadError, Reader};
use crate::log_throttle::{LogThrottle, chain};
use crate::retry::{Backoff, jittered};
use crate::tls::credentials::Current;

/// In `system:masters` every path may be read.
const GROUP: &str = "system:masters";

/// While nobody answers.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
    jitter: 0.5,
};

/// An address that led to a proxy may lead to several servers: it is no bare server's before so many answers in a row, each
/// over a new connection, came from none.
const DOUBTED: u32 = 3;

/// Clients for bare servers.
pub fn maker(config: &Config, credentials: Current) -> Result<ClientMaker, MakerError> {
    maker_for(config, credentials, GROUP)
}

/// Asks each of `addresses` about once in `every`, over one connection at a time, until their sender is dropped.
pub async fn run(
    maker: Arc<ClientMaker>,
    every: Duration,
    mut addresses: watch::Receiver<BTreeSet<SocketAddr>>,
    answers: mpsc::Sender<(SocketAddr, BareAnswer)>,
) {
    let mut asking: BTreeMap<SocketAddr, Asking> = BTreeMap::new();
    loop {
        let now = addresses.borrow_and_update().clone();
        asking.retain(|address, _| now.contains(address));
        for address in now {
            asking.entry(address).or_insert_with(|| {
                let task = tokio::spawn(ask(maker.clone(), every, address, answers.clone()));
                Asking::new(&task)
            });
        }
        if addresses.changed().await.is_err() {
            return;
        }
    }
}

async fn ask(
    maker: Arc<ClientMaker>,
    every: Duration,
    address: SocketAddr,
    answers: mpsc::Sender<(SocketAddr, BareAnswer)>,
) {
    // A proxy's live key comes on another watch.
    tokio::time::sleep(SETTLE).await;
    tracing::info!(%address, "asking an apiserver that seems to have no proxy");
    let mut reader = Reader::of_apiserver(maker.client(address));
    let throttle = LogThrottle::default();
    let (mut failures, mut doubted) = (0, 0);
    loop {
        let answer = match read(&mut reader, address).await {
            Ok(_) if doubted > 0 => {
                doubted -= 1;
                BareAnswer::Proxy
            }
            Ok(native) => {
                if let Some(after) = throttle.recovered(&()) {
                    tracing::info!(%address, ?after, "discovery of an apiserver without a proxy is read again");
                }
                BareAnswer::Read(native)
            }
            Err(error) => {
                if throttle.should_log((), chain(&error)) {
                    let error = &error as &dyn std::error::Error;
                    tracing::info!(%address, error, "no apiserver without a proxy can be read there, trying on");
                }
                of_error(&error)
            }
        };
        failures = match answer {
            BareAnswer::Nobody => failures + 1,
            _ => 0,
        };
        if matches!(answer, BareAnswer::Proxy) && doubted == 0 {
            doubted = DOUBTED;
        }
        if !matches!(answer, BareAnswer::Read(_)) {
            // The next connection may lead to another server.
            reader = Reader::of_apiserver(maker.client(address));
        }
        if answers.send((address, answer)).await.is_err() {
            return;
        }
        let pause = match failures {
            0 => jittered(every),
            failures => BACKOFF.random_pause(failures),
        };
        tokio::time::sleep(pause).await;
    }
}

async fn read(reader: &mut Reader, address: SocketAddr) -> Result<NativePeer, ReadError> {
    reader.check_ready().await?;
    let (served, versions) = reader.read(&Custom::default()).await?;
    Ok(NativePeer {
        address,
        served: Arc::new(served),
        binary_version: versions.binary,
        version: versions.compatibility,
        read: Instant::now(),
    })
}

/// A certificate that is not an apiserver's ends the connection before anything is sent.
fn of_error(error: &ReadError) -> BareAnswer {
    match error {
        ReadError::Proxy => BareAnswer::Proxy,
        ReadError::Client(
            ClientError::Refused | ClientError::Timeout(_) | ClientError::Connect(_),
        ) => BareAnswer::Nobody,
        _ => BareAnswer::Unreadable,
    }
}
