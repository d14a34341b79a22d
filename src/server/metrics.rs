//! Metrics of client connections.

use prometheus::{IntCounter, IntGauge};

use crate::metrics::metrics;

metrics! {
    /// Metrics of client connections.
    pub struct ConnectionMetrics {
        /// Client connections that are open.
        pub open: IntGauge = gauge("kube_interop_proxy_connections"),
        /// Tasks of the program that have not ended: what is open, and what waits for it.
        pub tasks: IntGauge = gauge("kube_interop_proxy_tasks"),
        /// Connections that failed before their first request.
        pub failed_handshakes: IntCounter = counter("kube_interop_proxy_failed_handshakes_total"),
        /// Client connections closed at once because the limit of open files allows no more.
        pub refused: IntCounter = counter("kube_interop_proxy_refused_connections_total"),
    }
}
