//! `X-Kubernetes-If-Ready` (KEP-3028): the request is to be answered only by an initialized apiserver. Pure.

use crate::config::{Enforce, IfReadyConfig, IfReadyMode};

/// What to do with a request. `ready`: the value of `X-Kubernetes-Ready` on the answer, for a client that asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Answer 503; the apiserver gets nothing.
    Refuse {
        /// `Some(false)` if the request asked.
        ready: Option<bool>,
    },
    /// Process the request.
    Pass {
        /// `Some` only if the request asked.
        ready: Option<bool>,
    },
}

/// `asked`: the request has the header, with any value.
pub fn gate(config: &IfReadyConfig, path: &str, asked: bool, initialized: bool) -> Gate {
    if !config.enabled {
        return Gate::Pass { ready: None };
    }
    let ready = asked.then_some(initialized);
    let gated = asked || (config.enforce == Enforce::Always && !is_exempt(path));
    if gated && !initialized && config.mode == IfReadyMode::Retry {
        Gate::Refuse { ready }
    } else {
        Gate::Pass { ready }
    }
}

/// Requests that are useful before an apiserver is up: they are refused only if they have the header.
fn is_exempt(path: &str) -> bool {
    let first = path.strip_prefix('/').unwrap_or(path);
    let first = first.split_once('/').map_or(first, |(first, _)| first);
    matches!(first, "livez" | "readyz" | "healthz" | "metrics") || path == "/version"
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: &str = "/api/v1/pods";
    const SILENT: Gate = Gate::Pass { ready: None };

    fn config(mode: IfReadyMode, enforce: Enforce) -> IfReadyConfig {
        IfReadyConfig {
            enabled: true,
            mode,
            enforce,
            retry_after_seconds: 5,
            retry_after_jitter_seconds: 0,
        }
    }

    fn reported(ready: bool) -> Gate {
        Gate::Pass { ready: Some(ready) }
    }

    /// What becomes of requests that (asked, found it initialized).
    fn cases(config: &IfReadyConfig, path: &str) -> [Gate; 4] {
        [(true, false), (true, true), (false, false), (false, true)]
            .map(|(asked, initialized)| gate(config, path, asked, initialized))
    }

    #[test]
    fn the_four_cases_of_the_kep() {
        let config = config(IfReadyMode::Retry, Enforce::OptIn);
        let refused = Gate::Refuse { ready: Some(false) };
        assert_eq!(
            cases(&config, PODS),
            [refused, reported(true), SILENT, SILENT]
        );
    }

    #[test]
    fn always_holds_back_those_that_did_not_ask_and_tells_them_nothing() {
        let config = config(IfReadyMode::Retry, Enforce::Always);
        let refused = Gate::Refuse { ready: Some(false) };
        let silently = Gate::Refuse { ready: None };
        assert_eq!(
            cases(&config, PODS),
            [refused, reported(true), silently, SILENT]
        );
    }

    #[test]
    fn health_metrics_and_version_are_held_back_only_if_they_ask() {
        let config = config(IfReadyMode::Retry, Enforce::Always);
        for path in [
            "/livez",
            "/livez/ping",
            "/readyz",
            "/readyz/etcd",
            "/healthz",
            "/healthz/poststarthook/x",
            "/metrics",
            "/metrics/slis",
            "/version",
        ] {
            assert_eq!(gate(&config, path, false, false), SILENT, "{path}");
            assert_eq!(
                gate(&config, path, true, false),
                Gate::Refuse { ready: Some(false) },
                "{path}"
            );
        }
        for path in [
            "/version/x",
            "/versions",
            "/readyzzz",
            "/",
            "/api",
            "/api/v1/namespaces/metrics",
            "//metrics",
        ] {
            let gate = gate(&config, path, false, false);
            assert_eq!(gate, Gate::Refuse { ready: None }, "{path}");
        }
    }

    #[test]
    fn annotate_refuses_nothing_and_answers_those_that_asked() {
        for enforce in [Enforce::OptIn, Enforce::Always] {
            let config = config(IfReadyMode::Annotate, enforce);
            assert_eq!(
                cases(&config, PODS),
                [reported(false), reported(true), SILENT, SILENT]
            );
        }
    }

    #[test]
    fn switched_off_it_is_as_if_nobody_asked() {
        let off = IfReadyConfig {
            enabled: false,
            ..config(IfReadyMode::Annotate, Enforce::Always)
        };
        assert_eq!(cases(&off, PODS), [SILENT; 4]);
    }
}
