//! What last bookmarks are made from, while a member of etcd or a server is alive and does not do its work.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use kube_interop_proxy::cluster::connector::{Connector, EtcdTls};
use kube_interop_proxy::config::EtcdConfig;
use kube_interop_proxy::kube::gvr::Gvr;
use kube_interop_proxy::watches::change_logs::ChangeLogs;
use kube_interop_proxy::watches::prover::{AskServer, NoAnswer, Prover};
use kube_interop_proxy::watches::stored_here::{self, Question, StoredHere};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use testkit::cluster::LONG;
use testkit::fake_etcd::FakeEtcd;
use testkit::wait::eventually;

const REVISION: i64 = 100;
const VERSION: &str = "3.6.0";

fn connector(members: &[&FakeEtcd]) -> Connector {
    let config = EtcdConfig {
        endpoints: members.iter().map(|member| member.endpoint()).collect(),
        ca_file: None,
        client: None,
        prefix: "/registry".to_owned(),
        other_resources: Vec::new(),
    };
    Connector::new(&config, EtcdTls::default())
}

/// It answers requests, and its watches are dead.
#[tokio::test]
async fn a_watch_that_is_silent_is_opened_at_another_member() {
    const PODS: &str = "/registry/pods/";
    let silent = FakeEtcd::start(VERSION, REVISION).await;
    let other = FakeEtcd::start(VERSION, REVISION).await;
    silent.mute();
    let (change_logs, opened) = ChangeLogs::new();
    let running = tokio::spawn(change_logs.run(connector(&[&silent, &other]), opened));
    let log = change_logs.register(PODS, REVISION - 5, 0).unwrap();
    timeout(LONG, log.complete_through(0)).await.unwrap();
    for member in [&silent, &other] {
        assert_eq!(member.asked(PODS).watched_from, [REVISION - 5]);
    }
    running.abort();
}

/// Asked for widgets, it answers only once it may, and then in vain. Of other resources it has none.
struct HangingWebhook {
    asked: AtomicUsize,
    may_answer: Semaphore,
}

struct Server(Arc<HangingWebhook>);

impl AskServer for Server {
    async fn get(
        &self,
        _: SocketAddr,
        path: &str,
        _: &'static str,
    ) -> Result<Option<Bytes>, NoAnswer> {
        if path.contains("widgets") {
            self.0.asked.fetch_add(1, Ordering::Relaxed);
            self.0.may_answer.acquire().await.unwrap().forget();
            return Err(NoAnswer::NotNow);
        }
        let list = r#"{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"100"},"items":[]}"#;
        Ok(Some(Bytes::from_static(list.as_bytes())))
    }
}

#[tokio::test]
async fn what_is_asked_in_vain_keeps_nothing_new_waiting() {
    /// More than are asked at a time.
    const HANGING: usize = 12;
    let etcd = FakeEtcd::start(VERSION, REVISION).await;
    let (stored_here, questions) = StoredHere::new();
    let stored_here = Arc::new(stored_here);
    let webhook = Arc::new(HangingWebhook {
        asked: AtomicUsize::new(0),
        may_answer: Semaphore::new(HANGING),
    });
    let running = tokio::spawn(stored_here::run(
        stored_here.clone(),
        questions,
        connector(&[&etcd]),
        Prover(Server(webhook.clone())),
    ));
    let server = SocketAddr::from(([127, 0, 0, 1], 6443));
    let ask = |resource: &str| {
        let root = format!("/registry/example.com/{resource}/");
        let stored = stored_here.ask(Question {
            server,
            process: (0, 1),
            root: root.as_str().into(),
            resource: Gvr {
                group: "example.com".into(),
                version: "v1".into(),
                resource: resource.into(),
                subresource: String::new(),
            },
            custom: true,
        });
        stored.unwrap()
    };
    for number in 0..HANGING {
        ask(&format!("widgets{number}"));
    }
    // Each once, and then some of them again.
    eventually("they are asked again", LONG, async || {
        webhook.asked.load(Ordering::Relaxed) > HANGING
    })
    .await;
    let gadgets = ask("gadgets");
    timeout(LONG, gadgets.answered(false)).await.unwrap();
    assert_eq!(gadgets.proof().stored_here, Some(true));
    running.abort();
}
