#!/usr/bin/env bash
# Builds a small apiserver of today's Kubernetes machinery, once, from Debian's packages of its source.
#
#   tests/build-modern-apiserver.sh
#
# tests/modern-apiserver/main.go on k8s.io/apiserver 0.36 (or newer), with Go 1.26 (or newer), all of it from Debian's
# suite "sid", since Debian 12 has neither. What was taken is printed, and listed in the file `versions` beside the result,
# ${XDG_CACHE_HOME:-~/.cache}/kube-interop-proxy/modern-apiserver/modern-apiserver. A result of the same main.go that is
# there and runs is left alone, whatever sid has by now. Building takes about six minutes on two cores; after a change of
# main.go half a minute, with the 2 GB that stay beside it in `prefix` and `go-build`, which can be deleted at any time.
# Callers at the same time wait for each other; an interrupted build is started again.
#
# Nothing is installed: the packages are fetched with a private list of sources and unpacked into `prefix`.
set -Eeuo pipefail

readonly oldest=0.36 go_wanted=1.26
readonly api=golang-k8s-apiserver-dev

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
main=$here/modern-apiserver/main.go
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/kube-interop-proxy/modern-apiserver
program=$cache/modern-apiserver
name=build-modern-apiserver
. "$here/build-lib.sh"

usable() { # Is there one of this main.go that runs here?
    [ -x "$program" ] && [ "$(cat "$cache/main.sum" 2>/dev/null)" = "$(sum)" ] &&
        timeout 60 "$program" --version >/dev/null 2>&1
}
sum() { sha256sum <"$main"; }
done_already() {
    say "$("$program" --version) already in $cache"
    exit 0
}

! usable || done_already
done_meanwhile() { ! usable || done_already; }
begin done_meanwhile

# ---- the source -----------------------------------------------------------------------------------------------------

# The Go wanted, else the next newer one.
choose_go() {
    apt-cache "${options[@]}" pkgnames golang-1. 2>>"$log" | sed -n 's/^golang-\(1\.[0-9]*\)-go$/\1/p' | sort -V |
        awk -v wanted="$go_wanted" -F. 'BEGIN { split(wanted, least, ".") } $2 >= least[2] { print; exit }'
}

# Leaves $cache/prefix with Go, k8s.io/apiserver, and all that it needs.
fetch() {
    local have go prefix=$tmp/prefix package
    know_suite sid
    have=$(candidate "$api")
    [ -n "$have" ] || failed "Debian's sid has no $api any more (wanted: $oldest or newer)"
    dpkg --compare-versions "$have" ge "$oldest" || failed "Debian's sid has $api $have (wanted: $oldest or newer)"
    go=$(choose_go)
    [ -n "$go" ] || failed "Debian's sid has no golang-$go_wanted-go, nor a newer one"
    say "fetching $api $have, golang-$go-go $(candidate "golang-$go-go"), and what they need"
    # Of what they depend on only sources in Go are of use here, and no second compiler.
    apt-get "${options[@]}" install --print-uris --yes --no-install-recommends "$api" "golang-$go-go" 2>>"$log" |
        sed -n "s/^'[^']*' \(golang-[^_]*\)_\([^_]*\)_.*/\1=\2/p" | sed 's/%3a/:/' |
        grep -E -- "-dev=|^golang-$go-(go|src)=" >"$tmp/versions" || failed "cannot tell what $api depends on"
    mkdir -p "$tmp/debs" "$prefix"
    cd "$tmp/debs"
    mapfile -t packages <"$tmp/versions"
    bounded 900 apt-get -q "${options[@]}" download "${packages[@]}" || failed "cannot fetch the packages from sid"
    for package in *.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$prefix" --no-same-owner --exclude='*/testdata' \
            --exclude='*_test.go' --exclude='./usr/share/doc' --exclude='./usr/bin' --exclude='./usr/share/go-*/test' \
            2>>"$log" || failed "cannot unpack $package"
        rm -f "$package"
    done
    cd /
    echo "$go" >"$prefix/go-version"
    cp "$tmp/versions" "$prefix/versions"
    rm -rf "$cache/prefix"
    mv "$prefix" "$cache/prefix"
}

# ---- build ----------------------------------------------------------------------------------------------------------

build() {
    local prefix=$cache/prefix go version component=k8s.io/component-base/version
    [ -d "$prefix" ] || fetch
    go=$(cat "$prefix/go-version")
    # What kube-apiserver of these sources says it is: 0.36.4 is 1.36.4.
    version=$(sed -n "s/^$api=\(.*:\)\?0\.\([0-9.]*[0-9]\).*/1.\2/p" "$prefix/versions")
    bounded 3000 env -u GOFLAGS -u GOBIN -u GOOS -u GOARCH GOROOT="$prefix/usr/lib/go-$go" \
        GOENV=off GOTOOLCHAIN=local GOPROXY=off GO111MODULE=off CGO_ENABLED=0 \
        GOPATH="$prefix/usr/share/gocode" GOCACHE="$cache/go-build" \
        "$prefix/usr/lib/go-$go/bin/go" build -trimpath -o "$tmp/modern-apiserver" -ldflags \
        "-s -w -X $component.gitVersion=v$version -X $component.gitMajor=1 -X $component.gitMinor=$(cut -d. -f2 <<<"$version")" \
        "$main" || failed "tests/modern-apiserver/main.go does not build with k8s.io/apiserver of Kubernetes $version and Go $go"
    [ "$(timeout 60 "$tmp/modern-apiserver" --version 2>>"$log")" = "Kubernetes v$version" ] ||
        failed "the apiserver just built does not run"
    mv "$tmp/modern-apiserver" "$program"
    cp "$prefix/versions" "$cache/versions"
    sum >"$cache/main.sum"
}

command -v apt-get >/dev/null || die "no apt-get here; this needs Debian"
free=$(df -Pk "$cache" | awk 'NR == 2 { print int($4 / 1048576) }')
[ "$free" -ge 4 ] || die "building needs 4 GB of free disk space; $cache has $free"
started=$SECONDS
say "building an apiserver of today's machinery from Debian's sid; minutes on two cores (output: $log)"
build
say "built $("$program" --version) in $((SECONDS - started)) s: $program"
