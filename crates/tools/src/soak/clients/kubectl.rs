//! kubectl of one version, as a person runs it who has not run it before: it finds its resources by discovery.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use testkit::kubectl::Kubectl;
use tokio::time::sleep;

use crate::book::{Book, Exchange};
use crate::kinds::{ANCHOR, USERS};
use crate::random::Random;
use crate::rules::Verdict;

const NAMESPACE: &str = USERS[0].namespace;
const PAUSE: Duration = Duration::from_secs(5);
/// In `batch/v1` only from 1.21 on.
const CRON_JOBS: &[&str] = &["get", "cronjobs", "--output=yaml"];
/// In which every proxy knows that an apiserver has gone.
const KNOWN: Duration = Duration::from_secs(20);
/// In which every proxy has read what the first apiserver of a version says of what only that one serves. Until then its names
/// are listed, without kinds.
const READ: Duration = Duration::from_secs(2);
/// What all the versions serve, in one API version or another.
const COMMANDS: [&[&str]; 5] = [
    &["get", "configmaps", ANCHOR],
    &["get", "jobs,widgets"],
    &["describe", "horizontalpodautoscalers", ANCHOR],
    CRON_JOBS,
    &["apply", "--filename=-"],
];

/// `fails`: it may fail while something is broken.
pub async fn run(name: String, kubectl: Kubectl, book: Arc<Book>, mut random: Random, fails: bool) {
    let metadata = json!({"name": name.replace(' ', "-")});
    let applied = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata}).to_string();
    while !book.is_stopped() {
        kubectl.forget();
        let command = random.one(&COMMANDS);
        let from = book.now();
        let options = ["--namespace", NAMESPACE, "--request-timeout=60s"];
        let arguments = [command, &options[..]].concat();
        let output = kubectl.output_with_input(&arguments, &applied).await;
        let said = |what| command == CRON_JOBS && output.stderr.contains(what);
        // The API version that discovery named may go with the last apiserver of a version.
        let may_fail = said("no matches for kind")
            && book.has_got_a_version(from.saturating_sub(READ))
            || said("Error from server") && book.has_lost_a_version(from.saturating_sub(KNOWN));
        let verdict = match output.success {
            true => Verdict::Fine,
            false if may_fail => Verdict::Failed(output.stderr),
            false if fails => {
                let what = format!("{name}: {}: {}", command.join(" "), output.stderr.trim());
                book.trouble(from, what);
                Verdict::Failed(output.stderr)
            }
            false => Verdict::Misled(output.stderr),
        };
        let exchange = Exchange {
            what: command.join(" "),
            from,
            last: from,
            attempts: Vec::new(),
        };
        book.request(&name, &exchange, verdict);
        sleep(PAUSE).await;
    }
}
