//! Three real kube-apiservers with proxies are restarted one after the other: what the clients of all of them notice. Each
//! test takes minutes; tests run in the order of their names, and these begin early.

mod ledger;
mod reopening;
mod rollout;
