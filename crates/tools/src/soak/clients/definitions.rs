//! Defines a custom resource, uses it through all proxies, and deletes its definition.

use serde_json::json;

use crate::clients::Session;
use crate::kinds::{DEFINITIONS, definition};
use crate::rules::{Expected, Verb, Verdict, write};

const GROUP: &str = "churn.test";
const READS: usize = 15;
/// Attempts until the definition is established.
const MOST: usize = 200;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

pub async fn churn(session: &mut Session, number: usize) {
    let (plural, kind) = (format!("things{number}"), format!("Thing{number}"));
    let body = definition(GROUP, &plural, &kind).to_string();
    if !done(session, "POST", DEFINITIONS, &body, Verb::Create).await {
        return;
    }
    let collection = format!("/apis/{GROUP}/v1/namespaces/default/{plural}");
    if create(session, &kind, &collection).await {
        let owner = "soak".to_owned();
        let expected = Expected::Object { owner };
        for _ in 0..READS {
            session.client.reconnect().await;
            session.read(&format!("{collection}/it"), &expected).await;
        }
    }
    let path = format!("{DEFINITIONS}/{plural}.{GROUP}");
    done(session, "DELETE", &path, "", Verb::Delete).await;
}

async fn done(session: &mut Session, method: &str, path: &str, body: &str, verb: Verb) -> bool {
    let exchange = session.ask(method, path, body).await;
    let (_, verdict) = write(verb, &exchange.attempts);
    let fine = verdict == Verdict::Fine;
    session.note(&exchange, verdict);
    fine
}

/// Until it is established, "no such resource" is true.
async fn create(session: &mut Session, kind: &str, collection: &str) -> bool {
    let metadata = json!({"name": "it", "labels": {"owner": "soak"}});
    let object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": metadata});
    for _ in 0..MOST {
        let exchange = session.ask("POST", collection, &object.to_string()).await;
        match exchange.code() {
            Some(404) => tokio::time::sleep(PAUSE).await,
            _ => {
                let (_, verdict) = write(Verb::Create, &exchange.attempts);
                let fine = verdict == Verdict::Fine;
                session.note(&exchange, verdict);
                return fine;
            }
        }
    }
    let what = "a definition that is never established".to_owned();
    session.book.violation(what);
    false
}
