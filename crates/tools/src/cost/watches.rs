//! Memory of idle watches, and processor time of their events.

use std::time::Duration;

use tokio::time::sleep;

use super::lab::{Lab, Plan, Subject};
use super::streams::{Kind, Watches};
use super::table::{head, names, rounds, row};
use super::watched::{EVENT_SIZE, Watched};

/// Until what was allocated to open watches is given back: a watch from a revision is looked at for 3 s, for a 410, and
/// the allocator gives memory back some seconds after it was freed.
pub const PAUSE: Duration = Duration::from_secs(15);
/// Between two events of a watch.
pub const EVERY: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct Idle {
    /// Watches, and the connections that they share: 50 on each.
    #[arg(long, value_delimiter = ',', default_values_t = [4000, 40_000])]
    count: Vec<usize>,
    /// Users have a certificate, instead of a token that is sent with each watch.
    #[arg(long)]
    certificate: bool,
}

impl Default for Idle {
    fn default() -> Self {
        Self {
            count: vec![4000, 40_000],
            certificate: false,
        }
    }
}

#[derive(clap::Args)]
pub struct Events {
    #[arg(long, default_value_t = 4000)]
    count: usize,
    /// Seconds in which events are counted.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            count: 4000,
            seconds: 10,
        }
    }
}

pub const ON_A_CONNECTION: usize = 50;

/// Each program is started anew for each number: what it has taken before would hide what it takes.
pub async fn idle(plan: &Plan, options: &Idle) {
    let lab = Lab::new().await;
    let server = Watched::start(&lab.ground, lab.double.addr(), None).await;
    for (place, count) in options.count.iter().enumerate() {
        let mut subjects = lab.subjects(&plan.multiplexing(), server.address()).await;
        if place == 0 {
            head("An idle watch, KiB resident:", &names(&subjects));
        }
        let connections = count.div_ceil(ON_A_CONNECTION);
        let figures = rounds(&mut subjects, 1, async |subject| {
            resident(&lab, subject, *count, options.certificate).await
        })
        .await;
        row(
            &format!("{count} over {connections} connections"),
            &figures,
            "≤ 6 KiB with a certificate",
        );
    }
}

async fn resident(lab: &Lab, subject: &mut Subject, count: usize, certificate: bool) -> f64 {
    let before = subject.process().memory().expect("it runs");
    let connections = count.div_ceil(ON_A_CONNECTION);
    let kind = Kind {
        certificate,
        ..Kind::default()
    };
    let (to, pki) = (subject.address(), &lab.ground.pki);
    let _open = Watches::open(to, pki, count, connections, kind).await;
    sleep(PAUSE).await;
    let after = subject.process().memory().expect("it runs");
    (after - before) as f64 / count as f64
}

pub async fn events(plan: &Plan, options: &Events) {
    let lab = Lab::new().await;
    let server = Watched::start(&lab.ground, lab.double.addr(), Some(EVERY)).await;
    let mut subjects = lab.subjects(&plan.multiplexing(), server.address()).await;
    let title = format!(
        "An event of a watch, {EVENT_SIZE} bytes, one a second each, {}:",
        plan.meter.unit()
    );
    head(&title, &names(&subjects));
    let connections = options.count.div_ceil(ON_A_CONNECTION);
    let figures = rounds(&mut subjects, plan.rounds, async |subject| {
        let open = Watches::open(
            subject.address(),
            &lab.ground.pki,
            options.count,
            connections,
            Kind::default(),
        )
        .await;
        sleep(EVERY).await;
        let counted = async {
            let before = open.count();
            sleep(Duration::from_secs(options.seconds)).await;
            open.count() - before
        };
        let (used, events) = plan.meter.measure(subject.process(), counted).await;
        let expected = options.count * options.seconds as usize;
        assert!(
            events > expected * 8 / 10,
            "only {events} of {expected} events came in time"
        );
        used / events as f64
    })
    .await;
    row(
        &format!("{} watches over {connections} connections", options.count),
        &figures,
        "≤ 0.9",
    );
}
