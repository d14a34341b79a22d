//! How metrics are registered; what there is to measure, each room knows itself.

use prometheus::core::Collector;
use prometheus::{
    Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

/// Every metric passes here: tests read their descriptions.
pub fn register<C: Collector + Clone + 'static>(
    registry: &Registry,
    collector: &C,
) -> Result<(), prometheus::Error> {
    #[cfg(test)]
    crate::reference::note(collector);
    registry.register(Box::new(collector.clone()))
}

pub fn counter(
    registry: &Registry,
    name: &str,
    help: &str,
) -> Result<IntCounter, prometheus::Error> {
    let counter = IntCounter::new(name, help)?;
    register(registry, &counter)?;
    Ok(counter)
}

pub fn counter_vec(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, prometheus::Error> {
    let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
    register(registry, &counter)?;
    Ok(counter)
}

pub fn gauge(registry: &Registry, name: &str, help: &str) -> Result<Gauge, prometheus::Error> {
    let gauge = Gauge::new(name, help)?;
    register(registry, &gauge)?;
    Ok(gauge)
}

pub fn int_gauge(
    registry: &Registry,
    name: &str,
    help: &str,
) -> Result<IntGauge, prometheus::Error> {
    let gauge = IntGauge::new(name, help)?;
    register(registry, &gauge)?;
    Ok(gauge)
}

pub fn gauge_vec(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntGaugeVec, prometheus::Error> {
    let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
    register(registry, &gauge)?;
    Ok(gauge)
}

pub fn histogram_vec(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    buckets: &[f64],
) -> Result<HistogramVec, prometheus::Error> {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    let histogram = HistogramVec::new(options, labels)?;
    register(registry, &histogram)?;
    Ok(histogram)
}

/// A count as the value of a gauge.
pub fn saturating(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// All of them as Prometheus' text.
pub fn text(registry: &Registry) -> Result<String, prometheus::Error> {
    TextEncoder::new().encode_to_string(&registry.gather())
}

/// Increments a gauge while it lives.
pub struct Open<'a>(&'a IntGauge);

impl<'a> Open<'a> {
    pub fn new(gauge: &'a IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
