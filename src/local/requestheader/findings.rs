//! Why an apiserver does not accept the users that this proxy names, and what to do about it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use http::header::{self, HeaderName};
use serde::Deserialize;

use crate::config::RequestHeaders;
use crate::kube::client_headers;
use crate::kube::requestheader::{NameList, PublishedNames};

/// Most bytes of a list of names that are shown.
const SHOWN: usize = 300;

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
    /// Users whom this proxy or a peer names so are not recognised.
    #[error(
        "the apiserver does not believe {name}, which {key} names: make it the same as its --{}", .list.field()
    )]
    Lacking {
        name: HeaderName,
        list: NameList,
        /// The configuration's.
        key: &'static str,
    },
    /// A client could name another user, or a group.
    #[error(
        "the apiserver takes {name} for what --{} names, and this proxy cannot remove it from requests: start the \
         apiserver without it", .list.field()
    )]
    Believed { name: HeaderName, list: NameList },
}

/// What the ConfigMap says, and nobody has seen the apiserver do. API users may write it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrustWarning {
    /// There is no such ConfigMap.
    #[error(
        "ConfigMap kube-system/extension-apiserver-authentication is not there, which kube-apiserver writes after its \
         start: see who deletes it, if it stays so"
    )]
    NoConfigMap,
    /// The ConfigMap cannot be parsed.
    #[error("ConfigMap kube-system/extension-apiserver-authentication cannot be understood: {0}")]
    Malformed(String),
    /// No names.
    #[error(
        "ConfigMap kube-system/extension-apiserver-authentication names no header by which users are recognised: see \
         who removes what kube-apiserver writes into it"
    )]
    NoNames,
    /// More names than are kept.
    #[error(
        "ConfigMap kube-system/extension-apiserver-authentication names too many headers: remove what no apiserver is \
         started with"
    )]
    TooManyNames,
    /// One list of names differs.
    #[error(
        "{key} is {ours}, but {theirs} under {} of ConfigMap kube-system/extension-apiserver-authentication, and what \
         is only there is removed from requests unless clients need it: make it the same; what no apiserver is started \
         with any more stays there until somebody removes it", .list.field()
    )]
    Differs {
        list: NameList,
        /// The configuration's.
        key: &'static str,
        /// Names in the configuration.
        ours: String,
        /// Names in the ConfigMap.
        theirs: String,
    },
}

/// The result of a check.
#[derive(Debug, Default)]
pub struct TrustReport {
    /// Why the apiserver does not accept the users that this proxy names; empty if it does.
    pub problems: Vec<TrustProblem>,
    pub warnings: Vec<TrustWarning>,
    /// The names that the ConfigMap has.
    pub names: Option<PublishedNames>,
}

impl From<TrustProblem> for TrustReport {
    fn from(problem: TrustProblem) -> Self {
        Self {
            problems: vec![problem],
            ..Self::default()
        }
    }
}

impl From<TrustWarning> for TrustReport {
    fn from(warning: TrustWarning) -> Self {
        Self {
            warnings: vec![warning],
            ..Self::default()
        }
    }
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

/// The ConfigMap, as `apiServer.internalUser` got it.
#[derive(Debug, PartialEq, Eq)]
pub enum ConfigMapAnswer {
    Names(PublishedNames),
    /// It tells no names.
    Unknown(TrustWarning),
    Refused(TrustProblem),
}

pub fn published(status: StatusCode, body: &[u8]) -> ConfigMapAnswer {
    match status {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return ConfigMapAnswer::Unknown(TrustWarning::NoConfigMap),
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => {
            return ConfigMapAnswer::Refused(TrustProblem::NotInGroup(status.as_u16()));
        }
        status => return ConfigMapAnswer::Refused(TrustProblem::Unclear(status.as_u16())),
    }
    let malformed = |why| ConfigMapAnswer::Unknown(TrustWarning::Malformed(why));
    let map: ConfigMap = match serde_json::from_slice(body) {
        Ok(map) => map,
        Err(error) => return malformed(error.to_string()),
    };
    match PublishedNames::read(&map.data) {
        Ok(names) => ConfigMapAnswer::Names(names),
        Err(error) => malformed(error.to_string()),
    }
}

/// A name that only the configuration has, or only the ConfigMap: the apiserver itself is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoubtfulName {
    pub name: HeaderName,
    /// `Username` or `Group`: no answer shows the others.
    pub list: NameList,
    configured: bool,
}

