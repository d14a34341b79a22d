//! How clients spread over three servers again after one was restarted, by `serving.goawayChance`. A client is client-go's:
//! one connection, watches that it opens anew when they end, and a short request now and then. After a GOAWAY its next
//! request has a new connection, which a load balancer brings to the next server; watches stay until they end.
//! A minute here is two seconds.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use http::Request;
use testkit::client::Client;
use testkit::pki::Pki;
use testkit::proxy::Proxy;
use testkit::wait::eventually;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::lab::{AUTHORIZATION, Lab, OBJECT, Plan};

const SERVERS: usize = 3;
const MINUTE: Duration = Duration::from_secs(2);
/// Of a client: kubelet renews its lease six times.
const SHORT_A_MINUTE: u32 = 6;
/// client-go's watches last five to ten minutes.
const WATCH_MINUTES: [u64; 2] = [5, 10];
const PATH: &str = "/api/v1/namespaces/default/configmaps?watch=1&allowWatchBookmarks=true";
const PATIENCE: Duration = Duration::from_secs(90);
const BACKOFF: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, default_value_t = 300)]
    clients: usize,
    /// Of each client.
    #[arg(long, default_value_t = 10)]
    watches: usize,
    /// `serving.goawayChance`
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.001, 0.005, 0.02])]
    chance: Vec<f64>,
    /// Minutes after the restart.
    #[arg(long, value_delimiter = ',', default_values_t = [5, 15, 30, 60])]
    after: Vec<u32>,
}

pub async fn measure(plan: &Plan, options: &Options) {
    let even = [options.clients, options.clients * options.watches].map(|all| all / SERVERS);
    println!("\nClients and watches at the server that was restarted; even would be {even:?}:\n");
    let times = options.after.iter().map(|after| format!("{after} min"));
    let times: Vec<_> = times.collect();
    println!(
        "| `goawayChance` | {} | connections opened |",
        times.join(" | ")
    );
    println!("|{}", "---|".repeat(times.len() + 2));
    for chance in &options.chance {
        let figures = spread(plan, options, *chance).await;
        println!("| {chance} | {} |", figures.join(" | "));
    }
}

async fn spread(plan: &Plan, options: &Options, chance: f64) -> Vec<String> {
    let lab = Lab::new().await;
    let mut proxies = Vec::new();
    for number in 0..SERVERS {
        let proxy = lab.proxy_options(plan, lab.double.addr());
        let proxy = proxy
            .server_id(&format!("cost-{number}"))
            .set("serving.goawayChance", &chance.to_string())
            .set("shutdown.delay", "1s")
            .set("shutdown.drain", "5s");
        proxies.push(Proxy::start(proxy).await);
    }
    let servers = Arc::new(Servers {
        addresses: proxies.iter().map(Proxy::addr).collect(),
        next: AtomicUsize::new(0),
        opened: AtomicUsize::new(0),
    });
    let mut running = JoinSet::new();
    let clients: Vec<_> = (0..options.clients)
        .map(|_| Arc::new(Informed::new(&servers, &lab.ground.pki)))
        .collect();
    for (number, client) in clients.iter().enumerate() {
        for watch in 0..options.watches {
            let seed = number * options.watches + watch;
            running.spawn(client.clone().watch(seed as u64));
        }
        running.spawn(client.clone().ask());
    }
    let watches = (options.clients * options.watches) as f64;
    until_open(&proxies, watches).await;
    let restarted = &mut proxies[SERVERS - 1];
    restarted.terminate().await;
    until_open(&proxies[..SERVERS - 1], watches).await;
    let restarted = &mut proxies[SERVERS - 1];
    restarted.start_again().await;
    restarted.wait_ready().await;
    let opened = servers.opened.load(Ordering::Relaxed);
    let (mut figures, mut minutes) = (Vec::new(), 0);
    for after in &options.after {
        sleep(MINUTE * (after - minutes)).await;
        minutes = *after;
        let at = clients
            .iter()
            .filter(|it| it.at.load(Ordering::Relaxed) == SERVERS - 1);
        let watches = proxies[SERVERS - 1].metric(WATCHES, &[]).await;
        figures.push(format!("{}, {watches}", at.count()));
    }
    let opened = servers.opened.load(Ordering::Relaxed) - opened;
    figures.push(opened.to_string());
    figures
}

