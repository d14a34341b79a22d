//! Chooses requests, and sends their spans in batches.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use rand::Rng as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Endpoint};

use super::context::TraceContext;
use super::metrics::SpanMetrics;
use super::span::{OpenSpan, text_attribute};
use crate::config::Config;
use crate::log_throttle::LogThrottle;

/// Most spans that wait, and most of one batch, as in OpenTelemetry's own batch processor.
const QUEUE: usize = 2048;
const BATCH: usize = 512;
/// Between two batches, so that there is more than one span in each.
const PAUSE: Duration = Duration::from_millis(50);
/// For one batch, connecting included.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the end of the process waits for the last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
const MILLION: u32 = 1_000_000;

/// Chooses requests and takes their spans. Requests only read it; the queue never makes them wait.
#[derive(Debug, Clone)]
pub struct Tracer {
    queue: mpsc::Sender<Span>,
    /// Spans that were queued and not sent yet.
    waiting: Arc<AtomicUsize>,
    metrics: SpanMetrics,
    per_million: u32,
}

impl Tracer {
    /// A span for a request, if it is sampled. Like kube-apiserver, a tracer goes by the request's `traceparent`, and
    /// where there is none by its own rate. `trusted`: the caller may decide; others could have everything recorded.
    pub fn sample(
        &self,
        parent: Option<TraceContext>,
        trusted: bool,
        name: &str,
    ) -> Option<OpenSpan> {
        let mut random = rand::thread_rng();
        let sampled = match parent {
            Some(parent) if trusted => parent.sampled,
            _ => self.per_million > 0 && random.gen_range(0..MILLION) < self.per_million,
        };
        sampled.then(|| {
            let trace_id = parent.map_or_else(|| random.r#gen(), |parent| parent.trace_id);
            let context = TraceContext {
                trace_id,
                span_id: random.r#gen(),
                sampled: true,
            };
            OpenSpan::begin(context, parent, name)
        })
    }

    /// A request has ended.
    pub fn ended(&self, span: OpenSpan, failed: bool) {
        self.waiting.fetch_add(1, Relaxed);
        if self.queue.try_send(span.end(failed)).is_err() {
            self.waiting.fetch_sub(1, Relaxed);
            let [_, dropped, _] = &self.metrics.by_result;
            dropped.inc();
        }
    }

    /// Waits until what was queued is sent, for a limited time.
    pub async fn flush(&self) {
        let end = Instant::now() + FLUSH_TIMEOUT;
        while self.waiting.load(Relaxed) > 0 && Instant::now() < end {
            sleep(PAUSE).await;
        }
    }
}

/// Spawns the task that sends spans to `tracing.endpoint` (host:port, gRPC without TLS), if there is one. The advertised
/// address tells the proxies of a cluster apart. Must be called within a runtime.
pub fn start(
    config: &Config,
    metrics: SpanMetrics,
    control: &mut JoinSet<()>,
) -> Result<Option<Arc<Tracer>>, tonic::transport::Error> {
    let Some(endpoint) = &config.tracing.endpoint else {
        return Ok(None);
    };
    let instance = config.peer.advertise_address.to_string();
    let channel = Endpoint::from_shared(format!("http://{endpoint}"))?
        .connect_timeout(EXPORT_TIMEOUT)
        .connect_lazy();
    let (sender, queue) = mpsc::channel(QUEUE);
    let attributes = vec![
        text_attribute("service.name", env!("CARGO_PKG_NAME")),
        text_attribute("service.version", env!("CARGO_PKG_VERSION")),
        text_attribute("service.instance.id", &instance),
    ];
    let exporter = Exporter {
        client: TraceServiceClient::new(channel),
        endpoint: endpoint.to_owned(),
        resource: Resource {
            attributes,
            ..Resource::default()
        },
        metrics: metrics.clone(),
        throttle: LogThrottle::default(),
    };
    let waiting = Arc::default();
    control.spawn(run(queue, exporter, Arc::clone(&waiting)));
    Ok(Some(Arc::new(Tracer {
        queue: sender,
        waiting,
        metrics,
        per_million: config.tracing.sampling_rate_per_million,
    })))
}

/// A batch is what has come since the one before. Ends when every tracer is gone.
async fn run(mut queue: mpsc::Receiver<Span>, mut exporter: Exporter, waiting: Arc<AtomicUsize>) {
    let mut spans = Vec::new();
    while queue.recv_many(&mut spans, BATCH).await > 0 {
        let count = spans.len();
        exporter.export(std::mem::take(&mut spans)).await;
        waiting.fetch_sub(count, Relaxed);
        sleep(PAUSE).await;
    }
}

struct Exporter {
    client: TraceServiceClient<Channel>,
    endpoint: String,
    resource: Resource,
    metrics: SpanMetrics,
    throttle: LogThrottle,
}

impl Exporter {
    /// Sends a batch once. One that is not taken in time is lost: a receiver that is down must not fill the memory.
    async fn export(&mut self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        let request = ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    spans,
                    ..ScopeSpans::default()
                }],
                ..ResourceSpans::default()
            }],
        };
        let [exported, _, failed] = &self.metrics.by_result;
        let error = match timeout(EXPORT_TIMEOUT, self.client.export(request)).await {
            Ok(Ok(response)) => {
                let partial = response.into_inner().partial_success;
                let rejected = partial.map_or(0, |partial| partial.rejected_spans);
                let rejected = u64::try_from(rejected).unwrap_or(0).min(count);
                exported.inc_by(count - rejected);
                failed.inc_by(rejected);
                if let Some(after) = self.throttle.recovered(&()) {
                    tracing::info!(endpoint = self.endpoint, ?after, "spans are sent again");
                }
                return;
            }
            Ok(Err(status)) => format!("{:?}", status.code()),
            Err(_) => "no answer in time".to_owned(),
        };
        failed.inc_by(count);
        if self.throttle.should_log((), error.clone()) {
            tracing::warn!(endpoint = self.endpoint, error, "spans cannot be sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    fn tracer(per_million: u32) -> (Tracer, mpsc::Receiver<Span>) {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let metrics = SpanMetrics::new(&Registry::new()).unwrap();
        let tracer = Tracer {
            queue,
            waiting: Arc::default(),
            metrics,
            per_million,
        };
        (tracer, receiver)
    }

    fn parent(sampled: bool) -> TraceContext {
        TraceContext {
            trace_id: [7; 16],
            span_id: [8; 8],
            sampled,
        }
    }

    #[test]
    fn who_is_trusted_decides_and_for_others_the_rate_does() {
        for (per_million, parent, trusted, expected) in [
            (0, None, true, false),
            (MILLION, None, true, true),
            (0, Some(parent(true)), true, true),
            (MILLION, Some(parent(false)), true, false),
            (0, Some(parent(true)), false, false),
            (MILLION, Some(parent(false)), false, true),
        ] {
            let span = tracer(per_million).0.sample(parent, trusted, "GET");
            assert_eq!(
                span.is_some(),
                expected,
                "{per_million} {parent:?} {trusted}"
            );
            let Some(span) = span else { continue };
            assert!(span.context.sampled && span.context.span_id != [8; 8]);
            if let Some(parent) = parent {
                assert_eq!(span.context.trace_id, parent.trace_id);
            }
        }
    }

    #[test]
    fn what_finds_the_queue_full_is_dropped_and_counted() {
        let (tracer, _queue) = tracer(MILLION);
        for _ in 0..QUEUE + 3 {
            tracer.ended(tracer.sample(None, true, "GET").unwrap(), false);
        }
        let [_, dropped, _] = &tracer.metrics.by_result;
        assert_eq!(dropped.get(), 3);
    }
}
