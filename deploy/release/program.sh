#!/usr/bin/env bash
# Builds the program for the image and the Debian package: the same bytes from the same source, wherever the source is.
#
#   deploy/release/program.sh
#
# Into target/dist: kube-interop-proxy, without debug information; sbom.cdx.json, its dependencies (CycloneDX); and
# third-party.txt, their licences.
# KUBE_INTEROP_PROXY_PROFILE names another profile of Cargo.toml than `release`.
# The compiler is told which code is busy by the file that profile.sh has made, if there is one for this target.
# The same bytes need the same compilers and libraries too: Rust's version, and Debian 12.
set -euo pipefail
name=program.sh
# shellcheck source=deploy/release/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=deploy/release/compile.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/compile.sh"

profile=${KUBE_INTEROP_PROXY_PROFILE:-release}
cyclonedx=0.5.9

say "$version, commit $commit, profile $profile"
flags=()
if [ "$profile" != release ]; then
    say "without $profdata: that is for the profile release alone"
elif [ ! -f "$profdata" ] || [ ! -f "$made_for" ]; then
    say "without a profile of busy code: there is no $profdata, or no $made_for beside it"
elif ! grep --quiet --line-regexp --fixed-strings -e "$compiler" "$made_for"; then
    say "without $profdata: that is for $(head -n 1 "$made_for"), and this is $compiler"
else
    say "with $profdata"
    grep --quiet --line-regexp --fixed-strings -e "$lock" "$made_for" ||
        say 'it is for another Cargo.lock and may have little effect; deploy/release/profile.sh makes it again' >&2
    # Cargo compiles again what is told another name, not what finds another content.
    copy=$dist/build/$(sha256sum "$profdata" | cut -d ' ' -f 1).profdata
    install -D -m 0644 "$profdata" "$copy"
    flags=("-Cprofile-use=$copy")
fi
compile "$dist/build" "$profile" "${flags[@]}"

need objcopy binutils
# Names of functions stay, for backtraces.
objcopy --strip-debug "$dist/build/$host/$profile/kube-interop-proxy" "$dist/kube-interop-proxy"
! grep --quiet --text --fixed-strings -e "$root/" -e "$cargo_home/" "$dist/kube-interop-proxy" ||
    die 'the program names paths of this machine'
say "$dist/kube-interop-proxy: $(stat --format=%s "$dist/kube-interop-proxy") bytes"

# Its dependencies on this target, not those of tests.
tools=${XDG_CACHE_HOME:-${HOME:?}/.cache}/kube-interop-proxy/cargo-cyclonedx-$cyclonedx
export PATH="$PATH:$tools/bin"
cargo cyclonedx --version 2>/dev/null | grep --quiet --fixed-strings " $cyclonedx" || {
    say "building cargo-cyclonedx $cyclonedx, once, into $tools"
    (cd / && cargo install --quiet --locked --debug --root "$tools" \
        --target-dir "$target/cyclonedx" "cargo-cyclonedx@$cyclonedx")
}

# From a copy: it writes beside each Cargo.toml, and where that is.
tmp=$(mktemp -d "${TMPDIR:-/tmp}/kube-interop-proxy-sbom.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
cp --parents --recursive --target-directory "$tmp" \
    Cargo.toml Cargo.lock build.rs src crates fuzz tests benches
(cd "$tmp" && cargo cyclonedx --quiet --format json --spec-version 1.5 --describe binaries --no-build-deps \
    --target "$host")
sed "s|path+file://$tmp|path+file:///build|" "$tmp/kube-interop-proxy_bin.cdx.json" >"$dist/sbom.cdx.json"
grep --quiet '"name": "pingora-core"' "$dist/sbom.cdx.json" || die 'sbom.cdx.json lacks what the program is made of'
need python3 python3
deploy/release/licenses.py "$host" >"$dist/third-party.txt"
say "$dist/sbom.cdx.json: $(grep --count '"purl"' "$dist/sbom.cdx.json") components"