const WATCHES: &str = "kube_interop_proxy_watches";

async fn until_open(proxies: &[Proxy], watches: f64) {
    eventually("most watches are open", PATIENCE, async || {
        let mut open = 0.0;
        for proxy in proxies {
            open += proxy.metric(WATCHES, &[]).await;
        }
        // Some are being opened anew all the time.
        (open > watches * 0.95).then_some(()).ok_or(open)
    })
    .await;
}

/// A load balancer that knows no server's load.
struct Servers {
    addresses: Vec<SocketAddr>,
    next: AtomicUsize,
    /// Connections.
    opened: AtomicUsize,
}

struct Informed {
    servers: Arc<Servers>,
    /// Of each server.
    clients: Vec<Client>,
    connection: Mutex<Option<SendRequest<Bytes>>>,
    /// The server of its connection.
    at: AtomicUsize,
}

impl Informed {
    fn new(servers: &Arc<Servers>, pki: &Pki) -> Self {
        let addresses = servers.addresses.iter();
        Self {
            servers: servers.clone(),
            clients: addresses.map(|to| Client::new(*to, pki)).collect(),
            connection: Mutex::default(),
            at: AtomicUsize::new(SERVERS),
        }
    }

    /// What a watch tells is thrown away.
    async fn watch(self: Arc<Self>, seed: u64) {
        for number in seed.. {
            // All lengths come equally often.
            let [shortest, longest] = WATCH_MINUTES;
            let minutes = shortest + number * 7 % (longest - shortest + 1);
            let seconds = minutes * MINUTE.as_secs();
            self.send(&format!("{PATH}&timeoutSeconds={seconds}")).await;
        }
    }

    async fn ask(self: Arc<Self>) {
        loop {
            self.send(OBJECT).await;
            sleep(MINUTE / SHORT_A_MINUTE).await;
        }
    }

    /// Sends a request, and reads the answer to its end.
    async fn send(&self, path: &str) {
        match self.try_send(path).await {
            Some(mut body) => {
                while let Some(Ok(data)) = body.data().await {
                    // An error ends the body, too.
                    let _ = body.flow_control().release_capacity(data.len());
                }
            }
            None => sleep(BACKOFF).await,
        }
    }

    async fn try_send(&self, path: &str) -> Option<RecvStream> {
        let mut requests = self.ready().await?;
        let request = Request::get(format!("https://localhost{path}"))
            .header("authorization", AUTHORIZATION)
            .body(())
            .expect("a request");
        let (answer, _) = requests.send_request(request, true).ok()?;
        Some(answer.await.ok()?.into_body())
    }

    /// The connection, or a new one after a GOAWAY.
    async fn ready(&self) -> Option<SendRequest<Bytes>> {
        let mut connection = self.connection.lock().await;
        if let Some(requests) = &*connection
            && let Ok(requests) = requests.clone().ready().await
        {
            return Some(requests);
        }
        *connection = None;
        let server = self.servers.next.fetch_add(1, Ordering::Relaxed) % SERVERS;
        let stream = self.clients[server].connect_raw(&["h2"]).await.ok()?;
        let (requests, serving) = h2::client::handshake(stream).await.ok()?;
        // It ends with its last stream.
        tokio::spawn(serving);
        self.servers.opened.fetch_add(1, Ordering::Relaxed);
        self.at.store(server, Ordering::Relaxed);
        *connection = Some(requests.clone());
        requests.ready().await.ok()
    }
}
