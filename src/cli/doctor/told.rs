//! Every finding: its level, its code, its name here, what was found, and what to do. Pure. `docs/findings.md` is made
//! from it. A code is never given to another finding: operators look for it, and programs read it.

use std::fmt::Display;

use super::finding::{Finding, Level};
use crate::config::{Problem, ProblemKind};

/// A row of the table as it stands here, for the page that explains the codes.
#[cfg(test)]
struct Row {
    level: Level,
    code: u16,
    what: &'static str,
    advice: Option<&'static str>,
}

/// Functions that make a [`Finding`] about a subject. Words in braces are further arguments.
macro_rules! findings {
    ($($level:ident $code:literal $name:ident($($word:ident),*) $what:literal $(=> $advice:literal)?;)*) => {
        $(pub fn $name(about: impl Display, $($word: impl Display),*) -> Finding {
            Finding {
                level: Level::$level,
                code: $code,
                about: about.to_string(),
                what: format!($what),
                advice: [$(format!($advice))?].into_iter().next(),
            }
        })*

        #[cfg(test)]
        const ROWS: &[Row] = &[$(Row {
            level: Level::$level,
            code: $code,
            what: $what,
            advice: first(&[$($advice)?]),
        }),*];
    };
}

#[cfg(test)]
const fn first(given: &[&'static str]) -> Option<&'static str> {
    match given {
        [first, ..] => Some(first),
        [] => None,
    }
}

/// A problem of a configuration file.
pub fn misconfigured(about: impl Display, problem: &Problem) -> Finding {
    match problem.kind {
        ProblemKind::File => unreadable(about, problem),
        ProblemKind::Yaml => not_yaml(about, problem),
        ProblemKind::UnknownKey => unknown_key(about, problem),
        ProblemKind::Missing => missing_key(about, problem),
        ProblemKind::Repeated => repeated(about, problem),
        ProblemKind::Value => wrong_value(about, problem),
        ProblemKind::Contradiction => contradiction(about, problem),
        ProblemKind::Credentials => unusable_file(about, problem),
    }
}

findings! {
    // The configuration. `problem` names the key and its line.
    Ok 1 no_problems() "no problems";
    Problem 2 unreadable(problem) "{problem}" => "make the file readable, or name another one with --config";
    Problem 3 not_yaml(problem) "{problem}" => "correct it there; config.example.yaml is a complete file";
    Problem 4 unknown_key(problem) "{problem}" => "correct its name, or remove it";
    Problem 5 missing_key(problem) "{problem}" => "add it";
    Problem 6 repeated(problem) "{problem}" => "remove one";
    Problem 7 wrong_value(problem) "{problem}" => "correct it there";
    Problem 8 contradiction(problem) "{problem}" => "correct one of the two";
    Problem 9 unusable_file(problem) "{problem}" => "replace the file, or name another one";

    // Certificates.
    Problem 10 expired(end) "expired on {end}" => "renew it";
    Problem 11 not_yet_valid(begin) "not valid before {begin}" => "check this machine's clock";
    Ok 12 valid(end) "valid until {end}";
    Warning 13 expires(end) "about to expire, valid until {end} only" => "renew it";
    Problem 14 peers_reject(names)
        "peers will reject this proxy's front-proxy credentials: the certificate is not signed for clients by a CA of \
         serving.requestHeaderClientCAFile, or its CN is none of serving.requestHeaderAllowedNames [{names}]"
        => "use a client certificate of that CA with such a CN (--proxy-client-cert-file of the kube-apiserver), or add its CN";
    Warning 15 lacks_name(name) "it lacks the name {name}, for which peers with this file's peer.serverName verify it"
        => "issue it with the name {name} too";
    Warning 16 peers_refuse() "it is not signed for servers by a CA of peer.caFile: peers with the same file reject it"
        => "put the CA that signed it into every proxy's peer.caFile";

    // Connections. `server` is etcd, for example; the others are keys of the configuration, or say where a server has its own.
    Problem 20 refused(server, address) "connection refused" => "start {server} there, or correct {address}";
    Problem 21 timed_out(server) "no answer in time" => "check whether {server} there hangs, or a firewall blocks it";
    Problem 22 no_use(why, address, server) "{why}" => "check that {address} leads to {server}, and read its log";
    Problem 23 certificate_refused(certificate, alert, server) "it rejects {certificate} ({alert})"
        => "set {certificate} to a valid certificate, signed by a CA that {server} trusts for clients";
    Problem 24 unknown_authority(authority, serving) "its certificate is signed by no CA of {authority}"
        => "put the CA that signed {serving} into {authority}";
    Problem 25 wrong_name(why, serving, key) "{why}" => "add the name to {serving}, or set {key} to one that it has";
    Problem 26 bad_certificate(why, serving) "its certificate cannot be used: {why}"
        => "renew {serving}, or correct the clock here or there";

    // Endpoints of etcd.
    Ok 30 answers(version) "{version}";
    Problem 31 no_leader(version) "{version}, without a leader: most members are down"
        => "start the other members, and check that they reach each other";
    Problem 32 alarm(text) "it reports: {text}"
        => "without space: compact and defragment etcd, or raise its --quota-backend-bytes, then etcdctl alarm disarm; \
            else read its log";
    Problem 33 clusters(members) "these are members of several clusters: {members}"
        => "name only members of the etcd that the kube-apiservers use";
    Warning 34 no_progress(seconds)
        "did not report its progress within {seconds} s: last bookmarks will be missing, and broken watches resume from \
         further back"
        => "start it with --experimental-watch-progress-notify-interval=5s (from 3.6 on --watch-progress-notify-interval), \
            as kubeadm does from 1.25 on";

    // What is stored in etcd. `below` names prefixes.
    Ok 40 permitted() "the user of etcd.certFile may read and write all that it needs";
    Problem 41 denied(to, below) "the user of etcd.certFile may not {to} below {below}"
        => "grant it a role that may {to} there: etcdctl role grant-permission --prefix";
    Warning 42 optional_denied(below)
        "the user of etcd.certFile may not read below {below}: apiservers without a proxy are not seen (masterleases), and header names of \
         other apiservers are known later (configmaps)"
        => "grant it a role that may read there (deploy/etcd-role.sh)";
    Problem 43 failed_request(to, below, why) "cannot {to} below {below}: {why}"
        => "try again later, and read etcd's log; without space: compact and defragment etcd";
    Problem 44 other_prefix(prefix) "no kube-apiserver stores anything below {prefix}/"
        => "set it to the kube-apiserver's --etcd-prefix, and check that these endpoints are its --etcd-servers";

    // The local apiserver.
    Problem 50 circle() "a kube-interop-proxy listens there, not a kube-apiserver: requests would go in a circle"
        => "set apiServer.address to the kube-apiserver's own (--bind-address and --secure-port)";
    Ok 51 ready(version) "{version}";
    Problem 52 not_ready(version, status) "{version}, not ready: /readyz says {status}"
        => "wait for its start, and read its log if that takes long";
    Ok 53 accepts() "accepts this proxy's front-proxy credentials, and has the same header names";
    Problem 54 rejects(what, advice) "{what}" => "{advice}";
    Warning 55 differs(what, advice) "{what}" => "{advice}";
    Problem 56 acceptance_unknown(why) "could not be asked whether it accepts this proxy's front-proxy credentials: {why}"
        => "read its log";
    Problem 57 no_discovery() "its discovery cannot be read"
        => "let apiServer.internalUser in group system:masters read it, and read the apiserver's log";
    Warning 58 bypassed() "the Service kubernetes leads in-cluster clients to it, past this proxy"
        => "start it with --advertise-address and --secure-port as in peer.advertiseAddress";
    Problem 59 other_authorities(flag, key) "none of the CAs of its --{flag} is in {key}"
        => "put what --{flag} names into {key}";
    Problem 60 stores_nothing_here() "it stores nothing in the etcd of etcd.endpoints below etcd.prefix"
        => "name there the etcd and the prefix that it uses (--etcd-servers, --etcd-prefix)";
    Problem 61 stores_elsewhere(names) "it stores in another etcd: {names}" => "name them in etcd.otherResources";

    // Peers.
    Info 65 absent(id, file) "absent, and remembered until rerouting.absentServerGrace is over"
        => "if it will not come back: kube-interop-proxy forget {id} --config {file}";
    Problem 66 peer_is_no_proxy() "what listens there is not a kube-interop-proxy"
        => "correct its peer.advertiseAddress, or what leads from there to its serving.bindAddress";
    Problem 67 peer_rejects(how) "it rejects this proxy's front-proxy credentials: it {how}"
        => "have apiServer.proxyClientCertFile signed by its serving.requestHeaderClientCAFile, not by its clientCAFile \
            only, with a CN of its serving.requestHeaderAllowedNames, and check that its own kube-apiserver accepts its \
            credentials";
    Problem 68 peer_reads_other_headers(ours)
        "it accepts this proxy's front-proxy credentials, but does not read users from {ours}"
        => "make serving.requestHeaderUsernameHeaders the same on all servers";
    Warning 69 peer_acceptance_unknown(why)
        "whether it accepts this proxy's front-proxy credentials could not be found out: {why}"
        => "run check --live there, and read its log";
    Warning 70 bare_unreachable(why)
        "a bare apiserver is alive, but cannot be reached at the address that it advertises: {why}"
        => "start its proxy; or make it listen there, and let control plane nodes reach each other's port";
    Ok 71 peer_answers() "answers, and accepts this proxy's front-proxy credentials";
    Warning 72 peer_not_ready() "not ready" => "run check --live there";

    // The proxy of this machine, and its addresses.
    Info 80 none_runs(admin) "none runs: nothing listens at admin.bindAddress {admin}";
    Problem 81 admin_port_taken(how) "taken by something that is not this program: {how}"
        => "stop what listens there, or choose another port";
    Warning 82 runs_otherwise(how) "runs with another configuration than this file: {how}"
        => "restart it, if this file is the one that it starts with";
    Ok 83 proxy_ready(id, at, version) "{id} at {at}, version {version}, ready";
    Warning 84 proxy_not_ready(id, at, missing) "{id} at {at}, not ready: {missing}" => "read the other lines, and its log";
    Ok 85 leads_here() "leads to the proxy that runs here";
    Problem 86 foreign_address() "this machine does not have this address" => "use an address of this machine";
    Problem 87 nobody(key) "nothing listens there: peers cannot reach this proxy"
        => "correct {key}, or what leads from there to serving.bindAddress";
    Problem 88 no_proxy(key) "taken by something that is not a kube-interop-proxy"
        => "stop it, or correct {key}; start a kube-apiserver with --bind-address=127.0.0.1";
    Problem 89 leads_to_another_proxy(key) "leads to another proxy than one that runs here"
        => "correct {key}: no two proxies can have one address";
    Warning 90 unserved(addresses) "something listens at {addresses} now, but this proxy will not"
        => "add those that clients use to serving.additionalBindAddresses";

    // Server IDs.
    Ok 95 own_id() "used by this proxy only";
    Problem 96 used_id(at) "the proxy at {at} uses it: this one could not publish anything"
        => "give one of the two another identity.serverID, or another host name";
    Problem 97 claimed_id(at) "the proxy at {at} claims it, and another one uses it"
        => "give one of the two another identity.serverID, or another host name";
    Problem 98 shared_address(address) "all have the address {address} in etcd"
        => "correct peer.advertiseAddress of all but one of them";

    // Clocks.
    Warning 100 clock_off(by) "{by} this machine's"
        => "synchronize both machines' clocks with one time service (chrony, ntpd)";
    Problem 101 clock_wrong(by) "{by} this machine's"
        => "synchronize both machines' clocks with one time service (chrony, ntpd)";

    // A node before the proxy is installed.
    Ok 110 installable(layout) "kube-apiserver's manifest can be changed; the proxy would run as {layout}";
    Problem 111 not_installable(why) "{why}" => "change that first; install kubeadm would fail for the same reason";
    Warning 112 to_know(why) "{why}" => "check whether that is intended; install kubeadm --dry-run shows the files";
    Problem 113 too_old(version) "{version}: the proxy is for Kubernetes 1.20 and later" => "upgrade it first";
    Ok 114 held(program) "{program} listens there, as it should before install";
    Warning 115 held_by_other(program) "{program} listens there"
        => "if that is at an address of the proxy: stop it, or give it another port";
    Ok 116 free_port() "free";
    Ok 117 kubelet(version) "{version} runs";
    Problem 118 no_kubelet(why) "{why}" => "start kubelet, and read its log";
    Ok 119 runtime(socket) "{socket} takes connections";
    Problem 120 no_runtime(sockets) "none of {sockets} takes connections" => "start containerd or CRI-O, and read its log";

    // What could not be looked at.
    Info 105 skipped(why) "not looked at: {why}";
    Info 106 left_out(count) "{count} more were not looked at";
}

#[cfg(test)]
mod tests;
