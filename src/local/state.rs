//! The state of the local apiserver. Written by the probe, by the check of the proxy's credentials, and by requests whose
//! connection is refused; read by every request with one atomic load.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::{Notify, watch};

use super::reader::FormerRecord;
use crate::request::credential::{self, CredentialFeatures};
use crate::request::surplus::SurplusHeaders;

/// What is known of the process of one epoch.
type OfEpoch<T> = ArcSwapOption<(u64, T)>;

/// Whether the apiserver accepts the users that this proxy names, as the last check found.
#[derive(Debug, PartialEq, Eq)]
struct Trust {
    /// Why it does not accept them; empty if it does.
    problems: String,
    /// What the ConfigMap says else than the configuration; may be empty.
    warnings: String,
}

/// State of the local apiserver process.
#[derive(Debug, Default)]
pub struct LocalState {
    /// Twice the number of times that the process was seen to be gone (the epoch), plus 1 if `/readyz` answered 200
    /// since the last of them (KEP-3028: initialized). Later failures do not undo it.
    epoch_and_initialized: AtomicU64,
    /// The last `/readyz` was 200.
    ready: AtomicBool,
    /// The etcd revision since which it has watch history.
    history: OfEpoch<i64>,
    /// The last epoch in which etcd was found to have another history than when the process began, and 1; 0: none.
    void: AtomicU64,
    /// The last one of them in which the process was known before, and 1; 0: none.
    lost: AtomicU64,
    /// Where the history of the first process began that was not void, since the last one that was; 0: none has begun.
    in_order: AtomicI64,
    /// What the proxy before this one has written.
    pub(super) former: Arc<OnceLock<FormerRecord>>,
    /// The attributes that this version gives certificate users.
    user_details: OfEpoch<CredentialFeatures>,
    trust: OfEpoch<Trust>,
    /// Wakes the trust check: certificates have changed. The last result stays until then.
    pub trust_outdated: Notify,
    /// The last `/readyz` was 401 or 403: it does not accept the identity of this proxy.
    access_denied: AtomicBool,
    /// Headers by which an apiserver of the cluster may recognise a user, besides the configured ones.
    pub surplus_headers: SurplusHeaders,
    /// Notifies of changes.
    changed: watch::Sender<()>,
    /// The last `/readyz` said that the process is shutting down.
    shutting_down: AtomicBool,
    /// It rejected a request while it was shutting down.
    turns_away: AtomicBool,
    /// The last `/readyz` said that etcd does not answer.
    lacks_etcd: AtomicBool,
    /// Nothing comes from it, although its port is open.
    frozen: AtomicBool,
    /// Wakes the probe: the process may have been replaced. One waiter.
    pub suspected: Notify,
    /// Probes begun, and the number of the last finished one.
    begun: AtomicU64,
    ended: watch::Sender<u64>,
    /// Wakes the probe: a request needs the current `/readyz`. One waiter.
    pub(super) wanted: Notify,
    /// Wakes discovery: what the apiserver serves may have changed. One waiter.
    pub(super) reread: Notify,
}

impl LocalState {
    /// `former`: set before the first request for a resource is sent anywhere.
    pub fn new(former: Arc<OnceLock<FormerRecord>>) -> Self {
        Self {
            former,
            ..Self::default()
        }
    }

    /// Whether the apiserver is initialized.
    pub fn is_initialized(&self) -> bool {
        self.epoch_and_initialized.load(Ordering::Relaxed) & 1 == 1
    }

    /// Whether the last `/readyz` was 200.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// The etcd revision since which the apiserver has watch history (KEP-1904), never too low; `i64::MAX` while
    /// unknown.
    pub fn history_start(&self) -> i64 {
        let start = self.of_process(&self.history, |start| *start);
        let start = start.filter(|_| !self.is_history_void());
        start.unwrap_or(i64::MAX)
    }

    /// etcd may have been restored or replaced while the process of `epoch` ran: its history is that of another etcd, until it is
    /// restarted. `is_lost`: it was, and that process was there before.
    pub fn void_history(&self, epoch: u64, is_lost: bool) {
        let now = epoch + 1;
        if is_lost {
            self.lost.store(now, Ordering::Relaxed);
        }
        if self.void.swap(now, Ordering::Relaxed) != now {
            self.in_order.store(0, Ordering::Relaxed);
            tracing::warn!(
                "etcd has another history than when the apiserver started: watches are not resumed there until it is restarted"
            );
            self.changed.send_replace(());
        }
    }

