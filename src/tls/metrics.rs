//! Metrics of certificate files. Written by [`crate::tls::rotation`], read by the status page too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use prometheus::{IntCounterVec, IntGaugeVec, Registry};
use time::OffsetDateTime;

use super::files::Key;
use crate::metrics::metrics;

metrics! {
    #[derive(Debug)]
    struct CertificateSeries {
        /// Times that new certificate files were put into use, by what they are for.
        loaded: IntCounterVec = counter_vec("kube_interop_proxy_certificates_loaded_total", &["files"]),
        /// 1 while new certificate files cannot be used, and those before stay in use, by what they are for.
        broken: IntGaugeVec = gauge_vec("kube_interop_proxy_certificates_broken", &["files"]),
        /// When the first certificate in use of a file expires, in Unix time; by the configuration's key.
        expiration: IntGaugeVec =
            gauge_vec("kube_interop_proxy_certificate_expiration_timestamp_seconds", &["file"]),
    }
}

/// State of the certificate files that the configuration names.
#[derive(Debug)]
pub struct CertificateMetrics {
    series: CertificateSeries,
    files: Mutex<CertificateFiles>,
}

/// State of the certificate files for the status document.
#[derive(Debug, Clone, Default)]
pub struct CertificateFiles {
    /// Groups whose new files cannot be used.
    pub broken: BTreeSet<&'static str>,
    /// Unix time in seconds, by configuration key.
    pub expirations: BTreeMap<Key, i64>,
}

impl CertificateMetrics {
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            series: CertificateSeries::new(registry)?,
            files: Mutex::default(),
        })
    }

    /// Files of a group came into use; `new`: they replace others.
    pub fn in_use(&self, group: &'static str, new: bool, expirations: &[(Key, i64)]) {
        let loaded = self.series.loaded.with_label_values(&[group]);
        loaded.inc_by(new.into());
        self.broken(group, false);
        self.expire(expirations);
    }

    /// Says whether the new files of a group cannot be used.
    pub fn broken(&self, group: &'static str, broken: bool) {
        self.series
            .broken
            .with_label_values(&[group])
            .set(broken.into());
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        match broken {
            true => files.broken.insert(group),
            false => files.broken.remove(group),
        };
    }

    /// When files in use expire, by configuration key.
    fn expire(&self, expirations: &[(Key, i64)]) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, end) in expirations {
            self.series
                .expiration
                .with_label_values(&[&**key])
                .set(*end);
            files.expirations.insert(key.clone(), *end);
        }
    }

    /// The current state.
    pub fn files(&self) -> CertificateFiles {
        let files = self.files.lock();
        files.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// RFC 3339 as Kubernetes writes it; `None` for years that it cannot express.
pub fn rfc3339(seconds: i64) -> Option<String> {
    let time = OffsetDateTime::from_unix_timestamp(seconds).ok()?;
    let (date, (hour, minute, second)) = (time.date(), time.to_hms());
    Some(format!("{date}T{hour:02}:{minute:02}:{second:02}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_kubernetes_does() {
        assert_eq!(
            rfc3339(981_173_106).as_deref(),
            Some("2001-02-03T04:05:06Z")
        );
        assert_eq!(rfc3339(i64::MAX), None);
    }
}
