#!/usr/bin/env bash
# Makes the container image from what program.sh has built: the program, the libraries that it needs, and nothing else.
#
#   deploy/release/image.sh [--from DIRECTORY] [--to FILE]
#
#   --from   where kube-interop-proxy, sbom.cdx.json and third-party.txt are; by default target/dist
#   --to     the archive, as docker load, podman load and ctr images import take it;
#            by default target/dist/kube-interop-proxy-VERSION.image.tar
#
# The same files and the same commit make the same bytes.
set -euo pipefail
name=image.sh
# shellcheck source=deploy/release/arguments.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/arguments.sh"
# shellcheck source=deploy/release/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
from=${from:-$dist}
to=${to:-$dist/kube-interop-proxy-$version.image.tar}

need buildah buildah
need dpkg-query dpkg
need ldd libc-bin
[ "$(id -u)" -eq 0 ] || die 'run it as root, or: buildah unshare deploy/release/image.sh'
tmp=$(mktemp -d "${TMPDIR:-/tmp}/kube-interop-proxy-image.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
# Nothing of this machine's images and settings.
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
storage=(--root "$tmp/storage" --runroot "$tmp/run")

tree=$tmp/tree
install -D -m 0755 "$from/kube-interop-proxy" "$tree/usr/local/bin/kube-interop-proxy"
install -D -m 0644 "$from/sbom.cdx.json" "$tree/usr/share/doc/kube-interop-proxy/sbom.cdx.json"
install -D -m 0644 "$from/third-party.txt" "$tree/usr/share/doc/kube-interop-proxy/third-party.txt"
install -D -m 0644 LICENSE "$tree/usr/share/doc/kube-interop-proxy/copyright"

# Each library where the program looks for it, with its licence, and its package where scanners look for packages.
packages=
while read -r library; do
    install -D -m 0644 "$(realpath -- "$library")" "$tree$library"
    package=$(dpkg-query --search "*/${library##*/}" | sed -n 's/^\([^:]*\):.*/\1/p' | grep -v -- -cross | head -n 1)
    [ -n "$package" ] || die "no package has $library"
    packages+="$package "
done < <(ldd "$from/kube-interop-proxy" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p; s/^\t\(\/[^ ]*\) .*/\1/p' | sort)
chmod 0755 "$tree"/lib64/ld-*
for package in $(tr ' ' '\n' <<<"$packages" | sort -u); do
    install -d "$tree/var/lib/dpkg/status.d" "$tree/usr/share/doc/$package"
    dpkg-query --status "$package" | grep -v '^Status:\|^Conffiles:\|^ /' >"$tree/var/lib/dpkg/status.d/$package"
    [ ! -e "/usr/share/doc/$package/copyright" ] ||
        cat "/usr/share/doc/$package/copyright" >"$tree/usr/share/doc/$package/copyright"
done
# A name for the number, for who looks at a process from outside; the image itself goes by the number.
install -d "$tree/etc"
echo 'nonroot:x:65532:65532:nonroot:/:/nonexistent' >"$tree/etc/passwd"
echo 'nonroot:x:65532:' >"$tree/etc/group"

image=$(buildah "${storage[@]}" from scratch)
buildah "${storage[@]}" add --quiet --chown 0:0 "$image" "$tree" / >/dev/null
label() { labels+=(--label "org.opencontainers.image.$1=$2"); }
labels=()
label title kube-interop-proxy
label description "$(sed -n 's/^description = "\(.*\)"$/\1/p' Cargo.toml)"
label version "$version"
label revision "$commit"
label created "$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)"
label licenses Apache-2.0
# User: a number, because kubelet's runAsNonRoot cannot tell who a name is.
buildah "${storage[@]}" config "${labels[@]}" \
    --user 65532:65532 --workingdir / --stop-signal SIGTERM --env PATH=/usr/local/bin --env MIMALLOC_ALLOW_THP=0 \
    --entrypoint '["/usr/local/bin/kube-interop-proxy"]' \
    --cmd 'run --config /etc/kubernetes/kube-interop-proxy/proxy.yaml' "$image"
buildah "${storage[@]}" commit --quiet --format oci --timestamp "$SOURCE_DATE_EPOCH" "$image" \
    "localhost/kube-interop-proxy:$version" >/dev/null
rm -f "$to"
# By this name the manifests find it: containerd takes a name without a registry for one of docker.io.
buildah "${storage[@]}" push --quiet "localhost/kube-interop-proxy:$version" \
    "docker-archive:$to:docker.io/library/kube-interop-proxy:$version" >/dev/null
say "$to: $(stat --format=%s "$to") bytes, $(sha256sum "$to" | cut -d ' ' -f 1)"
