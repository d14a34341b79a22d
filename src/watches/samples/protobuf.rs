//! The beginning of a list in protobuf: Kubernetes' envelope around a message whose field 1 is the list's metadata and
//! whose field 2 is each object. Whatever came whole counts.

use prost::Message;

use super::read::{Item, List};
use crate::watches::frames::protobuf::{MAGIC, Object, TypeMeta};

/// Keys of fields 1 and 2 where they have a length.
const FIRST: u8 = 1 << 3 | 2;
const SECOND: u8 = 2 << 3 | 2;

pub(super) fn read(head: &[u8]) -> List {
    let mut list = List::default();
    if envelope(head, &mut list).is_none() {
        list.disbelieve();
    }
    list
}

/// None if it is something else.
fn envelope(head: &[u8], list: &mut List) -> Option<()> {
    let mut rest = head.strip_prefix(MAGIC)?;
    let (FIRST, type_meta, true) = field(&mut rest)? else {
        return None;
    };
    let type_meta = TypeMeta::decode(type_meta).ok()?;
    list.api_version = type_meta.api_version;
    list.kind = type_meta.kind;
    let (SECOND, mut objects, _) = field(&mut rest)? else {
        return None;
    };
    // It mostly ends in the middle of something; what came before it was read.
    while let Some((key, object, true)) = field(&mut objects) {
        match key {
            FIRST => {}
            SECOND => {
                let metadata = Object::decode(object).ok()?.metadata?;
                list.add(&Item {
                    namespace: &metadata.namespace,
                    name: &metadata.name,
                    resource_version: &metadata.resource_version,
                    ..Item::default()
                });
            }
            _ => return None,
        }
    }
    Some(())
}

/// The next field: its key, what there is of it, and whether that is all.
fn field<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8], bool)> {
    let (key, mut value) = rest.split_first()?;
    let length = prost::decode_length_delimiter(&mut value).ok()?;
    let (field, after) = value.split_at(length.min(value.len()));
    *rest = after;
    Some((*key, field, field.len() == length))
}
