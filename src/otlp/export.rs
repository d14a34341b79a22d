//! Chooses requests, and sends their spans in batches. `app` starts it; the SDK's thread of batches calls the exporter.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use opentelemetry::trace::{SpanContext, SpanKind, TraceContextExt, Tracer as _, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, RetryPolicy, SpanExporter, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, Span, SpanData,
    SpanExporter as Export, SpanProcessor,
};
use rand::Rng as _;
use tonic::transport::Endpoint;

use super::metrics::SpanMetrics;
use crate::config::TracingConfig;
use crate::log_throttle::{LogThrottle, warn_new};

/// Most spans that wait, and most of one batch, as in the SDK itself.
const QUEUE: usize = 2048;
const BATCH: usize = 512;
/// Between two batches that are not full.
const PAUSE: Duration = Duration::from_secs(1);
/// For connecting, and for a batch.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// Chooses requests and takes their spans. Requests only read it; the queue never makes them wait.
pub struct Tracer {
    provider: SdkTracerProvider,
    sdk: SdkTracer,
    per_million: u32,
}

impl Tracer {
    /// A span for a request, if it is sampled; it ends when it is dropped. Like kube-apiserver, a tracer goes by the
    /// request's `traceparent`, and where there is none by its own rate. `trusted`: the caller may decide; others could
    /// have everything recorded.
    pub fn sample(
        &self,
        parent: Option<SpanContext>,
        trusted: bool,
        name: &'static str,
    ) -> Option<Span> {
        let sampled = match &parent {
            Some(parent) if trusted => parent.is_sampled(),
            _ => rand::thread_rng().gen_ratio(self.per_million, 1_000_000),
        };
        sampled.then(|| {
            let root = Context::new();
            let parent = parent.map(|parent| root.with_remote_span_context(parent));
            let span = self.sdk.span_builder(name).with_kind(SpanKind::Server);
            span.start_with_context(&self.sdk, &parent.unwrap_or(root))
        })
    }

    /// Waits until what was queued is sent, for a limited time. After it there are no spans.
    pub async fn flush(&self) {
        let provider = self.provider.clone();
        let flush = move || provider.shutdown_with_timeout(FLUSH_TIMEOUT);
        // What is not sent in time is lost.
        let _ = tokio::task::spawn_blocking(flush).await;
    }
}

/// What sends spans to `tracing.endpoint` (host:port, gRPC without TLS), if there is one, from the runtime that this is called
/// in. `instance` tells the proxies of a cluster apart.
pub fn start(
    config: &TracingConfig,
    instance: SocketAddr,
    metrics: SpanMetrics,
) -> Result<Option<Tracer>, ExporterBuildError> {
    let Some(endpoint) = &config.endpoint else {
        return Ok(None);
    };
    let channel = Endpoint::from_shared(format!("http://{endpoint}"))
        .map_err(|error| ExporterBuildError::InvalidConfiguration(error.to_string()))?
        .connect_timeout(EXPORT_TIMEOUT)
        .timeout(EXPORT_TIMEOUT)
        .connect_lazy();
    // A batch is sent once: a receiver that is down must not hold up those after it.
    let mut otlp = SpanExporter::builder()
        .with_tonic()
        .with_channel(channel)
        .with_retry_policy(RetryPolicy::disabled())
        .build()?;
    let resource = Resource::builder_empty().with_attributes([
        KeyValue::new("service.name", env!("CARGO_PKG_NAME")),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", instance.to_string()),
    ]);
    otlp.set_resource(&resource.build());
    let waiting = Arc::<AtomicUsize>::default();
    let exporter = Exporter {
        otlp,
        endpoint: endpoint.to_owned(),
        waiting: waiting.clone(),
        metrics: metrics.clone(),
        throttle: LogThrottle::default(),
    };
    let limits = BatchConfigBuilder::default()
        .with_max_queue_size(QUEUE)
        .with_max_export_batch_size(BATCH)
        .with_scheduled_delay(PAUSE);
    let batches = BatchSpanProcessor::builder(exporter).with_batch_config(limits.build());
    let provider = SdkTracerProvider::builder()
        .with_sampler(Sampler::AlwaysOn)
        .with_span_processor(Queue {
            batches: batches.build(),
            waiting,
            metrics,
        })
        .build();
    Ok(Some(Tracer {
        sdk: provider.tracer(env!("CARGO_PKG_NAME")),
        provider,
        per_million: config.sampling_rate_per_million,
    }))
}

