//! Tells what an apiserver serves itself from what CRDs and APIServices add to its discovery. Pure; [`super::reader`] asks.
//!
//! API users write CRDs and APIServices, and may name them like built-in resources: the name alone proves nothing. Where a
//! server lists what a CRD serves, the server is asked for it in protobuf, which kube-apiserver has for its own resources
//! only. An APIService takes nothing away from what a process was seen to serve itself, and may be known later than it is
//! listed: only what two reads lack is gone.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use http::StatusCode;

use crate::kube::gvr::{Custom, Gvr, GvrRef, ServedSet, may_be_built_in};

/// Most resources that a server is asked about after one read: whoever may create CRDs must not delay reads.
const MOST_QUESTIONS: usize = 512;
/// Most bytes that resources in doubt take in our record: whoever may create CRDs must not make it larger than etcd
/// allows.
const MOST_DOUBTED: usize = 512 << 10;

/// Whether a server serves a resource of a CRD's name itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    BuiltIn,
    Custom,
    /// It could not say. That counts as built-in, because a 503 does no harm, and a 404 does.
    Doubt,
}

impl Answer {
    /// What the status of an answer to [`path`] means.
    pub(super) fn of(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_ACCEPTABLE => Self::Custom,
            // A resource may be listed that is gone already, or that nobody can list.
            StatusCode::NOT_FOUND
            | StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::TOO_MANY_REQUESTS => Self::Doubt,
            status if status.is_server_error() => Self::Doubt,
            _ => Self::BuiltIn,
        }
    }
}

/// Where a list of the resource is asked for, in protobuf. No object has this name, so nothing is listed.
pub(super) fn path(of: &Gvr) -> String {
    let (group, version, resource) = (&of.group, &of.version, &of.resource);
    format!("/apis/{group}/{version}/{resource}?fieldSelector=metadata.name%3D.&resourceVersion=0")
}

/// What an apiserver said of a resource.
#[derive(Debug)]
struct Answered {
    /// etcd's revision of the CRD that the question was about.
    revision: i64,
    answer: Answer,
    /// The process may have been replaced since.
    outdated: bool,
}

impl Answered {
    fn is_certain(&self, revision: i64) -> bool {
        self.revision == revision && self.answer != Answer::Doubt
    }
}

/// How a resource that was listed stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Own,
    /// It counts as own. It is in doubt, and was never seen to be its own.
    Doubted,
    /// The last read listed it first, under a name that no CRD and no aggregated API had.
    Newcomer,
}

/// What one process of an apiserver serves itself, as of the last read of its discovery.
#[derive(Debug, Default)]
pub(super) struct OwnResources {
    /// And whether the last read lacked it.
    known: BTreeMap<Gvr, (Standing, bool)>,
    /// This process was read.
    is_read: bool,
    answers: HashMap<Gvr, Answered>,
    /// There were more names than it is asked about after one read.
    has_unasked: bool,
}

impl OwnResources {
    /// The process may have been replaced. What an aggregated API hides of what the former process served may be its own
    /// too.
    pub(super) fn restarted(&mut self) {
        let known = std::mem::take(&mut self.known).into_iter();
        let own = known.filter(|(_, (standing, _))| *standing != Standing::Newcomer);
        *self = Self {
            known: own.map(|(gvr, (of, _))| (gvr, (of, true))).collect(),
            ..Self::default()
        };
    }

    /// `former`: what the record says that the proxy before this one has written. What an aggregated API hides of it may
    /// still be the server's own.
    pub(super) fn remember(&mut self, former: &ServedSet, custom: &Custom) {
        let is_hidden = |gvr: &&Gvr| custom.is_aggregated(&gvr.group, &gvr.version);
        let hidden = former.iter().filter(is_hidden).cloned();
        self.known
            .extend(hidden.map(|gvr| (gvr, (Standing::Own, false))));
    }

    /// Nothing proves that it is still the same process.
    pub(super) fn ask_again(&mut self) {
        for known in self.answers.values_mut() {
            known.outdated = true;
        }
    }

