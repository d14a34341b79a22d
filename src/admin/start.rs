//! Starts the operator's port.

use std::net::TcpListener;
use std::sync::Arc;

use prometheus::Registry;
use tokio::task::JoinSet;

use super::pages::Pages;
use super::serve;
use crate::publish::metrics::LeaseMetrics;
use crate::relay::shared::Shared;
use crate::tls::metrics::CertificateMetrics;

/// Spawns the server of the operator's port.
pub fn start(
    listener: TcpListener,
    shared: &Arc<Shared>,
    registry: &Registry,
    certificates: &Arc<CertificateMetrics>,
    lease: LeaseMetrics,
    control: &mut JoinSet<()>,
) -> Result<(), prometheus::Error> {
    let pages = Pages::new(
        shared.clone(),
        registry.clone(),
        certificates.clone(),
        lease,
    )?;
    control.spawn(serve::run(listener, Arc::new(pages)));
    Ok(())
}
