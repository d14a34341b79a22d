//! The status page: one HTML document with its style, its script, and the current status.
//!
//! The script reads the status as JSON again and again. The status may contain text from others (server IDs and addresses
//! come from etcd): the script inserts it as text only, and the page's security policy allows no other script, no other
//! origin, and no text that becomes markup.

use std::sync::LazyLock;

use data_encoding::BASE64;
use http::HeaderMap;
use http::header::{
    CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use ring::digest::{SHA256, digest};
use serde::Serialize;

pub mod host;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = concat!(include_str!("elements.js"), include_str!("page.js"));

/// Placeholders in the page.
const SLOTS: [&str; 3] = ["/*STYLE*/", "/*SCRIPT*/", "/*STATUS*/"];

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The page before the status, and after it.
static PARTS: LazyLock<[String; 2]> = LazyLock::new(|| {
    let [style, script, status] = SLOTS;
    let page = PAGE.replacen(style, STYLE, 1).replacen(script, SCRIPT, 1);
    let (before, after) = page.split_once(status).unwrap_or((&page, ""));
    [before.to_owned(), after.to_owned()]
});

/// Should the policy be no valid header, nothing is allowed: the page stays empty.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = |text: &str| BASE64.encode(digest(&SHA256, text.as_bytes()).as_ref());
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
        hash(SCRIPT),
        hash(STYLE),
    );
    let strictest = HeaderValue::from_static("default-src 'none'");
    HeaderValue::try_from(policy).unwrap_or(strictest)
});

/// The page that shows `status`.
pub fn with(status: &impl Serialize) -> serde_json::Result<String> {
    let [before, after] = &*PARTS;
    // Browsers end a script element at the first end tag, even inside a string.
    let status = serde_json::to_string(status)?.replace('<', "\\u003c");
    Ok([before, status.as_str(), after].concat())
}

/// Adds the security headers of every response on the admin port.
pub fn protect(headers: &mut HeaderMap) {
    headers.insert(CONTENT_SECURITY_POLICY, POLICY.clone());
    for (name, value) in [
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (RESOURCE_POLICY, "same-origin"),
        (VARY, "Accept"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn every_part_has_its_place() {
        for slot in SLOTS {
            assert_eq!(PAGE.matches(slot).count(), 1, "{slot}");
        }
        let page = with(&json!({"server": {"id": "a"}})).unwrap();
        assert!(page.contains(STYLE) && page.contains(SCRIPT));
        assert!(page.contains(r#"{"server":{"id":"a"}}"#), "{page}");
    }

    #[test]
    fn nothing_in_the_status_ends_the_element_that_it_is_in() {
        let hostile = "</script><script>alert(1)</script><!--";
        let page = with(&json!({ "id": hostile })).unwrap();
        let [before, after] = &*PARTS;
        let status = page.strip_prefix(before.as_str()).unwrap();
        let status = status.strip_suffix(after.as_str()).unwrap();
        assert!(!status.contains('<'), "{status}");
        let status: Value = serde_json::from_str(status).unwrap();
        assert_eq!(status["id"], hostile);
    }

    #[test]
    fn neither_style_nor_script_can_end_its_element() {
        // Nor do they name another place: all that the page asks for is where it came from.
        for text in [STYLE, SCRIPT] {
            for bad in [
                "</s",
                "<!--",
                "http:",
                "https:",
                "@import",
                "url(",
                "innerHTML",
            ] {
                assert!(!text.contains(bad), "{bad}");
            }
        }
    }

    #[test]
    fn the_policy_allows_the_pages_own_parts_and_nothing_else() {
        let mut headers = HeaderMap::new();
        protect(&mut headers);
        let policy = headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert_eq!(policy.matches("'sha256-").count(), 2, "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(headers[X_FRAME_OPTIONS], "DENY");
    }
}
