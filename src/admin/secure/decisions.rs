//! Verdicts of the apiserver, kept for [`LIFETIME`] as in Kubernetes' own components, also while it cannot be asked.
//!
//! Whoever comes while the same question is being asked waits for its answer. A failure is shared with those who wait and
//! then forgotten. Subjects are known by a keyed hash alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::hmac::{HMAC_SHA256, Key, sign};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::review::Verdict;

const LIFETIME: Duration = Duration::from_secs(10);
/// Most subjects. Clients can send as many different tokens as they like.
const MOST: usize = 1024;

type Hash = [u8; 32];
type Question = OnceCell<Answer>;

#[derive(Debug)]
struct Answer {
    verdict: Verdict,
    until: Instant,
}

pub(super) struct Decisions {
    key: Key,
    questions: Mutex<HashMap<Hash, Arc<Question>>>,
}

impl Default for Decisions {
    fn default() -> Self {
        Self {
            key: Key::new(HMAC_SHA256, &rand::random::<[u8; 32]>()),
            questions: Mutex::default(),
        }
    }
}

impl Decisions {
    /// The verdict on a subject: a known one, or else that of `review`.
    pub(super) async fn on(
        &self,
        subject: &[u8],
        review: impl Future<Output = Verdict>,
    ) -> Verdict {
        let question = self.question(subject);
        let answer = question.get_or_init(async || {
            let verdict = review.await;
            let lifetime = match verdict {
                Verdict::Unavailable(_) => Duration::ZERO,
                _ => LIFETIME,
            };
            let until = Instant::now() + lifetime;
            Answer { verdict, until }
        });
        answer.await.verdict.clone()
    }

    fn question(&self, subject: &[u8]) -> Arc<Question> {
        let mut hash = Hash::default();
        hash.copy_from_slice(sign(&self.key, subject).as_ref());
        let now = Instant::now();
        let questions = self.questions.lock();
        let mut questions = questions.unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = questions.get(&hash)
            && known.get().is_none_or(|answer| answer.until > now)
        {
            return known.clone();
        }
        if questions.len() >= MOST {
            make_room(&mut questions, now);
        }
        let question = Arc::new(Question::new());
        // A question that is not kept is answered all the same.
        if questions.len() < MOST {
            questions.insert(hash, question.clone());
        }
        question
    }
}

/// Drops answers that are too old, and questions whose askers went away; else a subject that was turned away: made-up
/// tokens must not push out those who may read.
fn make_room(questions: &mut HashMap<Hash, Arc<Question>>, now: Instant) {
    questions.retain(|_, question| match question.get() {
        Some(answer) => answer.until > now,
        None => Arc::strong_count(question) > 1,
    });
    if questions.len() >= MOST {
        let is_refusal = |answer: &Answer| answer.verdict != Verdict::Allowed;
        let mut refused = questions
            .iter()
            .filter(|(_, question)| question.get().is_some_and(is_refusal));
        if let Some(hash) = refused.next().map(|(hash, _)| *hash) {
            questions.remove(&hash);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Notify;
    use tokio::time::advance;

    use super::*;

    #[derive(Default)]
    struct Fixture {
        decisions: Decisions,
        asked: AtomicUsize,
    }

    impl Fixture {
        async fn ask(&self, subject: &str, verdict: Verdict) -> Verdict {
            let review = async {
                self.asked.fetch_add(1, Ordering::Relaxed);
                verdict
            };
            self.decisions.on(subject.as_bytes(), review).await
        }

        fn asked(&self) -> usize {
            self.asked.swap(0, Ordering::Relaxed)
        }

        fn kept(&self) -> usize {
            self.decisions.questions.lock().unwrap().len()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn yes_and_no_are_kept_for_ten_seconds_and_failures_are_not() {
        let fixture = Fixture::default();
        let forbidden = Verdict::Forbidden("bob".to_owned());
        for verdict in [Verdict::Allowed, Verdict::Unknown, forbidden] {
            let subject = format!("{verdict:?}");
            assert_eq!(fixture.ask(&subject, verdict.clone()).await, verdict);
            advance(LIFETIME - Duration::from_millis(1)).await;
            let down = Verdict::Unavailable("down".to_owned());
            assert_eq!(fixture.ask(&subject, down.clone()).await, verdict);
            assert_eq!(fixture.asked(), 1);
            advance(Duration::from_millis(1)).await;
            assert_eq!(fixture.ask(&subject, down.clone()).await, down);
            assert_eq!(
                fixture.ask(&subject, Verdict::Allowed).await,
                Verdict::Allowed
            );
            assert_eq!(fixture.asked(), 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_ask_the_same_at_once_share_one_answer() {
        let fixture = Fixture::default();
        for verdict in [Verdict::Allowed, Verdict::Unavailable("down".to_owned())] {
            let subject = format!("{verdict:?}");
            let answer = Notify::new();
            let slow = async {
                answer.notified().await;
                fixture.asked.fetch_add(1, Ordering::Relaxed);
                verdict.clone()
            };
            let first = fixture.decisions.on(subject.as_bytes(), slow);
            let second = fixture.ask(&subject, Verdict::Unknown);
            let third = async {
                tokio::task::yield_now().await;
                answer.notify_one();
            };
            let (first, second, ()) = tokio::join!(first, second, third);
            assert_eq!((&first, &second), (&verdict, &verdict));
            assert_eq!(fixture.asked(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_who_waits_asks_when_the_first_goes_away() {
        let fixture = Fixture::default();
        {
            let never = fixture.decisions.on(b"a", std::future::pending());
            let gone = tokio::time::timeout(Duration::from_secs(1), never).await;
            assert!(gone.is_err());
        }
        assert_eq!(fixture.ask("a", Verdict::Allowed).await, Verdict::Allowed);
        assert_eq!((fixture.asked(), fixture.kept()), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn made_up_tokens_use_little_and_push_out_nobody_who_may_read() {
        let fixture = Fixture::default();
        fixture.ask("prometheus", Verdict::Allowed).await;
        for number in 0..3 * MOST {
            fixture.ask(&number.to_string(), Verdict::Unknown).await;
            assert!(fixture.kept() <= MOST);
        }
        assert_eq!(fixture.asked(), 3 * MOST + 1);
        assert_eq!(
            fixture.ask("prometheus", Verdict::Unknown).await,
            Verdict::Allowed
        );
        assert_eq!(fixture.asked(), 0);

        // Nor do those who may read push out each other; one too many is answered and not kept.
        let fixture = Fixture::default();
        for number in 0..=MOST {
            fixture.ask(&number.to_string(), Verdict::Allowed).await;
        }
        assert_eq!(
            fixture.ask(&MOST.to_string(), Verdict::Unknown).await,
            Verdict::Unknown
        );
        assert_eq!(fixture.ask("0", Verdict::Unknown).await, Verdict::Allowed);
        advance(LIFETIME).await;
        fixture.ask("new", Verdict::Allowed).await;
        assert_eq!(fixture.kept(), 1);
    }
}
