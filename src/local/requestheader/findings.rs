//! Why an apiserver does not accept the users that this proxy names, and what to do about it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use http::header::HeaderName;
use serde::Deserialize;

use crate::config::RequestHeaders;

/// A problem in the configuration of the apiserver or of the proxy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustProblem {
    /// 401 although a header names a user.
    #[error(
        "the apiserver answers 401 to users that this proxy names in {0}: apiServer.proxyClientCertFile must be signed \
         by its --requestheader-client-ca-file, with a CN of its --requestheader-allowed-names, and the first of \
         serving.requestHeaderUsernameHeaders must be one of its --requestheader-username-headers"
    )]
    NotBelieved(String),
    /// The answer names another user.
    #[error(
        "the apiserver takes users that this proxy names in {header} for {user:?}: the first of \
         serving.requestHeaderUsernameHeaders must be one of its --requestheader-username-headers, and \
         apiServer.proxyClientCertFile not be signed by its --client-ca-file only"
    )]
    TakenFor {
        header: String,
        /// The user whom the apiserver sees instead.
        user: String,
    },
    /// The apiserver forbids nothing and accepts our certificate without the header.
    #[error(
        "the apiserver lets everybody in, and knows apiServer.proxyClientCertFile as a user's: sign it by another CA \
         than --client-ca-file"
    )]
    UserAnyway,
    /// Neither allowed nor forbidden.
    #[error("the apiserver answers {0} when it is asked whether it believes this proxy")]
    Unclear(u16),
    /// The apiserver accepts the user's name, but not its group.
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
    /// The ConfigMap cannot be parsed.
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
pub enum UserRecognition {
    /// By name.
    Yes,
    No(TrustProblem),
    /// The answer names no user.
    Unnamed,
}

/// Looks for the user `invented` in the answer to a request that an unknown user may not make.
pub fn recognised(
    names: &RequestHeaders,
    invented: &str,
    status: StatusCode,
    body: &[u8],
) -> UserRecognition {
    let header = names.username.first();
    let header = header.map_or("", HeaderName::as_str).to_owned();
    match status {
        StatusCode::FORBIDDEN => match forbidden_user(body) {
            Some(user) if user == invented => UserRecognition::Yes,
            Some(user) => UserRecognition::No(TrustProblem::TakenFor { header, user }),
            None => UserRecognition::Unnamed,
        },
        StatusCode::UNAUTHORIZED => UserRecognition::No(TrustProblem::NotBelieved(header)),
        // Allowed, whether the object exists or not.
        StatusCode::NOT_FOUND => UserRecognition::Unnamed,
        status if status.is_success() => UserRecognition::Unnamed,
        status => UserRecognition::No(TrustProblem::Unclear(status.as_u16())),
    }
}

#[derive(Deserialize)]
struct Status {
    message: String,
}

/// kube-apiserver's message: `… is forbidden: User "alice" cannot get …`.
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

/// Compares the configured names with those of the ConfigMap, as `apiServer.internalUser` got it.
pub fn compared(names: &RequestHeaders, status: StatusCode, body: &[u8]) -> Vec<TrustProblem> {
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return vec![TrustProblem::NoConfigMap],
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
            return vec![TrustProblem::NotInGroup(status.as_u16())];
        }
        status => return vec![TrustProblem::Unclear(status.as_u16())],
    }
    let map: ConfigMap = match serde_json::from_slice(body) {
        Ok(map) => map,
        Err(error) => return vec![TrustProblem::Malformed(error.to_string())],
    };
    if !map.data.contains_key(USERNAME) {
        return vec![TrustProblem::NoNames];
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
                // Apiservers before 1.32, and those without the flag, ignore the UID.
                Ok(theirs) if theirs == ours || (field == UID && theirs.is_empty()) => None,
                Ok(theirs) => Some(TrustProblem::Differs {
                    key,
                    field,
                    ours: shown(&ours),
                    theirs: shown(&theirs),
                }),
                Err(error) => Some(TrustProblem::Malformed(format!("{field}: {error}"))),
            }
        })
        .collect()
}

/// Compares names without order and case: only the set of names matters for security.
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
