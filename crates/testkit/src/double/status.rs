//! `metav1.Status` in the format that the client accepts, with kube-apiserver's messages.

use http::{HeaderMap, Response, StatusCode, header};
use serde_json::{Value, json};

use super::body::{Body, answer, json as json_answer, text};
use super::protobuf::{Message, envelope};

pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The object of a failure.
#[derive(Clone, Debug, Default)]
pub struct Details {
    pub name: String,
    pub group: String,
    /// kube-apiserver writes the resource here.
    pub kind: String,
    pub retry_after_seconds: u64,
}

#[derive(Clone, Debug)]
pub struct Status {
    pub code: StatusCode,
    pub reason: &'static str,
    pub message: String,
    /// Boxed: this is the error of most functions here.
    pub details: Option<Box<Details>>,
}

impl Status {
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
        }
    }

    pub fn about(mut self, group: &str, resource: &str, name: &str) -> Self {
        self.details = Some(Box::new(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            retry_after_seconds: 0,
        }));
        self
    }

    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized")
    }

    /// The known group's unknown version, resource or subresource.
    pub fn no_such_resource() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about("", "", "")
    }

    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", qualified(group, resource));
        Self::new(StatusCode::NOT_FOUND, "NotFound", message).about(group, resource, name)
    }

    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", qualified(group, resource));
        Self::new(StatusCode::CONFLICT, "AlreadyExists", message).about(group, resource, name)
    }

    pub fn conflict(group: &str, resource: &str, name: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": the object has been modified; please apply your \
             changes to the latest version and try again",
            qualified(group, resource)
        );
        Self::new(StatusCode::CONFLICT, "Conflict", message).about(group, resource, name)
    }

    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message).about("", "", "")
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    pub fn unsupported_media_type() -> Self {
        let message = "the body of the request was in an unknown format - accepted media types include: \
                       application/json";
        let code = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Self::new(code, "UnsupportedMediaType", message)
    }

    pub fn not_acceptable() -> Self {
        let message = "only the following media types are accepted: application/json, application/yaml, \
                       application/vnd.kubernetes.protobuf";
        Self::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
    }

    /// The error of a watch that starts before the history.
    pub fn expired(wanted: u64, oldest: u64) -> Self {
        let message = format!("too old resource version: {wanted} ({oldest})");
        Self::new(StatusCode::GONE, "Expired", message)
    }

    pub fn json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code.as_u16(),
        });
        if let Some(details) = &self.details {
            let mut fields = serde_json::Map::new();
            for (key, value) in [
                ("name", &details.name),
                ("group", &details.group),
                ("kind", &details.kind),
            ] {
                if !value.is_empty() {
                    fields.insert(key.to_owned(), json!(value));
                }
            }
            if details.retry_after_seconds > 0 {
                fields.insert(
                    "retryAfterSeconds".to_owned(),
                    json!(details.retry_after_seconds),
                );
            }
            status["details"] = Value::Object(fields);
        }
        status
    }

    pub fn protobuf(&self) -> Vec<u8> {
        let list_meta = Message::default().string(1, "").string(2, "").string(3, "");
        let mut raw = Message::default()
            .message(1, &list_meta)
            .string(2, "Failure")
            .string(3, &self.message)
            .string(4, self.reason);
        if let Some(details) = &self.details {
            let details = Message::default()
                .string(1, &details.name)
                .string(2, &details.group)
                .string(3, &details.kind)
                .number(5, details.retry_after_seconds)
                .string(6, "");
            raw = raw.message(5, &details);
        }
        envelope(
            "v1",
            "Status",
            &raw.number(6, u64::from(self.code.as_u16())),
        )
    }

    pub fn answer(&self, request: &HeaderMap) -> Response<Body> {
        if accepts_protobuf(request) {
            answer(self.code, PROTOBUF, self.protobuf())
        } else {
            json_answer(self.code, &self.json())
        }
    }
}

/// The unknown path's 404, which is no `Status`.
pub fn page_not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    }
}

/// Whether the client prefers protobuf to JSON.
pub fn accepts_protobuf(request: &HeaderMap) -> bool {
    let accept = request
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let wanted = accept
        .split(',')
        .map(|clause| clause.split(';').next().unwrap_or("").trim());
    for media_type in wanted {
        match media_type {
            PROTOBUF => return true,
            "application/json" | "application/*" | "*/*" => return false,
            _ => {}
        }
    }
    false
}
