//! Whether the process of the local apiserver lives on after it has closed its port.
//!
//! kube-apiserver closes its port first, then waits for its connections, for a minute at most: 1.20 to 1.25 with
//! `APIServerIdentity` for those to itself. A connected socket has a process that holds it, and the kernel lists the
//! sockets of a network namespace in `/proc/net`. So nothing has to be asked or held open, which would keep the process.
//! What this proxy itself keeps open at the apiserver does not count: it ends with the proxy. Of an apiserver in another
//! network namespace nothing is seen, as if it had ended. `check --live` reads from the same files where something listens.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use procfs::net::{TcpState, tcp, tcp6};
use procfs::process::{FDTarget, Process, all_processes};

/// A socket of this network namespace.
#[derive(Debug)]
struct Socket {
    local: SocketAddr,
    remote: SocketAddr,
    state: TcpState,
    inode: u64,
}

/// Whether the process lives that has listened at `address`, and nobody listens there. Reads files of the kernel.
pub fn lingers(address: SocketAddr) -> bool {
    is_held(&sockets(address.port()), &own_inodes(), address)
}

fn is_held(sockets: &[Socket], own: &HashSet<u64>, address: SocketAddr) -> bool {
    let is_listening = listening_for(sockets, address).next().is_some();
    // One that listens everywhere connects to itself here.
    let itself = [
        address.ip(),
        Ipv4Addr::LOCALHOST.into(),
        Ipv6Addr::LOCALHOST.into(),
    ];
    let clients = sockets.iter().filter(|it| own.contains(&it.inode));
    let of_this_proxy: HashSet<_> = clients.map(|it| (it.remote, it.local)).collect();
    let mut connected = sockets.iter().filter(|it| {
        it.local.port() == address.port()
            && matches!(it.state, TcpState::Established | TcpState::CloseWait)
            && itself.contains(&it.local.ip())
            && !own.contains(&it.inode)
            && !of_this_proxy.contains(&(it.local, it.remote))
    });
    !is_listening && connected.next().is_some()
}

/// Where something listens on `port`. Reads files of the kernel.
pub fn listeners(port: u16) -> Vec<IpAddr> {
    let sockets = sockets(port);
    listening(&sockets, port).map(|it| it.local.ip()).collect()
}

/// The sockets that listen at `address`, or everywhere at its port; no later one has the same number. Reads files of the kernel.
pub fn listening_at(address: SocketAddr) -> HashSet<u64> {
    let sockets = sockets(address.port());
    listening_for(&sockets, address)
        .map(|it| it.inode)
        .collect()
}

fn listening_for(sockets: &[Socket], address: SocketAddr) -> impl Iterator<Item = &Socket> {
    let takes = move |ip: IpAddr| ip == address.ip() || ip.is_unspecified();
    listening(sockets, address.port()).filter(move |it| takes(it.local.ip()))
}

fn listening(sockets: &[Socket], port: u16) -> impl Iterator<Item = &Socket> {
    let at_port = sockets.iter().filter(move |it| it.local.port() == port);
    at_port.filter(|it| it.state == TcpState::Listen)
}

/// Names of the programs that listen on `port`. Who may not look at a process sees only that somebody does (`?`).
pub fn holders(port: u16) -> BTreeSet<String> {
    let sockets = sockets(port);
    let held: HashSet<_> = listening(&sockets, port).map(|it| it.inode).collect();
    let processes = all_processes().into_iter().flatten().flatten();
    let holding = processes.filter(|it| !inodes(it).is_disjoint(&held));
    let names: BTreeSet<_> = holding
        .filter_map(|it| Some(it.stat().ok()?.comm))
        .collect();
    match names.is_empty() && !held.is_empty() {
        true => BTreeSet::from(["?".to_owned()]),
        false => names,
    }
}

