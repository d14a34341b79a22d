#!/usr/bin/env bash
# Random faults in a mixed cluster of real parts, with a ledger of what every client was told.
#
#   tests/soak.sh [--seconds N] [--seed N] [--picture FILE] [--keep]     default: 600 seconds, another seed each time
#   KUBE_INTEROP_APISERVERS=/path/kube-apiserver tests/soak.sh           others than 1.20.2; of several versions they are upgraded, too
#   KUBE_INTEROP_APISERVERS=1.20.2:/path/kube-apiserver tests/soak.sh --upgrades     through these versions and back
#
# Three members of etcd, three kube-apiservers that differ, and a proxy beside each. Clients read, write and watch, controllers
# collect and kubectl runs, while parts are killed, stopped, frozen and replaced, proxies uninstalled, connections cut, delayed and
# silenced, certificates replaced, clocks stepped, groups switched on and off, and CRDs created and deleted. Prints each fault,
# what clients saw during it, and everything that must not have happened; fails if anything did. --seed repeats the faults of
# another run; --picture draws memory, open files and tasks of the proxies. With --upgrades one apiserver after the other gets the
# next version instead, and nobody may notice. This is done three times, without the proxy and with HAProxy in its place first;
# a table compares them.
#
# First it installs the Debian packages that are missing (tests/install.sh --tests; HAProxy too, if it is needed), and builds
# kube-apiserver and kube-controller-manager, once (tests/build-kubernetes.sh); other versions of Kubernetes may need
# a later etcd (tests/fetch-etcd.sh).
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

command -v cargo >/dev/null || {
    echo 'soak: cargo is not on PATH; install Rust first, with rustup' >&2
    exit 1
}
tests/install.sh --tests
if [[ " $* " == *" --upgrades "* ]]; then
    tests/install.sh --benches
fi
programs=(kube-apiserver kube-controller-manager)
if [ -n "${KUBE_INTEROP_APISERVERS:-}" ]; then
    tests/fetch-etcd.sh
    programs+=(kubectl)
fi
tests/build-kubernetes.sh "${programs[@]}"
ulimit -n "$(ulimit -Hn)" || echo "soak: the limit of open files stays at $(ulimit -n)" >&2

tests/cargo-build.sh kube-interop-proxy soak
exec "${CARGO_TARGET_DIR:-target}/debug/soak" "$@"
