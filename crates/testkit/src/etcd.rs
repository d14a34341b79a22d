//! A real etcd, over TLS and with client certificates required, as kubeadm runs it.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, DeleteOptions, GetOptions, Identity, KeyValue, TlsOptions,
    WatchOptions, WatchStream,
};

use super::addr::Loopback;
use super::kube::{Need, caches, others_meet};
use super::peer_links::PeerLinks;
use super::pki::{LeafOptions, Pki};
use super::process::{COLLECT_LESS, NotFound, Process, Signal};

const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;
const START: Duration = Duration::from_secs(90);
const INSTALL: &str = "run tests/install.sh --tests (apt-get install etcd-server etcd-client)";
/// The kube-apiservers that ask etcd for its progress, which Debian's etcd 3.4 does not tell.
const ASK_FOR_PROGRESS: Need = Need::Since(31);

#[derive(Clone, Debug)]
pub struct EtcdOptions {
    pub binary: PathBuf,
    /// `--experimental-watch-progress-notify-interval`; kubeadm sets 5s, etcd's own default is 10m.
    pub progress_notify: Duration,
    /// Further command line arguments.
    pub args: Vec<String>,
    /// Further addresses that its certificate is good for.
    pub also: Vec<IpAddr>,
    /// What another one held ([`Etcd::snapshot`]), with which it begins.
    pub snapshot: Option<&'static [u8]>,
}

impl EtcdOptions {
    /// Version 3.5, which tells its progress at etcd's own default, or if asked.
    pub fn v3_5() -> Self {
        Self {
            binary: v3_5(),
            progress_notify: Duration::from_secs(600),
            ..Self::default()
        }
    }
}

/// From the cache of `tests/fetch-etcd.sh`.
fn v3_5() -> PathBuf {
    let binary = caches().join("etcd-3.5/etcd");
    if !binary.is_file() {
        let what = format!("etcd 3.5 ({})", binary.display());
        super::missing(&what, "run tests/fetch-etcd.sh");
    }
    binary
}

impl Default for EtcdOptions {
    /// Debian's own, unless one of the kube-apiservers wants a newer one.
    fn default() -> Self {
        Self {
            binary: match others_meet(ASK_FOR_PROGRESS) {
                true => v3_5(),
                false => "etcd".into(),
            },
            progress_notify: Duration::from_secs(1),
            args: Vec::new(),
            also: Vec::new(),
            snapshot: None,
        }
    }
}

pub struct Etcd {
    address: Loopback,
    process: Process,
    dir: PathBuf,
    options: EtcdOptions,
    /// Where its peers connect.
    peers: SocketAddr,
    /// `--initial-cluster`.
    members: String,
    files: ServerFiles,
    client: ClientFiles,
}

struct ServerFiles {
    ca: String,
    cert: String,
    key: String,
}

#[derive(Clone)]
struct ClientFiles {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

/// How to reach a member while others hold its handle.
#[derive(Clone)]
pub struct Access {
    endpoint: String,
    files: ClientFiles,
}

impl Access {
    /// A client with the certificate `etcd-client`.
    pub async fn client(&self) -> Result<Client, String> {
        connect(&self.endpoint, &self.files).await
    }
}

impl Etcd {
    /// Data and log go below `dir`. Returns when it answers.
    pub async fn start(dir: &Path, pki: &Pki) -> Self {
        Self::start_with(dir, pki, EtcdOptions::default()).await
    }

    pub async fn start_with(dir: &Path, pki: &Pki, options: EtcdOptions) -> Self {
        let address = Loopback::new();
        let peers = address.socket(PEER_PORT);
        let members = member(&address, peers);
        let mut etcd = Self::spawned(dir, pki, options, (address, peers), members);
        etcd.wait_until_it_answers().await;
        etcd
    }

    /// `count` members of one etcd.
    pub async fn start_cluster(dir: &Path, pki: &Pki, count: usize) -> Vec<Self> {
        Self::start_cluster_with(dir, pki, count, &EtcdOptions::default()).await
    }

