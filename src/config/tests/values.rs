//! Single values, and addresses that must differ.

use super::*;

/// Each replacement in the minimal file, or section behind it, and the one problem it makes.
#[test]
fn wrong_values_are_named_with_key_line_and_remedy() {
    for (from, to, expected) in [
        (
            "keyFile: serving.key",
            "keyFile: serving.key\n  goawayChance: 0.021",
            "serving.goawayChance (line 7): expected a number from 0 to 0.02, found \"0.021\"",
        ),
        (
            "keyFile: serving.key",
            "keyFile: serving.key\n  goawayChance: -0.001",
            "serving.goawayChance (line 7): expected a number from 0 to 0.02, found \"-0.001\"",
        ),
        (
            "keyFile: serving.key",
            "keyFile: serving.key\n  goawayChance: .nan",
            "serving.goawayChance (line 7): expected a number from 0 to 0.02, found \"NaN\"",
        ),
        (
            "keyFile: serving.key",
            "keyFile: serving.key\n  goawayChance: '0.01'",
            "serving.goawayChance (line 7): expected a number from 0 to 0.02, found text",
        ),
        (
            "bindAddress: 10.0.0.11:6443",
            "bindAddress: localhost:6443",
            "serving.bindAddress (line 4): \"localhost:6443\" is not IP:port such as 10.0.0.11:6443 or [2001:db8::11]:6443",
        ),
        (
            "bindAddress: 10.0.0.11:6443",
            "bindAddress: 10.0.0.11",
            "serving.bindAddress (line 4): \"10.0.0.11\" is not IP:port such as 10.0.0.11:6443 or [2001:db8::11]:6443",
        ),
        (
            "bindAddress: 10.0.0.11:6443",
            "bindAddress: 10.0.0.11:65536",
            "serving.bindAddress (line 4): \"10.0.0.11:65536\" is not IP:port such as 10.0.0.11:6443 or [2001:db8::11]:6443",
        ),
        (
            "bindAddress: 10.0.0.11:6443",
            "bindAddress: '[::]:6443'",
            "serving.bindAddress (line 4): :: stands for every address; name one address of this host",
        ),
        (
            "bindAddress: 10.0.0.11:6443",
            "bindAddress: '[::ffff:0.0.0.0]:6443'",
            "serving.bindAddress (line 4): ::ffff:0.0.0.0 stands for every address; name one address of this host",
        ),
        (
            "bindAddress: 10.0.0.11:6443",
            "bindAddress: 6443",
            "serving.bindAddress (line 4): expected IP:port such as 10.0.0.11:6443 or [2001:db8::11]:6443, found a number",
        ),
        (
            "bindAddress: 10.0.0.11:6443",
            "bindAddress: 127.0.0.1:6443",
            "apiServer.address (line 9): is the same as serving.bindAddress; each needs an address of its own",
        ),
        (
            "bindAddress: 10.0.0.11:6443",
            "bindAddress: 127.0.0.1:6450",
            "admin.bindAddress: is the same as serving.bindAddress; each needs an address of its own",
        ),
        (
            "advertiseAddress: 10.0.0.11:6443",
            "advertiseAddress: 224.0.0.1:6443",
            "peer.advertiseAddress (line 19): 224.0.0.1 is no address of one host",
        ),
        (
            "advertiseAddress: 10.0.0.11:6443",
            "advertiseAddress: '[::ffff:127.0.0.1]:6443'",
            "apiServer.address (line 9): is the same as peer.advertiseAddress; each needs an address of its own",
        ),
        (
            "certFile: serving.crt",
            "certFile: ''",
            "serving.certFile (line 5): \"\" is not the path of a file",
        ),
        (
            "certFile: serving.crt",
            "certFile: \"a\\0b\"",
            "serving.certFile (line 5): \"a\\0b\" is not the path of a file",
        ),
        (
            "[https://127.0.0.1:2379]",
            "[]",
            "etcd.endpoints (line 14): must not be empty",
        ),
        (
            "[https://127.0.0.1:2379]",
            "https://127.0.0.1:2379",
            "etcd.endpoints (line 14): expected a list, found text",
        ),
        (
            "[https://127.0.0.1:2379]",
            "\n  - https://a:1\n  - https://a:1",
            "etcd.endpoints[1] (line 16): is there twice; remove one",
        ),
        (
            "[https://127.0.0.1:2379]",
            "[https://10.0.0.1]",
            "etcd.endpoints[0] (line 14): \"https://10.0.0.1\" is not scheme://host:port such as https://127.0.0.1:2379",
        ),
        (
            "[https://127.0.0.1:2379]",
            "[https://10.0.0.1:0]",
            "etcd.endpoints[0] (line 14): \"https://10.0.0.1:0\" is not scheme://host:port such as https://127.0.0.1:2379",
        ),
        (
            "[https://127.0.0.1:2379]",
            "[10.0.0.1:2379]",
            "etcd.endpoints[0] (line 14): \"10.0.0.1:2379\" is not scheme://host:port such as https://127.0.0.1:2379",
        ),
        (
            "[https://127.0.0.1:2379]",
            "[unix://a:1]",
            "etcd.endpoints[0] (line 14): \"unix://a:1\" is not scheme://host:port such as https://127.0.0.1:2379",
        ),
        (
            "[https://127.0.0.1:2379]",
            "['https://10.0.0.1:2379/v3']",
            "etcd.endpoints[0] (line 14): \"https://10.0.0.1:2379/v3\" is not scheme://host:port such as https://127.0.0.1:2379",
        ),
        (
            "[https://127.0.0.1:2379]",
            "['https://me:secret@10.0.0.1:2379']",
            "etcd.endpoints[0] (line 14): is not scheme://host:port such as https://127.0.0.1:2379: a user name is not supported",
        ),
        (
            "[https://127.0.0.1:2379]",
            "['http://10.0.0.1:2379']",
            "etcd.endpoints[0] (line 14): \"http://10.0.0.1:2379\" must be https: http is for loopback only",
        ),
        (
            "[https://127.0.0.1:2379]",
            "['https://10.0.0.1:2379', 'http://127.0.0.1:2379']",
            "etcd.endpoints (line 14): must be all https or all http",
        ),
        (
            "requestHeaderClientCAFile: front-proxy-ca.crt",
            "requestHeaderClientCAFile: ca.crt\n  requestHeaderAllowedNames: []",
            "serving.requestHeaderClientCAFile (line 8): has an authority that clientCAFile has too, so any user could act \
          as anyone; use another CA for peers, or fill in requestHeaderAllowedNames",
        ),
    ] {
        assert_eq!(problems(&minimal_with(from, to)), [expected], "{to}");
    }
}

