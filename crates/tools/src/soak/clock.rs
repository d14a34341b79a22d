//! The clock of one proxy, which can be stepped while it runs: libfaketime reads a file again every second. Timers, which
//! go by the monotonic clock, are left alone.

use std::path::{Path, PathBuf};

use testkit::proxy::ProxyOptions;

const LIBRARIES: &str = "/usr/lib";
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

pub struct Clock(PathBuf);

impl Clock {
    pub fn new(dir: &Path, node: usize) -> Self {
        let clock = Self(dir.join(format!("clock-{node}")));
        clock.set(0);
        clock
    }

    /// So many seconds from the time that the machine has.
    pub fn set(&self, seconds: i64) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n")).expect("write a clock");
        std::fs::rename(&new, &self.0).expect("set a clock");
    }

    /// The proxy has this clock.
    pub fn given_to(&self, options: ProxyOptions) -> ProxyOptions {
        options
            .env("LD_PRELOAD", &library().display().to_string())
            .env("FAKETIME_TIMESTAMP_FILE", &self.0.display().to_string())
            .env("FAKETIME_CACHE_DURATION", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }
}

/// Below the directory of the machine's architecture.
fn library() -> PathBuf {
    let entries = std::fs::read_dir(LIBRARIES).into_iter().flatten().flatten();
    let mut found = entries.map(|entry| entry.path().join(LIBRARY));
    let library = found.find(|library| library.is_file());
    library.unwrap_or_else(|| {
        testkit::missing(
            "libfaketime",
            "run tests/install.sh --tests (apt-get install faketime)",
        )
    })
}
