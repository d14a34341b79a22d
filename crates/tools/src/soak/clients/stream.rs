//! Upgraded streams: `exec` in a pod, through balancer, proxy and apiserver to a kubelet that echoes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use testkit::addr::Loopback;
use testkit::client::Client;
use testkit::double::tls::server_config;
use testkit::pki::Pki;
use testkit::upgraded::Upgraded;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::book::Book;
use crate::random::Random;

pub const PORT: u16 = 10250;
pub const POD: &str = "pod";
const BACKOFF: Duration = Duration::from_millis(500);
/// For an echo: a frozen server, and a link that is silent.
const BOUND: Duration = Duration::from_secs(60);

/// A kubelet that echoes what comes behind any request for an upgrade.
pub struct Kubelet {
    pub address: Loopback,
    _task: JoinSet<()>,
}

impl Kubelet {
    pub async fn start(pki: &Pki) -> Self {
        let address = Loopback::new();
        let listener = TcpListener::bind(address.socket(PORT)).await;
        let listener = listener.expect("the kubelet's port");
        let tls = TlsAcceptor::from(Arc::new(server_config(pki.dir(), &["http/1.1"])));
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut streams = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                // A stream that breaks off is ended.
                let tls = tls.clone();
                streams.spawn(async move { _ = echo(&tls, tcp).await });
                while streams.try_join_next().is_some() {}
            }
        });
        Self {
            address,
            _task: task,
        }
    }
}

async fn echo(tls: &TlsAcceptor, tcp: TcpStream) -> anyhow::Result<()> {
    let mut stream = tls.accept(tcp).await?;
    let mut header = Vec::new();
    while !header.ends_with(b"\r\n\r\n") {
        header.push(stream.read_u8().await?);
        ensure!(header.len() < 64 * 1024, "no end of the header");
    }
    let switching = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
                     X-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";
    stream.write_all(switching.as_bytes()).await?;
    stream.flush().await?;
    let (mut read, mut write) = split(stream);
    tokio::io::copy(&mut read, &mut write).await?;
    Ok(write.shutdown().await?)
}

/// Streams, one after the other; each sends what no other sends.
pub struct Streams {
    pub name: String,
    pub client: Client,
    /// How the client says who it is in HTTP/1.1.
    pub authorization: &'static str,
    pub namespace: &'static str,
    pub book: Arc<Book>,
    pub random: Random,
}

impl Streams {
    pub async fn run(mut self) {
        let request = format!(
            "POST /api/v1/namespaces/{}/pods/{POD}/exec?command=cat&stdin=true&stdout=true HTTP/1.1\r\n\
             Host: kubernetes.default.svc\r\n{}Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n",
            self.namespace, self.authorization
        );
        let mut number = 0;
        while !self.book.is_stopped() {
            number += 1;
            match timeout(BOUND, Upgraded::open(&self.client, &request, b"")).await {
                Ok(Ok(stream)) => self.talk(stream, number).await,
                Ok(Err(error)) => self.refused(&format!("{error:#}")),
                Err(_) => self
                    .book
                    .violation(format!("{}: no 101 within the bound", self.name)),
            }
            sleep(BACKOFF).await;
        }
    }

    /// Until it ends.
    async fn talk(&mut self, mut stream: Upgraded, number: usize) {
        let mut said = 0;
        while !self.book.is_stopped() {
            said += 1;
            let line = format!("{} stream {number} line {said}\n", self.name);
            let echoed = async {
                stream.send(line.as_bytes()).await?;
                stream.expect(line.as_bytes()).await
            };
            let what = match timeout(BOUND, echoed).await {
                Ok(Ok(())) => {
                    sleep(self.random.millis(100..400)).await;
                    continue;
                }
                Ok(Err(error)) if has_ended(&error, &line) => {
                    return self.book.stream_ended(format!("{}: {error:#}", self.name));
                }
                Ok(Err(error)) => format!("not its own echo: {error:#}"),
                Err(_) => "no echo within the bound".to_owned(),
            };
            return self.book.violation(format!("{}: {what}", self.name));
        }
    }

    /// client-go does not repeat a request for an upgrade; whoever wants the stream does.
    fn refused(&self, why: &str) {
        let why = format!("{}: {}", self.name, why.escape_debug());
        match why.contains("HTTP/1.1 40") {
            true => self.book.violation(why),
            false => self.book.stream_ended(why),
        }
    }
}

/// And was an echo until then.
fn has_ended(error: &anyhow::Error, line: &str) -> bool {
    let text = error.to_string();
    let said = text
        .strip_prefix("it ended after \"")
        .and_then(|said| said.strip_suffix('"'));
    let line = line.escape_default().to_string();
    error.is::<std::io::Error>() || said.is_some_and(|said| line.starts_with(said))
}
