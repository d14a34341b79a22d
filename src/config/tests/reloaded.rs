//! Settings that are read again, and what differs between two configurations.

use super::super::settings::{self, Settings, is_reloaded};
use super::survey::keys;
use super::*;

fn read(text: &str) -> LoadedConfig {
    parse_at(Path::new("/etc/proxy.yaml"), text.to_owned()).unwrap()
}

fn changes(before: &str, now: &str) -> Vec<String> {
    let (before, now) = (read(before).values, read(now).values);
    let changes = settings::changes(&before, &now).into_iter();
    changes.map(|(_, change)| change).collect()
}

/// Another value than the default for each key that is read again.
const OTHERS: &[(&str, &str)] = &[
    ("ifReady.enabled", "false"),
    ("ifReady.mode", "Annotate"),
    ("ifReady.enforce", "Always"),
    ("ifReady.retryAfterSeconds", "7"),
    ("ifReady.retryAfterJitterSeconds", "3"),
    ("rerouting.enabled", "false"),
    ("rerouting.unsynced", "ServeLocal"),
    ("rerouting.ignoredAddresses", "[10.0.0.9]"),
    ("versionAwareness.enabled", "false"),
    ("versionAwareness.default", "Oldest"),
    ("versionAwareness.userAgents", "false"),
    ("discovery.mode", "Local"),
    ("watch.resumeRouting", "false"),
    ("watch.bookmarkOnShutdown", "false"),
    ("watch.handOver", "false"),
    ("watch.handOverTimeout", "7s"),
    ("logging.filter", "debug"),
];

#[test]
fn the_keys_that_are_read_again_change_the_settings_and_others_do_not() {
    let reloaded: Vec<_> = keys().into_iter().map(|key| key.path).collect();
    let reloaded: Vec<_> = reloaded.iter().filter(|key| is_reloaded(key)).collect();
    let others: Vec<_> = OTHERS.iter().map(|(key, _)| *key).collect();
    assert_eq!(reloaded, others);
    let config = read(MINIMAL).config;
    for (key, value) in OTHERS {
        let (section, name) = key.split_once('.').unwrap();
        let text = minimal_and(&format!("{section}:\n  {name}: {value}"));
        let other = read(&text).config;
        let differs = Settings::of(&other) != Settings::of(&config);
        let not_of_requests = ["logging.filter", "rerouting.ignoredAddresses"];
        assert_eq!(differs, !not_of_requests.contains(key), "{key}");
        let change = changes(MINIMAL, &text);
        assert!(
            change.len() == 1 && change[0].starts_with(key),
            "{change:?}"
        );
    }
    let text = minimal_and("rerouting:\n  bareServers: Ignore\nversionAwareness:\n  header: X-V");
    assert_eq!(Settings::of(&read(&text).config), Settings::of(&config));
}

#[test]
fn every_key_that_has_a_value_is_known_with_it() {
    // The only key without a default.
    let address = "secureBindAddress:\n";
    let text = EXAMPLE.replace(address, "secureBindAddress: 10.0.0.11:6451\n");
    let values = read(&text).values;
    let known: Vec<_> = values.into_keys().collect();
    for key in keys() {
        assert!(known.contains(&key.path), "{}", key.path);
    }
}

#[test]
fn a_change_says_what_was_and_what_is() {
    let other = MINIMAL.replace("caFile: ca.crt\n", "caFile: new.crt\n");
    let other = format!("{other}ifReady:\n  mode: Annotate\nshutdown:\n  drain: 5s\n");
    assert_eq!(
        changes(MINIMAL, &other),
        [
            "apiServer.caFile: \"/etc/ca.crt\" -> \"/etc/new.crt\"",
            "ifReady.mode: Retry -> Annotate",
            "peer.caFile: \"/etc/ca.crt\" -> \"/etc/new.crt\"",
            "shutdown.drain: 60s -> 5s",
        ]
    );
    let plain = "endpoints: ['http://127.0.0.1:2379']";
    let plain = minimal_with("endpoints: [https://127.0.0.1:2379]", plain);
    let files = "  caFile: etcd-ca.crt\n  certFile: etcd.crt\n  keyFile: etcd.key\n";
    let change = changes(MINIMAL, &plain.replace(files, ""));
    assert_eq!(change[0], "etcd.caFile: \"/etc/etcd-ca.crt\" -> unset");
}

#[test]
fn another_spelling_of_a_value_is_no_change() {
    let spelled = "shutdown: {drain: 1m}\nrerouting: {absentServerGrace: 60m}\nifReady: ~";
    let nothing: [String; 0] = [];
    assert_eq!(changes(MINIMAL, &minimal_and(spelled)), nothing);
}

#[test]
fn a_misspelled_log_filter_is_refused_and_does_not_silence_the_log() {
    for filter in [
        "inof",
        "info,access",
        "info,access=on",
        "''",
        "info,",
        "=info",
        "'[span]=info'",
    ] {
        let text = minimal_and(&format!("logging:\n  filter: {filter}"));
        let rule = "is not levels (off, error, warn, info, debug, trace) and target=level";
        let expected = format!(
            "logging.filter (line 22): \"{}\" {rule}",
            filter.trim_matches('\'')
        );
        assert_eq!(problems(&text), [expected], "{filter}");
    }
    for filter in ["off", "warn,access=info,kube_interop_proxy::relay=trace"] {
        let text = minimal_and(&format!("logging:\n  filter: '{filter}'"));
        assert_eq!(parse(&text).unwrap().logging.filter, filter);
        tracing_subscriber::EnvFilter::try_new(filter).unwrap();
    }
}
