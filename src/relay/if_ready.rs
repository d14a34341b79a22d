//! `X-Kubernetes-If-Ready` (KEP-3028): answer only when the apiserver is initialized. Pure.

use crate::config::IfReady;

/// What the gate says of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// 503, and nothing reaches the apiserver.
    Refuse,
    /// Processed. `tell`: the value of `X-Kubernetes-Ready` on the answer, for a client that asked.
    Pass {
        /// `Some` only if the request asked.
        tell: Option<bool>,
    },
}

/// Asks the gate. `asked`: the request has the header, whatever its value.
pub fn gate(config: &IfReady, asked: bool, initialized: bool) -> Gate {
    match (config.enabled && asked, initialized) {
        (true, false) => Gate::Refuse,
        (true, true) => Gate::Pass { tell: Some(true) },
        (false, _) => Gate::Pass { tell: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Enforce, IfReadyMode};

    fn config(enabled: bool) -> IfReady {
        IfReady {
            enabled,
            mode: IfReadyMode::Retry,
            enforce: Enforce::OptIn,
            retry_after_seconds: 5,
        }
    }

    #[test]
    fn the_four_cases_of_the_kep() {
        assert_eq!(gate(&config(true), true, false), Gate::Refuse);
        assert_eq!(
            gate(&config(true), true, true),
            Gate::Pass { tell: Some(true) }
        );
        assert_eq!(gate(&config(true), false, false), Gate::Pass { tell: None });
        assert_eq!(gate(&config(true), false, true), Gate::Pass { tell: None });
    }

    #[test]
    fn switched_off_it_is_as_if_nobody_asked() {
        assert_eq!(gate(&config(false), true, false), Gate::Pass { tell: None });
        assert_eq!(gate(&config(false), true, true), Gate::Pass { tell: None });
    }
}
