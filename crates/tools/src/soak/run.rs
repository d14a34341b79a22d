//! One run: starts everything, injects the faults, and compares what clients were told with what happened.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use testkit::cluster::REROUTED;
use testkit::etcd::Access;
use testkit::kube;
use testkit::kubectl::Kubectl;
use testkit::process::Process;
use testkit::wait::{eventually, within};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::book::Book;
use crate::clients::controlled::Sessions;
use crate::clients::informer::Informer;
use crate::clients::stream::Streams;
use crate::clients::writer::Writer;
use crate::clients::{self, Session, controlled, reader};
use crate::exchange::Outcome;
use crate::faults::{inject, look_for_proxy};
use crate::front::{Front, NativeProxy};
use crate::informed::{self, Story};
use crate::kinds::{KINDS, USERS};
use crate::memory::{Sample, growth};
use crate::partly;
use crate::picture;
use crate::plan::{KEPT, NODES, Plan, Step, upgrades};
use crate::random::Random;
use crate::reference::Reference;
use crate::table::{KUBECTL, OWNER, READER, TENANT, Totals, WRITER};
use crate::world::{World, versions};
use crate::writes;

/// Of each kind.
const INFORMERS: usize = 3;
/// Between two looks at the proxies' memory.
const LOOK: Duration = Duration::from_secs(5);
const TASKS: &str = "kube_interop_proxy_tasks";
const TICK: Duration = Duration::from_millis(200);
const STALL: Duration = Duration::from_secs(1);
/// Until every client has ended what it began.
const LAST: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(90);

/// With the number of the kind.
type Stories = Vec<(usize, Arc<Mutex<Story>>)>;
type Samples = Mutex<[Vec<Sample>; NODES]>;

/// What is done to the cluster.
pub enum Course {
    /// Random faults for so long.
    Faults(Duration),
    /// Through these minor versions and back.
    Upgrades(Vec<u32>),
}

/// What a run has shown.
pub struct Findings {
    pub totals: Totals,
    /// Whether nothing was wrong; in front of others than the proxy, whether clients found what they are for.
    pub is_clean: bool,
}

impl Display for Course {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Faults(time) => write!(f, "{} seconds", time.as_secs()),
            Self::Upgrades(_) => f.write_str("upgrades"),
        }
    }
}

/// What all runs have in common.
pub struct Run {
    pub seed: u64,
    /// Of each proxy.
    pub settings: Vec<(String, String)>,
    /// Of the apiservers.
    pub native: NativeProxy,
    pub picture: Option<PathBuf>,
    pub keep: bool,
}

impl Run {
    pub async fn of(&self, course: &Course, front: Front) -> Findings {
        let Self { seed, keep, .. } = *self;
        let oldest = match course {
            Course::Faults(_) => None,
            Course::Upgrades(_) => Some(kube::several()[0]),
        };
        let world = World::start(oldest, front, self).await;
        let book = Arc::new(Book::new(front.is_judged()));
        let mut members = Vec::new();
        for member in &world.etcds {
            members.push(member.lock().await.access());
        }
        let reference = Reference::start(members.clone()).await;
        let mut informers = JoinSet::new();
        let stories = start_informers(&world, &book, &mut informers).await;
        let mut clients = start_clients(&world, &book, seed);
        if let Course::Upgrades(minors) = course {
            start_clients_of_versions(&world, &book, self, minors, &mut clients);
        }
        for (number, node) in world.nodes.iter().enumerate() {
            let minor = node.lock().await.server.abilities().minor();
            book.server_is_up(number, minor);
        }
        start_kubectl(&world, &book, seed, course, &mut clients);
        start_controlled(&world, &book, course, members, &mut clients);
        book.say("everything runs");
        let samples = Samples::default();
        tokio::select! {
            () = break_things(&world, &book, seed, course) => {}
            () = look(&world, &book, &samples) => {}
            () = notice_stalls(&book) => {}
        }
        book.say("no more faults");
        book.stop();
        let ended = timeout(LAST, async {
            while let Some(ended) = clients.join_next().await {
                ended.expect("a client");
            }
        });
        if ended.await.is_err() {
            book.violation("a client has not ended".to_owned());
        }
        if let Some(file) = &self.picture {
            let what = format!("{course} of random faults, --seed {seed}");
            let svg = picture::draw(&what, &*samples.lock().unwrap(), KEPT);
            if let Err(error) = std::fs::write(file, &svg) {
                println!("no picture at {}: {error}", file.display());
            }
        }
        let before = book.violations();
        compare(&world, &book, &reference, &stories).await;
        let wrong_at_the_end = book.violations() - before;
        match front.is_judged() {
            true => judge(&world, &book, &samples).await,
            false => look_for_haproxy(&world).await,
        }
        world.look_for_controllers().await;
        tell_rerouted(&world).await;
        report(world, &book, keep, &stories);
        findings(&book, front, wrong_at_the_end)
    }
}