    /// Whether [`Self::void_history`] was called for this process.
    pub fn is_history_void(&self) -> bool {
        self.was_void(self.epoch())
    }

    /// Whether it was called for the process of `epoch`, and for no later one.
    pub fn was_void(&self, epoch: u64) -> bool {
        self.void.load(Ordering::Relaxed) == epoch + 1
    }

    /// The same, of a history that is lost for certain.
    pub fn was_lost(&self, epoch: u64) -> bool {
        self.lost.load(Ordering::Relaxed) == epoch + 1
    }

    /// All watch caches of the process of `epoch` begin at or before etcd revision `start`.
    pub fn begins_at(&self, start: i64, epoch: u64) {
        self.history.store(Some(Arc::new((epoch, start))));
        if epoch == self.epoch() && !self.is_history_void() && self.in_order() == 0 {
            self.in_order.store(start, Ordering::Relaxed);
        }
        self.changed.send_replace(());
    }

    /// The attributes that the apiserver's version gives certificate users; none while it is unknown.
    pub fn user_details(&self) -> CredentialFeatures {
        let known = self.of_process(&self.user_details, |details| *details);
        known.unwrap_or_default()
    }

    fn in_order(&self) -> i64 {
        self.in_order.load(Ordering::Relaxed)
    }

    /// Whether a watch from this revision may be resumed at other servers. What a process with a void history delivered is
    /// of no history: until the next one can say so (410), its clients stay here.
    pub fn may_resume_elsewhere(&self, since: i64) -> bool {
        let former = || self.former.get().is_some_and(|it| it.history_void);
        let was_void = self.void.load(Ordering::Relaxed) > 0 || former();
        !was_void || (1..=since).contains(&self.in_order())
    }

    /// The process of `epoch` has this version.
    pub fn is_of_version(&self, version: &str, epoch: u64) {
        let known = Arc::new((epoch, credential::details(version)));
        self.user_details.store(Some(known));
    }

    /// Whether the apiserver is shutting down and rejects requests with 429 (`--shutdown-send-retry-after`): peers are
    /// tried first.
    pub fn turns_away(&self) -> bool {
        self.turns_away.load(Ordering::Relaxed)
    }

