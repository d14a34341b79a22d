//! Clients that flood a server over HTTP/2. They write frames by hand, so that requests cost them little. On each of
//! several connections they keep a number of requests open, and start again when those are answered or the connection
//! ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, split};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;

use super::client::Client;
use super::raw::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RESET, SETTINGS, WINDOW_UPDATE, frame,
    literal,
};

/// Timeout for an answer, after which the client starts again.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct FloodOptions {
    /// The client: its address and certificate matter.
    pub client: Client,
    pub token: Option<&'static str>,
    pub path: &'static str,
    pub connections: usize,
    /// Requests at once on each.
    pub streams: usize,
    /// Another connection after each answer.
    pub one_each: bool,
    /// Between two times on one connection.
    pub pause: Duration,
}

/// What became of its requests.
#[derive(Debug, Default)]
pub struct Counts {
    pub connections: AtomicU64,
    pub asked: AtomicU64,
    pub answered: AtomicU64,
    pub reset: AtomicU64,
    pub goaways: AtomicU64,
}

/// Ends when it is dropped.
pub struct Flood {
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
    /// A separate runtime, which does not delay the test's own requests.
    runtime: Option<Runtime>,
}

impl Flood {
    pub fn start(options: &FloodOptions) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let flood = Self {
            stop: Arc::default(),
            counts: Arc::default(),
            runtime: Some(runtime),
        };
        for number in 0..options.connections {
            let attacker = Attacker {
                options: options.clone(),
                stop: Arc::clone(&flood.stop),
                counts: Arc::clone(&flood.counts),
            };
            if let Some(runtime) = &flood.runtime {
                // Spread over the pause, as they would be by themselves after a while.
                let first = options.pause * u32::try_from(number).unwrap_or_default()
                    / u32::try_from(options.connections).unwrap_or(1);
                runtime.spawn(attacker.run(first));
            }
        }
        flood
    }

    /// How many of its requests came to an end.
    pub fn ended(&self) -> u64 {
        let Counts {
            answered, reset, ..
        } = &*self.counts;
        answered.load(Ordering::Relaxed) + reset.load(Ordering::Relaxed)
    }

    /// Ends it: what became of it.
    pub fn stop(mut self) -> Arc<Counts> {
        self.end();
        Arc::clone(&self.counts)
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.end();
    }
}

struct Attacker {
    options: FloodOptions,
    stop: Arc<AtomicBool>,
    counts: Arc<Counts>,
}

impl Attacker {
    async fn run(self, first: Duration) {
        sleep(first).await;
        let block = self.block();
        while !self.stop.load(Ordering::Relaxed) {
            let connected = timeout(PATIENCE, self.options.client.connect_raw(&["h2"])).await;
            match connected {
                Ok(Ok(tls)) => {
                    add(&self.counts.connections, 1);
                    // How it ends is all the same: it comes again.
                    let _ = self.flood(tls, &block).await;
                }
                _ => sleep(Duration::from_millis(10)).await,
            }
        }
    }

    fn block(&self) -> Vec<u8> {
        let mut block = vec![0x82, 0x87];
        block.extend(literal((b":authority", b"kubernetes")));
        block.extend(literal((b":path", self.options.path.as_bytes())));
        if let Some(token) = self.options.token {
            let value = format!("Bearer {token}");
            block.extend(literal((b"authorization", value.as_bytes())));
        }
        block
    }

    async fn flood(&self, tls: TlsStream<TcpStream>, block: &[u8]) -> std::io::Result<()> {
        let (mut from, mut to) = split(tls);
        let mut bytes = PREFACE.to_vec();
        bytes.extend(frame(SETTINGS, 0, 0, &[]));
        bytes.extend(frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()));
        let mut streams = (1_u32..1 << 30).step_by(2);
        loop {
            for stream in streams.by_ref().take(self.options.streams) {
                bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, block));
            }
            add(&self.counts.asked, self.options.streams as u64);
            to.write_all(&bytes).await?;
            to.flush().await?;
            let goes_on = timeout(PATIENCE, self.read(&mut from)).await;
            sleep(self.options.pause).await;
            let stopped = self.stop.load(Ordering::Relaxed);
            if self.options.one_each || stopped || !matches!(goes_on, Ok(Ok(true))) {
                return Ok(());
            }
            bytes.clear();
        }
    }

    /// Until all have ended, or those that a GOAWAY covers: whether the connection takes more.
    async fn read(&self, from: &mut ReadHalf<TlsStream<TcpStream>>) -> std::io::Result<bool> {
        let mut left = self.options.streams;
        let mut goes_on = true;
        let mut payload = Vec::new();
        while left > 0 {
            let mut head = [0; 9];
            from.read_exact(&mut head).await?;
            let [a, b, c, kind, flags, ..] = head;
            payload.resize(u32::from_be_bytes([0, a, b, c]) as usize, 0);
            from.read_exact(&mut payload).await?;
            match kind {
                HEADERS | DATA if flags & END_STREAM != 0 => {
                    add(&self.counts.answered, 1);
                    left -= 1;
                }
                RESET => {
                    add(&self.counts.reset, 1);
                    left -= 1;
                }
                GOAWAY => {
                    add(&self.counts.goaways, 1);
                    // A flooding client does not wait for the rest.
                    goes_on = false;
                    left = left.min(1);
                }
                _ => {}
            }
        }
        Ok(goes_on)
    }
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}
