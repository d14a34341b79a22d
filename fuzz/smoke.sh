#!/usr/bin/env bash
# Builds all fuzz targets with the stable toolchain, and runs each for a moment, from the corpus in the tree.
#
#   fuzz/smoke.sh [SECONDS | --runs RUNS [TARGET…]]
#
# Without arguments: what is in the corpus, then up to 20000 runs of each target, or as many as 10 seconds allow. With SECONDS: as
# many as that time allows. With --runs: so many, however long they take. Only with arguments it is compiled with optimizations:
# that takes three times as long, and for seconds it does not pay.
# What makes a target fail is left in fuzz/artifacts/TARGET/.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

optimized() { export CARGO_PROFILE_DEV_OPT_LEVEL=1; }
case ${1:-} in
'')
    limits='-max_total_time=10 -runs=20000'
    ;;
--runs)
    optimized
    limits=-runs=${2:?--runs needs a number}
    shift 2
    ;;
*[!0-9]*)
    echo 'usage: fuzz/smoke.sh [SECONDS | --runs RUNS [TARGET…]]' >&2
    exit 2
    ;;
*)
    optimized
    limits=-max_total_time=$1
    shift
    ;;
esac
mapfile -t targets < <(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' Cargo.toml)
[ $# -eq 0 ] || targets=("$@")

CARGO_TERM_QUIET=true RUSTC_WORKSPACE_WRAPPER=$PWD/coverage.sh ../tests/cargo-build.sh "${targets[@]}"
programs=${CARGO_TARGET_DIR:-$PWD/../target}/debug
printf 'fuzz/smoke.sh: built in %d s\n' "$SECONDS"

found=$(mktemp -d)
trap 'rm -rf "$found"' EXIT
run() { # TARGET: its figures in one line, or all that it said
    mkdir -p "$found/$1" "artifacts/$1"
    # shellcheck disable=SC2086 # They are words.
    if "$programs/$1" $limits -timeout=10 -rss_limit_mb=2048 -artifact_prefix="artifacts/$1/" \
        "$found/$1" "corpus/$1" >"$found/$1.log" 2>&1; then
        sed -n "s/^Done \(.*\)/$1: \1/p" "$found/$1.log"
    else
        cat "$found/$1.log"
        echo "fuzz/smoke.sh: $1 fails; what made it fail is in fuzz/artifacts/$1/" >&2
        return 1
    fi
}
export -f run
export programs found limits
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I TARGET bash -c 'run TARGET'
