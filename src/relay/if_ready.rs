//! `X-Kubernetes-If-Ready` (KEP-3028): answer only when the apiserver is initialized. Pure.

use crate::config::{Enforce, IfReady, IfReadyMode};

/// What the gate says of a request. `tell`: the value of `X-Kubernetes-Ready` on the answer; only for a client that asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// 503, and nothing reaches the apiserver.
    Refuse {
        /// `Some(false)` if the request asked.
        tell: Option<bool>,
    },
    /// Processed.
    Pass {
        /// `Some` only if the request asked.
        tell: Option<bool>,
    },
}

/// Asks the gate. `asked`: the request has the header, whatever its value.
pub fn gate(config: &IfReady, path: &str, asked: bool, initialized: bool) -> Gate {
    if !config.enabled {
        return Gate::Pass { tell: None };
    }
    let tell = asked.then_some(initialized);
    let held = asked || (config.enforce == Enforce::Always && !is_exempt(path));
    if held && !initialized && config.mode == IfReadyMode::Retry {
        Gate::Refuse { tell }
    } else {
        Gate::Pass { tell }
    }
}

/// What is asked of a server that is not up yet: of these, only requests that say so are held back.
fn is_exempt(path: &str) -> bool {
    let first = path.strip_prefix('/').unwrap_or(path);
    let first = first.split_once('/').map_or(first, |(first, _)| first);
    matches!(first, "livez" | "readyz" | "healthz" | "metrics") || path == "/version"
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: &str = "/api/v1/pods";
    const SILENT: Gate = Gate::Pass { tell: None };

    fn config(mode: IfReadyMode, enforce: Enforce) -> IfReady {
        IfReady {
            enabled: true,
            mode,
            enforce,
            retry_after_seconds: 5,
            retry_after_jitter_seconds: 0,
        }
    }

    fn told(ready: bool) -> Gate {
        Gate::Pass { tell: Some(ready) }
    }

    /// What becomes of requests that (asked, found it initialized).
    fn cases(config: &IfReady, path: &str) -> [Gate; 4] {
        [(true, false), (true, true), (false, false), (false, true)]
            .map(|(asked, initialized)| gate(config, path, asked, initialized))
    }

    #[test]
    fn the_four_cases_of_the_kep() {
        let config = config(IfReadyMode::Retry, Enforce::OptIn);
        let refused = Gate::Refuse { tell: Some(false) };
        assert_eq!(cases(&config, PODS), [refused, told(true), SILENT, SILENT]);
    }

    #[test]
    fn always_holds_back_those_that_did_not_ask_and_tells_them_nothing() {
        let config = config(IfReadyMode::Retry, Enforce::Always);
        let refused = Gate::Refuse { tell: Some(false) };
        let silently = Gate::Refuse { tell: None };
        assert_eq!(
            cases(&config, PODS),
            [refused, told(true), silently, SILENT]
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
                Gate::Refuse { tell: Some(false) },
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
            assert_eq!(gate, Gate::Refuse { tell: None }, "{path}");
        }
    }

    #[test]
    fn annotate_refuses_nothing_and_answers_those_that_asked() {
        for enforce in [Enforce::OptIn, Enforce::Always] {
            let config = config(IfReadyMode::Annotate, enforce);
            assert_eq!(
                cases(&config, PODS),
                [told(false), told(true), SILENT, SILENT]
            );
        }
    }

    #[test]
    fn switched_off_it_is_as_if_nobody_asked() {
        let off = IfReady {
            enabled: false,
            ..config(IfReadyMode::Annotate, Enforce::Always)
        };
        assert_eq!(cases(&off, PODS), [SILENT; 4]);
    }
}
