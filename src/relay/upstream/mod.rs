//! Connections to apiservers, and what is known of the servers behind them: which have failed, and from which
//! nothing comes ([`health`]). The plan asks which servers to avoid; an exchange takes a session and gives it back.
//!
//! There are two kinds of connection, because kube-apiserver authenticates the connection before the token: with the
//! proxy client certificate it accepts the named user and answers anonymous requests with 401. Without the certificate
//! tokens and anonymous requests work as they do without a proxy. Each thread has its own pools. Long-running requests
//! have their own connections: the unread data of a slow watcher must not use up the window of a shared connection.
//!
//! Since 1.29 kube-apiserver closes an HTTP/2 connection after each request that it does not authenticate. So callers
//! without our certificate share connections to such a server only after an apiserver has accepted their token
//! ([`Tokens`]). Until then they use the connections of their own client's connection ([`crate::relay::client`]),
//! and cannot end other requests. Who has a certificate and is named as if unauthenticated gets a connection for each
//! request.
//!
//! When certificate files change, new pools are made ([`crate::tls::credentials`]). Running requests end on the old ones;
//! long-running requests end one after the other ([`crate::relay::watch`]).

pub mod health;
mod pool;
mod stream;

pub use self::pool::{
    ConnectionChoice, ConnectionPool, RequestKind, STREAMS, Token, Tokens, Upstream, Upstreams,
};
pub use self::stream::{
    BodyPrefix, LONG_RUNNING_WINDOW, STREAM_WINDOW, UpstreamSession, UpstreamStream,
};
