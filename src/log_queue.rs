//! Log lines on their way to stderr.
//!
//! No thread waits for whoever reads the log: lines go through a bounded queue to one thread that writes them. What does
//! not fit into the queue, or cannot be written, is dropped and counted.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that may wait.
const LINES: usize = 8192;
/// Bytes that they may have.
const BYTES: usize = 4 << 20;
/// Lines are written together, up to about so many bytes.
const CHUNK: usize = 64 << 10;
/// Longest wait for the last lines when the process ends.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// Since they were last counted.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Lines that were dropped since the last call.
pub fn take_dropped() -> u64 {
    DROPPED.swap(0, Ordering::Relaxed)
}

/// Takes lines, one with each write, and never waits.
#[derive(Debug, Clone)]
pub struct LogQueue {
    lines: SyncSender<Vec<u8>>,
    /// Bytes that were not written yet.
    waiting: Arc<AtomicUsize>,
}

impl LogQueue {
    /// Starts the thread that writes the lines to `output`.
    pub fn start(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (lines, queue) = sync_channel(LINES);
        let waiting = Arc::<AtomicUsize>::default();
        let unwritten = waiting.clone();
        let write = move || write_lines(&queue, &unwritten, output);
        thread::Builder::new()
            .name("logs".to_owned())
            .spawn(write)?;
        Ok(Self { lines, waiting })
    }

    /// Logs a panic. One of the main thread ends the process: it is written before.
    pub fn panicked(&self, thread: Option<&str>, what: &str) {
        tracing::error!(thread, what, "panicked");
        if thread == Some("main") {
            self.flush();
        }
    }

    /// Waits until all lines are written, but not for a reader that hangs.
    pub fn flush(&self) {
        let end = Instant::now() + FLUSH_PATIENCE;
        while self.waiting.load(Ordering::Relaxed) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let length = line.len();
        let before = self.waiting.fetch_add(length, Ordering::Relaxed);
        if before + length > BYTES || self.lines.try_send(line.to_vec()).is_err() {
            self.waiting.fetch_sub(length, Ordering::Relaxed);
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs until the queue is gone.
fn write_lines(queue: &Receiver<Vec<u8>>, waiting: &AtomicUsize, mut output: impl Write) {
    while let Ok(mut chunk) = queue.recv() {
        let mut count = 1;
        while chunk.len() < CHUNK
            && let Ok(line) = queue.try_recv()
        {
            chunk.extend(line);
            count += 1;
        }
        if output.write_all(&chunk).is_err() {
            DROPPED.fetch_add(count, Ordering::Relaxed);
        }
        waiting.fetch_sub(chunk.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A reader that takes nothing until it is told to.
    struct Hanging {
        begun: Sender<()>,
        until: Mutex<Receiver<()>>,
        read: Sender<Vec<u8>>,
    }

    impl Write for Hanging {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // The test may be over.
            let _ = self.begun.send(());
            let _ = self.until.lock().unwrap().recv();
            let _ = self.read.send(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A queue whose thread is writing the first line, what lets it go on, and what was read.
    fn hanging() -> (LogQueue, Sender<()>, Receiver<Vec<u8>>) {
        let (begun, begins) = channel();
        let (go_on, until) = channel();
        let (read, lines) = channel();
        let until = Mutex::new(until);
        let mut queue = LogQueue::start(Hanging { begun, until, read }).unwrap();
        queue.write_all(b"first\n").unwrap();
        begins.recv().unwrap();
        (queue, go_on, lines)
    }

    fn all(read: &Receiver<Vec<u8>>) -> Vec<u8> {
        read.try_iter().flatten().collect()
    }

    #[test]
    fn a_panic_of_the_main_thread_is_written_before_the_process_ends() {
        let (read, lines) = channel();
        // Slower than the process ends.
        struct Slow(Sender<Vec<u8>>);
        impl Write for Slow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                thread::sleep(Duration::from_millis(100));
                let _ = self.0.send(bytes.to_vec());
                Ok(bytes.len())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let queue = LogQueue::start(Slow(read)).unwrap();
        let writer = queue.clone();
        let logs = tracing_subscriber::fmt().with_writer(move || writer.clone());
        tracing::subscriber::with_default(logs.finish(), || {
            queue.panicked(Some("main"), "of a test");
        });
        assert!(
            String::from_utf8(all(&lines))
                .unwrap()
                .contains("of a test")
        );
    }

    /// One test, because all are counted in one place.
    #[test]
    fn nobody_waits_for_the_reader_and_what_is_dropped_is_counted() {
        let (mut queue, go_on, read) = hanging();
        let line = [b'x'; 1 << 10];
        for _ in 0..BYTES / line.len() + 99 {
            queue.write_all(&line).unwrap();
        }
        assert_eq!(take_dropped(), 100, "by their bytes");
        let began = Instant::now();
        queue.flush();
        assert!(began.elapsed() >= FLUSH_PATIENCE, "nothing was read");

        // The reader is back.
        drop(go_on);
        queue.flush();
        let first = b"first\n".len();
        assert_eq!(all(&read).len(), BYTES - line.len() + first);
        queue.write_all(b"last\n").unwrap();
        queue.flush();
        assert_eq!(all(&read), b"last\n");
        assert_eq!(take_dropped(), 0);

        let (mut queue, _go_on, _read) = hanging();
        for _ in 0..LINES + 100 {
            queue.write_all(b"\n").unwrap();
        }
        assert_eq!(take_dropped(), 100, "by their number");

        let mut queue = LogQueue::start(Full).unwrap();
        queue.write_all(b"lost\n").unwrap();
        queue.flush();
        assert_eq!(take_dropped(), 1, "what cannot be written is dropped too");
    }
}
