//! Paths that no kube-apiserver has: `/_double/…`, for tests of the way there and back.
//!
//! | path | what it does |
//! |---|---|
//! | `echo` | tells what arrived, as JSON; so does any other path if the request has the header `X-Double-Echo` |
//! | `slow?ms=` | answers after a while |
//! | `big?bytes=` | streams so many bytes |
//! | `mirror` | streams the request's body back |
//! | `upload` | reads everything, tells how much it was |
//! | `ticks?ms=` | a line now and every so often, for ever |
//! | `hang` | never answers |
//! | `reset?after=` | breaks off, before the header or after so many bytes of the body |
//! | `status?code=&retryAfter=` | answers so without reading the body |
//! | `upgrade` | 101 to whatever protocol is wanted, as `exec` does, see [`super::upgrade`]; `?refuse=403` does not |

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::auth::User;
use super::body::{Answer, Body, channel, json as json_answer};
use super::client_connection::ClientConnection;
use super::record::Recorder;
use super::state::State;
use super::status::{Status, page_not_found};
use super::upgrade::upgrade;

const CHUNK: usize = 64 * 1024;

pub struct SpecialRequest<'a> {
    pub state: &'a Arc<State>,
    pub record: u64,
    pub client: &'a ClientConnection,
    pub user: &'a User,
    pub query: HashMap<String, String>,
}

impl SpecialRequest<'_> {
    pub async fn answer(self, name: &str, request: Request<Incoming>) -> Answer {
        match name {
            "echo" => self.echo(request).await,
            "upload" => self.upload(request).await,
            "slow" => {
                tokio::time::sleep(Duration::from_millis(self.number("ms", 100))).await;
                Ok(json_answer(StatusCode::OK, &json!({})))
            }
            "big" => Ok(Response::new(stream(self.number("bytes", 1 << 20), false))),
            "mirror" => Ok(Response::new(
                request.into_body().map_err(Into::into).boxed_unsync(),
            )),
            "ticks" => Ok(Response::new(ticks(Duration::from_millis(
                self.number("ms", 100),
            )))),
            "hang" => std::future::pending().await,
            "reset" if self.query.contains_key("after") => {
                Ok(Response::new(stream(self.number("after", 0), true)))
            }
            "reset" => Err("the double breaks off, as it was told to".into()),
            "status" => Ok(self.status(request.headers())),
            "upgrade" => Ok(match self.number("refuse", 0) {
                0 => upgrade(self.state, self.record, request),
                _ => self.status(request.headers()),
            }),
            _ => Ok(page_not_found()),
        }
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.query
            .get(name)
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    }

    async fn echo(&self, request: Request<Incoming>) -> Answer {
        let (parts, body) = request.into_parts();
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = parts
            .headers
            .iter()
            .map(|(name, value)| json!([name.as_str(), text(value)]));
        let headers: Vec<Value> = headers.collect();
        let Drained {
            length,
            sum,
            trailers,
        } = drain(body, &self.state.recorder, self.record).await?;
        let user = self.user;
        Ok(json_answer(
            StatusCode::OK,
            &json!({
                "method": parts.method.as_str(),
                "path": parts.uri.path_and_query().map(ToString::to_string),
                "authority": parts.uri.authority().map(ToString::to_string),
                "headers": headers,
                "trailers": trailers,
                "bodyLength": length,
                "bodySum": sum,
                "protocol": format!("{:?}", parts.version),
                "connection": self.client.connection_id,
                "certificate": self.client.cn,
                "user": {
                    "name": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
                    "how": user.how,
                },
            }),
        ))
    }

    async fn upload(&self, request: Request<Incoming>) -> Answer {
        let drained = drain(request.into_body(), &self.state.recorder, self.record).await?;
        Ok(json_answer(
            StatusCode::OK,
            &json!({"bytes": drained.length, "trailers": drained.trailers}),
        ))
    }

    fn status(&self, headers: &HeaderMap) -> Response<Body> {
        let code = self.number("code", self.number("refuse", 503));
        let retry_after = self
            .query
            .get("retryAfter")
            .and_then(|seconds| seconds.parse().ok());
        ordered_status(u16::try_from(code).unwrap_or(503), retry_after, headers)
    }
}

/// The response that a test has set.
pub fn ordered_status(code: u16, retry_after: Option<u64>, headers: &HeaderMap) -> Response<Body> {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let mut response =
        Status::new(code, "Told", "the double was told to answer so").answer(headers);
    if let Some(seconds) = retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A body that was read to its end.
struct Drained {
    length: u64,
    /// Differs if the bytes do.
    sum: String,
    trailers: Value,
}

async fn drain(
    mut body: Incoming,
    recorder: &Recorder,
    record: u64,
) -> Result<Drained, hyper::Error> {
    let mut length = 0;
    let mut hasher = DefaultHasher::new();
    let mut trailers = serde_json::Map::new();
    while let Some(frame) = body.frame().await {
        let frame = frame?;
        if let Some(data) = frame.data_ref() {
            length += data.len() as u64;
            hasher.write(data);
            recorder.change(record, |request| request.body_len = length);
        } else if let Some(fields) = frame.trailers_ref() {
            let fields = fields.iter().map(|(name, value)| {
                (
                    name.to_string(),
                    json!(String::from_utf8_lossy(value.as_bytes())),
                )
            });
            trailers.extend(fields);
        }
    }
    Ok(Drained {
        length,
        sum: format!("{:016x}", hasher.finish()),
        trailers: Value::Object(trailers),
    })
}

/// Streams `bytes` bytes, then ends, or breaks the connection off.
pub fn stream(mut bytes: u64, break_off: bool) -> Body {
    let (sender, body) = channel();
    tokio::spawn(async move {
        let chunk = Bytes::from(vec![b'x'; CHUNK]);
        while bytes > 0 {
            let length = usize::try_from(bytes).unwrap_or(CHUNK).min(CHUNK);
            if sender.send(Ok(chunk.slice(..length))).await.is_err() {
                return;
            }
            bytes -= length as u64;
        }
        if break_off {
            // Write pending data first, because the error would overtake it.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let _ = sender
                .send(Err("the double breaks off, as it was told to".into()))
                .await;
        }
    });
    body
}

fn ticks(pause: Duration) -> Body {
    let (sender, body) = channel();
    tokio::spawn(async move {
        for number in 0_u64.. {
            if sender
                .send(Ok(format!("tick {number}\n").into()))
                .await
                .is_err()
            {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = sender.closed() => return,
            }
        }
    });
    body
}

/// One line, and then nothing until the client goes away.
pub fn held_open(line: &'static str) -> Body {
    let (sender, body) = channel();
    tokio::spawn(async move {
        if sender
            .send(Ok(Bytes::from_static(line.as_bytes())))
            .await
            .is_ok()
        {
            sender.closed().await;
        }
    });
    body
}
