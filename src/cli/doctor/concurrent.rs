//! Runs probes concurrently.

use tokio::task::JoinSet;

/// Outputs of all futures, in their order. One that panics is left out.
pub async fn join_all<F>(probes: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for (index, probe) in probes.into_iter().enumerate() {
        tasks.spawn(async move { (index, probe.await) });
    }
    let mut outputs = Vec::with_capacity(tasks.len());
    while let Some(output) = tasks.join_next().await {
        outputs.extend(output);
    }
    outputs.sort_by_key(|(index, _)| *index);
    outputs.into_iter().map(|(_, output)| output).collect()
}