#[test]
fn wrong_settings_are_named_with_key_line_and_remedy() {
    for (section, expected) in [
        (
            "shutdown: {delay: 1d}",
            "shutdown.delay (line 21): \"1d\" is not a duration such as 500ms or 1m30s",
        ),
        (
            "shutdown: {delay: 99999999999999999999h}",
            "shutdown.delay (line 21): \"99999999999999999999h\" is not a duration such as 500ms or 1m30s",
        ),
        (
            "shutdown: {delay: 20000h}",
            "shutdown.delay (line 21): must be at most 8760h",
        ),
        (
            "shutdown: {delay: 1e99}",
            "shutdown.delay (line 21): expected a duration such as 500ms or 1m30s, found a number",
        ),
        (
            "tracing: {endpoint: 'http://localhost:4317'}",
            "tracing.endpoint (line 21): \"http://localhost:4317\" is not host:port such as localhost:4317",
        ),
        (
            "tracing: {endpoint: localhost}",
            "tracing.endpoint (line 21): \"localhost\" is not host:port such as localhost:4317",
        ),
        (
            "tracing: {endpoint: 'me@localhost:4317'}",
            "tracing.endpoint (line 21): \"me@localhost:4317\" is not host:port such as localhost:4317",
        ),
        (
            "tracing: {endpoint: 4317}",
            "tracing.endpoint (line 21): expected host:port such as localhost:4317, found a number",
        ),
        (
            "tracing: {samplingRatePerMillion: 1000001}",
            "tracing.samplingRatePerMillion (line 21): expected a whole number from 0 to 1000000, found \"1000001\"",
        ),
        (
            "tracing: {samplingRate: 1}",
            "tracing.samplingRate (line 21): unknown key; expected one of endpoint, samplingRatePerMillion",
        ),
        (
            "ifReady: {retryAfterSeconds: 0}",
            "ifReady.retryAfterSeconds (line 21): expected a whole number from 1 to 3600, found \"0\"",
        ),
        (
            "ifReady: {retryAfterSeconds: 5.0}",
            "ifReady.retryAfterSeconds (line 21): expected a whole number from 1 to 3600, found \"5.0\"",
        ),
        (
            "ifReady: {retryAfterSeconds: '5'}",
            "ifReady.retryAfterSeconds (line 21): expected a whole number from 1 to 3600, found text",
        ),
        (
            "ifReady: {retryAfterSeconds: -340282366920938463463374607431768211455}",
            "ifReady.retryAfterSeconds (line 21): expected a whole number from 1 to 3600, found \"-3.402823669209385e38\"",
        ),
        (
            "ifReady: {retryAfterSeconds: 340282366920938463463374607431768211455}",
            "ifReady.retryAfterSeconds (line 21): expected a whole number from 1 to 3600, \
          found \"340282366920938463463374607431768211455\"",
        ),
        (
            "ifReady: {retryAfterJitterSeconds: 3601}",
            "ifReady.retryAfterJitterSeconds (line 21): expected a whole number from 0 to 3600, found \"3601\"",
        ),
        (
            "ifReady: {enabled: yes}",
            "ifReady.enabled (line 21): expected true or false, found text",
        ),
        (
            "rerouting: {absentServerGrace: 0s}",
            "rerouting.absentServerGrace (line 21): must be at least 1s",
        ),
        (
            "rerouting: {bareServers: On}",
            "rerouting.bareServers (line 21): \"On\" is not one of Auto, Ignore",
        ),
        (
            "rerouting: {ignoredAddresses: ['10.0.0.9:6443']}",
            "rerouting.ignoredAddresses[0] (line 21): \"10.0.0.9:6443\" is not an IP address such as 10.0.0.100 or 2001:db8::11",
        ),
        (
            "rerouting: {ignoredAddresses: [10.0.0.9, '::ffff:10.0.0.9']}",
            "rerouting.ignoredAddresses[1] (line 21): is there twice; remove one",
        ),
        (
            "identity: {leaseDuration: 1500ms, renewInterval: 1s}",
            "identity.leaseDuration (line 21): must be whole seconds",
        ),
        (
            "identity: {leaseDuration: 10s}",
            "identity.renewInterval (line 21): must be shorter than leaseDuration",
        ),
        (
            "identity: {serverID: Upper}",
            "identity.serverID (line 21): \"Upper\" is not a Lease name of at most 63 of a-z, 0-9, '-' and '.', with a letter or digit at both ends",
        ),
        (
            "identity: {serverID: 7}",
            "identity.serverID (line 21): expected a Lease name of at most 63 of a-z, 0-9, '-' and '.', with a letter or digit at both ends, found a number",
        ),
        (
            "identity: {serverID: a/b}",
            "identity.serverID (line 21): \"a/b\" is not a Lease name of at most 63 of a-z, 0-9, '-' and '.', with a letter or digit at both ends",
        ),
        (
            "identity: {leaseNamespaces: [kube.system]}",
            "identity.leaseNamespaces[0] (line 21): \"kube.system\" is not a namespace of at most 63 of a-z, 0-9 and '-', with a letter \
             or digit at both ends",
        ),
        (
            "admin: {bindAddress: '10.0.0.1:1'}",
            "admin.bindAddress (line 21): 10.0.0.1 is not a loopback address such as 127.0.0.1",
        ),
        (
            "admin: {secureBindAddress: '0.0.0.0:6451'}",
            "admin.secureBindAddress (line 21): 0.0.0.0 stands for every address; name one address of this host",
        ),
        (
            "admin: {secureBindAddress: '10.0.0.11:6443'}",
            "admin.secureBindAddress (line 21): is the same as serving.bindAddress; each needs an address of its own",
        ),
        (
            "admin: {secureBindAddress: '127.0.0.1:6450'}",
            "admin.secureBindAddress (line 21): is the same as admin.bindAddress; each needs an address of its own",
        ),
        (
            "admin: {bindAddress: '127.0.0.1:6443'}",
            "admin.bindAddress (line 21): is the same as apiServer.address; each needs an address of its own",
        ),
        (
            "versionAwareness: {header: Authorization}",
            "versionAwareness.header (line 21): \"Authorization\" already has a meaning; choose another header",
        ),
        (
            "versionAwareness: {header: HTTP2-Settings}",
            "versionAwareness.header (line 21): \"HTTP2-Settings\" already has a meaning; choose another header",
        ),
        (
            "versionAwareness: {header: x_kubernetes_apiserver_rerouted}",
            "versionAwareness.header (line 21): \"x_kubernetes_apiserver_rerouted\" already has a meaning; choose another header",
        ),
        (
            "versionAwareness: {enabled: sometimes}",
            "versionAwareness.enabled (line 21): expected true or false, found text",
        ),
        (
            "versionAwareness: {header: X_Remote_User}",
            "versionAwareness.header (line 21): x-remote-user is the same header as in \
          serving.requestHeaderUsernameHeaders",
        ),
        (
            "versionAwareness: {header: X-Remote-Extra-Version}",
            "versionAwareness.header (line 21): x-remote-extra- of \
          serving.requestHeaderExtraHeaderPrefixes takes in x-remote-extra-version of versionAwareness.header",
        ),
        (
            "versionAwareness: {header: 'X Y'}",
            "versionAwareness.header (line 21): \"X Y\" is not the name of a header",
        ),
    ] {
        assert_eq!(problems(&minimal_and(section)), [expected], "{section}");
    }
}

