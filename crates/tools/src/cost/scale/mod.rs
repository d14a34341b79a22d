//! What a proxy takes in a cluster of many servers and custom resources: one real proxy, a real etcd, and what the
//! proxies of the other servers write. See docs/scalability.md.

mod content;

use std::time::Duration;

use testkit::client::Client;
use testkit::double::v1_36;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;
use tokio::time::{interval, sleep};

use super::lab::{Lab, Plan};
use super::load::Load;
use super::origin::Origin;
use super::table::figure;
use content::{AGGREGATED, Others, with_custom_groups, write_definitions};

const CONNECTIONS: usize = 16;
const STREAMS: usize = 4;
const REQUESTS: usize = 20_000;
/// Of one record, and of the definitions.
const CHANGES: usize = 200;
const NEW_DEFINITIONS: usize = 20;
const BETWEEN_CHANGES: Duration = Duration::from_millis(20);
const BETWEEN_DEFINITIONS: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub struct Options {
    /// Servers, the measured one included.
    #[arg(long, value_delimiter = ',', default_values_t = [3, 10, 50])]
    servers: Vec<usize>,
    /// CustomResourceDefinitions.
    #[arg(long, value_delimiter = ',', default_values_t = [100, 1000, 10_000])]
    definitions: Vec<usize>,
    /// Seconds without requests in which the work of the proxy itself is measured.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

pub async fn measure(plan: &Plan, options: &Options) {
    println!(
        "\nOne proxy among servers that change nothing, and what a change takes, {}:\n",
        plan.meter.unit()
    );
    println!(
        "| servers | custom resources | memory, MiB | open files | etcd watches | etcd writes a minute \
         | a second at rest | a request | a change of one record | a new definition |"
    );
    println!("|{}", "---|".repeat(10));
    for servers in &options.servers {
        for definitions in &options.definitions {
            let cluster = Cluster::new(plan, *servers, *definitions).await;
            let figures = cluster.measure(plan, options.seconds).await;
            println!(
                "| {servers} | {definitions} | {} |",
                figures.map(figure).join(" | ")
            );
        }
    }
}

struct Cluster {
    proxy: Proxy,
    others: Others,
    lab: Lab,
    /// The apiserver, and the proxies of the others.
    _origin: Origin,
}

impl Cluster {
    async fn new(plan: &Plan, servers: usize, definitions: usize) -> Self {
        let lab = Lab::of(v1_36()).await;
        let mut etcd = lab.ground.etcd.client().await;
        write_definitions(&mut etcd, 0..definitions).await;
        let mut others = Others::new(etcd, servers - 1, &v1_36().resources);
        let direct = Client::new(lab.double.addr(), &lab.ground.pki).cert("admin");
        let apis = with_custom_groups(
            direct
                .header("accept", AGGREGATED)
                .get("/apis")
                .await
                .json(),
            definitions,
        );
        let origin = Origin::at(
            &lab.ground,
            lab.double.addr(),
            &others.addresses(),
            Some(&apis),
        )
        .await;
        others.write_all().await;
        let options = lab
            .proxy_options(plan, origin.address())
            .set("apiServer.discoveryInterval", "10s")
            .until(Until::Ready);
        let proxy = Proxy::start(options).await;
        let cluster = Self {
            proxy,
            others,
            lab,
            _origin: origin,
        };
        cluster.wait_until_all_is_known(servers - 1).await;
        cluster
    }

    async fn wait_until_all_is_known(&self, others: usize) {
        eventually("all servers are known", PATIENCE, async || {
            let status = self.proxy.statusz().await;
            let peers = status["peers"].as_array().into_iter().flatten();
            let known = peers.filter(|peer| peer["known"] == true).count();
            if known == others {
                Ok(())
            } else {
                Err(format!("{known} are known"))
            }
        })
        .await;
    }

    /// In the order of the table.
    async fn measure(mut self, plan: &Plan, seconds: u64) -> [f64; 8] {
        let (at_rest, writes) = self.at_rest(plan, seconds).await;
        let memory = self.proxy.process().memory().expect("it runs") as f64 / 1024.0;
        let files = self.proxy.process().files() as f64;
        let watches = self.etcd("etcd_debugging_mvcc_watcher_total").await;
        let request = self.request(plan).await;
        let change = self.changes(plan, at_rest).await;
        let definition = self.definitions(plan, at_rest).await;
        [
            memory, files, watches, writes, at_rest, request, change, definition,
        ]
    }

    /// What a second takes while the others only write that they live, and the writes of the proxy in a minute.
    async fn at_rest(&mut self, plan: &Plan, seconds: u64) -> (f64, f64) {
        let time = Duration::from_secs(seconds);
        // What the start left to do is done.
        sleep(time / 6).await;
        let puts = self.etcd(PUTS).await;
        let written = self.others.written();
        let writing = self.others.clone().keep_writing(time);
        let resting = async { tokio::join!(sleep(time), writing) };
        let (used, _) = plan.meter.measure(self.proxy.process(), resting).await;
        let puts = self.etcd(PUTS).await - puts;
        let own = puts - (self.others.written() - written) as f64;
        (used / seconds as f64, own * 60.0 / seconds as f64)
    }

    async fn request(&mut self, plan: &Plan) -> f64 {
        let load = Load::new(self.proxy.addr(), REQUESTS, CONNECTIONS, STREAMS);
        load.run().await;
        plan.meter.measure(self.proxy.process(), load.run()).await.0 / REQUESTS as f64
    }

    /// What one change of another server's record takes, besides what its time takes without.
    async fn changes(&mut self, plan: &Plan, at_rest: f64) -> f64 {
        let mut others = self.others.clone();
        let work = paced(CHANGES, BETWEEN_CHANGES, async |number| {
            others.change(number).await
        });
        let (used, time) = plan.meter.measure(self.proxy.process(), work).await;
        (used - at_rest * time.as_secs_f64()) / CHANGES as f64
    }

    async fn definitions(&mut self, plan: &Plan, at_rest: f64) -> f64 {
        let mut etcd = self.lab.ground.etcd.client().await;
        let work = paced(NEW_DEFINITIONS, BETWEEN_DEFINITIONS, async |number| {
            let new = 1_000_000 + number;
            write_definitions(&mut etcd, new..new + 1).await;
        });
        let (used, time) = plan.meter.measure(self.proxy.process(), work).await;
        (used - at_rest * time.as_secs_f64()) / NEW_DEFINITIONS as f64
    }

    /// One of etcd's own metrics.
    async fn etcd(&self, metric: &str) -> f64 {
        let ground = &self.lab.ground;
        let client = Client::new(ground.etcd.addr(), &ground.pki);
        let client = client
            .trusting("etcd-ca")
            .cert("etcd-client")
            .server_name("localhost");
        let text = client.get("/metrics").await.text();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(metric)?.strip_prefix(' '));
        let value = value.unwrap_or_else(|| panic!("etcd has no {metric}"));
        value.parse().expect("a number")
    }
}

const PUTS: &str = "etcd_mvcc_put_total";

/// Does something so often, each time a while after the last one. Returns how long all of it took.
async fn paced(count: usize, pause: Duration, mut act: impl AsyncFnMut(usize)) -> Duration {
    let begun = std::time::Instant::now();
    let mut ticks = interval(pause);
    for number in 0..count {
        ticks.tick().await;
        act(number).await;
    }
    // What follows from the last one.
    sleep(BETWEEN_DEFINITIONS).await;
    begun.elapsed()
}
