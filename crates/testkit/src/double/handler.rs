//! Handles one request in kube-apiserver's order: authentication, authorization, execution.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header,
};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Body as _, Incoming};
use serde_json::json;

use super::auth::{User, may};
use super::body::{Answer, Body, answer, full, held, json as json_answer, text};
use super::client_connection::ClientConnection;
use super::objects;
use super::record::Recorded;
use super::route::{ResourcePath, query};
use super::special::{SpecialRequest, held_open, ordered_status, stream};
use super::state::{Fault, Phase, Settings, State};
use super::status::{Status, page_not_found};
use super::upgrade::upgrade;
use super::{discovery, openapi, reviews, watch};

/// kube-apiserver's own limit.
const MAX_BODY: usize = 3 * 1024 * 1024;

pub async fn handle(
    state: Arc<State>,
    client: Arc<ClientConnection>,
    request: Request<Incoming>,
) -> Answer {
    let head = request.method() == Method::HEAD;
    let record = state.recorder.add(recorded(&client, &request));
    let over = Over {
        state: Arc::clone(&state),
        record,
    };
    let door = client.door.clone();
    let mut unknown = false;
    let mut answer = respond(state, client, record, request, &mut unknown).await?;
    if let Some(door) = door.filter(|_| unknown) {
        door.leave();
    }
    if head {
        // As Go's server does; hyper leaves it to the service over HTTP/2.
        *answer.body_mut() = full(Vec::new());
    }
    Ok(answer.map(|body| held(body, over)))
}

/// Dropped with the answer, or with the request that never got one.
struct Over {
    state: Arc<State>,
    record: u64,
}

impl Drop for Over {
    fn drop(&mut self) {
        let over = |request: &mut Recorded| request.over = true;
        self.state.recorder.change(self.record, over);
    }
}

async fn respond(
    state: Arc<State>,
    client: Arc<ClientConnection>,
    record: u64,
    mut request: Request<Incoming>,
    unknown: &mut bool,
) -> Answer {
    let path = request.uri().path().to_owned();
    if state.read(|settings| settings.phase == Phase::Terminating) && !stays_up(&path) {
        client.goaway.notify_one();
        return Ok(terminating());
    }
    if let Some(answer) = inject_fault(&state, &path, &mut request).await {
        return answer;
    }
    let Some(user) = state
        .authenticator
        .load()
        .authenticate(&client.chain, request.headers())
    else {
        *unknown = true;
        return Ok(Status::unauthorized().answer(request.headers()));
    };
    *unknown = user.how == "anonymous";
    state.recorder.change(record, |recorded| {
        recorded.user.clone_from(&user.name);
        recorded.groups.clone_from(&user.groups);
        recorded.how = user.how;
    });
    let query = query(request.uri().query().unwrap_or_default());
    let echo = request.headers().contains_key("x-double-echo");
    if let Some(name) = path.strip_prefix("/_double/").or(echo.then_some("echo")) {
        let special = SpecialRequest {
            state: &state,
            record,
            client: &client,
            user: &user,
            query,
        };
        return special.answer(name, request).await;
    }
    let user = match impersonated(user, request.headers()) {
        Ok(user) => user,
        Err(status) => return Ok(status.answer(request.headers())),
    };
    let bootstrapped = state.read(|settings| settings.phase != Phase::Bootstrapping);
    if !state.read(|settings| may(&user, &path, &settings.rules, bootstrapped)) {
        return Ok(forbidden(&user, &path, request.method().as_str()).answer(request.headers()));
    }
    serve(&state, &path, record, request).await
}

fn recorded(client: &ClientConnection, request: &Request<Incoming>) -> Recorded {
    Recorded {
        id: 0,
        method: request.method().to_string(),
        path: request
            .uri()
            .path_and_query()
            .map(ToString::to_string)
            .unwrap_or_default(),
        headers: request.headers().clone(),
        user: String::new(),
        groups: Vec::new(),
        how: "",
        peer_cert: client.cn.clone(),
        protocol: format!("{:?}", request.version()),
        body_len: 0,
        connection_id: client.connection_id,
        at: SystemTime::now(),
        over: false,
    }
}

async fn inject_fault(
    state: &State,
    path: &str,
    request: &mut Request<Incoming>,
) -> Option<Answer> {
    let fault = state.read(|settings| {
        let mut faults = settings.faults.iter();
        faults
            .find(|(prefix, _)| path.starts_with(prefix))
            .map(|(_, fault)| fault.clone())
    })?;
    match fault {
        Fault::Status(code, retry_after) => {
            take_short_body(request).await;
            let answer = ordered_status(code, retry_after, request.headers());
            Some(Ok(answer))
        }
        Fault::Hang => std::future::pending().await,
        Fault::Stream(bytes) => Some(Ok(Response::new(stream(bytes, false)))),
        Fault::Reset => Some(Err("the double breaks off, as it was told to".into())),
        Fault::Delay(time) => {
            tokio::time::sleep(time).await;
            None
        }
        Fault::Answer(scripted) => Some(Ok(scripted.response())),
    }
}

