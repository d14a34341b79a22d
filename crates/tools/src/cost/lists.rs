//! Processor time of a long answer, and the memory that many at once take.

use super::lab::{Lab, Plan, Subject};
use super::load::Load;
use super::origin::Origin;
use super::table::{head, names, rounds, row};

#[derive(clap::Args)]
pub struct Options {
    /// MiB of a list.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100])]
    size: Vec<usize>,
    /// Lists at once, each on a connection of its own.
    #[arg(long, default_value_t = 16)]
    clients: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            size: vec![10, 100],
            clients: 16,
        }
    }
}

pub async fn measure(plan: &Plan, options: &Options) {
    let lab = Lab::new().await;
    let origin = lab.origin().await;
    let mut subjects = lab.subjects(plan, origin.address()).await;
    let title = format!(
        "Lists, {} at once, for a MiB {}:",
        options.clients,
        plan.meter.unit()
    );
    head(&title, &names(&subjects));
    for size in &options.size {
        let mut peaks = vec![Vec::new(); subjects.len()];
        let mut place = 0;
        let figures = rounds(&mut subjects, plan.rounds, async |subject| {
            let (used, peak) = one(plan, options, &origin, subject, *size).await;
            let subjects = peaks.len();
            peaks[place % subjects].push(peak);
            place += 1;
            used
        })
        .await;
        row(&format!("{size} MiB"), &figures, "≤ 1.1");
        row(&format!("{size} MiB: most memory, MiB"), &peaks, "bounded");
    }
}

/// The cost of a MiB, and the most memory in MiB.
async fn one(
    plan: &Plan,
    options: &Options,
    origin: &Origin,
    subject: &mut Subject,
    size: usize,
) -> (f64, f64) {
    let path = origin.list(size);
    let load = Load::new(subject.address(), options.clients, options.clients, 1).path(&path);
    subject.process().forget_peak();
    let (used, _) = plan.meter.measure(subject.process(), load.run()).await;
    let peak = subject.process().peak_memory().expect("it runs");
    (used / (size * options.clients) as f64, peak as f64 / 1024.0)
}
