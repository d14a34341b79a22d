#!/usr/bin/env bash
# Runs kubectl's own tests (test/cmd of Kubernetes 1.20.2) through proxies of a mixed cluster, and without proxies.
#
#   tests/kubectl-suite.sh [--restarts] [--keep] [test …]     default: all; `create_job` is run_create_job_tests there
#
# --restarts restarts apiservers and proxies one after the other, every 30 s, while the tests run through the proxies.
# --keep leaves the logs of all servers.
#
# Prints what failed in either, and fails if something failed only through the proxies, twice. KUBE_INTEROP_APISERVERS names
# other apiservers (CONTRIBUTING.md): without proxies each alone, through proxies together. First it installs the Debian
# packages that are missing (tests/install.sh --tests), and builds kube-apiserver, kube-controller-manager and kubectl,
# once (tests/build-kubernetes.sh). The cluster: two kube-apiservers of which neither serves everything, a proxy beside
# each, and a balancer before the proxies, which a controller manager uses too.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

command -v cargo >/dev/null || {
    echo 'kubectl-suite: cargo is not on PATH; install Rust first, with rustup' >&2
    exit 1
}
tests/install.sh --tests
tests/build-kubernetes.sh kube-apiserver kube-controller-manager kubectl
[ -z "${KUBE_INTEROP_APISERVERS:-}" ] || tests/fetch-etcd.sh
# The unpacked source may have been deleted to save space.
[ -d "${XDG_CACHE_HOME:-$HOME/.cache}/kube-interop-proxy/kubernetes-1.20.2/source" ] || {
    echo 'kubectl-suite: the source of Kubernetes is not in the cache; remove kubectl there, and run this again' >&2
    exit 1
}
ulimit -n "$(ulimit -Hn)" || echo "kubectl-suite: the limit of open files stays at $(ulimit -n)" >&2

tests/cargo-build.sh kube-interop-proxy upstream-suites
exec "${CARGO_TARGET_DIR:-target}/debug/upstream-suites" kubectl "$@"
