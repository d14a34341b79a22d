//! Reads what only some of the versions serve, and writes fields that only some keep.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;

use crate::book::Until;
use crate::clients::Session;
use crate::kinds::{JOBS, KINDS, USERS};
use crate::partly::{Api, Field};
use crate::random::Random;
use crate::rules::{Expected, Verb, Verdict, read, write};

const PAUSE: Duration = Duration::from_millis(200);
const NAMESPACE: &str = USERS[0].namespace;

/// While no server is up that serves it, "no such resource" is true, and 503 what is said if one may come or come back.
pub async fn reads(mut session: Session, apis: Vec<Api>, mut random: Random) {
    while !session.book.is_stopped() {
        let api = &apis[random.below(apis.len())];
        session.minors = Some(api.minors.clone());
        let exchange = session.ask("GET", &api.path(NAMESPACE), "").await;
        let expected = Expected::Of {
            group_version: api.group_version,
        };
        let is_served = || {
            let (book, from) = (&session.book, exchange.last);
            book.is_answerable(&api.minors, from, Until::Gone)
        };
        let verdict = match read(&expected, &exchange.attempts) {
            Verdict::NotFound(_) if !is_served() => Verdict::Fine,
            verdict => verdict,
        };
        session.note(&exchange, verdict);
        tokio::time::sleep(PAUSE).await;
    }
}

/// As clients of the newest version that is up (`writers`, by their minor versions). While no server is up that knows a field,
/// nobody can keep it. `cleaner` deletes what was written. `goes_to_oldest`: the proxies prefer the oldest servers.
pub async fn writes(
    mut writers: BTreeMap<u32, Session>,
    mut cleaner: Session,
    fields: Vec<Field>,
    goes_to_oldest: bool,
    mut random: Random,
) {
    let kind = &KINDS[JOBS];
    while !cleaner.book.is_stopped() {
        let newest = cleaner.book.newest();
        let Some(session) = newest.and_then(|minor| writers.get_mut(&minor)) else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let field = fields[random.below(fields.len())];
        let job = field.add_to(kind.object(&json!({"generateName": "fields-"})));
        let path = kind.collection(NAMESPACE);
        let exchange = session.ask("POST", &path, &job.to_string()).await;
        let (_, mut verdict) = write(Verb::Create, &exchange.attempts);
        let created = exchange.created();
        let is_known = || {
            let minors = field.since..u32::MAX;
            let (book, from) = (&session.book, exchange.last);
            book.is_answerable(&minors, from, Until::Stopping)
        };
        let is_dropped = created.is_some_and(|job| !field.is_in(job));
        if is_dropped && is_known() {
            let is_older_up = || cleaner.book.has_older(field.since, exchange.from);
            verdict = match goes_to_oldest && is_older_up() {
                true => Verdict::DroppedAsSet,
                false => Verdict::Dropped(format!("a Job without its {}", field.name)),
            };
        }
        session.note(&exchange, verdict);
        let name = created.and_then(|job| job["metadata"]["name"].as_str());
        if let Some(name) = name {
            let path = kind.path(NAMESPACE, name) + "?propagationPolicy=Background";
            let exchange = cleaner.ask("DELETE", &path, "").await;
            let (_, verdict) = write(Verb::Delete, &exchange.attempts);
            cleaner.note(&exchange, verdict);
        }
        tokio::time::sleep(PAUSE).await;
    }
}
