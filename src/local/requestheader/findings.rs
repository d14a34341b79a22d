//! What keeps an apiserver from believing this proxy, and what to do about it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use http::header::HeaderName;
use serde::Deserialize;

use crate::config::RequestHeaders;

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// 401 to a user that was named in a header.
    #[error(
        "the apiserver answers 401 to users that this proxy names in {0}: apiServer.proxyClientCertFile must be signed \
         by its --requestheader-client-ca-file, with a CN of its --requestheader-allowed-names, and the first of \
         serving.requestHeaderUsernameHeaders must be one of its --requestheader-username-headers"
    )]
    NotBelieved(String),
    /// Another user's name in the answer.
    #[error(
        "the apiserver takes users that this proxy names in {header} for {user:?}: the first of \
         serving.requestHeaderUsernameHeaders must be one of its --requestheader-username-headers, and \
         apiServer.proxyClientCertFile not be signed by its --client-ca-file only"
    )]
    TakenFor {
        /// The header.
        header: String,
        /// Whom they are taken for.
        user: String,
    },
    /// An apiserver that forbids nothing, and lets in our certificate by itself.
    #[error(
        "the apiserver lets everybody in, and knows apiServer.proxyClientCertFile as a user's: sign it by another CA \
         than --client-ca-file"
    )]
    UserAnyway,
    /// Neither yes nor no.
    #[error("the apiserver answers {0} when it is asked whether it believes this proxy")]
    Unclear(u16),
    /// A name is believed, and what belongs to it is not.
    #[error(
        "the apiserver answers {0} to apiServer.internalUser in group system:masters, who must be able to read \
         ConfigMap kube-system/extension-apiserver-authentication: the first of serving.requestHeaderGroupHeaders must \
         be one of its --requestheader-group-headers"
    )]
    NotInGroup(u16),
    /// There is no such ConfigMap.
    #[error(
        "ConfigMap kube-system/extension-apiserver-authentication is not there, which kube-apiserver writes after its \
         start"
    )]
    NoConfigMap,
    /// Nobody knows what it says.
    #[error("ConfigMap kube-system/extension-apiserver-authentication cannot be understood: {0}")]
    Malformed(String),
    /// No `--requestheader-…` flags.
    #[error(
        "ConfigMap kube-system/extension-apiserver-authentication names no header: start the apiserver with \
         --requestheader-client-ca-file, --requestheader-username-headers, --requestheader-group-headers and \
         --requestheader-extra-headers-prefix"
    )]
    NoNames,
    /// One list of names differs.
    #[error(
        "{key} is {ours}, but {theirs} under {field} of ConfigMap kube-system/extension-apiserver-authentication: make \
         it the same; what no apiserver is started with any more stays there until somebody removes it"
    )]
    Differs {
        /// The configuration's.
        key: &'static str,
        /// The ConfigMap's.
        field: &'static str,
        /// Names in the configuration.
        ours: String,
        /// Names in the ConfigMap.
        theirs: String,
    },
}

/// Whether an invented user was recognised.
#[derive(Debug, PartialEq, Eq)]
pub enum Recognised {
    /// By name.
    Yes,
    /// No.
    No(Finding),
    /// The answer names nobody.
    Unnamed,
}

/// Looks for `invented` in the answer to what an unknown user may not read.
pub fn recognised(
    names: &RequestHeaders,
    invented: &str,
    status: StatusCode,
    body: &[u8],
) -> Recognised {
    let header = names.username.first();
    let header = header.map_or("", HeaderName::as_str).to_owned();
    match status {
        StatusCode::FORBIDDEN => match forbidden_user(body) {
            Some(user) if user == invented => Recognised::Yes,
            Some(user) => Recognised::No(Finding::TakenFor { header, user }),
            None => Recognised::Unnamed,
        },
        StatusCode::UNAUTHORIZED => Recognised::No(Finding::NotBelieved(header)),
        // Allowed, whether it is there or not.
        StatusCode::NOT_FOUND => Recognised::Unnamed,
        status if status.is_success() => Recognised::Unnamed,
        status => Recognised::No(Finding::Unclear(status.as_u16())),
    }
}

#[derive(Deserialize)]
struct Status {
    message: String,
}

/// kube-apiserver says `… is forbidden: User "alice" cannot get …`.
fn forbidden_user(body: &[u8]) -> Option<String> {
    let status: Status = serde_json::from_slice(body).ok()?;
    let (_, rest) = status.message.split_once("User \"")?;
    let (user, _) = rest.split_once('"')?;
    Some(user.to_owned())
}

#[derive(Deserialize)]
struct ConfigMap {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

const USERNAME: &str = "requestheader-username-headers";
const UID: &str = "requestheader-uid-headers";
const GROUP: &str = "requestheader-group-headers";
const EXTRA: &str = "requestheader-extra-headers-prefix";

/// Compares the configured names with those of the ConfigMap, as it was answered to `apiServer.internalUser`.
pub fn compared(names: &RequestHeaders, status: StatusCode, body: &[u8]) -> Vec<Finding> {
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return vec![Finding::NoConfigMap],
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
            return vec![Finding::NotInGroup(status.as_u16())];
        }
        status => return vec![Finding::Unclear(status.as_u16())],
    }
    let map: ConfigMap = match serde_json::from_slice(body) {
        Ok(map) => map,
        Err(error) => return vec![Finding::Malformed(error.to_string())],
    };
    if !map.data.contains_key(USERNAME) {
        return vec![Finding::NoNames];
    }
    let plain = |names: &[HeaderName]| names.iter().map(|name| name.as_str().to_owned()).collect();
    let lists = [
        (
            "serving.requestHeaderUsernameHeaders",
            USERNAME,
            plain(&names.username),
        ),
        ("serving.requestHeaderUidHeaders", UID, plain(&names.uid)),
        (
            "serving.requestHeaderGroupHeaders",
            GROUP,
            plain(&names.group),
        ),
        (
            "serving.requestHeaderExtraHeaderPrefixes",
            EXTRA,
            names.extra_prefixes.iter().cloned().collect(),
        ),
    ];
    lists
        .into_iter()
        .filter_map(|(key, field, ours)| {
            match list(map.data.get(field)) {
                // Apiservers before 1.32, and those that were not told to, believe no UID.
                Ok(theirs) if theirs == ours || (field == UID && theirs.is_empty()) => None,
                Ok(theirs) => Some(Finding::Differs {
                    key,
                    field,
                    ours: shown(&ours),
                    theirs: shown(&theirs),
                }),
                Err(error) => Some(Finding::Malformed(format!("{field}: {error}"))),
            }
        })
        .collect()
}

/// Names without order and case: only which there are decides about what must not get through.
fn list(value: Option<&String>) -> Result<BTreeSet<String>, serde_json::Error> {
    let text = value.filter(|text| !text.is_empty());
    let names: Vec<String> = text.map_or(Ok(Vec::new()), |text| serde_json::from_str(text))?;
    Ok(names.iter().map(|name| name.to_ascii_lowercase()).collect())
}

fn shown(names: &BTreeSet<String>) -> String {
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    format!("[{}]", names.join(", "))
}

#[cfg(test)]
mod tests;
