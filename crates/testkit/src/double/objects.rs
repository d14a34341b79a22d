//! The verbs on objects, over the store.

use http::header::ACCEPT;
use http::{HeaderMap, Method, Response, StatusCode};
use serde_json::{Value, json};

use super::body::{Body, json as json_answer};
use super::resources::ServedResource;
use super::route::ResourcePath;
use super::state::State;
use super::status::{PROTOBUF, Status};
use super::store::{Failure, Key};

/// A request for a resource that is served.
pub struct Request<'a> {
    pub state: &'a State,
    pub served: &'a ServedResource,
    pub path: &'a ResourcePath,
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
    /// `metadata.name=` of a field selector; "" if there is none.
    pub selected_name: String,
    pub body: &'a [u8],
}

impl Request<'_> {
    pub fn answer(&self) -> Response<Body> {
        match self.object() {
            Ok((code, object)) => json_answer(code, &object),
            Err(status) => status.answer(self.headers),
        }
    }

    fn object(&self) -> Result<(StatusCode, Value), Status> {
        let collection = self.path.name.is_empty();
        match (self.method.as_str(), collection) {
            // Custom resources have no protobuf.
            ("GET" | "HEAD", true)
                if self.served.custom
                    && self.headers.get(ACCEPT).is_some_and(|it| it == PROTOBUF) =>
            {
                Err(Status::not_acceptable())
            }
            ("GET" | "HEAD", true) => Ok((StatusCode::OK, self.list())),
            ("GET" | "HEAD", false) => Ok((StatusCode::OK, self.existing()?)),
            ("POST", true) => self.create(),
            ("POST", false) if !self.path.subresource.is_empty() => self.create_subresource(),
            ("PUT" | "PATCH", false) => self.update(),
            ("DELETE", false) => self.delete(),
            ("DELETE", true) => self.delete_collection(),
            _ => Err(Status::method_not_allowed()),
        }
    }

    /// The scope of a list or watch of this path.
    pub fn scope(&self) -> Key {
        let name = if self.path.name.is_empty() {
            &self.selected_name
        } else {
            &self.path.name
        };
        Key::new(
            &self.path.group,
            &self.path.resource,
            &self.path.namespace,
            name,
        )
    }

    fn list(&self) -> Value {
        let (mut items, revision) = self.state.store.list(&self.scope());
        for item in &mut items {
            strip_type(item);
        }
        let accept = self.headers.get(ACCEPT).and_then(|it| it.to_str().ok());
        let of_metadata = accept.is_some_and(|it| it.contains("as=PartialObjectMetadataList"));
        let (kind, version) = match of_metadata && self.state.store.is_kept() {
            true => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
            false => (&*self.served.kind, self.served.group_version()),
        };
        json!({
            "kind": format!("{kind}List"), "apiVersion": version,
            "metadata": {"resourceVersion": revision.to_string()}, "items": items,
        })
    }

    fn existing(&self) -> Result<Value, Status> {
        let object = self.state.store.get(&self.scope());
        object
            .map(|object| self.typed(object))
            .ok_or_else(|| self.failed(Failure::NotFound, ""))
    }

    fn create(&self) -> Result<(StatusCode, Value), Status> {
        let mut object = self.sent()?;
        if !self.served.verbs.iter().any(|verb| verb == "list") {
            // Reviews and bindings: answered, not kept.
            object["status"] = json!({"allowed": true, "authenticated": true});
            return Ok((StatusCode::CREATED, self.typed(object)));
        }
        let metadata = &object["metadata"];
        let name = match (metadata["name"].as_str(), metadata["generateName"].as_str()) {
            (Some(name), _) if !name.is_empty() => name.to_owned(),
            (_, Some(prefix)) => format!("{prefix}{:05}", self.state.store.revision()),
            _ => return Err(Status::bad_request("name or generateName is required")),
        };
        let key = Key {
            name,
            ..self.scope()
        };
        let created = self.state.store.create(&key, object);
        let created = created.map_err(|failure| self.failed(failure, &key.name))?;
        Ok((StatusCode::CREATED, self.typed(created)))
    }

    fn create_subresource(&self) -> Result<(StatusCode, Value), Status> {
        self.existing()?;
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201,
        });
        Ok((StatusCode::CREATED, status))
    }

    fn update(&self) -> Result<(StatusCode, Value), Status> {
        let sent = self.sent()?;
        let object = if self.method == Method::PATCH {
            let mut object = self.existing()?;
            merge(&mut object, &sent);
            object
        } else {
            sent.clone()
        };
        let expected = sent["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        let updated = self.state.store.update(&self.scope(), expected, object);
        Ok((
            StatusCode::OK,
            self.typed(updated.map_err(|failure| self.failed(failure, ""))?),
        ))
    }

    fn delete(&self) -> Result<(StatusCode, Value), Status> {
        let deleted = self.state.store.delete(&self.scope());
        let deleted = deleted.map_err(|failure| self.failed(failure, ""))?;
        let uid = &deleted["metadata"]["uid"];
        let details = json!({
            "name": self.path.name, "group": self.path.group, "kind": self.path.resource, "uid": uid,
        });
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
        });
        Ok((StatusCode::OK, status))
    }

    fn delete_collection(&self) -> Result<(StatusCode, Value), Status> {
        let list = self.list();
        for item in list["items"].as_array().into_iter().flatten() {
            let field = |name: &str| item["metadata"][name].as_str().unwrap_or_default();
            let key = Key::new(
                &self.path.group,
                &self.path.resource,
                field("namespace"),
                field("name"),
            );
            // Gone already: somebody else's deletion is as good.
            let _ = self.state.store.delete(&key);
        }
        Ok((StatusCode::OK, list))
    }

    fn sent(&self) -> Result<Value, Status> {
        if self.body.starts_with(b"k8s\0") {
            return Err(Status::unsupported_media_type());
        }
        let object: Value = serde_json::from_slice(self.body).map_err(|error| {
            Status::bad_request(format!("the object provided is unrecognized: {error}"))
        })?;
        if object.is_object() {
            Ok(object)
        } else {
            Err(Status::bad_request("the object provided is unrecognized"))
        }
    }

    fn failed(&self, failure: Failure, name: &str) -> Status {
        let name = if name.is_empty() {
            self.path.name.as_str()
        } else {
            name
        };
        let status = match failure {
            Failure::NotFound => Status::not_found,
            Failure::Exists => Status::already_exists,
            Failure::Conflict => Status::conflict,
        };
        status(&self.path.group, &self.path.resource, name)
    }

    /// The object in the requested version.
    pub fn typed(&self, mut object: Value) -> Value {
        object["kind"] = json!(self.served.kind);
        object["apiVersion"] = json!(self.served.group_version());
        object
    }
}

fn strip_type(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
}

/// JSON merge patch; the other kinds of patch are taken for it.
fn merge(object: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in fields {
        if value.is_null() {
            object.as_object_mut().map(|object| object.remove(key));
        } else {
            merge(&mut object[key.as_str()], value);
        }
    }
}
