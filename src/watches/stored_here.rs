//! Which resources servers store in this etcd, and these resources' kinds.
//!
//! Each server is asked once for each watched resource and process, when the first watch that may get a final bookmark
//! begins: at its end the apiserver may be gone. Few questions are under way at a time; custom resources, whose webhooks
//! may hang, do not keep built-in ones waiting, and what was asked in vain keeps nothing new waiting.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::prover::{AskServer, NoAnswer, Prover};
use crate::cluster::connector::{Connector, SharedClient};
use crate::kube::gvr::Gvr;
use crate::net::lock;

/// Most questions that are kept. Then all are forgotten.
const MOST: usize = 4096;
/// Questions at the same time, of each kind: of custom resources or of others, for the first time or again.
const AT_ONCE: usize = 4;
/// How often a question is asked when etcd or the server does not answer, until another watch of the resource.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(500);

/// By server and key prefix of the resource.
type Known = HashMap<(SocketAddr, Box<str>), Arc<Stored>>;

/// What was asked of servers.
#[derive(Debug)]
pub struct StoredHere {
    known: Mutex<Known>,
    questions: mpsc::Sender<Arc<Stored>>,
}

/// A question, and what is proved by now.
#[derive(Debug)]
pub struct Stored {
    question: Question,
    proof: watch::Sender<Proof>,
}

/// Whether a server stores a resource in this etcd.
#[derive(Debug, Clone)]
pub struct Question {
    pub server: SocketAddr,
    /// Identifies the server's process: how often etcd was restored before, after which revisions are lower, and a number that
    /// is higher for later processes.
    pub process: (u64, u64),
    /// The resource's key prefix, with a trailing slash.
    pub root: Box<str>,
    pub resource: Gvr,
    /// It is a custom resource.
    pub custom: bool,
}

/// What a server and etcd have answered; `None`: nothing yet.
#[derive(Debug, Clone, Default)]
pub struct Proof {
    /// The server stores the resource in this etcd.
    pub stored_here: Option<bool>,
    /// The resource's kind.
    pub kind: Option<String>,
    /// Nobody is asked any more.
    ended: bool,
}

impl Stored {
    /// The resource's key prefix, with a trailing slash.
    pub fn root(&self) -> &str {
        &self.question.root
    }

    /// What is proved by now.
    pub fn proof(&self) -> Proof {
        self.proof.borrow().clone()
    }

    /// Nobody is asked any more, and nothing was found out.
    pub fn is_unanswered(&self) -> bool {
        let proof = self.proof.borrow();
        proof.ended && proof.stored_here.is_none()
    }

    /// Waits while the server is being asked: for the kind, too, if it is wanted.
    pub async fn answered(&self, kind_wanted: bool) {
        let mut proof = self.proof.subscribe();
        let is_answered = |proof: &Proof| {
            let kind_comes = kind_wanted && proof.kind.is_none();
            let known = proof.stored_here.is_some_and(|here| !here || !kind_comes);
            proof.ended || known
        };
        // Its sender is here.
        let _ = proof.wait_for(is_answered).await;
    }
}

impl StoredHere {
    /// Also the receiver that [`run`] needs.
    pub fn new() -> (Self, mpsc::Receiver<Arc<Stored>>) {
        let (questions, receiver) = mpsc::channel(MOST);
        let known = Mutex::default();
        (Self { known, questions }, receiver)
    }

    /// Asks, if nobody has asked this process or a later one. `None`: too much is being asked.
    pub fn ask(&self, question: Question) -> Option<Arc<Stored>> {
        let subject = (question.server, question.root.clone());
        let mut known = lock(&self.known);
        if let Some(stored) = known.get(&subject)
            && stored.question.process >= question.process
        {
            return Some(stored.clone());
        }
        if known.len() >= MOST {
            known.clear();
        }
        let stored = Arc::new(Stored {
            question,
            proof: watch::Sender::default(),
        });
        self.questions.try_send(stored.clone()).ok()?;
        known.insert(subject, stored.clone());
        Some(stored)
    }

    /// Nothing more will be answered. If nothing was, another watch may ask again.
    fn ended(&self, stored: &Arc<Stored>) {
        stored.proof.send_modify(|proof| proof.ended = true);
        let (question, proof) = (&stored.question, stored.proof());
        tracing::debug!(server = %question.server, root = question.root, ?proof, "where a resource is stored");
        if proof.stored_here.is_none() {
            lock(&self.known).retain(|_, known| !Arc::ptr_eq(known, stored));
        }
    }
}

/// Answers the questions. Runs until dropped.
pub async fn run(
    stored_here: Arc<StoredHere>,
    mut questions: mpsc::Receiver<Arc<Stored>>,
    connector: Connector,
    prover: Prover<impl AskServer>,
) {
    let asking = Arc::new(Asking {
        etcd: SharedClient::new(connector),
        permits: [(); 4].map(|()| Semaphore::new(AT_ONCE)),
        prover,
    });
    let mut tasks = JoinSet::new();
    while let Some(stored) = questions.recv().await {
        while tasks.try_join_next().is_some() {}
        let (asking, stored_here) = (asking.clone(), stored_here.clone());
        tasks.spawn(async move {
            asking.ask(&stored).await;
            stored_here.ended(&stored);
        });
    }
}

