//! Compares domains, e-mail addresses and URIs with name constraints, as Go does where it can read them.
//!
//! Quoted e-mail addresses, and URIs with more than plain characters before their path, are not read: they are within no
//! constraint.

use std::net::IpAddr;

/// The labels, last one first; `None`: not a domain. A period before the first label is ignored.
fn labels(domain: &str) -> Option<Vec<&str>> {
    if domain.is_empty() {
        return Some(Vec::new());
    }
    let inside = domain.strip_prefix('.').unwrap_or(domain);
    let is_label = |label: &&str| !label.is_empty() && label.bytes().all(|b| b.is_ascii_graphic());
    let labels: Vec<_> = inside.rsplit('.').collect();
    labels.iter().all(is_label).then_some(labels)
}

/// Whether Go can parse it.
pub(super) fn is_domain(domain: &str) -> bool {
    labels(domain).is_some()
}

/// Whether a domain is equal to the constraint or below it; only below it if the constraint begins with a period.
/// `None`: one of them is not a domain.
pub(super) fn is_within(domain: &str, constraint: &str) -> Option<bool> {
    if constraint.is_empty() {
        return Some(true);
    }
    let (domain, above) = (labels(domain)?, labels(constraint)?);
    let least = above.len() + usize::from(constraint.starts_with('.'));
    let mut pairs = domain.iter().zip(&above);
    Some(domain.len() >= least && pairs.all(|(label, of)| label.eq_ignore_ascii_case(of)))
}

/// The part of an e-mail address before the `@`, and its domain.
pub(super) fn mailbox(address: &str) -> Option<(&str, &str)> {
    let (local, domain) = address.split_once('@')?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&b);
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(plain);
    (local.split('.').all(is_part) && is_domain(domain)).then_some((local, domain))
}

/// Whether an e-mail address is equal to the constraint, or in the constraint's domain.
pub(super) fn is_mailbox_within(address: &str, constraint: &str) -> Option<bool> {
    let (local, domain) = mailbox(address)?;
    if !constraint.contains('@') {
        return is_within(domain, constraint);
    }
    let (only, of) = mailbox(constraint)?;
    Some(local == only && domain.eq_ignore_ascii_case(of))
}

/// The domain of a URI's host; `None`: there is none, or it is an IP address.
pub(super) fn of_uri(uri: &str) -> Option<&str> {
    let (scheme, rest) = uri.split_once("://")?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    let (authority, _path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"+-._:@".contains(&b);
    let host = authority.rsplit('@').next()?;
    let (name, port) = host.split_once(':').unwrap_or((host, ""));
    let is_name = !name.is_empty() && name.parse::<IpAddr>().is_err();
    let is_plain = authority.bytes().all(plain) && port.bytes().all(|b| b.is_ascii_digit());
    (is_scheme && is_name && is_plain).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_have_labels_without_blanks() {
        for (domain, expected) in [
            ("", Some(vec![])),
            ("a.example", Some(vec!["example", "a"])),
            (".example", Some(vec!["example"])),
            (".", None),
            ("..example", None),
            ("a..example", None),
            ("a.example.", None),
            ("a b.example", None),
            ("*.example", Some(vec!["example", "*"])),
        ] {
            assert_eq!(labels(domain), expected, "{domain:?}");
        }
    }

    #[test]
    fn a_constraint_covers_what_is_below_it() {
        for (domain, constraint, expected) in [
            ("a.example", "", Some(true)),
            ("a.example", "example", Some(true)),
            ("a.EXAMPLE", "Example", Some(true)),
            ("example", "example", Some(true)),
            ("example", ".example", Some(false)),
            ("a.example", ".example", Some(true)),
            ("aexample", "example", Some(false)),
            ("example", "a.example", Some(false)),
            ("", "example", Some(false)),
            ("a.", "example", None),
        ] {
            let within = is_within(domain, constraint);
            assert_eq!(within, expected, "{domain:?} {constraint:?}");
        }
    }

    #[test]
    fn mailboxes_are_read_as_go_reads_them_unless_quoted() {
        for (text, local) in [
            ("joe@example.com", Some("joe")),
            ("j.o.e@example.com", Some("j.o.e")),
            ("\"j o\\\"e\"@example.com", None),
            ("j\\@oe@example.com", None),
            (".joe@example.com", None),
            ("joe.@example.com", None),
            ("j..oe@example.com", None),
            ("@example.com", None),
            ("joe", None),
            ("joe@exa mple", None),
            ("\"joe@example.com", None),
            ("joe@", Some("joe")),
        ] {
            assert_eq!(mailbox(text).map(|(local, _)| local), local, "{text:?}");
        }
        let is_joe_within = |constraint| is_mailbox_within("joe@Mail.example", constraint);
        assert_eq!(is_joe_within("joe@mail.EXAMPLE"), Some(true));
        assert_eq!(is_joe_within("Joe@mail.example"), Some(false));
        assert_eq!(is_joe_within("example"), Some(true));
        assert_eq!(is_joe_within(".mail.example"), Some(false));
    }

    #[test]
    fn the_domain_of_a_uri_is_that_of_its_host() {
        for (uri, expected) in [
            ("spiffe://example.org/ns/a", Some("example.org")),
            ("https://user:pw@example.org:443/a?b#c", Some("example.org")),
            ("https://example.org", Some("example.org")),
            ("https://example.org?@a.test", Some("example.org")),
            ("https://a.test\\@example.org/", None),
            ("a/b://example.org", None),
            ("#://example.org", None),
            ("https://192.0.2.1:80/", None),
            ("https://[::1]:443/", None),
            ("https://exa%6dple.org/", None),
            ("https:///a", None),
            // Go finds no host in it, two colons, no port, and no scheme.
            ("urn:a://example.org", None),
            ("https://example.org:1:2/", None),
            ("https://example.org:a/", None),
            ("1a://example.org", None),
            ("//example.org/a", None),
            ("/a/b", None),
            ("urn:uuid:1", None),
            ("mailto:joe@example.org", None),
            ("", None),
        ] {
            assert_eq!(of_uri(uri), expected, "{uri:?}");
        }
    }
}
