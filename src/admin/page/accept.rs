//! Whether the status is wanted as a page or as JSON. Pure.

use http::header::ACCEPT;
use pingora_http::RequestHeader;

use crate::request::info::query_values;

/// Most clauses of `Accept` that are looked at.
const MOST: usize = 32;

/// A form of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Page,
    /// For programs.
    Json,
}

/// `?format=` decides; else `Accept`, and in doubt it is the page.
pub fn form(request: &RequestHeader) -> Form {
    match query_values(request.uri.query(), "format")
        .next()
        .as_deref()
    {
        Some("json") => Form::Json,
        Some("html") => Form::Page,
        _ => {
            let accepts = request.headers.get_all(ACCEPT).iter();
            let accepts = accepts.filter_map(|accept| accept.to_str().ok());
            let clauses = accepts.flat_map(|accept| accept.split(',')).take(MOST);
            let clauses: Vec<_> = clauses.map(Clause::read).collect();
            match wish(&clauses, "json", "application/*") > wish(&clauses, "html", "text/*") {
                true => Form::Json,
                false => Form::Page,
            }
        }
    }
}

struct Clause<'a> {
    media_type: &'a str,
    quality: f32,
}

impl<'a> Clause<'a> {
    fn read(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q="));
        let quality = quality.map_or(Ok(1.0), str::parse).unwrap_or(0.0);
        Self {
            media_type,
            quality: if quality > 0.0 { quality } else { 0.0 },
        }
    }
}

/// How much a form is wanted: its quality, as the clause says that names it best; and how well it is named.
fn wish(clauses: &[Clause<'_>], sub: &str, all_of_kind: &str) -> (f32, u8) {
    let named = |clause: &Clause<'_>| match clause.media_type {
        "*/*" => 1,
        kind if kind.eq_ignore_ascii_case(all_of_kind) => 2,
        media_type => {
            let kind = all_of_kind.trim_end_matches('*').trim_end_matches('/');
            let halves = media_type.split_once('/');
            let fits = halves.is_some_and(|(ours, theirs)| {
                ours.eq_ignore_ascii_case(kind) && theirs.eq_ignore_ascii_case(sub)
            });
            if fits { 3 } else { 0 }
        }
    };
    let best = clauses.iter().max_by_key(|clause| named(clause));
    match best.map(|clause| (clause.quality, named(clause))) {
        Some((_, 0)) | None => (0.0, 0),
        // What is not wanted is not wanted the more for being named.
        Some((quality, named)) => (quality, if quality > 0.0 { named } else { 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(path: &str, accepts: &[&str]) -> Form {
        let mut request = RequestHeader::build("GET", path.as_bytes(), None).unwrap();
        for accept in accepts {
            request.append_header(ACCEPT, *accept).unwrap();
        }
        form(&request)
    }

    #[test]
    fn accept_says_what_is_preferred_and_in_doubt_it_is_the_page() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
        for (accepts, expected) in [
            (&[][..], Form::Page),
            (&[""], Form::Page),
            (&["*/*"], Form::Page),
            (&[browser], Form::Page),
            (&["nonsense"], Form::Page),
            (&["application/json"], Form::Json),
            (&["APPLICATION/JSON"], Form::Json),
            (&["application/json, */*"], Form::Json),
            (&["application/json, text/plain, */*"], Form::Json),
            (&["application/*"], Form::Json),
            (&["*/*", "application/json"], Form::Json),
            (&["application/json, text/html"], Form::Page),
            (&["application/json;q=0.5, text/html;q=0.9"], Form::Page),
            (&["application/json; q=0.9, text/html; q=0.5"], Form::Json),
            (&["application/json;q=0.5, */*;q=0.9"], Form::Page),
            (&["text/html;q=0, */*"], Form::Json),
            (&["application/json;q=0"], Form::Page),
            (&["application/json;q=x"], Form::Page),
            (&["application/json;q=NaN"], Form::Page),
        ] {
            assert_eq!(asked("/statusz", accepts), expected, "{accepts:?}");
        }
    }

    #[test]
    fn the_query_decides_whatever_is_accepted() {
        assert_eq!(asked("/statusz?format=json", &["text/html"]), Form::Json);
        assert_eq!(
            asked("/statusz?format=html", &["application/json"]),
            Form::Page
        );
        assert_eq!(
            asked("/statusz?format=xml", &["application/json"]),
            Form::Json
        );
    }
}
