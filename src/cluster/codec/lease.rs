//! Identity Leases: which server a Lease names and until when it is valid. Pure.

use std::time::{Duration, SystemTime};

use k8s_pb::apimachinery::pkg::apis::meta::v1::MicroTime;
use prost::Message;
use serde::{Deserialize, Deserializer, de};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use super::{Metadata, Type, Undecodable, decode};

// In both versions the fields that are read here have the same numbers.
const LEASE: Type = Type("Lease", "coordination.k8s.io", &["v1", "v1beta1"]);

/// The label of the Leases that proxies write.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Its value.
pub const MANAGER: &str = "kube-interop-proxy";
/// The annotation in which a proxy repeats each of its renewals, in the format of [`renewal`].
pub const RENEWAL: &str = "kube-interop-proxy/renewal";

/// The holder and the time of a renewal. An apiserver that takes over a Lease keeps its labels, annotations and even
/// its holder, but does not update this annotation. So the annotation shows whether a proxy renewed the Lease last.
pub fn renewal(holder: &str, renewed: &str) -> String {
    format!("{holder} {renewed}")
}

/// The format of metav1.MicroTime.
pub fn micro_time(time: OffsetDateTime) -> String {
    let time = time.to_offset(UtcOffset::UTC);
    let (date, (hour, minute, second, micros)) = (time.date(), time.time().as_hms_micro());
    format!("{date}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Longest text of a Lease that is kept, in bytes: so a Lease has no more than 1 KiB with its name. Labels and UIDs are
/// shorter, and an apiserver's holder has 78 bytes at most.
const MOST_TEXT: usize = 96;

/// The fields of a Lease that describe a server. Long texts are cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Whether its labels mark it as the identity of a kube-apiserver.
    pub identity: bool,
    /// Whether a proxy keeps it in place of its kube-apiserver: it has our label, and a proxy renewed it last.
    pub published: bool,
    /// Host name of the server; Kubernetes before 1.26 does not write it.
    pub hostname: Option<String>,
    /// Its holder. Recent servers use a new identity after each start.
    pub holder: Option<String>,
    /// How long it is valid after a renewal.
    pub duration: Option<Duration>,
    /// Its last renewal, by its holder's clock.
    pub renewed: Option<SystemTime>,
    /// UID of the object. A Lease that is deleted and created again gets another one.
    pub uid: String,
}

#[derive(Message, Deserialize)]
#[serde(default)]
struct StoredLease {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(message, optional, tag = "2")]
    spec: Option<Spec>,
}

#[derive(Message, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    #[prost(string, optional, tag = "1")]
    holder_identity: Option<String>,
    #[prost(int32, optional, tag = "2")]
    lease_duration_seconds: Option<i32>,
    #[prost(message, optional, tag = "4")]
    #[serde(deserialize_with = "micro_time_of_json")]
    renew_time: Option<MicroTime>,
}

fn micro_time_of_json<'de, D: Deserializer<'de>>(field: D) -> Result<Option<MicroTime>, D::Error> {
    let Some(text) = Option::<String>::deserialize(field)? else {
        return Ok(None);
    };
    let time = OffsetDateTime::parse(&text, &Rfc3339).map_err(de::Error::custom)?;
    // Others calculate with it in UTC, where it can be in the year 10000.
    let time = time.checked_to_offset(UtcOffset::UTC);
    let time = time.ok_or_else(|| de::Error::custom("no time in UTC"))?;
    Ok(Some(MicroTime {
        seconds: Some(time.unix_timestamp()),
        nanos: i32::try_from(time.nanosecond()).ok(),
    }))
}

/// A time without seconds is Go's zero time: none.
fn instant(stored: &MicroTime) -> Result<Option<OffsetDateTime>, Undecodable> {
    let Some(seconds) = stored.seconds else {
        return Ok(None);
    };
    let nanos = u32::try_from(stored.nanos()).ok();
    let whole = OffsetDateTime::from_unix_timestamp(seconds).ok();
    let time = nanos.and_then(|nanos| whole?.replace_nanosecond(nanos).ok());
    time.map(Some).ok_or(Undecodable::Field("spec.renewTime"))
}

/// Reads the value of `leases/kube-system/<name>`.
pub fn lease(value: &[u8]) -> Result<Lease, Undecodable> {
    let stored: StoredLease = decode(value, &LEASE)?;
    let spec = stored.spec.unwrap_or_default();
    let metadata = stored.metadata.unwrap_or_default();
    let label = |key: &str| metadata.labels.get(key).map(String::as_str);
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    let renewed = instant(&spec.renew_time.unwrap_or_default())?;
    let renewed_as = holder
        .as_deref()
        .zip(renewed)
        .map(|(holder, time)| renewal(holder, &micro_time(time)));
    let seconds = spec.lease_duration_seconds.and_then(|s| s.try_into().ok());
    Ok(Lease {
        identity: label("apiserver.kubernetes.io/identity") == Some("kube-apiserver")
            || label("k8s.io/component") == Some("kube-apiserver"),
        published: label(MANAGED_BY) == Some(MANAGER)
            && renewed_as.is_some()
            && metadata.annotations.get(RENEWAL) == renewed_as.as_ref(),
        hostname: label("kubernetes.io/hostname")
            .filter(|name| !name.is_empty())
            .map(bounded),
        holder: holder.as_deref().map(bounded),
        duration: seconds.filter(|s| *s > 0).map(Duration::from_secs),
        renewed: renewed.map(SystemTime::from),
        uid: bounded(&metadata.uid),
    })
}

/// Holders may be as long as an object.
fn bounded(text: &str) -> String {
    let mut ends = (0..=MOST_TEXT.min(text.len())).rev();
    let begin = ends.find_map(|end| text.get(..end));
    begin.unwrap_or_default().to_owned()
}
