//! An HTTP/1.1 apiserver that accepts only RFC 9112 in its narrowest form, and records all requests. Anything it
//! rejects could be read as another request by a different server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use testkit::addr::Loopback;
use testkit::cluster::Ground;

const NAME: &str = "!#$%&'*+-.^_`|~";

pub struct Witness {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    _address: Loopback,
}

impl Witness {
    pub async fn start(ground: &Ground) -> Self {
        let (address, listener, acceptor) = ground.listen(&["http/1.1"]).await;
        let addr = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, log) = (acceptor.clone(), Arc::clone(&log));
                tokio::spawn(async move { serve(acceptor.accept(tcp).await.ok()?, &log).await });
            }
        });
        Self {
            addr,
            seen,
            _address: address,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// What came since the last time, but for the proxy's own requests: `POST /path [body] as user`, `[cut]` for a body
    /// without an end, and `fault: …` for what was refused.
    pub fn take(&self) -> Vec<String> {
        let mut seen = std::mem::take(&mut *self.seen.lock().unwrap());
        seen.retain(|request| {
            let own = [
                " as system:kube-interop-proxy",
                " as kube-interop-proxy-invented-",
            ];
            !own.iter().any(|own| request.contains(own))
                && !request.contains("/extension-apiserver-")
        });
        seen
    }
}

async fn serve(tls: TlsStream<TcpStream>, log: &Mutex<Vec<String>>) -> Option<()> {
    let mut tls = BufReader::new(tls);
    loop {
        let head = head(&mut tls).await?;
        let read = match read(&head) {
            Ok(head) => head,
            Err(fault) => {
                let text = format!("fault: {fault}: {}", head.escape_ascii());
                log.lock().ok()?.push(text);
                return None;
            }
        };
        let body = match read.length {
            Length::Known(length) => {
                let mut body = vec![0; length];
                tls.read_exact(&mut body).await.ok().map(|_| body)
            }
            Length::Chunks => chunks(&mut tls).await,
        };
        let told = match &body {
            Some(body) => body.escape_ascii().to_string(),
            None => "cut".to_owned(),
        };
        let text = format!("{} [{told}] as {}", read.line, read.user);
        log.lock().ok()?.push(text);
        body?;
        tls.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        )
        .await
        .ok()?;
        tls.flush().await.ok()?;
    }
}

/// Up to and with the empty line.
async fn head(tls: &mut BufReader<TlsStream<TcpStream>>) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if tls.read_until(b'\n', &mut head).await.ok()? == 0 {
            return None;
        }
    }
    Some(head)
}

async fn line(tls: &mut BufReader<TlsStream<TcpStream>>) -> Option<String> {
    let mut line = Vec::new();
    tls.read_until(b'\n', &mut line).await.ok()?;
    String::from_utf8(line)
        .ok()?
        .strip_suffix("\r\n")
        .map(str::to_owned)
}

/// A body of plain chunks, without extensions and trailers. `None`: there is something else.
async fn chunks(tls: &mut BufReader<TlsStream<TcpStream>>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = line(tls).await?;
        let plain = !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_hexdigit());
        let size = usize::from_str_radix(&size, 16).ok().filter(|_| plain)?;
        let mut piece = vec![0; size];
        tls.read_exact(&mut piece).await.ok()?;
        body.extend(piece);
        if !line(tls).await?.is_empty() {
            return None;
        }
        if size == 0 {
            return Some(body);
        }
    }
}

enum Length {
    Known(usize),
    Chunks,
}

struct Head {
    /// Method and target.
    line: String,
    user: String,
    length: Length,
}

fn read(head: &[u8]) -> Result<Head, &'static str> {
    let text = std::str::from_utf8(head).map_err(|_| "bytes that are no text")?;
    let text = text.strip_suffix("\r\n\r\n").ok_or("no end")?;
    let mut lines = text.split("\r\n");
    let first = lines.next().ok_or("no line")?;
    let [method, target, "HTTP/1.1"] = first.split(' ').collect::<Vec<_>>()[..] else {
        return Err("the first line");
    };
    if text
        .replace("\r\n", "")
        .contains(|letter: char| letter.is_ascii_control())
    {
        return Err("a control byte");
    }
    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("a line without a colon")?;
        let named = |letter: char| letter.is_ascii_alphanumeric() || NAME.contains(letter);
        if name.is_empty() || !name.chars().all(named) {
            return Err("a name");
        }
        fields.push((name.to_lowercase(), value.trim()));
    }
    let all = |name: &str| {
        let values = fields.iter().filter(|(known, _)| known == name);
        values.map(|(_, value)| *value).collect::<Vec<_>>()
    };
    if all("host").len() != 1 {
        return Err("not one Host");
    }
    let length = match (&all("content-length")[..], &all("transfer-encoding")[..]) {
        ([], []) => Length::Known(0),
        ([], ["chunked"]) => Length::Chunks,
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            Length::Known(length.parse().map_err(|_| "a length")?)
        }
        _ => return Err("a length"),
    };
    let mut who = all("x-remote-user");
    who.extend(all("authorization"));
    Ok(Head {
        line: format!("{method} {target}"),
        user: who.join("+"),
        length,
    })
}
