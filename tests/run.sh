#!/usr/bin/env bash
# Runs all tests, on a machine that may have nothing but Rust yet.
#
#   tests/run.sh [argument of cargo test …]
#
# First it installs the Debian packages that are missing (tests/install.sh --tests), builds a real kube-apiserver and a
# small one of today's machinery, and fetches etcd 3.5, once (tests/build-kubernetes.sh, tests/build-modern-apiserver.sh,
# tests/fetch-etcd.sh). Then `cargo test`: unit tests, then the end-to-end tests in tests/e2e. For instance
# `tests/run.sh --test e2e -- watch` runs the end-to-end tests with "watch" in their names. At its end it prints which
# tests were skipped, and why.
#
# With KUBE_INTEROP_APISERVERS=/path/kube-apiserver[:/another…] the tests with real kube-apiservers run with these;
# CONTRIBUTING.md says how.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

command -v cargo >/dev/null || {
    echo 'run: cargo is not on PATH; install Rust first, with rustup' >&2
    exit 1
}
tests/install.sh --tests
tests/build-kubernetes.sh kube-apiserver kube-controller-manager
# Of a suite of Debian that changes every day: without it few tests fail, and they say so.
tests/build-modern-apiserver.sh || echo 'run: the tests that need an apiserver of today will fail' >&2
tests/fetch-etcd.sh || echo 'run: the tests that need etcd 3.5 will fail' >&2
# The tests hold thousands of connections, and both of their ends.
ulimit -n "$(ulimit -Hn)" || echo "run: the limit of open files stays at $(ulimit -n)" >&2
# Most of them wait most of their time: for leases that end, for servers that start, for silence that lasts.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((4 * $(nproc)))}"

# Tests say there what cargo does not tell.
export KUBE_INTEROP_NOTES="${KUBE_INTEROP_NOTES:-${CARGO_TARGET_DIR:-$PWD/target}/test-notes}"
mkdir -p "$(dirname -- "$KUBE_INTEROP_NOTES")"
: >"$KUBE_INTEROP_NOTES"

status=0
cargo test --locked --workspace "$@" || status=$?
skipped=$(grep '^\(part-\)\?skipped: ' "$KUBE_INTEROP_NOTES" | sort -u) || true
if [ -n "$skipped" ]; then
    printf 'run: %d tests, or parts of them, were skipped:\n%s\n' "$(wc -l <<<"$skipped")" "$skipped"
fi
exit "$status"
