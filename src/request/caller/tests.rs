use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SigningKey as _,
};
use x509_parser::parse_x509_certificate;

use crate::x509::Roots;

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let der = params.self_signed(&key).unwrap().der().clone();
    Ca {
        issuer: Issuer::new(params, key),
        der,
    }
}

fn params(cn: &str, organizations: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.distinguished_name = rcgen::DistinguishedName::new();
    if !cn.is_empty() {
        params.distinguished_name.push(DnType::CommonName, cn);
    }
    // rcgen keeps one value a type; more than one organization comes from the end to end tests' openssl.
    for organization in organizations {
        params
            .distinguished_name
            .push(DnType::OrganizationName, *organization);
    }
    params
}

fn signed(params: &CertificateParams, ca: &Ca) -> CertificateDer<'static> {
    params
        .signed_by(&KeyPair::generate().unwrap(), &ca.issuer)
        .unwrap()
        .der()
        .clone()
}

struct World {
    users: Ca,
    peers: Ca,
    authenticator: Authenticator,
}

fn world(allowed_names: &[&str]) -> World {
    let (users, peers) = (ca("kubernetes"), ca("front-proxy-ca"));
    let authenticator = Authenticator {
        generation: 1,
        cas: cas(&users, &peers),
        allowed_names: allowed_names
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
    };
    World {
        users,
        peers,
        authenticator,
    }
}

fn cas(users: &Ca, peers: &Ca) -> ClientCas {
    let [users, peers] =
        [users, peers].map(|ca| Roots::new(std::slice::from_ref(&ca.der)).unwrap());
    ClientCas { users, peers }
}

fn connection(chain: Vec<CertificateDer<'static>>) -> ClientConnection {
    ClientConnection::new("192.0.2.1".parse().unwrap(), 7, chain)
}

const TOKEN: bool = true;
const NO_TOKEN: bool = false;

impl World {
    fn caller(&self, der: CertificateDer<'static>, bearer: bool) -> Caller {
        self.authenticator
            .caller(&connection(vec![der]), bearer, SystemTime::now())
    }
}

fn user(caller: &Caller) -> (&str, Vec<&str>) {
    match caller {
        Caller::User(who) => (
            who.user.to_str().unwrap(),
            who.groups
                .iter()
                .map(|group| group.to_str().unwrap())
                .collect(),
        ),
        other => panic!("{other:?} is no user"),
    }
}

#[test]
fn without_a_certificate_the_token_decides() {
    let world = world(&["front-proxy-client"]);
    let ask = |bearer| {
        world
            .authenticator
            .caller(&connection(vec![]), bearer, SystemTime::now())
    };
    assert_eq!(ask(NO_TOKEN), Caller::Anonymous);
    assert_eq!(ask(TOKEN), Caller::Bearer);
}

#[test]
fn a_users_certificate_names_user_and_groups() {
    let world = world(&["front-proxy-client"]);
    let caller = world.caller(signed(&params("alice", &["devs"]), &world.users), NO_TOKEN);
    assert_eq!(user(&caller), ("alice", vec!["devs"]));
    let caller = world.caller(signed(&params("alice", &[]), &world.users), TOKEN);
    assert_eq!(
        user(&caller),
        ("alice", vec![]),
        "the certificate comes before the token, as in kube-apiserver"
    );
}

/// The certificate with other bytes, signed again.
fn signed_again(
    certificate: &CertificateDer<'_>,
    [from, to]: [&[u8]; 2],
    ca: &Ca,
) -> CertificateDer<'static> {
    const ECDSA_WITH_SHA256: &[u8] = &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
    assert_eq!(from.len(), to.len());
    let (_, parsed) = parse_x509_certificate(certificate).unwrap();
    let mut content = parsed.tbs_certificate.as_ref().to_vec();
    let at = content.windows(from.len()).position(|it| it == from);
    let at = at.unwrap();
    content[at..at + to.len()].copy_from_slice(to);
    let signature = ca.issuer.key().sign(&content).unwrap();
    content.extend(ECDSA_WITH_SHA256);
    content.extend([3, u8::try_from(signature.len() + 1).unwrap(), 0]);
    content.extend(signature);
    let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
    let whole = [0x30, 0x82, high, low].into_iter().chain(content);
    whole.collect::<Vec<_>>().into()
}

