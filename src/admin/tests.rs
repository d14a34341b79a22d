//! `docs/metrics.md` is what the collectors say.

mod reference;
