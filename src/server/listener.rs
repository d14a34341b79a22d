//! Listeners of the TLS port: one for each address and serving thread.
//!
//! An additional address is bound with `IP_FREEBIND`: the host need not have it. Packets for it arrive as soon as the
//! host has it, and again after it went away and came back.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, SockFilter, SockRef, Socket, Type};

const BACKLOG: i32 = 1024;

/// What a host must have for an address to be listened on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The address, now.
    Required,
    /// Nothing: the address may come later.
    Optional,
}

/// Binds `count` sockets to one address; [`listen`] makes them listen. Port 0 becomes the same free port for all.
pub fn bind(address: SocketAddr, presence: Presence, count: usize) -> io::Result<Vec<TcpListener>> {
    let first = bind_one(address, presence)?;
    let address = first.local_addr()?;
    std::iter::once(Ok(first))
        .chain((1..count).map(|_| bind_one(address, presence)))
        .collect()
}

/// One socket. An address that was bound before fails while another process listens there, or everywhere.
pub fn bind_one(address: SocketAddr, presence: Presence) -> io::Result<TcpListener> {
    // An IPv4 address in IPv6 notation would need a listener for both.
    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    match (presence, address) {
        (Presence::Required, _) => {}
        (Presence::Optional, SocketAddr::V4(_)) => socket.set_freebind_v4(true)?,
        (Presence::Optional, SocketAddr::V6(_)) => socket.set_freebind_v6(true)?,
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Lets clients connect.
pub fn listen(socket: &TcpListener) -> io::Result<()> {
    SockRef::from(socket).listen(BACKLOG)
}

/// Lets the kernel drop further attempts to connect. Clients repeat them after a second: by then another process may
/// listen there, or nobody. Connections that have begun are accepted as before.
///
/// Without this, closing the listener would reset the connections that wait in it.
pub fn ignore_newcomers(listener: &tokio::net::TcpListener) -> io::Result<()> {
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    // Drops each TCP packet with SYN and without ACK (classic BPF; packets begin with the TCP header).
    let drop_first_packets = [
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
        SockFilter::new(AND, 0, 0, SYN | ACK),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ];
    SockRef::from(listener).attach_filter(&drop_first_packets)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use tokio::net::TcpStream;
    use tokio::time::timeout;

    const NOBODYS: [&str; 2] = ["192.0.2.1:0", "[2001:db8::1]:0"];

    #[test]
    fn only_an_optional_address_may_be_absent() {
        for address in NOBODYS {
            let address: SocketAddr = address.parse().unwrap();
            let required = bind(address, Presence::Required, 1).unwrap_err();
            assert_eq!(required.kind(), io::ErrorKind::AddrNotAvailable);
            let optional = bind(address, Presence::Optional, 2).unwrap();
            let bound = addresses(&optional);
            assert_eq!(bound[0], bound[1]);
            assert_eq!(bound[0].ip(), address.ip());
        }
    }

    fn addresses(listeners: &[TcpListener]) -> Vec<SocketAddr> {
        let address = |listener: &TcpListener| listener.local_addr().unwrap();
        listeners.iter().map(address).collect()
    }

    #[test]
    fn an_ipv4_address_in_ipv6_notation_is_an_ipv4_address() {
        let address = "[::ffff:127.0.0.1]:0".parse().unwrap();
        let listeners = bind(address, Presence::Required, 1).unwrap();
        assert!(addresses(&listeners)[0].is_ipv4());
    }

    #[test]
    fn an_address_that_was_given_up_is_had_again_when_nobody_else_listens_there() {
        let mut mine = bind("127.0.0.1:0".parse().unwrap(), Presence::Required, 1).unwrap();
        listen(&mine[0]).unwrap();
        let address = mine[0].local_addr().unwrap();
        let everywhere = SocketAddr::new([0; 4].into(), address.port());
        TcpListener::bind(everywhere).unwrap_err();
        mine.clear();
        let other = TcpListener::bind(everywhere).unwrap();
        bind_one(address, Presence::Optional).unwrap_err();
        drop(other);
        listen(&bind_one(address, Presence::Optional).unwrap()).unwrap();
    }

    #[tokio::test]
    async fn a_listener_that_ignores_newcomers_still_has_those_that_wait() {
        let address = "127.0.0.1:0".parse().unwrap();
        let listener = bind(address, Presence::Required, 1).unwrap().remove(0);
        listen(&listener).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let address = listener.local_addr().unwrap();
        let waiting = TcpStream::connect(address).await.unwrap();
        ignore_newcomers(&listener).unwrap();
        let newcomer = timeout(Duration::from_millis(200), TcpStream::connect(address)).await;
        assert!(newcomer.is_err(), "{newcomer:?}");
        let (_accepted, from) = listener.accept().await.unwrap();
        assert_eq!(from, waiting.local_addr().unwrap());
    }
}