/// The names that decide whether users are recognised: those that the configuration has besides the first, which was
/// believed already, and those of the ConfigMap that are not removed from requests.
pub fn doubtful(names: &RequestHeaders, published: &PublishedNames) -> Vec<DoubtfulName> {
    // What the proxy writes itself is a user's name or group too, and must not be taken for the other one.
    let written = [&names.username, &names.uid, &names.group];
    let written = written.into_iter().flatten().map(HeaderName::as_str);
    let passes = |name: &str| client_headers::is_one(name) || written.clone().any(|it| it == name);
    let mut doubtful = Vec::new();
    for (list, ours) in [
        (NameList::Username, &names.username),
        (NameList::Group, &names.group),
    ] {
        let theirs: BTreeSet<_> = published.of(list).collect();
        let lacking = ours.iter().skip(1);
        let lacking = lacking.filter(|name| !theirs.contains(name.as_str()));
        doubtful.extend(lacking.map(|name| DoubtfulName {
            name: name.clone(),
            list,
            configured: true,
        }));
        let surplus = theirs.iter().filter(|name| passes(name));
        let surplus = surplus.filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok());
        let surplus = surplus.filter(|name| !ours.contains(name));
        doubtful.extend(surplus.map(|name| DoubtfulName {
            name,
            list,
            configured: false,
        }));
    }
    doubtful
}

/// `believed`: by the apiserver; `None`: it could not be asked.
pub fn judged(doubtful: DoubtfulName, believed: Option<bool>) -> Option<TrustProblem> {
    let DoubtfulName {
        name,
        list,
        configured,
    } = doubtful;
    match (configured, believed) {
        (true, Some(false)) => Some(TrustProblem::Lacking {
            name,
            list,
            key: key(list),
        }),
        (false, Some(true)) => Some(TrustProblem::Believed { name, list }),
        _ => None,
    }
}

/// Whether a header says how a message is framed: it cannot have any value.
pub fn is_framing(name: &HeaderName) -> bool {
    [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::EXPECT,
        header::HOST,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ]
    .contains(name)
}

/// Whether an answer shows that its user may read the ConfigMap.
pub fn was_allowed(status: StatusCode) -> bool {
    // 406: in another form than an invented `Accept` names.
    let others = [StatusCode::NOT_FOUND, StatusCode::NOT_ACCEPTABLE];
    status.is_success() || others.contains(&status)
}

/// What the ConfigMap says else than the configuration.
pub fn differences(names: &RequestHeaders, published: &PublishedNames) -> Vec<TrustWarning> {
    if published.overflow {
        return vec![TrustWarning::TooManyNames];
    }
    if !published.is_complete() {
        return vec![TrustWarning::NoNames];
    }
    let differs = |list| {
        let theirs: BTreeSet<_> = published.of(list).collect();
        let ours = ours(names, list);
        // Apiservers before 1.32, and those without the flag, ignore the UID.
        let same = theirs == ours || (list == NameList::Uid && theirs.is_empty());
        (!same).then(|| TrustWarning::Differs {
            list,
            key: key(list),
            ours: shown(&ours),
            theirs: shown(&theirs),
        })
    };
    NameList::ALL.into_iter().filter_map(differs).collect()
}

fn ours(names: &RequestHeaders, list: NameList) -> BTreeSet<&str> {
    let headers = match list {
        NameList::Username => &names.username,
        NameList::Uid => &names.uid,
        NameList::Group => &names.group,
        NameList::Extra => return names.extra_prefixes.iter().map(String::as_str).collect(),
    };
    headers.iter().map(HeaderName::as_str).collect()
}

/// The configuration's key of a list.
fn key(list: NameList) -> &'static str {
    match list {
        NameList::Username => "serving.requestHeaderUsernameHeaders",
        NameList::Uid => "serving.requestHeaderUidHeaders",
        NameList::Group => "serving.requestHeaderGroupHeaders",
        NameList::Extra => "serving.requestHeaderExtraHeaderPrefixes",
    }
}

fn shown(names: &BTreeSet<&str>) -> String {
    let names: Vec<_> = names.iter().copied().collect();
    let names = names.join(", ");
    match names.get(..SHOWN) {
        Some(begin) => format!("[{begin}…]"),
        None => format!("[{names}]"),
    }
}

#[cfg(test)]
mod tests;
