//! The last read documents of one class of servers, and reading them: only the wanted parts, and of aggregated discovery
//! only what changed. A failed read keeps the previous document.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderName, StatusCode};

use super::classes::group_versions;
use super::openapi::OpenApiFormat;
use super::select::select;
use crate::client::{Client, ClientResponse};
use crate::kube::discovery::model::{Document, Version};
use crate::kube::discovery::pool::Pool;
use crate::kube::discovery::read;
use crate::kube::gvr::GroupVersion;
use crate::kube::gvr::ServedSet;
use crate::kube::media_type::{self, ACCEPT_AGGREGATED, ACCEPT_OPENAPI_V2_PROTOBUF};
use crate::local::reader::ReadError;

/// What to read.
#[derive(Debug, Clone, Default)]
pub(super) struct WantedDocuments {
    pub(super) resources: ServedSet,
    /// Each group version by its own document, also where discovery is aggregated.
    pub(super) each: bool,
    pub(super) openapi: Vec<OpenApiFormat>,
}

/// Documents of one class of servers. OpenAPI documents are cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct DocumentCache {
    /// Aggregated discovery of the core group and of the other groups. What was read from documents of group versions is
    /// all in the second.
    parts: [CachedDiscovery; 2],
    /// Documents of group versions.
    each: BTreeMap<GroupVersion, Bytes>,
    openapi: HashMap<OpenApiFormat, CachedOpenApi>,
}

/// The wanted part of one discovery document.
#[derive(Debug, Clone, Default)]
struct CachedDiscovery {
    etag: Option<HeaderValue>,
    document: Document,
}

/// An OpenAPI document; `body` is `None` if the servers have none in this format.
#[derive(Debug, Clone, Default)]
struct CachedOpenApi {
    etag: Option<HeaderValue>,
    body: Option<Bytes>,
}

impl DocumentCache {
    #[cfg(test)]
    pub(super) fn of(document: Document) -> Self {
        let mut cache = Self::default();
        cache.parts[1].document = document;
        cache
    }

    pub(super) fn documents(&self) -> impl Iterator<Item = &Document> {
        self.parts.iter().map(|part| &part.document)
    }

    /// An OpenAPI document. `None`: not read yet. `Some(None)`: the servers have none.
    pub(super) fn openapi(&self, format: OpenApiFormat) -> Option<Option<&Bytes>> {
        self.openapi.get(&format).map(|kept| kept.body.as_ref())
    }

    /// Whether the format was read, even if the servers have none.
    pub(super) fn has_openapi(&self, format: OpenApiFormat) -> bool {
        self.openapi.contains_key(&format)
    }

    /// Size of all OpenAPI documents.
    pub(super) fn openapi_bytes(&self) -> usize {
        let bodies = self.openapi.values().filter_map(|kept| kept.body.as_ref());
        bodies.map(Bytes::len).sum()
    }

    /// Something else is wanted, or other servers will be read: the next read gets whole documents.
    pub(super) fn forget_etags(&mut self) {
        for part in &mut self.parts {
            part.etag = None;
        }
        for kept in self.openapi.values_mut() {
            kept.etag = None;
        }
    }

    /// Removes OpenAPI documents that are not wanted.
    pub(super) fn release(&mut self, wanted: &[OpenApiFormat]) {
        self.openapi.retain(|format, _| wanted.contains(format));
    }

    /// Reads what is wanted. A failed read keeps the previous document. Returns the first error.
    pub(super) async fn read(
        &mut self,
        client: &mut Client,
        want: &WantedDocuments,
    ) -> Result<(), ReadError> {
        self.release(&want.openapi);
        let mut outcome = self.read_discovery(client, want).await;
        if let Err(ReadError::Client(_)) = outcome {
            return outcome;
        }
        for format in &want.openapi {
            let read = self.read_openapi(client, *format).await;
            if let Err(ReadError::Client(_)) = read {
                return read;
            }
            outcome = outcome.and(read);
        }
        outcome
    }

    async fn read_discovery(
        &mut self,
        client: &mut Client,
        want: &WantedDocuments,
    ) -> Result<(), ReadError> {
        let wanted = group_versions(&want.resources);
        if want.each {
            let (order, outcome) = self.read_order(client, &wanted).await?;
            let read = self.read_each(client, &order, &wanted, want).await;
            return outcome.and(read);
        }
        let [core, groups] = &mut self.parts;
        core.take_core_group(groups);
        if let Some(legacy) = groups.read(client, "/apis", want).await? {
            let order = parsed("/apis", read::order(&legacy))?;
            return self.read_each(client, &order, &wanted, want).await;
        }
        self.each.clear();
        if !wanted.iter().any(|of| of.group.is_empty()) {
            *core = CachedDiscovery::default();
            return Ok(());
        }
        match core.read(client, "/api", want).await? {
            None => Ok(()),
            // `/apis` was aggregated, so this is another server.
            Some(_) => Err(unexpected("/api", StatusCode::OK)),
        }
    }

