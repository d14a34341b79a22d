//! Reads what is always there, and what is another's.

use crate::clients::Session;
use crate::kinds::{ANCHOR, KINDS, USERS, User};
use crate::random::Random;
use crate::rules::Expected;

pub async fn run(mut session: Session, user: User, mut random: Random) {
    while !session.book.is_stopped() {
        let kind = &KINDS[random.below(KINDS.len())];
        let (path, expected) = match random.below(10) {
            0 | 1 => {
                let others: Vec<_> = USERS
                    .iter()
                    .filter(|other| other.name != user.name)
                    .collect();
                let namespace = random.one(&others).namespace;
                let user = user.name.to_owned();
                (kind.path(namespace, ANCHOR), Expected::Forbidden { user })
            }
            2 | 3 => {
                let object = format!("{}/{ANCHOR}", user.namespace);
                (kind.collection(user.namespace), Expected::List { object })
            }
            _ => {
                let owner = user.name.to_owned();
                (
                    kind.path(user.namespace, ANCHOR),
                    Expected::Object { owner },
                )
            }
        };
        session.read(&path, &expected).await;
        tokio::time::sleep(random.millis(50..250)).await;
    }
}