    /// The resources that the server is to be asked about, with the revisions of their CRDs. Those that it was never asked
    /// about come first, and of these the shortest names: whoever may create CRDs can make many long ones.
    pub(super) fn questions(&self, listed: &ServedSet, custom: &Custom) -> Vec<(Gvr, i64)> {
        let names = listed.iter().filter(|gvr| {
            gvr.subresource.is_empty()
                && may_be_built_in(&gvr.group)
                && !custom.is_aggregated(&gvr.group, &gvr.version)
        });
        let question = |gvr: &Gvr| {
            let revision = custom.definition(gvr.borrow())?.revision;
            let known = self.answers.get(gvr);
            let known = known.is_some_and(|known| known.is_certain(revision) && !known.outdated);
            (!known).then(|| (gvr.clone(), revision))
        };
        let mut questions: Vec<_> = names.filter_map(question).collect();
        questions.sort_by_key(|(gvr, _)| (self.answers.contains_key(gvr), packed_len(gvr)));
        questions.truncate(MOST_QUESTIONS);
        questions
    }

    /// Whether the server could not say of a resource whether it serves it itself, or was not asked yet.
    pub(super) fn is_in_doubt(&self) -> bool {
        let mut answers = self.answers.values();
        self.has_unasked || answers.any(|known| known.answer == Answer::Doubt)
    }

    /// Notes an answer. A doubt replaces no certain answer.
    pub(super) fn answered(&mut self, (gvr, revision): (Gvr, i64), answer: Answer) {
        let known = self.answers.get(&gvr);
        if answer == Answer::Doubt && known.is_some_and(|known| known.is_certain(revision)) {
            return;
        }
        let answered = Answered {
            revision,
            answer,
            outdated: false,
        };
        self.answers.insert(gvr, answered);
    }

    /// A read of discovery: what of `listed` is the server's own.
    pub(super) fn update(&mut self, listed: ServedSet, custom: &Custom) -> ServedSet {
        let is_aggregated = |gvr: &Gvr| custom.is_aggregated(&gvr.group, &gvr.version);
        // The aggregated API may have answered, before it was known.
        self.answers
            .retain(|gvr, _| custom.definition(gvr.borrow()).is_some() && !is_aggregated(gvr));
        let is_first = !std::mem::replace(&mut self.is_read, true);
        let mut before = std::mem::take(&mut self.known);
        let mut doubted = Vec::new();
        self.has_unasked = false;
        for gvr in listed.into_iter().filter(|gvr| !is_aggregated(gvr)) {
            let before = before.remove(&gvr).map(|(standing, _)| standing);
            let standing = match custom.definition(gvr.borrow()) {
                Some(_) => match self.origin(gvr.borrow()) {
                    Answer::BuiltIn => Standing::Own,
                    Answer::Custom => continue,
                    Answer::Doubt if before == Some(Standing::Own) => Standing::Own,
                    Answer::Doubt => Standing::Doubted,
                },
                // What a process begins to serve is custom, and its CRD may not be known yet.
                None if is_first || before.is_some() => Standing::Own,
                None => Standing::Newcomer,
            };
            match standing {
                Standing::Doubted => doubted.push((gvr, false)),
                certain => drop(self.known.insert(gvr, (certain, false))),
            }
        }
        // An aggregated API, which may not be known yet, may hide them in discovery.
        for (gvr, (standing, was_missing)) in before {
            let is_missing = !is_aggregated(&gvr);
            match standing {
                _ if is_missing && was_missing => {}
                Standing::Own => drop(self.known.insert(gvr, (standing, is_missing))),
                Standing::Doubted => doubted.push((gvr, is_missing)),
                Standing::Newcomer => {}
            }
        }
        self.admit(doubted);
        let own = self.known.iter();
        let own = own.filter(|(_, (standing, _))| *standing != Standing::Newcomer);
        own.map(|(gvr, _)| gvr.clone()).collect()
    }

    /// Counts what is in doubt as own, up to [`MOST_DOUBTED`], the shortest names first: Kubernetes' own are short.
    fn admit(&mut self, mut doubted: Vec<(Gvr, bool)>) {
        doubted.sort_by_key(|(gvr, _)| packed_len(gvr));
        let mut left = MOST_DOUBTED;
        for (gvr, is_missing) in doubted {
            match left.checked_sub(packed_len(&gvr)) {
                Some(rest) => left = rest,
                None => return,
            }
            self.known.insert(gvr, (Standing::Doubted, is_missing));
        }
    }

    /// What of the last [`OwnResources::update`] may be custom: the server could not say yet.
    pub(super) fn doubted(&self) -> ServedSet {
        let known = self.known.iter();
        let doubted = known.filter(|(_, (standing, _))| *standing == Standing::Doubted);
        doubted.map(|(gvr, _)| gvr.clone()).collect()
    }

