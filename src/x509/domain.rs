//! Compares domains and mailboxes with name constraints as Go does.

/// The labels, last one first; `None`: not a domain. A period before the first label is ignored.
fn labels(domain: &str) -> Option<impl Iterator<Item = &str>> {
    let inside = domain.strip_prefix('.').unwrap_or(domain);
    let mut labels = inside.split('.');
    let good = domain.is_empty()
        || labels
            .all(|label| !label.is_empty() && label.bytes().all(|byte| (33..=126).contains(&byte)));
    // An empty domain has no labels; split() would yield an empty one.
    let some = usize::from(!domain.is_empty()) * usize::MAX;
    good.then(|| inside.rsplit('.').take(some))
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
    let mut domain = labels(domain)?;
    let (below, constraint) = match constraint.strip_prefix('.') {
        Some(constraint) => (true, constraint),
        None => (false, constraint),
    };
    let within = labels(constraint)?.all(|label| {
        domain
            .next()
            .is_some_and(|of| of.eq_ignore_ascii_case(label))
    });
    Some(within && (!below || domain.next().is_some()))
}

/// A mailbox: the local part without quoting, and the domain.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mailbox<'a> {
    local: String,
    domain: &'a str,
}

impl<'a> Mailbox<'a> {
    /// `parseRFC2821Mailbox`
    pub(super) fn read(text: &'a str) -> Option<Self> {
        let (local, rest) = match text.strip_prefix('"') {
            Some(quoted) => quoted_local(quoted)?,
            None => plain_local(text)?,
        };
        let domain = rest.strip_prefix('@')?;
        is_domain(domain).then_some(Self { local, domain })
    }

    /// Whether it is equal to the constraint, or in the constraint's domain.
    pub(super) fn is_within(&self, constraint: &str) -> Option<bool> {
        if !constraint.contains('@') {
            return is_within(self.domain, constraint);
        }
        let other = Mailbox::read(constraint)?;
        Some(self.local == other.local && self.domain.eq_ignore_ascii_case(other.domain))
    }
}

fn quoted_local(text: &str) -> Option<(String, &str)> {
    let mut local = String::new();
    let mut rest = text.chars();
    loop {
        let escaped = |c| matches!(c, '\u{1}'..='\u{9}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{7f}');
        match rest.next()? {
            '"' => return Some((local, rest.as_str())),
            '\\' => local.push(rest.next().filter(|c| escaped(*c))?),
            c @ ('\u{1}'..='\u{8}'
            | '\u{b}'
            | '\u{c}'
            | '\u{e}'..=' '
            | '!'
            | '#'..='['
            | ']'..='~'
            | '\u{7f}') => local.push(c),
            _ => return None,
        }
    }
}

fn plain_local(text: &str) -> Option<(String, &str)> {
    const ALLOWED: &str = "!#$%&'*+-/=?^_`{|}~.";
    let mut local = String::new();
    let mut rest = text.chars();
    loop {
        let before = rest.as_str();
        match rest.next() {
            Some('\\') => local.push(rest.next()?),
            Some(c) if c.is_ascii_alphanumeric() || ALLOWED.contains(c) => local.push(c),
            _ => {
                let good = !local.is_empty()
                    && !local.starts_with('.')
                    && !local.ends_with('.')
                    && !local.contains("..");
                return good.then_some((local, before));
            }
        }
    }
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
            let labels = labels(domain).map(Iterator::collect::<Vec<_>>);
            assert_eq!(labels, expected, "{domain:?}");
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
    fn mailboxes_are_read_as_go_reads_them() {
        for (text, local) in [
            ("joe@example.com", Some("joe")),
            ("j.o.e@example.com", Some("j.o.e")),
            ("\"j o\\\"e\"@example.com", Some("j o\"e")),
            ("j\\@oe@example.com", Some("j@oe")),
            (".joe@example.com", None),
            ("joe.@example.com", None),
            ("j..oe@example.com", None),
            ("@example.com", None),
            ("joe", None),
            ("joe@exa mple", None),
            ("\"joe@example.com", None),
            ("joe@", Some("joe")),
        ] {
            let read = Mailbox::read(text).map(|mailbox| mailbox.local);
            assert_eq!(read.as_deref(), local, "{text:?}");
        }
        let joe = Mailbox::read("joe@Mail.example").unwrap();
        assert_eq!(joe.is_within("joe@mail.EXAMPLE"), Some(true));
        assert_eq!(joe.is_within("Joe@mail.example"), Some(false));
        assert_eq!(joe.is_within("example"), Some(true));
        assert_eq!(joe.is_within(".mail.example"), Some(false));
    }
}
