//! Events on their way from the followers to the catalog, bounded in number and in bytes.

use std::sync::Arc;

use tokio::sync::mpsc::error::{SendError, TryRecvError};
use tokio::sync::{Semaphore, mpsc};

use super::watch::{Event, Message};

/// KiB of values that may wait. A larger value waits alone.
const MOST_KIB: u32 = 16 << 10;

/// The followers' end.
#[derive(Debug, Clone)]
pub struct Sink {
    messages: mpsc::Sender<Message>,
    room: Arc<Semaphore>,
}

/// The catalog's end.
#[derive(Debug)]
pub struct Queue {
    messages: mpsc::Receiver<Message>,
    room: Arc<Semaphore>,
}

/// `most`: messages that may wait.
pub fn queue(most: usize) -> (Sink, Queue) {
    let (sender, messages) = mpsc::channel(most);
    let room = Arc::new(Semaphore::new(MOST_KIB as usize));
    let sink = Sink {
        messages: sender,
        room: room.clone(),
    };
    (sink, Queue { messages, room })
}

/// KiB of a message's value; small ones are bounded by the number of messages.
fn weight((_, event): &Message) -> u32 {
    match event {
        Event::InitApply(item) | Event::Apply(item) => {
            let kib = u32::try_from(item.value.len() >> 10).unwrap_or(u32::MAX);
            kib.min(MOST_KIB)
        }
        _ => 0,
    }
}

impl Sink {
    /// Waits for room. Fails once the queue is gone.
    pub async fn send(&self, message: Message) -> Result<(), SendError<Message>> {
        let room = self.room.acquire_many(weight(&message)).await;
        let Ok(room) = room else {
            return Err(SendError(message));
        };
        self.messages.send(message).await?;
        // Given back by the queue.
        room.forget();
        Ok(())
    }

    pub fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }
}

impl Queue {
    /// `None`: no sink is left.
    pub async fn recv(&mut self) -> Option<Message> {
        let message = self.messages.recv().await?;
        Some(self.taken(message))
    }

    pub fn try_recv(&mut self) -> Result<Message, TryRecvError> {
        let message = self.messages.try_recv()?;
        Ok(self.taken(message))
    }

    /// Messages that wait.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn taken(&self, message: Message) -> Message {
        self.room.add_permits(weight(&message) as usize);
        message
    }
}

impl Drop for Queue {
    /// Who waits for room must not wait for ever.
    fn drop(&mut self) {
        self.room.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::super::keys::Topic;
    use super::super::source::EtcdItem;
    use super::*;

    fn message(kib: usize) -> Message {
        let item = EtcdItem {
            key: "a".to_owned(),
            value: vec![0; kib << 10],
            create_revision: 1,
            mod_revision: 1,
        };
        (Topic::Servers, Event::Apply(item))
    }

    #[tokio::test(start_paused = true)]
    async fn values_wait_until_there_is_room_for_their_bytes() {
        let (sink, mut queue) = queue(1000);
        let waits = async |kib| {
            let sent = timeout(Duration::from_secs(60), sink.send(message(kib)));
            sent.await.is_err()
        };
        let half = MOST_KIB as usize / 2;
        assert!(!waits(half).await && !waits(half).await);
        assert!(waits(1).await && !waits(0).await);
        assert_eq!(queue.len(), 3);
        queue.recv().await.unwrap();
        assert!(!waits(half).await && waits(half).await);
        // What is larger than all of it waits until it is alone.
        let whole = 2 * MOST_KIB as usize;
        assert!(waits(whole).await);
        while queue.try_recv().is_ok() {}
        assert!(!waits(whole).await);

        let waiting = sink.clone();
        let waiting = tokio::spawn(async move { waiting.send(message(half)).await });
        tokio::task::yield_now().await;
        drop(queue);
        assert!(waiting.await.unwrap().is_err() && sink.is_closed());
    }
}
