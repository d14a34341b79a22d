#!/usr/bin/env bash
# Builds the program for the image and the Debian package: the same bytes from the same source, wherever the source is.
#
#   deploy/release/program.sh
#
# Into target/dist: kube-interop-proxy, without debug information, and sbom.cdx.json, its dependencies (CycloneDX).
# KUBE_INTEROP_PROXY_PROFILE names another profile of Cargo.toml than `release`.
# The same bytes need the same compilers and libraries too: Rust's version, and Debian 12.
set -euo pipefail
name=program.sh
# shellcheck source=deploy/release/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"

profile=${KUBE_INTEROP_PROXY_PROFILE:-release}
cyclonedx=0.5.9

# No path of this machine: neither in what Rust compiles nor in what C compilers do.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
rust_maps="--remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$root=/build --remap-path-prefix=$target=/build/target"
c_maps="-ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$root=/build -ffile-prefix-map=$target=/build/target"

say "$version, commit $commit, profile $profile"
env -u CARGO_ENCODED_RUSTFLAGS RUSTFLAGS="$rust_maps" CFLAGS="$c_maps" CXXFLAGS="$c_maps" CARGO_INCREMENTAL=0 \
    cargo build --locked --profile "$profile" --target-dir "$target/dist/build" --bin kube-interop-proxy

need objcopy binutils
# Names of functions stay, for backtraces.
objcopy --strip-debug "$dist/build/$profile/kube-interop-proxy" "$dist/kube-interop-proxy"
! grep --quiet --text --fixed-strings -e "$root/" -e "$cargo_home/" "$dist/kube-interop-proxy" ||
    die 'the program names paths of this machine'
say "$dist/kube-interop-proxy: $(stat --format=%s "$dist/kube-interop-proxy") bytes"

# Its dependencies on this target, not those of tests.
export PATH="$PATH:$target/cyclonedx/bin"
cargo cyclonedx --version 2>/dev/null | grep --quiet --fixed-strings " $cyclonedx" || {
    say "building cargo-cyclonedx $cyclonedx"
    (cd / && cargo install --quiet --locked --debug --root "$target/cyclonedx" \
        --target-dir "$target/cyclonedx/build" "cargo-cyclonedx@$cyclonedx")
}

# From a copy: it writes beside each Cargo.toml, and where that is.
tmp=$(mktemp -d "${TMPDIR:-/tmp}/kube-interop-proxy-sbom.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
cp --parents --recursive --target-directory "$tmp" \
    Cargo.toml Cargo.lock build.rs src crates tests benches
(cd "$tmp" && cargo cyclonedx --quiet --format json --spec-version 1.5 --describe binaries --no-build-deps \
    --target "$(rustc -vV | sed -n 's/^host: //p')")
sed "s|path+file://$tmp|path+file:///build|" "$tmp/kube-interop-proxy_bin.cdx.json" >"$dist/sbom.cdx.json"
grep --quiet '"name": "pingora-core"' "$dist/sbom.cdx.json" || die 'sbom.cdx.json lacks what the program is made of'
say "$dist/sbom.cdx.json: $(grep --count '"purl"' "$dist/sbom.cdx.json") components"
