//! The parts of gRPC and of etcd's messages that the proxy uses to read etcd. Field numbers are those of etcd's
//! `rpc.proto` and `kv.proto`.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Response};
use prost::Message;

/// gRPC's number for a method that there is not.
const UNIMPLEMENTED: &str = "12";
/// A flag byte and the length of the message.
const FRAME: usize = 5;

#[derive(Clone, PartialEq, Message)]
pub struct Header {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(int64, tag = "3")]
    pub revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Ranged {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub create: Option<Create>,
    #[prost(message, optional, tag = "3")]
    pub progress: Option<Progress>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Create {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Progress {}

#[derive(Clone, PartialEq, Message)]
pub struct Watched {
    #[prost(message, optional, tag = "1")]
    pub header: Option<Header>,
    #[prost(int64, tag = "2")]
    pub watch_id: i64,
    #[prost(bool, tag = "3")]
    pub created: bool,
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
}

/// A put: its type is the default.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    #[prost(message, optional, tag = "2")]
    pub kv: Option<KeyValue>,
}

/// The messages of a request.
pub struct Requests {
    body: RecvStream,
    buffer: BytesMut,
}

impl Requests {
    pub fn new(body: RecvStream) -> Self {
        Self {
            body,
            buffer: BytesMut::new(),
        }
    }

    /// The next message; `None`: there is none any more. Nothing is lost if it is not waited for to the end.
    pub async fn next<M: Message + Default>(&mut self) -> Option<M> {
        loop {
            if let Some(mut length) = self.buffer.get(1..FRAME) {
                let length = usize::try_from(length.get_u32()).expect("a length");
                if self.buffer.len() >= FRAME + length {
                    self.buffer.advance(FRAME);
                    let message = self.buffer.split_to(length);
                    return Some(M::decode(message).expect("a message of etcd"));
                }
            }
            let data = self.body.data().await?.ok()?;
            self.buffer.extend_from_slice(&data);
            let _ = self.body.flow_control().release_capacity(data.len());
        }
    }
}

/// A message with its frame.
pub fn framed(message: &impl Message) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.encoded_len()).expect("a length"));
    message.encode(&mut frame).expect("room for it");
    frame.freeze()
}

/// Begins an answer.
pub fn answer(respond: &mut SendResponse<Bytes>) -> Result<h2::SendStream<Bytes>, h2::Error> {
    let head = Response::builder().header("content-type", "application/grpc");
    respond.send_response(head.body(()).expect("a head"), false)
}

/// Answers with one message.
pub fn answer_with(
    mut respond: SendResponse<Bytes>,
    message: &impl Message,
) -> Result<(), h2::Error> {
    let mut body = answer(&mut respond)?;
    body.send_data(framed(message), false)?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    body.send_trailers(trailers)
}

/// Answers that there is no such method.
pub fn refuse(mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let head = Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", UNIMPLEMENTED);
    respond
        .send_response(head.body(()).expect("a head"), true)
        .map(drop)
}
