//! Verdicts of the apiserver, kept for [`LIFETIME`] as in Kubernetes' own components.
//!
//! Whoever was allowed within the last [`FALLBACK`] stays so while the apiserver cannot be asked: metrics matter most then,
//! and a scrape interval is longer than the life of a verdict.
//!
//! Whoever comes while the same question is being asked waits for its answer. A failure is shared with those who wait and
//! then forgotten. Subjects are known by a keyed hash alone.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use ring::hmac::{HMAC_SHA256, Key, sign};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::review::Verdict;
use crate::net::lock;

const LIFETIME: Duration = Duration::from_secs(10);
const FALLBACK: Duration = Duration::from_secs(600);
/// Most subjects. Clients can send as many different tokens as they like.
const MOST: usize = 1024;

/// Of the hash by which subjects are known.
static KEY: LazyLock<Key> = LazyLock::new(|| Key::new(HMAC_SHA256, &rand::random::<[u8; 32]>()));

/// What is asked, or was answered, about one subject.
struct Question {
    answer: OnceCell<Answer>,
    /// When the apiserver last allowed it, as known before this question.
    allowed: Option<Instant>,
}

impl Question {
    /// When the apiserver allowed the subject, if that was lately.
    fn allowed_lately(&self, now: Instant) -> Option<Instant> {
        let answer = self.answer.get();
        lately(answer.map_or(self.allowed, |it| it.allowed), now)
    }
}

struct Answer {
    verdict: Verdict,
    until: Instant,
    /// When the apiserver last allowed it.
    allowed: Option<Instant>,
}

impl Answer {
    /// `before`: when the subject was last allowed.
    fn new(verdict: Verdict, before: Option<Instant>) -> Self {
        let now = Instant::now();
        let (verdict, until, allowed) = match (verdict, lately(before, now)) {
            (Verdict::Allowed, _) => (Verdict::Allowed, now + LIFETIME, Some(now)),
            (Verdict::Unavailable(_), Some(before)) => (Verdict::Allowed, now, Some(before)),
            (Verdict::Unavailable(why), None) => (Verdict::Unavailable(why), now, None),
            (refused, _) => (refused, now + LIFETIME, None),
        };
        Self {
            verdict,
            until,
            allowed,
        }
    }
}

fn lately(allowed: Option<Instant>, now: Instant) -> Option<Instant> {
    allowed.filter(|allowed| now.duration_since(*allowed) < FALLBACK)
}

#[derive(Default)]
pub(super) struct Decisions {
    questions: Mutex<HashMap<Vec<u8>, Arc<Question>>>,
}

impl Decisions {
    /// The verdict on a subject: a known one, or else that of `review`, which is told whether the subject was allowed
    /// lately.
    pub(super) async fn on<R: Future<Output = Verdict>>(
        &self,
        subject: &[u8],
        review: impl FnOnce(bool) -> R,
    ) -> Verdict {
        let question = self.question(subject);
        let before = question.allowed;
        let answer = question
            .answer
            .get_or_init(async || Answer::new(review(before.is_some()).await, before));
        answer.await.verdict.clone()
    }

    fn question(&self, subject: &[u8]) -> Arc<Question> {
        let hash = sign(&KEY, subject).as_ref().to_vec();
        let now = Instant::now();
        let mut questions = lock(&self.questions);
        let known = questions.get(&hash);
        if let Some(known) = known
            && known.answer.get().is_none_or(|answer| answer.until > now)
        {
            return known.clone();
        }
        let allowed = known.and_then(|known| known.allowed_lately(now));
        if questions.len() >= MOST {
            // Made-up tokens must not push out those who may read, nor those who are being asked about.
            questions.retain(|_, question| {
                question.allowed_lately(now).is_some() || Arc::strong_count(question) > 1
            });
        }
        let answer = OnceCell::new();
        let question = Arc::new(Question { answer, allowed });
        // A question that is not kept is answered all the same.
        if questions.len() < MOST || questions.contains_key(&hash) {
            questions.insert(hash, question.clone());
        }
        question
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
            self.decisions.on(subject.as_bytes(), |_| review).await
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
            let is_allowed = verdict == Verdict::Allowed;
            let meanwhile = if is_allowed { &verdict } else { &down };
            // Nothing of that is kept, and each asks again.
            for _ in 0..2 {
                assert_eq!(&fixture.ask(&subject, down.clone()).await, meanwhile);
            }
            advance(FALLBACK - LIFETIME).await;
            assert_eq!(fixture.ask(&subject, down.clone()).await, down);
            assert_eq!(
                fixture.ask(&subject, Verdict::Allowed).await,
                Verdict::Allowed
            );
            assert_eq!(fixture.asked(), 4);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_refused_is_not_let_in_by_what_was_before() {
        let fixture = Fixture::default();
        let down = Verdict::Unavailable("down".to_owned());
        fixture.ask("a", Verdict::Allowed).await;
        advance(LIFETIME).await;
        assert_eq!(fixture.ask("a", Verdict::Unknown).await, Verdict::Unknown);
        advance(LIFETIME).await;
        assert_eq!(fixture.ask("a", down.clone()).await, down);
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
            let first = fixture.decisions.on(subject.as_bytes(), |_| slow);
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
            let never = fixture.decisions.on(b"a", |_| std::future::pending());
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
        advance(FALLBACK).await;
        fixture.ask("new", Verdict::Allowed).await;
        assert_eq!(fixture.kept(), 1);
    }
}
