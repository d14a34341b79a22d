//! Every finding about servers and files: its level, its name here, what was found, and what to do. Pure.

use std::fmt::Display;

use super::finding::{Finding, Level};

/// Functions that make a [`Finding`] about a subject. Words in braces are further arguments.
macro_rules! findings {
    ($($level:ident $name:ident($($word:ident),*) $what:literal $(=> $advice:literal)?;)*) => {$(
        pub fn $name(about: impl Display, $($word: impl Display),*) -> Finding {
            Finding {
                level: Level::$level,
                about: about.to_string(),
                what: format!($what),
                advice: [$(format!($advice))?].into_iter().next(),
            }
        }
    )*};
}

findings! {
    // Connections. `server` is etcd, for example; the others are keys of the configuration, or say where a server has its own.
    Problem refused(server, address) "connection refused" => "start {server} there, or correct {address}";
    Problem timed_out(server) "no answer in time" => "see whether {server} there hangs, or a firewall is in between";
    Problem no_use(why, address, server) "{why}" => "see that {address} leads to {server}, and read its log";
    Problem certificate_refused(certificate, alert, server) "it does not take {certificate} ({alert})"
        => "make {certificate} one that is valid, and signed by a CA which {server} trusts for clients";
    Problem unknown_authority(authority, serving) "its certificate is signed by no CA of {authority}"
        => "put the CA that signed {serving} into {authority}";
    Problem wrong_name(why, serving, key) "{why}" => "add the name to {serving}, or make {key} one that it has";
    Problem bad_certificate(why, serving) "its certificate cannot be used: {why}"
        => "renew {serving}, or set the clock here or there right";

    // Endpoints of etcd.
    Ok answers(version) "{version}";
    Problem no_leader(version) "{version}, without a leader: most members are not there"
        => "start the other members, and see that they reach each other";
    Problem alarm(text) "it says of itself: {text}"
        => "without space: compact and defragment etcd, or raise its --quota-backend-bytes, then etcdctl alarm disarm; \
            else read its log";
    Problem clusters(members) "these are members of several clusters: {members}"
        => "name only members of the etcd that the kube-apiservers use";
    Warning no_progress(seconds)
        "did not tell its progress within {seconds} s: last bookmarks will be missing, and watches that broke resume from \
         further back"
        => "start it with --experimental-watch-progress-notify-interval=5s (from 3.6 on --watch-progress-notify-interval), \
            as kubeadm does from 1.25 on";

    // What is stored in etcd. `below` names prefixes.
    Ok permitted() "the user of etcd.certFile may read and write all that it needs";
    Problem denied(to, below) "the user of etcd.certFile may not {to} below {below}"
        => "grant it a role that may {to} there: etcdctl role grant-permission --prefix";
    Warning optional_denied(below)
        "the user of etcd.certFile may not read below {below}: apiservers without a proxy are not seen (masterleases), and header names of \
         other apiservers are known later (configmaps)"
        => "grant it a role that may read there (deploy/etcd-role.sh)";
    Problem failed_request(to, below, why) "cannot {to} below {below}: {why}"
        => "look again in a while, and read etcd's log; without space: compact and defragment etcd";
    Problem other_prefix(prefix) "no kube-apiserver stores anything below {prefix}/"
        => "make it what the kube-apiserver's --etcd-prefix says, and see that these endpoints are its --etcd-servers";

    // The local apiserver.
    Problem circle() "a kube-interop-proxy listens there, no kube-apiserver: requests would go in a circle"
        => "make apiServer.address the kube-apiserver's own (--bind-address and --secure-port)";
    Ok ready(version) "{version}";
    Problem not_ready(version, status) "{version}, not ready: /readyz says {status}"
        => "wait for its start, and read its log if that takes long";
    Ok believes() "takes this proxy's word about users, and has the same header names";
    Problem disbelieves(what, advice) "{what}" => "{advice}";
    Warning differs(what, advice) "{what}" => "{advice}";
    Problem belief_unknown(why) "could not be asked whether it believes this proxy: {why}" => "read its log";
    Problem no_discovery() "its discovery cannot be read"
        => "let apiServer.internalUser in group system:masters read it, and read the apiserver's log";
    Warning bypassed() "the Service kubernetes leads in-cluster clients to it, past this proxy"
        => "start it with --advertise-address and --secure-port as in peer.advertiseAddress";
    Problem other_authorities(flag, key) "none of its authorities of --{flag} is in {key}"
        => "put what --{flag} names into {key}";
    Problem stores_nothing_here() "it stores nothing in the etcd of etcd.endpoints below etcd.prefix"
        => "name there the etcd and the prefix that it uses (--etcd-servers, --etcd-prefix)";
    Problem stores_elsewhere(names) "it stores in another etcd: {names}" => "name them in etcd.otherResources";

    // Peers.
    Info not_alive(id, file) "does not live, and is remembered until rerouting.absentServerGrace is over"
        => "if it will not come back: kube-interop-proxy forget {id} --config {file}";
    Problem peer_is_no_proxy() "what listens there is no kube-interop-proxy"
        => "correct its peer.advertiseAddress, or what leads from there to its serving.bindAddress";
    Problem peer_rejects(how) "it does not believe this proxy, but {how}"
        => "have apiServer.proxyClientCertFile signed by its serving.requestHeaderClientCAFile, not by its clientCAFile \
            only, with a CN of its serving.requestHeaderAllowedNames, and see that its own kube-apiserver believes it";
    Problem peer_reads_other_headers(ours) "it believes this proxy, and does not read users from {ours}"
        => "make serving.requestHeaderUsernameHeaders the same on all servers";
    Warning peer_belief_unknown(why) "whether it believes this proxy could not be found out: {why}"
        => "run check --live there, and read its log";
    Warning bare_unreachable(why)
        "an apiserver without a proxy lives, and nobody can ask it at the address that it advertises: {why}"
        => "start its proxy; or let it listen there, and let control plane nodes reach each other's port";
    Ok peer_answers() "answers, and believes this proxy";
    Warning peer_not_ready() "not ready" => "run check --live there";

    // The proxy of this machine, and its addresses.
    Info none_runs(admin) "none runs: nobody listens at admin.bindAddress {admin}";
    Problem admin_port_taken(how) "taken by something that is not this program: {how}"
        => "end what listens there, or choose another port";
    Warning runs_otherwise(how) "runs with another configuration than this file: {how}"
        => "restart it, if this file is the one that it starts with";
    Ok proxy_ready(id, at, version) "{id} at {at}, version {version}, ready";
    Warning proxy_not_ready(id, at, missing) "{id} at {at}, not ready: {missing}" => "see the other lines, and its log";
    Ok leads_here() "leads to the proxy that runs here";
    Problem foreign_address() "this machine does not have this address" => "make it an address of this machine";
    Problem nobody(key) "nobody listens there: peers cannot reach this proxy"
        => "correct {key}, or what leads from there to serving.bindAddress";
    Problem no_proxy(key) "taken by something that is no kube-interop-proxy"
        => "end it, or correct {key}; a kube-apiserver is to be started with --bind-address=127.0.0.1";
    Problem leads_to_another_proxy(key) "leads to another proxy than one that runs here"
        => "correct {key}: no two proxies can have one address";
    Warning unserved(addresses) "something listens at {addresses} now, and this proxy will not"
        => "add those that clients use to serving.additionalBindAddresses";

    // Server IDs.
    Ok own_id() "this proxy's alone";
    Problem used_id(at) "the proxy at {at} lives under it: this one could not tell its peers anything"
        => "give one of the two another identity.serverID, or another host name";
    Problem claimed_id(at) "the proxy at {at} wants it, and another one lives under it"
        => "give one of the two another identity.serverID, or another host name";
    Problem shared_address(address) "all are said to live at {address}"
        => "correct peer.advertiseAddress of all but one of them";

    // Clocks.
    Warning clock_off(by) "{by} this machine's"
        => "have both machines' clocks set by one time service (chrony, ntpd)";
    Problem clock_wrong(by) "{by} this machine's"
        => "have both machines' clocks set by one time service (chrony, ntpd)";

    // The configuration, and what could not be looked at.
    Ok no_problems() "no problems";
    Problem misconfigured(problem) "{problem}" => "correct it there";
    Info skipped(why) "not looked at: {why}";
    Info left_out(count) "{count} more were not looked at";

    // Certificates.
    Problem expired(end) "expired on {end}" => "renew it";
    Problem not_yet_valid(begin) "not valid before {begin}" => "see whether this machine's clock is right";
    Ok valid(end) "valid until {end}";
    Warning expires(end) "about to expire, valid until {end} only" => "renew it";
    Problem peers_reject(names)
        "no peer will believe this proxy: it is not signed for clients by a CA of serving.requestHeaderClientCAFile, or its \
         CN is none of serving.requestHeaderAllowedNames [{names}]"
        => "use a client certificate of that CA with such a CN (--proxy-client-cert-file of the kube-apiserver), or add its CN";
    Warning lacks_name(name) "it lacks the name {name}, which peers verify that have this file's peer.serverName"
        => "have it issued with the name {name} too";
    Warning peers_refuse() "it is not signed for servers by a CA of peer.caFile: peers that have the same one refuse it"
        => "put the CA that signed it into every proxy's peer.caFile";
    Warning many_authorities(why) "{why}" => "remove CAs that sign no clients";
}
