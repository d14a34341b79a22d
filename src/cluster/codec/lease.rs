//! Leases: whether a server lives, and who it is. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_pb::api::coordination::v1 as protobuf;
use k8s_pb::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::{Deserialize, Deserializer, de};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Object, Type, Undecodable, decode};

// Both versions have the same fields, as far as they are read here, with the same numbers.
const LEASE: Type = Type {
    kind: "Lease",
    api_versions: &["coordination.k8s.io/v1", "coordination.k8s.io/v1beta1"],
};

/// The label of the Leases that proxies write.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Its value.
pub const US: &str = "kube-interop-proxy";
/// The annotation in which a proxy repeats each of its renewals, as [`renewal`] says it.
pub const RENEWAL: &str = "kube-interop-proxy/renewal";

/// Who renewed a Lease, and when. An apiserver that takes over a Lease of its name keeps the labels and annotations that
/// it finds, even the holder, but does not repeat its renewal here: that is how a Lease tells whose it is now.
pub fn renewal(holder: &str, renewed: &str) -> String {
    format!("{holder} {renewed}")
}

/// As metav1.MicroTime is written.
pub fn micro_time(time: OffsetDateTime) -> String {
    let time = time.to_offset(time::UtcOffset::UTC);
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
        time.year(),
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.microsecond()
    )
}

/// A Lease, as far as it tells of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Whether its labels say that it is the identity of a kube-apiserver.
    pub identity: bool,
    /// Whether a proxy keeps it in place of its kube-apiserver: it has our label, and a proxy renewed it last.
    pub published: bool,
    /// Host name of the server; Kubernetes before 1.26 does not write it.
    pub hostname: Option<String>,
    /// Who holds it; of recent servers a new text at each start.
    pub holder: Option<String>,
    /// How long it holds after it was renewed.
    pub duration: Option<Duration>,
    /// When it was renewed last, by its holder's clock.
    pub renewed: Option<SystemTime>,
    /// UID of the object; a Lease that was deleted and written again has another.
    pub uid: String,
}

#[derive(Deserialize)]
struct Form {
    metadata: Option<Object<Metadata>>,
    spec: Option<Object<Spec>>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    uid: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i32>,
    #[serde(default, deserialize_with = "rfc3339")]
    renew_time: Option<SystemTime>,
}

impl TryFrom<protobuf::Lease> for Form {
    type Error = Undecodable;

    fn try_from(stored: protobuf::Lease) -> Result<Self, Undecodable> {
        let spec = stored.spec.unwrap_or_default();
        let metadata = stored.metadata.map(|metadata| Metadata {
            labels: Some(metadata.labels),
            annotations: Some(metadata.annotations),
            uid: metadata.uid,
        });
        Ok(Self {
            metadata: metadata.map(Object),
            spec: Some(Object(Spec {
                holder_identity: spec.holder_identity,
                lease_duration_seconds: spec.lease_duration_seconds,
                renew_time: instant(spec.renew_time.unwrap_or_default())?,
            })),
        })
    }
}

/// A time without seconds is Go's zero time: none.
fn instant(stored: MicroTime) -> Result<Option<SystemTime>, Undecodable> {
    let Some(seconds) = stored.seconds else {
        return Ok(None);
    };
    let nanos = u32::try_from(stored.nanos()).ok();
    let whole = OffsetDateTime::from_unix_timestamp(seconds).ok();
    nanos
        .zip(whole)
        .and_then(|(nanos, whole)| whole.replace_nanosecond(nanos).ok())
        .map(|time| Some(time.into()))
        .ok_or(Undecodable::Field("spec.renewTime"))
}

fn rfc3339<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SystemTime>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    let time = text.map(|text| OffsetDateTime::parse(&text, &Rfc3339));
    let time = time.transpose().map_err(de::Error::custom)?;
    Ok(time.map(SystemTime::from))
}

/// Reads the value of `leases/kube-system/<name>`.
pub fn lease(value: &[u8]) -> Result<Lease, Undecodable> {
    let form = decode::<Form, protobuf::Lease>(value, &LEASE)?;
    let Object(metadata) = form.metadata.unwrap_or_default();
    let Object(spec) = form.spec.unwrap_or_default();
    let mut labels = metadata.labels.unwrap_or_default();
    let says = |labels: &BTreeMap<String, String>, key: &str, value: &str| {
        labels.get(key).is_some_and(|is| is == value)
    };
    let annotations = metadata.annotations.unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    let renewed_as = holder
        .as_deref()
        .zip(spec.renew_time)
        .map(|(holder, time)| renewal(holder, &micro_time(time.into())));
    let seconds = spec.lease_duration_seconds.and_then(|s| s.try_into().ok());
    Ok(Lease {
        identity: says(
            &labels,
            "apiserver.kubernetes.io/identity",
            "kube-apiserver",
        ) || says(&labels, "k8s.io/component", "kube-apiserver"),
        published: says(&labels, MANAGED_BY, US)
            && renewed_as.is_some()
            && annotations.get(RENEWAL) == renewed_as.as_ref(),
        hostname: labels
            .remove("kubernetes.io/hostname")
            .filter(|name| !name.is_empty()),
        holder,
        duration: seconds.filter(|s| *s > 0).map(Duration::from_secs),
        renewed: spec.renew_time,
        uid: metadata.uid.unwrap_or_default(),
    })
}
