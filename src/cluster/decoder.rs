//! Decodes values of etcd, and records those that cannot be decoded.

use std::error::Error;
use std::net::IpAddr;

use super::bare::usable_address;
use super::codec::{self, Undecodable};
use super::keys::Topic;
use super::source::EtcdItem;
use super::undecodable::Undecodables;

/// Decodes values and records those that cannot be decoded.
pub(super) struct Decoder<'a> {
    pub(super) topic: Topic,
    pub(super) undecodables: &'a mut Undecodables,
    /// Set if one is new.
    pub(super) new: &'a mut bool,
}

impl Decoder<'_> {
    /// `None`: it cannot be decoded.
    pub(super) fn decode<T, E: Error>(
        &mut self,
        item: &EtcdItem,
        decode: impl Fn(&[u8]) -> Result<T, E>,
    ) -> Option<T> {
        match decode(&item.value) {
            Ok(value) => {
                self.undecodables.remove(self.topic, &item.key);
                Some(value)
            }
            Err(error) => {
                self.failed(&item.key, item.mod_revision, &error);
                None
            }
        }
    }

    /// Decodes values with `decode`.
    pub(super) fn with<T, E: Error>(
        mut self,
        decode: impl Fn(&[u8]) -> Result<T, E>,
    ) -> impl FnMut(&EtcdItem) -> Option<T> {
        move |item| self.decode(item, &decode)
    }

    /// A value is not taken in.
    pub(super) fn failed(&mut self, key: &str, revision: i64, error: &dyn Error) {
        let error = error.to_string();
        *self.new |= self.undecodables.add(self.topic, key, revision, error);
    }

    /// The key names the address. The value is only looked at; kube-apiserver may encrypt it.
    pub(super) fn master_lease(&mut self, item: &EtcdItem, loopback: bool) -> Option<IpAddr> {
        let Some(ip) = usable_address(&item.key, loopback) else {
            let unusable = |_: &[u8]| Err::<(), _>(Undecodable::Field("the address in its key"));
            self.decode(item, unusable);
            return None;
        };
        let value = |value: &[u8]| match codec::is_endpoints(value) {
            Err(Undecodable::Encrypted) => Ok(()),
            looked_at => looked_at,
        };
        self.decode(item, value);
        Some(ip)
    }
}
