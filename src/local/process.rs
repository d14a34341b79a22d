//! Whether the process of the local apiserver lives on after it has closed its port.
//!
//! kube-apiserver closes its port first, then waits for its connections, for a minute at most: 1.20 to 1.25 with
//! `APIServerIdentity` for those to itself. A connected socket has a process that holds it, and the kernel lists the
//! sockets of a network namespace in `/proc/net`. So nothing has to be asked or held open, which would keep the process.
//! What this proxy itself keeps open at the apiserver does not count: it ends with the proxy. Of an apiserver in another
//! network namespace nothing is seen, as if it had ended. `check --live` reads from the same files where something listens.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// States of sockets, as the kernel writes them.
const ESTABLISHED: u8 = 1;
const CLOSE_WAIT: u8 = 8;
const LISTEN: u8 = 10;

/// A socket of this network namespace.
#[derive(Debug, PartialEq, Eq)]
struct Socket {
    local: SocketAddr,
    remote: SocketAddr,
    state: u8,
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
            && matches!(it.state, ESTABLISHED | CLOSE_WAIT)
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
    let there = listening_for(&sockets, address);
    there.map(|it| it.inode).collect()
}

fn listening_for(sockets: &[Socket], address: SocketAddr) -> impl Iterator<Item = &Socket> {
    let at_port = listening(sockets, address.port());
    at_port.filter(move |it| it.local.ip() == address.ip() || it.local.ip().is_unspecified())
}

fn listening(sockets: &[Socket], port: u16) -> impl Iterator<Item = &Socket> {
    let at_port = sockets.iter().filter(move |it| it.local.port() == port);
    at_port.filter(|it| it.state == LISTEN)
}

/// Names of the programs that listen on `port`. Who may not look at a process sees only that somebody does (`?`).
pub fn holders(port: u16) -> BTreeSet<String> {
    let sockets = sockets(port);
    let held: HashSet<_> = listening(&sockets, port).map(|it| it.inode).collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = processes.filter_map(|process| {
        let path = process.path();
        let holds = inodes(&path.join("fd")).any(|inode| held.contains(&inode));
        let name = fs::read_to_string(path.join("comm")).ok()?;
        holds.then(|| name.trim().to_owned())
    });
    let names: BTreeSet<_> = names.collect();
    match names.is_empty() && !held.is_empty() {
        true => BTreeSet::from(["?".to_owned()]),
        false => names,
    }
}

/// The sockets with this port on either side.
fn sockets(port: u16) -> Vec<Socket> {
    let files = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
    let files = files.iter().filter_map(|path| fs::File::open(path).ok());
    let lines = files.flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
    let sockets = lines.filter_map(|line| socket(&line));
    let is_there = |it: &Socket| it.local.port() == port || it.remote.port() == port;
    sockets.filter(is_there).collect()
}

/// `None`: the heading.
fn socket(line: &str) -> Option<Socket> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    Some(Socket {
        local: address(fields.next()?)?,
        remote: address(fields.next()?)?,
        state: u8::from_str_radix(fields.next()?, 16).ok()?,
        inode: fields.nth(5)?.parse().ok()?,
    })
}

/// Words of the processor's byte order, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let words = (0..ip.len()).step_by(8).map(|at| ip.get(at..at + 8));
    let octets = words.map(|word| Some(u32::from_str_radix(word?, 16).ok()?.to_ne_bytes()));
    let octets = octets.collect::<Option<Vec<_>>>()?.concat();
    let ip = match <[u8; 4]>::try_from(&*octets) {
        Ok(v4) => IpAddr::from(v4),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(octets).ok()?).to_canonical(),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// Of the sockets of this process.
fn own_inodes() -> HashSet<u64> {
    inodes(Path::new("/proc/self/fd")).collect()
}

fn inodes(directory: &Path) -> impl Iterator<Item = u64> {
    let files = fs::read_dir(directory).into_iter().flatten();
    let links = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    // `socket:[INODE]`.
    links.filter_map(|link| {
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        inode.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    const AT: &str = "127.0.0.1:6443";
    /// Connections of others are of this one.
    const OTHERS: u64 = 1;
    const OWN: u64 = 2;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn one(local: &str, remote: &str, state: u8, inode: u64) -> Socket {
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
        for state in [ESTABLISHED, CLOSE_WAIT] {
            assert!(held(&[one(AT, client, state, OTHERS)]));
            assert!(held(&[one("[::1]:6443", "[::1]:4000", state, OTHERS)]));
        }
        // FIN_WAIT2: its process has closed it.
        assert!(!held(&[one(AT, client, 5, 0)]));
        for listener in [AT, "[::]:6443"] {
            let listening = one(listener, "0.0.0.0:0", LISTEN, OTHERS);
            assert!(!held(&[listening, one(AT, client, ESTABLISHED, OTHERS)]));
        }
    }

    #[test]
    fn connections_of_this_proxy_and_of_other_addresses_are_none_of_its() {
        let client = "127.0.0.1:40000";
        let accepted = || one(AT, client, ESTABLISHED, OTHERS);
        let connected = |inode| one(client, AT, ESTABLISHED, inode);
        assert!(held(&[accepted(), connected(OTHERS)]));
        assert!(!held(&[accepted(), connected(OWN)]));
        // A proxy with this port at the node's address.
        let serving = |inode| one("10.0.0.1:6443", "10.0.0.9:40000", ESTABLISHED, inode);
        assert!(!held(&[serving(OWN), serving(OTHERS)]));
        let listening = one("10.0.0.1:6443", "0.0.0.0:0", LISTEN, OTHERS);
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
                let is_it = (it.local, it.remote, it.state) == (local, remote, state);
                is_it && own.contains(&it.inode)
            })
        };
        let client_address = client.local_addr().unwrap();
        assert!(has(address, at("0.0.0.0:0"), LISTEN), "{found:?}");
        assert!(has(address, client_address, ESTABLISHED), "{found:?}");
        assert!(has(client_address, address, ESTABLISHED), "{found:?}");
        assert_eq!(listeners(address.port()), [address.ip()]);
        assert_eq!(listeners(client_address.port()), [] as [IpAddr; 0]);
        drop(accepted);
        let mapped = "   7: 0000000000000000FFFF00000100007F:192B 00000000000000000000000001000000:9C40 08 \
                      00000000:00000000 00:00000000 00000000     0        0 4242 1 0000000000000000 20 4 30 10 -1";
        let expected = one(AT, "[::1]:40000", CLOSE_WAIT, 4242);
        #[cfg(target_endian = "little")]
        assert_eq!(socket(mapped), Some(expected));
    }
    #[test]
    fn what_the_kernel_says_in_another_form_is_left_out() {
        for line in ["", "x", "0: 0100007F", "0: 01:192B 0:0 0A"] {
            assert_eq!(socket(line), None, "{line:?}");
        }
    }
}
