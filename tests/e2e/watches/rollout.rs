//! A rolling restart of three real kube-apiservers v1.20.2 with 500 kube-rs watchers of a quiet resource, while
//! another resource is written: the apiservers count how often the watchers list again, with and without the proxies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::PodTemplate;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::routing::real_apiservers::{LONGER, options};
use testkit::balancer::Balancer;
use testkit::client::Client;
use testkit::cluster::{Ground, LONG};
use testkit::kube::KubeApiServer;
use testkit::proxy::{Proxy, Until};
use testkit::wait::eventually;

const CLIENTS: usize = 25;
const OF_A_CLIENT: usize = 20;
const WATCHERS: usize = CLIENTS * OF_A_CLIENT;
const QUIET: &str = "/api/v1/namespaces/default/podtemplates";
const BUSY: &str = "/api/v1/namespaces/default/configmaps";
/// Between two writes of what is busy.
const PACE: Duration = Duration::from_millis(50);
/// Lists of the quiet resource, and nothing else.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  verbs: [list]
  resources: [{group: \"\", resources: [podtemplates]}]
- level: None
";

/// Three apiservers that write down each list.
struct Servers {
    each: Vec<KubeApiServer>,
    ground: Ground,
}

impl Servers {
    async fn start() -> Self {
        let ground = Ground::new().await;
        let policy = ground.dir.path().join("audit.yaml");
        std::fs::write(&policy, AUDIT).unwrap();
        let server = |host: &'static str| {
            let log = ground.dir.path().join(format!("audit-{host}.log"));
            let options = options(&ground, host)
                .arg(&format!("--audit-policy-file={}", policy.display()))
                .arg(&format!("--audit-log-path={}", log.display()))
                .arg("--shutdown-delay-duration=1s");
            KubeApiServer::start(options, &ground.pki)
        };
        // The first writes what all need.
        let a = server("cp-a").await;
        let (b, c) = tokio::join!(server("cp-b"), server("cp-c"));
        let each = vec![a, b, c];
        Self { each, ground }
    }

    /// Lists of the quiet resource at all three, restarts or not.
    fn lists(&self) -> usize {
        let of = |host| {
            let log = self.ground.dir.path().join(format!("audit-{host}.log"));
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let events = text.lines().map(|line| serde_json::from_str(line).unwrap());
            let is_list = |event: &Value| {
                event["verb"] == "list" && event["objectRef"]["resource"] == "podtemplates"
            };
            events.filter(is_list).count()
        };
        ["cp-a", "cp-b", "cp-c"].into_iter().map(of).sum()
    }

    /// Watches of the quiet resource at all three.
    async fn watches(&self) -> f64 {
        let mut watches = 0.0;
        for server in &self.each {
            let text = server.admin().fresh().get("/metrics").await.text();
            let of_quiet = text.lines().filter(|line| {
                line.starts_with("apiserver_longrunning_gauge{")
                    && line.contains("resource=\"podtemplates\"")
            });
            let values = of_quiet.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            watches += values.sum::<f64>();
        }
        watches
    }
}

/// What watchers were told.
#[derive(Default)]
struct Notifications {
    listed: AtomicUsize,
    /// 410.
    expired: AtomicUsize,
    /// What else went wrong, and how often.
    errors: Mutex<BTreeMap<String, usize>>,
    /// By watcher and name of the object.
    seen: Mutex<BTreeMap<(usize, String), usize>>,
}

impl Notifications {
    fn event(&self, watcher: usize, event: Result<Event<PodTemplate>, watcher::Error>) {
        match event {
            Ok(Event::InitDone) => _ = self.listed.fetch_add(1, Ordering::Relaxed),
            Ok(Event::Apply(object) | Event::Delete(object)) => {
                let key = (watcher, object.name_any());
                *self.seen.lock().unwrap().entry(key).or_default() += 1;
            }
            Ok(Event::Init | Event::InitApply(_)) => {}
            Err(watcher::Error::WatchError(status)) if status.code == 410 => {
                self.expired.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                let kind = format!("{error}: {error:?}");
                let kind = kind.chars().take(160).collect();
                *self.errors.lock().unwrap().entry(kind).or_default() += 1;
            }
        }
    }

    /// How many watchers saw an object just so often.
    fn saw(&self, name: &str) -> BTreeMap<usize, usize> {
        let seen = self.seen.lock().unwrap();
        let mut counts = BTreeMap::new();
        for watcher in 0..WATCHERS {
            let times = seen.get(&(watcher, name.to_owned())).copied();
            *counts.entry(times.unwrap_or_default()).or_default() += 1;
        }
        counts
    }
}

/// Hundreds of watchers, of which some share a client.
struct Watchers {
    notifications: Arc<Notifications>,
    _tasks: JoinSet<()>,
}

impl Watchers {
    async fn start(balancer: &Balancer, ground: &Ground) -> Self {
        let notifications = Arc::new(Notifications::default());
        let mut tasks = JoinSet::new();
        let mut shared = client(balancer, ground);
        for number in 0..WATCHERS {
            if number % OF_A_CLIENT == 0 {
                // One after the other: this is about restarts, not about how many can begin at once.
                eventually("the watchers before have listed", LONGER, async || {
                    notifications.listed.load(Ordering::Relaxed) == number
                })
                .await;
                shared = client(balancer, ground);
            }
            let notifications = notifications.clone();
            let api: Api<PodTemplate> = Api::namespaced(shared.clone(), "default");
            tasks.spawn(async move {
                let events = watcher(api, watcher::Config::default()).default_backoff();
                let mut events = std::pin::pin!(events);
                while let Some(event) = events.next().await {
                    notifications.event(number, event);
                }
            });
        }
        Self {
            notifications,
            _tasks: tasks,
        }
    }
}

fn client(balancer: &Balancer, ground: &Ground) -> kube::Client {
    let url = format!("https://{}", balancer.addr());
    let mut config = kube::Config::new(url.parse().unwrap());
    config.root_cert_file = Some(ground.pki.path("ca.crt"));
    config.tls_server_name = Some("kubernetes.default.svc".to_owned());
    config.auth_info.client_certificate = Some(ground.pki.file("admin.crt"));
    config.auth_info.client_key = Some(ground.pki.file("admin.key"));
    kube::Client::try_from(config).unwrap()
}

/// Writes steadily what is busy; what cannot be written is left.
async fn keep_busy(client: Client, written: Arc<AtomicUsize>) {
    let object =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "busy-"}});
    let object = object.to_string();
    loop {
        let answer = client.try_request("POST", BUSY, object.clone()).await;
        match answer.is_ok_and(|answer| answer.code() == 201) {
            true => _ = written.fetch_add(1, Ordering::Relaxed),
            false => client.reconnect().await,
        }
        tokio::time::sleep(PACE).await;
    }
}