#[test]
fn wrong_api_server_settings() {
    for (setting, expected) in [
        (
            "serverName: ''",
            "apiServer.serverName (line 10): \"\" is not a DNS name or an IP address",
        ),
        (
            "serverName: 'a b'",
            "apiServer.serverName (line 10): \"a b\" is not a DNS name or an IP address",
        ),
        (
            "address: 127.0.0.1:0",
            "apiServer.address (line 10): needs a port",
        ),
        (
            "internalUser: ''",
            "apiServer.internalUser (line 10): \"\" is not the name of a user in plain ASCII without white space",
        ),
        (
            "internalUser: 'a b'",
            "apiServer.internalUser (line 10): \"a b\" is not the name of a user in plain ASCII without white space",
        ),
        (
            "internalUser: \"a\\r\\nb\"",
            "apiServer.internalUser (line 10): \"a\\r\\nb\" is not the name of a user in plain ASCII without white space",
        ),
        (
            "probeInterval: 9ms",
            "apiServer.probeInterval (line 10): must be at least 10ms",
        ),
        (
            "discoveryInterval: 0s",
            "apiServer.discoveryInterval (line 10): must be at least 100ms",
        ),
    ] {
        let text = minimal_with("apiServer:", &format!("apiServer:\n  {setting}"));
        assert_eq!(problems(&text), [expected], "{setting}");
    }
}

