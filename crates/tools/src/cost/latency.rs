//! What a program adds to the time that requests take, while it has half of what it can do.

use super::lab::{Lab, Plan, Subject};
use super::load::Load;
use super::table::{figure, head, median, names, rounds, row};

const CONNECTIONS: usize = 16;
const STREAMS: usize = 16;

#[derive(clap::Args)]
pub struct Options {
    /// Seconds of a run.
    #[arg(long, default_value_t = 5)]
    seconds: usize,
    /// Requests in a second; default: half of what goes through HAProxy as fast as the answers come.
    #[arg(long)]
    rate: Option<f64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seconds: 5,
            rate: None,
        }
    }
}

pub async fn measure(plan: &Plan, options: &Options) {
    let lab = Lab::new().await;
    let origin = lab.origin().await;
    let mut subjects = lab.subjects(plan, origin.address()).await;
    let rate = match options.rate {
        Some(rate) => rate,
        None => saturating(plan, &mut subjects[0]).await / 2.0,
    };
    let title = format!(
        "Added latency at {rate:.0} requests a second, HTTP/2, {CONNECTIONS} connections, µs:"
    );
    head(&title, &names(&subjects));
    let dir = lab.ground.dir.path();
    let number = (rate * options.seconds as f64) as usize;
    let mut percentiles = PERCENTILES.map(|_| vec![Vec::new(); subjects.len()]);
    for _ in 0..plan.rounds {
        let direct = Load::new(origin.address(), number, CONNECTIONS, STREAMS)
            .at_rate(rate, dir)
            .await;
        for (place, subject) in subjects.iter().enumerate() {
            let times = Load::new(subject.address(), number, CONNECTIONS, STREAMS)
                .at_rate(rate, dir)
                .await;
            for ((_, share), figures) in PERCENTILES.iter().zip(&mut percentiles) {
                figures[place].push(at(&times, *share) - at(&direct, *share));
            }
        }
    }
    for ((name, _), figures) in PERCENTILES.iter().zip(&percentiles) {
        row(name, figures, "≤ 1.0");
    }
}

const PERCENTILES: [(&str, f64); 2] = [("median", 0.5), ("99th percentile", 0.99)];

fn at(ordered: &[f64], share: f64) -> f64 {
    let place = (ordered.len() as f64 * share) as usize;
    ordered[place.min(ordered.len() - 1)]
}

/// Requests a second, as fast as the answers come.
async fn saturating(plan: &Plan, subject: &mut Subject) -> f64 {
    let rates = rounds(
        std::slice::from_mut(subject),
        plan.rounds,
        async |subject| {
            Load::new(subject.address(), 40_000, CONNECTIONS, STREAMS)
                .run()
                .await
        },
    )
    .await;
    let rate = median(&rates[0]);
    println!(
        "\n{} a second through {}, as fast as the answers come.",
        figure(rate),
        subject.name
    );
    rate
}
