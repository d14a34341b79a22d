#!/bin/sh
# Creates an etcd user with the least rights that the proxy needs: to read facts about the cluster, and to write its own keys.
#
#   etcd-role.sh [USER]          default kube-interop-proxy: the common name of the certificate in etcd.certFile
#
# etcdctl's ETCDCTL_… variables say where etcd is and which user asks; that user must have the role root.
#   PREFIX       the kube-apiserver's --etcd-prefix, default /registry
#   NAMESPACES   identity.leaseNamespaces, default "kube-system kube-apiserver-lease"
#
# It only creates user and role, and changes nothing for anybody until `etcdctl auth enable` is run. Nothing here gives access
# to Secrets. With this role alone watches are not handed over and end without a last bookmark: both need to read what is
# watched. Set watch.bookmarkOnShutdown: false and watch.handOver: false, or grant read below the whole prefix.
set -eu

user=${1:-kube-interop-proxy}
prefix=${PREFIX:-/registry}
export ETCDCTL_API=3

etcdctl role get "$user" >/dev/null 2>&1 || etcdctl role add "$user"
grant() { etcdctl role grant-permission --prefix=true "$user" "$1" "$2"; }

# Other servers, and what is custom: read.
grant read "$prefix/storageversions/"
grant read "$prefix/apiextensions.k8s.io/customresourcedefinitions/"
grant read "$prefix/apiregistration.k8s.io/apiservices/"
for namespace in ${NAMESPACES:-kube-system kube-apiserver-lease}; do
    grant read "$prefix/leases/$namespace/"
done
# Apiservers without a proxy: read.
grant read "$prefix/masterleases/"
# The header names by which apiservers recognise users: read, one key.
etcdctl role grant-permission "$user" read "$prefix/configmaps/kube-system/extension-apiserver-authentication"
# What proxies tell each other, and apiservers that reroute by themselves: read and written.
grant readwrite "$prefix/peerserverleases/"
grant readwrite "/kube-interop-proxy$prefix/"

# Without a password: only the holder of the certificate is this user.
etcdctl user get "$user" >/dev/null 2>&1 || etcdctl user add "$user" --no-password
etcdctl user grant-role "$user" "$user"