async fn create(client: &Client, name: &str) {
    let object = json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name},
        "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let answer = client.request("POST", QUIET, object.to_string()).await;
    assert_eq!(answer.code(), 201, "{}", answer.text());
}

/// What came of one rolling restart.
struct Outcome {
    /// Beyond the first of each watcher.
    lists: usize,
    expired: usize,
    written: usize,
    errors: BTreeMap<String, usize>,
    /// How many watchers saw the object of afterwards so often.
    saw: BTreeMap<usize, usize>,
    took: Duration,
}

/// Watchers, then a restart of one node after the other, then one object.
async fn roll(servers: &mut Servers, proxies: &mut [Proxy], afterwards: &str) -> Outcome {
    let begin = Instant::now();
    let admin = |addr| Client::new(addr, &servers.ground.pki).cert("admin");
    let addresses: Vec<_> = match proxies.is_empty() {
        true => servers.each.iter().map(KubeApiServer::addr).collect(),
        false => proxies.iter().map(Proxy::addr).collect(),
    };
    let behind = addresses.into_iter().map(|addr| (addr, admin(addr)));
    let balancer = Balancer::start(behind.collect()).await;
    let all_ready = async || {
        eventually("all get connections", LONG, async || balancer.ready() == 3).await;
    };
    all_ready().await;
    let before = servers.lists();
    let watchers = Watchers::start(&balancer, &servers.ground).await;
    let of_all = WATCHERS as f64;
    eventually("all watch", LONGER, async || {
        servers.watches().await == of_all
    })
    .await;
    assert_eq!(servers.lists() - before, WATCHERS);

    let written = Arc::new(AtomicUsize::new(0));
    let mut busy = JoinSet::new();
    busy.spawn(keep_busy(admin(balancer.addr()), written.clone()));
    let has_written = async |more: usize| {
        let goal = written.load(Ordering::Relaxed) + more;
        eventually("more is written", LONG, async || {
            written.load(Ordering::Relaxed) >= goal
        })
        .await;
    };
    for node in 0..servers.each.len() {
        has_written(5).await;
        if let Some(proxy) = proxies.get_mut(node) {
            assert!(proxy.terminate().await.success());
        }
        // While none of its clients is served by it.
        has_written(5).await;
        servers.each[node].restart().await;
        if let Some(proxy) = proxies.get_mut(node) {
            proxy.start_again().await;
        }
        all_ready().await;
    }
    eventually("all watch again", LONGER, async || {
        servers.watches().await == of_all
    })
    .await;
    busy.shutdown().await;

    create(&admin(balancer.addr()), afterwards).await;
    let notifications = &watchers.notifications;
    eventually("all see what happens then", LONGER, async || {
        let saw = notifications.saw(afterwards);
        (!saw.contains_key(&0))
            .then_some(())
            .ok_or(format!("{saw:?}"))
    })
    .await;
    Outcome {
        lists: servers.lists() - before - WATCHERS,
        expired: notifications.expired.load(Ordering::Relaxed),
        written: written.load(Ordering::Relaxed),
        errors: notifications.errors.lock().unwrap().clone(),
        saw: notifications.saw(afterwards),
        took: begin.elapsed(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_lets_nobody_list_again() {
    testkit::install_crypto_provider();
    let mut servers = Servers::start().await;
    create(servers.each[0].admin(), "quiet").await;
    let without = roll(&mut servers, &mut [], "after-without").await;

    let proxy = |id: &str, server: &KubeApiServer| {
        let options = servers.ground.proxy(id, server.addr());
        let options = options
            .set("watch.bookmarkOnShutdown", "true")
            .set("shutdown.delay", "1s")
            .set("shutdown.drain", "5s");
        Proxy::start(options.until(Until::Ready))
    };
    let each = &servers.each;
    let (a, b, c) = tokio::join!(
        proxy("a", &each[0]),
        proxy("b", &each[1]),
        proxy("c", &each[2])
    );
    let mut proxies = [a, b, c];
    for proxy in &proxies {
        eventually("all histories are known", LONGER, async || {
            let status = proxy.statusz().await;
            let mut peers = status["peers"].as_array().unwrap().iter();
            let known = |server: &Value| server["historyStart"].is_i64();
            status["peers"][1].is_object() && known(&status["server"]) && peers.all(known)
        })
        .await;
    }
    let with = roll(&mut servers, &mut proxies, "after-with").await;

    for (name, outcome) in [("without proxies", &without), ("with proxies", &with)] {
        println!(
            "{name:>15}: {:>4} lists beyond the first of each of {WATCHERS} watchers, {} told 410; afterwards seen so \
             often by so many: {:?}; {} writes elsewhere, {:.0?}; other errors: {:?}",
            outcome.lists,
            outcome.expired,
            outcome.saw,
            outcome.written,
            outcome.took,
            outcome.errors,
        );
    }
    let once = BTreeMap::from([(1, WATCHERS)]);
    assert!(without.lists > 0, "there was nothing to mend");
    assert_eq!((with.lists, with.expired), (0, 0));
    assert_eq!(with.saw, once);
}
