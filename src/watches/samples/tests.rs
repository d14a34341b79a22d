use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, StatusCode};
use k8s_pb::api::core::v1::{Pod, PodList};
use k8s_pb::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_pb::apimachinery::pkg::runtime::{TypeMeta as PbTypeMeta, Unknown};
use proptest::prelude::*;
use prost::Message;
use serde_json::{Value, json};

use super::sampler::{LIMIT, ListEncoding, ListFormat, ListSampler};
use super::*;

const PODS: GvrRef<'_> = GvrRef {
    group: "",
    version: "v1",
    resource: "pods",
    subresource: "",
};
const JSON: ListEncoding = ListEncoding {
    form: ListFormat::Json,
    gzip: false,
};
const PROTOBUF: ListEncoding = ListEncoding {
    form: ListFormat::Protobuf,
    gzip: false,
};

fn object(name: &str, revision: i64) -> Value {
    json!({"metadata": {"namespace": "n", "name": name, "resourceVersion": revision.to_string()}})
}

/// As kube-apiserver orders the fields of built-in lists.
fn list(kind: &str, api_version: &str, items: &[Value]) -> Bytes {
    let items = Value::from(items);
    let metadata = json!({"resourceVersion": "99"});
    format!(
        r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{metadata},"items":{items}}}"#
    )
    .into()
}

fn in_protobuf(kind: &str, api_version: &str, objects: &[(&str, i64)]) -> Bytes {
    let pod = |(name, revision): &(&str, i64)| Pod {
        metadata: Some(ObjectMeta {
            namespace: Some("n".to_owned()),
            name: Some((*name).to_owned()),
            resource_version: Some(revision.to_string()),
            ..ObjectMeta::default()
        }),
        ..Pod::default()
    };
    let list = PodList {
        items: objects.iter().map(pod).collect(),
        ..PodList::default()
    };
    let envelope = Unknown {
        type_meta: Some(PbTypeMeta {
            kind: Some(kind.to_owned()),
            api_version: Some(api_version.to_owned()),
        }),
        raw: Some(list.encode_to_vec()),
        ..Unknown::default()
    };
    [b"k8s\0", envelope.encode_to_vec().as_slice()]
        .concat()
        .into()
}

