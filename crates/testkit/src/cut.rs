//! A TCP forwarder that can be cut and restored.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::addr::Loopback;

const PORT: u16 = 2379;

pub struct Cut {
    address: Loopback,
    whole: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Cut {
    /// Forwards what comes to `address` to `target`.
    pub async fn start(address: Loopback, target: SocketAddr) -> Self {
        let listener = TcpListener::bind(address.socket(PORT))
            .await
            .expect("the forwarder's port");
        let (whole, seen) = watch::channel(true);
        let task = tokio::spawn(async move {
            let mut pipes = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                pipes.spawn(forward(near, target, seen.clone()));
                while pipes.try_join_next().is_some() {}
            }
        });
        Self {
            address,
            whole,
            task,
        }
    }

    pub fn addr(&self) -> SocketAddr {
        self.address.socket(PORT)
    }

    /// Closes every connection, and new ones at once.
    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    pub fn restore(&self) {
        self.whole.send_replace(true);
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(mut near: TcpStream, target: SocketAddr, mut whole: watch::Receiver<bool>) {
    if !*whole.borrow_and_update() {
        return;
    }
    let Ok(mut far) = TcpStream::connect(target).await else {
        return;
    };
    // Whichever way it ends, both connections are closed.
    tokio::select! {
        _ = copy_bidirectional(&mut near, &mut far) => {}
        _ = whole.wait_for(|whole| !whole) => {}
    }
}
