//! Injects one fault, mends it, and waits until everything is ready again.

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use testkit::cut::Cut;
use testkit::kube::{self, KubeApiServer};
use testkit::process::{Process, Signal};
use testkit::proxy::Proxy;
use testkit::wait::eventually;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::sleep;

use crate::book::Book;
use crate::clients::{BOUND, Session, definitions};
use crate::plan::{Fault, Files, Kind, Link, Part};
use crate::world::{Node, World, runtime_config};

/// Between SIGTERM and SIGKILL: open watches would hold an apiserver for a minute.
const PATIENCE: Duration = Duration::from_secs(12);
/// The same in an upgrade, as the kubelet does it with a pod.
const GRACE: Duration = Duration::from_secs(30);
/// In which others have read what a bare apiserver serves: where nobody answers they ask less and less often.
const READ: Duration = Duration::from_secs(15);
const LOADED: &str = "kube_interop_proxy_certificates_loaded_total";
const DELAY: Duration = Duration::from_millis(150);
/// Shorter than an election of etcd.
const LAG: Duration = Duration::from_millis(300);

pub async fn inject(world: &World, book: &Arc<Book>, number: usize, fault: &Fault) {
    let mut from = book.now();
    book.say(&fault.to_string());
    look_for_proxy(world, book, fault.node).await;
    match fault.kind {
        Kind::Killed(part) | Kind::Terminated(part) | Kind::Frozen(part) => match part {
            Part::Apiserver => apiserver(world, book, fault).await,
            Part::Proxy => proxy(world, book, fault).await,
            Part::Both => both(world, book, fault).await,
            Part::Etcd => etcd(world, fault).await,
        },
        Kind::Replaced => replace(world, book, fault.node).await,
        Kind::Uninstalled => from = uninstall(world, book, fault).await,
        Kind::Unreachable => {
            let links = [Link::Clients, Link::Peers, Link::Etcd];
            let links = links.map(|link| world.links[fault.node].of(link));
            links.iter().copied().flatten().for_each(Cut::silence);
            sleep(fault.lasts).await;
            links.iter().copied().flatten().for_each(Cut::restore);
        }
        Kind::Switched | Kind::Upgraded(_) => apiserver(world, book, fault).await,
        Kind::Cut(link) | Kind::Delayed(link) | Kind::Silent(link) => {
            let links = world.links[fault.node].of(link);
            for link in links {
                match fault.kind {
                    Kind::Cut(_) => link.cut(),
                    Kind::Delayed(_) => link.delay(DELAY),
                    _ => link.silence(),
                }
            }
            sleep(fault.lasts).await;
            links.iter().for_each(Cut::restore);
        }
        Kind::Lagging => lag(world, fault).await,
        Kind::Stepped(minutes) => step_clock(world, fault, minutes).await,
        Kind::Rotated(files) => rotate(world, fault.node, files).await,
        Kind::Defined => {
            let name = format!("definitions-{number}");
            let mut session = Session::new(name, &world.admin(), Arc::clone(book));
            definitions::churn(&mut session, number).await;
        }
    }
    world.nodes[fault.node].lock().await.wait_ready().await;
    book.window(fault.kind, from);
}

async fn apiserver(world: &World, book: &Book, fault: &Fault) {
    let server = &mut world.nodes[fault.node].lock().await.server;
    match fault.kind {
        Kind::Frozen(_) => return freeze(&mut [server.process()], fault.lasts).await,
        Kind::Killed(_) => server.kill(),
        Kind::Upgraded([_, to]) => {
            book.server_stops(fault.node);
            server.process().terminate(GRACE).await;
            book.server_is_gone(fault.node);
            let mut versions = kube::several().into_iter();
            let version = versions.find(|it| it.abilities().minor() == to);
            server.set_binary(version.expect("one of the versions that are given"));
        }
        _ => _ = server.process().terminate(PATIENCE).await,
    }
    sleep(fault.lasts).await;
    server.set_runtime_config(runtime_config(&fault.without));
    start(server, book).await;
    if let Kind::Upgraded([_, to]) = fault.kind {
        book.server_is_up(fault.node, to);
    }
}

async fn freeze(processes: &mut [&mut Process], lasts: Duration) {
    for process in &mut *processes {
        process.signal(Signal::Stop);
    }
    sleep(lasts).await;
    for process in processes {
        process.signal(Signal::Cont);
    }
}

async fn start(server: &mut KubeApiServer, book: &Book) {
    let start = book.starts();
    server.start_again();
    server.wait_ready().await;
    book.has_started(start);
}

async fn proxy(world: &World, book: &Book, fault: &Fault) {
    let mut node = world.nodes[fault.node].lock().await;
    let proxy = node.proxy();
    match fault.kind {
        Kind::Frozen(_) => return freeze(&mut [proxy.process()], fault.lasts).await,
        Kind::Killed(_) => proxy.kill(),
        _ => stop(proxy, book, fault.node).await,
    }
    sleep(fault.lasts).await;
    proxy.start_again().await;
}

