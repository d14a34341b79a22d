//! Certificates that need attention. Pure.

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::super::super::text::{Table, plain, span};
use super::text;
use crate::admin::document::CertificatesStatus;

/// A certificate that expires sooner is shown: the log warns at the same time.
const DAYS: i64 = 30;

/// Certificates that expire soon or have expired, and new files that cannot be used.
pub(super) fn section(
    certificates: &CertificatesStatus,
    now: OffsetDateTime,
    width: Option<usize>,
) -> Option<String> {
    let mut table = Table::new(["CERTIFICATE", "STATE"]);
    for files in &certificates.broken {
        let state = "its new files cannot be used, those before stay in use";
        table.row([text(files, "?"), state.to_owned()]);
    }
    for (file, end) in &certificates.expire {
        if let Some(state) = end.as_deref().and_then(|end| state(end, now)) {
            table.row([plain(file), state]);
        }
    }
    (!table.is_empty()).then(|| table.lines(width))
}

/// `None` if it expires late enough.
fn state(end: &str, now: OffsetDateTime) -> Option<String> {
    let Ok(time) = OffsetDateTime::parse(end, &Rfc3339) else {
        return Some(format!("expires {}, which is no time", plain(end)));
    };
    let left = time - now;
    if left.whole_days() >= DAYS {
        return None;
    }
    let distance = span(left.unsigned_abs().as_secs_f64());
    Some(match left.is_positive() {
        true => format!("expires in {distance}, {}", plain(end)),
        false => format!("EXPIRED {distance} ago, {}", plain(end)),
    })
}
