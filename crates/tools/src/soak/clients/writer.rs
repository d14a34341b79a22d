//! Creates, changes and deletes objects of its own. An object whose state is unknown is left alone from then on.

use serde_json::{Value, json};

use crate::book::Exchange;
use crate::clients::Session;
use crate::kinds::{KINDS, User};
use crate::random::Random;
use crate::rules::{Effect, Verb, write};
use crate::writes::Write;

/// Objects that it has at a time.
const MOST: usize = 4;

pub struct Writer {
    session: Session,
    user: User,
    random: Random,
    count: usize,
    /// With the number of the kind.
    objects: Vec<(usize, Value)>,
}

impl Writer {
    pub fn new(session: Session, user: User, random: Random) -> Self {
        Self {
            session,
            user,
            random,
            count: 0,
            objects: Vec::new(),
        }
    }

    pub async fn run(mut self) {
        while !self.session.book.is_stopped() {
            self.count += 1;
            match (self.objects.len(), self.random.below(3)) {
                (0, _) => self.create().await,
                (MOST.., 0) => self.delete().await,
                (MOST.., _) => self.update().await,
                (_, 0) => self.create().await,
                (_, 1) => self.update().await,
                _ => self.delete().await,
            }
            let pause = self.random.millis(50..300);
            tokio::time::sleep(pause).await;
        }
    }

    async fn create(&mut self) {
        let index = self.random.below(KINDS.len());
        let (kind, namespace) = (&KINDS[index], self.user.namespace);
        let beginning = format!("{}-{}-", self.session.name, self.count);
        let labels = json!({"owner": self.user.name});
        let object = kind.object(&json!({"generateName": beginning, "labels": labels}));
        let path = kind.collection(namespace);
        let exchange = self.session.ask("POST", &path, &object.to_string()).await;
        let written = format!("{namespace}/{beginning}");
        if let Some(created) = self.note(Verb::Create, index, written, &exchange) {
            self.objects.push((index, created));
        }
    }

    async fn update(&mut self) {
        let (index, mut object) = self.take();
        object["metadata"]["labels"]["count"] = json!(self.count.to_string());
        let (path, written) = (self.path(index, &object), name(&object));
        let exchange = self.session.ask("PUT", &path, &object.to_string()).await;
        if let Some(updated) = self.note(Verb::Update, index, written, &exchange) {
            self.objects.push((index, updated));
        }
    }

    async fn delete(&mut self) {
        let (index, object) = self.take();
        let (path, written) = (self.path(index, &object), name(&object));
        let path = format!("{path}?propagationPolicy=Background");
        let exchange = self.session.ask("DELETE", &path, "").await;
        self.note(Verb::Delete, index, written, &exchange);
    }

    fn take(&mut self) -> (usize, Value) {
        let index = self.random.below(self.objects.len());
        self.objects.swap_remove(index)
    }

    fn path(&self, index: usize, object: &Value) -> String {
        let name = object["metadata"]["name"].as_str().unwrap();
        KINDS[index].path(self.user.namespace, name)
    }

    /// Writes it down; what it made, if that is known.
    fn note(&self, verb: Verb, kind: usize, object: String, exchange: &Exchange) -> Option<Value> {
        let (effect, verdict) = write(verb, &exchange.attempts);
        self.session.note(exchange, verdict);
        let (last, earlier) = exchange.attempts.split_last()?;
        let known = effect != Effect::Unknown;
        self.session.book.write(
            kind,
            Write {
                verb,
                object,
                effect,
                uncertain: earlier
                    .iter()
                    .filter(|attempt| attempt.is_uncertain())
                    .count(),
            },
        );
        let made = last.answer().filter(|answer| known && answer.code < 300)?;
        Some(made.body.clone())
    }
}

fn name(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap();
    format!("{}/{}", text("namespace"), text("name"))
}