    /// Whether a resource with the name of a CRD's is the server's own.
    fn origin(&mut self, gvr: GvrRef<'_>) -> Answer {
        let resource = GvrRef {
            subresource: "",
            ..gvr
        };
        match self.answers.get(&resource) {
            Some(known) => known.answer,
            None if may_be_built_in(gvr.group) => {
                self.has_unasked = true;
                Answer::Doubt
            }
            None => Answer::Custom,
        }
    }
}

/// Bytes that a resource takes in a record at most.
fn packed_len(gvr: &Gvr) -> usize {
    const PUNCTUATION: usize = "\"/\":[\"/\"],".len();
    let names = [&gvr.group, &gvr.version, &gvr.resource, &gvr.subresource];
    names.into_iter().map(String::len).sum::<usize>() + PUNCTUATION
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::gvr::{Definition, Pair, defined};

    const SLICES: &str = "discovery.k8s.io/v1beta1/endpointslices/";

    fn gvr(name: &str) -> Gvr {
        let parts: Vec<_> = name.split('/').map(str::to_owned).collect();
        let [group, version, resource, subresource] = parts.try_into().unwrap();
        Gvr {
            group,
            version,
            resource,
            subresource,
        }
    }

    fn set(names: &[&str]) -> ServedSet {
        names.iter().copied().map(gvr).collect()
    }

    fn crd(group: &str, plural: &str, version: &str, revision: i64) -> Custom {
        let definition = Definition {
            revision,
            ..defined(&[version])
        };
        Custom {
            definitions: [(Pair(group.into(), plural.into()), definition)].into(),
            ..Custom::default()
        }
    }

    fn slices(version: &str, revision: i64) -> Custom {
        crd("discovery.k8s.io", "endpointslices", version, revision)
    }

    /// Reads: asks what is to be asked, and gets `answer`. Returns what is asked, and what the server serves itself.
    fn read(
        own: &mut OwnResources,
        listed: &[&str],
        custom: &Custom,
        answer: Answer,
    ) -> (usize, ServedSet) {
        let listed = set(listed);
        let questions = own.questions(&listed, custom);
        let count = questions.len();
        for question in questions {
            own.answered(question, answer);
        }
        (count, own.update(listed, custom))
    }

    #[test]
    fn a_crd_of_another_version_or_group_takes_nothing_away() {
        for custom in [
            slices("v9", 5),
            crd("example.com", "endpointslices", "v1beta1", 5),
        ] {
            let mut own = OwnResources::default();
            let (asked, known) = read(&mut own, &[SLICES], &custom, Answer::Custom);
            assert_eq!((asked, known), (0, set(&[SLICES])));
        }
    }

    #[test]
    fn a_server_is_asked_once_whether_it_serves_what_a_crd_is_named_like() {
        let status = "discovery.k8s.io/v1beta1/endpointslices/status";
        for (answer, built_in) in [(Answer::BuiltIn, true), (Answer::Custom, false)] {
            let mut own = OwnResources::default();
            let expected = |yes| {
                if yes {
                    set(&[SLICES, status])
                } else {
                    set(&[])
                }
            };
            for (revision, questions) in [(5, 1), (5, 0), (6, 1)] {
                let custom = slices("v1beta1", revision);
                let (asked, known) = read(&mut own, &[SLICES, status], &custom, answer);
                assert_eq!(
                    (asked, known),
                    (questions, expected(built_in)),
                    "{revision}"
                );
            }
        }
    }

    #[test]
    fn what_a_process_serves_stays_its_own_whatever_is_created_and_deleted() {
        let mut own = OwnResources::default();
        let none = Custom::default();
        let aggregated = aggregated();
        let steps = [
            (&none, &[SLICES][..]),
            (&slices("v1beta1", 5), &[SLICES]),
            (&none, &[SLICES]),
            (&aggregated, &["discovery.k8s.io/v1beta1/others/"]),
            (&none, &[SLICES]),
        ];
        for (custom, listed) in steps {
            let (_, known) = read(&mut own, listed, custom, Answer::BuiltIn);
            assert_eq!(known, set(&[SLICES]), "{custom:?}");
        }
    }

    fn aggregated() -> Custom {
        Custom {
            aggregated: [Pair("discovery.k8s.io".into(), "v1beta1".into())].into(),
            ..Custom::default()
        }
    }

    #[test]
    fn only_what_two_reads_lack_is_gone() {
        let others = &["discovery.k8s.io/v1beta1/others/"];
        let none = Custom::default();
        for (custom, kept) in [(&none, false), (&aggregated(), true)] {
            let mut own = OwnResources::default();
            read(&mut own, &[SLICES], &none, Answer::Doubt);
            let (_, known) = read(&mut own, others, &none, Answer::Doubt);
            assert_eq!(known, set(&[SLICES]), "the APIService may not be known yet");
            let (_, known) = read(&mut own, others, custom, Answer::Doubt);
            assert_eq!(known.contains(&gvr(SLICES)), kept);
        }
    }

    #[test]
    fn what_an_aggregated_api_hides_is_kept_over_a_restart_and_nothing_else() {
        let pods = "/v1/pods/";
        let mut own = OwnResources::default();
        read(&mut own, &[SLICES, pods], &Custom::default(), Answer::Doubt);
        own.restarted();
        let (_, known) = read(&mut own, &[], &aggregated(), Answer::Doubt);
        assert_eq!(known, set(&[SLICES]));
    }

    #[test]
    fn what_the_proxy_before_has_written_counts_where_an_aggregated_api_hides_it() {
        let others = "discovery.k8s.io/v1/others/";
        for (custom, known) in [
            (Custom::default(), set(&[])),
            (aggregated(), set(&[SLICES])),
        ] {
            let mut own = OwnResources::default();
            own.remember(&set(&[SLICES, others]), &custom);
            own.restarted();
            for _ in 0..3 {
                assert_eq!(
                    read(&mut own, &[], &custom, Answer::BuiltIn),
                    (0, known.clone())
                );
            }
        }
    }

    #[test]
    fn an_answer_about_what_is_aggregated_now_is_forgotten() {
        let mut own = OwnResources::default();
        let custom = slices("v1beta1", 5);
        read(&mut own, &[SLICES], &custom, Answer::Custom);
        let both = Custom {
            aggregated: aggregated().aggregated,
            ..custom.clone()
        };
        read(&mut own, &[SLICES], &both, Answer::Doubt);
        let asked = read(&mut own, &[SLICES], &custom, Answer::BuiltIn);
        assert_eq!(asked, (1, set(&[SLICES])));
    }

    #[test]
    fn what_may_be_another_process_is_asked_again_and_a_doubt_changes_nothing() {
        let mut own = OwnResources::default();
        let custom = slices("v1beta1", 5);
        read(&mut own, &[SLICES], &custom, Answer::Custom);
        for (answer, asked, known) in [
            (Answer::Doubt, 1, &[][..]),
            (Answer::BuiltIn, 1, &[SLICES]),
            (Answer::Custom, 0, &[SLICES]),
        ] {
            if asked == 1 {
                own.ask_again();
            }
            let result = read(&mut own, &[SLICES], &custom, answer);
            assert_eq!(result, (asked, set(known)));
        }
    }

    #[test]
    fn a_doubt_counts_as_built_in_and_is_asked_again() {
        let mut own = OwnResources::default();
        for (answer, asked, known) in [
            (Answer::Doubt, 1, &[SLICES][..]),
            (Answer::Custom, 1, &[]),
            (Answer::Custom, 0, &[]),
        ] {
            let result = read(&mut own, &[SLICES], &slices("v1beta1", 5), answer);
            assert_eq!(result, (asked, set(known)));
            assert_eq!(own.doubted(), set(known));
        }
    }

    #[test]
    fn custom_and_aggregated_resources_of_others_are_never_asked_about() {
        let mut own = OwnResources::default();
        let widgets = ["example.com/v1/widgets/"];
        let custom = crd("example.com", "widgets", "v1", 5);
        assert_eq!(
            read(&mut own, &widgets, &custom, Answer::BuiltIn),
            (0, set(&[]))
        );
        let metrics = Custom {
            aggregated: [Pair("metrics.k8s.io".into(), "v1".into())].into(),
            ..crd("metrics.k8s.io", "pods", "v1", 5)
        };
        let listed = ["metrics.k8s.io/v1/pods/"];
        assert_eq!(
            read(&mut own, &listed, &metrics, Answer::BuiltIn),
            (0, set(&[]))
        );
    }

    #[test]
    fn what_a_process_begins_to_list_is_its_own_only_if_no_crd_explains_it_later() {
        let mut own = OwnResources::default();
        let (widgets, none) = ("example.com/v1/widgets/", Custom::default());
        let both = [SLICES, widgets];
        read(&mut own, &[SLICES], &none, Answer::Custom);
        let (_, known) = read(&mut own, &both, &none, Answer::Custom);
        assert_eq!(known, set(&[SLICES]), "its CRD comes with another watch");
        let custom = crd("example.com", "widgets", "v1", 5);
        let (_, known) = read(&mut own, &both, &custom, Answer::Custom);
        assert_eq!(known, set(&[SLICES]));
        for expected in [&[SLICES][..], &both] {
            let (_, known) = read(&mut own, &both, &none, Answer::Custom);
            assert_eq!(known, set(expected));
        }
    }

    #[test]
    fn only_so_much_is_asked_after_one_read() {
        let names: Vec<_> = (0..2 * MOST_QUESTIONS).map(|n| format!("x{n}")).collect();
        let definition = |name: &String| (Pair("k8s.io".into(), name.clone()), defined(&["v1"]));
        let custom = Custom {
            definitions: names.iter().map(definition).collect(),
            ..Custom::default()
        };
        let listed: ServedSet = names
            .iter()
            .map(|name| gvr(&format!("k8s.io/v1/{name}/")))
            .collect();
        let mut own = OwnResources::default();
        for (left, custom_ones) in [(MOST_QUESTIONS, MOST_QUESTIONS), (0, 2 * MOST_QUESTIONS)] {
            let questions = own.questions(&listed, &custom);
            assert_eq!(questions.len(), MOST_QUESTIONS);
            for question in questions {
                own.answered(question, Answer::Custom);
            }
            // The others are in doubt.
            let known = own.update(listed.clone(), &custom).len();
            assert_eq!((known, listed.len() - known), (left, custom_ones));
        }
    }

    #[test]
    fn what_is_in_doubt_fills_no_record_and_pushes_nothing_out() {
        let version = "v".repeat(63);
        let name = |n: usize| format!("{n:063}");
        let flood = |group: &str| {
            let group = format!("{}.{group}.k8s.io", "g".repeat(160));
            let definition = |n| {
                let pair = Pair(group.clone(), name(n));
                (pair, defined(&[&version]))
            };
            let definitions = (0..9999).map(definition);
            let listed = (0..9999).map(|n| gvr(&format!("{group}/{version}/{}/", name(n))));
            (
                Custom {
                    definitions: definitions.collect(),
                    ..Custom::default()
                },
                listed.collect::<ServedSet>(),
            )
        };
        let mut own = OwnResources::default();
        // Others each time: those from before must not add up.
        for group in ["a", "b", "c", "d"] {
            let (mut custom, mut listed) = flood(group);
            custom.definitions.extend(slices("v1beta1", 5).definitions);
            listed.insert(gvr(SLICES));
            let first = own.questions(&listed, &custom).swap_remove(0);
            assert_eq!(first.0, gvr(SLICES), "{group}");
            let known = own.update(listed, &custom);
            assert!(
                known.contains(&gvr(SLICES)) && known.len() > 1000,
                "{group}"
            );
            let bytes: usize = known.iter().map(packed_len).sum();
            assert!(bytes <= MOST_DOUBTED, "{group}");
            assert!(own.doubted().contains(&gvr(SLICES)));
        }
    }

    #[test]
    fn who_was_not_asked_about_all_names_is_asked_again_soon() {
        let names: Vec<_> = (0..=MOST_QUESTIONS).map(|n| format!("r{n}")).collect();
        let group = "x.k8s.io";
        let definition = |name: &String| (Pair(group.to_owned(), name.clone()), defined(&["v1"]));
        let custom = Custom {
            definitions: names.iter().map(definition).collect(),
            ..Custom::default()
        };
        let listed = || {
            names
                .iter()
                .map(|name| gvr(&format!("{group}/v1/{name}/")))
                .collect()
        };
        let mut own = OwnResources::default();
        for (asked, is_in_doubt) in [(MOST_QUESTIONS, true), (1, false), (0, false)] {
            let questions = own.questions(&listed(), &custom);
            assert_eq!(questions.len(), asked);
            for question in questions {
                own.answered(question, Answer::Custom);
            }
            own.update(listed(), &custom);
            assert_eq!(own.is_in_doubt(), is_in_doubt);
        }
    }

    #[test]
    fn an_answer_tells_by_its_status() {
        for (status, answer) in [
            (200, Answer::BuiltIn),
            (405, Answer::BuiltIn),
            (406, Answer::Custom),
            (404, Answer::Doubt),
            (403, Answer::Doubt),
            (429, Answer::Doubt),
            (503, Answer::Doubt),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(Answer::of(status), answer, "{status}");
        }
    }
}