/// As Go's server does before it answers over HTTP/1.1: a client that has not sent everything yet
/// is not cut off.
async fn take_short_body(request: &mut Request<Incoming>) {
    const MOST: u64 = 256 * 1024;
    let waits = request.headers().contains_key(header::EXPECT);
    let length = request.body().size_hint().exact();
    if request.version() == Version::HTTP_11
        && !waits
        && length.is_some_and(|length| length <= MOST)
    {
        // A client that goes away is nobody to answer.
        let _ = request.body_mut().collect().await;
    }
}

/// Administrators may impersonate any user.
fn impersonated(user: User, headers: &HeaderMap) -> Result<User, Status> {
    let values = |name: HeaderName| {
        let values = headers.get_all(name).into_iter();
        values
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect::<Vec<_>>()
    };
    let Some(name) = values(HeaderName::from_static("impersonate-user"))
        .into_iter()
        .next()
    else {
        return Ok(user);
    };
    if !user.is_in("system:masters") {
        let message = format!(
            "users \"{name}\" is forbidden: User \"{}\" cannot impersonate resource \"users\" in API group \"\" \
             at the cluster scope",
            user.name
        );
        return Err(
            Status::new(StatusCode::FORBIDDEN, "Forbidden", message).about("", "users", &name)
        );
    }
    let mut groups = values(HeaderName::from_static("impersonate-group"));
    groups.push("system:authenticated".to_owned());
    Ok(User {
        name,
        groups,
        how: user.how,
        ..User::default()
    })
}

fn forbidden(user: &User, path: &str, method: &str) -> Status {
    let status = |message| Status::new(StatusCode::FORBIDDEN, "Forbidden", message);
    let Some(target) = ResourcePath::parse(path) else {
        let verb = method.to_lowercase();
        return status(format!(
            "forbidden: User \"{}\" cannot {verb} path \"{path}\"",
            user.name
        ))
        .about("", "", "");
    };
    let ResourcePath {
        group,
        resource,
        namespace,
        name,
        ..
    } = &target;
    let verb = match (method, name.is_empty()) {
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "deletecollection",
        ("DELETE", false) => "delete",
        (_, true) => "list",
        (_, false) => "get",
    };
    let qualified = if group.is_empty() {
        resource.clone()
    } else {
        format!("{resource}.{group}")
    };
    let object = if name.is_empty() {
        qualified
    } else {
        format!("{qualified} \"{name}\"")
    };
    let place = match namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let message = format!(
        "{object} is forbidden: User \"{}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {place}",
        user.name
    );
    status(message).about(group, resource, name)
}

async fn serve(state: &Arc<State>, path: &str, record: u64, request: Request<Incoming>) -> Answer {
    let headers = request.headers().clone();
    match path {
        "/healthz" | "/livez" => return Ok(text(StatusCode::OK, "ok")),
        "/readyz" => return Ok(readyz(state)),
        "/version" | "/version/" => return Ok(version(state)),
        "/metrics" => return Ok(text(StatusCode::OK, "# HELP double 1\n")),
        _ => {}
    }
    if reviews::is_review(path, request.method()) {
        return reviews::answer(state, path, request).await;
    }
    if let Some(answer) = openapi::answer(state, path, &headers) {
        return Ok(answer);
    }
    match ResourcePath::parse(path) {
        Some(target) => resource(state, &target, record, request).await,
        // Of these, kube-apiserver's routes for the API's groups take HEAD.
        None if request.method() == Method::HEAD && path.starts_with("/apis") => {
            Ok(discovery::answer(state, path, &headers))
        }
        None if request.method() != Method::GET => {
            Ok(Status::method_not_allowed().answer(&headers))
        }
        None => Ok(discovery::answer(state, path, &headers)),
    }
}

fn readyz(state: &State) -> Response<Body> {
    let report = match state.read(|settings| settings.phase) {
        Phase::Ready => return text(StatusCode::OK, "ok"),
        Phase::Terminating => {
            "[+]ping ok\n[+]etcd ok\n[-]shutdown failed: reason withheld\nreadyz check failed\n"
        }
        Phase::Bootstrapping | Phase::NotReady => {
            "[+]ping ok\n[+]etcd ok\n[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\n\
             healthz check failed\n"
        }
    };
    text(StatusCode::INTERNAL_SERVER_ERROR, report)
}

