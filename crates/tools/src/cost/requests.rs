//! Processor time of a request: over HTTP/2, over HTTP/1.1, and through two programs, one behind the other.

use std::net::SocketAddr;
use std::time::Duration;

use testkit::client::Client;
use testkit::double::{Double, v1_20};
use testkit::proxy::Proxy;
use testkit::wait::eventually;

use super::lab::{AUTHORIZATION, Lab, Plan, Subject};
use super::load::Load;
use super::origin::{Origin, REROUTED};
use super::table::{head, names, rounds, row};

pub const CONNECTIONS: usize = 16;
pub const STREAMS: [usize; 4] = [1, 4, 16, 64];

#[derive(clap::Args)]
pub struct Options {
    /// Requests at once on each of 16 connections; over HTTP/1.1 as many connections as there.
    #[arg(long, value_delimiter = ',', default_values_t = STREAMS)]
    streams: Vec<usize>,
    #[arg(long, default_value_t = 40_000)]
    number: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: STREAMS.to_vec(),
            number: 40_000,
        }
    }
}

impl Options {
    fn load(&self, subject: &Subject, streams: usize) -> Load {
        Load::new(subject.address(), self.number, CONNECTIONS, streams)
    }
}

pub async fn http2(plan: &Plan, options: &Options) {
    let lab = Lab::new().await;
    let origin = lab.origin().await;
    let mut subjects = lab.subjects(plan, origin.address()).await;
    head(&title(plan, "HTTP/2 to HTTP/2"), &names(&subjects));
    for streams in &options.streams {
        let figures = each(plan, &mut subjects, |subject| {
            options.load(subject, *streams)
        })
        .await;
        row(
            &format!("{CONNECTIONS} × {streams} streams"),
            &figures,
            "≤ 1.0",
        );
    }
}

pub async fn http1(plan: &Plan, options: &Options) {
    let lab = Lab::new().await;
    let origin = lab.origin().await;
    let mut subjects = lab.subjects(plan, origin.address()).await;
    head(&title(plan, "HTTP/1.1 to HTTP/2"), &names(&subjects));
    for streams in &options.streams {
        let connections = CONNECTIONS * streams;
        let figures = each(plan, &mut subjects, |subject| {
            let mut load = options.load(subject, 1);
            (load.http1, load.connections) = (true, connections);
            load
        })
        .await;
        row(&format!("{connections} connections"), &figures, "≤ 1.1");
    }
}

fn title(plan: &Plan, what: &str) -> String {
    format!("A request, {what}, 1 KiB, {}:", plan.meter.unit())
}

/// What a request costs each of them.
async fn each(
    plan: &Plan,
    subjects: &mut [Subject],
    load: impl Fn(&Subject) -> Load,
) -> Vec<Vec<f64>> {
    // Connections upstream are opened, and memory is taken.
    for subject in subjects.iter() {
        let mut warm = load(subject);
        warm.number = (warm.number / 4).max(2 * warm.connections);
        warm.run().await;
    }
    rounds(subjects, plan.rounds, async |subject| {
        let load = load(subject);
        let (used, _) = plan.meter.measure(subject.process(), load.run()).await;
        used / load.number as f64
    })
    .await
}

/// The first of two programs gets what only the second one's server has.
struct Chain {
    name: &'static str,
    hops: [Subject; 2],
}

pub async fn rerouted(plan: &Plan, options: &Options) {
    let pair = Pair::new().await;
    let mut chains = Vec::new();
    for rival in &plan.rivals {
        let second = pair.lab.rival(plan, *rival, pair.with.address()).await;
        let first = pair.lab.rival(plan, *rival, second.address()).await;
        chains.push(Chain {
            name: rival.name(),
            hops: [first, second],
        });
    }
    chains.push(Chain {
        name: "proxy",
        hops: pair.proxies(plan).await,
    });
    let names: Vec<_> = chains.iter().map(|chain| chain.name).collect();
    head(&title(plan, "rerouted through two, HTTP/2"), &names);
    for streams in &options.streams {
        let mut figures = [(); 2].map(|()| vec![Vec::new(); chains.len()]);
        for round in 0..=plan.rounds {
            for (place, chain) in chains.iter_mut().enumerate() {
                let load = options.load(&chain.hops[0], *streams).path(REROUTED);
                let [first, second] = &mut chain.hops;
                let both = plan.meter.measure(
                    first.process(),
                    plan.meter.measure(second.process(), load.run()),
                );
                let (first, (second, _)) = both.await;
                // The first round only opens connections.
                if round > 0 {
                    figures[0][place].push(first / load.number as f64);
                    figures[1][place].push(second / load.number as f64);
                }
            }
        }
        for (figures, hop) in figures.iter().zip(["first", "second"]) {
            row(
                &format!("{CONNECTIONS} × {streams} streams, the {hop}"),
                figures,
                "≤ 1.1",
            );
        }
    }
}

/// Two servers, of which only the second one has the resource.
pub struct Pair {
    lab: Lab,
    without: Origin,
    with: Origin,
    _all: Double,
}

impl Pair {
    pub async fn new() -> Self {
        let lab = Lab::of(v1_20().without_group("autoscaling")).await;
        let all = lab.ground.double(v1_20()).await;
        Self {
            without: lab.origin().await,
            with: Origin::start(&lab.ground, all.addr()).await,
            lab,
            _all: all,
        }
    }

    /// One before each; the first reroutes to the second.
    pub async fn proxies(&self, plan: &Plan) -> [Subject; 2] {
        let options = |id, upstream| self.lab.proxy_options(plan, upstream).server_id(id);
        let second = Proxy::start(options("second", self.with.address())).await;
        let first = Proxy::start(options("first", self.without.address())).await;
        let hops = [first, second].map(Subject::proxy);
        until_rerouted(&self.lab, hops[0].address()).await;
        hops
    }
}

/// Waits until the proxy at `address` has a peer's answer to what its own server lacks.
pub async fn until_rerouted(lab: &Lab, address: SocketAddr) {
    let token = AUTHORIZATION.trim_start_matches("Bearer ");
    let client = Client::new(address, &lab.ground.pki).token(token);
    eventually("it is rerouted", Duration::from_secs(30), async || {
        let answer = client.fresh().try_get(REROUTED).await;
        answer.is_ok_and(|answer| answer.code() == 200)
    })
    .await;
}
