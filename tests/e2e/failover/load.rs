//! Many clients read and create what two of three servers have: one of these and then its proxy are killed meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::peers::Three;
use crate::routing::real_apiservers::LONGER;
use testkit::client::Client;
use testkit::cluster::{HPAS, HPAS_IN_DEFAULT, LONG, lists};
use testkit::kube::KubeApiServer;
use testkit::wait::eventually;

const READERS: usize = 16;
const READS: usize = 4_000;
const WRITERS: usize = 8;
const CREATES: usize = 1_000;

/// What a client was told of one create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ScriptedAnswer {
    Created,
    /// 503 without `Retry-After`, or an answer that broke off after its header: it may have happened.
    MaybeCreated,
    /// 503 with `Retry-After`: client-go sends it again.
    Retry,
    /// Anything else, or no answer.
    Else,
}

fn hpa(number: usize) -> String {
    json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
        // A prefix for each: of 2,000 names with one prefix two are alike in every seventh run, which is a 500.
        "metadata": {"generateName": format!("load-{number}-"), "labels": {"number": number.to_string()}},
        "spec": {"maxReplicas": 1, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "load"}}})
    .to_string()
}

async fn read(client: &Client, done: &AtomicUsize) -> (usize, usize) {
    let (mut failed, mut broken) = (0, 0);
    for _ in 0..READS / READERS {
        match client.try_open("GET", &format!("{HPAS}?limit=5"), "").await {
            Ok(answer) if answer.status == 200 => {
                broken += usize::from(answer.collect().await.is_err());
            }
            Ok(answer) => {
                failed += 1;
                println!("read: {:?}", answer.collect().await.map(|it| it.text()));
            }
            Err(error) => {
                failed += 1;
                println!("read: {error:#}");
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    (failed, broken)
}

async fn create(client: &Client, first: usize, done: &AtomicUsize) -> Vec<(usize, ScriptedAnswer)> {
    let mut outcomes = Vec::new();
    for number in first..first + CREATES / WRITERS {
        let answer = client.try_open("POST", HPAS_IN_DEFAULT, hpa(number)).await;
        let said = match answer {
            Ok(answer) if answer.status == 201 => match answer.collect().await {
                Ok(_) => ScriptedAnswer::Created,
                Err(_) => ScriptedAnswer::MaybeCreated,
            },
            Ok(answer) if answer.status == 503 && answer.header("retry-after").is_empty() => {
                ScriptedAnswer::MaybeCreated
            }
            Ok(answer) if answer.status == 503 => ScriptedAnswer::Retry,
            Ok(answer) => {
                println!("create {number}: {:?}", answer.collect().await);
                ScriptedAnswer::Else
            }
            Err(error) => {
                println!("create {number}: {error:#}");
                ScriptedAnswer::Else
            }
        };
        outcomes.push((number, said));
        done.fetch_add(1, Ordering::Relaxed);
    }
    outcomes
}

/// How many objects there are by the number that their create had.
async fn existing(admin: &Client) -> BTreeMap<usize, usize> {
    let answer = admin.get(HPAS_IN_DEFAULT).await;
    assert_eq!(answer.code(), 200, "{}", answer.text());
    let mut found = BTreeMap::new();
    for object in answer.json()["items"].as_array().unwrap() {
        let number: &Value = &object["metadata"]["labels"]["number"];
        let number: usize = number.as_str().unwrap().parse().unwrap();
        *found.entry(number).or_default() += 1;
    }
    found
}

/// Clients of A's proxy, each on a connection of its own.
struct Load {
    readers: Vec<JoinHandle<(usize, usize)>>,
    writers: Vec<JoinHandle<Vec<(usize, ScriptedAnswer)>>>,
    done: Arc<AtomicUsize>,
}

impl Load {
    fn start(admin: &Client) -> Self {
        let done = Arc::new(AtomicUsize::new(0));
        let readers = (0..READERS).map(|_| {
            let (client, done) = (admin.fresh(), done.clone());
            tokio::spawn(async move { read(&client, &done).await })
        });
        let readers = readers.collect();
        let writers = (0..WRITERS).map(|writer| {
            let (client, done) = (admin.fresh(), done.clone());
            let first = writer * (CREATES / WRITERS);
            tokio::spawn(async move { create(&client, first, &done).await })
        });
        let writers = writers.collect();
        Self {
            readers,
            writers,
            done,
        }
    }

    /// Waits until so many quarters of all have been asked.
    async fn reached(&self, part: usize) {
        let wanted = (READS + CREATES) * part / 4;
        eventually("enough was asked", LONGER * 2, async || {
            self.done.load(Ordering::Relaxed) >= wanted
        })
        .await;
    }

    /// How many reads failed and how many broke off, and what was said to each create.
    async fn end(self) -> (usize, usize, Vec<(usize, ScriptedAnswer)>) {
        let (mut failed, mut broken) = (0, 0);
        for reader in self.readers {
            let (more_failed, more_broken) = reader.await.unwrap();
            failed += more_failed;
            broken += more_broken;
        }
        let mut outcomes = Vec::new();
        for writer in self.writers {
            outcomes.extend(writer.await.unwrap());
        }
        (failed, broken, outcomes)
    }
}

/// And clients do not notice.
pub async fn a_server_and_its_proxy_die(three: &mut Three<KubeApiServer>) {
    let admin = three.admin();
    let load = Load::start(&admin);
    load.reached(1).await;
    three.servers[1].kill();
    load.reached(2).await;
    three.proxies[1].kill();

    let (failed, broken, outcomes) = load.end().await;
    let existing = existing(&admin).await;
    let count = |wanted| outcomes.iter().filter(|(_, said)| *said == wanted).count();
    println!(
        "{READS} reads: {failed} failed before a response header, {broken} broke off after one; {CREATES} creates: \
         {} created, {} may have happened, {} to be sent again, {} else; {} objects",
        count(ScriptedAnswer::Created),
        count(ScriptedAnswer::MaybeCreated),
        count(ScriptedAnswer::Retry),
        count(ScriptedAnswer::Else),
        existing.values().sum::<usize>(),
    );

    assert_eq!(failed, 0, "reads that failed before a response header");
    for (number, said) in &outcomes {
        let objects = existing.get(number).copied().unwrap_or_default();
        let possible = match said {
            ScriptedAnswer::Created => objects == 1,
            ScriptedAnswer::MaybeCreated => objects <= 1,
            ScriptedAnswer::Retry => objects == 0,
            ScriptedAnswer::Else => false,
        };
        assert!(possible, "create {number}: {said:?}, and {objects} objects");
    }
    // Each of the writers can have had one request on its way at each of the two deaths.
    assert!(count(ScriptedAnswer::MaybeCreated) <= 2 * WRITERS);
    assert_eq!(count(ScriptedAnswer::Retry), 0, "C could have served them");
    eventually("B is gone for A", LONG, async || {
        let status = three.proxies[0].statusz().await;
        !lists(&status, "b", "autoscaling")
    })
    .await;
}
