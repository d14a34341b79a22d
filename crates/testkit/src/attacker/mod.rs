//! An attacker by script: everybody who could knock at the proxy's port claims to be the cluster's administrator, and a
//! peer, in all spellings; what the kube-apiserver behind it accepted is read in its audit log.
//!
//! Included by the end-to-end tests, which assert every row, and a program of its own: `cargo run --example attacker`.

mod spellings;
mod stage;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde_json::Value;

use crate::client::Client;
use crate::raw::{self, Outcome};
use spellings::{Field, identities, marks};
use stage::Stage;

/// Only the administrator may list this.
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
/// What the apiserver here does not serve, and another one that cannot be reached does: only what a peer sent on is
/// asked of the apiserver here.
const ELSEWHERE: &str = "/apis/autoscaling/v1/horizontalpodautoscalers";

/// Everybody: what they show, and their token.
const CALLERS: [(&str, Option<&str>, Option<&str>); 9] = [
    ("nobody", None, None),
    ("a token", None, Some("tok-bob")),
    ("a user's certificate", Some("alice"), None),
    ("a peer's name, of the users' CA", Some("users-peer"), None),
    ("a peer's name, of another CA", Some("rogue-peer"), None),
    ("another name, of the peers' CA", Some("not-a-peer"), None),
    ("a peer's, expired", Some("expired-peer"), None),
    (
        "a peer's, expired, and a token",
        Some("expired-peer"),
        Some("tok-bob"),
    ),
    ("a true peer", Some("front-proxy-client"), None),
];

/// What came of all attempts of one caller over one version of HTTP.
#[derive(Debug)]
pub struct Row {
    pub who: &'static str,
    pub version: &'static str,
    /// How often the apiserver authenticated it as a user, and its answer; `-`: the request did not reach it.
    pub accepted: BTreeMap<String, usize>,
    /// How many reroute marks were trusted, and of how many.
    pub marks: (usize, usize),
}

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accepted: Vec<_> = self
            .accepted
            .iter()
            .map(|(what, count)| format!("{count} x {what}"))
            .collect();
        let (accepted_marks, marks) = self.marks;
        let accepted = accepted.join(", ");
        write!(
            out,
            "{} | {} | {accepted} | {accepted_marks} of {marks}",
            self.who, self.version
        )
    }
}

/// One line a row.
pub fn table(rows: &[Row]) -> String {
    let mut text =
        "who | HTTP | what the apiserver accepted, and answered | reroute marks accepted\n"
            .to_owned();
    for row in rows {
        text += &format!("{row}\n");
    }
    text
}

/// One attempt: its mark in the audit log, and the answer's code, if there was an answer.
struct Attempt {
    mark: String,
    code: Option<u16>,
}

/// Starts a cluster with `binary` in front of it, and attacks it.
pub async fn attack(binary: &Path) -> Vec<Row> {
    let stage = Stage::build(binary).await;
    let mut attempts = Vec::new();
    for (number, (who, cert, token)) in CALLERS.into_iter().enumerate() {
        let client = match cert {
            Some(cert) => stage.client().cert(cert),
            None => stage.client(),
        };
        for (version, ask) in [("HTTP/1.1", false), ("HTTP/2", true)] {
            let label = format!("{number}-{}", version.len());
            let answers = ask_all(
                &client,
                ask,
                token,
                SECRETS,
                &format!("who-{label}"),
                identities(),
            )
            .await;
            let sent = ask_all(
                &client,
                ask,
                token,
                ELSEWHERE,
                &format!("hop-{label}"),
                marks(),
            )
            .await;
            attempts.push((who, version, answers, sent));
        }
    }
    // The apiserver has logged its earlier answers before this one.
    let events = stage.audited().await;
    let event = |attempt: &Attempt| {
        let mark = format!("mark={}&", attempt.mark);
        events.iter().find(|event| {
            event["requestURI"]
                .as_str()
                .is_some_and(|uri| uri.contains(&mark))
        })
    };
    let rows = attempts.iter().map(|(who, version, answers, sent)| {
        let mut accepted = BTreeMap::new();
        for attempt in answers {
            *accepted
                .entry(outcome(attempt, event(attempt)))
                .or_default() += 1;
        }
        Row {
            who,
            version,
            accepted,
            marks: (
                sent.iter()
                    .filter(|attempt| event(attempt).is_some())
                    .count(),
                sent.len(),
            ),
        }
    });
    rows.collect()
}

/// Whom the apiserver took it for.
fn outcome(attempt: &Attempt, event: Option<&Value>) -> String {
    let Some(event) = event else {
        return match attempt.code {
            Some(code) => format!("- {code}"),
            None => "- refused".to_owned(),
        };
    };
    let groups = event["user"]["groups"].as_array().into_iter().flatten();
    let groups: Vec<_> = groups.filter_map(Value::as_str).collect();
    let user = event["user"]["username"].as_str().unwrap_or_default();
    let code = &event["responseStatus"]["code"];
    assert_eq!(attempt.code.map(u64::from), code.as_u64(), "{event}");
    format!("{user} [{}] {code}", groups.join(" "))
}

/// Asks for `path` once with each of `spellings`.
async fn ask_all(
    client: &Client,
    http2: bool,
    token: Option<&str>,
    path: &str,
    label: &str,
    spellings: Vec<Vec<Field>>,
) -> Vec<Attempt> {
    let mut attempts = Vec::new();
    for (number, mut fields) in spellings.into_iter().enumerate() {
        let mark = format!("{label}-{number}");
        let target = format!("{path}?mark={mark}&limit=1");
        if let Some(token) = token {
            let name = if http2 {
                "authorization"
            } else {
                "Authorization"
            };
            fields.push((name.to_owned(), format!("Bearer {token}")));
        }
        let code = match http2 {
            false => over_http1(client, &target, &fields).await,
            true => over_http2(client, &target, &fields).await,
        };
        attempts.push(Attempt { mark, code });
    }
    attempts
}

async fn over_http1(client: &Client, target: &str, fields: &[Field]) -> Option<u16> {
    let listed = fields.iter().any(|(name, _)| name == "Connection");
    let mut head = format!("GET {target} HTTP/1.1\r\nHost: x\r\n");
    for (name, value) in fields {
        head += &format!("{name}: {value}\r\n");
    }
    if !listed {
        head += "Connection: close\r\n";
    }
    let answer = raw::http1(client, format!("{head}\r\n").as_bytes()).await;
    raw::codes(&answer).first().copied()
}

async fn over_http2(client: &Client, target: &str, fields: &[Field]) -> Option<u16> {
    let pseudo = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "x"),
        (":path", target),
    ];
    let fields = fields
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let fields: Vec<_> = pseudo
        .into_iter()
        .chain(fields)
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
        .collect();
    match raw::http2(client, &fields, None).await {
        Outcome::Answered(code) => Some(code),
        Outcome::Refused => None,
    }
}
