//! Serving the operator's port.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::apps::ServerApp;
use pingora_core::protocols::l4::stream::Stream as TcpStream;
use tokio::sync::watch;

use super::pages::Pages;
use crate::trouble::Pace;

/// Serves `pages` until dropped.
pub async fn run(listener: TcpListener, pages: Arc<Pages>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "admin port cannot be used");
            return;
        }
    };
    let (_never, shutdown) = watch::channel(false);
    loop {
        match listener.accept().await {
            Ok((tcp, _)) => {
                let (pages, shutdown) = (pages.clone(), shutdown.clone());
                tokio::spawn(async move {
                    pages
                        .process_new(Box::new(TcpStream::from(tcp)), &shutdown)
                        .await
                });
            }
            Err(error) => {
                static PACE: Pace = Pace::new();
                if let Some(left_out) = PACE.admit() {
                    tracing::warn!(%error, left_out, "cannot accept on the admin port");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
