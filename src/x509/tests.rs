use rcgen::{BasicConstraints, CertificateParams, CustomExtension, DnType, IsCa, Issuer, KeyPair};

use super::*;

const NOW: u64 = 1_800_000_000;

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    der: Vec<u8>,
}

fn params(cn: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, cn);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2050, 1, 1);
    params
}

fn authority(cn: &str) -> CertificateParams {
    let mut params = params(cn);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn ca(params: CertificateParams, issuer: Option<&Ca>) -> Ca {
    let key = KeyPair::generate().unwrap();
    let certificate = match issuer {
        Some(issuer) => params.signed_by(&key, &issuer.issuer),
        None => params.self_signed(&key),
    };
    let der = certificate.unwrap().der().to_vec();
    Ca {
        issuer: Issuer::new(params, key),
        der,
    }
}

fn leaf(issuer: &Ca) -> Vec<u8> {
    let key = KeyPair::generate().unwrap();
    let certificate = params("alice").signed_by(&key, &issuer.issuer);
    certificate.unwrap().der().to_vec()
}

fn is_trusted(root: &Ca, chain: &[Vec<u8>]) -> bool {
    let roots = Roots::new(&[&root.der]).unwrap();
    PresentedChain::parse(chain).is_some_and(|presented| roots.trust(&presented, NOW))
}

#[test]
fn a_chain_leads_through_what_is_between_in_any_order() {
    let root = ca(authority("root"), None);
    let first = ca(authority("first"), Some(&root));
    let second = ca(authority("second"), Some(&first));
    let leaf = leaf(&second);
    let chain = |intermediates: &[&Ca]| {
        let intermediates = intermediates.iter().map(|ca| ca.der.clone());
        std::iter::once(leaf.clone())
            .chain(intermediates)
            .collect::<Vec<_>>()
    };
    assert!(is_trusted(&root, &chain(&[&second, &first])));
    assert!(is_trusted(&root, &chain(&[&first, &second])));
    assert!(is_trusted(&root, &chain(&[&root, &first, &first, &second])));
    assert!(!is_trusted(&root, &chain(&[&second])));
    assert!(!is_trusted(&root, &chain(&[&first])));
    assert!(!is_trusted(&root, &chain(&[])));
    assert!(!is_trusted(
        &ca(authority("root"), None),
        &chain(&[&second, &first])
    ));
}

#[test]
fn the_last_second_counts_and_the_next_does_not() {
    let root = ca(authority("root"), None);
    let mut short = params("alice");
    let moment = |seconds| ::time::OffsetDateTime::from_unix_timestamp(seconds).unwrap();
    short.not_before = moment(1_700_000_000);
    short.not_after = moment(1_700_000_100);
    let key = KeyPair::generate().unwrap();
    let leaf = short.signed_by(&key, &root.issuer).unwrap();
    let presented = PresentedChain::parse(&[leaf.der()]).unwrap();
    let roots = Roots::new(&[&root.der]).unwrap();
    for (now, expected) in [
        (1_699_999_999, false),
        (1_700_000_000, true),
        (1_700_000_100, true),
        (1_700_000_101, false),
        (u64::MAX, false),
    ] {
        assert_eq!(roots.trust(&presented, now), expected, "{now}");
        assert!(unchanged(presented.certificates(), now).contains(&now));
    }
    assert_eq!(
        unchanged(presented.certificates(), 1_700_000_050),
        1_700_000_000..=1_700_000_100
    );
    assert_eq!(
        unchanged(presented.certificates(), 1_700_000_101),
        1_700_000_101..=u64::MAX
    );
    assert_eq!(unchanged(presented.certificates(), 5), 0..=1_699_999_999);
}

#[test]
fn work_has_an_end_however_many_certificates_have_one_name() {
    let root = ca(authority("root"), None);
    let strangers: Vec<_> = std::iter::repeat_with(|| ca(authority("between"), None))
        .take(120)
        .collect();
    let intermediates = ca(authority("between"), Some(&root));
    let leaf = leaf(&intermediates);
    let chain = |strangers: &[Ca]| {
        let strangers = strangers.iter().map(|ca| ca.der.clone());
        let chain = std::iter::once(leaf.clone()).chain(strangers);
        chain.chain([intermediates.der.clone()]).collect::<Vec<_>>()
    };
    assert!(is_trusted(&root, &chain(&strangers[..90])));
    assert!(!is_trusted(&root, &chain(&strangers)));
}

#[test]
fn names_are_compared_only_so_often() {
    let constraints = |count: usize| {
        let mut params = authority("between");
        let subtrees =
            (0..count).map(|number| rcgen::GeneralSubtree::DnsName(format!("{number}.example")));
        params.name_constraints = Some(rcgen::NameConstraints {
            permitted_subtrees: Vec::new(),
            excluded_subtrees: subtrees.collect(),
        });
        params
    };
    let root = ca(authority("root"), None);
    let mut named = params("alice");
    named.subject_alt_names = (0..100)
        .map(|number| rcgen::SanType::DnsName(format!("{number}.test").try_into().unwrap()))
        .collect();
    for (count, expected) in [(199, true), (201, false)] {
        let intermediates = ca(constraints(count), Some(&root));
        let key = KeyPair::generate().unwrap();
        let leaf = named
            .clone()
            .signed_by(&key, &intermediates.issuer)
            .unwrap();
        let chain = [leaf.der().to_vec(), intermediates.der];
        assert_eq!(is_trusted(&root, &chain), expected, "{count}");
    }
}

#[test]
fn extensions_that_come_twice_or_cannot_be_read_make_it_no_certificate() {
    let root = ca(authority("root"), None);
    let with = |extensions: &[(&[u64], &[u8])]| {
        let mut params = params("alice");
        params.custom_extensions = extensions
            .iter()
            .map(|(id, value)| CustomExtension::from_oid_content(id, value.to_vec()))
            .collect();
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &root.issuer).unwrap();
        Certificate::parse(leaf.der()).is_some()
    };
    assert!(with(&[(&[1, 2, 3], &[5, 0])]));
    assert!(!with(&[(&[1, 2, 3], &[5, 0]), (&[1, 2, 3], &[5, 0])]));
    let known: [(&[u64], &[u8], &[u8]); 6] = [
        (&[2, 5, 29, 19], &[0x30, 0], &[0x30, 1]),
        (&[2, 5, 29, 37], &[0x30, 0], &[0x30, 2, 5, 0]),
        (&[2, 5, 29, 35], &[0x30, 0], &[0x31, 0]),
        (&[2, 5, 29, 14], &[4, 1, 1], &[3, 2, 0, 1]),
        (&[2, 5, 29, 15], &[3, 2, 7, 0x80], &[3, 2, 7, 0xff]),
        (
            &[2, 5, 29, 17],
            &[0x30, 3, 0x82, 1, b'a'],
            &[0x30, 3, 0x82, 1, 0xff],
        ),
    ];
    for (id, good, bad) in known {
        assert!(with(&[(id, good)]), "{id:?}");
        assert!(!with(&[(id, bad)]), "{id:?}");
    }
}

/// Changes any byte: nothing panics, and no change of signed bytes goes undetected.
#[test]
fn a_certificate_with_another_byte_proves_nothing() {
    let root = ca(authority("root"), None);
    let good = leaf(&root);
    assert!(is_trusted(&root, std::slice::from_ref(&good)));
    for index in 0..good.len() {
        for change in [1, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[index] ^= change;
            assert!(!is_trusted(&root, &[bad]), "byte {index}");
        }
        assert!(!is_trusted(&root, &[good[..index].to_vec()]));
    }
    let mut longer = good.clone();
    longer.push(0);
    assert!(!is_trusted(&root, &[longer]));
}
