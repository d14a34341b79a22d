//! Memory, open files and tasks of each proxy's process, from its third minute on. [`growth`] is pure.

use std::time::Duration;

/// From here on a process is as large as it gets.
const GROWN: Duration = Duration::from_secs(180);
/// So much longer it has to be watched.
const WATCHED: Duration = Duration::from_secs(60);
/// Of memory, in KiB, and of files: what other clients at other moments make.
const MEMORY: usize = 16 * 1024;
const FILES: usize = 200;
const TASKS: usize = 300;

#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub pid: u32,
    pub at: Duration,
    pub memory: usize,
    pub files: usize,
    pub tasks: usize,
}

/// What has grown of the process that was seen last, and for how long it was watched. `None`: too short to say.
pub fn growth(samples: &[Sample]) -> Option<Result<Duration, String>> {
    let last = samples.last()?;
    let own: Vec<&Sample> = samples
        .iter()
        .filter(|sample| sample.pid == last.pid)
        .collect();
    let born = own.first()?.at;
    let (young, grown): (Vec<&Sample>, Vec<&Sample>) =
        own.into_iter().partition(|sample| sample.at < born + GROWN);
    let before = young.iter().map(|sample| sample.memory).max()?;
    let after = grown
        .last()
        .filter(|last| last.at >= born + GROWN + WATCHED)?;
    let files = young.iter().map(|sample| sample.files).max()?;
    let tasks = young.iter().map(|sample| sample.tasks).max()?;
    if after.memory > before + before / 4 + MEMORY {
        let after = after.memory;
        return Some(Err(format!("memory grows: {before} KiB, then {after}")));
    }
    if after.files > files + FILES {
        return Some(Err(format!(
            "open files grow: {files}, then {}",
            after.files
        )));
    }
    if after.tasks > tasks + TASKS {
        return Some(Err(format!("tasks grow: {tasks}, then {}", after.tasks)));
    }
    Some(Ok(after.at - born))
}

#[cfg(test)]
mod tests;
