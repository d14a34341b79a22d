//! Records the requests that arrived, for tests.

use std::sync::Mutex;
use std::time::SystemTime;

use http::HeaderMap;

#[derive(Clone, Debug)]
pub struct Recorded {
    /// Counts up; never reused.
    pub id: u64,
    pub method: String,
    /// Path and query, as received.
    pub path: String,
    pub headers: HeaderMap,
    /// The authenticated user; "" after a 401.
    pub user: String,
    pub groups: Vec<String>,
    /// `requestheader`, `certificate`, `token`, `anonymous`; "" with a 401.
    pub how: &'static str,
    /// The common name of the connection's client certificate.
    pub peer_cert: Option<String>,
    /// `HTTP/2.0` or `HTTP/1.1`.
    pub protocol: String,
    /// Bytes of the body that were read so far.
    pub body_len: u64,
    /// Which of the double's connections it came on, counted from 1.
    pub connection_id: u64,
    pub at: SystemTime,
    /// Its answer was delivered to the end, or given up: the client, or the stream, is gone.
    pub over: bool,
}

impl Recorded {
    /// The first value of a header; "" if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    /// All values of a header.
    pub fn header_values(&self, name: &str) -> Vec<String> {
        let values = self.headers.get_all(name).into_iter();
        values
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect()
    }
}

#[derive(Default)]
pub struct Recorder(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    next: u64,
    list: Vec<Recorded>,
}

impl Recorder {
    pub fn add(&self, mut request: Recorded) -> u64 {
        let mut requests = self.0.lock().unwrap();
        requests.next += 1;
        request.id = requests.next;
        requests.list.push(request);
        requests.next
    }

    pub fn change(&self, id: u64, change: impl FnOnce(&mut Recorded)) {
        let mut requests = self.0.lock().unwrap();
        // Not there: a test has taken it.
        if let Some(request) = requests.list.iter_mut().rfind(|request| request.id == id) {
            change(request);
        }
    }

    pub fn all(&self) -> Vec<Recorded> {
        self.0.lock().unwrap().list.clone()
    }

    pub fn take(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.0.lock().unwrap().list)
    }

    pub fn count(&self, path_prefix: &str) -> usize {
        let requests = self.0.lock().unwrap();
        requests
            .list
            .iter()
            .filter(|request| request.path.starts_with(path_prefix))
            .count()
    }
}
