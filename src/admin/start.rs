//! Starts the operator's port, and the one for monitoring from other hosts.

use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::pages::Pages;
use super::predecessor::AdminListener;
use super::secure::{self, SecureInputs};
use super::serve;
use crate::client::ClientMaker;
use crate::publish::metrics::LeaseMetrics;
use crate::relay::shared::Shared;
use crate::reload::metrics::ReloadMetrics;
use crate::tls::metrics::CertificateMetrics;
use crate::tls::serving::ServingTls;

/// What the ports answer with.
pub struct AdminInputs<'a> {
    pub listener: AdminListener,
    /// Of the secure port, if there is one.
    pub secure: Option<AdminListener>,
    pub registry: &'a Registry,
    pub certificates: Arc<CertificateMetrics>,
    pub reload: Arc<ReloadMetrics>,
    pub lease: LeaseMetrics,
    /// Of the TLS port and the secure one.
    pub tls: Arc<ArcSwap<ServingTls>>,
    /// Of clients for the local apiserver.
    pub maker: Arc<ClientMaker>,
}

/// Spawns the servers. Returns what becomes true when the operator's port is there.
pub fn start(
    shared: &Arc<Shared>,
    inputs: AdminInputs<'_>,
    control: &mut JoinSet<()>,
) -> Result<watch::Receiver<bool>, prometheus::Error> {
    let pages = Pages::new(
        shared.clone(),
        inputs.registry.clone(),
        inputs.certificates,
        inputs.reload,
        inputs.lease,
    )?;
    let pages = Arc::new(pages);
    let (bound, is_bound) = watch::channel(false);
    control.spawn(serve::run(inputs.listener, bound, pages.clone()));
    if let Some(listener) = inputs.secure {
        let secure = SecureInputs {
            pages,
            shared: shared.clone(),
            tls: inputs.tls,
            maker: inputs.maker,
        };
        control.spawn(secure::run(listener, secure));
    }
    Ok(is_bound)
}
