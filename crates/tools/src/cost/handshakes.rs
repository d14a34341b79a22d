//! Processor time of a new TLS connection with a client certificate.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, SupportedProtocolVersion};
use testkit::pki::{Pki, SERVER_NAME};
use testkit::tls::client_config;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::lab::{Lab, OBJECT, Plan};
use super::table::{head, names, rounds, row};

/// At once.
const CLIENTS: usize = 8;

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, default_value_t = 4000)]
    number: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { number: 4000 }
    }
}

#[derive(Clone, Copy)]
pub struct Kind {
    name: &'static str,
    version: &'static SupportedProtocolVersion,
    resumed: bool,
    /// One request, which makes the program judge the certificate if the handshake did not.
    asks: bool,
}

pub const KINDS: [Kind; 4] = [
    Kind {
        name: "TLS 1.3, full",
        version: &TLS13,
        resumed: false,
        asks: false,
    },
    Kind {
        name: "TLS 1.3, full, and one request",
        version: &TLS13,
        resumed: false,
        asks: true,
    },
    Kind {
        name: "TLS 1.3, resumed",
        version: &TLS13,
        resumed: true,
        asks: false,
    },
    Kind {
        name: "TLS 1.2, full",
        version: &TLS12,
        resumed: false,
        asks: false,
    },
];

pub async fn measure(plan: &Plan, options: &Options) {
    let lab = Lab::new().await;
    let origin = lab.origin().await;
    let mut subjects = lab.subjects(plan, origin.address()).await;
    let title = format!(
        "A new connection with a client certificate, {}:",
        plan.meter.unit()
    );
    head(&title, &names(&subjects));
    for kind in KINDS {
        let figures = rounds(&mut subjects, plan.rounds, async |subject| {
            let clients = Clients::new(subject.address(), &lab.ground.pki, kind);
            // Those that resume have something to resume then.
            clients.connect(CLIENTS).await;
            let connecting = clients.connect(options.number);
            let (used, resumed) = plan.meter.measure(subject.process(), connecting).await;
            // A client may run out of what it can resume with.
            let expected = if kind.resumed {
                options.number * 9 / 10..=options.number
            } else {
                0..=0
            };
            if !expected.contains(&resumed) {
                return f64::NAN;
            }
            used / options.number as f64
        })
        .await;
        row(kind.name, &figures, "≤ 1.0");
    }
    println!("\nNaN: it did not resume.");
}

/// Each with its own sessions.
pub struct Clients {
    to: SocketAddr,
    configs: Vec<Arc<ClientConfig>>,
    asks: bool,
}

impl Clients {
    pub fn new(to: SocketAddr, pki: &Pki, kind: Kind) -> Self {
        let (ca, certificate, key) = (
            pki.path("ca.crt"),
            pki.path("admin.crt"),
            pki.path("admin.key"),
        );
        let config = || {
            let identity = Some((certificate.as_path(), key.as_path()));
            let mut config = client_config(&ca, identity, &["http/1.1"], &[kind.version]);
            if !kind.resumed {
                config.resumption = Resumption::disabled();
            }
            Arc::new(config)
        };
        Self {
            to,
            configs: (0..CLIENTS).map(|_| config()).collect(),
            asks: kind.asks,
        }
    }

    /// Opens and closes so many connections. Returns how many sessions were resumed.
    pub async fn connect(&self, number: usize) -> usize {
        let mut clients = JoinSet::new();
        for config in &self.configs {
            let (to, config, asks) = (self.to, Arc::clone(config), self.asks);
            let share = number / self.configs.len();
            clients.spawn(async move {
                let mut resumed = 0;
                for _ in 0..share {
                    let kind = connect(to, Arc::clone(&config), asks)
                        .await
                        .expect("a connection");
                    resumed += usize::from(kind == HandshakeKind::Resumed);
                }
                resumed
            });
        }
        let mut resumed = 0;
        while let Some(client) = clients.join_next().await {
            resumed += client.expect("a client");
        }
        resumed
    }
}

async fn connect(
    to: SocketAddr,
    config: Arc<ClientConfig>,
    asks: bool,
) -> std::io::Result<HandshakeKind> {
    let tcp = TcpStream::connect(to).await?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from(SERVER_NAME).expect("a name");
    let mut tls = TlsConnector::from(config).connect(name, tcp).await?;
    if asks {
        let request =
            format!("GET {OBJECT} HTTP/1.1\r\nHost: {SERVER_NAME}\r\nConnection: close\r\n\r\n");
        tls.write_all(request.as_bytes()).await?;
    } else {
        tls.shutdown().await?;
    }
    // The server's tickets come before its end, which is not always a clean one.
    let mut answer = Vec::new();
    let read = tls.read_to_end(&mut answer).await;
    if asks {
        read?;
        assert!(
            answer.starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    Ok(tls.get_ref().1.handshake_kind().expect("a handshake"))
}
