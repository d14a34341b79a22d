//! The proxy under test: a process with its configuration file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_yaml::Value;
use tokio::net::TcpStream;

use super::addr::Loopback;
use super::client::Client;
use super::pki::Pki;
use super::process::{NotFound, Process, Signal};
use super::streaming::{Response, Streaming};
use super::wait::eventually;

const PORT: u16 = 6443;
const ADMIN_PORT: u16 = 6450;
const START: Duration = Duration::from_secs(90);

/// When [`Proxy::start`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At once.
    Spawned,
    /// The admin port's `/livez` is 200.
    Live,
    /// The admin port's `/readyz` is 200.
    Ready,
}

#[derive(Clone, Debug)]
pub struct ProxyOptions {
    binary: PathBuf,
    dir: PathBuf,
    pki: PathBuf,
    api_server: SocketAddr,
    etcd: String,
    server_id: String,
    at: Option<SocketAddr>,
    overrides: Vec<Value>,
    env: Vec<(String, String)>,
    files: Option<usize>,
    before: Vec<String>,
    until: Until,
}

impl ProxyOptions {
    /// `binary`: see [`program`](crate::process::program). Its files go below `dir`.
    pub fn new(binary: &Path, dir: &Path, pki: &Pki, api_server: SocketAddr, etcd: &str) -> Self {
        Self {
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            pki: pki.dir().to_owned(),
            api_server,
            etcd: etcd.to_owned(),
            server_id: String::new(),
            at: None,
            overrides: Vec::new(),
            env: Vec::new(),
            files: None,
            before: Vec::new(),
            until: Until::Live,
        }
    }

    pub fn server_id(mut self, id: &str) -> Self {
        id.clone_into(&mut self.server_id);
        self
    }

    /// Sets one key, `"ifReady.mode"` for example; the value is YAML.
    pub fn set(self, key: &str, value: &str) -> Self {
        let value: Value = serde_yaml::from_str(value).expect("a YAML value");
        let tree = key.rsplit('.').fold(value, |inner, name| {
            Value::Mapping([(Value::from(name), inner)].into_iter().collect())
        });
        self.merge(tree)
    }

    /// It serves at this address and advertises it; only its admin port is at an address of its own.
    pub fn at(mut self, address: SocketAddr) -> Self {
        self.at = Some(address);
        let address = format!("\"{address}\"");
        self.set("serving.bindAddress", &address)
            .set("peer.advertiseAddress", &address)
    }

    /// Lays a tree over the configuration: mappings are merged, everything else is replaced, null removes a key.
    pub fn merge(mut self, overrides: Value) -> Self {
        self.overrides.push(overrides);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// It may have at most so many files open.
    pub fn files(mut self, most: usize) -> Self {
        self.files = Some(most);
        self
    }

    /// It runs in another network; see [`Neighbor::command`](super::network::Neighbor::command). Its admin port cannot be
    /// asked then.
    pub fn in_network(self, command: Vec<String>) -> Self {
        self.run_by(command).until(Until::Spawned)
    }

    /// It runs on a host of this name: from 1.26 on the name of an apiserver's identity Lease is made of it.
    pub fn host_name(self, name: &str) -> Self {
        self.run_by(super::kube::on_host(name))
    }

    /// `command`, with the proxy's own appended, starts it.
    pub fn run_by(mut self, command: Vec<String>) -> Self {
        self.before = command;
        self
    }

    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// The configuration for a proxy at `address`.
    pub fn config(&self, address: &Loopback) -> Value {
        let pki = self.pki.display().to_string();
        let mut config = base_config(&pki, address, self.api_server, &self.etcd, &self.server_id);
        for overrides in &self.overrides {
            lay_over(&mut config, overrides);
        }
        config
    }
}

pub struct Proxy {
    address: Loopback,
    process: Process,
    config: PathBuf,
    options: ProxyOptions,
}

impl Proxy {
    pub async fn start(options: ProxyOptions) -> Self {
        let address = Loopback::new();
        let config = options.dir.join(format!("proxy-{}.yaml", address.ip()));
        let text = serde_yaml::to_string(&options.config(&address)).expect("configuration");
        std::fs::write(&config, text).expect("write the proxy's configuration");
        let process = spawn(&options, &config);
        let mut proxy = Self {
            address,
            process,
            config,
            options,
        };
        proxy.wait_until_up().await;
        proxy
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        let own = || self.address.socket(PORT);
        self.options.at.unwrap_or_else(own)
    }

    pub fn admin(&self) -> SocketAddr {
        self.address.socket(ADMIN_PORT)
    }

