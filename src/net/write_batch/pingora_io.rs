//! A write batch as pingora's connection, for its HTTP/1.1.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pingora_core::protocols::raw_connect::ProxyDigest;
use pingora_core::protocols::tls::SslDigest;
use pingora_core::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    Stream, TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::AsyncWriteExt;

use super::{WriteBatch, lock};

impl fmt::Debug for WriteBatch<Stream> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        lock(&self.0).stream.fmt(formatter)
    }
}

#[async_trait]
impl Shutdown for WriteBatch<Stream> {
    async fn shutdown(&mut self) {
        // The connection is over, whether the client takes the rest or not.
        let _ = AsyncWriteExt::shutdown(self).await;
    }
}

impl UniqueID for WriteBatch<Stream> {
    fn id(&self) -> UniqueIDType {
        lock(&self.0).stream.id()
    }
}

impl Ssl for WriteBatch<Stream> {
    fn get_ssl_digest(&self) -> Option<Arc<SslDigest>> {
        lock(&self.0).stream.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        lock(&self.0).stream.selected_alpn_proto()
    }
}

impl GetTimingDigest for WriteBatch<Stream> {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        lock(&self.0).stream.get_timing_digest()
    }

    fn get_read_pending_time(&self) -> Duration {
        lock(&self.0).stream.get_read_pending_time()
    }

    fn get_write_pending_time(&self) -> Duration {
        lock(&self.0).stream.get_write_pending_time()
    }
}

impl GetProxyDigest for WriteBatch<Stream> {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        lock(&self.0).stream.get_proxy_digest()
    }

    fn set_proxy_digest(&mut self, digest: ProxyDigest) {
        lock(&self.0).stream.set_proxy_digest(digest);
    }
}

impl GetSocketDigest for WriteBatch<Stream> {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        lock(&self.0).stream.get_socket_digest()
    }

    fn set_socket_digest(&mut self, digest: SocketDigest) {
        lock(&self.0).stream.set_socket_digest(digest);
    }
}

impl Peek for WriteBatch<Stream> {}