fn compressed(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// The kind, and the witnesses as `key@revision`.
fn seen(sample: Option<Sample>) -> Option<(String, Vec<String>)> {
    let Sample { type_meta, anchors } = sample?;
    let anchor = |anchor: &Anchor| format!("{}@{}", anchor.key, anchor.revision);
    Some((type_meta.kind, anchors.iter().map(anchor).collect()))
}

fn pods(anchors: &[&str]) -> Option<(String, Vec<String>)> {
    let anchors = anchors.iter().map(ToString::to_string).collect();
    Some(("Pod".to_owned(), anchors))
}

#[test]
fn the_oldest_objects_of_a_list_are_kept_in_either_form() {
    let revisions = [30, 7, 50, 12, 9, 40];
    let objects: Vec<_> = revisions
        .iter()
        .map(|at| object(&format!("p{at}"), *at))
        .collect();
    let names = ["p30", "p7", "p50", "p12", "p9", "p40"];
    let pairs: Vec<_> = names.into_iter().zip(revisions).collect();
    let oldest = pods(&["n/p7@7", "n/p9@9", "n/p12@12", "n/p30@30"]);
    let json = list("PodList", "v1", &objects);
    let protobuf = in_protobuf("PodList", "v1", &pairs);
    for (encoded, body) in [(JSON, json), (PROTOBUF, protobuf)] {
        assert_eq!(seen(encoded.read(&body, "v1")), oldest);
        let gzip = ListEncoding {
            gzip: true,
            ..encoded
        };
        assert_eq!(seen(gzip.read(&compressed(&body), "v1")), oldest);
        assert_eq!(seen(gzip.read(&body, "v1")), None);
    }
}

#[test]
fn of_a_list_that_goes_on_what_came_whole_counts() {
    let body = list("PodList", "v1", &[object("a", 5), object("b", 6)]);
    assert_eq!(
        seen(JSON.read(&body[..body.len() - 4], "v1")),
        pods(&["n/a@5"])
    );
    let body = in_protobuf("PodList", "v1", &[("a", 5), ("b", 6)]);
    assert_eq!(
        seen(PROTOBUF.read(&body[..body.len() - 9], "v1")),
        pods(&["n/a@5"])
    );
    let many: Vec<_> = (1..9000).map(|at| object(&format!("p{at}"), at)).collect();
    let body = compressed(&list("PodList", "v1", &many));
    let gzip = ListEncoding {
        form: ListFormat::Json,
        gzip: true,
    };
    let head = &body[..body.len() / 2];
    assert_eq!(
        seen(gzip.read(head, "v1")),
        pods(&["n/p1@1", "n/p2@2", "n/p3@3", "n/p4@4"])
    );
}

/// Custom resources: the fields are in the order of their names, and objects say what they are.
#[test]
fn objects_that_say_their_type_are_believed_before_their_list() {
    let mut widget = object("w", 5);
    widget["apiVersion"] = "example.com/v1".into();
    widget["kind"] = "Widget".into();
    let body = json!({"apiVersion": "example.com/v1", "items": [widget], "kind": "Widgets", "metadata": {}});
    let body = body.to_string();
    let expected = Some(("Widget".to_owned(), vec!["n/w@5".to_owned()]));
    assert_eq!(seen(JSON.read(body.as_bytes(), "example.com/v1")), expected);
    let cut = body.find(",\"kind\":\"Widgets\"").unwrap();
    assert_eq!(
        seen(JSON.read(&body.as_bytes()[..cut], "example.com/v1")),
        expected
    );
}

#[test]
fn an_object_that_imitates_metadata_is_taken_for_what_the_apiserver_says() {
    let mut widget = object("w", 5);
    widget["apiVersion"] = "example.com/v1".into();
    widget["kind"] = "Widget".into();
    let forged = json!({"namespace": "n", "name": "forged", "resourceVersion": "1"});
    for field in ["Metadata", "METADATA", "items", "object", "spec"] {
        widget[field] = json!({"metadata": forged, "items": [{"metadata": forged}]});
    }
    widget["metadata"]["annotations"] =
        json!({"metadata": forged.to_string(), "resourceVersion": "1"});
    widget["metadata"]["managedFields"] = json!([{"metadata": forged}]);
    let body = json!({"apiVersion": "example.com/v1", "items": [widget], "kind": "WidgetList"});
    assert_eq!(
        seen(JSON.read(body.to_string().as_bytes(), "example.com/v1")),
        Some(("Widget".to_owned(), vec!["n/w@5".to_owned()]))
    );
}

#[test]
fn what_is_no_list_of_the_objects_themselves_shows_nothing() {
    let pod = [object("a", 5)];
    let mut two_types = [object("a", 5), object("b", 6)];
    for (object, kind) in two_types.iter_mut().zip(["Pod", "Node"]) {
        object["apiVersion"] = "v1".into();
        object["kind"] = kind.into();
    }
    let partial = list("PartialObjectMetadataList", "meta.k8s.io/v1", &pod);
    for body in [
        partial,
        list("Table", "meta.k8s.io/v1", &[]),
        list("Status", "v1", &[]),
        list("List", "v1", &pod),
        list("PodList", "v2", &pod),
        list("PodList", "v1", &two_types),
        list("PodList", "v1", &[json!({"metadata": {"name": "a"}})]),
        list(
            "PodList",
            "v1",
            &[json!({"metadata": {"resourceVersion": "5"}})],
        ),
        list("PodList", "v1", &[json!({"metadata": "a"})]),
        list(
            "PodList",
            "v1",
            &[json!({"metadata": {"name": "a", "resourceVersion": "-5"}})],
        ),
        list("PodList", "v1", &[json!(7)]),
        "".into(),
        "[]".into(),
        r#"{"kind":"PodList","apiVersion":"v1","items":{"a":1}}"#.into(),
        r#"{"kind":"PodList","apiVersion":"v1","items":null}"#.into(),
        "\u{0}".into(),
    ] {
        assert_eq!(seen(JSON.read(&body, "v1")), None, "{body:?}");
        assert_eq!(seen(PROTOBUF.read(&body, "v1")), None, "{body:?}");
    }
    let partial = in_protobuf("PartialObjectMetadataList", "meta.k8s.io/v1", &[("a", 5)]);
    assert_eq!(seen(PROTOBUF.read(&partial, "v1")), None);
}

#[test]
fn what_is_nested_for_ever_does_no_harm() {
    for open in ["[", r#"{"a":"#] {
        let deep = open.repeat(LIMIT / open.len());
        for before in [r#""x":"#, r#""items":["#] {
            let body = format!(r#"{{"kind":"PodList","apiVersion":"v1",{before}{deep}"#);
            let sample = JSON.read(body.as_bytes(), "v1");
            assert!(sample.is_none_or(|sample| sample.anchors.is_empty()));
        }
    }
}

fn json_answer() -> (StatusCode, HeaderMap) {
    let json = HeaderValue::from_static("application/json");
    let headers = [(http::header::CONTENT_TYPE, json)];
    (StatusCode::OK, headers.into_iter().collect())
}

struct World {
    samples: Samples,
    begin: Instant,
}

impl World {
    fn new() -> Self {
        let samples = Samples::default();
        let begin = samples.since;
        Self { samples, begin }
    }

    fn at(&self, seconds: u64, epoch: u64) -> Option<Box<ListSampler>> {
        let (status, headers) = json_answer();
        let now = self.begin + Duration::from_secs(seconds);
        ListSampler::start(&self.samples, PODS, epoch, now, (status, &headers))
    }

    fn known(&self, epoch: u64) -> Option<Vec<String>> {
        let slot = self.samples.slot(PODS)?;
        seen(slot.sample(epoch)).map(|seen| seen.1)
    }
}

fn one(name: &str) -> Bytes {
    list("PodList", "v1", &[object(name, 5)])
}

#[test]
fn one_list_is_looked_at_and_another_only_after_a_while() {
    let world = World::new();
    let look = world.at(0, 1).unwrap();
    assert!(world.at(0, 1).is_none(), "one at a time");
    assert!(look.passed(&one("a"), true).is_none());
    assert_eq!(world.known(1), Some(vec!["n/a@5".to_owned()]));
    assert!(world.at(59, 1).is_none());
    assert!(world.at(60, 1).unwrap().passed(&one("b"), true).is_none());
    assert_eq!(world.known(1), Some(vec!["n/b@5".to_owned()]));
}

#[test]
fn a_list_that_shows_nothing_makes_room_for_the_next() {
    let world = World::new();
    let empty = list("PodList", "v1", &[]);
    assert!(world.at(0, 1).unwrap().passed(&empty, true).is_none());
    drop(world.at(0, 1).expect("an empty list was soon read"));
    assert!(world.at(0, 1).is_none(), "what was not read is waited for");
    assert!(world.at(1, 1).unwrap().passed(&"{".into(), true).is_none());
    assert!(world.at(1, 1).is_none());
    assert!(world.at(2, 1).is_some());
    assert_eq!(world.known(1), None);
}

#[test]
fn what_one_process_showed_is_nothing_of_the_next() {
    let world = World::new();
    let late = world.at(0, 1).unwrap();
    assert!(world.at(0, 2).unwrap().passed(&one("b"), true).is_none());
    assert_eq!((world.known(1), world.known(2).is_some()), (None, true));
    assert!(late.passed(&one("a"), true).is_none());
    assert_eq!(world.known(1), Some(vec!["n/a@5".to_owned()]));
    assert_eq!(world.known(2), None);
    assert!(world.at(0, 2).is_some(), "and is looked for again");
}

#[test]
fn only_answers_that_can_be_read_are_looked_at() {
    let world = World::new();
    let now = world.begin;
    for (name, value) in [
        ("content-type", "application/cbor"),
        ("content-type", "application/yaml"),
        ("content-encoding", "zstd"),
    ] {
        let (status, mut headers) = json_answer();
        headers.insert(name, HeaderValue::from_static(value));
        assert!(ListSampler::start(&world.samples, PODS, 1, now, (status, &headers)).is_none());
    }
    let (_, headers) = json_answer();
    let failed = (StatusCode::FORBIDDEN, &headers);
    assert!(ListSampler::start(&world.samples, PODS, 1, now, failed).is_none());
    assert!(world.samples.slots.load().is_empty());
    assert!(world.at(0, 1).is_some());
}

#[test]
fn resources_are_not_kept_without_end() {
    let samples = Samples::default();
    for number in 0..RESOURCES + 5 {
        let resource = format!("r{number}");
        let resource = GvrRef {
            resource: &resource,
            ..PODS
        };
        assert_eq!(samples.slot(resource).is_some(), number < RESOURCES);
    }
    let first = GvrRef {
        resource: "r0",
        ..PODS
    };
    assert!(samples.slot(first).is_some());
}

/// Bytes that are nearly a list.
fn nearly(body: Bytes) -> impl Strategy<Value = Vec<u8>> {
    let length = body.len();
    (
        0..=length,
        prop::collection::vec((0..length, any::<u8>()), 0..4),
    )
        .prop_map(move |(cut, changes)| {
            let mut bytes = body.to_vec();
            changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
            bytes.truncate(cut);
            bytes
        })
}

fn checked(encoded: ListEncoding, bytes: &[u8]) -> Result<(), TestCaseError> {
    for gzip in [false, true] {
        if let Some(sample) = (ListEncoding { gzip, ..encoded }).read(bytes, "v1") {
            prop_assert_eq!(sample.type_meta.api_version, "v1");
            prop_assert!(sample.anchors.iter().all(|anchor| anchor.revision > 0));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes: Vec<u8>) {
        checked(JSON, &bytes)?;
        checked(PROTOBUF, &bytes)?;
    }

    #[test]
    fn a_list_with_errors_is_read(
        json in nearly(list("PodList", "v1", &[object("a", 5), object("b", 6)])),
        protobuf in nearly(in_protobuf("PodList", "v1", &[("a", 5), ("b", 6)])),
    ) {
        checked(JSON, &json)?;
        checked(PROTOBUF, &protobuf)?;
        checked(JSON, &compressed(&json))?;
    }

    #[test]
    fn a_list_reads_the_same_however_it_was_split(count in 0..2000_i64, sizes in prop::collection::vec(1..9000_usize, 1..40)) {
        let objects: Vec<_> = (0..count).map(|at| object(&format!("p{at}"), 1 + (at * 7919) % 2003)).collect();
        let body = list("PodList", "v1", &objects);
        let whole = World::new();
        let split = World::new();
        whole.at(0, 1).unwrap().passed(&body, true);
        let mut look = split.at(0, 1);
        let mut rest = body;
        for size in sizes {
            let piece = rest.split_to(size.min(rest.len()));
            look = look.and_then(|look| look.passed(&piece, false));
        }
        look.and_then(|look| look.passed(&rest, true));
        prop_assert_eq!(whole.known(1), split.known(1));
    }
}