    /// A client without identity; see [`Client::cert`] and [`Client::token`].
    pub fn client(&self, pki: &Pki) -> Client {
        Client::new(self.addr(), pki)
    }

    pub fn config_file(&self) -> &Path {
        &self.config
    }

    /// The text of its configuration file with one more key set, also for later starts.
    pub fn changed_config(&mut self, key: &str, value: &str) -> String {
        self.options = self.options.clone().set(key, value);
        serde_yaml::to_string(&self.options.config(&self.address)).expect("configuration")
    }

    /// Puts a file with one key changed in the place of its configuration file, as an editor does.
    pub fn reconfigure(&mut self, key: &str, value: &str) {
        let text = self.changed_config(key, value);
        self.replace_config(&text);
    }

    /// Puts a file with this text in the place of its configuration file.
    pub fn replace_config(&self, text: &str) {
        let new = self.config.with_extension("new");
        std::fs::write(&new, text).expect("write the new configuration");
        std::fs::rename(&new, &self.config).expect("put it in place");
    }

    /// Waits until a setting that is read again has this value.
    pub async fn until_setting(&self, key: &str, value: &str) {
        eventually(&format!("{key} is {value}"), START, async || {
            let settings = &self.statusz().await["config"]["settings"];
            (settings[key] == value)
                .then_some(())
                .ok_or(settings[key].clone())
        })
        .await;
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    pub async fn admin_get(&self, path: &str) -> Response {
        admin_get(self.admin(), path, "*/*")
            .await
            .unwrap_or_else(|error| panic!("admin {path}: {error:#}\n{}", self.log_tail()))
    }

    /// The sum of a metric's samples that carry all of `labels`; 0 if there are none.
    pub async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        sum(&self.admin_get("/metrics").await.text(), name, labels)
    }

    /// Waits until a metric is `expected`: a client may see the end of a request before it is counted.
    pub async fn until_metric(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        expected: impl Fn(f64) -> bool,
    ) {
        let what = format!("{name}{labels:?} is as expected");
        eventually(&what, START, async || {
            let value = self.metric(name, labels).await;
            expected(value).then_some(()).ok_or(value)
        })
        .await;
    }

    /// The sum of a metric's samples, unless the admin port is closed.
    pub async fn try_metric(&self, name: &str) -> Option<f64> {
        let answer = admin_get(self.admin(), "/metrics", "*/*").await.ok()?;
        Some(sum(&answer.text(), name, &[]))
    }

    pub async fn statusz(&self) -> serde_json::Value {
        self.admin_get("/statusz?format=json").await.json()
    }

    pub async fn is_ready(&self) -> bool {
        admin_get(self.admin(), "/readyz", "*/*")
            .await
            .is_ok_and(|answer| answer.code() == 200)
    }

    /// Waits for the admin port's `/readyz`.
    pub async fn wait_ready(&mut self) {
        self.wait_for("/readyz").await;
    }

    /// SIGTERM, and its exit status.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.process.signal(Signal::Term);
        self.process.wait(START).await
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGSTOP: connections stay open and nothing answers.
    pub fn stop(&mut self) {
        self.process.signal(Signal::Stop);
    }

    /// SIGCONT.
    pub fn cont(&mut self) {
        self.process.signal(Signal::Cont);
    }

    /// Starts a terminated or killed proxy again, at the same address with the same file.
    pub async fn start_again(&mut self) {
        self.process.kill();
        self.process = spawn(&self.options, &self.config);
        self.wait_until_up().await;
    }

    /// Starts another with the same file while this one still runs. Returns the process of this one.
    pub fn start_successor(&mut self) -> Process {
        let successor = spawn(&self.options, &self.config);
        std::mem::replace(&mut self.process, successor)
    }

    async fn wait_until_up(&mut self) {
        match self.options.until {
            Until::Spawned => {}
            Until::Live => self.wait_for("/livez").await,
            Until::Ready => self.wait_for("/readyz").await,
        }
    }

