//! The client's side of an upgraded stream. Keeps bytes that arrive with the response header.

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::client::Client;

/// A stream behind its 101, with the response's header.
pub struct Upgraded {
    pub header: String,
    pub stream: TlsStream<TcpStream>,
    /// Came with the header.
    pub early: Vec<u8>,
}

impl Upgraded {
    /// Sends a request and what follows it in one write.
    pub async fn open(client: &Client, request: &str, behind: &[u8]) -> anyhow::Result<Self> {
        let mut stream = client.connect_raw(&["http/1.1"]).await?;
        stream
            .write_all(&[request.as_bytes(), behind].concat())
            .await?;
        stream.flush().await?;
        let mut read = Vec::new();
        loop {
            if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
                let early = read.split_off(end + 4);
                let header = String::from_utf8(read)?;
                ensure!(header.starts_with("HTTP/1.1 101 "), "{header}");
                return Ok(Self {
                    header,
                    stream,
                    early,
                });
            }
            let length = stream.read_buf(&mut read).await.context("the header")?;
            ensure!(length > 0, "it ended after \"{}\"", read.escape_ascii());
        }
    }

    pub async fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.stream.write_all(bytes).await?;
        Ok(self.stream.flush().await?)
    }

    /// The next bytes must be these.
    pub async fn expect(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut read = std::mem::take(&mut self.early);
        while read.len() < bytes.len() {
            let length = self.stream.read_buf(&mut read).await?;
            ensure!(length > 0, "it ended after \"{}\"", read.escape_ascii());
        }
        self.early = read.split_off(bytes.len());
        ensure!(read == bytes, "it said \"{}\"", read.escape_ascii());
        Ok(())
    }

    /// How many bytes come before the end.
    pub async fn count(mut self) -> anyhow::Result<usize> {
        let rest = tokio::io::copy(&mut self.stream, &mut tokio::io::sink()).await?;
        Ok(self.early.len() + usize::try_from(rest)?)
    }
}
