# Sourced by the scripts in this directory: where things are, which commit this is, and messages.
# shellcheck shell=bash disable=SC2034  # the variables are for the scripts

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}
# What the scripts make.
dist=$target/dist

say() { printf '%s: %s\n' "$name" "$*"; }
die() {
    printf "$name: %s\n" "$@" >&2
    exit 1
}

# COMMAND PACKAGE: the command must be there.
need() {
    command -v "$1" >/dev/null || die "$1 is not installed; run tests/install.sh --release (Debian package $2)"
}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
[ -n "$version" ] || die 'no version in Cargo.toml'

# The commit and its time, in seconds. Where there is no git, the caller names both.
commit=${KUBE_INTEROP_PROXY_COMMIT:-}
if [ -z "$commit" ]; then
    # Not the repository of others that this tree was unpacked into.
    if prefix=$(git rev-parse --show-prefix 2>/dev/null) && [ -z "$prefix" ]; then
        commit=$(git rev-parse HEAD)
        [ -z "$(git status --porcelain --untracked-files=no)" ] || commit+=-dirty
        SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
    else
        commit=unknown
        say 'there is no git here: set KUBE_INTEROP_PROXY_COMMIT and SOURCE_DATE_EPOCH, or nobody can tell what was built' >&2
    fi
fi
export KUBE_INTEROP_PROXY_COMMIT=$commit SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}

# The same everywhere, whoever builds.
umask 022
export LC_ALL=C TZ=UTC
