#!/usr/bin/env bash
# Makes the profile again that program.sh tells the compiler about: which code of the program is busy.
#
#   deploy/release/profile.sh
#
# Builds the program with counters in it, has it do the work of the benchmarks (`cost training`), and writes
# deploy/release/TARGET.profdata, and beside it TARGET.made-for: the compiler and the Cargo.lock that it is for. Commit both.
# Takes as long as building a release, and a minute. No two times make the same bytes. See benches/README.md.
#
# Needs llvm-profdata, of rustc's version of LLVM or a later one: from rustup (llvm-tools) or from Debian.
# First it installs the Debian packages that are missing (tests/install.sh --benches).
set -euo pipefail
name=profile.sh
# shellcheck source=deploy/release/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=deploy/release/compile.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/compile.sh"

llvm=$(sed -n 's/^LLVM version: \([0-9]*\).*/\1/p' <<<"$rust")
# The nearest version: rustup's is rustc's own.
find_merger() {
    local file major
    file=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
    [ ! -x "$file" ] || { printf '%s\n' "$file" && return; }
    for major in $(printf '%s\n' /usr/lib/llvm-*/bin/llvm-profdata | sed -n 's|^/usr/lib/llvm-\([0-9]*\)/.*|\1|p' | sort -n); do
        [ "$major" -lt "$llvm" ] || { printf '%s\n' "/usr/lib/llvm-$major/bin/llvm-profdata" && return; }
    done
    return 1
}
merger=$(find_merger) ||
    die "there is no llvm-profdata of LLVM $llvm; install it: rustup component add llvm-tools, or Debian's package llvm-$llvm"
tests/install.sh --benches

tmp=$(mktemp -d "${TMPDIR:-/tmp}/kube-interop-proxy-profile.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
directory=$dist/instrumented
say "building the program with counters, for $compiler"
compile "$directory" release "-Cprofile-generate=$directory/counts"
tests/cargo-build.sh cost

# A file for each process that ends.
say 'training'
ulimit -n "$(ulimit -Hn)" || say "the limit of open files stays at $(ulimit -n)" >&2
LLVM_PROFILE_FILE="$tmp/%p-%m.profraw" \
    "$target/debug/cost" --program "$directory/$host/release/kube-interop-proxy" training
counts=("$tmp"/*.profraw)
[ "${#counts[@]}" -ge 5 ] || die "only ${#counts[@]} of 5 programs wrote their counts"
say "counts of ${#counts[@]} processes: $(cat "${counts[@]}" | wc -c) bytes"

# Without the functions that never ran.
"$merger" merge --sparse --output "$tmp/profdata" "${counts[@]}"
# What rustc does not read, for it was written by a later version of LLVM, is only a warning.
said=$(rustc --crate-type lib --emit obj -Copt-level=1 "-Cprofile-use=$tmp/profdata" -o "$tmp/try.o" - \
    <<<'pub fn try_it(number: u32) -> u32 { number / 3 }' 2>&1) || said=${said:-rustc failed}
[ -z "$said" ] ||
    die "$said" "rustc does not read what $merger writes; install rustc's own: rustup component add llvm-tools"
install -m 0644 "$tmp/profdata" "$profdata"
printf '%s\n' "$compiler" "$lock" >"$made_for"
say "$profdata: $(stat --format=%s "$profdata") bytes, of $("$merger" show "$profdata" | sed -n 's/^Total functions: //p') functions"
