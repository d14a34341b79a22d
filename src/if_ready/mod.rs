//! For clients: a [`tower_layer::Layer`] that asks for `X-Kubernetes-If-Ready` (KEP-3028) and repeats requests as
//! client-go does.
//!
//! A server that is not initialized yet answers such a request with 503 and `Retry-After`, and the layer comes back after
//! that time; its caller sees one answer, the last. The rules are those of [`crate::retry`]: 429 and 5xx with a number of
//! seconds in `Retry-After` whatever the verb, a broken connection for GET only, ten retries, a body that can be had
//! again. There is no time limit in it, as there is none in client-go: dropping the future ends all.
//!
//! With kube-rs (`examples/kube-rs`), whose own retries are switched off because they have other rules:
//!
//! ```ignore
//! config.default_retry = false;
//! let layer = IfReadyLayer::new(kube::client::Body::try_clone);
//! let client = ClientBuilder::try_from(config)?.with_layer(&layer).build();
//! ```
//!
//! It is independent of the proxy (feature `client`), and nothing of the proxy uses it.

mod broken;
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

use crate::retry::{self, MOST_RETRIES, Outcome};

/// Asks the server to answer only if it is initialized.
pub const IF_READY: HeaderName = HeaderName::from_static("x-kubernetes-if-ready");

/// Says whether it was; see [`is_ready`].
pub const READY: HeaderName = HeaderName::from_static("x-kubernetes-ready");

/// client-go's wait before a GET is repeated whose connection broke.
const AFTER_BREAK: Duration = Duration::from_secs(1);

/// What is read of an answer that is not wanted, so that its connection can be used again; client-go's number.
const MOST_DRAINED: usize = 2 << 10;
/// Nobody waits longer for the end of such an answer.
const LONGEST_DRAIN: Duration = Duration::from_secs(1);

/// Any error, as tower's own layers have it.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Whether the server that gave this answer was initialized. `None`: it does not know `X-Kubernetes-If-Ready`, or was not
/// asked.
pub fn is_ready(headers: &HeaderMap) -> Option<bool> {
    match headers.get(READY)?.as_bytes() {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// Makes an [`IfReady`] of an HTTP client with request bodies of type `B`.
pub struct IfReadyLayer<B> {
    value: HeaderValue,
    most_retries: u32,
    longest_wait: Duration,
    copy: fn(&B) -> Option<B>,
}

impl<B> IfReadyLayer<B> {
    /// `copy`: the same body once more, from its beginning; `None` for one that cannot be had twice, a stream for
    /// instance. Such a request is not repeated.
    pub fn new(copy: fn(&B) -> Option<B>) -> Self {
        Self {
            value: HeaderValue::from_static("true"),
            most_retries: MOST_RETRIES,
            longest_wait: Duration::MAX,
            copy,
        }
    }

    /// The header's value. Servers look only whether it is there. A request that has the header already keeps its own.
    pub fn value(self, value: HeaderValue) -> Self {
        Self { value, ..self }
    }

    /// Instead of client-go's 10.
    pub fn most_retries(self, most_retries: u32) -> Self {
        Self {
            most_retries,
            ..self
        }
    }

    /// The answer of a server that asks for a longer wait than this is the last. client-go waits as long as it is told.
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
                // Whether it came to its end makes no difference but to the connection.
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

/// An HTTP client that waits for servers to be initialized; see [`IfReadyLayer`]. It is ready at once: each try waits for
/// the client inside by itself.
pub struct IfReady<S, B> {
    /// Shared by all requests, because kube's client inside cannot be cloned.
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

/// One try.
async fn send<S: Service<T>, T>(inner: &Mutex<S>, request: T) -> Result<S::Response, S::Error> {
    let mut service = inner.lock().await;
    poll_fn(|context| service.poll_ready(context)).await?;
    let answer = service.call(request);
    // Others may send theirs meanwhile.
    drop(service);
    answer.await
}

/// Reads what little there is of an answer; of a longer one nothing.
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