    async fn wait_for(&mut self, path: &str) {
        let admin = self.admin();
        self.process
            .ready(START, async || match admin_get(admin, path, "*/*").await {
                Ok(answer) if answer.code() == 200 => Ok(()),
                Ok(answer) => Err(format!("{path}: {} {}", answer.status, answer.text())),
                Err(error) => Err(format!("{path}: {error:#}")),
            })
            .await;
    }
}

/// Each of these proxies of different apiservers knows where the histories of all of them begin.
pub async fn until_histories_are_known(proxies: &[&Proxy]) {
    for proxy in proxies {
        eventually("all histories are known", START, async || {
            let status = proxy.statusz().await;
            let is_known = |server: &serde_json::Value| server["historyStart"].is_i64();
            let peers = status["peers"].as_array().map_or(&[][..], Vec::as_slice);
            let are_all_known = is_known(&status["server"])
                && peers.len() + 1 >= proxies.len()
                && peers.iter().all(is_known);
            are_all_known.then_some(()).ok_or(status)
        })
        .await;
    }
}

/// Asks the admin port of any proxy.
pub async fn admin_get(admin: SocketAddr, path: &str, accept: &str) -> anyhow::Result<Response> {
    let tcp = TcpStream::connect(admin).await.context("connect")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await?;
    let connection = tokio::spawn(connection);
    let request = http::Request::get(path)
        .header("host", admin.to_string())
        .header("accept", accept)
        .body(Empty::<Bytes>::new())?;
    let response = Streaming::new(sender.send_request(request).await?)
        .collect()
        .await;
    connection.abort();
    response
}

fn spawn(options: &ProxyOptions, config: &Path) -> Process {
    let mut command = match (options.files, options.before.split_first()) {
        (None, None) => Command::new(&options.binary),
        (None, Some((first, rest))) => {
            let mut before = Command::new(first);
            before.args(rest).arg(&options.binary);
            before
        }
        (Some(most), _) => {
            let mut shell = Command::new("sh");
            let script = format!("ulimit -n {most} && exec \"$0\" \"$@\"");
            shell.args(["-c", &script]).arg(&options.binary);
            shell
        }
    };
    command
        .arg("run")
        .arg("--config")
        .arg(config)
        .envs(options.env.iter().cloned());
    match Process::spawn(
        "kube-interop-proxy",
        &mut command,
        &config.with_extension("log"),
    ) {
        Ok(process) => process,
        Err(NotFound) => super::missing(&options.binary.display().to_string(), "run cargo build"),
    }
}

/// All required keys; optional features are off, and all times are short.
fn base_config(
    pki: &str,
    address: &Loopback,
    api_server: SocketAddr,
    etcd: &str,
    server_id: &str,
) -> Value {
    let (serving, admin) = (address.socket(PORT), address.socket(ADMIN_PORT));
    let text = format!(
        "
apiVersion: kube-interop-proxy/v1alpha1
kind: ProxyConfiguration
serving:
  bindAddress: {serving}
  certFile: {pki}/apiserver.crt
  keyFile: {pki}/apiserver.key
  clientCAFile: {pki}/ca.crt
  requestHeaderClientCAFile: {pki}/front-proxy-ca.crt
  requestHeaderAllowedNames: [front-proxy-client]
apiServer:
  address: {api_server}
  serverName: kubernetes.default.svc
  caFile: {pki}/ca.crt
  proxyClientCertFile: {pki}/front-proxy-client.crt
  proxyClientKeyFile: {pki}/front-proxy-client.key
  probeInterval: 200ms
  discoveryInterval: 1s
etcd:
  endpoints: [{etcd}]
  caFile: {pki}/etcd-ca.crt
  certFile: {pki}/etcd-client.crt
  keyFile: {pki}/etcd-client.key
identity:
  serverID: \"{server_id}\"
  publishLease: Never
peer:
  advertiseAddress: {serving}
  caFile: {pki}/ca.crt
  serverName: kubernetes.default.svc
  leaseTTL: 3s
ifReady: {{mode: Retry, enforce: OptIn}}
watch: {{bookmarkOnShutdown: false, handOver: false}}
shutdown: {{delay: 0s, drain: 5s}}
admin: {{bindAddress: \"{admin}\"}}
"
    );
    serde_yaml::from_str(&text).expect("the base configuration")
}

fn lay_over(config: &mut Value, overrides: &Value) {
    match (config, overrides) {
        (Value::Mapping(config), Value::Mapping(overrides)) => {
            for (key, value) in overrides {
                if value.is_null() {
                    config.remove(key);
                } else {
                    lay_over(config.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (config, overrides) => *config = overrides.clone(),
    }
}

/// Reads Prometheus' text format.
pub(crate) fn sum(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let wanted: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key}=\"{value}\""))
        .collect();
    let value = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let (metric, labels) = series.split_once('{').unwrap_or((series, ""));
        let has = |label: &String| {
            labels.starts_with(label.as_str()) || labels.contains(&format!(",{label}"))
        };
        (metric == name && wanted.iter().all(has))
            .then(|| value.parse::<f64>().ok())
            .flatten()
    };
    // An apiserver tells thousands of lines.
    text.lines()
        .filter(|line| line.starts_with(name))
        .filter_map(value)
        .sum()
}
