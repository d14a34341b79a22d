//! The TLS port for monitoring from other hosts: `/metrics` for those whom the local apiserver allows it, `/livez` and
//! `/readyz` for everybody, nothing else.
//!
//! As in Kubernetes' own components, clients bring a token or a certificate, and the local apiserver decides with a
//! TokenReview and a SubjectAccessReview. Without its answer nobody gets anything, but for those whom it allowed it within
//! the last minutes. Anyone on the network can connect, so connections, reviews and kept decisions are bounded, and TLS
//! handshakes take turns. No token is kept or logged.
//!
//! `listen` accepts and answers, `gate` admits requests, `decisions` keeps verdicts, `review` asks the apiserver.

mod decisions;
mod gate;
mod listen;
mod review;

pub(super) use self::gate::Gate;
pub(super) use self::listen::SecurePort;
