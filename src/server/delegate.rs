//! Implements pingora's connection traits for wrappers.

/// Delegates everything except reading and writing to the field `stream`. The generics of the type are in brackets.
macro_rules! delegate_connection {
    ([$($generics:tt)*] $connection:ty) => {
        #[async_trait::async_trait]
        impl<$($generics)*> pingora_core::protocols::Shutdown for $connection {
            async fn shutdown(&mut self) {
                self.stream.shutdown().await;
            }
        }

        impl<$($generics)*> pingora_core::protocols::UniqueID for $connection {
            fn id(&self) -> pingora_core::protocols::UniqueIDType {
                self.stream.id()
            }
        }

        impl<$($generics)*> pingora_core::protocols::Ssl for $connection {
            fn get_ssl(&self) -> Option<&pingora_core::protocols::tls::TlsRef> {
                self.stream.get_ssl()
            }

            fn get_ssl_digest(
                &self,
            ) -> Option<std::sync::Arc<pingora_core::protocols::tls::SslDigest>> {
                self.stream.get_ssl_digest()
            }

            fn selected_alpn_proto(&self) -> Option<pingora_core::protocols::ALPN> {
                self.stream.selected_alpn_proto()
            }
        }

        impl<$($generics)*> pingora_core::protocols::GetTimingDigest for $connection {
            fn get_timing_digest(&self) -> Vec<Option<pingora_core::protocols::TimingDigest>> {
                self.stream.get_timing_digest()
            }

            fn get_read_pending_time(&self) -> std::time::Duration {
                self.stream.get_read_pending_time()
            }

            fn get_write_pending_time(&self) -> std::time::Duration {
                self.stream.get_write_pending_time()
            }
        }

        impl<$($generics)*> pingora_core::protocols::GetProxyDigest for $connection {
            fn get_proxy_digest(
                &self,
            ) -> Option<std::sync::Arc<pingora_core::protocols::raw_connect::ProxyDigest>> {
                self.stream.get_proxy_digest()
            }

            fn set_proxy_digest(
                &mut self,
                digest: pingora_core::protocols::raw_connect::ProxyDigest,
            ) {
                self.stream.set_proxy_digest(digest);
            }
        }

        impl<$($generics)*> pingora_core::protocols::GetSocketDigest for $connection {
            fn get_socket_digest(
                &self,
            ) -> Option<std::sync::Arc<pingora_core::protocols::SocketDigest>> {
                self.stream.get_socket_digest()
            }

            fn set_socket_digest(&mut self, digest: pingora_core::protocols::SocketDigest) {
                self.stream.set_socket_digest(digest);
            }
        }

        impl<$($generics)*> pingora_core::protocols::Peek for $connection {}
    };
}

pub(crate) use delegate_connection;
