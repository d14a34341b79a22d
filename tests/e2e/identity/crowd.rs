//! Many users at once over few connections: each request keeps its user.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use testkit::client::Client;
use testkit::cluster::{Ground, Single};
use testkit::double::{Double, DoubleOptions, v1_36};
use testkit::pki::LeafOptions;
use testkit::proxy::{Proxy, Until};

const ECHO: &str = "/_double/echo";
/// Of each kind.
const USERS: usize = 20;
const ROUNDS: usize = 20;

/// Somebody who asks, as the apiserver is to know them.
struct Caller {
    client: Client,
    user: String,
    group: String,
}

async fn crowd() -> (Single, Vec<Caller>) {
    let ground = Ground::new().await;
    let name =
        |kind: &str, number: usize| (format!("{kind}-{number}"), format!("of-{kind}-{number}"));
    let tokens = (0..USERS).map(|number| {
        let (user, group) = name("token", number);
        format!("secret-{number},{user},uid-{number},\"{group}\"\n")
    });
    std::fs::write(ground.pki.path("tokens.csv"), tokens.collect::<String>()).unwrap();
    let double = Double::start(DoubleOptions::new(ground.pki.dir(), v1_36())).await;
    let options = ground.proxy("a", double.addr()).until(Until::Ready);
    let proxy = Proxy::start(options).await;
    let mut callers = Vec::new();
    for number in 0..USERS {
        let (user, group) = name("cert", number);
        let leaf = LeafOptions::client(&user).org(&group);
        ground.pki.leaf(&user, "ca", &leaf);
        let certified = proxy.client(&ground.pki).cert(&user);
        let (token_user, token_group) = name("token", number);
        let holder = proxy.client(&ground.pki).token(&format!("secret-{number}"));
        for (client, user, group) in [
            (certified, user, group),
            (holder, token_user, token_group),
            (
                proxy.client(&ground.pki),
                "system:anonymous".to_owned(),
                "system:unauthenticated".to_owned(),
            ),
        ] {
            for client in [client.http1(), client.http2()] {
                callers.push(Caller {
                    client: client.timeout(Duration::from_secs(60)),
                    user: user.clone(),
                    group: group.clone(),
                });
            }
        }
    }
    double.take_requests();
    let single = Single {
        double,
        proxy,
        ground,
    };
    (single, callers)
}

/// One caller's requests, one after the other. What the answers say of the user is checked here.
async fn ask(caller: Arc<Caller>, number: usize, rounds: Range<usize>) {
    for round in rounds {
        let path = format!("{ECHO}?caller={number}&round={round}");
        let answer = caller.client.get(&path).await;
        let echo = answer.json();
        assert_eq!(echo["path"], path.as_str(), "the answer to another request");
        assert_eq!(echo["user"]["name"], caller.user.as_str(), "{path}");
        let groups = echo["user"]["groups"].as_array().unwrap();
        assert!(groups.contains(&caller.group.as_str().into()), "{groups:?}");
        let strangers = groups.iter().filter_map(|group| group.as_str());
        let mut strangers =
            strangers.filter(|group| group.starts_with("of-") && *group != caller.group);
        assert_eq!(strangers.next(), None, "{path}");
    }
}

#[tokio::test]
async fn thousands_of_interleaved_requests_arrive_as_their_own_users() {
    let (world, callers) = crowd().await;
    let users: HashMap<usize, String> = callers
        .iter()
        .enumerate()
        .map(|(number, caller)| (number, caller.user.clone()))
        .collect();
    let callers: Vec<_> = callers.into_iter().map(Arc::new).collect();
    // One after the other, so that there are connections to share.
    for (number, caller) in callers.iter().enumerate() {
        ask(caller.clone(), number, 0..1).await;
    }
    let tasks: JoinSet<()> = callers
        .into_iter()
        .enumerate()
        .map(|(number, caller)| ask(caller, number, 1..ROUNDS))
        .collect();
    timeout(Duration::from_secs(180), tasks.join_all())
        .await
        .expect("all answers");

    let seen = world.double.take_requests();
    let echoes: Vec<_> = seen
        .iter()
        .filter(|request| request.path.starts_with(ECHO))
        .collect();
    assert_eq!(echoes.len(), 6 * USERS * ROUNDS);
    let mut with_certificate = HashMap::new();
    let mut shared = HashSet::new();
    let mut of_strangers: HashMap<_, HashSet<_>> = HashMap::new();
    for request in &echoes {
        let number = request.path.split(['=', '&']).nth(1).unwrap();
        let user = &users[&number.parse().unwrap()];
        assert_eq!(&request.user, user, "{}", request.path);
        // The proxy's certificate goes with certificate users, and with nobody else.
        let certified = user.starts_with("cert-");
        assert_eq!(request.peer_cert.is_some(), certified, "{}", request.path);
        with_certificate.insert(request.connection_id, certified);
        if user == "system:anonymous" {
            let callers = of_strangers.entry(request.connection_id).or_default();
            callers.insert(number);
        } else if certified || !request.path.ends_with("round=0") {
            // A token may be unknown until its first request is answered.
            shared.insert(request.connection_id);
        }
    }
    assert!(shared.len() < 40, "shared by many: {}", shared.len());
    for (connection, callers) in &of_strangers {
        assert_eq!(callers.len(), 1, "strangers share nothing: {callers:?}");
        assert!(!shared.contains(connection), "and nothing with others");
    }
    let connections: HashSet<_> = echoes.iter().map(|request| request.connection_id).collect();
    assert_eq!(connections.len(), with_certificate.len());
}
