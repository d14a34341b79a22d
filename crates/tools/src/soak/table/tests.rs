use super::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn request(from: u64, until: u64, verdict: Verdict) -> Request {
    Request {
        client: READER.to_owned(),
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
            request(1, 2, Verdict::Fine),
            request(1, 2, Verdict::Fine),
            request(60, 61, failed()),
            request(63, 64, Verdict::Fine),
            request(76, 77, Verdict::Violation("404".to_owned())),
            request(90, 91, Verdict::Fine),
        ],
        windows: vec![Window {
            kind: "proxy: SIGKILL".to_owned(),
            explains: &[Sort::Request, Sort::Stream],
            holds_reads: false,
            from: seconds(60),
            until: seconds(66),
        }],
        relists: vec![seconds(62), seconds(99)],
        ended_watches: Vec::new(),
        ended_streams: vec![seconds(76), seconds(77)],
        troubles: [(50, 60), (76, 80), (77, 90), (58, 59)]
            .map(|(from, until)| Trouble {
                from: seconds(from),
                until: seconds(until),
                what: "503".to_owned(),
                sort: if from == 76 {
                    Sort::Stream
                } else {
                    Sort::Request
                },
            })
            .to_vec(),
        waits: [(1, 5), (60, 63), (62, 66), (77, 80)]
            .map(|(from, until)| Wait {
                from: seconds(from),
                until: seconds(until),
                what: "200".to_owned(),
            })
            .to_vec(),
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
        longest: seconds(1),
        longest_wait: seconds(4),
        reasons: BTreeMap::from([("broken off: reset".to_owned(), 1)]),
    };
    assert_eq!(*row, expected);
    assert_eq!(table.0["(nothing)"].requests, 3);
    let text = table.to_string();
    assert!(text.contains("1 x broken off: reset"), "{text}");
}

#[test]
fn trouble_while_nothing_is_broken_is_found() {
    assert_eq!(
        seen().trouble_for_nothing(),
        [
            "while nothing was broken, 77.0s to 90.0s: 503",
            "while nothing was broken, 58.0s to 59.0s: 503"
        ]
    );
}

#[test]
fn a_read_waits_three_seconds_for_each_fault_unless_nobody_can_shorten_it() {
    let mut seen = seen();
    let first = "a read that waited, 1.0s to 5.0s: 200";
    let second = "a read that waited, 62.0s to 66.0s: 200";
    assert_eq!(seen.waited_for_nothing(), [first, second]);
    seen.windows.push(seen.windows[0].clone());
    assert_eq!(seen.waited_for_nothing(), [first]);
    seen.windows.truncate(1);
    seen.windows[0].holds_reads = true;
    assert_eq!(seen.waited_for_nothing(), [first]);
}

#[test]
fn what_nobody_may_notice_explains_no_trouble() {
    let mut seen = seen();
    seen.windows[0].explains = &[];
    assert_eq!(seen.trouble_for_nothing().len(), 4);
    seen.windows[0].explains = &[Sort::Stream];
    assert_eq!(seen.trouble_for_nothing().len(), 3);
}

#[test]
fn the_whole_run_is_counted_once() {
    let of_client = |client: &str| Request {
        client: client.to_owned(),
        ..request(1, 2, Verdict::Misled(String::new()))
    };
    let verdicts = [
        Verdict::Fine,
        Verdict::Early,
        Verdict::NotFound("404".to_owned()),
        Verdict::Dropped("a field".to_owned()),
        Verdict::Failed("503".to_owned()),
        Verdict::Violation("401".to_owned()),
    ];
    let seen = Seen {
        requests: (verdicts.map(|verdict| request(1, 2, verdict)).into_iter())
            .chain([OWNER, OWNER, TENANT, KUBECTL].map(of_client))
            .collect(),
        relists: vec![seconds(1)],
        ended_watches: vec![seconds(1); 2],
        ended_streams: vec![seconds(1); 3],
        ..Seen::default()
    };
    let totals = seen.totals(4).map(|(_, count)| count);
    let expected = [
        "10", "1 of 6", "–", "2 of 2", "1 of 1", "1 of 1", "1", "2", "1.0 s", "1", "2", "3", "4",
    ];
    assert_eq!(totals, expected);
}
