#!/usr/bin/env bash
# Runs all tests, on a machine that may have nothing but Rust yet.
#
#   tests/run.sh [argument of cargo test …]
#
# First it installs the Debian packages that are missing (tests/install.sh --tests) and builds a real kube-apiserver
# and a small one of today's machinery, once (tests/build-kubernetes.sh, tests/build-modern-apiserver.sh). Then `cargo test`: unit tests, then the end-to-end tests in tests/e2e. For
# instance `tests/run.sh --test e2e -- watch` runs the end-to-end tests with "watch" in their names.
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
# The tests hold thousands of connections, and both of their ends.
ulimit -n "$(ulimit -Hn)" || echo "run: the limit of open files stays at $(ulimit -n)" >&2
# Most of them wait most of their time: for leases that end, for servers that start, for silence that lasts.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((2 * $(nproc)))}"

exec cargo test --locked --workspace "$@"