/// The sockets with this port on either side.
fn sockets(port: u16) -> Vec<Socket> {
    // IPv4 is in IPv6 where somebody listens for both.
    let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
    let sockets = [tcp(), tcp6()].into_iter().flatten().flatten();
    let sockets = sockets.map(|it| Socket {
        local: canonical(it.local_address),
        remote: canonical(it.remote_address),
        state: it.state,
        inode: it.inode,
    });
    let is_there = |it: &Socket| it.local.port() == port || it.remote.port() == port;
    sockets.filter(is_there).collect()
}

/// Of the sockets of this process.
fn own_inodes() -> HashSet<u64> {
    Process::myself().map_or_else(|_| HashSet::new(), |it| inodes(&it))
}

fn inodes(process: &Process) -> HashSet<u64> {
    let files = process.fd().into_iter().flatten().flatten();
    let inodes = files.filter_map(|file| match file.target {
        FDTarget::Socket(inode) => Some(inode),
        _ => None,
    });
    inodes.collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use procfs::net::TcpState::{CloseWait, Established, FinWait2, Listen};

    use super::*;

    const AT: &str = "127.0.0.1:6443";
    /// Connections of others are of this one.
    const OTHERS: u64 = 1;
    const OWN: u64 = 2;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn one(local: &str, remote: &str, state: TcpState, inode: u64) -> Socket {
        Socket {
            local: at(local),
            remote: at(remote),
            state,
            inode,
        }
    }

    fn held(sockets: &[Socket]) -> bool {
        is_held(sockets, &HashSet::from([OWN]), at(AT))
    }

    #[test]
    fn a_connection_shows_a_process_unless_somebody_listens() {
        let client = "127.0.0.1:40000";
        assert!(!held(&[]));
        for state in [Established, CloseWait] {
            assert!(held(&[one(AT, client, state.clone(), OTHERS)]));
            assert!(held(&[one("[::1]:6443", "[::1]:4000", state, OTHERS)]));
        }
        // Its process has closed it.
        assert!(!held(&[one(AT, client, FinWait2, 0)]));
        for listener in [AT, "[::]:6443"] {
            let listening = one(listener, "0.0.0.0:0", Listen, OTHERS);
            assert!(!held(&[listening, one(AT, client, Established, OTHERS)]));
        }
    }

    #[test]
    fn connections_of_this_proxy_and_of_other_addresses_are_none_of_its() {
        let client = "127.0.0.1:40000";
        let accepted = || one(AT, client, Established, OTHERS);
        let connected = |inode| one(client, AT, Established, inode);
        assert!(held(&[accepted(), connected(OTHERS)]));
        assert!(!held(&[accepted(), connected(OWN)]));
        // A proxy with this port at the node's address.
        let serving = |inode| one("10.0.0.1:6443", "10.0.0.9:40000", Established, inode);
        assert!(!held(&[serving(OWN), serving(OTHERS)]));
        let listening = one("10.0.0.1:6443", "0.0.0.0:0", Listen, OTHERS);
        assert!(held(&[listening, accepted()]));
    }

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let accepted = listener.accept().unwrap().0;
        let found = sockets(address.port());
        let own = own_inodes();
        let has = |local, remote, state| {
            let mut found = found.iter();
            found.any(|it| {
                (it.local, it.remote, &it.state) == (local, remote, &state)
                    && own.contains(&it.inode)
            })
        };
        let client_address = client.local_addr().unwrap();
        assert!(has(address, at("0.0.0.0:0"), Listen), "{found:?}");
        assert!(has(address, client_address, Established), "{found:?}");
        assert!(has(client_address, address, Established), "{found:?}");
        assert_eq!(listeners(address.port()), [address.ip()]);
        assert_eq!(listeners(client_address.port()), [] as [IpAddr; 0]);
        drop(accepted);
    }

    #[test]
    fn a_client_of_one_that_listens_for_ipv6_too_has_its_own_address() {
        // Without IPv6 there is nothing to see.
        let Ok(listener) = TcpListener::bind("[::]:0") else {
            return;
        };
        let port = listener.local_addr().unwrap().port();
        let _client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let _accepted = listener.accept().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let mut accepted = sockets(port).into_iter().filter(|it| it.local == address);
        assert_eq!(accepted.next().map(|it| it.state), Some(Established));
    }
}
