//! Processor time of a request.

use std::path::Path;

use super::lab::{Lab, load};

const CONNECTIONS: usize = 16;

#[derive(clap::Args)]
pub struct Options {
    /// Requests at once on each of 16 connections.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
    streams: Vec<usize>,
    #[arg(long, default_value_t = 20_000)]
    number: usize,
    /// Both are measured in each round. The median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

pub async fn measure(program: &Path, options: &Options) {
    let lab = Lab::new().await;
    let mut subjects = [
        lab.haproxy().await,
        lab.proxy(program, &["taskset", "-c", "1"]).await,
    ];
    println!("microseconds of processor time a request, HTTP/2 on {CONNECTIONS} connections");
    println!(
        "{:>8}{:>10}{:>10}{:>10}",
        "streams", "HAProxy", "proxy", "ratio"
    );
    for streams in &options.streams {
        let mut costs = [Vec::new(), Vec::new()];
        for subject in &subjects {
            load(subject.address(), options.number / 4, CONNECTIONS, *streams).await;
        }
        for _ in 0..options.rounds {
            for (subject, costs) in subjects.iter_mut().zip(&mut costs) {
                let before = subject.process().cpu().expect("it runs");
                load(subject.address(), options.number, CONNECTIONS, *streams).await;
                let used = subject.process().cpu().expect("it runs") - before;
                costs.push(used.as_secs_f64() * 1e6 / options.number as f64);
            }
        }
        let [haproxy, proxy] = costs.map(median);
        println!(
            "{streams:>8}{haproxy:>10.1}{proxy:>10.1}{:>10.2}",
            proxy / haproxy
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
