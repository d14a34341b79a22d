//! The steps of a change: the lock among the nodes, the files, until what they say runs, and back if it does not.

use std::time::Duration;

use http::StatusCode;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use super::change::{begin, replace};
use super::host::{BEFORE, Done, Host, INSTALLED};
use super::image;
use super::servers::{LOCK_RENEWAL, Servers};
use crate::cli::doctor::{local_maker, peers_maker};
use crate::cli::fetch;
use crate::cli::terminal::complain;
use crate::cli::wait::until_nothing_lacks;
use crate::config::{Config, joined};
use crate::install::normal;
use crate::install::state::{LEAVING, State};
use crate::local::process;
use crate::log_throttle::chain;
use crate::publish::lease;

const PAUSE: Duration = Duration::from_millis(200);
/// etcd is asked so often for the lock.
const LOCK_PAUSE: Duration = Duration::from_secs(1);
/// As long as kubelet may take to stop what has another manifest. It stops nothing if it runs what the manifest says: who wrote
/// another one meanwhile was too quick for it.
const TIME_TO_STOP: Duration = Duration::from_secs(45);
/// As long as kubelet may take to start what it has tried in vain for a while.
const TIME_TO_RETURN: Duration = Duration::from_secs(120);

const BROKEN_OFF: &str =
    "stopped before the end: the same command goes on, and uninstall kubeadm undoes what was done";

/// A node that is to be changed.
pub(super) struct Node {
    pub(super) host: Host,
    pub(super) from: State,
    pub(super) to: State,
    /// With paths of files that can be read here.
    pub(super) settings: Config,
    /// `None`: nobody asks for it.
    pub(super) image: Option<String>,
    /// `None`: etcd could not be asked, and need not be.
    pub(super) servers: Option<Servers>,
    pub(super) timeout: Duration,
}

impl Node {
    /// One node at a time, and none while another is not ready.
    pub(super) async fn with_lock(&self, work: impl AsyncFnOnce() -> Done) -> Done {
        let working = async {
            let Some(servers) = &self.servers else {
                return work().await;
            };
            until(self.timeout, async || may_begin(servers).await).await?;
            let renewal = async {
                loop {
                    sleep(LOCK_RENEWAL).await;
                    // It is tried again before it ends.
                    let _ = servers.lock().await;
                }
            };
            tokio::select! {
                done = work() => done,
                never = renewal => never,
            }
        };
        let mut told = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        let done = tokio::select! {
            done = working => done,
            Ok(()) = ctrl_c() => Err(BROKEN_OFF.to_owned()),
            Some(()) = told.recv() => Err(BROKEN_OFF.to_owned()),
        };
        if let Some(servers) = &self.servers {
            servers.unlock().await;
        }
        done
    }

    /// Waits for a proxy that was put in before.
    pub(super) async fn runs(&self) -> Done {
        self.host.remove(LEAVING)?;
        until(self.timeout, async || self.proxy_serves().await).await?;
        self.host.done(&self.to)
    }

    /// Puts the proxy in, or everything back.
    pub(super) async fn put_in(&self) -> Done {
        self.prepare()?;
        let (from, to) = (&self.from, &self.to);
        // It is replaced with the pod that it is in.
        let is_replaced =
            from.pods() != to.pods() || to.pods().is_empty() && from.apiserver() != to.apiserver();
        // Until it ends, the one from before answers at the admin port.
        let mut is_before = is_replaced && self.proxy_answers().await;
        let on_loopback = self.settings.api_server.address;
        let is_another = from.apiserver() != to.apiserver();
        let apiserver = process::listening_at(on_loopback);
        let mut begun = None;
        let lacking = async || {
            let begun: Instant = *begun.get_or_insert_with(Instant::now);
            let ready = self.proxy_is_ready().await;
            is_before &= ready.is_ok();
            if is_before {
                return Err("kubelet has not stopped the proxy from before yet".to_owned());
            }
            ready?;
            let is_there = !apiserver.is_disjoint(&process::listening_at(on_loopback));
            if is_another && is_there && begun.elapsed() < TIME_TO_STOP {
                return Err("kubelet has not stopped the kube-apiserver from before yet".to_owned());
            }
            self.is_seen().await
        };
        match self.changed(from, to, self.timeout, lacking).await {
            Ok(()) => self.host.done(to),
            Err(why) => self.put_back(why).await,
        }
    }

