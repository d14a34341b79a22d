//! Parses the beginning of a list in JSON: the objects that are complete. Only the needed fields are parsed.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::list::{ListedObject, PartialList};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Object<'a> {
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata<'a> {
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
}

pub(super) fn read(head: &[u8]) -> PartialList {
    let mut list = PartialList::default();
    let read = serde_json::Deserializer::from_slice(head).deserialize_map(Fields(&mut list));
    // It mostly ends in the middle of an object; the objects before it were read.
    if read.is_err_and(|error| !error.is_eof()) {
        list.mark_malformed();
    }
    list
}

struct Fields<'l>(&'l mut PartialList);

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            match &*key {
                "apiVersion" => self.0.api_version = map.next_value()?,
                "kind" => self.0.kind = map.next_value()?,
                "items" => map.next_value_seed(Items(self.0))?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }
}

struct Items<'l>(&'l mut PartialList);

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(object) = items.next_element::<Object<'de>>()? {
            self.0.add(&ListedObject {
                api_version: &object.api_version,
                kind: &object.kind,
                namespace: &object.metadata.namespace,
                name: &object.metadata.name,
                resource_version: &object.metadata.resource_version,
            });
        }
        Ok(())
    }
}
