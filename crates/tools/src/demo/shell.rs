//! Command lines: printed to be read and copied, run exactly as printed, their output parsed.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use testkit::pki::SERVER_NAME;

/// As whom a request is made.
#[derive(Clone, Copy)]
pub enum Who<'a> {
    /// With the client certificate `NAME.crt`.
    Certificate(&'a str),
    /// With a bearer token.
    Token(&'a str),
}

/// `curl` for `path` at the server on `to`, verified by the name in every apiserver's certificate.
pub fn curl(to: SocketAddr, who: Who<'_>, more: &str, path: &str) -> String {
    let identity = match who {
        Who::Certificate(name) => format!("--cert {name}.crt --key {name}.key"),
        Who::Token(token) => format!("-H 'Authorization: Bearer {token}'"),
    };
    let more = match more {
        "" => String::new(),
        more => format!("{more} \\\n      "),
    };
    format!(
        "curl -isS --cacert ca.crt {identity} --connect-to ::{to} \\\n      {more}https://{SERVER_NAME}{path}"
    )
}

/// What a command printed.
pub struct Output {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a line in a shell, in `dir`, with nothing of the caller's environment that curl or kubectl would listen to.
pub async fn run(line: &str, dir: &Path) -> Output {
    // Nothing here takes that long; a request that hangs is to be seen as one.
    let mut command = Command::new("timeout");
    command
        .args(["20", "sh", "-c", line])
        .current_dir(dir)
        .env_clear()
        .env("HOME", dir)
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    let run = tokio::task::spawn_blocking(move || command.output());
    let output = run.await.expect("a thread").expect("timeout and sh");
    Output {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// An HTTP answer, as `curl -i` prints it.
#[derive(Debug)]
pub struct Answer {
    /// `HTTP/2 200`; curl's complaint if there was no answer.
    pub status_line: String,
    /// 0 if there was no answer.
    pub code: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Answer {
    pub fn parse(output: &Output) -> Self {
        let mut rest = output.stdout.replace("\r\n", "\n");
        loop {
            let (head, body) = rest.split_once("\n\n").unwrap_or((rest.as_str(), ""));
            let mut lines = head.lines();
            let status_line = lines.next().unwrap_or_default().trim().to_owned();
            let code = status_line.split(' ').nth(1);
            let code = code.and_then(|code| code.parse().ok()).unwrap_or(0);
            if (100..200).contains(&code) {
                rest = body.to_owned();
                continue;
            }
            return Self {
                status_line: if code == 0 {
                    output.stderr.trim().to_owned()
                } else {
                    status_line
                },
                code,
                headers: lines
                    .filter_map(|line| line.split_once(": "))
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
                body: body.to_owned(),
            };
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// What is worth showing.
    pub fn lines(&self) -> Vec<String> {
        let headers = ["Retry-After", "X-Kubernetes-Ready"]
            .iter()
            .filter_map(|name| self.header(name).map(|value| format!("{name}: {value}")));
        std::iter::once(self.status_line.clone())
            .chain(headers)
            .chain(digest(&self.body))
            .collect()
    }
}

/// A body in a line: what kind of object it is, and what it says.
pub fn digest(body: &str) -> Option<String> {
    let body = body.trim();
    if body.is_empty() {
        return None;
    }
    let Ok(object) = serde_json::from_str::<Value>(body) else {
        return Some(shortened(body));
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let kind = text(&object["kind"]);
    Some(match (kind.as_str(), object["items"].is_array()) {
        ("Status", _) => format!(
            "Status, reason {}: {}",
            text(&object["reason"]),
            text(&object["message"])
        ),
        (_, true) => format!(
            "{kind} of {}: {}",
            text(&object["apiVersion"]),
            listed(&names(body))
        ),
        ("APIResourceList", _) => format!("{kind} of {}", text(&object["groupVersion"])),
        _ if object["metadata"]["name"].is_string() => {
            format!("{kind} {}", text(&object["metadata"]["name"]))
        }
        _ => shortened(body),
    })
}

/// The objects of a list.
pub fn names(body: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(body).unwrap_or_default();
    let items = list["items"].as_array().into_iter().flatten();
    items
        .filter_map(|item| item["metadata"]["name"].as_str())
        .map(str::to_owned)
        .collect()
}

pub fn listed(names: &[String]) -> String {
    match names {
        [] => "nothing".to_owned(),
        names => names.join(", "),
    }
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 90;
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}