    /// Replaces the files, and waits for what is lacking then.
    async fn changed(
        &self,
        from: &State,
        to: &State,
        limit: Duration,
        lacking: impl AsyncFnMut() -> Done,
    ) -> Done {
        let begun = Instant::now();
        if begin(&self.host, from, to)? && self.proxy_answers().await {
            // For load balancers, as when the proxy stops.
            sleep(self.settings.shutdown.delay.min(limit / 2)).await;
        }
        // Nothing makes room for what may never start. kubelet fetches the image of a pod that is there.
        let is_changed = from.pods() != to.pods() || from.apiserver() != to.apiserver();
        if *to == self.to && !to.pods().is_empty() && is_changed {
            until(limit, async || self.image_is_there()).await?;
        }
        if self.host.node(1)?.state().apiserver() != from.apiserver() {
            return Err("somebody changed kube-apiserver's manifest meanwhile".to_owned());
        }
        replace(&self.host, from, to)?;
        until(limit.saturating_sub(begun.elapsed()), lacking).await
    }

    pub(super) fn image_is_there(&self) -> Done {
        self.image.as_deref().map_or(Ok(()), image::is_there)
    }

    /// Nothing is changed if it fails.
    fn prepare(&self) -> Done {
        if self.host.node(1)?.state() != self.from {
            Err("somebody changed the files meanwhile; nothing was changed here, call it again")?;
        }
        self.host.prepare()?;
        self.host.keep(&self.from)
    }

    async fn put_back(&self, why: String) -> Done {
        complain(format_args!("{why}; everything is put back"));
        let (now, before) = self.before()?;
        let had_proxy = before.has_proxy()?;
        let lacking = async || match had_proxy {
            true => self.proxy_serves().await,
            false => self.apiserver_serves().await,
        };
        let ended = self.changed(&now, &before, TIME_TO_RETURN, lacking).await;
        self.host.finish()?;
        if ended.is_ok() && !had_proxy {
            self.host.clean_up()?;
        }
        Err(match ended {
            Ok(()) => format!("{why}; everything is as it was before"),
            Err(since) => format!("{why}; the files are as they were before, but: {since}"),
        })
    }

    /// What stands there now, and what stood there before. If somebody wrote the apiserver's manifest meanwhile, an upgrade
    /// for example, then what they wrote counts.
    fn before(&self) -> Result<(State, State), String> {
        let now = self.host.node(1)?.state();
        let before = self.host.kept(BEFORE)?.unwrap_or_else(|| self.from.clone());
        if normal(&now.plain()?)? == normal(&before.plain()?)? {
            return Ok((now, before));
        }
        let installed = self.host.kept(INSTALLED)?;
        // By kubeadm, after an upgrade that failed.
        let is_restored = installed.is_some_and(|it| it.apiserver() == now.apiserver());
        let before = match (before.has_proxy()?, is_restored) {
            (true, _) => before.with_apiserver(now.apiserver().to_owned()),
            (false, true) => now.clone(),
            (false, false) => before.with_apiserver(now.plain()?),
        };
        Ok((now, before))
    }

