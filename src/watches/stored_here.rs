//! Which resources servers store in this etcd, and these resources' kinds.
//!
//! Each server is asked once for each watched resource and process, when the first watch that may get a final bookmark
//! begins: at its end the apiserver may be gone. Few questions are under way at a time; custom resources, whose webhooks
//! may hang, do not keep built-in ones waiting, and what was asked in vain keeps nothing new waiting.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::apiservers::AskServer;
use super::prover::{Prover, Undecided};
use super::sample::WatchedResource;
use crate::cluster::connector::{Connector, SharedClient};

/// Most answers that are kept. Then all are forgotten.
const MOST: usize = 4096;
/// Questions at the same time, of each kind: of custom resources or of others, for the first time or again.
const AT_ONCE: usize = 4;
/// How often a question is asked when etcd or the server does not answer, until another watch of the resource.
const ATTEMPTS: usize = 10;
const PAUSE: Duration = Duration::from_millis(500);

/// What is known of servers and resources.
#[derive(Debug)]
pub struct StoredHere {
    known: Mutex<HashMap<Subject, Answer>>,
    questions: mpsc::Sender<Question>,
    /// Notifies of every answer.
    updated: watch::Sender<()>,
}

/// A server, and the key prefix of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Subject {
    server: SocketAddr,
    root: Box<str>,
}

#[derive(Debug)]
struct Answer {
    /// The server's process.
    process: u64,
    proof: Proof,
}

/// What a server and etcd have answered; `None`: nothing yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proof {
    /// The server stores the resource in this etcd.
    pub stored_here: Option<bool>,
    /// The resource's kind; empty: the server does not tell.
    pub kind: Option<String>,
}

/// Whether a server stores a resource in this etcd.
#[derive(Debug, Clone)]
pub struct Question {
    pub server: SocketAddr,
    /// Identifies the server's process: later ones have higher numbers.
    pub process: u64,
    /// The resource's key prefix, with a trailing slash.
    pub root: Box<str>,
    pub resource: WatchedResource,
    /// It is a custom resource.
    pub custom: bool,
}

impl Question {
    fn subject(&self) -> Subject {
        Subject {
            server: self.server,
            root: self.root.clone(),
        }
    }
}

impl StoredHere {
    /// Also the receiver that [`run`] needs.
    pub fn new() -> (Self, mpsc::Receiver<Question>) {
        let (questions, receiver) = mpsc::channel(MOST);
        let stored_here = Self {
            known: Mutex::default(),
            questions,
            updated: watch::Sender::new(()),
        };
        (stored_here, receiver)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Subject, Answer>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks, if nobody has asked this process or a later one.
    pub fn ask(&self, question: Question) {
        let (subject, process) = (question.subject(), question.process);
        let mut known = self.known();
        let is_known = |answer: &Answer| answer.process >= process;
        if known.get(&subject).is_some_and(is_known) {
            return;
        }
        if known.len() >= MOST {
            known.clear();
        }
        if self.questions.try_send(question).is_ok() {
            let proof = Proof::default();
            known.insert(subject, Answer { process, proof });
        }
    }

    /// What is proved by now.
    pub fn proof(&self, server: SocketAddr, root: &str) -> Proof {
        let root = root.into();
        let known = self.known();
        let answer = known.get(&Subject { server, root });
        answer
            .map(|answer| answer.proof.clone())
            .unwrap_or_default()
    }

    /// Waits while the server is being asked: for the kind, too, if it is wanted.
    pub async fn answered(&self, server: SocketAddr, root: &str, kind_wanted: bool) {
        let root = root.into();
        let subject = Subject { server, root };
        let mut updates = self.updated.subscribe();
        let is_asked = |Answer { proof, .. }: &Answer| match proof.stored_here {
            Some(stored_here) => stored_here && kind_wanted && proof.kind.is_none(),
            None => true,
        };
        while self.known().get(&subject).is_some_and(is_asked) {
            if updates.changed().await.is_err() {
                return;
            }
        }
    }

    /// `None`: nobody answered, and another watch may ask again.
    fn answer(&self, question: &Question, proof: Option<Proof>) {
        tracing::debug!(server = %question.server, root = question.root, ?proof, "where a resource is stored");
        let (subject, process) = (question.subject(), question.process);
        let mut known = self.known();
        if let Some(answer) = known.get_mut(&subject)
            && answer.process == process
        {
            match proof {
                Some(proof) => answer.proof = proof,
                None => drop(known.remove(&subject)),
            }
        }
        drop(known);
        self.updated.send_replace(());
    }
}

/// Answers the questions. Runs until dropped.
pub async fn run(
    stored_here: Arc<StoredHere>,
    mut questions: mpsc::Receiver<Question>,
    connector: Connector,
    prover: Prover<impl AskServer>,
) {
    let asking = Arc::new(Asking {
        stored_here,
        etcd: SharedClient::new(connector),
        turns: [(); 4].map(|()| Semaphore::new(AT_ONCE)),
        prover,
    });
    let mut tasks = JoinSet::new();
    while let Some(question) = questions.recv().await {
        while tasks.try_join_next().is_some() {}
        let asking = asking.clone();
        tasks.spawn(async move { asking.ask(&question).await });
    }
}

struct Asking<S> {
    stored_here: Arc<StoredHere>,
    etcd: SharedClient,
    turns: [Semaphore; 4],
    prover: Prover<S>,
}

impl<S: AskServer> Asking<S> {
    async fn ask(&self, question: &Question) {
        let mut proof = Proof::default();
        for attempt in 0..ATTEMPTS {
            let turns = 2 * usize::from(question.custom) + usize::from(attempt > 0);
            match self.attempt(question, &mut proof, &self.turns[turns]).await {
                Ok(()) => return,
                // The next member of etcd, or the server later, may answer.
                Err(Undecided::Etcd | Undecided::Server) => {}
                Err(Undecided::ServerGone) => break,
            }
            tokio::time::sleep(PAUSE).await;
        }
        if proof.stored_here.is_none() {
            return self.stored_here.answer(question, None);
        }
        proof.kind.get_or_insert_default();
        self.stored_here.answer(question, Some(proof));
    }

