use super::*;

fn samples(memory: impl Fn(u64) -> usize, files: impl Fn(u64) -> usize) -> Vec<Sample> {
    let sample = |second| Sample {
        pid: 1,
        at: Duration::from_secs(second),
        memory: memory(second),
        files: files(second),
        tasks: 2 * files(second),
    };
    (0..300).step_by(5).map(sample).collect()
}

#[test]
fn what_stays_as_it_was_is_no_growth() {
    let steady = samples(|second| 50_000 + second as usize % 7, |_| 100);
    assert_eq!(growth(&steady), Some(Ok(Duration::from_secs(295))));
    assert_eq!(growth(&steady[..20]), None);
    assert_eq!(growth(&steady[..40]), None);
}

#[test]
fn growth_of_memory_of_files_and_of_tasks_is_found() {
    let memory = samples(|second| 50_000 + 500 * second as usize, |_| 100);
    assert!(matches!(growth(&memory), Some(Err(why)) if why.contains("memory grows")));
    let files = samples(|_| 50_000, |second| 100 + 4 * second as usize);
    assert!(matches!(growth(&files), Some(Err(why)) if why.contains("open files grow")));
    let tasks = samples(|_| 50_000, |second| 100 + second as usize * 5 / 3);
    assert!(matches!(growth(&tasks), Some(Err(why)) if why.contains("tasks grow")));
}
