//! Rules across several values.

use super::*;

#[test]
fn identity_headers_have_one_meaning_each() {
    for (setting, expected) in [
        (
            "requestHeaderUsernameHeaders: []",
            "serving.requestHeaderUsernameHeaders (line 4): must not be empty",
        ),
        (
            "requestHeaderGroupHeaders: []",
            "serving.requestHeaderGroupHeaders (line 4): must not be empty",
        ),
        (
            "requestHeaderUidHeaders: [x-remote-USER]",
            "serving.requestHeaderUidHeaders (line 4): x-remote-user is the same header as in \
          serving.requestHeaderUsernameHeaders",
        ),
        (
            "requestHeaderGroupHeaders: [X-Groups, x-groups]",
            "serving.requestHeaderGroupHeaders[1] (line 4): is there twice; remove one",
        ),
        (
            "requestHeaderGroupHeaders: [Connection]",
            "serving.requestHeaderGroupHeaders[0] (line 4): \"Connection\" already has a meaning; choose another header",
        ),
        (
            "requestHeaderGroupHeaders: [X_Kubernetes-Peer-Proxied]",
            "serving.requestHeaderGroupHeaders[0] (line 4): \"X_Kubernetes-Peer-Proxied\" already has a meaning; choose another header",
        ),
        (
            "requestHeaderGroupHeaders: [Impersonate-Group]",
            "serving.requestHeaderGroupHeaders[0] (line 4): \"Impersonate-Group\" already has a meaning; choose another header",
        ),
        (
            "requestHeaderExtraHeaderPrefixes: ['']",
            "serving.requestHeaderExtraHeaderPrefixes[0] (line 4): \"\" is not the start of a header's name",
        ),
        (
            "requestHeaderExtraHeaderPrefixes: [X-]",
            "serving.requestHeaderExtraHeaderPrefixes[0] (line 4): \"X-\" would take in headers with a meaning; make it longer",
        ),
        (
            "requestHeaderExtraHeaderPrefixes: [impersonate-extra-]",
            "serving.requestHeaderExtraHeaderPrefixes[0] (line 4): \"impersonate-extra-\" would take in headers with a meaning; make it longer",
        ),
        (
            "requestHeaderExtraHeaderPrefixes: [X-Remote-Us]",
            "serving.requestHeaderExtraHeaderPrefixes (line 4): x-remote-us of \
          serving.requestHeaderExtraHeaderPrefixes takes in x-remote-user of serving.requestHeaderUsernameHeaders",
        ),
        (
            "requestHeaderAllowedNames: [' a']",
            "serving.requestHeaderAllowedNames[0] (line 4): \" a\" is not a common name without control characters, and without \
             white space at its ends",
        ),
    ] {
        let text = minimal_with("serving:", &format!("serving:\n  {setting}"));
        assert_eq!(problems(&text), [expected], "{setting}");
    }
}

#[test]
fn etcd_on_loopback_may_do_without_tls() {
    let plain = MINIMAL.replace(
        "[https://127.0.0.1:2379]",
        "['http://127.0.0.1:2379', 'http://[::1]:1', 'http://localhost:2']",
    );
    assert_eq!(
        problems(&plain),
        [
            "etcd.caFile (line 15): has no use with http endpoints; remove it",
            "etcd.certFile (line 16): has no use with http endpoints; remove it",
            "etcd.keyFile (line 17): has no use with http endpoints; remove it",
        ]
    );
    let plain = plain.replace(
        "  caFile: etcd-ca.crt\n  certFile: etcd.crt\n  keyFile: etcd.key\n",
        "",
    );
    let etcd = parse(&plain).unwrap().etcd;
    assert_eq!(etcd.endpoints.len(), 3);
    assert_eq!((etcd.ca_file, etcd.client), (None, None));
}

#[test]
fn port_zero_is_any_port_of_the_same_address() {
    let text = MINIMAL.replace("10.0.0.11:6443", "127.0.0.1:0");
    let config = parse(&format!("{text}admin: {{bindAddress: '127.0.0.1:0'}}\n")).unwrap();
    assert_eq!(config.serving.bind_address.port(), 0);
}

#[test]
fn a_lease_that_is_kept_needs_a_namespace() {
    let text = minimal_and("identity:\n  publishLease: Always\n  leaseNamespaces: []");
    assert_eq!(
        problems(&text),
        [
            "identity.leaseNamespaces (line 23): must not be empty: the first is where the Lease is kept",
        ]
    );
    assert!(
        parse(&minimal_and(
            "identity: {publishLease: Never, leaseNamespaces: []}"
        ))
        .is_ok()
    );
}

#[test]
fn further_addresses_must_be_others() {
    for (items, expected) in [
        (
            "['10.0.0.100:6443', '0.0.0.0:6443']",
            "serving.additionalBindAddresses[1] (line 4): 0.0.0.0 stands for every address; name one address of this host",
        ),
        (
            "['[::]:6443']",
            "serving.additionalBindAddresses[0] (line 4): :: stands for every address; name one address of this host",
        ),
        (
            "['10.0.0.100:0']",
            "serving.additionalBindAddresses[0] (line 4): needs a port",
        ),
        (
            "['10.0.0.100:6443', '10.0.0.100:6443']",
            "serving.additionalBindAddresses[1] (line 4): is there twice; remove one",
        ),
        (
            "['10.0.0.100:6443', '[::ffff:10.0.0.100]:6443']",
            "serving.additionalBindAddresses[1] (line 4): is there twice; remove one",
        ),
        (
            "['10.0.0.11:6443']",
            "serving.additionalBindAddresses[0] (line 4): is the same as serving.bindAddress; each needs an address of its own",
        ),
        (
            "['127.0.0.1:6443']",
            "serving.additionalBindAddresses[0] (line 4): is the same as apiServer.address; each needs an address of its own",
        ),
        (
            "['127.0.0.1:6450']",
            "serving.additionalBindAddresses[0] (line 4): is the same as admin.bindAddress; each needs an address of its own",
        ),
        (
            "10.0.0.100:6443",
            "serving.additionalBindAddresses (line 4): expected a list, found text",
        ),
    ] {
        let setting = format!("serving:\n  additionalBindAddresses: {items}");
        let text = minimal_with("serving:", &setting);
        assert_eq!(problems(&text), [expected], "{items}");
    }
    let text = minimal_with(
        "serving:",
        "serving:\n  additionalBindAddresses: ['10.0.0.100:6443', '[2001:db8::11]:6443', '10.0.0.11:7443']",
    );
    let addresses = parse(&text).unwrap().serving.additional_bind_addresses;
    assert_eq!(addresses.len(), 3);
    assert!(addresses[1].is_ipv6());
}
