//! Decoding never panics, and encoded values decode to the same value.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use super::*;

fn decode_all(value: &[u8]) {
    let _ = lease(value);
    let _ = storage_version(value);
    let _ = endpoints(value);
    let _ = is_aggregated(value);
}

fn any_stored() -> impl Strategy<Value = Vec<u8>> {
    let values: Vec<_> = [OLD, NEW]
        .into_iter()
        .flat_map(|release| {
            ["storageversions", "leases/kube-system", "peerserverleases"]
                .into_iter()
                .flat_map(move |prefix| stored(release, prefix).into_values())
        })
        .collect();
    prop::sample::select(values)
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in any::<Vec<u8>>(), raw in any::<Vec<u8>>()) {
        decode_all(&bytes);
        decode_all(&[MAGIC, &bytes].concat());
        for (version, kind) in [("v1", "Endpoints"), ("coordination.k8s.io/v1", "Lease"),
            ("internal.apiserver.k8s.io/v1alpha1", "StorageVersion")] {
            decode_all(&enveloped(version, kind, "", &raw));
        }
    }

    #[test]
    fn no_damage_makes_it_panic(
        mut value in any_stored(),
        length in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        for (at, byte) in changes {
            let at = at.index(value.len());
            value[at] = byte;
        }
        decode_all(&value);
        value.truncate(length.index(value.len()));
        decode_all(&value);
    }

    #[test]
    fn what_is_written_is_read_again(
        server in "[a-z0-9-]{1,80}",
        ip in any::<IpAddr>(),
        port in 1_u16..,
        generation in any::<i64>(),
    ) {
        let ip = ip.to_canonical();
        prop_assume!(!ip.is_unspecified() && !ip.is_multicast());
        let peer = PeerEndpoint { server, address: SocketAddr::new(ip, port) };
        prop_assert_eq!(endpoints(&encode_endpoints(&peer, generation)).unwrap(), peer);
    }
}
