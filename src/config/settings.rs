//! The settings that are read again while the proxy runs.
//!
//! [`crate::reload`] is the only writer, and replaces them as a whole. A request copies them once, when it begins, and
//! goes by this copy to its end, so no request sees half of a change. A watch that is to go on elsewhere reads them anew.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::{
    Config, DefaultVersion, DiscoveryMode, EffectiveValues, IfReadyConfig, Unsynced, WatchConfig,
};

/// The current values of the keys that [`is_reloaded`] names and requests go by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub if_ready: IfReadyConfig,
    /// `rerouting.enabled`
    pub rerouting: bool,
    /// `rerouting.unsynced`
    pub unsynced: Unsynced,
    /// `versionAwareness.enabled`
    pub version_awareness: bool,
    /// `versionAwareness.default`
    pub default_version: DefaultVersion,
    /// `versionAwareness.userAgents`
    pub user_agents: bool,
    /// `discovery.mode`
    pub discovery: DiscoveryMode,
    pub watch: WatchConfig,
}

/// Whether a key takes effect without a restart.
pub fn is_reloaded(key: &str) -> bool {
    const KEYS: [&str; 8] = [
        "discovery.mode",
        "logging.filter",
        "rerouting.enabled",
        "rerouting.ignoredAddresses",
        "rerouting.unsynced",
        "versionAwareness.default",
        "versionAwareness.enabled",
        "versionAwareness.userAgents",
    ];
    const SECTIONS: [&str; 2] = ["ifReady.", "watch."];
    KEYS.contains(&key) || SECTIONS.iter().any(|section| key.starts_with(section))
}

/// The keys whose values differ, in alphabetical order, each with a text that says how.
pub fn changes<'a>(
    before: &'a EffectiveValues,
    now: &'a EffectiveValues,
) -> Vec<(&'a str, String)> {
    let keys: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let differing = keys
        .into_iter()
        .filter(|key| before.get(*key) != now.get(*key));
    let shown = |values: &'a EffectiveValues, key| values.get(key).map_or("unset", String::as_str);
    let change = |key| format!("{key}: {} -> {}", shown(before, key), shown(now, key));
    differing.map(|key| (key.as_str(), change(key))).collect()
}

/// What differs and takes effect at the next start alone.
pub fn waiting(before: &EffectiveValues, now: &EffectiveValues) -> Vec<String> {
    let waiting = changes(before, now).into_iter();
    let waiting = waiting.filter(|(key, _)| !is_reloaded(key));
    waiting.map(|(_, change)| change).collect()
}

impl Settings {
    pub fn of(config: &Config) -> Self {
        Self {
            if_ready: config.if_ready,
            rerouting: config.rerouting.enabled,
            unsynced: config.rerouting.unsynced,
            version_awareness: config.version_awareness.enabled,
            default_version: config.version_awareness.default,
            user_agents: config.version_awareness.user_agents,
            discovery: config.discovery.mode,
            watch: config.watch,
        }
    }

    /// Whether clients see the merged documents of all servers.
    pub fn merges_discovery(&self) -> bool {
        self.rerouting && self.discovery == DiscoveryMode::Merged
    }
}

#[cfg(test)]
impl Settings {
    /// The defaults.
    pub(crate) const DEFAULT: Self = Self {
        if_ready: IfReadyConfig {
            enabled: true,
            mode: super::IfReadyMode::Retry,
            enforce: super::Enforce::OptIn,
            retry_after_seconds: 5,
            retry_after_jitter_seconds: 0,
        },
        rerouting: true,
        unsynced: Unsynced::Reject,
        version_awareness: true,
        default_version: DefaultVersion::Any,
        user_agents: true,
        discovery: DiscoveryMode::Merged,
        watch: WatchConfig {
            resume_routing: true,
            bookmark_on_shutdown: true,
            hand_over: true,
            hand_over_timeout: std::time::Duration::from_secs(30),
        },
    };
}

/// The settings in force.
pub struct SharedSettings {
    current: ArcSwap<Settings>,
    /// `rerouting.ignoredAddresses`
    ignored_addresses: watch::Sender<Arc<BTreeSet<IpAddr>>>,
}

impl SharedSettings {
    pub fn new(config: &Config) -> Self {
        Self {
            current: ArcSwap::from_pointee(Settings::of(config)),
            ignored_addresses: watch::Sender::new(ignored_addresses(config)),
        }
    }

    /// A copy. Without locks.
    pub fn load(&self) -> Settings {
        **self.current.load()
    }

    pub(crate) fn store(&self, config: &Config) {
        self.current.store(Settings::of(config).into());
        let ignored = ignored_addresses(config);
        self.ignored_addresses.send_replace(ignored);
    }

    /// Notified after each change of any setting; has `rerouting.ignoredAddresses`.
    pub fn changes(&self) -> watch::Receiver<Arc<BTreeSet<IpAddr>>> {
        self.ignored_addresses.subscribe()
    }
}

fn ignored_addresses(config: &Config) -> Arc<BTreeSet<IpAddr>> {
    Arc::new(config.rerouting.ignored_addresses.iter().copied().collect())
}