    pub async fn start_cluster_with(
        dir: &Path,
        pki: &Pki,
        count: usize,
        options: &EtcdOptions,
    ) -> Vec<Self> {
        let addresses = (0..count).map(|_| {
            let address = Loopback::new();
            let peers = address.socket(PEER_PORT);
            (address, peers)
        });
        Self::start_at(dir, pki, options, addresses.collect()).await
    }

    /// As many members, with forwarders between them.
    pub async fn start_linked(
        dir: &Path,
        pki: &Pki,
        count: usize,
        options: &EtcdOptions,
    ) -> (Vec<Self>, PeerLinks) {
        let mut links = PeerLinks::default();
        let mut addresses = Vec::new();
        for _ in 0..count {
            let address = Loopback::new();
            let peers = links.to(address.socket(PEER_PORT)).await;
            addresses.push((address, peers));
        }
        let etcds = Self::start_at(dir, pki, options, addresses).await;
        (etcds, links)
    }

    /// `addresses`: of each member, and where its peers connect.
    async fn start_at(
        dir: &Path,
        pki: &Pki,
        options: &EtcdOptions,
        addresses: Vec<(Loopback, SocketAddr)>,
    ) -> Vec<Self> {
        let named = addresses
            .iter()
            .map(|(address, peers)| member(address, *peers));
        let members = named.collect::<Vec<_>>().join(",");
        let spawned = |address| Self::spawned(dir, pki, options.clone(), address, members.clone());
        // None answers before most of them run.
        let mut etcds: Vec<_> = addresses.into_iter().map(spawned).collect();
        for etcd in &mut etcds {
            etcd.wait_until_it_answers().await;
        }
        etcds
    }

    fn spawned(
        dir: &Path,
        pki: &Pki,
        options: EtcdOptions,
        (address, peers): (Loopback, SocketAddr),
        members: String,
    ) -> Self {
        super::install_crypto_provider();
        let name = name(&address);
        let leaf = LeafOptions::server("etcd-server", &["localhost", "127.0.0.1"]);
        let leaf = options
            .also
            .iter()
            .fold(leaf.san(address.ip()), LeafOptions::san);
        pki.leaf(&name, "etcd-ca", &leaf);
        let files = ServerFiles {
            ca: pki.file("etcd-ca.crt"),
            cert: pki.file(&format!("{name}.crt")),
            key: pki.file(&format!("{name}.key")),
        };
        let client = ClientFiles {
            ca: pki.path("etcd-ca.crt"),
            cert: pki.path("etcd-client.crt"),
            key: pki.path("etcd-client.key"),
        };
        let dir = dir.join(&name);
        std::fs::create_dir_all(&dir).expect("directory for etcd");
        if let Some(snapshot) = options.snapshot {
            restore_snapshot(&dir, snapshot, &membership(&dir, &address, peers, &members));
        }
        let process = spawn(&dir, (&address, peers), &files, &options, &members);
        Self {
            address,
            peers,
            process,
            dir,
            options,
            members,
            files,
            client,
        }
    }

    pub fn endpoint(&self) -> String {
        format!("https://{}", self.addr())
    }

    /// Where it listens to its peers.
    fn peer_addr(&self) -> SocketAddr {
        self.address.socket(PEER_PORT)
    }

