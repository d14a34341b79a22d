//! Forwarders between the members of an etcd, which can bring one member what the others say late.
//!
//! A member gets most of what others say over connections that it has made itself. So a forwarder reads who has made a
//! connection: requests between members name their sender.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::addr::Loopback;

const PORT: u16 = 2380;
const CHUNK: usize = 64 * 1024;
const SENDER: &[u8] = b"x-server-from: ";

/// The member that is late.
#[derive(Clone, Copy)]
struct Late {
    /// Where it listens.
    at: SocketAddr,
    id: u64,
    by: Duration,
}

#[derive(Default)]
pub struct PeerLinks {
    late: Arc<Mutex<Option<Late>>>,
    tasks: JoinSet<()>,
    addresses: Vec<Loopback>,
}

impl PeerLinks {
    /// A forwarder to the member that listens to its peers at `target`; where the peers are to connect.
    pub async fn to(&mut self, target: SocketAddr) -> SocketAddr {
        let address = Loopback::new();
        let near = address.socket(PORT);
        let listener = TcpListener::bind(near).await.expect("a forwarder's port");
        self.addresses.push(address);
        let late = self.late.clone();
        self.tasks.spawn(async move {
            let mut pipes = JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                pipes.spawn(forward(tcp, target, late.clone()));
                while pipes.try_join_next().is_some() {}
            }
        });
        near
    }

    /// From now on everything comes later to the member with this ID that listens to its peers at `at`.
    pub fn delay(&self, at: SocketAddr, id: u64, by: Duration) {
        *self.late.lock().expect("the delay") = Some(Late { at, id, by });
    }

    pub fn restore(&self) {
        *self.late.lock().expect("the delay") = None;
    }
}

async fn forward(near: TcpStream, target: SocketAddr, late: Arc<Mutex<Option<Late>>>) {
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_read, near_write) = split(near);
    let (far_read, far_write) = split(far);
    let late = || *late.lock().expect("the delay");
    let sender = OnceLock::new();
    let there = copy(near_read, far_write, |chunk| {
        if let Some(id) = sender_in(chunk) {
            let _ = sender.set(id);
        }
        late().filter(|late| late.at == target)
    });
    let back = copy(far_read, near_write, |_| {
        late().filter(|late| sender.get() == Some(&late.id))
    });
    // Whichever way ends first, both connections are closed.
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

/// The ID of the member that a request says it is from.
fn sender_in(chunk: &[u8]) -> Option<u64> {
    let lower = chunk.to_ascii_lowercase();
    let at = lower
        .windows(SENDER.len())
        .position(|text| text == SENDER)?;
    let id = lower[at + SENDER.len()..]
        .split(|byte| *byte == b'\r')
        .next()?;
    u64::from_str_radix(std::str::from_utf8(id).ok()?, 16).ok()
}

/// One direction, to its end. What waits does not make what comes after it wait longer.
async fn copy(
    mut from: ReadHalf<TcpStream>,
    mut to: WriteHalf<TcpStream>,
    late: impl Fn(&[u8]) -> Option<Late>,
) {
    let (sender, mut waiting) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; CHUNK];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let chunk = &buffer[..length];
            let by = late(chunk).map_or(Duration::ZERO, |late| late.by);
            let _ = sender.send((Instant::now() + by, chunk.to_vec()));
        }
    };
    let write = async move {
        while let Some((due, chunk)) = waiting.recv().await {
            sleep_until(due).await;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