async fn judge(world: &World, book: &Book, samples: &Samples) {
    let wrong = {
        let seen = book.seen();
        [seen.trouble_for_nothing(), seen.waited_for_nothing()].concat()
    };
    wrong.into_iter().for_each(|what| book.violation(what));
    examine_proxies(world, book, samples).await;
}

async fn look_for_haproxy(world: &World) {
    for node in &world.nodes {
        let mut node = node.lock().await;
        let ended = node.haproxy.as_mut().and_then(Process::exited);
        assert!(ended.is_none(), "HAProxy has ended: {ended:?}");
    }
}

fn findings(book: &Book, front: Front, wrong_at_the_end: usize) -> Findings {
    let seen = book.seen();
    let is_clean = match front.is_judged() {
        true => book.violations() == 0,
        false => !seen.read_in_vain(),
    };
    if !is_clean && !front.is_judged() {
        println!("no 404 was false: the clients do not find what they are for");
    }
    Findings {
        totals: seen.totals(wrong_at_the_end),
        is_clean,
    }
}

/// Returns when all have listed.
async fn start_informers(world: &World, book: &Arc<Book>, tasks: &mut JoinSet<()>) -> Stories {
    let admin = world.admin();
    let by_token = world.without_certificate().token("tok-admin");
    let mut stories = Vec::new();
    for (kind, of) in KINDS.iter().enumerate() {
        for number in 0..INFORMERS {
            let client = match number {
                0 => admin.http2(),
                1 => by_token.http1(),
                _ => by_token.http2(),
            };
            let name = format!("informer-{number} of {}", of.plural);
            let story = Arc::new(Mutex::new(Story {
                name: name.clone(),
                ..Story::default()
            }));
            stories.push((kind, Arc::clone(&story)));
            let session = Session::new(name, &client, Arc::clone(book));
            let session = match number {
                0 | 1 => session,
                _ => session.asking_readiness(),
            };
            tasks.spawn(
                Informer {
                    session,
                    kind,
                    story,
                }
                .run(),
            );
        }
    }
    eventually("all informers have listed", PATIENCE, async || {
        let has_listed = |story: &Mutex<Story>| !story.lock().unwrap().lists.is_empty();
        stories.iter().all(|(_, story)| has_listed(story))
    })
    .await;
    stories
}

/// For each user two readers, with and without the question for readiness, a writer, and upgraded streams.
fn start_clients(world: &World, book: &Arc<Book>, seed: u64) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    for (number, user) in USERS.into_iter().enumerate() {
        let client = world.user(&user);
        let random = |of: u64| Random::new(seed ^ (1000 * of + number as u64));
        let session = |what: &str, client| {
            let name = format!("{what}-{}", user.name);
            Session::new(name, &client, Arc::clone(book))
        };
        let plain = session("reader", client.http2());
        clients.spawn(reader::run(plain, user, random(1)));
        let asking = session("asking", client.http1()).asking_readiness();
        clients.spawn(reader::run(asking, user, random(2)));
        let client = if number % 2 == 0 {
            client.http2()
        } else {
            client.http1()
        };
        let writer = Writer::new(session("writer", client), user, random(3));
        clients.spawn(writer.run());
        let streams = Streams {
            name: format!("stream-{}", user.name),
            client: world.user(&user),
            authorization: user.authorization,
            namespace: user.namespace,
            book: Arc::clone(book),
            random: random(4),
        };
        clients.spawn(streams.run());
    }
    clients
}

/// Clients of what not all of these versions have.
fn start_clients_of_versions(
    world: &World,
    book: &Arc<Book>,
    run: &Run,
    minors: &[u32],
    clients: &mut JoinSet<()>,
) {
    let (apis, fields) = (partly::apis(minors), partly::fields(minors));
    let session = |name: &str, client| Session::new(name.to_owned(), &client, Arc::clone(book));
    let random = |of: u64| Random::new(run.seed ^ (1000 * of));
    if !apis.is_empty() {
        let reader = session(READER, world.admin().http2());
        clients.spawn(clients::partly::reads(reader, apis, random(5)));
    }
    if !fields.is_empty() {
        let writer = |minor: &u32| {
            let agent = format!("kubectl/v1.{minor}.0 (linux/amd64) kubernetes/0000000");
            let client = world.admin().header("User-Agent", &agent).http2();
            (*minor, session(WRITER, client))
        };
        let writers = minors.iter().map(writer).collect();
        let cleaner = session("cleaner", world.admin().http2());
        let oldest = ("versionAwareness.default".to_owned(), "Oldest".to_owned());
        let writes = clients::partly::writes(
            writers,
            cleaner,
            fields,
            run.settings.contains(&oldest),
            random(6),
        );
        clients.spawn(writes);
    }
}

