//! Metrics of reading the configuration file again. Written by [`crate::reload`], read by the status page too.

use std::collections::BTreeMap;
use std::sync::Mutex;

use prometheus::{IntCounter, IntGauge, Registry};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::config::EffectiveValues;
use crate::config::settings::is_reloaded;
use crate::metrics::metrics;
use crate::net::lock;
use crate::tls::metrics::rfc3339;

metrics! {
    struct ReloadSeries {
        /// Times that the configuration file had changed.
        reloads: [IntCounter; 2] =
            counters("kube_interop_proxy_config_reloads_total", "result", ["applied", "failed"]),
        /// 1 while the configuration file cannot be used, and the previous settings stay in use.
        broken: IntGauge = gauge("kube_interop_proxy_config_broken"),
    }
}

pub struct ReloadMetrics {
    series: ReloadSeries,
    status: Mutex<ReloadStatus>,
}

/// The configuration file since the start, as in the status document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ReloadStatus {
    /// Changed keys that take effect at the next start, with their values.
    pub needs_restart: Vec<String>,
    /// Why the file cannot be used; empty: it is in use.
    pub problems: Vec<String>,
    /// When settings were last read again (RFC 3339).
    pub reloaded: Option<String>,
    /// The values in force of the keys that are read again.
    pub settings: BTreeMap<String, String>,
}

impl ReloadMetrics {
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            series: ReloadSeries::new(registry)?,
            status: Mutex::default(),
        })
    }

    pub fn status(&self) -> ReloadStatus {
        lock(&self.status).clone()
    }

    /// These values are in use; `needs_restart`: changes that are not.
    pub(super) fn in_use(&self, values: &EffectiveValues, needs_restart: Vec<String>) {
        let mut status = lock(&self.status);
        status.settings = values.clone();
        status.settings.retain(|key, _| is_reloaded(key));
        status.needs_restart = needs_restart;
    }

    /// New contents were put into use.
    pub(super) fn applied(&self) {
        let [applied, _] = &self.series.reloads;
        applied.inc();
        lock(&self.status).reloaded = rfc3339(OffsetDateTime::now_utc().unix_timestamp());
        self.restored();
    }

    /// New contents cannot be used, because of these problems.
    pub(super) fn failed(&self, problems: Vec<String>) {
        let [_, failed] = &self.series.reloads;
        failed.inc();
        self.series.broken.set(1);
        lock(&self.status).problems = problems;
    }

    /// Nothing is wrong with the file any more.
    pub(super) fn restored(&self) {
        self.series.broken.set(0);
        lock(&self.status).problems.clear();
    }
}
