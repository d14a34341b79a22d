//! The admin port, and those on the host who mean it no good.

use std::io::ErrorKind;

use tokio::net::TcpStream;

use testkit::cluster::{LONG, Single};
use testkit::wait::eventually;

/// Whether the other side has ended it.
fn is_over(tcp: &TcpStream) -> bool {
    match tcp.try_read(&mut [0; 64]) {
        Err(error) => error.kind() != ErrorKind::WouldBlock,
        Ok(count) => count == 0,
    }
}

#[tokio::test]
async fn connections_that_say_nothing_use_up_no_files_and_keep_nobody_out() {
    let single = Single::new().await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(single.proxy.admin()).await.unwrap());
    }
    assert!(single.proxy.is_ready().await);
    eventually("few of them are left", LONG, async || {
        let open = silent.iter().filter(|tcp| !is_over(tcp)).count();
        if open <= 32 { Ok(()) } else { Err(open) }
    })
    .await;
    assert!(single.proxy.is_ready().await);
}
