//! Three real kube-apiservers with proxies are restarted one after the other: what the clients of all of them notice. It
//! takes minutes; tests run in the order of their names, and this one begins early.

mod ledger;
mod reopening;
mod rollout;
