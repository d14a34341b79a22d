//! A server that does as it is told, on each connection something else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::parts::{self, Part, STATUSES, http1, pattern, pick};
use crate::world::frames::{self, block, first, frame, headers};

const MOST_PARTS: usize = 24;
/// What was sent on each stream of each connection.
#[derive(Default)]
pub struct Sent {
    bodies: BTreeMap<String, (usize, bool)>,
    connections: usize,
}

impl Sent {
    /// How long the body is, if it has ended.
    pub fn of(&self, stream: &str) -> Option<usize> {
        let (length, ended) = self.bodies.get(stream)?;
        ended.then_some(*length)
    }

    /// `length` more bytes. Returns where they begin.
    fn add(&mut self, stream: String, length: usize, end: bool) -> usize {
        let (sent, ended) = self.bodies.entry(stream).or_default();
        let from = *sent;
        if !*ended {
            *sent += length;
            *ended = end;
        }
        from
    }
}

#[derive(Clone)]
pub struct Hostile {
    connections: Arc<Mutex<VecDeque<Vec<Part>>>>,
    sent: Arc<Mutex<Sent>>,
    tls: Arc<ServerConfig>,
}

impl Hostile {
    pub fn new(
        connections: Vec<Vec<Part>>,
        sent: Arc<Mutex<Sent>>,
        tls: Arc<ServerConfig>,
    ) -> Self {
        Self {
            connections: Arc::new(Mutex::new(connections.into())),
            sent,
            tls,
        }
    }

    pub async fn run(self, listener: TcpListener) {
        loop {
            let (tcp, _) = listener.accept().await.expect("a connection");
            // So that many runs do not use up all ports.
            tcp.set_zero_linger().expect("a socket");
            let parts = self.connections.lock().expect("a lock").pop_front();
            if let Some(parts) = parts {
                tokio::spawn(self.clone().serve(tcp, parts));
            }
        }
    }

