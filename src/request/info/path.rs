//! Paths: cut into segments, and what RequestInfo and the apiserver's routers find in them.

use std::borrow::Cow;

use super::{PathForm, ResourceRequest, Verb};
use crate::kube::discovery::DiscoveryDocument;
use crate::kube::gvr::GroupVersion;

/// What `read_path` can find, and the verb that the path itself brings.
pub(super) enum ParsedPath<'a> {
    Resource(Option<Verb>, ResourceRequest<'a>),
    Discovery(DiscoveryDocument),
}

/// `None`, here and below: nothing of these, or others might read the path differently.
pub(super) fn read_path(path: &str) -> Option<ParsedPath<'_>> {
    let mut segments = Segments {
        unread: path.strip_prefix('/'),
    };
    let group = match segments.next()?.as_deref() {
        Some("api") => Cow::Borrowed(""),
        Some("apis") => match segments.next()? {
            Some(group) => group,
            None => return Some(ParsedPath::Discovery(DiscoveryDocument::Groups)),
        },
        Some("openapi") => return read_openapi(path, segments),
        _ => return None,
    };
    let Some(version) = segments.next()? else {
        return Some(ParsedPath::Discovery(match &*group {
            "" => DiscoveryDocument::Versions,
            _ => DiscoveryDocument::Group(group.into_owned()),
        }));
    };
    match segments.next()? {
        Some(first) => read_resource(group, version, first, segments),
        None => {
            let of = GroupVersion::new(&group, &version);
            Some(ParsedPath::Discovery(DiscoveryDocument::Resources(of)))
        }
    }
}

fn read_resource<'a>(
    group: Cow<'a, str>,
    version: Cow<'a, str>,
    first: Cow<'a, str>,
    mut segments: Segments<'a>,
) -> Option<ParsedPath<'a>> {
    let special = match first.as_ref() {
        "watch" => Some(Verb::Watch),
        "proxy" => Some(Verb::Proxy),
        _ => None,
    };
    let mut request = ResourceRequest {
        group,
        version,
        // `/api/v1/watch` alone is an error to the apiserver, too.
        resource: if special.is_some() {
            segments.next()??
        } else {
            first
        },
        subresource: Cow::default(),
        namespace: Cow::default(),
        name: Cow::default(),
        form: PathForm {
            prefixed: special.is_some(),
            ..PathForm::default()
        },
    };
    match &*request.resource {
        "namespaces" => read_namespace(&mut request, &mut segments)?,
        _ => request.name = segments.next_name()?.unwrap_or_default(),
    }
    if special.is_some() && is_dots(&request.name) {
        return None;
    }
    request.form.named = !request.name.is_empty();
    if special == Some(Verb::Proxy) {
        request.subresource = Cow::default();
        return Some(ParsedPath::Resource(special, request));
    }
    if request.subresource.is_empty() {
        request.subresource = segments.next()?.unwrap_or_default();
    }
    // What follows `proxy` is somebody else's path. The apiserver hands it on without looking,
    // whatever is in it, and so must we: `/proxy/a//b/../c` is as much a request for
    // `services/proxy` as `/proxy/` is. The tails of all other subresources are names to the
    // apiserver, or to the aggregated API that invented them.
    if request.subresource != "proxy" {
        request.form.longer = segments.next()?.is_some();
        // For doubts only.
        while segments.next()?.is_some() {}
    } else if is_dots(&request.name) {
        return None;
    }
    Some(ParsedPath::Resource(special, request))
}

/// What follows `namespaces`: nothing, one of them, or something inside it.
fn read_namespace<'a>(
    request: &mut ResourceRequest<'a>,
    segments: &mut Segments<'a>,
) -> Option<()> {
    request.namespace = segments.next()?.unwrap_or_default();
    match segments.next()? {
        Some(inside) if inside != "status" && inside != "finalize" => {
            request.form.in_namespace = true;
            request.resource = inside;
            request.name = segments.next_name()?.unwrap_or_default();
        }
        // Only these two are subresources of the namespace itself.
        own => {
            request.subresource = own.unwrap_or_default();
            request.name = request.namespace.clone();
        }
    }
    Some(())
}

fn read_openapi<'a>(path: &'a str, mut segments: Segments<'a>) -> Option<ParsedPath<'a>> {
    let mut next = || segments.next();
    // One more than any document has.
    let names = [next()?, next()?, next()?, next()?, next()?];
    let document = match names.each_ref().map(Option::as_deref) {
        // These are found by their exact path: with a slash at its end it is another one.
        _ if path.ends_with('/') => return None,
        [Some("v2"), None, ..] => DiscoveryDocument::OpenApiV2,
        [Some("v3"), None, ..] => DiscoveryDocument::OpenApiV3,
        [Some("v3"), Some("api"), Some(version), None, _] => {
            DiscoveryDocument::OpenApiV3Version(GroupVersion::new("", version))
        }
        [Some("v3"), Some("apis"), Some(group), Some(version), None] => {
            DiscoveryDocument::OpenApiV3Version(GroupVersion::new(group, version))
        }
        // All servers have the same.
        _ => return None,
    };
    Some(ParsedPath::Discovery(document))
}

/// The segments of a well-formed path, decoded one by one.
struct Segments<'a> {
    /// What has not been read yet, without the slash before it.
    unread: Option<&'a str>,
}

impl<'a> Segments<'a> {
    /// The next segment.
    fn next(&mut self) -> Option<Option<Cow<'a, str>>> {
        match self.next_name()? {
            Some(segment) if is_dots(&segment) => None,
            segment => Some(segment),
        }
    }

    /// The next segment, an object's name. It may be `.` or `..`: no apiserver leaves these out or goes up a level. Each
    /// that serves the resource refuses them as names. One slash at the end of the path begins no segment.
    fn next_name(&mut self) -> Option<Option<Cow<'a, str>>> {
        let Some(unread) = self.unread.take().filter(|it| !it.is_empty()) else {
            return Some(None);
        };
        // Segments are short: this takes half the time of `str::split_once`.
        let slash = unread.bytes().position(|byte| byte == b'/');
        let segment = match slash.and_then(|slash| unread.split_at_checked(slash)) {
            Some((segment, after)) => {
                self.unread = after.get(1..);
                segment
            }
            None => unread,
        };
        decode_segment(segment).map(Some)
    }
}

fn decode_segment(raw: &str) -> Option<Cow<'_, str>> {
    if raw.is_empty() {
        return None;
    }
    if !raw.bytes().any(|byte| byte == b'%') {
        return Some(Cow::Borrowed(raw));
    }
    let segment = unescape(raw, false).and_then(|bytes| String::from_utf8(bytes).ok());
    // Go decodes before it cuts at slashes: with an encoded one there are more segments than it seems.
    let is_plain = |segment: &String| !segment.contains(|c: char| c == '/' || c.is_ascii_control());
    let segment = segment.filter(is_plain)?;
    Some(Cow::Owned(segment))
}

fn is_dots(segment: &str) -> bool {
    matches!(segment, "." | "..")
}

/// Percent-decoding; none if an escape is broken.
pub(super) fn unescape(raw: &str, plus_is_blank: bool) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(raw.len());
    let mut bytes = raw.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => hex(bytes.next()?)? << 4 | hex(bytes.next()?)?,
            b'+' if plus_is_blank => b' ',
            _ => byte,
        });
    }
    Some(decoded)
}

fn hex(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}
