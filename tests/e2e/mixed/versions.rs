//! Which version serves what both have, also when one of them emulates another.

use super::{Mixed, NEW, OLD, VERSION, modern, reached, until_known};
use testkit::audit::AuditLog;
use testkit::proxy::{Proxy, Until};

pub(super) async fn each_version_is_found_also_one_that_is_emulated(mixed: &Mixed) {
    each_version_is_found_from_either_proxy(mixed).await;
    an_apiserver_that_emulates_a_version_is_found_under_that_one(mixed).await;
}

async fn each_version_is_found_from_either_proxy(mixed: &Mixed) {
    let own = ["old", "new"];
    for (at, admin) in mixed.admins().iter().enumerate() {
        for (version, expected) in [
            (None, own[at]),
            (Some(NEW), "new"),
            (Some(OLD), "old"),
            // Both are later.
            (Some("1.19"), own[at]),
            (Some("1.29"), "new"),
            // Both are older, and alike.
            (Some("1.99"), own[at]),
        ] {
            let client = version.map_or(admin.clone(), |version| admin.header(VERSION, version));
            let reached = mixed.reached(&client).await;
            let what = format!("{version:?} at {}: {reached:?}", own[at]);
            let [(server, user)] = reached.as_slice() else {
                panic!("{what}");
            };
            assert_eq!(*server, expected, "{what}");
            assert_eq!(user["username"], "kubernetes-admin", "{what}");
        }
    }
}

async fn an_apiserver_that_emulates_a_version_is_found_under_that_one(mixed: &Mixed) {
    let ground = &mixed.ground;
    let audit = AuditLog::new(ground.dir.path(), "emulating");
    let mut flags = vec!["--emulated-version=1.34".to_owned()];
    flags.extend(audit.flags());
    let emulating = modern(ground, &flags).await;
    let options = ground.proxy("emulating", emulating.addr());
    let at_emulating = Proxy::start(options.until(Until::Ready)).await;
    until_known(&at_emulating, "new", NEW).await;
    let proxies = [&mixed.at_old, &mixed.at_new, &at_emulating];
    for proxy in &proxies[..2] {
        until_known(proxy, "emulating", "1.34").await;
    }
    // Of those that are later the local one, else the nearest.
    let own = ["emulating", "new", "emulating"];
    for (proxy, later) in proxies.into_iter().zip(own) {
        for (version, expected) in [
            ("1.34", "emulating"),
            ("1.33", later),
            ("1.35", "new"),
            ("1.36", "new"),
            ("1.20", "old"),
        ] {
            let client = proxy.client(&ground.pki).cert("admin");
            let audits = mixed.audits.iter().map(|(name, log)| (*name, log));
            let audits = audits.chain([("emulating", &audit)]);
            let reached = reached(audits, &client.header(VERSION, version)).await;
            let names: Vec<_> = reached.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [expected], "{version}");
        }
    }
}
