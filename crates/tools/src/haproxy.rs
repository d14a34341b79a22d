//! HAProxy in the place of the proxy: TLS with client certificates on both sides, forged identity removed and the true
//! one written.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use testkit::pki::{Pki, SERVER_NAME};

/// Where it runs.
pub struct HaProxy<'a> {
    pub pki: &'a Pki,
    /// For its files.
    pub dir: &'a Path,
    pub listens: SocketAddr,
}

impl HaProxy<'_> {
    /// Its configuration. `backend` makes the lines of the backend from the TLS options of a server.
    pub fn config(&self, backend: impl FnOnce(&str) -> String) -> String {
        let Self { pki, dir, listens } = self;
        let (server, client) = (
            pem(pki, dir, "apiserver"),
            pem(pki, dir, "front-proxy-client"),
        );
        let (ca, clients) = (pki.file("ca.crt"), client_cas(pki, dir));
        let backend = backend(&format!(
            "ssl crt {client} ca-file {ca} verify required sni str({SERVER_NAME}) verifyhost {SERVER_NAME}"
        ));
        format!(
            "global
 maxconn 8000
 nbthread 1
defaults
 mode http
 timeout connect 5s
 timeout client 1h
 timeout server 1h
frontend f
 bind {listens} ssl crt {server} alpn h2,http/1.1 ca-file {clients} verify optional
 acl peer ssl_c_i_dn(cn) front-proxy-ca
 http-request del-header x-remote- -m beg unless peer
 http-request set-header x-remote-user %[ssl_c_s_dn(cn)] if {{ ssl_c_used }} !peer
 http-request set-header x-remote-group %[ssl_c_s_dn(o)] if {{ ssl_c_used }} !peer
 http-request set-header x-forwarded-for %[src] unless peer
 default_backend b
backend b
{backend}"
        )
    }

    /// What is typed to run a file with that configuration.
    pub fn command(config: &Path) -> Vec<String> {
        let program = find("haproxy").unwrap_or_else(|| PathBuf::from("haproxy"));
        let command = [program.as_path(), "-db".as_ref(), "-f".as_ref(), config];
        let command = command.map(|word| word.display().to_string());
        command.to_vec()
    }
}

/// Lines of a backend that checks each server twice a second, and asks another one for reads whose server is gone. The
/// first server comes before the others. `check` is the request that is a check, `options` are a server's.
pub fn failing_over(servers: &[SocketAddr], check: &str, options: &str) -> String {
    let server = |(number, address): (usize, &SocketAddr)| {
        let backup = if number == 0 { "" } else { "backup" };
        format!(
            " server s{number} {address} {options} check check-alpn http/1.1 check-sni {SERVER_NAME} inter 500ms fall 2 \
             {backup}\n"
        )
    };
    let servers: String = servers.iter().enumerate().map(server).collect();
    format!(
        " timeout connect 1s
 timeout check 500ms
 option redispatch 1
 retries 2
 retry-on conn-failure empty-response
 http-request disable-l7-retry unless METH_GET
 option httpchk
 http-check send meth GET {check} hdr host {SERVER_NAME}
{servers}"
    )
}

/// A file, or a program on PATH.
pub fn find(program: impl AsRef<Path>) -> Option<PathBuf> {
    let program = program.as_ref();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // Where Debian has servers, which is not on everybody's PATH.
    places.push("/usr/sbin".into());
    let places = places.iter().map(|place| place.join(program));
    std::iter::once(program.to_owned())
        .chain(places)
        .find(|place| place.is_file())
}

/// A certificate and its key in one file of `dir`, as HAProxy wants it.
fn pem(pki: &Pki, dir: &Path, name: &str) -> String {
    let part = |ending: &str| std::fs::read_to_string(pki.path(&format!("{name}.{ending}")));
    let path = dir.join(format!("{name}.pem"));
    std::fs::write(&path, part("crt").unwrap() + &part("key").unwrap()).unwrap();
    path.display().to_string()
}

/// A file with the CAs of users and of peers.
pub fn client_cas(pki: &Pki, dir: &Path) -> String {
    let read = |name: &str| std::fs::read_to_string(pki.path(name)).unwrap();
    let path = dir.join("clients.crt");
    std::fs::write(&path, read("ca.crt") + &read("front-proxy-ca.crt")).unwrap();
    path.display().to_string()
}
