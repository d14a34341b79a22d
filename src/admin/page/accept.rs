//! Whether the status is wanted as a page or as JSON. Pure.

use http::header::ACCEPT;
use pingora_http::RequestHeader;

use crate::request::info::query_values;

/// Media ranges of `Accept` after this many are ignored.
const MAX_MEDIA_RANGES: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusFormat {
    /// For people.
    Page,
    /// For programs.
    Json,
}

/// `?format=` decides; else `Accept`, and in doubt it is the page.
pub fn preferred_format(request: &RequestHeader) -> StatusFormat {
    match query_values(request.uri.query(), "format")
        .next()
        .as_deref()
    {
        Some("json") => StatusFormat::Json,
        Some("html") => StatusFormat::Page,
        _ => {
            let accepts = request.headers.get_all(ACCEPT).iter();
            let accepts = accepts.filter_map(|accept| accept.to_str().ok());
            let ranges = accepts
                .flat_map(|accept| accept.split(','))
                .take(MAX_MEDIA_RANGES);
            let ranges: Vec<_> = ranges.map(MediaRange::read).collect();
            match preference(&ranges, "json", "application/*")
                > preference(&ranges, "html", "text/*")
            {
                true => StatusFormat::Json,
                false => StatusFormat::Page,
            }
        }
    }
}

/// One media range of `Accept`.
struct MediaRange<'a> {
    media_type: &'a str,
    quality: f32,
}

impl<'a> MediaRange<'a> {
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

/// Preference for a media type: the quality of the range that names it most precisely, then how precise that is.
fn preference(ranges: &[MediaRange<'_>], sub: &str, all_of_kind: &str) -> (f32, u8) {
    let precision = |range: &MediaRange<'_>| match range.media_type {
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
    let best = ranges.iter().max_by_key(|range| precision(range));
    match best.map(|range| (range.quality, precision(range))) {
        Some((_, 0)) | None => (0.0, 0),
        // With quality 0 a more precise range is no preference.
        Some((quality, precision)) => (quality, if quality > 0.0 { precision } else { 0 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format_of(path: &str, accepts: &[&str]) -> StatusFormat {
        let mut request = RequestHeader::build("GET", path.as_bytes(), None).unwrap();
        for accept in accepts {
            request.append_header(ACCEPT, *accept).unwrap();
        }
        preferred_format(&request)
    }

    #[test]
    fn accept_says_what_is_preferred_and_in_doubt_it_is_the_page() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8";
        for (accepts, expected) in [
            (&[][..], StatusFormat::Page),
            (&[""], StatusFormat::Page),
            (&["*/*"], StatusFormat::Page),
            (&[browser], StatusFormat::Page),
            (&["nonsense"], StatusFormat::Page),
            (&["application/json"], StatusFormat::Json),
            (&["APPLICATION/JSON"], StatusFormat::Json),
            (&["application/json, */*"], StatusFormat::Json),
            (&["application/json, text/plain, */*"], StatusFormat::Json),
            (&["application/*"], StatusFormat::Json),
            (&["*/*", "application/json"], StatusFormat::Json),
            (&["application/json, text/html"], StatusFormat::Page),
            (
                &["application/json;q=0.5, text/html;q=0.9"],
                StatusFormat::Page,
            ),
            (
                &["application/json; q=0.9, text/html; q=0.5"],
                StatusFormat::Json,
            ),
            (&["application/json;q=0.5, */*;q=0.9"], StatusFormat::Page),
            (&["text/html;q=0, */*"], StatusFormat::Json),
            (&["application/json;q=0"], StatusFormat::Page),
            (&["application/json;q=x"], StatusFormat::Page),
            (&["application/json;q=NaN"], StatusFormat::Page),
        ] {
            assert_eq!(format_of("/statusz", accepts), expected, "{accepts:?}");
        }
    }

    #[test]
    fn the_query_decides_whatever_is_accepted() {
        assert_eq!(
            format_of("/statusz?format=json", &["text/html"]),
            StatusFormat::Json
        );
        assert_eq!(
            format_of("/statusz?format=html", &["application/json"]),
            StatusFormat::Page
        );
        assert_eq!(
            format_of("/statusz?format=xml", &["application/json"]),
            StatusFormat::Json
        );
    }
}
