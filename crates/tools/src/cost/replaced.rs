//! Thousands of watches at one proxy whose apiserver is killed: until all go on, and what that takes. Either the
//! apiservers of two peers go on with them, or the same one once it is back.

use std::time::Duration;

use testkit::proxy::Proxy;
use testkit::wait::eventually;
use tokio::time::{Instant, sleep};

use super::lab::{Lab, Plan};
use super::streams::{Kind, Watches};
use super::table::figure;
use super::watched::Watched;
use super::watches::{ON_A_CONNECTION, PAUSE};

/// Until all go on, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(300);
const HANDED_OVER: &str = "kube_interop_proxy_watch_hand_overs_total";

#[derive(clap::Args)]
pub struct Options {
    /// Watches, 50 on each connection.
    #[arg(long, default_value_t = 33_000)]
    count: usize,
    /// Other servers: with 0 the apiserver is back after a while.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 2])]
    peers: Vec<usize>,
    /// Seconds until the apiserver is back, if there are no peers.
    #[arg(long, default_value_t = 3)]
    away: u64,
    /// Users have a token, instead of a certificate.
    #[arg(long)]
    token: bool,
}

pub async fn measure(plan: &Plan, options: &Options) {
    println!("\nWatches whose apiserver is killed:\n");
    println!(
        "| watches | peers | s until half, all go on | s after it is back | proxy, s of processor \
         | MiB before, most, after | ratio | connections opened | ended |"
    );
    println!("|{}", "---|".repeat(9));
    for peers in &options.peers {
        let cluster = Cluster::new(plan, *peers).await;
        cluster.measure(options).await;
    }
}

/// The measured proxy and its apiserver first.
struct Cluster {
    proxies: Vec<Proxy>,
    servers: Vec<Watched>,
    lab: Lab,
}

impl Cluster {
    async fn new(plan: &Plan, peers: usize) -> Self {
        let lab = Lab::new().await;
        let (mut proxies, mut servers) = (Vec::new(), Vec::new());
        for number in 0..=peers {
            let server = Watched::start(&lab.ground, lab.double.addr(), None).await;
            let options = lab.proxy_options(plan, server.address());
            let options = options.server_id(&format!("cost-{number}"));
            proxies.push(Proxy::start(options).await);
            servers.push(server);
        }
        let what = "all histories are known";
        eventually(what, PATIENCE, async || {
            let status = proxies[0].statusz().await;
            let others = status["peers"].as_array().into_iter().flatten();
            let known = others.filter(|peer| peer["historyStart"].is_i64()).count();
            known == peers && status["server"]["historyStart"].is_i64()
        })
        .await;
        Self {
            proxies,
            servers,
            lab,
        }
    }

    /// etcd's revision after a change.
    async fn revision(&self) -> i64 {
        let mut etcd = self.lab.ground.etcd.client().await;
        let put = etcd.put("/other", "", None).await.expect("etcd writes");
        put.header().expect("a header").revision()
    }

    async fn measure(mut self, options: &Options) {
        let kind = Kind {
            certificate: !options.token,
            from: self.revision().await,
        };
        let (to, connections) = (
            self.proxies[0].addr(),
            options.count.div_ceil(ON_A_CONNECTION),
        );
        let pki = &self.lab.ground.pki;
        let open = Watches::open(to, pki, options.count, connections, kind).await;
        sleep(PAUSE).await;
        let process = self.proxies[0].process();
        let (memory, cpu) = (process.memory(), process.cpu());
        process.forget_peak();
        let connected: usize = self.servers[1..].iter().map(Watched::connections).sum();
        let killed = Instant::now();
        self.servers[0].stop().await;
        let back = match self.servers.len() {
            1 => {
                sleep(Duration::from_secs(options.away)).await;
                self.servers[0].start_again(&self.lab.ground).await;
                Instant::now()
            }
            _ => killed,
        };
        let begun = self.until_all_go_on(&open, options.count, killed).await;
        let process = self.proxies[0].process();
        let used = process.cpu().zip(cpu).map(|(now, before)| now - before);
        let most = process.peak_memory();
        self.assert_events_come(&open, options.count - open.ended())
            .await;
        sleep(PAUSE).await;
        let after = self.proxies[0].process().memory();
        let [memory, most, after] =
            [memory, most, after].map(|kib| kib.expect("it runs") as f64 / 1024.0);
        let opened: usize = self.servers.iter().map(Watched::connections).sum();
        let opened = opened - connected;
        let since = |from: Instant, share: usize| {
            let at = begun[begun.len() * share / 100 - 1];
            figure(at.saturating_duration_since(from).as_secs_f64())
        };
        println!(
            "| {} | {} | {}, {} | {} | {} | {}, {}, {} | {:.2} | {opened} | {} |",
            options.count,
            self.servers.len() - 1,
            since(killed, 50),
            since(killed, 100),
            since(back, 100),
            figure(used.expect("it runs").as_secs_f64()),
            figure(memory),
            figure(most),
            figure(after),
            most / memory,
            open.ended(),
        );
    }

    /// When each of those went on that did not end, in order.
    async fn until_all_go_on(&self, open: &Watches, count: usize, killed: Instant) -> Vec<Instant> {
        let begun = || {
            let begun = self.servers.iter().flat_map(Watched::begun);
            begun.filter(|at| *at > killed).collect::<Vec<_>>()
        };
        eventually("all go on, or have ended", PATIENCE, async || {
            let (begun, ended) = (begun().len(), open.ended());
            let seen = || format!("{begun} go on, {ended} have ended");
            (begun + ended >= count).then_some(()).ok_or_else(seen)
        })
        .await;
        let left = count - open.ended();
        // Each is looked at for a moment: it may still be told that it is too old.
        let all = |counted| counted >= left as f64;
        let counted = self.proxies[0].until_metric(HANDED_OVER, &[("result", "continued")], all);
        counted.await;
        let mut begun = begun();
        begun.sort_unstable();
        begun
    }

    /// An event comes through each.
    async fn assert_events_come(&self, open: &Watches, expected: usize) {
        let revision = self.revision().await;
        let before = open.count();
        for server in &self.servers {
            server.send(revision);
        }
        eventually("an event comes through each", PATIENCE, async || {
            let came = open.count() - before;
            (came == expected).then_some(()).ok_or(came)
        })
        .await;
    }
}
