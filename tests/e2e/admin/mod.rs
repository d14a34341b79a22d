//! The admin ports: pages for the operator, metrics and health for other hosts.

pub mod pages;
pub mod secure;
