//! Looking at several things at once.

use tokio::task::JoinSet;

/// What all of them come to, in their order. One that panics is left out.
pub async fn together<F>(looks: impl IntoIterator<Item = F>) -> Vec<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for (index, look) in looks.into_iter().enumerate() {
        tasks.spawn(async move { (index, look.await) });
    }
    let mut seen = Vec::with_capacity(tasks.len());
    while let Some(outcome) = tasks.join_next().await {
        seen.extend(outcome);
    }
    seen.sort_by_key(|(index, _)| *index);
    seen.into_iter().map(|(_, outcome)| outcome).collect()
}
