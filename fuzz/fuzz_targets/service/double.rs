//! The servers: they answer as they are told, and look at every request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use arbitrary::Arbitrary;
use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use rustls::ServerConfig;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::world::{CLIENT, Client};

const NO_SUCH_RESOURCE: &str = "404 page not found\n";
const MISSING: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","details":{"name":"a","kind":"pods"},"code":404}"#;

/// What a server does with a request.
#[derive(Debug, Clone, Copy, Arbitrary)]
pub enum Answer {
    Whole,
    /// Before the request's body was read.
    Early,
    Large,
    Status(u8),
    NoSuchResource,
    Missing,
    Refused,
    BrokenOff,
    BrokenOffInBody,
}

/// What all servers of a run know.
pub struct Run {
    client: Client,
    answers: Vec<Answer>,
    answered: usize,
    /// Requests that say that they were rerouted already.
    pub marked: BTreeSet<u32>,
    /// How often a write was executed.
    writes: BTreeMap<u32, usize>,
}

impl Run {
    pub fn new(client: Client, answers: Vec<Answer>) -> Self {
        Self {
            client,
            answers,
            answered: 0,
            marked: BTreeSet::new(),
            writes: BTreeMap::new(),
        }
    }

    fn answer(&mut self) -> Answer {
        self.answered += 1;
        let next = self.answers.get(self.answered % self.answers.len().max(1));
        next.copied().unwrap_or(Answer::Whole)
    }
}

#[derive(Clone)]
pub struct Double {
    pub run: Arc<Mutex<Run>>,
    /// The local apiserver, or a peer.
    pub local: bool,
    pub tls: Arc<ServerConfig>,
}

/// The requests whose answers are in `bytes`.
pub fn named(bytes: &[u8]) -> Vec<u32> {
    let text = String::from_utf8_lossy(bytes);
    let places = text.match_indices("stream=");
    let numbers = places.map(|(at, name)| text[at + name.len()..].split(';').next());
    numbers.filter_map(|number| number?.parse().ok()).collect()
}

impl Double {
    pub async fn run(self, listener: TcpListener) {
        loop {
            let (tcp, _) = listener.accept().await.expect("a connection");
            tokio::spawn(self.clone().serve(tcp));
        }
    }

    async fn serve(self, tcp: TcpStream) {
        // So that many runs do not use up all ports.
        tcp.set_zero_linger().expect("a socket");
        let acceptor = TlsAcceptor::from(self.tls.clone());
        let Ok(tls) = acceptor.accept(tcp).await else {
            return;
        };
        let (_, session) = tls.get_ref();
        let certificate = session.peer_certificates().is_some();
        if session.alpn_protocol() != Some(b"h2") {
            return self.http1(tls, certificate).await;
        }
        let Ok(mut connection) = h2::server::handshake(tls).await else {
            return;
        };
        while let Some(Ok((request, respond))) = connection.accept().await {
            tokio::spawn(self.clone().respond(request, respond, certificate));
        }
    }

    async fn respond(
        self,
        request: Request<h2::RecvStream>,
        mut respond: SendResponse<Bytes>,
        certificate: bool,
    ) {
        let (head, mut body) = request.into_parts();
        let (stream, answer) = self.look(&head.method, &head.headers, certificate);
        let mut length = 0;
        if !matches!(answer, Answer::Early) {
            while let Some(Ok(data)) = body.data().await {
                length += data.len();
                let _ = body.flow_control().release_capacity(data.len());
            }
        }
        let (status, body) = match answer {
            Answer::Refused => return respond.send_reset(h2::Reason::REFUSED_STREAM),
            Answer::BrokenOff => return respond.send_reset(h2::Reason::INTERNAL_ERROR),
            other => answer_of(other, stream, length),
        };
        let mut response = Response::new(());
        *response.status_mut() = status.try_into().expect("a status");
        let no_body = [204, 304].contains(&status) || head.method == Method::HEAD;
        // The client may have gone away.
        let Ok(mut writer) = respond.send_response(response, no_body) else {
            return;
        };
        if !no_body {
            let broken = matches!(answer, Answer::BrokenOffInBody);
            let _ = writer.send_data(body.into(), !broken);
            if broken {
                writer.send_reset(h2::Reason::INTERNAL_ERROR);
            }
        }
    }

