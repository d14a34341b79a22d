//! Metrics of certificate files. Written by [`crate::tls::rotation`], read by the status page too.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::metrics::register;

/// How it is with the files that the configuration names.
#[derive(Debug)]
pub struct CertificateMetrics {
    loaded: IntCounterVec,
    broken: IntGaugeVec,
    expiration: IntGaugeVec,
    known: Mutex<Known>,
}

/// For the status page.
#[derive(Debug, Default)]
struct Known {
    broken: BTreeMap<&'static str, bool>,
    expirations: BTreeMap<&'static str, i64>,
}

impl CertificateMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let loaded = IntCounterVec::new(
            Opts::new(
                "kube_interop_proxy_certificates_loaded_total",
                "Times that new certificate files were put into use, by what they are for.",
            ),
            &["files"],
        )?;
        let broken = IntGaugeVec::new(
            Opts::new(
                "kube_interop_proxy_certificates_broken",
                "1 while new certificate files cannot be used, and those before stay in use, by what they are for.",
            ),
            &["files"],
        )?;
        let expiration = IntGaugeVec::new(
            Opts::new(
                "kube_interop_proxy_certificate_expiration_timestamp_seconds",
                "When the first certificate in use of a file expires, in Unix time; by the configuration's key.",
            ),
            &["file"],
        )?;
        register(registry, &loaded)?;
        register(registry, &broken)?;
        register(registry, &expiration)?;
        Ok(Self {
            loaded,
            broken,
            expiration,
            known: Mutex::default(),
        })
    }

    /// Files of a group are in use, the first ones or new ones.
    pub fn in_use(&self, group: &'static str, new: bool, expirations: &[(&'static str, i64)]) {
        let loaded = self.loaded.with_label_values(&[group]);
        loaded.inc_by(new.into());
        self.broken(group, false);
        self.expire(expirations);
    }

    /// Whether the new files of a group cannot be used.
    pub fn broken(&self, group: &'static str, broken: bool) {
        self.broken.with_label_values(&[group]).set(broken.into());
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.broken.insert(group, broken);
    }

    /// When files that are in use expire, by the keys that name them.
    fn expire(&self, expirations: &[(&'static str, i64)]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, end) in expirations {
            self.expiration.with_label_values(&[key]).set(*end);
            known.expirations.insert(key, *end);
        }
    }

    /// For the status page.
    pub fn status(&self) -> Value {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let broken = known.broken.iter().filter(|(_, broken)| **broken);
        let broken: Vec<_> = broken.map(|(group, _)| group).collect();
        let ends = known.expirations.iter();
        let expire: BTreeMap<_, _> = ends.map(|(key, end)| (key, rfc3339(*end))).collect();
        json!({"broken": broken, "expire": expire})
    }
}

/// As Kubernetes writes times; none of a time that no calendar has.
pub(super) fn rfc3339(seconds: i64) -> Option<String> {
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

    #[test]
    fn the_status_page_names_what_is_broken_and_when_files_expire() {
        let metrics = CertificateMetrics::new(&Registry::new()).unwrap();
        metrics.in_use("serving", false, &[]);
        metrics.in_use("etcd", true, &[("etcd.caFile", 0)]);
        metrics.broken("etcd", true);
        assert_eq!(
            metrics.status(),
            json!({"broken": ["etcd"], "expire": {"etcd.caFile": "1970-01-01T00:00:00Z"}})
        );
    }
}