    /// Takes the proxy out.
    pub(super) async fn take_out(&self) -> Done {
        self.prepare()?;
        let lacking = async || match self.proxy_answers().await {
            true => Err("the proxy has not ended yet".to_owned()),
            false => self.apiserver_serves().await,
        };
        let changing = self.changed(&self.from, &self.to, self.timeout, lacking);
        if let Err(why) = changing.await {
            // Without etcd there may be no apiserver either.
            let goes_on = self.servers.is_none() && self.host.node(1)?.state() == self.to;
            if !goes_on || self.proxy_answers().await {
                return Err(why);
            }
            complain(format_args!("note: {why}"));
        }
        if let Some(servers) = &self.servers {
            let mut ids = Vec::new();
            let ended = async || {
                ids = servers.own_ids().await?;
                Ok(())
            };
            until(self.timeout, ended).await?;
            self.delete_leases(&ids).await;
            // Without its record a call that goes on could not tell what only others serve: nothing is waited for after this.
            servers.forget(&ids).await?;
        }
        self.host.finish()?;
        self.host.clean_up()
    }

    /// A proxy whose apiserver ended first could not delete its Lease, and there may be no other to do it.
    async fn delete_leases(&self, ids: &[String]) {
        let (address, own) = (
            self.settings.serving.bind_address,
            self.settings.peer.advertise_address,
        );
        for id in ids {
            let deleted = async {
                let mut client = local_maker(&self.settings)?.client(address);
                let identity = &self.settings.identity;
                anyhow::Ok(lease::remove_left(&mut client, identity, (id, own)).await?)
            };
            if let Err(error) = deleted.await {
                complain(format_args!(
                    "note: the proxy's Lease {id} stays: {error:#}"
                ));
            }
        }
    }

    /// One that tells whether it is ready to nobody whom it does not know is.
    async fn apiserver_serves(&self) -> Done {
        let address = self.settings.serving.bind_address;
        let failed = |why: String| format!("kube-apiserver at {address}: {why}");
        let maker = peers_maker(&self.settings).map_err(|error| failed(error.to_string()))?;
        let answer = maker.client(address).get("/readyz").await;
        match answer.map_err(|error| failed(chain(&error)))?.status {
            StatusCode::OK | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(()),
            status => Err(failed(format!("/readyz is {status}"))),
        }
    }

    async fn proxy_answers(&self) -> bool {
        let admin = self.settings.admin.bind_address.to_string();
        fetch::get(&admin, "/readyz").await.is_ok()
    }

    async fn proxy_is_ready(&self) -> Done {
        let admin = self.settings.admin.bind_address;
        let answer = fetch::get(&admin.to_string(), "/readyz?verbose").await;
        let answer = answer.map_err(|error| format!("the proxy's admin port {admin}: {error}"))?;
        let body = String::from_utf8_lossy(&answer.body);
        let missing = joined(body.lines().filter(|line| line.starts_with("[-]")), "; ");
        match answer.status {
            StatusCode::OK => Ok(()),
            _ => Err(format!("the proxy is not ready: {missing}")),
        }
    }

    async fn is_seen(&self) -> Done {
        match &self.servers {
            Some(servers) if !servers.is_seen().await? => {
                Err("other servers do not see this one in etcd yet".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// The proxy, as others see it.
    async fn proxy_serves(&self) -> Done {
        self.proxy_is_ready().await?;
        self.is_seen().await
    }
}

async fn until(limit: Duration, mut lacking: impl AsyncFnMut() -> Done) -> Done {
    let lacking = async || lacking().await.err().into_iter().collect::<Vec<_>>();
    let ended = until_nothing_lacks(limit, PAUSE, lacking).await;
    ended.map_err(|why| format!("not within --timeout: {why}"))
}

/// Why this node may not be changed yet; then it holds no lock.
async fn may_begin(servers: &Servers) -> Done {
    let why = match servers.lock().await? {
        Some(owner) => format!("another node is changed: {owner}"),
        None => match servers.not_ready().await {
            Ok(waiting) if waiting.is_empty() => return Ok(()),
            found => {
                servers.unlock().await;
                found?.join("; ")
            }
        },
    };
    sleep(LOCK_PAUSE).await;
    Err(why)
}
