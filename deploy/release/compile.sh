# Sourced by the scripts that compile the program: a profile fits only what is compiled in the same way.
# shellcheck shell=bash disable=SC2034,SC2154  # variables are for the scripts, and lib.sh sets root and target

rust=$(rustc -vV)
host=$(sed -n 's/^host: //p' <<<"$rust")
# The profile of busy code that the compiler is told (benches/README.md), and beside it what it was made for: that
# compiler, since names of functions depend on it, and that Cargo.lock, since they depend on it, too.
profdata=deploy/release/$host.profdata
made_for=deploy/release/$host.made-for
compiler=$(head -n 1 <<<"$rust")
lock="Cargo.lock $(sha256sum Cargo.lock | cut -d ' ' -f 1)"

# No path of this machine: neither in what Rust compiles nor in what C compilers do.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
rust_maps="--remap-path-prefix=$cargo_home=/cargo --remap-path-prefix=$root=/build --remap-path-prefix=$target=/build/target"
c_maps="-ffile-prefix-map=$cargo_home=/cargo -ffile-prefix-map=$root=/build -ffile-prefix-map=$target=/build/target"

# DIRECTORY PROFILE [FLAG...]: into DIRECTORY, below the target's name and that of Cargo's profile; with flags for rustc.
# Names of functions depend on whether a target is named. With one, the flags are not for build scripts and macros.
compile() {
    local directory=$1 profile=$2
    shift 2
    env -u CARGO_ENCODED_RUSTFLAGS RUSTFLAGS="$rust_maps $*" CFLAGS="$c_maps" CXXFLAGS="$c_maps" CARGO_INCREMENTAL=0 \
        cargo build --locked --profile "$profile" --target "$host" --target-dir "$directory" --bin kube-interop-proxy
}