    /// One request, which ends its connection.
    async fn http1(self, tls: impl AsyncRead + AsyncWrite + Unpin, certificate: bool) {
        let mut stream = BufReader::new(tls);
        let mut lines = Vec::new();
        loop {
            let mut line = Vec::new();
            match stream.read_until(b'\n', &mut line).await {
                Ok(0) | Err(_) => return,
                Ok(_) if line.trim_ascii().is_empty() => break,
                Ok(_) => lines.push(line),
            }
        }
        let method = lines[0]
            .split(|byte| *byte == b' ')
            .next()
            .unwrap_or_default();
        let method = Method::from_bytes(method).expect("a method");
        let mut headers = HeaderMap::new();
        for line in &lines[1..] {
            let colon = line.iter().position(|byte| *byte == b':').expect("a field");
            let name = HeaderName::from_bytes(&line[..colon]).expect("a name");
            let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
            headers.append(name, value.expect("a value"));
        }
        let (stream_number, answer) = self.look(&method, &headers, certificate);
        let text = match answer {
            Answer::Refused | Answer::BrokenOff => return,
            Answer::Whole if headers.contains_key("upgrade") => {
                let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
                format!("{head}stream={stream_number};")
            }
            other => {
                let (status, body) = answer_of(other, stream_number, 0);
                let broken = matches!(other, Answer::BrokenOffInBody);
                let length = body.len() + usize::from(broken);
                let body = if [204, 304].contains(&status) {
                    ""
                } else {
                    &body
                };
                format!(
                    "HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
                )
            }
        };
        let _ = stream.get_mut().write_all(text.as_bytes()).await;
        // The rest of the request.
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }

    /// Looks at a request. Returns which one it is, and what to do with it.
    fn look(&self, method: &Method, headers: &HeaderMap, certificate: bool) -> (u32, Answer) {
        let mut run = self.run.lock().expect("a lock");
        let number = headers
            .get("x-stream")
            .and_then(|value| value.to_str().ok()?.parse().ok());
        // Failed peers are asked by the proxy itself whether they are back.
        let Some(number) = number else {
            return (0, Answer::Whole);
        };
        let answer = run.answer();
        // A peer's proxy accepts who asks only because of the certificate.
        assert!(
            self.local || certificate,
            "a peer is asked without a certificate"
        );
        check_identity(run.client, headers, self.local.then_some(certificate));
        let marks = [
            "x-kubernetes-apiserver-rerouted",
            "x-kubernetes-peer-proxied",
        ];
        let marked = marks.map(|mark| headers.contains_key(mark));
        for name in [
            "connection",
            "keep-alive",
            "proxy-connection",
            "x-kubernetes-if-ready",
        ] {
            let upgraded = name == "connection" && headers.contains_key("upgrade");
            assert!(upgraded || !headers.contains_key(name), "{name}");
        }
        assert!(
            !self.local || !marked[0],
            "the local apiserver sees KEP-4020's mark"
        );
        assert!(
            self.local || marked == [true; 2],
            "a rerouted request without marks"
        );
        let round = !self.local && run.client == Client::Peer && run.marked.contains(&number);
        assert!(!round, "rerouted twice");
        let not_executed = matches!(answer, Answer::Refused | Answer::NoSuchResource);
        if !method.is_safe() && !not_executed {
            let times = run.writes.entry(number).or_default();
            *times += 1;
            assert_eq!(*times, 1, "a write is executed again");
        }
        (number, answer)
    }
}

/// Whose request it is. `certificate`: whether the local apiserver accepts that.
fn check_identity(client: Client, headers: &HeaderMap, certificate: Option<bool>) {
    let values = |name: &str| headers.get_all(name).iter().collect::<Vec<_>>();
    let named = headers.contains_key("x-remote-user");
    if client == Client::Peer {
        // As kube-apiserver, which reads the first line only.
        let first = headers.get("x-remote-user");
        let somebody = first.is_some_and(|user| !user.as_bytes().trim_ascii().is_empty());
        return assert_eq!(somebody, certificate.unwrap_or(somebody));
    }
    assert_eq!(named, client == Client::Alice);
    assert_eq!(named, certificate.unwrap_or(named));
    assert_eq!(values("x-forwarded-for"), [&CLIENT.to_string()[..]]);
    for name in headers.keys().map(HeaderName::as_str) {
        let plain = name.replace('_', "-");
        if !plain.starts_with("x-remote-") {
            continue;
        }
        let own = match name {
            "x-remote-user" => values(name) == ["alice"],
            "x-remote-group" => values(name) == ["devs"],
            _ => {
                name.ends_with("%2fcredential-id")
                    && values(name)[0].as_bytes().starts_with(b"X509SHA256=")
            }
        };
        assert!(named && own, "{name}: {:?}", values(name));
    }
    assert!(!named || !headers.contains_key("authorization"));
}

fn answer_of(answer: Answer, stream: u32, length: usize) -> (u16, String) {
    let name = format!("stream={stream};{length}");
    match answer {
        Answer::Status(code) => {
            let codes = [
                200, 201, 204, 301, 304, 400, 401, 403, 409, 410, 429, 500, 503, 504,
            ];
            (codes[usize::from(code) % codes.len()], name)
        }
        Answer::NoSuchResource => (404, NO_SUCH_RESOURCE.to_owned()),
        Answer::Missing => (404, MISSING.to_owned()),
        Answer::Large => (200, name + &"y".repeat(100_000)),
        _ => (200, name),
    }
}
