//! A [`tower_layer::Layer`] for Kubernetes clients. It adds the header `X-Kubernetes-If-Ready` (KEP-3028) to each
//! request and retries requests as client-go does.
//!
//! A server that is not initialized answers such a request with 503 and `Retry-After`. The layer waits that long and
//! sends the request again. The caller gets only the last answer.
//!
//! The rules are in [`crate::retry`]. The layer retries at most ten times, and only requests whose body can be copied.
//! It retries an answer 429 or 5xx whose `Retry-After` is a number of seconds, whatever the method, and it retries a
//! GET whose connection broke. It has no time limit, like client-go: drop the future to cancel the request.
//!
//! With kube-rs (see `examples/kube-rs`). Switch off kube's own retries, because they follow other rules:
//!
//! ```ignore
//! config.default_retry = false;
//! let layer = IfReadyLayer::new(kube::client::Body::try_clone);
//! let client = ClientBuilder::try_from(config)?.with_layer(&layer).build();
//! ```
//!
//! This crate does not depend on the proxy. The proxy's own client follows the same [`retry`] rules.

#![warn(missing_docs)] // The only interface for others.

mod broken;
pub mod retry;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Buf as _;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Body;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};
use tower_layer::Layer;
use tower_service::Service;

use self::retry::{MOST_RETRIES, Outcome};

/// Request header: asks the server to answer only if it is initialized. Any value counts.
pub const IF_READY: HeaderName = HeaderName::from_static("x-kubernetes-if-ready");

/// Response header: `true` if the server was initialized, otherwise `false`. See [`is_ready`].
pub const READY: HeaderName = HeaderName::from_static("x-kubernetes-ready");

/// How long client-go waits before it repeats a GET whose connection broke.
const AFTER_BREAK: Duration = Duration::from_secs(1);

/// Bytes of a discarded answer that are read so that its connection can be reused. client-go's number.
const MOST_DRAINED: usize = 2 << 10;
/// Time limit for reading a discarded answer.
const LONGEST_DRAIN: Duration = Duration::from_secs(1);

/// Any error, boxed as in tower's own layers.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Whether the server was initialized, according to the headers of its answer. `None`: the server does not support
/// `X-Kubernetes-If-Ready`, or the request did not have that header.
pub fn is_ready(headers: &HeaderMap) -> Option<bool> {
    match headers.get(READY)?.as_bytes() {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// Wraps an HTTP client in [`IfReady`]. `B` is the type of its request bodies.
pub struct IfReadyLayer<B> {
    value: HeaderValue,
    most_retries: u32,
    longest_wait: Duration,
    copy: fn(&B) -> Option<B>,
}

impl<B> IfReadyLayer<B> {
    /// `copy` returns a copy of a request body, or `None` if it cannot be copied (a stream, for instance). A request
    /// without a copy of its body is sent once.
    pub fn new(copy: fn(&B) -> Option<B>) -> Self {
        Self {
            value: HeaderValue::from_static("true"),
            most_retries: MOST_RETRIES,
            longest_wait: Duration::MAX,
            copy,
        }
    }

    /// Sets the value of `X-Kubernetes-If-Ready`. Default `true`; servers ignore the value. A request that already has
    /// the header keeps it.
    pub fn value(self, value: HeaderValue) -> Self {
        Self { value, ..self }
    }

    /// Limits the retries of one request. Default 10, as in client-go.
    pub fn most_retries(self, most_retries: u32) -> Self {
        Self {
            most_retries,
            ..self
        }
    }

    /// Limits a single wait: the layer returns an answer whose `Retry-After` is longer instead of waiting. Default: no
    /// limit, as in client-go.
    pub fn longest_wait(self, longest_wait: Duration) -> Self {
        Self {
            longest_wait,
            ..self
        }
    }

    fn copy(&self, request: &Request<B>) -> Option<Request<B>> {
        let mut copy = Request::new((self.copy)(request.body())?);
        *copy.method_mut() = request.method().clone();
        *copy.uri_mut() = request.uri().clone();
        *copy.version_mut() = request.version();
        copy.headers_mut().clone_from(request.headers());
        copy.extensions_mut().clone_from(request.extensions());
        Some(copy)
    }

    async fn run<S, R>(
        self,
        inner: Arc<Mutex<S>>,
        mut request: Request<B>,
    ) -> Result<Response<R>, BoxError>
    where
        S: Service<Request<B>, Response = Response<R>>,
        S::Error: Into<BoxError>,
        R: Body,
    {
        let mut tries = 0;
        loop {
            let again = self.copy(&request);
            let outcome = send(&inner, request).await.map_err(Into::into);
            tries += 1;
            let Some(again) = again else {
                return outcome;
            };
            let seen = match &outcome {
                Ok(answer) => Outcome::Answer(answer.status(), answer.headers()),
                Err(error) if broken::is_broken(error.as_ref()) => Outcome::Broken(AFTER_BREAK),
                Err(_) => Outcome::Failed,
            };
            let wait = retry::pause(again.method(), tries, self.most_retries, seen);
            let Some(wait) = wait.filter(|wait| *wait <= self.longest_wait) else {
                return outcome;
            };
            if let Ok(answer) = outcome {
                // An answer that is not read to its end only costs the connection.
                let _ = timeout(LONGEST_DRAIN, drain(answer.into_body())).await;
            }
            sleep(wait).await;
            request = again;
        }
    }
}

impl<B> Clone for IfReadyLayer<B> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            ..*self
        }
    }
}

impl<S, B> Layer<S> for IfReadyLayer<B> {
    type Service = IfReady<S, B>;

    fn layer(&self, inner: S) -> Self::Service {
        IfReady {
            inner: Arc::new(Mutex::new(inner)),
            layer: self.clone(),
        }
    }
}

/// An HTTP client that waits until the server is initialized; see [`IfReadyLayer`]. It is always ready: each attempt
/// waits for the wrapped client.
pub struct IfReady<S, B> {
    /// All requests share it, because kube's client cannot be cloned.
    inner: Arc<Mutex<S>>,
    layer: IfReadyLayer<B>,
}

impl<S, B> Clone for IfReady<S, B> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer.clone(),
        }
    }
}

impl<S, B, R> Service<Request<B>> for IfReady<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    B: Send + 'static,
    R: Body + Send + 'static,
{
    type Response = Response<R>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let headers = request.headers_mut().entry(IF_READY);
        headers.or_insert_with(|| self.layer.value.clone());
        Box::pin(self.layer.clone().run(self.inner.clone(), request))
    }
}

/// Sends the request once.
async fn send<S: Service<T>, T>(inner: &Mutex<S>, request: T) -> Result<S::Response, S::Error> {
    let mut service = inner.lock().await;
    poll_fn(|context| service.poll_ready(context)).await?;
    let answer = service.call(request);
    // Release the lock: other requests may be sent during this one.
    drop(service);
    answer.await
}

/// Reads a short body to its end. Reads nothing of a body that is known to be long.
async fn drain<R: Body>(body: R) {
    let mut body = pin!(body);
    let mut read = 0;
    while read <= MOST_DRAINED && body.size_hint().lower() <= MOST_DRAINED as u64 {
        let frame = poll_fn(|context| body.as_mut().poll_frame(context)).await;
        let Some(Ok(frame)) = frame else {
            return;
        };
        read += frame.data_ref().map_or(0, |data| data.remaining());
    }
}
