//! A scripted answer: its header, how its body arrives, and its trailers.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use hyper::body::Frame;

use super::body::{Body, frames, full};

#[derive(Clone, Debug)]
pub struct ScriptedAnswer {
    code: StatusCode,
    headers: HeaderMap,
    pieces: Vec<Bytes>,
    pause: Duration,
    trailers: HeaderMap,
    measured: bool,
    end: End,
}

/// What comes after the last piece.
#[derive(Clone, Copy, Debug)]
enum End {
    Clean,
    Hang,
    Break,
}

impl ScriptedAnswer {
    /// Without a body.
    pub fn new(code: u16) -> Self {
        Self {
            code: StatusCode::from_u16(code).expect("a status code"),
            headers: HeaderMap::new(),
            pieces: Vec::new(),
            pause: Duration::ZERO,
            trailers: HeaderMap::new(),
            measured: true,
            end: End::Clean,
        }
    }

    /// Another header; one of the same name stays.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        append(&mut self.headers, name, value);
        self
    }

    /// Sets the whole body, with a declared length.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.pieces = vec![body.into()];
        self.measured = true;
        self
    }

    /// Sends the body in pieces of `length` bytes, with a pause before each and without a declared length.
    pub fn in_pieces(mut self, length: usize, pause: Duration) -> Self {
        let body = self.pieces.concat();
        self.pieces = body.chunks(length).map(Bytes::copy_from_slice).collect();
        self.pause = pause;
        self.measured = false;
        self
    }

    /// The body has no end.
    pub fn then_hang(mut self) -> Self {
        self.end = End::Hang;
        self.measured = false;
        self
    }

    /// The body breaks off.
    pub fn then_break(mut self) -> Self {
        self.end = End::Break;
        self.measured = false;
        self
    }

    /// Something that follows the body.
    pub fn trailer(mut self, name: &str, value: &str) -> Self {
        append(&mut self.trailers, name, value);
        self.measured = false;
        self
    }

    pub fn response(&self) -> Response<Body> {
        let body = if self.measured {
            full(self.pieces.concat())
        } else {
            self.clone().slowly()
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.code;
        *response.headers_mut() = self.headers.clone();
        response
    }

    fn slowly(self) -> Body {
        let (sender, body) = frames();
        tokio::spawn(async move {
            for piece in self.pieces {
                tokio::time::sleep(self.pause).await;
                if sender.send(Ok(Frame::data(piece))).await.is_err() {
                    return;
                }
            }
            match self.end {
                End::Clean => {}
                End::Hang => sender.closed().await,
                End::Break => {
                    // The client is gone; count it as sent.
                    let _ = sender.send(Err("the double breaks off".into())).await;
                }
            }
            if !self.trailers.is_empty() {
                // The client is gone; count it as sent.
                let _ = sender.send(Ok(Frame::trailers(self.trailers))).await;
            }
        });
        body
    }
}

fn append(headers: &mut HeaderMap, name: &str, value: &str) {
    let name: HeaderName = name.parse().expect("a header name");
    headers.append(name, HeaderValue::from_str(value).expect("a header value"));
}