/// Afterwards nobody could tell by whom it was ended.
pub async fn look_for_proxy(world: &World, book: &Book, number: usize) {
    let mut node = world.nodes[number].lock().await;
    let proxy = node.proxy.as_mut().map(Proxy::process);
    if let Some(status) = proxy.and_then(Process::exited) {
        book.violation(format!("proxy {number} has ended by itself: {status}"));
    }
}

async fn stop(proxy: &mut Proxy, book: &Book, node: usize) {
    judge_end(book, node, proxy.terminate().await);
}

fn judge_end(book: &Book, node: usize, status: ExitStatus) {
    if !status.success() {
        book.violation(format!("proxy {node} did not stop cleanly: {status}"));
    }
}

async fn both(world: &World, book: &Book, fault: &Fault) {
    let mut node = world.nodes[fault.node].lock().await;
    let Node { server, proxy, .. } = &mut *node;
    let proxy = proxy.as_mut().expect("a proxy");
    match fault.kind {
        Kind::Frozen(_) => {
            return freeze(&mut [server.process(), proxy.process()], fault.lasts).await;
        }
        Kind::Killed(_) => {
            server.kill();
            proxy.kill();
        }
        _ => {
            let stopped = stop(proxy, book, fault.node);
            tokio::join!(server.process().terminate(PATIENCE), stopped);
        }
    }
    sleep(fault.lasts).await;
    tokio::join!(start(server, book), proxy.start_again());
}

/// As a new version of the program takes the place of an old one.
async fn replace(world: &World, book: &Book, number: usize) {
    let mut node = world.nodes[number].lock().await;
    let proxy = node.proxy();
    proxy.process().signal(Signal::Term);
    // Beside one that is not stopping no other starts.
    eventually("the proxy is stopping", BOUND, async || {
        !proxy.is_ready().await
    })
    .await;
    let mut old = proxy.start_successor();
    judge_end(book, number, old.wait(BOUND).await);
}

/// Others reach the apiserver at the address that was the proxy's. The balancer knows that this node's clients would find
/// only what its apiserver serves. While the apiserver is bare nobody may notice anything; returns the end of that time.
async fn uninstall(world: &World, book: &Book, fault: &Fault) -> Duration {
    let from = book.now();
    let (number, links) = (fault.node, &world.links[fault.node]);
    let mut node = world.nodes[number].lock().await;
    let clients = links.of(Link::Clients);
    clients.iter().for_each(Cut::cut);
    stop(node.proxy(), book, number).await;
    let peers = &links.of(Link::Peers)[0];
    let proxy = peers.lead_to(node.server.addr());
    sleep(READ).await;
    book.window(fault.kind, from);
    sleep(fault.lasts).await;
    let until = book.now();
    peers.lead_to(proxy);
    node.proxy().start_again().await;
    clients.iter().for_each(Cut::restore);
    until
}

async fn etcd(world: &World, fault: &Fault) {
    let member = &mut *world.etcds[fault.node].lock().await;
    match fault.kind {
        Kind::Frozen(_) => {
            member.stop();
            sleep(fault.lasts).await;
            member.cont();
            member.wait_until_it_answers().await;
            return;
        }
        Kind::Killed(_) => member.kill(),
        _ => _ = member.process().terminate(PATIENCE).await,
    }
    sleep(fault.lasts).await;
    member.start_again().await;
}

async fn lag(world: &World, fault: &Fault) {
    let member = world.etcds[fault.node].lock().await;
    member.lag(&world.peer_links, LAG).await;
    drop(member);
    sleep(fault.lasts).await;
    world.peer_links.restore();
}

async fn step_clock(world: &World, fault: &Fault, minutes: i64) {
    let mut node = world.nodes[fault.node].lock().await;
    let (clock, proxy) = (&world.clocks[fault.node], node.proxy());
    clock.set(minutes * 60);
    until_it_is_off_by(proxy, minutes).await;
    sleep(fault.lasts).await;
    clock.set(0);
    until_it_is_off_by(proxy, 0).await;
}

/// As its status says. `Date` of the admin port does not: hyper keeps it until the clock is past it.
async fn until_it_is_off_by(proxy: &Proxy, minutes: i64) {
    eventually("the proxy's clock is stepped", BOUND, async || {
        let status = proxy.statusz().await;
        let date = status["time"].as_str().unwrap_or_default();
        let date = OffsetDateTime::parse(date, &Rfc3339).map_err(|error| error.to_string())?;
        let off = (date - OffsetDateTime::now_utc()).whole_seconds() - minutes * 60;
        (off.abs() < 60)
            .then_some(())
            .ok_or(format!("off by {off} s"))
    })
    .await;
}

async fn rotate(world: &World, node: usize, files: Files) {
    let mut held = world.nodes[node].lock().await;
    let proxy = held.proxy();
    let before = proxy.metric(LOADED, &[]).await;
    world.rotate(node, files);
    proxy
        .until_metric(LOADED, &[], |loaded| loaded > before)
        .await;
}
