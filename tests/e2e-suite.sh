#!/usr/bin/env bash
# Runs Kubernetes' own end-to-end tests, those of tests/e2e-suite.yaml, through proxies of a mixed cluster, and without
# proxies.
#
#   tests/e2e-suite.sh [--restarts] [--keep] [FOCUS]
#
# FOCUS is a pattern for names of tests, in the place of the list's. --restarts restarts apiservers and proxies one after
# the other, every 30 s, while the tests run through the proxies. --keep leaves the logs of all servers.
#
# Prints what failed in either, and fails if something failed only through the proxies, twice. KUBE_INTEROP_APISERVERS names
# other apiservers (CONTRIBUTING.md): without proxies each alone, through proxies together. First it installs the Debian
# packages that are missing (tests/install.sh --tests), and builds kube-apiserver, kube-controller-manager, kubectl and
# the tests, once (tests/build-kubernetes.sh).
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

command -v cargo >/dev/null || {
    echo 'e2e-suite: cargo is not on PATH; install Rust first, with rustup' >&2
    exit 1
}
tests/install.sh --tests
tests/build-kubernetes.sh kube-apiserver kube-controller-manager kubectl e2e.test
[ -z "${KUBE_INTEROP_APISERVERS:-}" ] || tests/fetch-etcd.sh
ulimit -n "$(ulimit -Hn)" || echo "e2e-suite: the limit of open files stays at $(ulimit -n)" >&2

tests/cargo-build.sh kube-interop-proxy upstream-suites
exec "${CARGO_TARGET_DIR:-target}/debug/upstream-suites" e2e "$@"
