//! How metrics are declared; what there is to measure, each room knows itself.

use std::borrow::Borrow;

use prometheus::core::{Atomic, Collector, GenericGauge, GenericGaugeVec};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    Result, TextEncoder,
};

/// Structs of metrics, each metric in one place: its help, its field, what makes it (a function below), its name, and
/// what this function takes besides. The comment of a field is the help. A field that nothing makes is such a struct, too.
macro_rules! metrics {
    (@make $registry:ident, $type:ty, $($help:literal)+, $new:ident($name:literal $(, $argument:expr)*)) => {{
        let about = prometheus::Opts::new($name, concat!($($help),+).trim_start());
        $crate::metrics::$new($registry, about $(, $argument)*)
    }};
    (@make $registry:ident, $type:ty, $($help:literal)+,) => {
        <$type>::new($registry)
    };
    ($(
        $(#[$attribute:meta])*
        $public:vis struct $struct:ident {
            $(
                $(#[doc = $help:literal])+
                $visible:vis $field:ident: $type:ty
                    $(= $new:ident($name:literal $(, $argument:expr)* $(,)?))?,
            )+
        }
    )+) => {$(
        $(#[$attribute])*
        $public struct $struct {
            $($(#[doc = $help])+ $visible $field: $type,)+
        }

        impl $struct {
            /// Registers them. Fails only if two metrics have one name.
            $public fn new(registry: &prometheus::Registry) -> prometheus::Result<Self> {
                Ok(Self {
                    $($field: $crate::metrics::metrics!(
                        @make registry, $type, $($help)+, $($new($name $(, $argument)*))?
                    )?,)+
                })
            }
        }
    )+};
}

pub(crate) use metrics;

/// An enum whose values are those of a label: each with its name, and all of them in their order.
macro_rules! labels {
    ($(
        $(#[$attribute:meta])*
        $public:vis enum $enum:ident {
            $($(#[$doc:meta])* $value:ident = $name:literal,)+
        }
    )+) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $public enum $enum {
            $($(#[$doc])* $value,)+
        }

        impl $enum {
            $public const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// For logs and metrics.
            $public fn name(self) -> &'static str {
                [$($name),+][self as usize]
            }
        }
    )+};
}

pub(crate) use labels;

/// Every metric passes here: tests read their descriptions.
fn registered<C: Collector + Clone + 'static>(registry: &Registry, made: Result<C>) -> Result<C> {
    let collector = made?;
    #[cfg(test)]
    crate::reference::note(&collector);
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

pub fn counter(registry: &Registry, about: Opts) -> Result<IntCounter> {
    registered(registry, IntCounter::with_opts(about))
}

pub fn counter_vec(registry: &Registry, about: Opts, labels: &[&str]) -> Result<IntCounterVec> {
    registered(registry, IntCounterVec::new(about, labels))
}

/// One for each value of a label, all of them from the start: to Prometheus an increase from nothing is none.
pub fn counters<const N: usize>(
    registry: &Registry,
    about: Opts,
    label: &str,
    values: [&str; N],
) -> Result<[IntCounter; N]> {
    let counters = counter_vec(registry, about, &[label])?;
    Ok(values.map(|value| counters.with_label_values(&[value])))
}

/// One for each pair of values of two labels.
pub fn counter_table<const N: usize, const M: usize>(
    registry: &Registry,
    about: Opts,
    labels: [&str; 2],
    rows: [&str; N],
    columns: [&str; M],
) -> Result<[[IntCounter; M]; N]> {
    let counters = counter_vec(registry, about, &labels)?;
    Ok(rows.map(|row| columns.map(|column| counters.with_label_values(&[row, column]))))
}

pub fn gauge<P: Atomic + 'static>(registry: &Registry, about: Opts) -> Result<GenericGauge<P>> {
    registered(registry, GenericGauge::with_opts(about))
}

pub fn gauge_vec<P: Atomic + 'static>(
    registry: &Registry,
    about: Opts,
    labels: &[&str],
) -> Result<GenericGaugeVec<P>> {
    registered(registry, GenericGaugeVec::new(about, labels))
}

/// One for each value of a label.
pub fn gauges<P: Atomic + 'static, const N: usize>(
    registry: &Registry,
    about: Opts,
    label: &str,
    values: [&str; N],
) -> Result<[GenericGauge<P>; N]> {
    let gauges = gauge_vec(registry, about, &[label])?;
    Ok(values.map(|value| gauges.with_label_values(&[value])))
}

pub fn histogram(registry: &Registry, about: Opts, buckets: &[f64]) -> Result<Histogram> {
    let about = HistogramOpts::from(about).buckets(buckets.to_vec());
    registered(registry, Histogram::with_opts(about))
}

pub fn histogram_vec(
    registry: &Registry,
    about: Opts,
    labels: &[&str],
    buckets: &[f64],
) -> Result<HistogramVec> {
    let about = HistogramOpts::from(about).buckets(buckets.to_vec());
    registered(registry, HistogramVec::new(about, labels))
}

/// A count as the value of a gauge.
pub fn saturating(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// All of them as Prometheus' text.
pub fn text(registry: &Registry) -> Result<String> {
    TextEncoder::new().encode_to_string(&registry.gather())
}

/// Increments a gauge while it lives.
pub struct Open<G: Borrow<IntGauge>>(G);

impl<G: Borrow<IntGauge>> Open<G> {
    pub fn new(gauge: G) -> Self {
        gauge.borrow().inc();
        Self(gauge)
    }
}

impl<G: Borrow<IntGauge>> Drop for Open<G> {
    fn drop(&mut self) {
        self.0.borrow().dec();
    }
}
