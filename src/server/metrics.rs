//! Metrics of client connections.

use prometheus::{IntCounter, IntGauge, Registry};

use crate::metrics::{counter, int_gauge};

/// Metrics of client connections.
pub struct ConnectionMetrics {
    /// Client connections that are open.
    pub open: IntGauge,
    /// Connections that failed before their first request.
    pub failed_handshakes: IntCounter,
    /// Connections beyond what the limit of open files allows.
    pub refused: IntCounter,
}

impl ConnectionMetrics {
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            open: int_gauge(
                registry,
                "kube_interop_proxy_connections",
                "Client connections that are open.",
            )?,
            failed_handshakes: counter(
                registry,
                "kube_interop_proxy_failed_handshakes_total",
                "Connections that failed before their first request.",
            )?,
            refused: counter(
                registry,
                "kube_interop_proxy_refused_connections_total",
                "Client connections closed at once because the limit of open files allows no more.",
            )?,
        })
    }
}
