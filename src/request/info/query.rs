//! Query parameters, and what RequestInfo takes from them.

use std::borrow::Cow;

use super::path::unescape;

/// The values of a query parameter, in order, as Go's `url.ParseQuery` finds them: pairs are
/// separated by `&` alone, a pair with a `;` or a broken escape is dropped, `+` is a blank, and a
/// parameter without `=` has an empty value. Bytes that are not UTF-8 become U+FFFD.
pub fn query_values<'a>(query: Option<&'a str>, key: &str) -> impl Iterator<Item = Cow<'a, str>> {
    query
        .into_iter()
        .flat_map(|query| query.split('&'))
        .filter_map(move |pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if pair.is_empty() || pair.contains(';') || query_unescape(name)? != key {
                return None;
            }
            query_unescape(value)
        })
}

/// The name of a parameter in a pair of a query; `None`: no server reads it.
pub fn parameter_name(pair: &str) -> Option<Cow<'_, str>> {
    let name = pair.split_once('=').map_or(pair, |(name, _)| name);
    query_unescape(name).filter(|_| !pair.contains(';'))
}

fn query_unescape(raw: &str) -> Option<Cow<'_, str>> {
    if !raw.contains(['%', '+']) {
        return Some(Cow::Borrowed(raw));
    }
    let bytes = unescape(raw, true)?;
    Some(Cow::Owned(String::from_utf8(bytes).unwrap_or_else(|bad| {
        String::from_utf8_lossy(bad.as_bytes()).into_owned()
    })))
}

/// A boolean query parameter, as `Convert_Slice_string_To_bool` of apimachinery reads it: the first
/// value counts, and only `0` and `false` in any case are no; an empty value is yes.
pub fn is_set(query: Option<&str>, key: &str) -> bool {
    query_values(query, key).next().is_some_and(|value| {
        // Go compares by simple case folding, where U+017F is an s.
        let folded = value.chars().flat_map(char::to_uppercase);
        value != "0" && !folded.eq("FALSE".chars())
    })
}

/// The object name that a field selector demands. The apiserver forgets it where another parameter
/// of the list cannot be read; such a request is answered 400 in any case.
pub(super) fn selected_name<'a>(query: Option<&'a str>) -> Option<Cow<'a, str>> {
    let name = match query_values(query, "fieldSelector").next()? {
        Cow::Borrowed(selector) => required_name(selector)?,
        Cow::Owned(selector) => Cow::Owned(required_name(&selector)?.into_owned()),
    };
    let fits_a_path = name != "." && name != ".." && !name.contains(['/', '%']);
    fits_a_path.then_some(name)
}

/// `metadata.name` of a field selector; none if it is not demanded or any term is wrong. Go sorts
/// the terms first.
fn required_name(selector: &str) -> Option<Cow<'_, str>> {
    let mut escaped = false;
    let terms = selector.split(move |c| {
        let cuts = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        cuts
    });
    let mut found: Option<(&str, Cow<'_, str>)> = None;
    for term in terms.filter(|term| !term.is_empty()) {
        let (field, value) = term.split_once('=')?;
        let is_double = !field.ends_with('!') && value.starts_with('=');
        let value = unescape_selector(if is_double { &value[1..] } else { value })?;
        if field == "metadata.name" && found.as_ref().is_none_or(|(first, _)| term < *first) {
            found = Some((term, value));
        }
    }
    found.map(|(_, value)| value)
}

/// A field selector's value without its backslashes; none if one is missing or not followed by what
/// it is for.
fn unescape_selector(value: &str) -> Option<Cow<'_, str>> {
    if !value.contains(['\\', '=']) {
        return Some(Cow::Borrowed(value));
    }
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => chars.next().filter(|c| matches!(c, '\\' | ',' | '='))?,
            '=' => return None,
            _ => c,
        });
    }
    Some(Cow::Owned(plain))
}
