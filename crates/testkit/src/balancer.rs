//! A load balancer in front of several servers. It forwards each new connection unchanged to the next server whose
//! `/readyz` is 200; if none is, to the next one that takes it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::addr::Loopback;
use super::client::Client;

const PORT: u16 = 6443;
/// Between two looks at a server.
const PACE: Duration = Duration::from_millis(300);

pub struct Balancer {
    /// Held for as long as it listens there; `None`: the listener came from outside.
    _address: Option<Loopback>,
    listens: SocketAddr,
    servers: Arc<Servers>,
    /// Ends what is relayed, too, when it is dropped.
    _tasks: JoinSet<()>,
}

struct Servers {
    next: AtomicUsize,
    each: Vec<Server>,
}

struct Server {
    address: SocketAddr,
    ready: AtomicBool,
}

impl Balancer {
    /// `servers`: each with a client that may ask for `/readyz`.
    pub async fn start(servers: Vec<(SocketAddr, Client)>) -> Self {
        let address = Loopback::new();
        let listener = TcpListener::bind(address.socket(PORT)).await;
        Self {
            _address: Some(address),
            ..Self::on(listener.expect("a listener"), servers)
        }
    }

    /// The same with a listener of the caller.
    pub fn on(listener: TcpListener, servers: Vec<(SocketAddr, Client)>) -> Self {
        let listens = listener.local_addr().expect("an address");
        let (addresses, clients): (Vec<_>, Vec<_>) = servers.into_iter().unzip();
        let each = addresses.into_iter().map(|address| Server {
            address,
            ready: AtomicBool::new(false),
        });
        let servers = Arc::new(Servers {
            next: AtomicUsize::new(0),
            each: each.collect(),
        });
        let mut tasks = JoinSet::new();
        for (index, client) in clients.into_iter().enumerate() {
            tasks.spawn(look(servers.clone(), index, client));
        }
        tasks.spawn(accept(servers.clone(), listener));
        Self {
            _address: None,
            listens,
            servers,
            _tasks: tasks,
        }
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.listens
    }

    /// How many servers get connections.
    pub fn ready(&self) -> usize {
        let is_ready = |server: &&Server| server.ready.load(Ordering::Relaxed);
        self.servers.each.iter().filter(is_ready).count()
    }
}

async fn look(servers: Arc<Servers>, index: usize, client: Client) {
    let mut client = client.timeout(Duration::from_secs(2));
    loop {
        let answer = client.try_get("/readyz").await;
        let ready = answer.is_ok_and(|answer| answer.code() == 200);
        servers.each[index].ready.store(ready, Ordering::Relaxed);
        // Each look is a connection of its own. After a failure the certificates may be other ones.
        match ready {
            true => client.reconnect().await,
            false => client = client.fresh(),
        }
        tokio::time::sleep(PACE).await;
    }
}

async fn accept(servers: Arc<Servers>, listener: TcpListener) {
    let mut relayed = JoinSet::new();
    loop {
        let Ok((mut client, _)) = listener.accept().await else {
            continue;
        };
        let servers = servers.clone();
        relayed.spawn(async move {
            if let Some(mut server) = servers.connect().await {
                // Either side may break off: the other learns it by the end of its connection.
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        });
        while relayed.try_join_next().is_some() {}
    }
}

impl Servers {
    async fn connect(&self) -> Option<TcpStream> {
        // On a busy machine none may have said in time that it is ready.
        match self
            .connect_among(|server| server.ready.load(Ordering::Relaxed))
            .await
        {
            Some(stream) => Some(stream),
            None => self.connect_among(|_| true).await,
        }
    }

    /// To the next of these that takes it.
    async fn connect_among(&self, among: impl Fn(&Server) -> bool) -> Option<TcpStream> {
        for _ in 0..self.each.len() {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let server = &self.each[next % self.each.len()];
            if !among(server) {
                continue;
            }
            if let Ok(stream) = TcpStream::connect(server.address).await {
                return Some(stream);
            }
            server.ready.store(false, Ordering::Relaxed);
        }
        None
    }
}
