#!/usr/bin/env bash
# Builds real Kubernetes 1.20.2 binaries, once, from Debian's source package.
#
#   tests/build-kubernetes.sh [PROGRAM...]     default: kube-apiserver
#
# PROGRAM is kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubeadm, kubectl or e2e.test, Kubernetes'
# own end-to-end tests.
#
# They end up in ${XDG_CACHE_HOME:-~/.cache}/kube-interop-proxy/kubernetes-1.20.2/ under their own names. A binary that
# is there and runs is left alone. Each takes minutes on two cores. The unpacked source and Go's build cache stay
# beside the binaries for the next one to build: 2.3 GB in the directories `source`, `download` and `go-build`, which
# can be deleted at any time; but one test compiles a client in Go with `source` (tests/operators/clients.rs), and
# tests/kubectl-suite.sh runs tests that are in it. Callers at the same time wait for each other; an interrupted
# build is started again.
#
# Works on Debian 12 (bookworm), whose archive has this version. apt's own configuration is left as it is: the source
# package is fetched with a private list of sources, made from the machine's.
set -Eeuo pipefail

readonly version=1.20.2
readonly programs='kube-apiserver kube-controller-manager kube-scheduler kubelet kubeadm kubectl e2e.test'

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/kube-interop-proxy/kubernetes-$version
name=build-kubernetes
. "$here/build-lib.sh"

usable() { # FILE: is it a Kubernetes binary of this version that runs here?
    [ -x "$1" ] || return
    case $1 in
    */kubectl) [ "$(timeout 60 "$1" version --client --short 2>/dev/null)" = "Client Version: v$version" ] ;;
    */kubeadm) [ "$(timeout 60 "$1" version --output short 2>/dev/null)" = "v$version" ] ;;
    */e2e.test) [ "$(timeout 60 "$1" --version 2>/dev/null)" = "v$version" ] ;;
    *) [ "$(timeout 60 "$1" --version 2>/dev/null)" = "Kubernetes v$version" ] ;;
    esac
}

