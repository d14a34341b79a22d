//! Documents of one class of servers, as they were read last, and how they are read: only what is wanted of them, and
//! only what changed. What fails keeps what was read before.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderName, StatusCode};

use super::classes::group_versions;
use super::model::Document;
use super::openapi::Form;
use super::pool::Pool;
use super::read;
use super::select::select;
use crate::client::{Answer, Client};
use crate::local::documents::{ACCEPT_AGGREGATED, GroupVersion, is_aggregated};
use crate::local::reader::ReadError;
use crate::routing::table::ServedSet;

/// Both names that kube-apiserver has had for it.
const ACCEPT_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf,\
    application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const ACCEPT_JSON: &str = "application/json";

/// What is to be read.
#[derive(Debug, Clone, Default)]
pub(super) struct Want {
    /// These resources.
    pub(super) resources: ServedSet,
    /// These OpenAPI documents.
    pub(super) openapi: Vec<Form>,
}

/// What was read. Cheap to clone, but for what is lacking of discovery.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    /// Aggregated discovery of the core group, and of the others; or all of it from before that in the second.
    parts: [Part; 2],
    /// Documents of group versions, where discovery is not aggregated.
    each: BTreeMap<GroupVersion, Bytes>,
    openapi: HashMap<Form, Kept>,
}

/// The wanted part of one document.
#[derive(Debug, Clone, Default)]
struct Part {
    etag: Option<HeaderValue>,
    document: Document,
}

/// An OpenAPI document; servers may have none in that form.
#[derive(Debug, Clone, Default)]
struct Kept {
    etag: Option<HeaderValue>,
    body: Option<Bytes>,
}

impl Held {
    #[cfg(test)]
    pub(super) fn of(document: Document) -> Self {
        let mut held = Self::default();
        held.parts[1].document = document;
        held
    }

    /// What is known of discovery.
    pub(super) fn documents(&self) -> impl Iterator<Item = &Document> {
        self.parts.iter().map(|part| &part.document)
    }

    /// An OpenAPI document; `None`: it was not read. There may be none.
    pub(super) fn openapi(&self, form: Form) -> Option<Option<&Bytes>> {
        self.openapi.get(&form).map(|kept| kept.body.as_ref())
    }

    /// Whether it was read, be there one or not.
    pub(super) fn has_openapi(&self, form: Form) -> bool {
        self.openapi.contains_key(&form)
    }

    /// How large all OpenAPI documents are.
    pub(super) fn openapi_bytes(&self) -> usize {
        let bodies = self.openapi.values().filter_map(|kept| kept.body.as_ref());
        bodies.map(Bytes::len).sum()
    }

    /// Something else is wanted of the documents, or of other servers: what is read next is read as a whole.
    pub(super) fn doubt(&mut self) {
        for part in &mut self.parts {
            part.etag = None;
        }
        for kept in self.openapi.values_mut() {
            kept.etag = None;
        }
    }

    /// Lets go of OpenAPI documents that nobody wants.
    pub(super) fn release(&mut self, wanted: &[Form]) {
        self.openapi.retain(|form, _| wanted.contains(form));
    }

    /// Reads what is wanted, and keeps what was read before of all that fails; the first thing that failed.
    pub(super) async fn read(&mut self, client: &mut Client, want: &Want) -> Result<(), ReadError> {
        self.release(&want.openapi);
        let mut outcome = self.read_discovery(client, want).await;
        if let Err(ReadError::Client(_)) = outcome {
            return outcome;
        }
        for form in &want.openapi {
            let read = self.read_openapi(client, *form).await;
            if let Err(ReadError::Client(_)) = read {
                return read;
            }
            outcome = outcome.and(read);
        }
        outcome
    }

    async fn read_discovery(&mut self, client: &mut Client, want: &Want) -> Result<(), ReadError> {
        let wanted = group_versions(&want.resources);
        let [core, groups] = &mut self.parts;
        if let Some(legacy) = groups.read(client, "/apis", want).await? {
            *core = Part::default();
            return self.read_each(client, &legacy, &wanted, want).await;
        }
        self.each.clear();
        if !wanted.iter().any(|of| of.group.is_empty()) {
            *core = Part::default();
            return Ok(());
        }
        match core.read(client, "/api", want).await? {
            None => Ok(()),
            // It speaks of groups in that form, so this is another server.
            Some(_) => Err(unexpected("/api", StatusCode::OK)),
        }
    }