#[test]
fn what_comes_after_an_empty_part_of_a_subject_counts_as_in_go() {
    let world = world(&["front-proxy-client"]);
    let certificate = signed(&params("somebody", &["123456"]), &world.users);
    let attribute = |kind: u8, text: &str| {
        let length = u8::try_from(text.len()).unwrap();
        let mut set = vec![
            0x31,
            9 + length,
            0x30,
            7 + length,
            6,
            3,
            0x55,
            4,
            kind,
            12,
            length,
        ];
        set.extend(text.bytes());
        set
    };
    let [organization, name] = [attribute(10, "123456"), attribute(3, "anna")];
    let empty_set = [0x31, 0];
    let after_it = [&empty_set[..], &name].concat();
    let certificate = signed_again(&certificate, [&organization, &after_it], &world.users);
    assert_eq!(user(&world.caller(certificate, NO_TOKEN)), ("anna", vec![]));
}

#[test]
fn a_peer_is_who_has_the_right_ca_and_name() {
    let world = world(&["front-proxy-client"]);
    let peer = signed(&params("front-proxy-client", &[]), &world.peers);
    assert_eq!(world.caller(peer, NO_TOKEN), Caller::Peer);
    let other = signed(&params("someone-else", &[]), &world.peers);
    assert_eq!(world.caller(other, NO_TOKEN), Caller::Unverifiable);
    let user_of_that_name = signed(&params("front-proxy-client", &[]), &world.users);
    assert_eq!(
        user(&world.caller(user_of_that_name, NO_TOKEN)).0,
        "front-proxy-client"
    );
}

#[test]
fn no_allowed_names_means_any_name() {
    let world = world(&[]);
    let peer = signed(&params("someone-else", &[]), &world.peers);
    assert_eq!(world.caller(peer, NO_TOKEN), Caller::Peer);
}

#[test]
fn a_certificate_that_proves_nothing_is_a_401_unless_there_is_a_token() {
    let world = world(&["front-proxy-client"]);
    let rogue = signed(
        &params("kubernetes-admin", &["system:masters"]),
        &ca("rogue"),
    );
    assert_eq!(world.caller(rogue.clone(), NO_TOKEN), Caller::Unverifiable);
    assert_eq!(world.caller(rogue, TOKEN), Caller::Bearer);
}

#[test]
fn a_certificate_that_is_not_for_clients_proves_nothing() {
    let world = world(&["front-proxy-client"]);
    let mut server = params("alice", &[]);
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    assert_eq!(
        world.caller(signed(&server, &world.users), NO_TOKEN),
        Caller::Unverifiable
    );
    let mut server = params("front-proxy-client", &[]);
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    assert_eq!(
        world.caller(signed(&server, &world.peers), NO_TOKEN),
        Caller::Unverifiable
    );
}

#[test]
fn names_that_a_header_would_change_never_become_one() {
    let world = world(&["front-proxy-client"]);
    for (cn, organization) in [
        ("mallory", "system:masters "),
        ("mallory", " system:masters"),
        ("mallory", "system:masters\t"),
        ("mallory", "system:masters\u{a0}"),
        ("mallory", "a\nX-Remote-Group: system:masters"),
        ("mallory", "a\0"),
        ("mallory ", "devs"),
        ("\r\nmallory", "devs"),
        ("", "devs"),
        ("   ", "devs"),
    ] {
        let caller = world.caller(signed(&params(cn, &[organization]), &world.users), NO_TOKEN);
        assert_eq!(caller, Caller::Unverifiable, "{cn:?} {organization:?}");
    }
    let caller = world.caller(
        signed(&params("jürgen müller", &["a b"]), &world.users),
        NO_TOKEN,
    );
    let Caller::User(who) = caller else {
        panic!("{caller:?}")
    };
    assert_eq!(who.user.as_bytes(), "jürgen müller".as_bytes());
}

