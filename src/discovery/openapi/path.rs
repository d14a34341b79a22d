//! What a path of an OpenAPI document belongs to.

/// What a path belongs to, as discovery names it; empty where the path does not go as far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenApiPath<'a> {
    /// API group, empty for the core group.
    pub group: &'a str,
    /// API version.
    pub version: &'a str,
    /// Plural name of the resource.
    pub resource: &'a str,
    /// Name of the subresource, without that of the resource.
    pub subresource: &'a str,
}

impl<'a> OpenApiPath<'a> {
    /// Reads `/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale`, or the `apis/apps/v1` of the v3 index.
    /// `None`: the path is of no API group (`/version/`, `/logs/`, …), or of all (`/apis/`).
    pub fn parse(path: &'a str) -> Option<Self> {
        let mut segments = path.split('/').filter(|segment| !segment.is_empty());
        let group = match segments.next()? {
            "api" => "",
            "apis" => segments.next()?,
            _ => return None,
        };
        let version = segments.next().unwrap_or_default();
        let mut resource = segments.next();
        if resource == Some("watch") {
            resource = segments.next();
        }
        let mut name = segments.next();
        // A namespace as an object is `{name}`, as the place of one `{namespace}`.
        if resource == Some("namespaces") && name == Some("{namespace}") {
            resource = segments.next().or(resource);
            name = segments.next();
        }
        let subresource = name.and_then(|_| segments.next());
        Some(Self {
            group,
            version,
            resource: resource.unwrap_or_default(),
            subresource: subresource.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::OpenApiPath;

    #[test]
    fn paths_belong_to_what_discovery_names() {
        for (path, place) in [
            ("/api/", Some(["", "", "", ""])),
            ("/api/v1/", Some(["", "v1", "", ""])),
            ("api/v1", Some(["", "v1", "", ""])),
            ("/apis/", None),
            ("apis", None),
            ("/apis/apps/", Some(["apps", "", "", ""])),
            ("/apis/apps/v1/", Some(["apps", "v1", "", ""])),
            ("apis/apps/v1", Some(["apps", "v1", "", ""])),
            (
                "/apis/apps/v1/deployments",
                Some(["apps", "v1", "deployments", ""]),
            ),
            (
                "/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale",
                Some(["apps", "v1", "deployments", "scale"]),
            ),
            (
                "/apis/apps/v1/watch/namespaces/{namespace}/deployments/{name}",
                Some(["apps", "v1", "deployments", ""]),
            ),
            (
                "/api/v1/watch/namespaces/{name}",
                Some(["", "v1", "namespaces", ""]),
            ),
            (
                "/api/v1/namespaces/{name}/finalize",
                Some(["", "v1", "namespaces", "finalize"]),
            ),
            (
                "/api/v1/namespaces/{namespace}/pods/{name}/proxy/{path}",
                Some(["", "v1", "pods", "proxy"]),
            ),
            ("/version/", None),
            ("/logs/{logpath}", None),
            ("/.well-known/openid-configuration/", None),
            ("", None),
        ] {
            let expected = place.map(|[group, version, resource, subresource]| OpenApiPath {
                group,
                version,
                resource,
                subresource,
            });
            assert_eq!(OpenApiPath::parse(path), expected, "{path}");
        }
    }
}
