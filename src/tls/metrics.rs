//! Metrics of certificate files. Written by [`crate::tls::rotation`], read by the status page too.

use prometheus::core::Collector as _;
use prometheus::{IntCounterVec, IntGaugeVec};
use time::OffsetDateTime;

use super::files::Key;
use crate::metrics::metrics;

metrics! {
    /// State of the certificate files that the configuration names.
    pub struct CertificateMetrics {
        /// Times that new certificate files were put into use.
        loaded: IntCounterVec = counter_vec("kube_interop_proxy_certificates_loaded_total", &["files"]),
        /// 1 while new certificate files cannot be used and the previous ones stay in use.
        broken: IntGaugeVec = gauge_vec("kube_interop_proxy_certificates_broken", &["files"]),
        /// When the first certificate in use of a file expires, in Unix time.
        expiration: IntGaugeVec =
            gauge_vec("kube_interop_proxy_certificate_expiration_timestamp_seconds", &["file"]),
    }
}

impl CertificateMetrics {
    /// Files of a group came into use; `new`: they replace others.
    pub fn in_use(&self, group: &str, new: bool, expirations: &[(Key, i64)]) {
        self.loaded.with_label_values(&[group]).inc_by(new.into());
        self.set_broken(group, false);
        for (key, end) in expirations {
            self.expiration.with_label_values(&[&**key]).set(*end);
        }
    }

    /// Says whether the new files of a group cannot be used.
    pub fn set_broken(&self, group: &str, broken: bool) {
        self.broken.with_label_values(&[group]).set(broken.into());
    }

    /// Groups whose new files cannot be used.
    pub fn broken(&self) -> impl Iterator<Item = String> {
        let broken = values(&self.broken).filter(|(_, value)| *value == 1);
        broken.map(|(group, _)| group)
    }

    /// When files in use expire, in Unix seconds, by configuration key.
    pub fn expirations(&self) -> impl Iterator<Item = (String, i64)> {
        values(&self.expiration)
    }
}

/// The value of each label.
fn values(gauges: &IntGaugeVec) -> impl Iterator<Item = (String, i64)> + use<> {
    let metrics = gauges.collect().into_iter();
    let metrics = metrics.flat_map(|mut family| family.take_metric());
    metrics.filter_map(|metric| {
        let label = metric.get_label().first()?;
        Some((
            label.value().to_owned(),
            metric.get_gauge().get_value() as i64,
        ))
    })
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