wanted=("$@")
[ $# -gt 0 ] || wanted=(kube-apiserver)
for program in "${wanted[@]}"; do
    [[ " $programs " == *" $program "* ]] || die "usage: $0 [PROGRAM...], each one of: $programs"
done

# Fills `todo` with what is not there yet.
look() {
    local program
    todo=()
    for program in "${wanted[@]}"; do
        usable "$cache/$program" || todo+=("$program")
    done
}
done_already() {
    say "${wanted[*]} v$version already in $cache"
    exit 0
}

look
[ ${#todo[@]} -gt 0 ] || done_already

begin_again() {
    look
    [ ${#todo[@]} -gt 0 ] || done_already
}
begin begin_again

# ---- the source package ---------------------------------------------------------------------------------------------

# Debian's archives among this machine's package sources, as URIs without the slash at the end.
archives() {
    # shellcheck disable=SC2016  # apt fills these in
    apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Identifier: Packages' 2>>"$log" |
        awk '$1 == "Debian" && $2 == "main" { sub("/+$", "", $3); print $3 }' | sort -u
}

# DIRECTORY: writes the entries for these archives there again, as sources of source packages. Everything else about
# them stays: suites, keys, options.
write_sources() {
    local to=$1 list='' parts='' uris file
    uris=$(archives)
    if [ -z "$uris" ]; then
        # The lists were never fetched here, or have been removed, as images for containers do.
        local as_root=()
        if [ "$(id -u)" -ne 0 ]; then
            command -v sudo >/dev/null || die "apt's package lists are empty; as root, run: apt-get update"
            as_root=(sudo)
        fi
        "${as_root[@]}" timeout --foreground -k 20 300 apt-get -q update >>"$log" 2>&1 </dev/null 9>&- || true
        uris=$(archives)
    fi
    [ -n "$uris" ] || failed "no Debian archive is among this machine's package sources; this needs Debian 12 (bookworm)"
    eval "$(apt-config shell list Dir::Etc::sourcelist/f parts Dir::Etc::sourceparts/d)"
    for file in "$list" "$parts"/*.list; do
        [ -r "$file" ] || continue
        uris=$uris awk '
            BEGIN { count = split(ENVIRON["uris"], list, "\n"); for (i = 1; i <= count; i++) wanted[list[i]] = 1 }
            /^[ \t]*deb[ \t]/ {
                bare = $0
                sub(/\[[^]]*\]/, "", bare)
                split(bare, word, " ")
                uri = word[2]
                sub("/+$", "", uri)
                if (uri in wanted) { sub(/deb/, "deb-src"); print }
            }' "$file"
    done >"$to/debian.list"
    for file in "$parts"/*.sources; do
        [ -r "$file" ] || continue
        uris=$uris awk '
            BEGIN { RS = ""; count = split(ENVIRON["uris"], list, "\n"); for (i = 1; i <= count; i++) wanted[list[i]] = 1 }
            {
                lines = split($0, line, "\n")
                keep = inside = 0
                for (i = 1; i <= lines; i++) {
                    if (line[i] ~ /^#/) continue
                    if (line[i] !~ /^[ \t]/) inside = tolower(line[i]) ~ /^uris:/
                    if (!inside) continue
                    words = split(line[i], word, /[ \t]+/)
                    for (j = 1; j <= words; j++) { sub("/+$", "", word[j]); if (word[j] in wanted) keep = 1 }
                }
                if (!keep) next
                for (i = 1; i <= lines; i++) {
                    if (tolower(line[i]) ~ /^types:/) line[i] = "Types: deb-src"
                    print line[i]
                }
                print ""
            }' "$file"
    done >"$to/debian.sources"
}

# Leaves $cache/download with the source package in it.
download() {
    local apt=$tmp/apt found
    mkdir -p "$apt"/{sources,lists/partial,archives/partial,package}
    write_sources "$apt/sources"
    local options=(
        -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/sources"
        -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt"
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3
        -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30
    )
    bounded 300 apt-get -q "${options[@]}" update || failed "cannot fetch Debian's list of source packages"
    found=$(apt-cache "${options[@]}" showsrc --only-source kubernetes 2>>"$log" |
        awk '/^Version:/ { print $2 }' | sort -uV) || true
    local chosen
    chosen=$(grep -E "^(.*really)?${version//./\\.}[-+]" <<<"$found" | tail -n 1) ||
        failed "Debian's archive, as this machine uses it, has no Kubernetes $version source (it has: ${found:-none})." \
            "Debian 12 (bookworm) has it."
    say "fetching the source package kubernetes $chosen"
    cd "$apt/package"
    bounded 900 apt-get -q "${options[@]}" source --only-source --download-only "kubernetes=$chosen" ||
        failed "cannot fetch the source package kubernetes $chosen"
    cd /
    rm -rf "$cache/download"
    mv "$apt/package" "$cache/download"
}

# Leaves $cache/source with the source in it, ready to build.
unpack() {
    local reflect2=/usr/share/gocode/src/github.com/modern-go/reflect2 tree=$tmp/source
    [ -d "$cache/download" ] || download
    bounded 300 dpkg-source --extract "$cache"/download/kubernetes_*.dsc "$tree" || {
        rm -rf "$cache/download"
        failed "cannot unpack the source package"
    }
    # The vendored reflect2 crashes in programs built with Go 1.18 or newer.
    rm -rf "$tree/vendor/github.com/modern-go/reflect2"
    cp -rL "$reflect2" "$tree/vendor/github.com/modern-go/reflect2"
    # A GOPATH that has the source where its import paths say.
    mkdir -p "$tree/.go/src/k8s.io"
    ln -s ../../.. "$tree/.go/src/k8s.io/kubernetes"
    # Kubernetes' build has its Go cache here; it is worth more than this tree.
    mkdir -p "$cache/go-build" "$tree/_output/local/go"
    ln -s "$cache/go-build" "$tree/_output/local/go/cache"
    # There is no git to ask.
    printf '%s\n' 'KUBE_GIT_COMMIT=unknown' 'KUBE_GIT_TREE_STATE=archive' "KUBE_GIT_VERSION=v$version" \
        'KUBE_GIT_MAJOR=1' 'KUBE_GIT_MINOR=20' >"$tree/.kube-version"
    rm -rf "$cache/source"
    mv "$tree" "$cache/source"
}

# ---- build ----------------------------------------------------------------------------------------------------------

# PROGRAM
build() {
    local source=$cache/source built=$cache/source/_output/bin/$1 what=cmd/$1
    [ "$1" != e2e.test ] || what=test/e2e/e2e.test
    # An interrupted build may leave generated code half written, so it starts from the package again.
    # Go's build cache makes that cheap.
    [ ! -e "$source/.building" ] || rm -rf "$source"
    [ -d "$source" ] || unpack
    touch "$source/.building"
    cd "$source"
    bounded 3000 env -u GOROOT -u GOFLAGS -u GOBIN -u GOOS -u GOARCH -u MAKEFLAGS -u MAKELEVEL \
        PATH="/usr/lib/go/bin:$PATH" GOENV=off GOTOOLCHAIN=local GOPROXY=off \
        GOPATH="$source/.go" GO111MODULE=off CGO_ENABLED=0 KUBE_GIT_VERSION_FILE="$source/.kube-version" \
        make WHAT="$what" || failed "building $1 failed"
    cd /
    usable "$built" || failed "the $1 just built does not run as Kubernetes v$version"
    cp "$built" "$tmp/$1"
    mv "$tmp/$1" "$cache/$1"
    rm -f "$source/.building"
}

command -v apt-get >/dev/null || die "no apt-get here; this needs Debian 12 (bookworm)"
free=$(df -Pk "$cache" | awk 'NR == 2 { print int($4 / 1048576) }')
[ "$free" -ge 4 ] || die "building needs 4 GB of free disk space; $cache has $free"
"$here/install.sh" --kubernetes 9>&-
for program in "${todo[@]}"; do
    started=$SECONDS
    say "building $program v$version from Debian's source; minutes on two cores (output: $log)"
    build "$program"
    say "built $cache/$program in $((SECONDS - started)) s"
done