#[test]
fn a_certificate_that_expires_on_an_open_connection_counts_no_longer() {
    let world = world(&["front-proxy-client"]);
    let now = SystemTime::now();
    let mut short = params("alice", &[]);
    short.not_before = (now - Duration::from_secs(60)).into();
    short.not_after = (now + Duration::from_secs(60)).into();
    let connection = connection(vec![signed(&short, &world.users)]);
    let at = |seconds| {
        world
            .authenticator
            .caller(&connection, NO_TOKEN, now + Duration::from_secs(seconds))
    };
    assert_eq!(user(&at(0)).0, "alice");
    assert_eq!(at(120), Caller::Unverifiable);
    assert_eq!(user(&at(1)).0, "alice");
}

#[test]
fn a_ca_that_is_withdrawn_counts_no_longer_on_open_connections() {
    let mut world = world(&["front-proxy-client"]);
    let connection = connection(vec![signed(&params("alice", &[]), &world.users)]);
    let now = SystemTime::now();
    assert_eq!(
        user(&world.authenticator.caller(&connection, NO_TOKEN, now)).0,
        "alice"
    );
    world.authenticator.cas = cas(&ca("another"), &world.peers);
    world.authenticator.generation += 1;
    assert_eq!(
        world.authenticator.caller(&connection, NO_TOKEN, now),
        Caller::Unverifiable
    );
}

fn ca_under(name: &str, above: &Ca) -> Ca {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let der = params.signed_by(&key, &above.issuer).unwrap().der().clone();
    Ca {
        issuer: Issuer::new(params, key),
        der,
    }
}

#[test]
fn chains_through_an_intermediate_are_followed() {
    let world = world(&["front-proxy-client"]);
    let between = ca_under("between", &world.users);
    let leaf = signed(&params("alice", &[]), &between);
    let now = SystemTime::now();
    let with = world.authenticator.caller(
        &connection(vec![leaf.clone(), between.der.clone()]),
        NO_TOKEN,
        now,
    );
    assert_eq!(user(&with).0, "alice");
    let without = world
        .authenticator
        .caller(&connection(vec![leaf]), NO_TOKEN, now);
    assert_eq!(without, Caller::Unverifiable);
}

#[test]
fn what_else_comes_with_a_certificate_changes_nothing() {
    let world = world(&["front-proxy-client"]);
    let between = ca_under("between", &world.users);
    let leaf = signed(&params("alice", &[]), &between);
    let others = std::iter::repeat_with(|| ca("another").der).take(50);
    let chain = std::iter::once(leaf).chain(others).chain([between.der]);
    let connection = connection(chain.collect());
    let caller = world
        .authenticator
        .caller(&connection, NO_TOKEN, SystemTime::now());
    assert_eq!(user(&caller).0, "alice");
}

