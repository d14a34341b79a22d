//! Fetches documents from an admin port, for `status` and `check --live`: plain HTTP/1.1, one connection for each.

use std::io;

use http::header::{ACCEPT, HOST};
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::PATIENCE;
use crate::admin::document::StatusDocument;
use crate::client::{Broken, ClientResponse, answer};
use crate::config::is_host_and_port;

/// Most values in the status document: parsed, each takes far more memory than its text. A hundred servers of a large
/// cluster have fewer.
const MAX_VALUES: usize = 500_000;

/// Why there is no document; messages are one line.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error(
        "cannot connect: {0}; is kube-interop-proxy running, and is this its admin.bindAddress?"
    )]
    Connect(#[source] io::Error),
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Timeout,
    #[error("the answer cannot be read: {0}")]
    Broken(#[source] Broken),
    #[error("this is not kube-interop-proxy's admin port: {0}")]
    Foreign(String),
}

/// Checks a `HOST:PORT` of the command line.
pub(super) fn address(text: &str) -> Result<String, &'static str> {
    let address = is_host_and_port(text).then(|| text.to_owned());
    address.ok_or("is not HOST:PORT such as 127.0.0.1:6450")
}

/// The status document as the proxy wrote it, and what this version knows of it.
pub(super) async fn status(admin: &str) -> Result<(Value, StatusDocument), FetchError> {
    let answer = get(admin, "/statusz?format=json").await?;
    let document = match answer.status {
        StatusCode::OK => read(&answer.body),
        code => Err(format!("/statusz is answered with {code}")),
    };
    document.map_err(FetchError::Foreign)
}

fn read(body: &[u8]) -> Result<(Value, StatusDocument), String> {
    if body.iter().filter(|byte| **byte == b',').count() > MAX_VALUES {
        return Err("what /statusz says has no end".to_owned());
    }
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    match StatusDocument::deserialize(&value) {
        Ok(document) if value["server"].is_object() => Ok((value, document)),
        _ => Err("what /statusz says is something else".to_owned()),
    }
}

/// What the admin port answers to this path.
pub(super) async fn get(admin: &str, path: &str) -> Result<ClientResponse, FetchError> {
    let exchange = async {
        let tcp = TcpStream::connect(admin).await;
        let asked = ask(tcp.map_err(FetchError::Connect)?, path).await;
        asked.map_err(FetchError::Broken)
    };
    let answer = timeout(PATIENCE, exchange).await;
    answer.unwrap_or(Err(FetchError::Timeout))
}

async fn ask(tcp: TcpStream, path: &str) -> Result<ClientResponse, Broken> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(tcp)).await?;
    // The task ends when the sender is dropped.
    tokio::spawn(connection);
    // The port refuses other names of hosts (DNS rebinding).
    let request = Request::get(path)
        .header(HOST, "localhost")
        .header(ACCEPT, "application/json, text/plain")
        .body(Full::default())?;
    answer(&mut sender, request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_a_port_and_nothing_else() {
        for good in [
            "127.0.0.1:6450",
            "[::1]:6450",
            "localhost:1",
            "cp-1.example:80",
        ] {
            assert_eq!(address(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:0",
            ":6450",
            "127.0.0.1:65536",
            "a:b:1",
            "http://127.0.0.1:6450",
            "user@host:1",
            "127.0.0.1:6450/statusz",
            "a b:1",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_would_fill_the_memory_is_not_read() {
        let many = |count| format!("{{\"server\": {{}}, \"x\": [{}1]}}", "1,".repeat(count));
        assert!(read(many(MAX_VALUES - 1).as_bytes()).is_ok());
        let endless = read(many(MAX_VALUES).as_bytes());
        assert!(endless.unwrap_err().ends_with("has no end"));
    }

    #[test]
    fn what_is_no_status_is_told_apart() {
        assert!(read(b"{\"server\": {}}").is_ok());
        for other in [
            "",
            "ok",
            "{}",
            "[]",
            "null",
            "<html></html>",
            "{\"server\": 1}",
            "{\"server\": {\"ready\": 1}}",
        ] {
            assert!(read(other.as_bytes()).is_err(), "{other}");
        }
    }
}
