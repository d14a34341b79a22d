//! Generates requests from a seed, with the methods, paths, headers and bodies that a client might send to a
//! kube-apiserver.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};

use testkit::cluster::{HPAS, HPAS_IN_DEFAULT};
use testkit::wire::Pieces;

/// How a body is sent.
#[derive(Clone, Debug)]
pub enum Sent {
    Measured(Bytes),
    Chunked(Vec<Bytes>),
}

/// A request that can be sent any number of times.
#[derive(Clone, Debug)]
pub struct Made {
    pub method: Method,
    pub target: String,
    pub headers: HeaderMap,
    pub body: Sent,
}

impl Made {
    pub fn request(&self) -> Request<Pieces> {
        let body = match &self.body {
            Sent::Measured(body) => Pieces::measured(body.clone()),
            Sent::Chunked(pieces) => Pieces::of(pieces.iter().cloned()),
        };
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self
            .target
            .parse()
            .unwrap_or_else(|error| panic!("{}: {error}", self.target));
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// What the requests are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// A server that tells what arrived: anything goes.
    Echo,
    /// The same, for a resource that only another server has.
    Peer,
    /// A real kube-apiserver: nothing is changed by them.
    Real,
}

/// Makes one request after the other, the same ones for the same seed.
pub struct Maker {
    random: StdRng,
    to: For,
}

const COLLECTIONS: &[&str] = &[
    "/api/v1/namespaces",
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/kube-system/configmaps",
    "/api/v1/nodes",
    "/api/v1/services",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/namespaces/default/deployments",
    "/apis/batch/v1/namespaces/default/jobs",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/storage.k8s.io/v1/storageclasses",
];
const OBJECTS: &[&str] = &[
    "/api/v1/namespaces/default",
    "/api/v1/namespaces/kube-system",
    "/api/v1/namespaces/default/services/kubernetes",
    "/api/v1/namespaces/default/configmaps/sample",
    "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:discovery",
    "/api/v1/namespaces/default/pods/missing",
    "/api/v1/namespaces/missing/pods/missing",
    "/apis/apps/v1/namespaces/default/deployments/missing",
];
const SUBRESOURCES: &[&str] = &[
    "/api/v1/namespaces/default/status",
    "/api/v1/namespaces/default/pods/missing/status",
    "/api/v1/namespaces/default/pods/missing/log",
    "/apis/apps/v1/namespaces/default/deployments/missing/scale",
    "/api/v1/namespaces/default/services/kubernetes/status",
    "/api/v1/namespaces/default/pods/missing/nosuch",
];
const OTHER: &[&str] = &[
    "/",
    "/api",
    "/apis",
    "/api/v1",
    "/apis/apps",
    "/apis/apps/v1",
    "/apis/",
    "/version",
    "/version/",
    "/healthz",
    "/livez",
    "/livez/ping",
    "/openapi/v2",
    "/nosuch",
    "/api/v2",
    "/apis/no.such.group",
    "/apis/no.such.group/v1/things",
    "/apis/apps/v9/deployments",
    "/api/v1/nosuchthings",
    "/api/v1/watch",
    "/ui",
    "/swagger.json",
];
const TWISTS: &[(&str, &str)] = &[
    ("/default", "/%64efault"),
    ("/default", "/d%65fault"),
    ("/default", "/de%2Ffault"),
    ("/default", "/de%2ffault"),
    ("/default", "/%2e%2e/default"),
    ("/default", "/./default"),
    ("/default", "/x/../default"),
    ("/default", "//default"),
    ("/api", "//api"),
    ("/v1", "/v1/"),
    ("/v1", "/%76%31"),
    ("/default", "/default%20"),
    ("/default", "/d%C3%A9fault"),
    ("/default", "/d%00"),
    ("/namespaces", "/Namespaces"),
    ("/missing", "/miss~ing!$&'()*,;=:@"),
    ("/missing", "/miss%41"),
];
const QUERIES: &[&str] = &[
    "",
    "",
    "",
    "?",
    "?limit=1",
    "?limit=500",
    "?pretty=true",
    "?labelSelector=a%3Db%2Cc+in+%28d%2Ce%29",
    "?labelSelector=a!=b",
    "?fieldSelector=metadata.name%3Ddefault",
    "?fieldSelector=metadata.namespace=default,metadata.name=sample",
    "?fieldSelector=broken",
    "?a=b&a=c&&=&d",
    "?x=%E2%82%AC&y=+&z=%20",
    "?q=/../..%2F?&[]{}|~!*'();:@$,",
    "?timeout=5s",
    "?resourceVersion=notanumber",
    "?watch=0",
    "?watch=false&limit=2",
    "?continue=nonsense",
    "?q='quoted'{}",
];
const ACCEPTS: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/vnd.kubernetes.protobuf,application/json",
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json",
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    "application/cbor",
    "text/html",
    "*/*",
    "nonsense",
];
const PATCHES: &[(&str, &str)] = &[
    (
        "application/json-patch+json",
        r#"[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]"#,
    ),
    (
        "application/merge-patch+json",
        r#"{"metadata":{"labels":{"a":"b"}}}"#,
    ),
    (
        "application/strategic-merge-patch+json",
        r#"{"metadata":{"labels":{"a":null}}}"#,
    ),
    (
        "application/apply-patch+yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: sample, namespace: default}\ndata: {x: z}\n",
    ),
];
const OBJECT: &str = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"sample","namespace":"default"},"data":{"x":"y"}}"#;
const MIB: usize = 1 << 20;

