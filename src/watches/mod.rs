//! Watches across restarts (KEP-1904): since when each apiserver has history ([`history`]), and which watches a peer
//! with a longer one serves better ([`resume`]).

pub mod history;
pub mod resume;