    /// Whether the apiserver is suspected to be frozen.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Relaxed)
    }

    /// The apiserver is suspected to be frozen, or no longer.
    pub fn freezes(&self, frozen: bool) {
        self.set(&self.frozen, frozen);
    }

    /// Whether the last `/readyz` said that the apiserver's etcd does not answer.
    pub fn lacks_etcd(&self) -> bool {
        self.lacks_etcd.load(Ordering::Relaxed)
    }

    /// Whether the apiserver's etcd answers, by its `/readyz`.
    pub fn finds_etcd_down(&self, down: bool) {
        if self.lacks_etcd.swap(down, Ordering::Relaxed) != down {
            match down {
                true => tracing::warn!(
                    "the local apiserver's etcd does not answer: peers that are ready are asked first"
                ),
                false => tracing::info!("the local apiserver's etcd answers again"),
            }
        }
    }

    /// A read failed as it does without etcd. Returns whether that is the reason, by a new `/readyz`. After `patience` the
    /// answer is what is known.
    pub async fn is_found_without_etcd(&self, patience: Duration) -> bool {
        if !self.lacks_etcd() {
            self.next_probe(patience).await;
        }
        self.lacks_etcd()
    }

    /// Whether the apiserver is a target for peers: it is initialized and does not turn requests away.
    pub fn accepts(&self) -> bool {
        self.is_initialized() && !self.turns_away()
    }

    /// Whether requests go to the apiserver first: it accepts them, and is not suspected to be frozen. Else it is tried
    /// last.
    pub fn serves(&self) -> bool {
        self.accepts() && !self.is_frozen()
    }

    /// Whether this process is known to accept the users that this proxy names.
    pub fn trusts_proxy(&self) -> bool {
        let trusts = self.of_process(&self.trust, |trust| trust.problems.is_empty());
        trusts.unwrap_or(false)
    }

    /// Why not; `None` if it does.
    pub fn trust_problems(&self) -> Option<String> {
        let unknown = "the apiserver was not asked yet whether it accepts this proxy's front-proxy credentials";
        let problems = self.of_process(&self.trust, |trust| trust.problems.clone());
        Some(problems.unwrap_or(unknown.to_owned())).filter(|problems| !problems.is_empty())
    }

    /// The result of the trust check of the process of `epoch`.
    pub(super) fn set_trust(&self, epoch: u64, problems: String, warnings: String) {
        let checked = (epoch, Trust { problems, warnings });
        if self.trust.load().as_deref() == Some(&checked) {
            return;
        }
        let Trust { problems, warnings } = &checked.1;
        match &**problems {
            "" => tracing::info!("the apiserver accepts this proxy's front-proxy credentials"),
            doubts => tracing::error!(
                doubts,
                "the apiserver may reject this proxy's front-proxy credentials"
            ),
        }
        if !warnings.is_empty() {
            tracing::warn!(
                differs = warnings,
                "apiservers may recognise users by other headers"
            );
        }
        self.trust.store(Some(Arc::new(checked)));
    }

    /// Whether the trust check can run: the apiserver is initialized, or refuses `/readyz` to this proxy.
    pub fn can_be_asked(&self) -> bool {
        self.is_initialized() || self.access_denied.load(Ordering::Relaxed)
    }

    /// Whether the last `/readyz` was answered 401 or 403.
    pub fn access_denied(&self, access_denied: bool) {
        self.set(&self.access_denied, access_denied);
    }

    /// Changes whenever the process is found to be gone. To be read before a request whose response is recorded with
    /// it.
    pub fn epoch(&self) -> u64 {
        self.epoch_and_initialized.load(Ordering::Relaxed) >> 1
    }

    /// A `/readyz` that was sent in `epoch` was 200, or not; the process may live on. A 200 is ignored if the process was
    /// replaced since.
    pub fn answered(&self, ok: bool, epoch: u64) {
        if ok {
            let (before, after) = (epoch << 1, epoch << 1 | 1);
            let (order, state) = (Ordering::Relaxed, &self.epoch_and_initialized);
            match state.compare_exchange(before, after, order, order) {
                Ok(_) => {
                    tracing::info!("the local apiserver is initialized");
                    self.reread.notify_one();
                }
                Err(now) if now == after => {}
                Err(_) => return,
            }
        }
        self.set(&self.ready, ok);
    }

    /// The process is gone, and the next one is not initialized: a connection was refused, or the probe found another
    /// process.
    pub fn refused(&self) {
        let was_ready = self.ready.swap(false, Ordering::Relaxed);
        self.shutting_down.store(false, Ordering::Relaxed);
        self.turns_away.store(false, Ordering::Relaxed);
        self.lacks_etcd.store(false, Ordering::Relaxed);
        let next = |state: u64| Some(((state >> 1) + 1) << 1);
        let before =
            self.epoch_and_initialized
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let was_initialized = before.is_ok_and(|state| state & 1 == 1);
        if was_initialized {
            tracing::warn!(
                "the local apiserver is down or was restarted: not initialized until its next /readyz"
            );
            self.reread.notify_one();
        }
        // Every client request may call this: only changes are sent.
        if was_ready || was_initialized {
            self.changed.send_replace(());
        }
    }

    /// Whether the last `/readyz` said that the process is shutting down.
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }

    /// Whether the process of `epoch` is shutting down, by its `/readyz`.
    pub fn shuts_down(&self, says_so: bool, epoch: u64) {
        if self.epoch() != epoch {
            return;
        }
        self.set(&self.shutting_down, says_so);
        if !says_so {
            self.set(&self.turns_away, false);
        }
    }

    /// A request was rejected as by an apiserver that is shutting down. Returns whether it is, by a new `/readyz`, or
    /// because the process is gone meanwhile. After `patience` the answer is what is known.
    pub async fn has_turned_away(&self, patience: Duration) -> bool {
        let epoch = self.epoch();
        if !self.shutting_down.load(Ordering::Relaxed) {
            self.next_probe(patience).await;
        }
        if self.epoch() != epoch {
            return true;
        }
        let shuts_down = self.shutting_down.load(Ordering::Relaxed);
        if shuts_down && self.set(&self.turns_away, true) {
            tracing::warn!(
                "the local apiserver is shutting down and refuses requests: others are tried first"
            );
        }
        shuts_down
    }

    /// Waits for the result of a probe that begins now, no longer than `patience`.
    async fn next_probe(&self, patience: Duration) {
        // A running probe may have been answered before.
        let next = self.begun.load(Ordering::Relaxed) + 1;
        let mut ended = self.ended.subscribe();
        self.wanted.notify_one();
        let ended = ended.wait_for(|ended| *ended >= next);
        // After a timeout the last known state counts.
        let _ = tokio::time::timeout(patience, ended).await;
    }

    /// A probe begins. Returns its number for [`LocalState::end_probe`].
    pub fn begin_probe(&self) -> u64 {
        self.begun.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The probe of this number is done, and its result is recorded.
    pub fn end_probe(&self, number: u64) {
        self.ended.send_replace(number);
    }

    /// A response contradicts the known served set: read discovery again.
    pub fn doubt(&self) {
        self.reread.notify_one();
    }

    /// Notifies of changes of readiness and of the history's start, from now on.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Sets a flag, and notifies of a change. Returns whether it is one.
    fn set(&self, flag: &AtomicBool, value: bool) -> bool {
        let changed = flag.swap(value, Ordering::Relaxed) != value;
        if changed {
            self.changed.send_replace(());
        }
        changed
    }

    /// What is known of the present process.
    fn of_process<T, R>(&self, of: &OfEpoch<T>, read: impl FnOnce(&T) -> R) -> Option<R> {
        match of.load().as_deref() {
            Some((epoch, known)) if *epoch == self.epoch() => Some(read(known)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initialized_once_stays_so_while_readyz_fails() {
        let state = LocalState::default();
        state.answered(false, 0);
        assert!(!state.is_initialized());
        state.answered(true, 0);
        state.answered(false, 0);
        assert!(state.is_initialized() && !state.is_ready());
    }

    #[test]
    fn a_refused_connection_means_a_new_process() {
        let state = LocalState::default();
        state.answered(true, state.epoch());
        state.refused();
        assert!(!state.is_initialized() && !state.is_ready());
        state.answered(true, state.epoch());
        assert!(state.is_initialized() && state.is_ready());
    }

    #[test]
    fn a_change_wakes_everybody_and_nothing_else_does() {
        let state = LocalState::default();
        let mut waiters = [state.changes(), state.changes()];
        let mut woken = || {
            waiters.each_mut().map(|waiter| {
                let changed = waiter.has_changed().unwrap();
                waiter.mark_unchanged();
                changed
            })
        };
        state.answered(false, state.epoch());
        assert_eq!(woken(), [false; 2]);
        state.answered(true, state.epoch());
        assert_eq!(woken(), [true; 2]);
        state.refused();
        assert_eq!(woken(), [true; 2]);
        state.refused();
        assert_eq!(woken(), [false; 2]);
    }

    const PATIENCE: Duration = Duration::from_secs(1);

    /// The result for a rejected request if `probe` happens meanwhile.
    async fn turned_away(state: &LocalState, probe: impl Fn(&LocalState)) -> bool {
        let probing = async {
            state.wanted.notified().await;
            probe(state);
        };
        tokio::join!(state.has_turned_away(PATIENCE), probing).0
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_turned_away_is_confirmed_when_the_next_probe_says_so() {
        let state = LocalState::default();
        state.answered(true, 0);
        let before = state.begin_probe();
        // A probe that began earlier proves nothing.
        assert!(!turned_away(&state, |state| state.end_probe(before)).await);
        let next = |says_so| {
            move |state: &LocalState| {
                let number = state.begin_probe();
                state.shuts_down(says_so, 0);
                state.end_probe(number);
            }
        };
        assert!(!turned_away(&state, next(false)).await);
        assert!(!state.turns_away());
        let changes = state.changes();
        assert!(turned_away(&state, next(true)).await);
        assert!(state.turns_away() && state.is_initialized());
        assert!(changes.has_changed().unwrap());
        // No probe is waited for any more.
        assert!(state.has_turned_away(PATIENCE).await);
        state.shuts_down(false, 0);
        assert!(!state.turns_away());
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_is_gone_has_executed_nothing_and_the_next_turns_nobody_away() {
        let state = LocalState::default();
        state.answered(true, 0);
        state.shuts_down(true, 0);
        assert!(state.has_turned_away(PATIENCE).await);
        state.refused();
        assert!(!state.turns_away());
        let gone = |state: &LocalState| {
            let number = state.begin_probe();
            state.refused();
            state.end_probe(number);
        };
        assert!(turned_away(&state, gone).await);
        assert!(!state.turns_away());
        // A response of the former process.
        state.shuts_down(true, 0);
        assert!(!turned_away(&state, |_| ()).await);
    }

    #[test]
    fn the_history_of_the_process_before_is_not_that_of_the_next() {
        let state = LocalState::default();
        assert_eq!(state.history_start(), i64::MAX);
        let epoch = state.epoch();
        state.begins_at(70, epoch);
        assert_eq!(state.history_start(), 70);
        state.refused();
        assert_eq!(state.history_start(), i64::MAX);
        state.begins_at(80, epoch);
        assert_eq!(state.history_start(), i64::MAX);
    }

    #[test]
    fn what_a_lost_history_told_is_known_until_the_next_one_is_seen() {
        for (history_void, is_late) in [(false, false), (true, false), (true, true)] {
            let former = Arc::new(OnceLock::new());
            let state = LocalState::new(former.clone());
            assert!(state.may_resume_elsewhere(60));
            if is_late {
                state.begins_at(70, state.epoch());
            }
            let record = FormerRecord {
                binary_version: None,
                served: Arc::default(),
                history_void,
            };
            former.set(record).unwrap();
            assert_eq!(state.may_resume_elsewhere(60), !history_void);
            state.begins_at(70, state.epoch());
            assert_eq!(state.may_resume_elsewhere(60), !history_void);
            assert!(state.may_resume_elsewhere(70) && !state.is_history_void());
            // Also when that process has ended.
            state.refused();
            assert_eq!(state.may_resume_elsewhere(60), !history_void);
            assert!(state.may_resume_elsewhere(70));
            // etcd is restored again.
            state.begins_at(80, state.epoch());
            state.void_history(state.epoch(), history_void);
            state.void_history(state.epoch(), false);
            state.begins_at(85, state.epoch());
            assert!(!state.may_resume_elsewhere(90));
            let epoch = state.epoch();
            assert_eq!(state.was_lost(epoch), history_void);
            state.refused();
            assert!(state.was_void(epoch) && !state.is_history_void());
            assert!(!state.was_lost(state.epoch()));
            state.begins_at(90, state.epoch());
            assert!(!state.may_resume_elsewhere(89) && state.may_resume_elsewhere(90));
        }
    }

    #[test]
    fn the_version_of_the_process_before_is_not_that_of_the_next() {
        let state = LocalState::default();
        assert!(!state.user_details().credential_id);
        state.is_of_version("v1.36.0", state.epoch());
        assert!(state.user_details().credential_id);
        state.refused();
        assert!(!state.user_details().credential_id);
        state.is_of_version("v1.20.2", state.epoch());
        assert!(!state.user_details().credential_id);
    }

    #[test]
    fn an_answer_of_the_process_before_says_nothing_of_the_next() {
        let state = LocalState::default();
        let asked_in = state.epoch();
        state.refused();
        state.answered(true, asked_in);
        assert!(!state.is_initialized() && !state.is_ready());
    }

    #[test]
    fn nothing_is_known_of_a_process_that_was_not_asked() {
        let state = LocalState::default();
        assert!(!state.trusts_proxy() && state.trust_problems().is_some());
        state.set_trust(0, String::new(), "more names".to_owned());
        assert!(state.trusts_proxy() && state.trust_problems().is_none());
        state.refused();
        assert!(!state.trusts_proxy() && state.trust_problems().is_some());
        state.set_trust(1, "another name".to_owned(), String::new());
        assert!(!state.trusts_proxy());
        assert_eq!(state.trust_problems().as_deref(), Some("another name"));
    }
}
