//! An apiserver that writes its HTTP/2 frames by hand.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use testkit::addr::Loopback;
use testkit::cluster::Ground;
use testkit::proxy::Proxy;
use testkit::raw::{GOAWAY, HEADERS, RESET, SETTINGS, frame};

/// What a server of HTTP/2 writes, in one piece, when it has read the header of a request on this stream.
pub type Script = fn(u32) -> Vec<u8>;

/// `:status: 200`
pub const OK: &[u8] = &[0x88];

pub fn reset(stream: u32, reason: h2::Reason) -> Vec<u8> {
    frame(RESET, 0, stream, &u32::from(reason).to_be_bytes())
}

pub fn go_away(last: u32) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat())
}

/// An apiserver that is ready, and answers what comes over HTTP/2 by a script.
pub struct Scripted {
    addr: SocketAddr,
    /// How many requests came over HTTP/2.
    asked: Arc<Mutex<usize>>,
    _address: Loopback,
}

impl Scripted {
    async fn start(ground: &Ground, script: Script) -> Self {
        let (address, listener, acceptor) = ground.listen(&["h2", "http/1.1"]).await;
        let addr = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(0));
        let counter = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                tokio::spawn(serve(acceptor.clone(), tcp, script, Arc::clone(&counter)));
            }
        });
        Self {
            addr,
            asked,
            _address: address,
        }
    }

    pub fn asked(&self) -> usize {
        *self.asked.lock().unwrap()
    }
}

async fn serve(
    acceptor: TlsAcceptor,
    tcp: TcpStream,
    script: Script,
    asked: Arc<Mutex<usize>>,
) -> std::io::Result<()> {
    let mut tls = acceptor.accept(tcp).await?;
    if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
        let mut header = Vec::new();
        while !header.ends_with(b"\r\n\r\n") {
            header.push(tls.read_u8().await?);
        }
        tls.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
            .await?;
        return tls.shutdown().await;
    }
    // Settings, and that the client's are known: before that its windows are small.
    let settings = [frame(SETTINGS, 0, 0, &[]), frame(SETTINGS, 1, 0, &[])];
    tls.write_all(&settings.concat()).await?;
    tls.flush().await?;
    tls.read_exact(&mut [0; 24]).await?;
    loop {
        let mut head = [0; 9];
        tls.read_exact(&mut head).await?;
        let [a, b, c, kind, _, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        tls.read_exact(&mut payload).await?;
        if kind == HEADERS {
            *asked.lock().unwrap() += 1;
            let said = script(u32::from_be_bytes(stream));
            tls.write_all(&said).await?;
            tls.flush().await?;
            if said.is_empty() {
                return tls.shutdown().await;
            }
        }
    }
}

/// A proxy before a server with a script.
pub async fn scripted(script: Script) -> (Ground, Scripted, Proxy) {
    let ground = Ground::new().await;
    let server = Scripted::start(&ground, script).await;
    let proxy = ground.proxy_beside(server.addr).await;
    (ground, server, proxy)
}
