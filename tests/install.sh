#!/usr/bin/env bash
# Installs the Debian packages that this project needs and that are missing.
#
#   tests/install.sh [--demo|--release|--tests|--benches|--kubernetes|--nodes]
#
#   --demo        what building the program and running the demo need (default)
#   --release     that, and what making the image and the Debian package needs
#   --tests       all of that, and what the tests need on top
#   --benches     what the benchmarks need (benches/README.md)
#   --kubernetes  what building kube-apiserver needs (called by tests/build-kubernetes.sh)
#   --nodes       what tests/nodes.sh needs
#
# Nothing missing: nothing is done, and no root is needed. Otherwise apt-get runs as root, or through sudo.
set -euo pipefail

say() { printf 'install: %s\n' "$*"; }
die() {
    printf 'install: %s\n' "$@" >&2
    exit 1
}

# One a line: the command, or the file if it starts with "/", that shows that the package is there, and the package.
build='cmake cmake
cc gcc
/usr/include/features.h libc6-dev
make make
protoc protobuf-compiler
/usr/include/google/protobuf/descriptor.proto libprotobuf-dev'
demo="$build
etcd etcd-server
curl curl"
release="$demo
objcopy binutils
buildah buildah
/usr/share/containers/seccomp.json golang-github-containers-common
python3 python3
dpkg-shlibdeps dpkg-dev"
tests="$release
runc runc
fakeroot fakeroot
lintian lintian
openssl openssl
etcdctl etcd-client
kubectl kubernetes-client
h2load nghttp2-client
chromium chromium
/usr/lib/python3/dist-packages/kubernetes python3-kubernetes
promtool prometheus
systemd-analyze systemd
ip iproute2
nsenter util-linux
valgrind valgrind
faketime faketime
c++ g++"
# HAProxy and nginx are on the PATH of root alone.
benches="$demo
h2load nghttp2-client
taskset util-linux
valgrind valgrind
/usr/sbin/haproxy haproxy
/usr/sbin/nginx nginx-light"
kubernetes='/usr/lib/go/bin/go golang-go
/usr/share/gocode/src/github.com/modern-go/reflect2 golang-github-modern-go-reflect2-dev
rsync rsync
make make
dpkg-source dpkg-dev'

nodes="$demo
etcdctl etcd-client
containerd containerd
runc runc
haproxy haproxy
ip iproute2
nsenter util-linux
python3 python3"

case "${1:---demo}" in
--demo) wanted=$demo ;;
--release) wanted=$release ;;
--tests) wanted=$tests ;;
--benches) wanted=$benches ;;
--kubernetes) wanted=$kubernetes ;;
--nodes) wanted=$nodes ;;
*) die "usage: $0 [--demo|--release|--tests|--benches|--kubernetes|--nodes]" ;;
esac
[ $# -le 1 ] || die "usage: $0 [--demo|--release|--tests|--benches|--kubernetes|--nodes]"

# Fills `missing` with the packages to install.
look() {
    local sign package
    missing=()
    while read -r sign package; do
        case "$sign" in
        /*) [ -e "$sign" ] || missing+=("$package") ;;
        *) command -v "$sign" >/dev/null || missing+=("$package") ;;
        esac
    done <<<"$wanted"
}

look
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null ||
    die "missing, and there is no apt-get to install them with: ${missing[*]}" \
        "These are Debian's package names: install what your system has for them, then run this again."

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
        die "missing: ${missing[*]}" "Run as root, where sudo is not installed: apt-get install ${missing[*]}"
    as_root=(sudo)
fi

# Two of these at a time would get into each other's way in apt-get update.
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/kube-interop-proxy
mkdir -p "$cache"
exec 9>"$cache/install.lock"
flock -w 1200 9 || die "another installation holds $cache/install.lock for 20 minutes now"
look
[ ${#missing[@]} -gt 0 ] || exit 0

say "installing ${missing[*]}"
log=$(mktemp "${TMPDIR:-/tmp}/kube-interop-proxy-install.XXXXXX")
# Foreground: Ctrl-C reaches apt-get, and when the time is up dpkg may still finish the package it is at.
apt() {
    local limit=$1
    shift
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive LC_ALL=C timeout --foreground -k 30 "$limit" \
        apt-get -q -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" \
        >>"$log" 2>&1 </dev/null 9>&-
}
# A third party's source that fails is no reason to stop: the packages wanted here are Debian's.
keep_log=
if ! apt 300 update; then
    keep_log=1
    say "apt-get update had errors (see $log); trying with the package lists at hand"
fi
if ! apt 1200 install --no-install-recommends "${missing[@]}"; then
    tail -n 15 "$log" >&2
    die "apt-get install ${missing[*]} failed; all of its output: $log"
fi

# Debian starts packaged services at once, and at every boot. Tests and benchmarks start their own.
stop() { # PACKAGE SERVICE: unless the package was there before
    [[ " ${missing[*]} " == *" $1 "* && -d /run/systemd/system ]] || return 0
    if ! "${as_root[@]}" systemctl disable --now "$2.service" >>"$log" 2>&1 9>&-; then
        keep_log=1
        say "could not stop the $2 service that the package started (see $log)"
    fi
}
stop etcd-server etcd
stop prometheus prometheus
stop containerd containerd
stop haproxy haproxy
stop nginx-light nginx

installed=("${missing[@]}")
look
[ ${#missing[@]} -eq 0 ] || die "installed, but what was wanted of them is still not found: ${missing[*]} (see $log)"
[ -n "$keep_log" ] || rm -f "$log"
say "installed ${installed[*]}"
