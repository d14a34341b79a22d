use super::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn request(client: &str, from: u64, until: u64, verdict: Verdict) -> Request {
    Request {
        client: client.to_owned(),
        from: seconds(from),
        until: seconds(until),
        attempts: 1,
        verdict,
    }
}

fn seen() -> Seen {
    let failed = || Verdict::Failed("broken off: reset".to_owned());
    Seen {
        requests: vec![
            request("a", 1, 2, Verdict::Fine),
            request("b", 1, 2, Verdict::Fine),
            request("a", 60, 61, failed()),
            request("a", 63, 64, Verdict::Fine),
            request("b", 76, 77, Verdict::Violation("404".to_owned())),
            request("b", 90, 91, Verdict::Fine),
        ],
        windows: vec![Window {
            kind: "proxy: SIGKILL".to_owned(),
            from: seconds(60),
            until: seconds(66),
        }],
        relists: vec![seconds(62), seconds(99)],
        ended_streams: vec![seconds(76), seconds(77)],
    }
}

#[test]
fn a_fault_has_what_clients_saw_during_it_and_ten_seconds_after() {
    let table = seen().table();
    let row = &table.0["proxy: SIGKILL"];
    let expected = Row {
        times: 1,
        requests: 3,
        repeated: 0,
        failed: 1,
        violations: 1,
        relists: 1,
        ended_streams: 1,
        gap: seconds(89),
        reasons: BTreeMap::from([("broken off: reset".to_owned(), 1)]),
    };
    assert_eq!(*row, expected);
    assert_eq!(table.0["(nothing)"].requests, 3);
    let text = table.to_string();
    assert!(text.contains("1 x broken off: reset"), "{text}");
}

#[test]
fn what_is_disturbed() {
    let seen = seen();
    for (at, disturbed) in [(59, false), (60, true), (76, true), (77, false)] {
        assert_eq!(seen.is_disturbed(seconds(at)), disturbed, "{at}");
    }
}