    /// `groups`: the order of groups and versions.
    async fn read_each(
        &mut self,
        client: &mut Client,
        groups: &[u8],
        wanted: &BTreeSet<GroupVersion>,
        want: &Want,
    ) -> Result<(), ReadError> {
        self.each.retain(|of, _| wanted.contains(of));
        let mut outcome = Ok(());
        for of in wanted {
            let path = of.path();
            let answer = client.get(&path, &[]).await?;
            match answer.status {
                StatusCode::OK => match read::resources(&mut Pool::default(), of, &answer.body) {
                    Ok(_) => drop(self.each.insert(of.clone(), answer.body)),
                    Err(source) => outcome = outcome.and(Err(ReadError::Parse { path, source })),
                },
                status => outcome = outcome.and(Err(unexpected(&path, status))),
            }
        }
        let document = read::legacy(&mut Pool::default(), groups, wanted, &self.each);
        let document = parsed("/apis", document)?;
        let [_, all] = &mut self.parts;
        *all = Part {
            etag: None,
            document: select(&document, &want.resources),
        };
        outcome
    }

    async fn read_openapi(&mut self, client: &mut Client, form: Form) -> Result<(), ReadError> {
        let (path, accept) = match form {
            Form::V2Json => ("/openapi/v2", ACCEPT_JSON),
            Form::V2Protobuf => ("/openapi/v2", ACCEPT_PROTOBUF),
            Form::V3Index => ("/openapi/v3", ACCEPT_JSON),
        };
        let known = self.openapi.get(&form).and_then(|kept| kept.etag.clone());
        let answer = ask(client, path, accept, known).await?;
        let body = match answer.status {
            StatusCode::NOT_MODIFIED => return Ok(()),
            StatusCode::OK => Some(answer.body),
            StatusCode::NOT_FOUND | StatusCode::NOT_ACCEPTABLE => None,
            status => return Err(unexpected(path, status)),
        };
        let etag = answer.headers.get(ETAG).cloned();
        self.openapi.insert(form, Kept { etag, body });
        Ok(())
    }
}

impl Part {
    /// Reads aggregated discovery. `Some`: the server has none, this is its document from before that.
    async fn read(
        &mut self,
        client: &mut Client,
        path: &str,
        want: &Want,
    ) -> Result<Option<Bytes>, ReadError> {
        let answer = ask(client, path, ACCEPT_AGGREGATED, self.etag.clone()).await?;
        match answer.status {
            StatusCode::NOT_MODIFIED if self.etag.is_some() => return Ok(None),
            StatusCode::OK if !is_aggregated_answer(&answer) => return Ok(Some(answer.body)),
            StatusCode::OK => {}
            status => return Err(unexpected(path, status)),
        }
        let groups = parsed(path, read::groups(&mut Pool::default(), &answer.body))?;
        *self = Self {
            etag: answer.headers.get(ETAG).cloned(),
            document: select(&Document { groups }, &want.resources),
        };
        Ok(None)
    }
}

async fn ask(
    client: &mut Client,
    path: &str,
    accept: &'static str,
    etag: Option<HeaderValue>,
) -> Result<Answer, ReadError> {
    let mut headers: Vec<(HeaderName, HeaderValue)> =
        vec![(ACCEPT, HeaderValue::from_static(accept))];
    headers.extend(etag.map(|etag| (IF_NONE_MATCH, etag)));
    Ok(client.get(path, &headers).await?)
}

fn is_aggregated_answer(answer: &Answer) -> bool {
    let content_type = answer.headers.get(CONTENT_TYPE);
    content_type
        .and_then(|value| value.to_str().ok())
        .is_some_and(is_aggregated)
}

fn unexpected(path: &str, status: StatusCode) -> ReadError {
    ReadError::Status {
        path: path.to_owned(),
        status,
    }
}

fn parsed<T>(path: &str, result: Result<T, serde_json::Error>) -> Result<T, ReadError> {
    result.map_err(|source| ReadError::Parse {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests;
