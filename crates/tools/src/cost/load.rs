//! h2load, and what it says.

use std::net::SocketAddr;
use std::path::Path;

use super::lab::{AUTHORIZATION, OBJECT};

/// Requests by a user with a token.
pub struct Load {
    pub to: SocketAddr,
    pub path: String,
    pub number: usize,
    pub connections: usize,
    /// Requests at once on each connection.
    pub streams: usize,
    pub http1: bool,
}

impl Load {
    /// Asks for an object over HTTP/2.
    pub fn new(to: SocketAddr, number: usize, connections: usize, streams: usize) -> Self {
        Self {
            to,
            path: OBJECT.to_owned(),
            number,
            connections,
            streams,
            http1: false,
        }
    }

    pub fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// As fast as the answers come. Returns how many were answered in a second.
    pub async fn run(&self) -> f64 {
        let text = self.h2load(&[]).await;
        let rate = text.lines().find_map(|line| {
            let (_, rest) = line.strip_prefix("finished in ")?.split_once(", ")?;
            rest.split_once(" req/s")?.0.parse().ok()
        });
        rate.unwrap_or_else(|| panic!("no rate: {text}"))
    }

    /// At this rate in a second, whether answers come or not. Returns how long each took, in microseconds, in order.
    pub async fn at_rate(&self, rate: f64, dir: &Path) -> Vec<f64> {
        let log = dir.join("requests.log");
        // An old one would be appended to.
        let _ = std::fs::remove_file(&log);
        let each = (rate / self.connections as f64).max(1.0).to_string();
        let log_file = log.display().to_string();
        self.h2load(&["--rps", &each, "--log-file", &log_file])
            .await;
        let text = std::fs::read_to_string(&log).expect("h2load's log");
        let times = text
            .lines()
            .filter_map(|line| line.split('\t').nth(2)?.parse().ok());
        let mut times: Vec<f64> = times.collect();
        times.sort_by(f64::total_cmp);
        times
    }

    async fn h2load(&self, further: &[&str]) -> String {
        let arguments = [
            ("-n", self.number),
            ("-c", self.connections),
            ("-m", self.streams),
            ("-t", 1),
        ];
        let mut command = tokio::process::Command::new("h2load");
        for (name, value) in arguments {
            command.arg(name).arg(value.to_string());
        }
        command.args(self.http1.then_some("--h1")).args(further);
        command
            .arg("-H")
            .arg(format!("authorization: {AUTHORIZATION}"));
        command.arg(format!("https://{}{}", self.to, self.path));
        let output = command.kill_on_drop(true).output().await;
        let output = output.expect("h2load; install nghttp2-client").stdout;
        let text = String::from_utf8(output).unwrap();
        // An answer over HTTP/1.1 whose status has no words is not counted as a success.
        let all = format!(" {} done, ", self.number);
        let well = ["0 errored, 0 timeout", ", 0 3xx, 0 4xx, 0 5xx"];
        let answered = text.contains(&all) && well.iter().all(|part| text.contains(part));
        assert!(answered, "not all were answered: {text}");
        text
    }
}
