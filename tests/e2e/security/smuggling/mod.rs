//! Request smuggling: the requests that apiservers see, and their users, are those that the clients sent.

mod corpus;
mod lengths;
mod streams;

use corpus::{CHUNKS, Case, Expect, LAST, LINES};
use lengths::LENGTHS;

use crate::http::strict_server::Witness;
use testkit::client::Client;
use testkit::cluster::{Ground, Single};
use testkit::double::Recorded;
use testkit::proxy::Proxy;
use testkit::raw;

/// What is asked by somebody else, over the same upstream connections, after each attack.
const VICTIM: &str = "GET /victim [] as kubernetes-admin";

/// A proxy beside an apiserver that tells what it has seen.
struct Witnessed {
    witness: Witness,
    proxy: Proxy,
    ground: Ground,
}

impl Witnessed {
    async fn new() -> Self {
        let ground = Ground::new().await;
        let witness = Witness::start(&ground).await;
        let proxy = ground.proxy_beside(witness.addr()).await;
        witness.take();
        Self {
            witness,
            proxy,
            ground,
        }
    }

    fn attacker(&self) -> Client {
        self.proxy.client(&self.ground.pki).cert("alice")
    }

    /// What the apiserver saw of an attack, after somebody else was served as if there had been none.
    async fn seen(&self, what: &str) -> Vec<String> {
        let admin = self.proxy.client(&self.ground.pki).cert("admin");
        // Connections of their own, so that every thread of the proxy may be met.
        let victims = [admin.http1(), admin.http2(), admin.http1(), admin.http2()];
        for victim in &victims {
            let answer = victim.get("/victim").await;
            assert_eq!(
                (answer.code(), answer.text()),
                (200, "{}".to_owned()),
                "{what}"
            );
        }
        let (others, seen): (Vec<_>, Vec<_>) = self
            .witness
            .take()
            .into_iter()
            .partition(|request| request == VICTIM);
        assert_eq!(others.len(), victims.len(), "{what}");
        seen
    }

    async fn check(&self, cases: &[Case]) {
        let (mut codes, mut seen) = (Vec::new(), Vec::new());
        for (number, case) in cases.iter().enumerate() {
            codes.push(ask(&self.attacker(), number, case).await);
            seen.extend(self.seen(case.0).await);
        }
        judge(cases, &codes, &seen, 200, str::to_owned);
    }
}

/// Sends a case with its number in every query; the codes of the answers.
async fn ask(attacker: &Client, number: usize, (_, bytes, _): &Case) -> Vec<u16> {
    let bytes = [bytes, LAST].concat();
    let bytes = bytes.replace(" HTTP/1.", &format!("?{number} HTTP/1."));
    raw::codes(&raw::http1(attacker, bytes.as_bytes()).await)
}

/// Compares what was answered and seen with what may be; `good`: the answer to what is served; `part`: what of a
/// request is compared. What was cut may be seen late, so that requests are told apart by their numbers.
fn judge(cases: &[Case], codes: &[Vec<u16>], seen: &[String], good: u16, part: fn(&str) -> String) {
    let mut wrong = Vec::new();
    let mut known = 0;
    for (number, ((name, _, expected), codes)) in cases.iter().zip(codes).enumerate() {
        let mark = format!("?{number} ");
        let seen = seen.iter().filter(|request| request.contains(&mark));
        let seen: Vec<_> = seen
            .map(|request| part(&request.replace(&mark, " ")))
            .collect();
        known += seen.len();
        let fits = match expected {
            Expect::Seen(requests) => {
                let expected = requests.iter().map(|request| part(request));
                seen == expected.collect::<Vec<_>>() && codes == &vec![good; requests.len()]
            }
            Expect::Refused => seen.is_empty() && codes == &[400],
            Expect::Cut => {
                let cut = |request: &String| *request == part("POST /told [cut] as alice");
                seen.len() <= 1 && seen.iter().all(cut) && codes.iter().all(|code| *code >= 400)
            }
        };
        if !fits {
            wrong.push(format!(
                "{name}: answered {codes:?}, the apiserver saw {seen:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(known, seen.len(), "requests of no case: {seen:?}");
}

fn without_body(request: &str) -> String {
    let (head, _) = request.split_once(" [").unwrap();
    let (_, user) = request.rsplit_once("] ").unwrap();
    format!("{head} {user}")
}

#[tokio::test]
async fn a_request_has_one_length_or_is_refused() {
    Witnessed::new().await.check(LENGTHS).await;
}

#[tokio::test]
async fn chunks_that_can_be_read_in_two_ways_never_become_a_body() {
    Witnessed::new().await.check(CHUNKS).await;
}

#[tokio::test]
async fn lines_that_can_be_read_in_two_ways_never_become_a_request() {
    Witnessed::new().await.check(LINES).await;
}

#[tokio::test]
async fn an_apiserver_of_http2_sees_the_same() {
    let single = Single::new().await;
    let alice = single.client().cert("alice");
    let cases = [LENGTHS, CHUNKS, LINES].concat();
    let mut codes = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        codes.push(ask(&alice, number, case).await);
    }
    let requests = single.double.take_requests().into_iter();
    let requests = requests.filter(|request| request.user != "system:kube-interop-proxy");
    let seen = requests.map(|request| {
        let Recorded {
            method, path, user, ..
        } = request;
        format!("{method} {path} [] as {user}")
    });
    // Alice may do nothing of the kind, and a body that does not count is not read.
    judge(&cases, &codes, &seen.collect::<Vec<_>>(), 403, without_body);
}