impl Maker {
    pub fn new(seed: u64, to: For) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            to,
        }
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of.choose(&mut self.random).expect("something to choose")
    }

    /// One in `of`.
    fn seldom(&mut self, of: u32) -> bool {
        self.random.gen_ratio(1, of)
    }

    pub fn next(&mut self) -> Made {
        let mut headers = self.headers();
        let (method, path, body) = match self.random.gen_range(0..10) {
            0..6 => (self.reading(), self.path(), Bytes::new()),
            6 => self.patch(&mut headers),
            _ => self.write(&mut headers),
        };
        let target = self.target(&method, path);
        Made {
            method,
            target,
            headers,
            body: self.sent(body),
        }
    }

    fn reading(&mut self) -> Method {
        let methods = ["GET", "GET", "GET", "GET", "HEAD", "OPTIONS"];
        self.pick(&methods).parse().expect("a method")
    }

    fn path(&mut self) -> String {
        let kinds = [COLLECTIONS, OBJECTS, SUBRESOURCES, OTHER];
        let path = *kinds
            .choose(&mut self.random)
            .and_then(|paths| paths.choose(&mut self.random))
            .expect("a path");
        if self.to == For::Peer {
            return self.pick(&[HPAS, HPAS_IN_DEFAULT]).to_owned();
        }
        let mut path = path.to_owned();
        if self.seldom(4) {
            let (from, to) = *TWISTS.choose(&mut self.random).expect("a twist");
            path = path.replacen(from, to, 1);
        }
        if self.seldom(20) {
            path.push('/');
        }
        path
    }

    fn target(&mut self, method: &Method, path: String) -> String {
        let mut query = self.pick(QUERIES).to_owned();
        if self.seldom(40) {
            query = format!(
                "?long={}",
                "0123456789".repeat(self.random.gen_range(1..700))
            );
        }
        let writes = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        if self.to == For::Real && writes {
            // Nothing is to be changed by a comparison.
            query = "?dryRun=All".to_owned();
        }
        path + &query
    }

    fn write(&mut self, headers: &mut HeaderMap) -> (Method, String, Bytes) {
        let methods = match self.to {
            For::Real => &["POST", "PUT", "DELETE", "TRACE", "FROBNICATE", "PROPFIND"][..],
            For::Echo | For::Peer => &[
                "POST",
                "PUT",
                "DELETE",
                "TRACE",
                "FROBNICATE",
                "x-lower",
                "LINK",
            ],
        };
        let method: Method = self.pick(methods).parse().expect("a method");
        let kind = ["application/json", "application/yaml", "text/plain"];
        insert(headers, "content-type", self.pick(&kind));
        let path = match self.to {
            For::Echo | For::Peer => self.path(),
            // With `dryRun` these change nothing, and say the same each time.
            For::Real if method == "POST" => self.pick(&COLLECTIONS[..4]).to_owned(),
            For::Real => self.pick(&OBJECTS[3..]).to_owned(),
        };
        (method, path, self.body())
    }

    fn patch(&mut self, headers: &mut HeaderMap) -> (Method, String, Bytes) {
        let (content_type, patch) = *PATCHES.choose(&mut self.random).expect("a patch");
        insert(headers, "content-type", content_type);
        let path = match self.to {
            For::Peer => self.path(),
            _ => "/api/v1/namespaces/default/configmaps/sample".to_owned(),
        };
        (Method::PATCH, path, Bytes::from(patch))
    }

    fn body(&mut self) -> Bytes {
        match self.random.gen_range(0..8) {
            0 => Bytes::new(),
            1 if self.seldom(4) => vec![b' '; MIB].into(),
            2 => Bytes::from_static(b"{ not json"),
            3 => Bytes::from_static(b"\x00\xff\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
            _ => Bytes::from_static(OBJECT.as_bytes()),
        }
    }

    fn sent(&mut self, body: Bytes) -> Sent {
        if body.is_empty() || self.seldom(2) {
            return Sent::Measured(body);
        }
        let length = body.len().div_ceil(self.random.gen_range(1..5));
        Sent::Chunked(body.chunks(length).map(Bytes::copy_from_slice).collect())
    }

    fn headers(&mut self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if !self.seldom(4) {
            insert(&mut headers, "accept", self.pick(ACCEPTS));
        }
        let choices = [
            ("accept-encoding", "gzip"),
            ("accept-encoding", "gzip;q=0.5, deflate"),
            (
                "user-agent",
                "kubectl/v1.20.2 (linux/amd64) kubernetes/faecb19",
            ),
            ("if-none-match", "\"0123456789ABCDEF\""),
            ("if-none-match", "W/\"x\", *"),
            ("x-twice", "first"),
            ("x-twice", "second"),
            ("x-twice", "first"),
            ("x-empty", ""),
            ("x-odd", "a,b; c=\"d\" \\ ~ \t tab"),
            ("x-bytes", "d\u{e9}j\u{e0} \u{20ac}"),
            ("x_under_score", "kept"),
            ("x-request-id", "0a-1b"),
            ("impersonate-user", "alice"),
            ("kubectl-command", "kubectl get"),
            ("cookie", "a=b; c=d"),
            ("range", "bytes=0-1"),
            (
                "x-long",
                "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            ),
            ("cache-control", "no-cache"),
            ("origin", "https://elsewhere.example"),
            ("warning", "299 - \"w\""),
            ("via", "1.1 somebody"),
        ];
        for (name, value) in choices {
            if self.seldom(8) {
                headers.append(HeaderName::from_static(name), raw(value));
            }
        }
        headers
    }
}

fn insert(headers: &mut HeaderMap, name: &'static str, value: &str) {
    headers.insert(HeaderName::from_static(name), raw(value));
}

fn raw(value: &str) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).expect("a header value")
}
