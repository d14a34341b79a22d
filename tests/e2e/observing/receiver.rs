//! An OTLP receiver: gRPC over plain HTTP/2, one method.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::Event;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use testkit::cluster::LONG;
use testkit::wait::eventually;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

pub struct Receiver {
    pub addr: SocketAddr,
    spans: Arc<Mutex<Vec<Received>>>,
    _task: JoinSet<()>,
}

/// A span, and the resource that sent it.
#[derive(Clone, Debug)]
pub struct Received {
    pub span: Span,
    pub resource: Vec<KeyValue>,
}

impl Received {
    /// An attribute as text; empty if there is none.
    pub fn attribute(&self, key: &str) -> String {
        text(&self.span.attributes, key)
    }

    pub fn events(&self) -> Vec<(String, String)> {
        let value = |event: &Event| {
            let [attribute] = event.attributes.as_slice() else {
                panic!("{event:?}");
            };
            text(std::slice::from_ref(attribute), &attribute.key)
        };
        let events = self.span.events.iter();
        events
            .map(|event| (event.name.clone(), value(event)))
            .collect()
    }

    /// As `traceparent` names it.
    pub fn traceparent(&self) -> String {
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        format!(
            "00-{}-{}-01",
            hex(&self.span.trace_id),
            hex(&self.span.span_id)
        )
    }
}

pub fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    let value = found.and_then(|attribute| attribute.value.as_ref()?.value.as_ref());
    match value {
        None => String::new(),
        Some(any_value::Value::StringValue(text)) => text.clone(),
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        Some(other) => panic!("{key}: {other:?}"),
    }
}

impl Receiver {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let spans = Arc::<Mutex<Vec<Received>>>::default();
        let mut task = JoinSet::new();
        task.spawn(accept(listener, spans.clone()));
        Self {
            addr,
            spans,
            _task: task,
        }
    }

    /// Spans of this path, as soon as there are so many.
    pub async fn spans(&self, path: &str, count: usize) -> Vec<Received> {
        let what = format!("{count} spans of {path}");
        eventually(&what, LONG, async || {
            let found = self.all(path);
            match found.len() == count {
                true => Ok(found),
                false => Err(format!("{:?}", self.spans.lock().unwrap())),
            }
        })
        .await
    }

    pub fn all(&self, path: &str) -> Vec<Received> {
        let spans = self.spans.lock().unwrap();
        let of_path = |received: &&Received| received.attribute("url.path") == path;
        spans.iter().filter(of_path).cloned().collect()
    }
}

async fn accept(listener: TcpListener, spans: Arc<Mutex<Vec<Received>>>) {
    let mut connections = JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        let spans = spans.clone();
        connections.spawn(async move {
            let answer = service_fn(|request| take(request, spans.clone()));
            let serving = http2::Builder::new(TokioExecutor::new());
            // The client may go away.
            let _ = serving.serve_connection(TokioIo::new(tcp), answer).await;
        });
    }
}

/// Keeps the spans of one request, and answers that all were taken.
async fn take(
    request: Request<Incoming>,
    spans: Arc<Mutex<Vec<Received>>>,
) -> hyper::Result<Response<impl hyper::body::Body<Data = Bytes, Error = std::convert::Infallible>>>
{
    assert_eq!(request.uri().path(), EXPORT);
    let body = request.into_body().collect().await?.to_bytes();
    // Not compressed, and the length.
    assert_eq!(body[0], 0);
    let asked = ExportTraceServiceRequest::decode(&body[5..]).unwrap();
    for of_resource in asked.resource_spans {
        let resource = of_resource.resource.unwrap().attributes;
        for scope in of_resource.scope_spans {
            let received = scope.spans.into_iter().map(|span| Received {
                span,
                resource: resource.clone(),
            });
            spans.lock().unwrap().extend(received);
        }
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    let body = Full::new(Bytes::from_static(&[0; 5])).with_trailers(async { Some(Ok(trailers)) });
    let response = Response::builder().header("content-type", "application/grpc");
    Ok(response.body(body).unwrap())
}
