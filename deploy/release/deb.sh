#!/usr/bin/env bash
# Makes the Debian package from what program.sh has built.
#
#   deploy/release/deb.sh [--from DIRECTORY] [--to FILE]
#
#   --from   where kube-interop-proxy, sbom.cdx.json and third-party.txt are; by default target/dist
#   --to     by default target/dist/kube-interop-proxy_VERSION_ARCHITECTURE.deb
#
# The same files and the same commit make the same bytes.
set -euo pipefail
name=deb.sh
# shellcheck source=deploy/release/arguments.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/arguments.sh"
# shellcheck source=deploy/release/lib.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/lib.sh"
need dpkg-deb dpkg
need dpkg-shlibdeps dpkg-dev
architecture=$(dpkg --print-architecture)
from=${from:-$dist}
to=${to:-$dist/kube-interop-proxy_${version}_$architecture.deb}

tmp=$(mktemp -d "${TMPDIR:-/tmp}/kube-interop-proxy-deb.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
tree=$tmp/tree
doc=$tree/usr/share/doc/kube-interop-proxy
put() { install -D -m "${3:-0644}" "$1" "$tree/$2"; }

put "$from/kube-interop-proxy" usr/bin/kube-interop-proxy 0755
sed 's|/usr/local/bin/|/usr/bin/|; s|^\(# .*\) /etc/systemd/system/.*|\1|' deploy/systemd/kube-interop-proxy.service >"$tmp/unit"
put "$tmp/unit" lib/systemd/system/kube-interop-proxy.service
put deploy/debian/kube-interop-proxy.1 usr/share/man/man1/kube-interop-proxy.1
put deploy/debian/completion.bash usr/share/bash-completion/completions/kube-interop-proxy
put deploy/debian/completion.zsh usr/share/zsh/vendor-completions/_kube-interop-proxy
put deploy/debian/completion.fish usr/share/fish/vendor_completions.d/kube-interop-proxy.fish

put config.example.yaml usr/share/doc/kube-interop-proxy/examples/config.example.yaml
put deploy/kubeadm/proxy.yaml usr/share/doc/kube-interop-proxy/examples/proxy.yaml
put deploy/debian/copyright usr/share/doc/kube-interop-proxy/copyright
put "$from/sbom.cdx.json" usr/share/doc/kube-interop-proxy/sbom.cdx.json
put "$from/third-party.txt" usr/share/doc/kube-interop-proxy/third-party.txt
put deploy/debian/lintian-overrides usr/share/lintian/overrides/kube-interop-proxy
printf 'kube-interop-proxy (%s) unstable; urgency=medium\n\n  * Commit %s.\n    CHANGELOG.md of the source says what has changed.\n\n -- %s  %s\n' \
    "$version" "$commit" "$(sed -n 's/^Maintainer: //p' deploy/debian/control)" \
    "$(date --utc --rfc-email --date "@$SOURCE_DATE_EPOCH")" >"$doc/changelog"
gzip -9 --no-name "$doc/changelog" "$tree/usr/share/man/man1/kube-interop-proxy.1"

# What the program's libraries are packaged as.
mkdir -p "$tmp/source/debian"
printf 'Source: kube-interop-proxy\n\nPackage: kube-interop-proxy\nArchitecture: any\n' >"$tmp/source/debian/control"
depends=$(cd "$tmp/source" && dpkg-shlibdeps -O "$tree/usr/bin/kube-interop-proxy" 2>"$tmp/said") ||
    die "$(cat "$tmp/said")"
depends=${depends#shlibs:Depends=}

install -d "$tree/DEBIAN"
(cd "$tree" && find usr lib -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
size=$(du --apparent-size --summarize --block-size=1024 "$tree" | cut -f 1)
sed "s|@VERSION@|$version|; s|@ARCHITECTURE@|$architecture|; s|@DEPENDS@|$depends|; s|@SIZE@|$size|" \
    deploy/debian/control >"$tree/DEBIAN/control"
install -m 0755 deploy/debian/postinst deploy/debian/prerm deploy/debian/postrm "$tree/DEBIAN/"

# Times by SOURCE_DATE_EPOCH.
dpkg-deb --root-owner-group --build "$tree" "$to" >/dev/null
say "$to: $(stat --format=%s "$to") bytes, $(sha256sum "$to" | cut -d ' ' -f 1)"