struct Asking<S> {
    etcd: SharedClient,
    /// By whether the resource is custom, and whether it was asked for before.
    permits: [Semaphore; 4],
    prover: Prover<S>,
}

impl<S: AskServer> Asking<S> {
    async fn ask(&self, stored: &Stored) {
        for attempt in 0..ATTEMPTS {
            let permits = 2 * usize::from(stored.question.custom) + usize::from(attempt > 0);
            match self.attempt(stored, &self.permits[permits]).await {
                Ok(()) | Err(NoAnswer::Gone) => return,
                // The next member of etcd, or the server later, may answer.
                Err(NoAnswer::Etcd | NoAnswer::NotNow) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// Finds out what the proof lacks. Each answer is known at once: the server may not give the next one.
    async fn attempt(&self, stored: &Stored, permits: &Semaphore) -> Result<(), NoAnswer> {
        let question = &stored.question;
        let (server, root, resource) = (question.server, &*question.root, &question.resource);
        let _permit = permits.acquire().await;
        let known = stored.proof.borrow().stored_here;
        let here = match known {
            Some(here) => here,
            None => {
                let client = self.etcd.get().await;
                let (client, number) = client.map_err(|_| NoAnswer::Etcd)?;
                let asking = self.prover.is_stored(client, server, root, resource);
                let here = asking.await;
                if here == Err(NoAnswer::Etcd) {
                    self.etcd.failed(number).await;
                }
                let here = here?.unwrap_or(false);
                let told = |proof: &mut Proof| proof.stored_here = Some(here);
                stored.proof.send_modify(told);
                here
            }
        };
        if here {
            let kind = self.prover.kind(server, resource).await?;
            stored.proof.send_modify(|proof| proof.kind = kind);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::gvr::GroupVersion;

    fn question(process: u64) -> Question {
        Question {
            server: ([127, 0, 0, 1], 6443).into(),
            process: (0, process),
            root: "/registry/pods/".into(),
            resource: GroupVersion {
                group: String::new(),
                version: "v1".to_owned(),
            }
            .gvr("pods"),
            custom: false,
        }
    }

    fn prove(stored: &Stored, stored_here: bool) {
        stored
            .proof
            .send_modify(|proof| proof.stored_here = Some(stored_here));
    }

    #[test]
    fn each_process_is_asked_once() {
        let (stored_here, mut questions) = StoredHere::new();
        let first = stored_here.ask(question(1)).unwrap();
        for _ in 0..3 {
            let again = stored_here.ask(question(1)).unwrap();
            assert!(Arc::ptr_eq(&first, &again));
        }
        assert!(questions.try_recv().is_ok() && questions.try_recv().is_err());
        prove(&first, true);
        stored_here.ended(&first);
        let again = stored_here.ask(question(1)).unwrap();
        assert_eq!(again.proof().stored_here, Some(true));
        let second = stored_here.ask(question(2)).unwrap();
        assert!(questions.try_recv().is_ok() && questions.try_recv().is_err());
        assert_eq!(second.proof().stored_here, None);
        // Of the process before.
        let later = stored_here.ask(question(1)).unwrap();
        assert!(Arc::ptr_eq(&second, &later));
        // After a restore nothing that was proved before counts, whatever revisions are.
        let restored = Question {
            process: (1, 1),
            ..question(1)
        };
        let restored = stored_here.ask(restored).unwrap();
        assert!(!Arc::ptr_eq(&second, &restored) && restored.proof().stored_here.is_none());
    }

    #[tokio::test]
    async fn nobody_waits_for_who_was_not_asked_or_did_not_answer() {
        let (stored_here, mut questions) = StoredHere::new();
        let stored = stored_here.ask(question(1)).unwrap();
        let waits = |kind_wanted| {
            let stored = stored.clone();
            tokio::spawn(async move { stored.answered(kind_wanted).await })
        };
        let (for_proof, for_kind) = (waits(false), waits(true));
        tokio::task::yield_now().await;
        assert!(!for_proof.is_finished());
        prove(&stored, true);
        for_proof.await.unwrap();
        assert!(!for_kind.is_finished());
        stored_here.ended(&stored);
        for_kind.await.unwrap();
        questions.try_recv().unwrap();

        let unanswered = stored_here.ask(question(2)).unwrap();
        questions.try_recv().unwrap();
        stored_here.ended(&unanswered);
        unanswered.answered(true).await;
        stored_here.ask(question(2)).unwrap();
        assert!(questions.try_recv().is_ok(), "it is asked again");
    }

    #[test]
    fn what_is_known_has_a_limit() {
        let (stored_here, _questions) = StoredHere::new();
        for number in 0..3 * MOST {
            let root = format!("/registry/{number}/").into();
            stored_here.ask(Question {
                root,
                ..question(1)
            });
            assert!(lock(&stored_here.known).len() <= MOST);
        }
    }
}
