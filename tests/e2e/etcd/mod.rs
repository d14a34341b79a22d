//! etcd that dies, freezes, is restored, or has invalid values.

pub mod following;
mod lagging;
mod newer;
pub mod outages;
pub mod reconnecting;
pub mod restored;
mod restored_informers;
pub mod undecodable;