/// The SDK's queue, which does not tell how many spans it drops: it never gets more than it takes.
#[derive(Debug)]
struct Queue {
    batches: BatchSpanProcessor,
    /// Spans that were queued and not taken by the exporter yet.
    waiting: Arc<AtomicUsize>,
    metrics: SpanMetrics,
}

impl SpanProcessor for Queue {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Relaxed) < QUEUE {
            return self.batches.on_end(span);
        }
        self.waiting.fetch_sub(1, Relaxed);
        let [_, dropped, _] = &self.metrics.by_result;
        dropped.inc();
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }
}

/// The OTLP exporter, and what becomes of its batches.
#[derive(Debug)]
struct Exporter {
    otlp: SpanExporter,
    endpoint: String,
    waiting: Arc<AtomicUsize>,
    metrics: SpanMetrics,
    throttle: LogThrottle,
}

impl Export for Exporter {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        let (count, endpoint) = (spans.len(), &self.endpoint);
        self.waiting.fetch_sub(count, Relaxed);
        let result = self.otlp.export(spans).await;
        let [exported, _, failed] = &self.metrics.by_result;
        let by_result = if result.is_ok() { exported } else { failed };
        by_result.inc_by(count as u64);
        if let Err(error) = &result {
            warn_new!(self.throttle, (), error, endpoint, "spans cannot be sent");
        } else if let Some(after) = self.throttle.recovered(&()) {
            tracing::info!(endpoint, ?after, "spans are exported again");
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span as _, SpanId, TraceFlags, TraceId, TraceState};
    use prometheus::Registry;
    use tokio::net::TcpListener;

    use super::*;

    const ALL: u32 = 1_000_000;

    fn tracer(receiver: SocketAddr, per_million: u32) -> (Tracer, SpanMetrics) {
        let config = TracingConfig {
            endpoint: Some(receiver.to_string()),
            sampling_rate_per_million: per_million,
        };
        let metrics = SpanMetrics::new(&Registry::new()).unwrap();
        let tracer = start(&config, receiver, metrics.clone()).unwrap();
        (tracer.unwrap(), metrics)
    }

    fn parent(flags: TraceFlags) -> Option<SpanContext> {
        let (trace_id, span_id) = (TraceId::from(7), SpanId::from(8));
        let state = TraceState::NONE;
        Some(SpanContext::new(trace_id, span_id, flags, true, state))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_is_trusted_decides_and_for_others_the_rate_does() {
        let receiver = "127.0.0.1:1".parse().unwrap();
        let (sampled, not) = (parent(TraceFlags::SAMPLED), parent(TraceFlags::NOT_SAMPLED));
        for (per_million, parent, trusted, expected) in [
            (0, None, true, false),
            (ALL, None, true, true),
            (0, sampled.clone(), true, true),
            (ALL, not.clone(), true, false),
            (0, sampled, false, false),
            (ALL, not, false, true),
        ] {
            let case = format!("{per_million} {parent:?} {trusted}");
            let (tracer, _) = tracer(receiver, per_million);
            let span = tracer.sample(parent.clone(), trusted, "GET");
            assert_eq!(span.is_some(), expected, "{case}");
            let Some(span) = span else { continue };
            let context = span.span_context();
            assert!(context.is_valid() && context.is_sampled(), "{case}");
            if let Some(parent) = parent {
                assert_eq!(context.trace_id(), parent.trace_id());
                assert_ne!(context.span_id(), parent.span_id());
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_finds_the_queue_full_is_dropped_and_counted() {
        const MORE: u64 = 3;
        // Takes connections and never says anything.
        let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (tracer, metrics) = tracer(hanging.local_addr().unwrap(), ALL);
        for _ in 0..(QUEUE + BATCH) as u64 + MORE {
            drop(tracer.sample(None, true, "GET"));
        }
        let [exported, dropped, failed] = metrics.by_result.each_ref().map(|it| it.get());
        // Perhaps no batch is taken yet.
        assert!((MORE..=MORE + BATCH as u64).contains(&dropped), "{dropped}");
        assert_eq!([exported, failed], [0, 0]);
        // Once the receiver is gone, all others have failed.
        drop(hanging);
        tracer.flush().await;
        let [exported, _, failed] = metrics.by_result.each_ref().map(|it| it.get());
        assert_eq!(exported, 0);
        assert_eq!(failed + dropped, (QUEUE + BATCH) as u64 + MORE);
    }
}
