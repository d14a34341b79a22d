//! Starts the operator's port.

use std::sync::Arc;

use prometheus::Registry;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::pages::Pages;
use super::predecessor::AdminListener;
use super::serve;
use crate::publish::metrics::LeaseMetrics;
use crate::relay::shared::Shared;
use crate::reload::metrics::ReloadMetrics;
use crate::tls::metrics::CertificateMetrics;

/// Spawns the server of the operator's port. Returns what becomes true when the port is there.
pub fn start(
    listener: AdminListener,
    shared: &Arc<Shared>,
    registry: &Registry,
    certificates: &Arc<CertificateMetrics>,
    reload: &Arc<ReloadMetrics>,
    lease: LeaseMetrics,
    control: &mut JoinSet<()>,
) -> Result<watch::Receiver<bool>, prometheus::Error> {
    let pages = Pages::new(
        shared.clone(),
        registry.clone(),
        certificates.clone(),
        reload.clone(),
        lease,
    )?;
    let (bound, is_bound) = watch::channel(false);
    control.spawn(serve::run(listener, bound, Arc::new(pages)));
    Ok(is_bound)
}
