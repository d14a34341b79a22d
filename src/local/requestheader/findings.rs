//! Why an apiserver does not accept the users that this proxy names, and what to do about it: the advice follows the first
//! colon of a sentence. Pure.

use std::collections::BTreeSet;

use http::StatusCode;
use http::header::{self, HeaderName};
use serde_json::Value;

use crate::config::{RequestHeaders, names_key};
use crate::kube::client_headers;
use crate::kube::requestheader::{ConfigMap, NameList, PublishedNames};

/// Most bytes of a list of names that are shown.
const SHOWN: usize = 300;

const CONFIG_MAP: &str = "ConfigMap kube-system/extension-apiserver-authentication";

/// The result of a check.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TrustReport {
    /// Why the apiserver does not accept the users that this proxy names; empty if it does.
    pub problems: Vec<String>,
    /// What the ConfigMap says, and nobody has seen the apiserver do. API users may write it.
    pub warnings: Vec<String>,
    /// The names that the ConfigMap has.
    pub names: Option<PublishedNames>,
}

impl TrustReport {
    pub fn problem(problem: String) -> Self {
        Self {
            problems: vec![problem],
            ..Self::default()
        }
    }

    fn warning(warning: String) -> Self {
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
    /// 401 although a header names a user.
    Rejected,
    /// The answer names this user.
    TakenFor(String),
    /// The answer names no user.
    Unnamed,
    /// Neither allowed nor forbidden.
    Unclear(StatusCode),
}

/// Looks for the user `invented` in the answer to a request that an unknown user may not make.
pub fn recognised(invented: &str, status: StatusCode, body: &[u8]) -> UserRecognition {
    match status {
        StatusCode::FORBIDDEN => match forbidden_user(body) {
            Some(user) if user == invented => UserRecognition::Yes,
            Some(user) => UserRecognition::TakenFor(user),
            None => UserRecognition::Unnamed,
        },
        StatusCode::UNAUTHORIZED => UserRecognition::Rejected,
        // Allowed, whether the object exists or not.
        StatusCode::NOT_FOUND => UserRecognition::Unnamed,
        status if status.is_success() => UserRecognition::Unnamed,
        status => UserRecognition::Unclear(status),
    }
}

impl UserRecognition {
    /// Why users whom this proxy names are not accepted. An answer that names no user was given without the header too.
    pub fn problem(&self, names: &RequestHeaders) -> String {
        let header = names.username.first().map_or("", HeaderName::as_str);
        match self {
            Self::Rejected => format!(
                "the apiserver answers 401 to users that this proxy names in {header}: \
                 apiServer.proxyClientCertFile must be signed by its --requestheader-client-ca-file, with a CN of its \
                 --requestheader-allowed-names, and the first of serving.requestHeaderUsernameHeaders must be one of \
                 its --requestheader-username-headers"
            ),
            Self::TakenFor(user) => format!(
                "the apiserver takes users that this proxy names in {header} for {user:?}: the first of \
                 serving.requestHeaderUsernameHeaders must be one of its --requestheader-username-headers, and \
                 apiServer.proxyClientCertFile not be signed by its --client-ca-file only"
            ),
            Self::Yes | Self::Unnamed => {
                "the apiserver lets everybody in, and knows apiServer.proxyClientCertFile as \
                a user's: sign it by another CA than --client-ca-file"
                    .to_owned()
            }
            Self::Unclear(status) => unclear(*status),
        }
    }
}

fn unclear(status: StatusCode) -> String {
    let status = status.as_u16();
    format!(
        "the apiserver answers {status} when it is asked whether it accepts this proxy's front-proxy credentials"
    )
}

/// kube-apiserver's message: `… is forbidden: User "alice" cannot get …`.
fn forbidden_user(body: &[u8]) -> Option<String> {
    let status: Value = serde_json::from_slice(body).ok()?;
    let (_, rest) = status["message"].as_str()?.split_once("User \"")?;
    let (user, _) = rest.split_once('"')?;
    Some(user.to_owned())
}

/// The names in the ConfigMap, as `apiServer.internalUser` got it; or why there are none.
pub fn published(status: StatusCode, body: &[u8]) -> Result<PublishedNames, TrustReport> {
    match status {
        StatusCode::OK => {
            let map: Result<ConfigMap, _> = serde_json::from_slice(body);
            let map = map.map_err(|error| malformed(&error))?;
            PublishedNames::read(&map.data).map_err(|error| malformed(&error))
        }
        StatusCode::NOT_FOUND => Err(TrustReport::warning(format!(
            "{CONFIG_MAP} is not there, which kube-apiserver writes after its start: see who deletes it, if it stays so"
        ))),
        StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => Err(TrustReport::problem(format!(
            "the apiserver answers {} to apiServer.internalUser in group system:masters, who must be able to read \
             {CONFIG_MAP}: the first of serving.requestHeaderGroupHeaders must be one of its \
             --requestheader-group-headers",
            status.as_u16()
        ))),
        status => Err(TrustReport::problem(unclear(status))),
    }
}

fn malformed(error: &dyn std::error::Error) -> TrustReport {
    TrustReport::warning(format!("{CONFIG_MAP} cannot be understood: {error}"))
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
/// accepted already, and those of the ConfigMap that are not removed from requests.
pub fn doubtful(names: &RequestHeaders, published: &PublishedNames) -> Vec<DoubtfulName> {
    // What the proxy writes itself is a user's name or group too, and must not be taken for the other one.
    let written = [&names.username, &names.uid, &names.group];
    let written: Vec<_> = written.into_iter().flatten().collect();
    let passes =
        |name: &HeaderName| client_headers::is_one(name.as_str()) || written.contains(&name);
    let mut doubtful = Vec::new();
    for (list, ours) in [
        (NameList::Username, &names.username),
        (NameList::Group, &names.group),
    ] {
        let theirs = published.of(list);
        let theirs = theirs.filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok());
        let theirs: Vec<_> = theirs.collect();
        let lacking = ours.iter().skip(1).filter(|name| !theirs.contains(name));
        let surplus = theirs
            .iter()
            .filter(|name| passes(name) && !ours.contains(name));
        let lacking = lacking.map(|name| (name, true));
        let all = lacking.chain(surplus.map(|name| (name, false)));
        doubtful.extend(all.map(|(name, configured)| DoubtfulName {
            name: name.clone(),
            list,
            configured,
        }));
    }
    doubtful
}

/// `is_read`: by the apiserver; `None`: it could not be asked.
pub fn finding(doubtful: &DoubtfulName, is_read: Option<bool>) -> Option<String> {
    let (name, field) = (&doubtful.name, doubtful.list.field());
    match (doubtful.configured, is_read) {
        (true, Some(false)) => {
            let key = names_key(doubtful.list);
            // Users whom this proxy or a peer names so are not recognised.
            Some(format!(
                "the apiserver ignores {name}, which {key} names: make it the same as its --{field}"
            ))
        }
        // A client could name another user, or a group.
        (false, Some(true)) => Some(format!(
            "the apiserver takes {name} for what --{field} names, and this proxy cannot remove it from requests: start \
             the apiserver without it"
        )),
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
pub fn differences(names: &RequestHeaders, published: &PublishedNames) -> Vec<String> {
    if published.overflow {
        return vec![format!(
            "{CONFIG_MAP} names too many headers: remove what no apiserver is started with"
        )];
    }
    if !published.is_complete() {
        return vec![format!(
            "{CONFIG_MAP} names no header by which users are recognised: see who removes what kube-apiserver writes into it"
        )];
    }
    let differs = |list: NameList| {
        let theirs: BTreeSet<_> = published.of(list).collect();
        let ours = ours(names, list);
        // Apiservers before 1.32, and those without the flag, ignore the UID.
        let same = theirs == ours || (list == NameList::Uid && theirs.is_empty());
        let (key, field) = (names_key(list), list.field());
        (!same).then(|| {
            format!(
                "{key} is {}, but {} under {field} of {CONFIG_MAP}, and what is only there is removed from requests \
                 unless clients need it: make it the same; what no apiserver is started with any more stays there \
                 until somebody removes it",
                shown(&ours),
                shown(&theirs)
            )
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
