use super::*;

fn samples(
    seconds: u64,
    memory: impl Fn(u64) -> usize,
    files: impl Fn(u64) -> usize,
) -> Vec<Sample> {
    let sample = |second| Sample {
        pid: 1,
        at: Duration::from_secs(second),
        memory: memory(second),
        files: files(second),
        tasks: 2 * files(second),
    };
    (0..seconds).step_by(5).map(sample).collect()
}

fn is_found(what: &str, samples: &[Sample]) -> bool {
    matches!(growth(samples), Some(Err(why)) if why.starts_with(what))
}

#[test]
fn what_stays_as_it_was_is_no_growth() {
    let steady = samples(300, |second| 50_000 + second as usize % 7, |_| 100);
    assert_eq!(growth(&steady), Some(Ok(Duration::from_secs(295))));
    assert_eq!(growth(&steady[..20]), None);
    assert_eq!(growth(&steady[..40]), None);
    // Now and then more.
    let varied = |second: u64| 50_000 + (second as usize % 600) * 20;
    let varied = samples(7200, varied, |second| 100 + second as usize % 60);
    assert_eq!(growth(&varied), Some(Ok(Duration::from_secs(7195))));
}

#[test]
fn growth_of_memory_of_files_and_of_tasks_is_found() {
    let memory = samples(300, |second| 50_000 + 500 * second as usize, |_| 100);
    assert!(is_found("memory", &memory));
    let files = samples(300, |_| 50_000, |second| 100 + 5 * second as usize);
    assert!(is_found("open files", &files));
    let tasks = samples(300, |_| 50_000, |second| 100 + second as usize * 13 / 5);
    assert!(is_found("tasks", &tasks));
}

#[test]
fn what_grows_by_a_few_megabytes_an_hour_is_found_in_a_long_run() {
    let slowly = |second: u64| 50_000 + second as usize;
    assert!(is_found("memory", &samples(14_400, slowly, |_| 100)));
    assert!(!is_found("memory", &samples(1_500, slowly, |_| 100)));
}
