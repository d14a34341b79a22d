//! Watches control tasks for panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinSet;

/// Sets `control_panicked` when one of these tasks ends by a panic: what it kept up to date stays as it is. `/livez` fails
/// then; requests are still served by what is known. The tasks end with the returned set.
pub(super) fn watched(mut control: JoinSet<()>, control_panicked: Arc<AtomicBool>) -> JoinSet<()> {
    let mut watcher = JoinSet::new();
    watcher.spawn(async move {
        while let Some(ended) = control.join_next().await {
            if ended.is_err_and(|error| error.is_panic()) {
                tracing::error!("a control task has panicked, this proxy has to be restarted");
                control_panicked.store(true, Ordering::Relaxed);
            }
        }
    });
    watcher
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn the_panic_of_one_task_is_told_and_the_others_go_on() {
        let control_panicked = Arc::new(AtomicBool::new(false));
        let (going_on, mut goes_on) = mpsc::channel(1);
        let mut control = JoinSet::new();
        control.spawn(async move { while going_on.send(()).await.is_ok() {} });
        control.spawn(std::future::ready(()));
        let mut watcher = watched(control, control_panicked.clone());
        goes_on.recv().await.unwrap();
        assert!(!control_panicked.load(Ordering::Relaxed));

        watcher.abort_all();
        let ended = watcher.join_next().await.unwrap();
        assert!(ended.is_err_and(|error| error.is_cancelled()));
        while goes_on.recv().await.is_some() {}

        let mut control = JoinSet::new();
        control.spawn(async { panic!("of a test") });
        let mut watcher = watched(control, control_panicked.clone());
        watcher.join_next().await.unwrap().unwrap();
        assert!(control_panicked.load(Ordering::Relaxed));
    }
}
