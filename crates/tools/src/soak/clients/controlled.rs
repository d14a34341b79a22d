//! What controllers do, of all versions at the same time, with objects that only some apiservers serve: whether the garbage
//! collector takes what such an object owns for nobody's, and whether such an object is left in a namespace that is gone.

use std::time::Duration;

use etcd_client::GetOptions;
use serde_json::{Value, json};
use testkit::etcd::Access;
use tokio::time::{sleep, timeout};

use crate::book::{Exchange, Until};
use crate::clients::Session;
use crate::kinds::USERS;
use crate::partly::Resource;
use crate::rules::{Expected, Verdict, read};

const NAMESPACE: &str = USERS[0].namespace;
const NAMESPACES: &str = "/api/v1/namespaces";
const OWNED: &str = "owned";
const PAUSE: Duration = Duration::from_millis(500);
/// In which a garbage collector looks for the owner of what is new.
const LOOK: Duration = Duration::from_secs(3);
/// Of a member of etcd.
const SILENCE: Duration = Duration::from_secs(5);
/// For a namespace to go, while an apiserver is exchanged.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the two clients ask: for what all apiservers serve, and for what only some do.
pub struct Sessions {
    pub all: Session,
    pub newer: Session,
    pub resource: Resource,
}

/// Creates owners, and a Secret of each at once: a controller that does not know the owner yet asks for it.
pub async fn owners(mut sessions: Sessions) {
    let resource = sessions.resource;
    let secrets = format!("{NAMESPACES}/{NAMESPACE}/secrets");
    let expected = Expected::Object {
        owner: OWNED.to_owned(),
    };
    let mut to_collect = 0;
    while !sessions.all.book.is_stopped() {
        sleep(PAUSE).await;
        let begun = sessions.all.book.now();
        let object = json!({"generateName": "owner-"});
        let Some(owner) = sessions.of_resource(NAMESPACE, &object).await else {
            continue;
        };
        let labels = json!({"owner": OWNED});
        let metadata = json!({"generateName": "owned-", "labels": labels, "ownerReferences": resource.owner(&owner)});
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata});
        if let Some(secret) = created(&mut sessions.all, &secrets, &secret).await {
            sleep(LOOK).await;
            let path = format!("{secrets}/{}", name(&secret));
            let exchange = sessions.all.ask("GET", &path, "").await;
            let verdict = match read(&expected, &exchange.attempts) {
                Verdict::NotFound(_) if !sessions.is_served_since(begun) => Verdict::Fine,
                Verdict::NotFound(_) => {
                    Verdict::Misled("collected, and its owner is there".to_owned())
                }
                verdict => verdict,
            };
            sessions.all.note(&exchange, verdict);
        }
        let owners = resource.collection(NAMESPACE);
        let path = format!("{owners}/{}?propagationPolicy=Background", name(&owner));
        let deleted = sessions.newer.ask("DELETE", &path, "").await;
        to_collect += usize::from(deleted.code() == Some(200));
    }
    judge_collected(&mut sessions.all, &secrets, to_collect).await;
}

/// Creates namespaces with an object in each, and deletes them.
pub async fn tenants(mut sessions: Sessions, etcd: Vec<Access>) {
    let resource = sessions.resource;
    let mut gone = 0;
    while !sessions.all.book.is_stopped() {
        sleep(PAUSE).await;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "going-"}});
        let Some(namespace) = created(&mut sessions.all, NAMESPACES, &namespace).await else {
            continue;
        };
        let namespace = name(&namespace);
        let object = json!({"name": "left"});
        let object = sessions.of_resource(namespace, &object).await;
        let prefix = resource.prefix(namespace);
        if object.is_some() && is_empty(&etcd, &prefix).await {
            let what = format!("{prefix} is not where etcd has it");
            sessions.all.book.violation(what);
        }
        let path = format!("{NAMESPACES}/{namespace}");
        let deleted = sessions.all.book.now();
        sessions.all.ask("DELETE", &path, "").await;
        let exchange = until_gone(&mut sessions.all, &path).await;
        if object.is_none() {
            continue;
        }
        let verdict = match exchange.code() {
            Some(404) if !sessions.is_served_since(deleted) => Verdict::Fine,
            Some(404) => match is_empty(&etcd, &prefix).await {
                true => Verdict::Fine,
                false => Verdict::Misled(format!("{} is left in etcd", resource.plural)),
            },
            _ => Verdict::Failed(format!("a namespace that does not go in {PATIENCE:?}")),
        };
        gone += usize::from(verdict == Verdict::Fine);
        sessions.all.note(&exchange, verdict);
    }
    if gone == 0 {
        let what = "the namespace controllers did nothing".to_owned();
        sessions.all.book.violation(what);
    }
}

impl Sessions {
    /// A new object of the resource, if an apiserver can make it.
    async fn of_resource(&mut self, namespace: &str, metadata: &Value) -> Option<Value> {
        let from = self.newer.book.now();
        let path = self.resource.collection(namespace);
        let object = self.resource.object(metadata).to_string();
        let exchange = self.newer.ask("POST", &path, &object).await;
        if exchange.code() == Some(404) && self.is_served_since(from) {
            let what = format!("a false 404: {}", exchange.describe());
            self.newer.book.violation(what);
        }
        exchange.created().cloned()
    }

    fn is_served_since(&self, from: Duration) -> bool {
        let minors = self.newer.minors.as_ref();
        minors.is_none_or(|minors| self.all.book.is_answerable(minors, from, Until::Gone))
    }
}

async fn created(session: &mut Session, path: &str, object: &Value) -> Option<Value> {
    let exchange = session.ask("POST", path, &object.to_string()).await;
    exchange.created().cloned()
}

/// The last answer: a 404, or what is said after the patience.
async fn until_gone(session: &mut Session, path: &str) -> Exchange {
    let from = session.book.now();
    loop {
        let exchange = session.ask("GET", path, "").await;
        if exchange.code() == Some(404) || session.book.now() - from > PATIENCE {
            return exchange;
        }
        sleep(PAUSE).await;
    }
}

/// Garbage collectors that collect nothing prove nothing. `of`: how many owners were deleted.
async fn judge_collected(session: &mut Session, secrets: &str, of: usize) {
    let path = format!("{secrets}?labelSelector=owner%3D{OWNED}");
    let exchange = session.ask("GET", &path, "").await;
    let left = exchange
        .answer()
        .and_then(|answer| answer.body["items"].as_array());
    let left = left.map_or(of, Vec::len);
    let book = &session.book;
    book.say(&format!(
        "{of} owners were deleted, and what {left} of them owned is there"
    ));
    if left >= of {
        book.violation("the garbage collectors did nothing".to_owned());
    }
}

async fn is_empty(etcd: &[Access], prefix: &str) -> bool {
    for member in etcd {
        let options = GetOptions::new().with_prefix().with_keys_only();
        let asked = async {
            let mut client = member.client().await.ok()?;
            client.get(prefix, Some(options)).await.ok()
        };
        if let Ok(Some(answer)) = timeout(SILENCE, asked).await {
            return answer.kvs().is_empty();
        }
    }
    panic!("no member of etcd answers");
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}