/// Of each version.
fn start_kubectl(
    world: &World,
    book: &Arc<Book>,
    seed: u64,
    course: &Course,
    clients: &mut JoinSet<()>,
) {
    for version in versions() {
        let minor = version.abilities().minor();
        let dir = world.dir.path().join(format!("kubectl-1.{minor}"));
        let kubectl =
            Kubectl::new(world.balancer.addr(), &world.pki, &dir).cert(&world.pki, "admin");
        // Of 1.20.2 the machine has it.
        let kubectl = match kube::several().is_empty() {
            true => kubectl,
            false => kubectl.program(version.beside("kubectl")),
        };
        let name = format!("{KUBECTL} 1.{minor}");
        let random = Random::new(seed ^ (7000 + u64::from(minor)));
        clients.spawn(clients::kubectl::run(
            name,
            kubectl,
            Arc::clone(book),
            random,
            matches!(course, Course::Faults(_)),
        ));
    }
}

/// Clients whose objects controllers see to.
fn start_controlled(
    world: &World,
    book: &Arc<Book>,
    course: &Course,
    etcd: Vec<Access>,
    clients: &mut JoinSet<()>,
) {
    let (resource, minors) = match course {
        Course::Faults(_) => (partly::OF_A_GROUP, None),
        Course::Upgrades(minors) => match partly::resource(minors) {
            Some(resource) => (resource, Some(resource.since..u32::MAX)),
            None => return,
        },
    };
    let sessions = |name: &str| {
        let session = || Session::new(name.to_owned(), &world.admin(), Arc::clone(book));
        let mut newer = session();
        newer.minors.clone_from(&minors);
        Sessions {
            all: session(),
            newer,
            resource,
        }
    };
    clients.spawn(controlled::owners(sessions(OWNER)));
    clients.spawn(controlled::tenants(sessions(TENANT), etcd));
}

async fn break_things(world: &World, book: &Arc<Book>, seed: u64, course: &Course) {
    let (time, plan): (_, Box<dyn Iterator<Item = Step>>) = match course {
        Course::Faults(time) => (*time, Box::new(plan(world, seed).await)),
        Course::Upgrades(minors) => (Duration::MAX, Box::new(upgrades(minors).into_iter())),
    };
    for (number, step) in plan.enumerate() {
        let until = step.not_before.saturating_sub(book.now());
        sleep(step.pause.max(until)).await;
        if book.now() >= time {
            break;
        }
        match &step.faults[..] {
            [one, other] => {
                let one = inject(world, book, number, one);
                tokio::join!(one, inject(world, book, number, other));
            }
            faults => {
                for fault in faults {
                    inject(world, book, number, fault).await;
                }
            }
        }
    }
}

async fn plan(world: &World, seed: u64) -> Plan {
    let mut now = [0; NODES];
    for (minor, node) in now.iter_mut().zip(&world.nodes) {
        *minor = node.lock().await.server.abilities().minor();
    }
    let versions = kube::several().into_iter();
    let minors: Vec<_> = versions.map(|it| it.abilities().minor()).collect();
    Plan::new(seed, &minors, now)
}

async fn look(world: &World, book: &Book, samples: &Samples) {
    loop {
        for (number, node) in world.nodes.iter().enumerate() {
            // Whom a fault has is not looked at.
            let Ok(mut node) = node.try_lock() else {
                continue;
            };
            let Some(proxy) = &mut node.proxy else {
                continue;
            };
            let tasks = timeout(LOOK, proxy.try_metric(TASKS)).await;
            let process = proxy.process();
            let (Some(memory), Ok(Some(tasks))) = (process.memory(), tasks) else {
                continue;
            };
            let sample = Sample {
                pid: process.pid(),
                at: book.now(),
                memory,
                files: process.files(),
                tasks: tasks as usize,
            };
            samples.lock().unwrap()[number].push(sample);
        }
        sleep(LOOK).await;
    }
}

