//! ConfigMap `kube-system/extension-apiserver-authentication`. Pure.

use std::collections::BTreeMap;

use k8s_pb::api::core::v1 as protobuf;
use serde::Deserialize;

use super::{Type, Undecodable, decode};
use crate::kube::requestheader::PublishedNames;

const CONFIG_MAP: Type = Type {
    kind: "ConfigMap",
    api_versions: &["v1"],
};

#[derive(Deserialize)]
struct ConfigMapFields {
    data: Option<BTreeMap<String, String>>,
}

impl TryFrom<protobuf::ConfigMap> for ConfigMapFields {
    type Error = Undecodable;

    fn try_from(stored: protobuf::ConfigMap) -> Result<Self, Undecodable> {
        let data = Some(stored.data);
        Ok(Self { data })
    }
}

/// The header names that kube-apiservers have published.
pub fn header_names(value: &[u8]) -> Result<PublishedNames, Undecodable> {
    let form = decode::<ConfigMapFields, protobuf::ConfigMap>(value, &CONFIG_MAP)?;
    Ok(PublishedNames::read(&form.data.unwrap_or_default())?)
}
