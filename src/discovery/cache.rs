//! The last read documents of one class of servers, and reading them: each wanted group version by its own document,
//! which has all that aggregated discovery would say of it, and no custom resources. A failed read keeps the previous
//! document.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use http::header::{ACCEPT, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};

use super::openapi::OpenApiFormat;
use crate::client::Client;
use crate::kube::discovery::documents;
use crate::kube::discovery::model::{Document, Resource, Version};
use crate::kube::gvr::{GroupVersion, GvrRef, ServedSet};
use crate::kube::media_type::{self, ACCEPT_OPENAPI_V2_PROTOBUF};
use crate::local::reader::{ReadError, body, parse, unexpected};

/// What to read.
#[derive(Debug, Clone, Default)]
pub(super) struct WantedDocuments {
    pub(super) group_versions: BTreeSet<GroupVersion>,
    pub(super) openapi: BTreeSet<OpenApiFormat>,
}

/// Documents of one class of servers. OpenAPI documents are cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct DocumentCache {
    /// As the servers' list of groups has them. It can lack what is served.
    order: Vec<GroupVersion>,
    pub(super) versions: BTreeMap<GroupVersion, Version>,
    /// With their ETags; `None`: the servers have none in this format.
    openapi: HashMap<OpenApiFormat, (Option<HeaderValue>, Option<Bytes>)>,
}

impl DocumentCache {
    /// The part of the documents that is in `wanted`: the core group first, then in the order of the list of groups, then
    /// the rest by name.
    pub(super) fn document(&self, wanted: &ServedSet) -> Document {
        let wanted: HashSet<GvrRef<'_>> = wanted.iter().map(|gvr| gvr.borrow()).collect();
        let order = self.order.iter();
        let order = order.filter_map(|of| self.versions.get_key_value(of));
        let core = self.versions.iter().filter(|(of, _)| of.group.is_empty());
        let mut seen = HashSet::new();
        let all = core.chain(order).chain(&self.versions);
        let all = all.filter(|(of, _)| seen.insert(*of));
        let selected = all.filter_map(|(of, version)| {
            let select = |it: &Resource| select(it, of, &wanted);
            let resources: Vec<_> = version.resources.iter().filter_map(select).collect();
            let version = Version {
                name: version.name.clone(),
                freshness: version.freshness.clone(),
                resources,
            };
            (!version.resources.is_empty()).then(|| (of.group.clone(), version))
        });
        selected.collect()
    }

    /// An OpenAPI document. `None`: not read yet. `Some(None)`: the servers have none.
    pub(super) fn openapi(&self, format: OpenApiFormat) -> Option<Option<&Bytes>> {
        self.openapi.get(&format).map(|(_, body)| body.as_ref())
    }

    /// Size of all OpenAPI documents.
    pub(super) fn openapi_bytes(&self) -> usize {
        let bodies = self.openapi.values().filter_map(|(_, body)| body.as_ref());
        bodies.map(Bytes::len).sum()
    }

    /// Removes OpenAPI documents that are not wanted.
    pub(super) fn release(&mut self, wanted: &BTreeSet<OpenApiFormat>) {
        self.openapi.retain(|format, _| wanted.contains(format));
    }

    /// Reads what is wanted. A failed read keeps the previous document. Returns the first error.
    pub(super) async fn read(
        &mut self,
        client: &mut Client,
        want: &WantedDocuments,
    ) -> Result<(), ReadError> {
        self.release(&want.openapi);
        self.versions
            .retain(|of, _| want.group_versions.contains(of));
        let mut first = Ok(());
        note(&mut first, self.read_order(client).await)?;
        for of in &want.group_versions {
            note(&mut first, self.read_version(client, of).await)?;
        }
        for format in &want.openapi {
            note(&mut first, self.read_openapi(client, *format).await)?;
        }
        first
    }

    async fn read_order(&mut self, client: &mut Client) -> Result<(), ReadError> {
        let body = body("/apis", client.get("/apis").await?)?;
        self.order = parse("/apis", documents::listed(&body))?;
        Ok(())
    }

    async fn read_version(
        &mut self,
        client: &mut Client,
        of: &GroupVersion,
    ) -> Result<(), ReadError> {
        let path = of.path();
        let body = body(&path, client.get(&path).await?)?;
        let version = parse(&path, documents::resources(of, &body))?;
        self.versions.insert(of.clone(), version);
        Ok(())
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
        let mut headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
        let known = self.openapi.get(&format).and_then(|(etag, _)| etag.clone());
        headers.extend(known.map(|etag| (IF_NONE_MATCH, etag)));
        let answer = client.get_with(path, headers).await?;
        let body = match answer.status {
            StatusCode::NOT_MODIFIED => return Ok(()),
            StatusCode::OK => Some(answer.body),
            StatusCode::NOT_FOUND | StatusCode::NOT_ACCEPTABLE => None,
            status => return Err(unexpected(path, status)),
        };
        let etag = answer.headers.get(ETAG).cloned();
        self.openapi.insert(format, (etag, body));
        Ok(())
    }
}

/// What of a resource is wanted.
fn select(
    resource: &Resource,
    of: &GroupVersion,
    wanted: &HashSet<GvrRef<'_>>,
) -> Option<Resource> {
    let is_wanted = |subresource: &str| {
        wanted.contains(&GvrRef {
            group: &of.group,
            version: &of.version,
            resource: &resource.name,
            subresource,
        })
    };
    let mut selected = match is_wanted("") {
        true => resource.clone(),
        false => Resource {
            name: resource.name.clone(),
            scope: resource.scope.clone(),
            subresources: resource.subresources.clone(),
            ..Resource::default()
        },
    };
    selected.subresources.retain(|it| is_wanted(&it.name));
    let is_any = selected.is_served() || !selected.subresources.is_empty();
    is_any.then_some(selected)
}

/// Keeps the first error. That of the connection is returned: nothing else can be read then.
fn note(first: &mut Result<(), ReadError>, next: Result<(), ReadError>) -> Result<(), ReadError> {
    match next {
        Err(ReadError::Client(_)) => return next,
        next if first.is_ok() => *first = next,
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