/// On a busy machine nothing is answered in time; this notes when that was.
async fn notice_stalls(book: &Book) {
    loop {
        let before = book.now();
        sleep(TICK).await;
        let late = book.now() - before - TICK;
        if late > STALL {
            book.say(&format!("this program itself had to wait for {late:.1?}"));
            book.stalled(before);
        }
    }
}

async fn compare(world: &World, book: &Arc<Book>, reference: &Reference, stories: &Stories) {
    for (number, kind) in KINDS.iter().enumerate() {
        let last = write_last(world, book, number).await;
        let (start, changes) = reference.until(number, last).await;
        for wrong in writes::check(&book.writes_to(number), &changes) {
            book.violation(format!("{}: {wrong}", kind.plural));
        }
        let of_kind: Vec<_> = stories.iter().filter(|(of, _)| *of == number).collect();
        let first = |(_, story): &&(usize, Arc<Mutex<Story>>)| story.lock().unwrap().lists[0].0;
        let after = of_kind.iter().map(first).max().unwrap_or_default();
        for (_, story) in of_kind {
            let complete = within(PATIENCE, async || {
                informed::is_complete(&story.lock().unwrap(), last)
            });
            if complete.await.is_err() {
                let name = &story.lock().unwrap().name;
                book.violation(format!("{name} was not told the last change, {last}"));
            }
            let story = story.lock().unwrap();
            for wrong in informed::check(&story, after, &start, &changes) {
                book.violation(wrong);
            }
        }
    }
}

/// One object more, of which every informer has to be told; its revision.
async fn write_last(world: &World, book: &Arc<Book>, kind: usize) -> i64 {
    let mut session = Session::new("last".to_owned(), &world.admin(), Arc::clone(book));
    let path = KINDS[kind].collection("default");
    let object = KINDS[kind]
        .object(&json!({"generateName": "last-"}))
        .to_string();
    eventually("a last object is written", PATIENCE, async || {
        let exchange = session.ask("POST", &path, &object).await;
        let last = exchange.attempts.last().map(Outcome::describe);
        let created = exchange.answer().filter(|answer| answer.code == 201);
        created
            .and_then(|answer| answer.revision())
            .ok_or(last.unwrap_or_default())
    })
    .await
}

async fn examine_proxies(world: &World, book: &Book, samples: &Samples) {
    for (number, node) in world.nodes.iter().enumerate() {
        look_for_proxy(world, book, number).await;
        let mut node = node.lock().await;
        let proxy = node.proxy().process();
        let log = std::fs::read_to_string(proxy.log()).unwrap_or_default();
        for line in log.lines().filter(|line| line.contains("panicked")) {
            book.violation(format!("proxy {number}: {line}"));
        }
        match growth(&samples.lock().unwrap()[number]) {
            None => println!(
                "proxy {number}: not judged, its process was there for less than four minutes"
            ),
            Some(Ok(time)) => {
                println!("proxy {number}: memory, open files and tasks are flat, for {time:.0?}")
            }
            Some(Err(why)) => book.violation(format!("proxy {number}: {why}")),
        }
    }
}

/// Of all proxies and apiservers, each since its last start.
async fn tell_rerouted(world: &World) {
    let mut rerouted = [0.0; 2];
    for node in &world.nodes {
        let node = node.lock().await;
        if let Some(proxy) = &node.proxy {
            rerouted[0] += proxy.try_metric(REROUTED).await.unwrap_or(0.0);
        }
        let native = "apiserver_rerouted_request_total";
        rerouted[1] += node.server.try_metric(native).await.unwrap_or(0.0);
    }
    let [by_proxies, by_apiservers] = rerouted;
    println!(
        "rerouted, since the last starts: {by_proxies} by proxies, {by_apiservers} by apiservers"
    );
}

fn report(mut world: World, book: &Book, keep: bool, stories: &Stories) {
    let seen = book.seen();
    let told: usize = stories
        .iter()
        .map(|(_, story)| story.lock().unwrap().told.len())
        .sum();
    let writes: usize = (0..KINDS.len())
        .map(|kind| book.writes_to(kind).len())
        .sum();
    println!("\n{}", seen.table());
    let (requests, faults, relists) = (seen.requests.len(), seen.windows.len(), seen.relists.len());
    let violations = book.violations();
    println!(
        "{faults} faults, {requests} requests ({writes} writes), {} informers told {told} events and bookmarks, \
         {relists} relists: {violations} violations",
        stories.len()
    );
    match keep || violations > 0 {
        true => println!("kept: {}", world.dir.path().display()),
        false => world.dir.disable_cleanup(false),
    }
}
