#!/usr/bin/env bash
# Builds and runs the guided tour of the README.
#
#   tests/demo.sh [argument of the demo …]
#
# First it installs the Debian packages that are missing (tests/install.sh --demo). With --real among the arguments it
# also builds a real kube-apiserver, once (tests/build-kubernetes.sh). KUBE_INTEROP_APISERVERS names others (CONTRIBUTING.md).
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

command -v cargo >/dev/null || {
    echo 'demo: cargo is not on PATH; install Rust first, with rustup' >&2
    exit 1
}
tests/install.sh --demo
for argument in "$@"; do
    if [ "$argument" = --real ]; then
        tests/build-kubernetes.sh
        [ -z "${KUBE_INTEROP_APISERVERS:-}" ] || tests/fetch-etcd.sh
        break
    fi
done
ulimit -n "$(ulimit -Hn)" || echo "demo: the limit of open files stays at $(ulimit -n)" >&2

cargo build --locked --profile tour --package kube-interop-proxy --bin kube-interop-proxy --package tools --bin demo
exec "${CARGO_TARGET_DIR:-target}/tour/demo" "$@"