    /// From now on everything that its peers say comes later to this member.
    pub async fn lag(&self, links: &PeerLinks, by: Duration) {
        let status = self.client().await.status().await.expect("its status");
        let id = status.header().expect("a header").member_id();
        links.delay(self.peer_addr(), id, by);
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.address.socket(CLIENT_PORT)
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub fn access(&self) -> Access {
        Access {
            endpoint: self.endpoint(),
            files: self.client.clone(),
        }
    }

    /// A client with the certificate `etcd-client`.
    pub async fn client(&self) -> Client {
        let client = self.access().client().await;
        client.expect("a connection to etcd")
    }

    /// All keys that begin with `prefix`.
    pub async fn below(&self, prefix: &str) -> Vec<KeyValue> {
        let options = GetOptions::new().with_prefix();
        let answer = self.client().await.get(prefix, Some(options)).await;
        answer.expect("an answer of etcd").kvs().to_vec()
    }

    /// Deletes all keys that begin so.
    pub async fn delete_below(&self, prefix: &str) {
        let below = DeleteOptions::new().with_prefix();
        let deleted = self.client().await.delete(prefix, Some(below)).await;
        deleted.expect("an answer of etcd");
    }

    /// SIGTERM, and up again with the same data at the same address.
    pub async fn restart(&mut self) {
        self.process.signal(Signal::Term);
        self.process.wait(START).await;
        self.start_again().await;
    }

    /// SIGKILL, and it stays down until [`Etcd::start_again`].
    pub fn kill(&mut self) {
        self.process.kill();
    }

    pub async fn start_again(&mut self) {
        let Self { dir, files, .. } = &*self;
        let address = (&self.address, self.peers);
        self.process = spawn(dir, address, files, &self.options, &self.members);
        self.wait_until_it_answers().await;
    }

    /// All changes of keys that begin with `prefix`, from the first one on.
    pub async fn changes(&self, prefix: &str) -> WatchStream {
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(1)
            .with_prev_key();
        let watch = self.client().await.watch(prefix, Some(options)).await;
        watch.expect("a watch of etcd")
    }

    /// All that it holds, as `etcdctl snapshot save` writes it.
    pub async fn snapshot(&self) -> Vec<u8> {
        let mut stream = self.client().await.snapshot().await.expect("a snapshot");
        let mut bytes = Vec::new();
        while let Some(part) = stream.message().await.expect("a part of it") {
            bytes.extend_from_slice(part.blob());
        }
        bytes
    }

    /// Keeps a copy of its data, for [`Etcd::restore`]; it is restarted for that.
    pub async fn back_up(&mut self) {
        self.process.signal(Signal::Term);
        self.process.wait(START).await;
        let backup = self.dir.join("backup");
        if backup.exists() {
            std::fs::remove_dir_all(&backup).expect("remove an earlier backup");
        }
        copy(&self.dir.join("data"), &backup);
        self.start_again().await;
    }

    /// SIGKILL, and up again with the copy of its data.
    pub async fn restore(&mut self) {
        self.restore_from(&self.dir.join("backup")).await;
    }

    /// SIGKILL, and up again with the copy of the other's data ([`Self::back_up`]).
    pub async fn become_copy_of(&mut self, other: &Self) {
        self.restore_from(&other.dir.join("backup")).await;
    }

    async fn restore_from(&mut self, backup: &Path) {
        self.kill();
        let data = self.dir.join("data");
        std::fs::remove_dir_all(&data).expect("remove etcd's data");
        copy(backup, &data);
        self.start_again().await;
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub fn stop(&mut self) {
        self.process.signal(Signal::Stop);
    }

    /// SIGCONT.
    pub fn cont(&mut self) {
        self.process.signal(Signal::Cont);
    }

    /// Waits until it answers for most members.
    pub async fn wait_until_it_answers(&mut self) {
        let (endpoint, client) = (self.endpoint(), &self.client);
        self.process
            .ready(START, async || {
                let mut etcd = connect(&endpoint, client).await?;
                etcd.get("up", None)
                    .await
                    .map_err(|error| error.to_string())
            })
            .await;
    }
}

/// As an operator does it: the new etcd has IDs of its own.
fn restore_snapshot(dir: &Path, snapshot: &[u8], membership: &[String]) {
    let file = dir.join("snapshot");
    std::fs::write(&file, snapshot).expect("write a snapshot");
    let mut command = Command::new("etcdctl");
    command
        .env("ETCDCTL_API", "3")
        .env(COLLECT_LESS.0, COLLECT_LESS.1)
        .args(["snapshot", "restore"])
        .arg(&file)
        .args(membership);
    match command.output() {
        Ok(output) => assert!(output.status.success(), "{command:?}: {output:?}"),
        Err(error) if error.kind() == ErrorKind::NotFound => super::missing("etcdctl", INSTALL),
        Err(error) => panic!("{command:?}: {error}"),
    }
    std::fs::remove_file(&file).expect("remove a snapshot");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a directory for etcd's data");
    for entry in std::fs::read_dir(from).expect("etcd's data") {
        let entry = entry.expect("an entry of etcd's data");
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).expect("a copy of etcd's data");
        }
    }
}

async fn connect(endpoint: &str, files: &ClientFiles) -> Result<Client, String> {
    let read = |path: &Path| std::fs::read(path).expect("a file of the PKI");
    let tls = TlsOptions::new()
        .ca_certificate(Certificate::from_pem(read(&files.ca)))
        .identity(Identity::from_pem(read(&files.cert), read(&files.key)));
    let options = ConnectOptions::new()
        .with_tls(tls)
        .with_connect_timeout(Duration::from_secs(2));
    Client::connect([endpoint], Some(options))
        .await
        .map_err(|error| error.to_string())
}

fn name(address: &Loopback) -> String {
    format!("etcd-{}", address.ip())
}

/// A member's part of `--initial-cluster`.
fn member(address: &Loopback, peers: SocketAddr) -> String {
    format!("{}=http://{peers}", name(address))
}

/// What a member says of itself and of the others, whether it starts or is restored.
fn membership(dir: &Path, address: &Loopback, peers: SocketAddr, members: &str) -> [String; 4] {
    [
        format!("--name={}", name(address)),
        format!("--data-dir={}", dir.join("data").display()),
        format!("--initial-advertise-peer-urls=http://{peers}"),
        format!("--initial-cluster={members}"),
    ]
}

fn spawn(
    dir: &Path,
    (address, peers): (&Loopback, SocketAddr),
    files: &ServerFiles,
    options: &EtcdOptions,
    members: &str,
) -> Process {
    let client_url = format!("https://{}", address.socket(CLIENT_PORT));
    let peer_url = format!("http://{}", address.socket(PEER_PORT));
    let mut command = Command::new(&options.binary);
    command
        .args(membership(dir, address, peers, members))
        .arg(format!("--listen-client-urls={client_url}"))
        .arg(format!("--advertise-client-urls={client_url}"))
        .arg(format!("--listen-peer-urls={peer_url}"))
        .arg(format!("--cert-file={}", files.cert))
        .arg(format!("--key-file={}", files.key))
        .arg(format!("--trusted-ca-file={}", files.ca))
        .arg("--client-cert-auth=true")
        .arg("--logger=zap")
        .arg(progress_flag(options.progress_notify))
        .env(COLLECT_LESS.0, COLLECT_LESS.1)
        .args(no_fsync(&options.binary).then_some("--unsafe-no-fsync"))
        .args(&options.args);
    match Process::spawn("etcd", &mut command, &dir.join("etcd.log")) {
        Ok(process) => process,
        Err(NotFound) => super::missing("etcd", INSTALL),
    }
}

fn progress_flag(interval: Duration) -> String {
    format!(
        "--experimental-watch-progress-notify-interval={}ms",
        interval.as_millis()
    )
}

/// Whether this etcd can skip fsync (3.5 and later); determined once.
fn no_fsync(binary: &Path) -> bool {
    static KNOWN: OnceLock<(PathBuf, bool)> = OnceLock::new();
    let ask = || {
        let help = Command::new(binary).arg("--help").output();
        help.is_ok_and(|output| {
            let text = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&text).contains("--unsafe-no-fsync")
        })
    };
    let (known, can) = KNOWN.get_or_init(|| (binary.to_owned(), ask()));
    if known == binary { *can } else { ask() }
}