    /// The order of what is wanted: groups by name, and versions as their group has them. Only a group's own document tells
    /// the order of its versions, if more than one of them is wanted; without it they stay in the order in which they are.
    async fn read_order(
        &self,
        client: &mut Client,
        wanted: &BTreeSet<GroupVersion>,
    ) -> Result<(Vec<GroupVersion>, Result<(), ReadError>), ReadError> {
        let wanted: Vec<&GroupVersion> = wanted.iter().collect();
        let (mut order, mut outcome) = (Vec::new(), Ok(()));
        for versions in wanted.chunk_by(|one, other| one.group == other.group) {
            if let [GroupVersion { group, .. }, _, ..] = versions
                && !group.is_empty()
            {
                let path = format!("/apis/{group}");
                let answer = client.get(&path, &[]).await?;
                let read = match answer.status {
                    StatusCode::OK => parsed(&path, read::order_of_group(&answer.body)),
                    // A list of groups can lack what is served.
                    StatusCode::NOT_FOUND => Ok(Vec::new()),
                    status => Err(unexpected(&path, status)),
                };
                match read {
                    Ok(read) => order.extend(read),
                    Err(error) => outcome = outcome.and(Err(error)),
                }
                order.extend(self.versions(group).map(|version| GroupVersion {
                    group: group.clone(),
                    version: (*version.name).to_owned(),
                }));
            }
            order.extend(versions.iter().copied().cloned());
        }
        Ok((order, outcome))
    }

    /// What was read of a group.
    fn versions(&self, group: &str) -> impl Iterator<Item = &Version> {
        let groups = self.documents().flat_map(|document| &document.groups);
        let groups = groups.filter(move |known| *known.name == *group);
        groups.flat_map(|known| &known.versions)
    }

    /// Reads the document of each group version.
    async fn read_each(
        &mut self,
        client: &mut Client,
        order: &[GroupVersion],
        wanted: &BTreeSet<GroupVersion>,
        want: &WantedDocuments,
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
        let mut document = read::legacy(&mut Pool::default(), order, wanted, &self.each);
        for group in &mut document.groups {
            for version in group.versions.iter_mut().filter(|version| version.stale) {
                let mut before = self.versions(&group.name);
                if let Some(before) = before.find(|before| before.name == version.name) {
                    *version = before.clone();
                }
            }
        }
        let all = CachedDiscovery {
            etag: None,
            document: select(&document, &want.resources),
        };
        self.parts = [CachedDiscovery::default(), all];
        outcome
    }

    async fn read_openapi(
        &mut self,
        client: &mut Client,
        format: OpenApiFormat,
    ) -> Result<(), ReadError> {
        let (path, accept) = match format {
            OpenApiFormat::V2Json => ("/openapi/v2", media_type::JSON),
            OpenApiFormat::V2Protobuf => ("/openapi/v2", ACCEPT_OPENAPI_V2_PROTOBUF),
            OpenApiFormat::V3Index => ("/openapi/v3", media_type::JSON),
        };
        let known = self.openapi.get(&format).and_then(|kept| kept.etag.clone());
        let answer = ask(client, path, accept, known).await?;
        let body = match answer.status {
            StatusCode::NOT_MODIFIED => return Ok(()),
            StatusCode::OK => Some(answer.body),
            StatusCode::NOT_FOUND | StatusCode::NOT_ACCEPTABLE => None,
            status => return Err(unexpected(path, status)),
        };
        let etag = answer.headers.get(ETAG).cloned();
        self.openapi.insert(format, CachedOpenApi { etag, body });
        Ok(())
    }
}

impl CachedDiscovery {
    /// Moves the core group to its own part.
    fn take_core_group(&mut self, groups: &mut Self) {
        let all = &mut groups.document.groups;
        if let Some(core) = all.iter().position(|group| group.name.is_empty()) {
            self.document.groups = vec![all.remove(core)];
        }
    }

    /// Reads aggregated discovery. `Some`: the server has none; this is its legacy document.
    async fn read(
        &mut self,
        client: &mut Client,
        path: &str,
        want: &WantedDocuments,
    ) -> Result<Option<Bytes>, ReadError> {
        let answer = ask(client, path, ACCEPT_AGGREGATED, self.etag.clone()).await?;
        match answer.status {
            StatusCode::NOT_MODIFIED if self.etag.is_some() => return Ok(None),
            StatusCode::OK if !is_aggregated_answer(&answer) => return Ok(Some(answer.body)),
            StatusCode::OK => {}
            status => return Err(unexpected(path, status)),
        }
        let of: BTreeSet<&str> = want.resources.iter().map(|gvr| &*gvr.group).collect();
        let groups = read::groups_where(&mut Pool::default(), &answer.body, |it| of.contains(it));
        let groups = parsed(path, groups)?;
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
) -> Result<ClientResponse, ReadError> {
    let mut headers: Vec<(HeaderName, HeaderValue)> =
        vec![(ACCEPT, HeaderValue::from_static(accept))];
    headers.extend(etag.map(|etag| (IF_NONE_MATCH, etag)));
    Ok(client.get(path, &headers).await?)
}

fn is_aggregated_answer(answer: &ClientResponse) -> bool {
    let content_type = answer.headers.get(CONTENT_TYPE);
    content_type
        .and_then(|value| value.to_str().ok())
        .is_some_and(media_type::is_aggregated)
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
