//! Asks servers in doubt ([`crate::relay::upstream::health`]) until they answer.
//!
//! A peer that failed is asked after pauses that grow with each failure, and forgotten when it is no target.
//!
//! A server that requests wait for has TLS connections opened to it. One that is only busy completes the handshake, whatever
//! its handlers wait for. One from which nothing comes within `LIMIT` is suspected to be frozen. It is asked all the time,
//! and any answer from it ends the suspicion.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use pingora_core::ErrorType;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};

use crate::client::{ClientMaker, MakerError};
use crate::local::probe::says_it_shuts_down;
use crate::net::dial;
use crate::relay::shared::Shared;
use crate::relay::upstream::health::Asked;

/// Longest wait for the answer of a failed peer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// A server from which nothing comes in this time is suspected.
const LIMIT: Duration = Duration::from_secs(1);
/// Time between two questions to a suspected server.
const INTERVAL: Duration = Duration::from_millis(500);

/// Spawns the tasks that ask.
pub fn start(shared: &Arc<Shared>, control: &mut JoinSet<()>) -> Result<(), MakerError> {
    let credentials = shared.credentials.clone();
    let maker = ClientMaker::of_peers(&shared.config, credentials, HeaderMap::new(), TIMEOUT)?;
    control.spawn(ask_failed(shared.clone(), Arc::new(maker)));
    control.spawn(ask_silent(shared.clone()));
    Ok(())
}

/// Asks failed peers until they answer or are absent. Runs until dropped.
async fn ask_failed(shared: Arc<Shared>, maker: Arc<ClientMaker>) {
    let health = &shared.servers.health;
    loop {
        let address = health.due().await;
        let snapshot = shared.published.snapshot.load_full();
        let is_target = |address| {
            let mut servers = snapshot.servers.iter();
            servers.any(|it| it.endpoint == address && it.target)
        };
        health.keep(is_target);
        if is_target(address) {
            match answers(&maker, address).await {
                true => health.answered(address),
                false => drop(health.failed(address)),
            }
        }
    }
}

/// Whether the peer would answer a request: a proxy answers 503 for an apiserver that is not ready, and an apiserver
/// may give any answer except that it is shutting down.
async fn answers(maker: &Arc<ClientMaker>, address: SocketAddr) -> bool {
    let answer = maker.client(address).get("/readyz").await;
    answer.is_ok_and(|answer| {
        answer.status != StatusCode::SERVICE_UNAVAILABLE && !says_it_shuts_down(&answer)
    })
}

/// Asks the servers that requests wait for. Runs until dropped.
async fn ask_silent(shared: Arc<Shared>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            servers = shared.servers.frozen.to_ask() => {
                for server in servers {
                    running.spawn(ask(shared.clone(), server));
                }
            }
            Some(_) = running.join_next() => {}
        }
    }
}

/// Asks one server until it answers, or is no server any more.
async fn ask(shared: Arc<Shared>, (address, server): (SocketAddr, Arc<Asked>)) {
    let is_local = address == shared.config.api_server.address;
    let is_known = || {
        let snapshot = shared.published.snapshot.load();
        is_local || snapshot.servers.iter().any(|it| it.endpoint == address)
    };
    let mut questions = JoinSet::new();
    let mut ticks = interval(INTERVAL);
    let mut limit = pin!(sleep(LIMIT));
    loop {
        tokio::select! {
            () = server.heard.notified() => break,
            Some(answered) = questions.join_next() => if matches!(answered, Ok(true)) {
                break;
            },
            _ = ticks.tick() => match is_known() {
                true => drop(questions.spawn(question(shared.clone(), address, is_local))),
                false => break,
            },
            () = &mut limit, if !server.is_suspected() => {
                tracing::warn!(server = %address, local = is_local, "the server sends nothing: others are tried first");
                server.suspected.store(true, Ordering::Relaxed);
                match is_local {
                    true => shared.local.freezes(true),
                    false => drop(shared.servers.health.failed(address)),
                }
            }
        }
    }
    if !server.is_suspected() {
        // Others that wait for it need not ask again at once.
        sleep(LIMIT).await;
    }
    shared.servers.frozen.forget(address);
    if server.is_suspected() {
        tracing::info!(server = %address, local = is_local, "the server answers again");
        match is_local {
            true => shared.local.freezes(false),
            false => shared.servers.health.answered(address),
        }
    }
}

/// Whether anything comes from the server. One that is down is not frozen.
async fn question(shared: Arc<Shared>, address: SocketAddr, is_local: bool) -> bool {
    let credentials = shared.credentials.load_full();
    let (name, trust) = match is_local {
        true => (&shared.config.api_server.server_name, &credentials.local),
        false => (&shared.config.peer.server_name, &credentials.peers),
    };
    let opened = dial(address, name, &trust.with_certificate).await;
    !opened.is_err_and(|error| *error.etype() == ErrorType::ConnectTimedout)
}
