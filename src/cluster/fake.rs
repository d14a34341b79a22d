//! A [`WatchSource`] that does as a test says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::source::{Batch, ChangeStream, Listing, ListingRest, SourceError, WatchSource};

/// What a fake answers, in order.
#[derive(Debug)]
pub(crate) enum FakeAnswer {
    List(Result<Listing, SourceError>),
    /// A watch that delivers these, then stays quiet for ever.
    Watch(Vec<Result<Batch, SourceError>>),
    WatchFails(SourceError),
}

/// What a fake was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FakeRequest {
    List,
    WatchFrom(i64),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FakeSource {
    answers: Arc<Mutex<VecDeque<FakeAnswer>>>,
    asked: Arc<Mutex<Vec<FakeRequest>>>,
}

impl FakeSource {
    pub(crate) fn new(answers: Vec<FakeAnswer>) -> Self {
        Self {
            answers: Arc::new(Mutex::new(answers.into())),
            asked: Arc::default(),
        }
    }

    pub(crate) fn asked(&self) -> Vec<FakeRequest> {
        self.asked.lock().unwrap().clone()
    }

    fn answer(&self, asked: FakeRequest) -> Option<FakeAnswer> {
        self.asked.lock().unwrap().push(asked);
        self.answers.lock().unwrap().pop_front()
    }
}

#[async_trait]
impl WatchSource for FakeSource {
    async fn list(&mut self, _rest: Option<ListingRest>) -> Result<Listing, SourceError> {
        match self.answer(FakeRequest::List) {
            Some(FakeAnswer::List(listing)) => listing,
            None => std::future::pending().await,
            Some(other) => panic!("asked for a list, expected {other:?}"),
        }
    }

    async fn watch(&mut self, from: i64) -> Result<Box<dyn ChangeStream>, SourceError> {
        match self.answer(FakeRequest::WatchFrom(from)) {
            Some(FakeAnswer::Watch(batches)) => Ok(Box::new(FakeChanges(batches.into()))),
            Some(FakeAnswer::WatchFails(error)) => Err(error),
            None => std::future::pending().await,
            Some(other) => panic!("asked for a watch, expected {other:?}"),
        }
    }
}

struct FakeChanges(VecDeque<Result<Batch, SourceError>>);

#[async_trait]
impl ChangeStream for FakeChanges {
    async fn next(&mut self) -> Result<Batch, SourceError> {
        match self.0.pop_front() {
            Some(batch) => batch,
            None => std::future::pending().await,
        }
    }
}
