//! A TCP forwarder that can be cut, delayed and silenced, and restored.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::addr::Loopback;

const CHUNK: usize = 64 * 1024;

pub struct Cut {
    address: Loopback,
    /// Where it leads, and at which port it listens itself.
    target: Arc<Mutex<SocketAddr>>,
    port: u16,
    state: watch::Sender<State>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Whole,
    Cut,
    /// What is read is written so much later.
    Delayed(Duration),
    /// Connections stay open, and nothing passes.
    Silent,
}

impl Cut {
    /// Forwards what comes to the same port of `address` to `target`.
    pub async fn start(address: Loopback, target: SocketAddr) -> Self {
        let port = target.port();
        let listener = TcpListener::bind(address.socket(port))
            .await
            .expect("the forwarder's port");
        let (state, seen) = watch::channel(State::Whole);
        let target = Arc::new(Mutex::new(target));
        let leads_to = target.clone();
        let task = tokio::spawn(async move {
            let mut pipes = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let target = *leads_to.lock().expect("where it leads");
                pipes.spawn(forward(near, target, seen.clone()));
                while pipes.try_join_next().is_some() {}
            }
        });
        Self {
            address,
            target,
            port,
            state,
            task,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.address.socket(self.port)
    }

    /// New connections are forwarded to this address; the one before.
    pub fn lead_to(&self, target: SocketAddr) -> SocketAddr {
        std::mem::replace(&mut self.target.lock().expect("where it leads"), target)
    }

    /// Closes every connection, and new ones at once.
    pub fn cut(&self) {
        self.state.send_replace(State::Cut);
    }

    /// Each piece of what passes takes so much longer, in both directions.
    pub fn delay(&self, by: Duration) {
        self.state.send_replace(State::Delayed(by));
    }

    /// Nothing passes any more, and nobody is told.
    pub fn silence(&self) {
        self.state.send_replace(State::Silent);
    }

    pub fn restore(&self) {
        self.state.send_replace(State::Whole);
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(near: TcpStream, target: SocketAddr, mut state: watch::Receiver<State>) {
    if *state.borrow_and_update() == State::Cut {
        return;
    }
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    // Small pieces that wait for each other would make a delay of their own.
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_read, near_write) = split(near);
    let (far_read, far_write) = split(far);
    let there = copy(near_read, far_write, state.clone());
    let back = copy(far_read, near_write, state.clone());
    let both = async { tokio::try_join!(there, back) };
    // Whichever way it ends, both connections are closed.
    tokio::select! {
        _ = both => {}
        _ = state.wait_for(|state| *state == State::Cut) => {}
    }
}

/// One direction, to its end. An error ends both.
async fn copy(
    mut from: ReadHalf<TcpStream>,
    mut to: WriteHalf<TcpStream>,
    mut state: watch::Receiver<State>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        let passes = state.wait_for(|state| *state != State::Silent).await;
        // An error means that the forwarder is gone, and this with it.
        let state = passes.map(|state| *state).unwrap_or(State::Whole);
        if let State::Delayed(by) = state {
            sleep(by).await;
        }
        to.write_all(&buffer[..length]).await?;
    }
}