/// What kube-apiserver answers whatever its shutdown.
fn stays_up(path: &str) -> bool {
    let mut prefixes = ["/readyz", "/livez", "/healthz", "/metrics"].iter();
    prefixes.any(|prefix| path.starts_with(prefix))
}

/// Sent before authentication; Go's server sends the `Connection` as a GOAWAY over HTTP/2.
fn terminating() -> Response<Body> {
    let said = "The apiserver is shutting down, please try again later.\n";
    let mut response = text(StatusCode::TOO_MANY_REQUESTS, said);
    let headers = response.headers_mut();
    headers.remove(header::CACHE_CONTROL);
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn version(state: &State) -> Response<Body> {
    let preset = |settings: &Settings| {
        (
            settings.preset.git_version.clone(),
            settings.preset.emulated.clone(),
        )
    };
    let (version, emulated) = state.read(preset);
    let mut numbers = version.trim_start_matches('v').split('.');
    let mut next = || numbers.next().unwrap_or_default().to_owned();
    let mut document = json!({
        "major": next(), "minor": next(), "gitVersion": version, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "go1.19.8", "compiler": "gc",
        "platform": "linux/amd64",
    });
    if let Some((major, minor)) = emulated
        .as_deref()
        .and_then(|version| version.split_once('.'))
    {
        document["emulationMajor"] = json!(major);
        document["emulationMinor"] = json!(minor);
    }
    json_answer(StatusCode::OK, &document)
}

async fn resource(
    state: &Arc<State>,
    target: &ResourcePath,
    record: u64,
    request: Request<Incoming>,
) -> Answer {
    let Some(served) = state.find(&target.group, &target.version, &target.resource) else {
        let known = state
            .served()
            .iter()
            .any(|served| served.group == target.group);
        let status = Status::no_such_resource();
        return Ok(if known {
            status.answer(request.headers())
        } else {
            page_not_found()
        });
    };
    if !target.subresource.is_empty() && !served.subresources.contains(&target.subresource) {
        return Ok(Status::no_such_resource().answer(request.headers()));
    }
    let parameters = query(request.uri().query().unwrap_or_default());
    match target.subresource.as_str() {
        "exec" | "attach" | "portforward" => return Ok(upgrade(state, record, request)),
        "proxy" => return Ok(text(StatusCode::OK, "proxied\n")),
        "log"
            if parameters
                .get("follow")
                .is_some_and(|value| value == "true") =>
        {
            let mut response = answer(StatusCode::OK, "text/plain", "");
            *response.body_mut() = held_open("a line of the log\n");
            return Ok(response);
        }
        "log" => return Ok(answer(StatusCode::OK, "text/plain", "a line of the log\n")),
        _ => {}
    }
    let (parts, body) = request.into_parts();
    let body = match read(state, record, body).await? {
        Some(body) => body,
        None => return Ok(too_large().answer(&parts.headers)),
    };
    let selector = parameters
        .get("fieldSelector")
        .map(String::as_str)
        .unwrap_or_default();
    let named = selector
        .split(',')
        .find_map(|term| term.strip_prefix("metadata.name="));
    let object_request = objects::Request {
        state,
        served: &served,
        path: target,
        method: &parts.method,
        headers: &parts.headers,
        selected_name: named.unwrap_or_default().trim_start_matches('=').to_owned(),
        body: &body,
    };
    let is_watch = parameters
        .get("watch")
        .is_some_and(|value| value == "true" || value == "1");
    if parts.method == "GET" && (target.watch_prefix || is_watch && target.name.is_empty()) {
        let scope = object_request.scope();
        return Ok(watch::start(
            state,
            served,
            scope,
            &parameters,
            &parts.headers,
        ));
    }
    if let Some(kept) = &state.kept
        && kept.catch_up().await.is_err()
    {
        return Ok(ordered_status(500, None, &parts.headers));
    }
    Ok(object_request.answer())
}

/// The whole body; `None` if it is more than kube-apiserver would take.
async fn read(
    state: &State,
    record: u64,
    body: Incoming,
) -> Result<Option<Bytes>, super::body::BoxError> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => {
            let bytes = collected.to_bytes();
            state
                .recorder
                .change(record, |request| request.body_len = bytes.len() as u64);
            Ok(Some(bytes))
        }
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Ok(None),
        Err(error) => Err(error),
    }
}

fn too_large() -> Status {
    let message = format!("Request entity too large: limit is {MAX_BODY}");
    Status::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "RequestEntityTooLarge",
        message,
    )
}
