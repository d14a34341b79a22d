#!/usr/bin/env bash
# Cargo's RUSTC_WORKSPACE_WRAPPER of smoke.sh: the proxy and the targets are built so that libFuzzer sees which way they go; all
# else as usual. What cargo-fuzz passes, without a sanitizer: only that would need a nightly toolchain.
set -euo pipefail
case " $* " in
*' --crate-name kube_interop_proxy '* | *'/fuzz_targets/'*)
    set -- "$@" -Cpasses=sancov-module
    for option in level=4 inline-8bit-counters pc-table trace-compares; do
        set -- "$@" "-Cllvm-args=-sanitizer-coverage-$option"
    done
    ;;
esac
exec "$@"
