//! The scripted attacker with a real kube-apiserver v1.20.2: only a true peer can act as another user.

use std::io::Write as _;

use testkit::attacker::{attack, table};
use testkit::cluster::binary;

/// A true peer is accepted where the apiserver knows the spelling: one over HTTP/2, and over HTTP/1.1 four, and one
/// behind a bare line feed; without a user it is nobody.
const EXPECTED: [&str; 18] = [
    "nobody | HTTP/1.1 | 5 x - 400, 15 x system:anonymous [system:unauthenticated] 403 | 0 of 6",
    "nobody | HTTP/2 | 11 x - refused, 9 x system:anonymous [system:unauthenticated] 403 | 0 of 6",
    "a token | HTTP/1.1 | 5 x - 400, 15 x bob [devs system:authenticated] 403 | 0 of 6",
    "a token | HTTP/2 | 11 x - refused, 9 x bob [devs system:authenticated] 403 | 0 of 6",
    "a user's certificate | HTTP/1.1 | 5 x - 400, 15 x alice [devs qa system:authenticated] 403 | 0 of 6",
    "a user's certificate | HTTP/2 | 11 x - refused, 9 x alice [devs qa system:authenticated] 403 | 0 of 6",
    "a peer's name, of the users' CA | HTTP/1.1 | 5 x - 400, 15 x front-proxy-client [system:authenticated] 403 | 0 of 6",
    "a peer's name, of the users' CA | HTTP/2 | 11 x - refused, 9 x front-proxy-client [system:authenticated] 403 | 0 of 6",
    "a peer's name, of another CA | HTTP/1.1 | 5 x - 400, 15 x - 401 | 0 of 6",
    "a peer's name, of another CA | HTTP/2 | 9 x - 401, 11 x - refused | 0 of 6",
    "another name, of the peers' CA | HTTP/1.1 | 5 x - 400, 15 x - 401 | 0 of 6",
    "another name, of the peers' CA | HTTP/2 | 9 x - 401, 11 x - refused | 0 of 6",
    "a peer's, expired | HTTP/1.1 | 5 x - 400, 15 x - 401 | 0 of 6",
    "a peer's, expired | HTTP/2 | 9 x - 401, 11 x - refused | 0 of 6",
    "a peer's, expired, and a token | HTTP/1.1 | 5 x - 400, 15 x bob [devs system:authenticated] 403 | 0 of 6",
    "a peer's, expired, and a token | HTTP/2 | 11 x - refused, 9 x bob [devs system:authenticated] 403 | 0 of 6",
    "a true peer | HTTP/1.1 | 5 x - 400, 5 x kubernetes-admin [system:masters system:authenticated] 200, 10 x system:anonymous [system:unauthenticated] 403 | 2 of 6",
    "a true peer | HTTP/2 | 11 x - refused, 1 x kubernetes-admin [system:masters system:authenticated] 200, 8 x system:anonymous [system:unauthenticated] 403 | 2 of 6",
];

#[tokio::test]
async fn only_a_true_peer_can_be_anybody_else() {
    let rows = attack(binary()).await;
    // Not through print!, which the test runner keeps to itself: the table is for those who read the log.
    let mut out = std::io::stdout();
    out.write_all(table(&rows).as_bytes()).unwrap();
    out.flush().unwrap();
    let seen: Vec<_> = rows.iter().map(ToString::to_string).collect();
    assert_eq!(seen, EXPECTED);
}
