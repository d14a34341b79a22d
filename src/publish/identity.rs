//! The server ID under which this proxy is known (KEP-1965).

use std::sync::Arc;

use rand::Rng;

use crate::config::Identity;

const BASE58: &[u8] = b"123456789abcdefghijkmnopqrstuvwxyz";
const LONGEST: usize = 63;

/// The configured ID, else an own one: host name, process ID and 6 random digits, as a Lease could be named.
pub fn server_id(config: &Identity) -> Arc<str> {
    match &config.server_id {
        Some(id) => id.as_str().into(),
        None => own_id(
            &gethostname::gethostname().to_string_lossy(),
            std::process::id(),
            &mut rand::thread_rng(),
        ),
    }
}

fn own_id(host: &str, process: u32, random: &mut impl Rng) -> Arc<str> {
    let digits: String = (0..6)
        .map(|_| char::from(BASE58[random.gen_range(0..BASE58.len())]))
        .collect();
    let tail = format!("-{process}-{digits}");
    // A Lease's name: lower case letters, digits, `-` and `.`, beginning and ending with a letter or digit.
    let host: String = host
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .take(LONGEST - tail.len())
        .collect();
    let host = host.trim_matches(['-', '.']);
    if host.is_empty() {
        format!("proxy{tail}")
    } else {
        format!("{host}{tail}")
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_own_id_can_name_a_lease() {
        for host in [
            "cp-a",
            "CP_A.Example.COM",
            "",
            "---",
            &"x".repeat(300),
            "höst",
        ] {
            let id = own_id(host, 4_194_304, &mut rand::thread_rng());
            assert!(id.len() <= LONGEST, "{id}");
            assert!(
                id.bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b)),
                "{id}"
            );
            assert!(id.starts_with(|c: char| c.is_ascii_alphanumeric()), "{id}");
        }
    }

    #[test]
    fn two_processes_on_one_host_have_different_ids() {
        let mut random = rand::thread_rng();
        assert_ne!(
            own_id("cp-a", 7, &mut random),
            own_id("cp-a", 7, &mut random)
        );
    }
}
