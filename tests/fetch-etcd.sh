#!/usr/bin/env bash
# Fetches etcd 3.5, once, from Debian's suite "trixie": Debian 12 has 3.4.
#
#   tests/fetch-etcd.sh
#
# The result is ${XDG_CACHE_HOME:-~/.cache}/kube-interop-proxy/etcd-3.5/etcd. One that is there and runs is left alone.
# Nothing is installed: the package is fetched with a private list of sources and unpacked.
set -Eeuo pipefail

readonly series=3.5 release=trixie package=etcd-server

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/kube-interop-proxy/etcd-$series
program=$cache/etcd
name=fetch-etcd
. "$here/build-lib.sh"

version() { timeout 60 "$1" --version 2>/dev/null | sed -n 's/^etcd Version: //p'; }
usable() { [ -x "$program" ] && [[ $(version "$program") == "$series".* ]]; }
done_already() {
    say "etcd $(version "$program") already in $cache"
    exit 0
}

! usable || done_already
done_meanwhile() { ! usable || done_already; }
begin done_meanwhile

command -v apt-get >/dev/null || die "no apt-get here; this needs Debian"
know_suite "$release"
have=$(candidate "$package")
[[ $have == "$series".* ]] || failed "Debian's $release has $package ${have:-no more} (wanted: $series)"
mkdir "$tmp/deb"
cd "$tmp/deb"
bounded 300 apt-get -q "${options[@]}" download "$package=$have" || failed "cannot fetch $package from $release"
dpkg-deb --fsys-tarfile ./*.deb | tar -x -O ./usr/bin/etcd >"$tmp/etcd" 2>>"$log" || failed "cannot unpack $package $have"
chmod +x "$tmp/etcd"
[[ $(version "$tmp/etcd") == "$series".* ]] || failed "the etcd just fetched does not run"
mv "$tmp/etcd" "$program"
say "fetched etcd $(version "$program"): $program"