#[test]
fn wrong_peer_and_etcd_settings() {
    for (section, setting, expected) in [
        (
            "peer:",
            "leaseTTL: 1s",
            "peer.leaseTTL (line 19): must be at least 2s",
        ),
        (
            "peer:",
            "leaseTTL: 2500ms",
            "peer.leaseTTL (line 19): must be whole seconds",
        ),
        (
            "peer:",
            "serverName: ''",
            "peer.serverName (line 19): \"\" is not a DNS name or an IP address",
        ),
        (
            "etcd:",
            "prefix: registry",
            "etcd.prefix (line 14): \"registry\" is not a key prefix such as /registry",
        ),
        (
            "etcd:",
            "prefix: /a/",
            "etcd.prefix (line 14): \"/a/\" is not a key prefix such as /registry",
        ),
        (
            "etcd:",
            "prefix: /a/../b",
            "etcd.prefix (line 14): \"/a/../b\" is not a key prefix such as /registry",
        ),
        (
            "etcd:",
            "prefix: //a",
            "etcd.prefix (line 14): \"//a\" is not a key prefix such as /registry",
        ),
        (
            "etcd:",
            "prefix: /",
            "etcd.prefix (line 14): \"/\" is not a key prefix such as /registry",
        ),
        (
            "etcd:",
            "prefix: /a b",
            "etcd.prefix (line 14): \"/a b\" is not a key prefix such as /registry",
        ),
        (
            "etcd:",
            "prefix: /kube-interop-proxy/registry",
            "etcd.prefix (line 14): \"/kube-interop-proxy/registry\" is where this program keeps its own keys",
        ),
        (
            "etcd:",
            "otherResources: [Events]",
            "etcd.otherResources[0] (line 14): \"Events\" is not a resource such as events or events.events.k8s.io",
        ),
    ] {
        let text = minimal_with(
            &format!("\n{section}"),
            &format!("\n{section}\n  {setting}"),
        );
        assert_eq!(problems(&text), [expected], "{setting}");
    }
}
