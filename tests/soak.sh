#!/usr/bin/env bash
# Random faults in a mixed cluster of real parts, with a ledger of what every client was told.
#
#   tests/soak.sh [--seconds N] [--seed N] [--keep]     default: 600 seconds, another seed each time
#   KUBE_INTEROP_APISERVERS=1.20.2:/path/kube-apiserver tests/soak.sh --upgrades     through these versions and back
#
# Three members of etcd, three kube-apiservers 1.20.2 that differ, and a proxy beside each. Clients read, write and watch
# while parts are killed, stopped and frozen, connections cut, delayed and silenced, certificates replaced, clocks stepped,
# groups switched on and off, and CRDs created and deleted. Prints each fault, what clients saw during it, and everything that
# must not have happened; fails if anything did. --seed repeats the faults of another run. With --upgrades one apiserver after
# the other gets the next version instead, and nobody may notice. This is done three times, without the proxy and with HAProxy
# in its place first; a table compares them.
#
# First it installs the Debian packages that are missing (tests/install.sh --tests; HAProxy too, if it is needed), and builds
# kube-apiserver, and for --upgrades kube-controller-manager and kubectl, once (tests/build-kubernetes.sh).
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

command -v cargo >/dev/null || {
    echo 'soak: cargo is not on PATH; install Rust first, with rustup' >&2
    exit 1
}
tests/install.sh --tests
programs=(kube-apiserver)
if [[ " $* " == *" --upgrades "* ]]; then
    tests/install.sh --benches
    programs+=(kube-controller-manager kubectl)
fi
tests/build-kubernetes.sh "${programs[@]}"
ulimit -n "$(ulimit -Hn)" || echo "soak: the limit of open files stays at $(ulimit -n)" >&2

tests/cargo-build.sh kube-interop-proxy soak
exec "${CARGO_TARGET_DIR:-target}/debug/soak" "$@"
