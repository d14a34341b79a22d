//! A headless Chromium with one page. It is driven over the DevTools protocol through two named pipes: messages are
//! JSON, each ended by a NUL. It can reach only loopback addresses.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use data_encoding::BASE64;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::process::{NotFound, Process};
use super::wait::eventually;

const PATIENCE: Duration = Duration::from_secs(60);

/// Descriptors 3 and 4 are where Chromium reads and writes.
const START: &str = r#"exec chromium "$@" 3<"$IN" 4>"$OUT""#;
const FLAGS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-breakpad",
    "--no-first-run",
    "--no-proxy-server",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.*",
];

pub struct Chromium {
    process: Process,
    to: pipe::Sender,
    from: BufReader<pipe::Receiver>,
    /// An incomplete message.
    part: Vec<u8>,
    last: u64,
    session: Option<String>,
    events: Vec<Value>,
}

impl Chromium {
    /// Starts it with an empty page; its files go below `dir`.
    pub async fn start(dir: &Path) -> Self {
        let dir = dir.join("chromium");
        std::fs::create_dir_all(&dir).expect("a directory for chromium");
        let [to, from] = ["to", "from"].map(|name| dir.join(name));
        let made = Command::new("mkfifo").args([&to, &from]).status();
        assert!(made.expect("mkfifo").success(), "mkfifo");
        let mut command = Command::new("sh");
        command
            .args(["-c", START, "chromium"])
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", dir.join("profile").display()))
            .env("HOME", &dir)
            .env("IN", &to)
            .env("OUT", &from);
        if !is_installed() {
            super::missing("chromium", "run tests/install.sh --tests");
        }
        let process = match Process::spawn("chromium", &mut command, &dir.join("log")) {
            Ok(process) => process,
            Err(NotFound) => super::missing("sh", "every system has one"),
        };
        // Opens both ends, so that opening does not block.
        let open = || {
            let mut options = pipe::OpenOptions::new();
            options.read_write(true);
            options
        };
        let mut chromium = Self {
            process,
            to: open().open_sender(&to).expect("a pipe to chromium"),
            from: BufReader::new(open().open_receiver(&from).expect("a pipe from chromium")),
            part: Vec::new(),
            last: 0,
            session: None,
            events: Vec::new(),
        };
        chromium.attach().await;
        chromium
    }

    async fn attach(&mut self) {
        let target = self
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.call("Target.attachToTarget", target).await;
        self.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({})).await;
        }
    }

    /// Loads a page and waits until it is there.
    pub async fn open(&mut self, url: &str) {
        let answer = self.call("Page.navigate", json!({"url": url})).await;
        assert!(answer.get("errorText").is_none(), "{url}: {answer}");
        eventually(url, PATIENCE, async || {
            self.evaluate("document.readyState").await == "complete"
        })
        .await;
    }

    /// The value of a JavaScript expression; a promise is waited for.
    pub async fn evaluate(&mut self, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.call("Runtime.evaluate", parameters).await;
        assert!(
            answer.get("exceptionDetails").is_none(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].take()
    }

    /// The visible text of all elements that match `selector`.
    pub async fn text(&mut self, selector: &str) -> String {
        let selector = json!(selector);
        let all = format!(
            "[...document.querySelectorAll({selector})].map((each) => each.innerText).join('\\n')"
        );
        let text = self.evaluate(&all).await;
        text.as_str().unwrap_or_default().to_owned()
    }

    /// A window of this width, `light` or `dark`.
    pub async fn look(&mut self, width: u32, scheme: &str) {
        let size =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", media).await;
    }

    /// Presses `Tab` or `Enter`.
    pub async fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            key => panic!("{key} is not known here"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Types into the focused element.
    pub async fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// The whole page as PNG.
    pub async fn screenshot(&mut self, file: &Path) {
        let whole = json!({"captureBeyondViewport": true});
        let answer = self.call("Page.captureScreenshot", whole).await;
        let data = answer["data"].as_str().unwrap_or_default();
        let png = BASE64.decode(data.as_bytes()).expect("base64");
        std::fs::write(file, png).expect("a screenshot");
    }

    /// URLs that were asked for since the last time.
    pub async fn requests(&mut self) -> Vec<String> {
        let events = self.take("Network.requestWillBeSent").await;
        let urls = events.iter().map(|event| {
            event["request"]["url"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        });
        urls.collect()
    }

    /// Errors and warnings in the console since the last time, violations of the content security policy included.
    pub async fn complaints(&mut self) -> Vec<Value> {
        let exceptions = self.take("Runtime.exceptionThrown").await;
        let said = self.take("Runtime.consoleAPICalled").await;
        let noted = self.take("Log.entryAdded").await;
        [exceptions, said, noted].concat()
    }

    /// Events of a kind since the last time.
    async fn take(&mut self, method: &str) -> Vec<Value> {
        // What happened before comes before its answer.
        self.evaluate("0").await;
        let (taken, left) = std::mem::take(&mut self.events)
            .into_iter()
            .partition(|event| event["method"] == method);
        self.events = left;
        let taken: Vec<Value> = taken;
        taken
            .into_iter()
            .map(|mut event| event["params"].take())
            .collect()
    }

    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let id = self.last;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let message = format!("{message}\0");
        let exchange = async {
            self.to.write_all(message.as_bytes()).await.expect(method);
            loop {
                self.from.read_until(0, &mut self.part).await.expect(method);
                let received = std::mem::take(&mut self.part);
                let received = received.strip_suffix(b"\0").unwrap_or(&received);
                let mut received: Value = serde_json::from_slice(received).expect("a message");
                if received["id"] == id {
                    assert!(received.get("error").is_none(), "{method}: {received}");
                    return received["result"].take();
                }
                if received.get("method").is_some() {
                    self.events.push(received);
                }
            }
        };
        match timeout(PATIENCE, exchange).await {
            Ok(answer) => answer,
            Err(_) => panic!("{method}: no answer\n{}", self.process.log_tail()),
        }
    }
}

fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join("chromium").is_file())
}
