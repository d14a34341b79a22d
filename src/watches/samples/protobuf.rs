//! Parses the beginning of a list in protobuf: Kubernetes' envelope around a message whose field 1 is the list's metadata
//! and whose repeated field 2 has the objects. Objects that are complete count.

use prost::Message;

use super::list::{ListedObject, PartialList};
use crate::kube::envelope::MAGIC;
use crate::watches::frames::protobuf::{PartialObjectMetadata, WireTypeMeta};

/// Keys of the length-delimited fields 1 and 2.
const FIRST: u8 = 1 << 3 | 2;
const SECOND: u8 = 2 << 3 | 2;

pub(super) fn read(head: &[u8]) -> PartialList {
    let mut list = PartialList::default();
    if envelope(head, &mut list).is_none() {
        list.mark_malformed();
    }
    list
}

/// `None` if it is no such list.
fn envelope(head: &[u8], list: &mut PartialList) -> Option<()> {
    let mut rest = head.strip_prefix(MAGIC)?;
    let (FIRST, type_meta, true) = field(&mut rest)? else {
        return None;
    };
    let type_meta = WireTypeMeta::decode(type_meta).ok()?;
    list.api_version = type_meta.api_version;
    list.kind = type_meta.kind;
    let (SECOND, mut objects, _) = field(&mut rest)? else {
        return None;
    };
    // It mostly ends in the middle of an object; the objects before it were read.
    while let Some((key, object, true)) = field(&mut objects) {
        match key {
            FIRST => {}
            SECOND => {
                let metadata = PartialObjectMetadata::decode(object).ok()?.metadata?;
                list.add(&ListedObject {
                    namespace: &metadata.namespace,
                    name: &metadata.name,
                    resource_version: &metadata.resource_version,
                    ..ListedObject::default()
                });
            }
            _ => return None,
        }
    }
    Some(())
}

/// The next field: its key, its bytes as far as they are there, and whether they are complete.
fn field<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8], bool)> {
    let (key, mut value) = rest.split_first()?;
    let length = prost::decode_length_delimiter(&mut value).ok()?;
    let (field, after) = value.split_at(length.min(value.len()));
    *rest = after;
    Some((*key, field, field.len() == length))
}
