//! The addresses of this machine, for `install` and `check`.

use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

/// By interface. What cannot be read is left out.
pub(super) fn held() -> Vec<(String, IpAddr)> {
    let held = getifaddrs().into_iter().flatten().filter_map(|it| {
        let address = it.address?;
        let v4 = address.as_sockaddr_in().map(|it| IpAddr::from(it.ip()));
        let ip = v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))?;
        Some((it.interface_name, ip))
    });
    held.collect()
}
