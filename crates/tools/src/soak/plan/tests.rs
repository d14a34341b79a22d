use super::*;
use crate::table::Sort;

const STEPS: usize = 2000;

fn steps(seed: u64) -> Vec<Step> {
    Plan::new(seed, &[], [20; NODES]).take(STEPS).collect()
}

#[test]
fn a_seed_repeats_the_plan_and_another_one_does_not() {
    assert_eq!(steps(7), steps(7));
    assert_ne!(steps(7), steps(8));
}

#[test]
fn every_kind_of_fault_comes_in_every_round() {
    let kinds: Vec<_> = steps(1)
        .into_iter()
        .flat_map(|step| step.faults)
        .map(|fault| fault.kind)
        .collect();
    // What may not come beside its neighbour is put off, into the next round at most.
    for round in kinds.chunks(2 * all_kinds().len()).take(10) {
        assert_eq!(
            BTreeSet::from_iter(round),
            BTreeSet::from_iter(&all_kinds())
        );
    }
}

#[test]
fn two_at_a_time_differ_in_node_and_kind_and_one_of_them_is_not_etcd() {
    let steps = steps(2);
    let pairs: Vec<_> = steps.iter().filter(|step| step.faults.len() > 1).collect();
    assert!(pairs.len() > STEPS / 10);
    for step in pairs {
        let [one, other] = &step.faults[..] else {
            panic!("three at a time");
        };
        assert_ne!(one.node, other.node);
        assert_ne!(one.kind, other.kind);
        let excuses = [one, other].map(|fault| fault.kind.excuses_requests());
        assert_eq!(excuses[0], excuses[1]);
        assert!(!(touches_etcd(one.kind) && touches_etcd(other.kind)));
    }
}

#[test]
fn each_group_is_always_switched_on_somewhere_and_all_are_switched_off_sometimes() {
    let mut now = at_first();
    let mut seen = BTreeSet::new();
    for fault in steps(3).into_iter().flat_map(|step| step.faults) {
        if fault.kind == Kind::Switched {
            now[fault.node] = fault.without.clone();
            seen.extend(fault.without.into_iter().map(|group| (fault.node, group)));
        }
        for group in GROUPS {
            assert!(now.iter().any(|without| !without.contains(&group)));
        }
    }
    assert_eq!(seen.len(), NODES * GROUPS.len());
}

#[test]
fn one_proxy_is_left_running_and_may_have_all_other_faults() {
    let of_it = |fault: &Fault| fault.node == KEPT;
    let faults: Vec<_> = steps(4).into_iter().flat_map(|step| step.faults).collect();
    let seen: BTreeSet<_> = faults
        .iter()
        .filter(|it| of_it(it))
        .map(|it| it.kind)
        .collect();
    let (ending, others): (BTreeSet<_>, BTreeSet<_>) =
        all_kinds().into_iter().partition(|kind| kind.ends_proxy());
    assert_eq!(seen, others);
    let elsewhere = faults.iter().filter(|it| !of_it(it)).map(|it| it.kind);
    assert!(ending.is_subset(&elsewhere.collect()));
}

#[test]
fn apiservers_are_upgraded_and_set_back_from_what_they_are() {
    let mut now = [20, 24, 20];
    let plan = Plan::new(5, &[20, 24, 36], now).take(STEPS);
    let mut times = 0;
    for fault in plan.flat_map(|step| step.faults) {
        if let Kind::Upgraded([from, to]) = fault.kind {
            assert!(from == now[fault.node] && to != from && to > 0);
            now[fault.node] = to;
            times += 1;
        }
    }
    assert!(times > STEPS / 50, "{times}");
}

#[test]
fn a_clock_a_delay_and_a_certificate_are_not_noticed() {
    let all = [Sort::Request, Sort::Watch, Sort::Stream];
    assert_eq!(Kind::Killed(Part::Proxy).explains(), all);
    assert_eq!(Kind::Rotated(Files::ProxyClient).explains(), all);
    for kind in [
        Kind::Stepped(90),
        Kind::Delayed(Link::Peers),
        Kind::Rotated(Files::Serving),
    ] {
        assert!(kind.explains().is_empty());
    }
}

#[test]
fn all_apiservers_go_from_version_to_version_and_back() {
    let steps = upgrades(&[20, 24, 36]);
    let kinds: Vec<_> = steps.iter().map(|step| step.faults[0].kind).collect();
    assert_eq!(kinds.len(), 4 * NODES);
    for (round, versions) in [[20, 24], [24, 36], [36, 24], [24, 20]]
        .into_iter()
        .enumerate()
    {
        let kind = Kind::Upgraded(versions);
        assert_eq!(kinds[round * NODES..][..NODES], [kind; NODES]);
        assert_eq!(kind.explains().contains(&Sort::Watch), round >= 2);
        assert!(!kind.explains().contains(&Sort::Request));
    }
}