    async fn serve(self, tcp: TcpStream, parts: Vec<Part>) {
        let Ok(tls) = TlsAcceptor::from(self.tls.clone()).accept(tcp).await else {
            return;
        };
        let number = {
            let mut sent = self.sent.lock().expect("a lock");
            sent.connections += 1;
            sent.connections
        };
        let http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
        let (reader, mut writer) = tokio::io::split(tls);
        let (told, mut arrived) = watch::channel(Arrived::default());
        let (reply, mut replies) = tokio::sync::mpsc::unbounded_channel();
        let reading = tokio::spawn(read(reader, http2, told, reply));
        if http2 {
            let settings = frame(frames::SETTINGS, 0, 0, &[]);
            let _ = writer.write_all(&settings).await;
        }
        let mut silent = false;
        for part in parts.into_iter().take(MOST_PARTS) {
            match part {
                Part::Await { requests } => {
                    let enough =
                        |arrived: &Arrived| arrived.requests.len() > usize::from(requests % 3);
                    answer_all(&mut writer, &mut replies, silent).await;
                    let waiting = async {
                        let waited = arrived.wait_for(enough).await;
                        drop(waited);
                    };
                    // Pings are answered meanwhile.
                    let replying = async {
                        loop {
                            answer_all(&mut writer, &mut replies, silent).await;
                            sleep(Duration::from_secs(1)).await;
                        }
                    };
                    tokio::select! {
                        () = waiting => {}
                        () = replying => {}
                        () = sleep(Duration::from_secs(60)) => {}
                    }
                }
                Part::Silence => silent = true,
                Part::Pause { seconds } => sleep(Duration::from_secs(seconds.into())).await,
                part => {
                    let streams = arrived.borrow().requests.clone();
                    let bytes = match http2 {
                        true => self.http2(&part, number, &streams),
                        false => http1(&part),
                    };
                    if writer.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
            }
            answer_all(&mut writer, &mut replies, silent).await;
        }
        let _ = writer.flush().await;
        // What was sent is read before the connection ends.
        let _ = timeout(Duration::from_secs(2), reading).await;
    }

    /// A frame. `streams`: on which there are requests.
    fn http2(&self, part: &Part, connection: usize, streams: &BTreeSet<u32>) -> Vec<u8> {
        let at = |number: u8| match streams.iter().nth(usize::from(number % 4)) {
            Some(stream) => *stream,
            None => u32::from(number),
        };
        let name = |stream| format!("{connection}-{stream}");
        match part {
            Part::Head {
                stream,
                status,
                fields,
                end,
                split,
            } => {
                let (stream, status) = (at(*stream), pick(&STATUSES, *status));
                let from = name(stream);
                let own = [(":status", status), ("x-double", &from)];
                let block = text_block(own.into_iter().chain(parts::fields(fields)));
                self.sent.lock().expect("a lock").add(from.clone(), 0, *end);
                headers(stream, *end, &block, *split)
            }
            Part::Data {
                stream,
                length,
                padding,
                end,
            } => {
                let (stream, length) = (at(*stream), usize::from(*length) % (16 << 10));
                let from = self
                    .sent
                    .lock()
                    .expect("a lock")
                    .add(name(stream), length, *end);
                let data = pattern(from, length);
                let end = if *end { frames::END_STREAM } else { 0 };
                match padding {
                    None => frame(frames::DATA, end, stream, &data),
                    Some(padding) => {
                        let padded =
                            [&[*padding][..], &data, &vec![0; usize::from(*padding)]].concat();
                        frame(frames::DATA, end | frames::PADDED, stream, &padded)
                    }
                }
            }
            Part::Trailers { stream, fields } => {
                let stream = at(*stream);
                let block = text_block(parts::fields(fields));
                self.sent.lock().expect("a lock").add(name(stream), 0, true);
                headers(stream, true, &block, None)
            }
            Part::Reset { stream, code } => frame(
                frames::RESET,
                0,
                at(*stream),
                &u32::from(*code % 16).to_be_bytes(),
            ),
            Part::GoAway { last, code } => {
                let payload = [
                    u32::from(*last).to_be_bytes(),
                    u32::from(*code % 16).to_be_bytes(),
                ];
                frame(frames::GO_AWAY, 0, 0, &payload.concat())
            }
            Part::Window { stream, by } => {
                frame(frames::WINDOW_UPDATE, 0, at(*stream), &by.to_be_bytes())
            }
            Part::Setting { name, value } => {
                let payload = [&[0, *name][..], &value.to_be_bytes()].concat();
                frame(frames::SETTINGS, 0, 0, &payload)
            }
            Part::Any {
                kind,
                flags,
                stream,
                payload,
            } => {
                // Of headers and data, what was sent is known.
                let kind = if *kind < 2 { frames::PING } else { *kind };
                frame(kind, *flags, u32::from(*stream), payload)
            }
            Part::Meaning { .. } | Part::Await { .. } | Part::Pause { .. } | Part::Silence => {
                Vec::new()
            }
        }
    }
}

/// What has arrived on a connection.
#[derive(Default)]
struct Arrived {
    /// Streams with requests.
    requests: BTreeSet<u32>,
}

impl Arrived {
    fn insert(&mut self, stream: u32) {
        self.requests.insert(stream);
    }
}

fn text_block<'f>(fields: impl Iterator<Item = (&'f str, &'f str)>) -> Vec<u8> {
    block(fields.map(|(name, value)| (name.as_bytes(), value.as_bytes())))
}

/// Reads all that comes. `reply`: what a server must answer.
async fn read(
    mut reader: impl AsyncRead + Unpin,
    http2: bool,
    told: watch::Sender<Arrived>,
    reply: tokio::sync::mpsc::UnboundedSender<Vec<u8>>,
) {
    let mut bytes = Vec::new();
    let mut preface = frames::PREFACE.len();
    while reader.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        if !http2 {
            told.send_modify(|arrived| arrived.insert(1));
            continue;
        }
        if bytes.len() < preface {
            continue;
        }
        bytes.drain(..std::mem::take(&mut preface));
        while let Some((frame, rest)) = first(&bytes) {
            let answered = match (frame.kind, frame.flags & frames::ACK) {
                (frames::HEADERS, _) => {
                    let stream = frame.stream;
                    told.send_modify(|arrived| arrived.insert(stream));
                    None
                }
                (frames::PING, 0) => {
                    Some(frames::frame(frames::PING, frames::ACK, 0, frame.payload))
                }
                (frames::SETTINGS, 0) => Some(frames::frame(frames::SETTINGS, frames::ACK, 0, &[])),
                _ => None,
            };
            // The connection may have ended.
            let _ = answered.map(|answer| reply.send(answer));
            let read = bytes.len() - rest.len();
            bytes.drain(..read);
        }
    }
}

async fn answer_all(
    writer: &mut (impl AsyncWrite + Unpin),
    replies: &mut tokio::sync::mpsc::UnboundedReceiver<Vec<u8>>,
    silent: bool,
) {
    while let Ok(reply) = replies.try_recv() {
        if !silent {
            let _ = writer.write_all(&reply).await;
        }
    }
}