    /// Finds out what `proof` lacks. Each answer is known at once: the server may not give the next one.
    async fn attempt(
        &self,
        question: &Question,
        proof: &mut Proof,
        turns: &Semaphore,
    ) -> Result<(), Undecided> {
        let Question {
            server,
            root,
            resource,
            ..
        } = question;
        let _turn = turns.acquire().await;
        if proof.stored_here.is_none() {
            let client = self.etcd.get().await;
            let (client, number) = client.map_err(|_| Undecided::Etcd)?;
            let stored = self.prover.is_stored(client, *server, root, resource);
            let stored = stored.await;
            if stored == Err(Undecided::Etcd) {
                self.etcd.failed(number).await;
            }
            proof.stored_here = Some(stored?.unwrap_or(false));
            self.stored_here.answer(question, Some(proof.clone()));
        }
        if proof.stored_here == Some(true) {
            let kind = self.prover.kind(*server, resource).await?;
            proof.kind = Some(kind.unwrap_or_default());
            self.stored_here.answer(question, Some(proof.clone()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(process: u64) -> Question {
        Question {
            server: ([127, 0, 0, 1], 6443).into(),
            process,
            root: "/registry/pods/".into(),
            resource: WatchedResource {
                group: "".into(),
                version: "v1".into(),
                resource: "pods".into(),
            },
            custom: false,
        }
    }

    fn proof(stored_here: bool, kind: Option<&str>) -> Proof {
        Proof {
            stored_here: Some(stored_here),
            kind: kind.map(str::to_owned),
        }
    }

    #[test]
    fn each_process_is_asked_once() {
        let (stored_here, mut questions) = StoredHere::new();
        let known = || stored_here.proof(question(1).server, "/registry/pods/");
        for _ in 0..3 {
            stored_here.ask(question(1));
        }
        assert!(questions.try_recv().is_ok() && questions.try_recv().is_err());
        assert_eq!(known(), Proof::default());
        stored_here.answer(&question(1), Some(proof(true, None)));
        stored_here.ask(question(1));
        assert_eq!(known(), proof(true, None));
        stored_here.ask(question(2));
        assert!(questions.try_recv().is_ok() && questions.try_recv().is_err());
        stored_here.answer(&question(1), Some(proof(true, Some("Pod"))));
        assert_eq!(known(), Proof::default(), "of the process before");
        stored_here.answer(&question(2), Some(proof(false, None)));
        stored_here.ask(question(1));
        assert_eq!(known(), proof(false, None));
    }

    #[tokio::test]
    async fn nobody_waits_for_who_was_not_asked_or_did_not_answer() {
        let (stored_here, mut questions) = StoredHere::new();
        let stored_here = Arc::new(stored_here);
        let waits = |kind_wanted| {
            let stored_here = stored_here.clone();
            let server = question(1).server;
            tokio::spawn(async move {
                let waiting = stored_here.answered(server, "/registry/pods/", kind_wanted);
                waiting.await;
            })
        };
        waits(true).await.unwrap();
        stored_here.ask(question(1));
        let (for_proof, for_kind) = (waits(false), waits(true));
        tokio::task::yield_now().await;
        assert!(!for_proof.is_finished());
        stored_here.answer(&question(1), Some(proof(true, None)));
        for_proof.await.unwrap();
        assert!(!for_kind.is_finished());
        stored_here.answer(&question(1), None);
        for_kind.await.unwrap();
        questions.try_recv().unwrap();
        stored_here.ask(question(1));
        assert!(questions.try_recv().is_ok(), "it is asked again");
    }

    #[test]
    fn what_is_known_has_a_limit() {
        let (stored_here, _questions) = StoredHere::new();
        for number in 0..3 * MOST {
            let root = format!("/registry/{number}/").into();
            let question = Question {
                root,
                ..question(1)
            };
            stored_here.ask(question);
            assert!(stored_here.known().len() <= MOST);
        }
    }
}
