//! Memory, open files and tasks of each proxy's process, from its third minute on. [`growth`] is pure.

use std::time::Duration;

/// From here on a process is as large as it gets.
const GROWN: Duration = Duration::from_secs(180);
/// So much longer it has to be watched.
const WATCHED: Duration = Duration::from_secs(60);
/// From here on what grows slowly is seen too.
const LONG: Duration = Duration::from_secs(1800);

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub pid: u32,
    pub at: Duration,
    /// In KiB.
    pub memory: usize,
    pub files: usize,
    pub tasks: usize,
}

struct Measure {
    name: &'static str,
    of: fn(&Sample) -> usize,
    /// What other clients at other moments make, besides a quarter.
    slack: usize,
    /// The same of the least that is used.
    little: usize,
}

const MEASURES: [Measure; 3] = [
    Measure {
        name: "memory",
        of: |sample| sample.memory,
        slack: 16 * 1024,
        little: 2 * 1024,
    },
    Measure {
        name: "open files",
        of: |sample| sample.files,
        slack: 200,
        little: 20,
    },
    Measure {
        name: "tasks",
        of: |sample| sample.tasks,
        slack: 300,
        little: 30,
    },
];

/// What has grown of the process that was seen last, and for how long it was watched. `None`: too short to say.
pub fn growth(samples: &[Sample]) -> Option<Result<Duration, String>> {
    let last = samples.last()?;
    let own: Vec<&Sample> = samples
        .iter()
        .filter(|sample| sample.pid == last.pid)
        .collect();
    let born = own.first()?.at;
    last.at.checked_sub(born + GROWN + WATCHED)?;
    let grown = MEASURES.iter().find_map(|measure| measure.growth(&own));
    Some(grown.map_or(Ok(last.at - born), Err))
}

impl Measure {
    /// Of one process, not none.
    fn growth(&self, own: &[&Sample]) -> Option<String> {
        let (name, of) = (self.name, |sample: &&Sample| (self.of)(sample));
        let (born, last) = (own[0].at, own[own.len() - 1]);
        let young = own.iter().filter(|sample| sample.at < born + GROWN);
        let (before, after) = (young.map(of).max()?, of(&last));
        if after > before + before / 4 + self.slack {
            return Some(format!("{name}: {before}, then {after}"));
        }
        let quarter = |from: usize| &own[own.len() * from / 4..own.len() * (from + 1) / 4];
        let (most, least) = (
            quarter(1).iter().map(of).max()?,
            quarter(3).iter().map(of).min()?,
        );
        (last.at - born >= LONG && least > most + self.little)
            .then(|| format!("{name}: at most {most}, later at least {least}"))
    }
}

#[cfg(test)]
mod tests;
