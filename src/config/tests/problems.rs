//! What is said about a wrong file, and where.

use super::*;

#[test]
fn wrong_keys_are_named_with_their_line() {
    for (name, text, expected) in [
        (
            "unknown key",
            minimal_with("  certFile: s", "  colour: blue\n  certFile: s"),
            "serving.colour (line 5): unknown key; expected one of bindAddress, additionalBindAddresses, certFile, keyFile, \
             clientCAFile, requestHeaderClientCAFile, requestHeaderAllowedNames, requestHeaderUsernameHeaders, \
             requestHeaderUidHeaders, requestHeaderGroupHeaders, requestHeaderExtraHeaderPrefixes, goawayChance, \
             sniCertificates, minTLSVersion, cipherSuites",
        ),
        (
            "unknown section",
            minimal_and("admins: {}"),
            "admins (line 21): unknown key; expected one of apiVersion, kind, serving, apiServer, etcd, identity, peer, ifReady, \
             rerouting, versionAwareness, discovery, watch, shutdown, admin, tracing, logging",
        ),
        (
            "another case",
            minimal_and("shutdown: {Delay: 1s}"),
            "shutdown.Delay (line 21): unknown key; expected one of delay, drain",
        ),
        (
            "duplicate key",
            minimal_with("kind:", "kind: x\nkind:"),
            "kind (line 3): is there twice; remove one",
        ),
        (
            "duplicate section",
            minimal_and("etcd: {}"),
            "etcd (line 21): is there twice; remove one",
        ),
        (
            "missing required key",
            minimal_with("  caFile: etcd-ca.crt\n", ""),
            "etcd.caFile (line 13): required with https endpoints, but missing",
        ),
        (
            "merge key",
            minimal_and("shutdown: &s {delay: 1s}\nadmin:\n  <<: *s"),
            "admin.<< (line 23): unknown key; expected one of bindAddress, secureBindAddress",
        ),
        (
            "wrong version",
            minimal_with("v1alpha1", "v2"),
            "apiVersion (line 1): \"kube-interop-proxy/v2\" is not \
             kube-interop-proxy/v1alpha1",
        ),
        (
            "missing version",
            minimal_with("apiVersion: kube-interop-proxy/v1alpha1\n", ""),
            "apiVersion: required, but missing",
        ),
        (
            "section of another type",
            minimal_and("admin: [1]"),
            "admin (line 21): expected a mapping, found a list",
        ),
        (
            "a number as a key",
            minimal_and("admin: {0x10: 1}"),
            "admin.16 (line 21): unknown key; expected one of bindAddress, secureBindAddress",
        ),
        (
            "a mapping as a key",
            minimal_and("admin: {{a: b}: 1}"),
            "admin.(a mapping) (line 21): unknown key; expected one of bindAddress, secureBindAddress",
        ),
        (
            "control characters in a key",
            minimal_and("admin: {\"a\\nb\\e[1m\": 1}"),
            "admin.a\\nb\\u{1b}[1m (line 21): unknown key; expected one of bindAddress, secureBindAddress",
        ),
    ] {
        let mut found = problems(&text);
        if name == "duplicate key" {
            found.retain(|problem| problem.contains("twice"));
        }
        assert_eq!(found, [expected], "{name}");
    }
}

#[test]
fn every_problem_is_reported_at_once() {
    let text = minimal_with(
        "10.0.0.11:6443\n  certFile: serving.crt",
        "0.0.0.0:6443\n  certFile: [1]\n  extra: 1",
    )
    .replace(
        "apiServer:\n",
        "apiServer:\n  serverName: \"\"\n  probeInterval: soon\n",
    )
    .replace("  advertiseAddress: 10.0.0.11:6443\n", "")
        + "discovery:\n  mode: newest\nshutdown:\n  delay: -1s\n  drain: 5\nkind: again\n";
    assert_eq!(
        problems(&text),
        [
            "serving.bindAddress (line 4): 0.0.0.0 stands for every address; name one address of this host",
            "serving.certFile (line 5): expected the path of a file, found a list",
            "serving.extra (line 6): unknown key; expected one of bindAddress, additionalBindAddresses, certFile, keyFile, \
             clientCAFile, requestHeaderClientCAFile, requestHeaderAllowedNames, requestHeaderUsernameHeaders, \
             requestHeaderUidHeaders, requestHeaderGroupHeaders, requestHeaderExtraHeaderPrefixes, goawayChance, \
             sniCertificates, minTLSVersion, cipherSuites",
            "apiServer.serverName (line 11): \"\" is not a DNS name or an IP address",
            "apiServer.probeInterval (line 12): \"soon\" is not a duration such as 500ms or 1m30s",
            "peer.advertiseAddress (line 21): required, but missing",
            "discovery.mode (line 24): \"newest\" is not one of Merged, Newest, Local",
            "shutdown.delay (line 26): \"-1s\" is not a duration such as 500ms or 1m30s",
            "shutdown.drain (line 27): expected a duration such as 500ms or 1m30s, found a number",
            "kind (line 28): is there twice; remove one",
        ]
    );
}

#[test]
fn a_mode_that_there_is_not() {
    assert_eq!(
        problems(&minimal_and("discovery: {mode: Mine}")),
        ["discovery.mode (line 21): \"Mine\" is not one of Merged, Newest, Local"]
    );
}

#[test]
fn what_is_no_configuration_at_all() {
    for (text, expected) in [
        (
            "",
            "the file is empty; config.example.yaml is a complete one to start from",
        ),
        (
            "# nothing\n---\n",
            "the file is empty; config.example.yaml is a complete one to start from",
        ),
        ("serving\n", "expected a mapping, found text"),
        ("- a\n- b\n", "expected a mapping, found a list"),
        ("!secret {a: b}", "expected a mapping, found a tagged value"),
    ] {
        assert_eq!(problems(text), [expected], "{text:?}");
    }
}

#[test]
fn broken_yaml_is_one_problem_with_its_line() {
    for (text, line, start) in [
        ("serving:\n\tbindAddress: x\n", 2, "not valid YAML: "),
        ("kind: [a, b\nserving: {}\n", 2, "not valid YAML: "),
        ("kind: 'open\n", 2, "not valid YAML: "),
        ("a: *nobody\n", 1, "not valid YAML: unknown anchor"),
        ("a: b\n  c: d\n", 2, "not valid YAML: "),
    ] {
        let problems = parse(text).unwrap_err();
        assert_eq!(problems.len(), 1, "{text:?}");
        assert_eq!(problems[0].line, Some(line), "{text:?}: {}", problems[0]);
        assert!(
            problems[0].message.starts_with(start),
            "{text:?}: {}",
            problems[0]
        );
    }
    let two = problems("a: b\n---\nc: d\n");
    assert!(two[0].contains("more than one document"), "{two:?}");
}
