//! Repeats a request while the test does something else. Every attempt must succeed.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};

pub struct Steady {
    name: String,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<usize, String>>,
}

impl Steady {
    /// Asks once every `pause`, `most` times at most; the first failure ends it.
    pub fn start<F, Answer>(name: &str, pause: Duration, most: usize, mut ask: F) -> Self
    where
        F: FnMut() -> Answer + Send + 'static,
        Answer: Future<Output = Result<(), String>> + Send,
    {
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let started = Instant::now();
            let mut ticks = interval(pause);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for count in 0..most {
                tokio::select! {
                    _ = &mut stopped => return Ok(count),
                    _ = ticks.tick() => {}
                }
                if let Err(why) = ask().await {
                    return Err(format!(
                        "number {count}, after {:?}: {why}",
                        started.elapsed()
                    ));
                }
            }
            Err(format!("still asked after {most} times"))
        });
        Self {
            name: name.to_owned(),
            stop,
            task,
        }
    }

    /// Ends it; panics with the first failure, or if it never was asked.
    pub async fn stop(self) -> usize {
        let Self { name, stop, task } = self;
        // An error means that it has failed already.
        let _ = stop.send(());
        let count = task
            .await
            .expect("the task of something steady")
            .unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(count > 0, "{name}: never asked");
        count
    }
}
