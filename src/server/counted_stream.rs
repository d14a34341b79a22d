//! A client's connection that reports to [`Outflow`] what its socket accepts.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pingora_core::protocols::IO;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::delegate::delegate_connection;
use crate::relay::client::unread::UnreadBudget;
use crate::relay::client::unread::outflow::Outflow;

/// A stream that counts its writes, and that other tasks can cut off.
#[derive(Debug)]
pub struct CountedStream<S> {
    stream: S,
    outflow: Arc<Outflow>,
    unread: Arc<UnreadBudget>,
}

impl<S> CountedStream<S> {
    pub fn new(stream: S, outflow: Arc<Outflow>, unread: Arc<UnreadBudget>) -> Self {
        Self {
            stream,
            outflow,
            unread,
        }
    }

    fn wrote(&self, written: io::Result<usize>) -> io::Result<usize> {
        self.outflow.wrote(*written.as_ref().unwrap_or(&0));
        written
    }

    fn full<T>(&self, context: &Context<'_>) -> Poll<T> {
        if self.outflow.is_full(context.waker()) {
            self.unread.list_socket(&self.outflow);
        }
        Poll::Pending
    }

    fn cut_off(&self) -> io::Result<()> {
        match self.outflow.has_ended() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

impl<S> Drop for CountedStream<S> {
    fn drop(&mut self) {
        self.outflow.end();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.cut_off()?;
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Ready(written) => Poll::Ready(self.wrote(written)),
            Poll::Pending => self.full(context),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.cut_off()?;
        match Pin::new(&mut self.stream).poll_write_vectored(context, slices) {
            Poll::Ready(written) => Poll::Ready(self.wrote(written)),
            Poll::Pending => self.full(context),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.cut_off()?;
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Ready(flushed) => {
                self.outflow.wrote(0);
                Poll::Ready(flushed)
            }
            Poll::Pending => self.full(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.cut_off()?;
        match Pin::new(&mut self.stream).poll_shutdown(context) {
            Poll::Ready(shut) => Poll::Ready(shut),
            Poll::Pending => self.full(context),
        }
    }
}

delegate_connection!([S: IO] CountedStream<S>);