#[test]
fn many_ways_through_a_chain_are_not_all_tried() {
    let world = world(&["front-proxy-client"]);
    let nobody = ca("nobody");
    let name = || ca_under("between", &nobody).der;
    let leaf = signed(&params("alice", &[]), &ca_under("between", &nobody));
    let other = ca_under("another", &nobody).der;
    let chain = std::iter::once(leaf)
        .chain(std::iter::repeat_with(name).take(10))
        .chain(std::iter::repeat_n(other, 200));
    let begun = std::time::Instant::now();
    let caller =
        world
            .authenticator
            .caller(&connection(chain.collect()), NO_TOKEN, SystemTime::now());
    assert_eq!(caller, Caller::Unverifiable);
    // Those are minutes if all are tried.
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_certificate_out_of_its_time_is_judged_once_until_something_changes() {
    let world = world(&["front-proxy-client"]);
    let now = SystemTime::now();
    let mut past = params("alice", &[]);
    past.not_before = (now - Duration::from_secs(60)).into();
    past.not_after = (now - Duration::from_secs(30)).into();
    let connection = connection(vec![signed(&past, &world.users)]);
    let verdict_at = |moment, expected| {
        let caller = world.authenticator.caller(&connection, NO_TOKEN, moment);
        assert_eq!(caller == Caller::Unverifiable, expected);
        connection.verdict.load_full().unwrap()
    };
    let first = verdict_at(now, true);
    let same = verdict_at(now + Duration::from_secs(3600), true);
    assert!(Arc::ptr_eq(&first, &same));
    verdict_at(now - Duration::from_secs(45), false);
    let next = verdict_at(now, true);
    assert!(!Arc::ptr_eq(&first, &next));
}

#[test]
fn another_certificate_that_expires_does_not_hide_when_the_own_one_does() {
    let world = world(&["front-proxy-client"]);
    let now = SystemTime::now();
    let seconds = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let until = |seconds: u64| {
        let mut params = params("alice", &[]);
        params.not_before = (now - Duration::from_secs(600)).into();
        params.not_after = (SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).into();
        signed(&params, &world.users)
    };
    let connection = connection(vec![until(seconds + 60), until(seconds - 60)]);
    let caller = world.authenticator.caller(&connection, NO_TOKEN, now);
    assert_eq!(user(&caller).0, "alice");
    assert_eq!(connection.valid_until(seconds), Some(seconds + 60));
    assert_eq!(connection.valid_until(seconds + 61), None);
}

#[test]
fn a_ca_that_has_expired_counts_no_longer() {
    let now = SystemTime::now();
    let mut short = CertificateParams::default();
    short.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    short.distinguished_name.push(DnType::CommonName, "short");
    short.not_before = (now - Duration::from_secs(60)).into();
    short.not_after = (now + Duration::from_secs(60)).into();
    let key = KeyPair::generate().unwrap();
    let der = short.self_signed(&key).unwrap().der().clone();
    let short = Ca {
        issuer: Issuer::new(short, key),
        der,
    };
    let mut world = world(&["front-proxy-client"]);
    world.authenticator.cas = cas(&short, &world.peers);
    let connection = connection(vec![signed(&params("alice", &[]), &short)]);
    let at = |seconds| {
        let moment = now + Duration::from_secs(seconds);
        world.authenticator.caller(&connection, NO_TOKEN, moment)
    };
    assert_eq!(user(&at(0)).0, "alice");
    assert_eq!(at(120), Caller::Unverifiable);
    assert_eq!(user(&at(1)).0, "alice");
    let before = now - Duration::from_secs(120);
    let caller = world.authenticator.caller(&connection, NO_TOKEN, before);
    assert_eq!(caller, Caller::Unverifiable);
}

#[test]
fn a_verdict_holds_until_a_ca_begins_or_ends() {
    let world = world(&["front-proxy-client"]);
    let [users, peers] = [&world.users, &world.peers].map(|ca| verify::validity(&ca.der).unwrap());
    let (from, until) = (
        *users.start().max(peers.start()),
        *users.end().min(peers.end()),
    );
    assert_eq!(
        unchanged(world.authenticator.cas.certificates(), from),
        from..=until
    );
    assert_eq!(
        unchanged(world.authenticator.cas.certificates(), until),
        from..=until
    );
    let last = *users.end().max(peers.end());
    assert_eq!(
        unchanged(world.authenticator.cas.certificates(), last + 1),
        last + 1..=u64::MAX
    );
}

#[test]
fn a_uid_is_taken_from_the_subject_if_it_is_plain_text() {
    let world = world(&["front-proxy-client"]);
    let with = |uid: &str| {
        let mut params = params("alice", &[]);
        let kind = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
        params.distinguished_name.push(kind, uid);
        world.caller(signed(&params, &world.users), NO_TOKEN)
    };
    let Caller::User(who) = with("3f2a-42") else {
        panic!("no user");
    };
    assert_eq!(who.uid.as_ref().unwrap(), "3f2a-42");
    for odd in ["", " 42", "4\u{0}2"] {
        assert_eq!(with(odd), Caller::Unverifiable, "{odd:?}");
    }
    let without = signed(&params("alice", &[]), &world.users);
    let Caller::User(who) = world.caller(without, NO_TOKEN) else {
        panic!("no user");
    };
    assert_eq!(who.uid, None);
}
