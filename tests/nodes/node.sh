#!/usr/bin/env bash
# The first process of a node's namespaces: containerd and kubelet, each started again when it ends, as systemd would.
# With its end the kernel ends everything in the node.
#
#   node.sh DIRECTORY NAME FLAG...         called by tests/nodes.sh; further flags of kubelet
set -eu
dir=$1 name=$2
shift 2
hostname "$name"

# What the node writes is its own.
own() { # DIRECTORY OF THE MACHINE
    [ -d "$1" ] || { mkdir -p "$1" && echo "$1" >>"$dir/../made"; }
    mkdir -p "$dir/root$1"
    mount --bind "$dir/root$1" "$1"
}
mount --make-rprivate /
for path in /etc/kubernetes /etc/keepalived /var/lib/kubelet /var/lib/etcd /var/lib/containerd /var/log/pods /var/log/containers; do own "$path"; done
mount -t tmpfs -o mode=755 node /run
ip link set lo up
mkdir -p /etc/kubernetes/manifests

keep() { # COMMAND…: its output goes to a file of its name
    while :; do
        ("$@") >>"$dir/$(basename "${1%_when_told}").log" 2>&1 || true
        sleep 1
    done
}
keep containerd --config "$dir/containerd.toml" &
until ctr --address /run/containerd/containerd.sock version >/dev/null 2>&1; do sleep 0.2; done
: >"$dir/up"
# kubelet waits for what kubeadm writes, and for its `systemctl start`.
kubelet_when_told() {
    until [ ! -e /run/kubelet.stopped ] && [ -e /etc/kubernetes/kubelet.conf -o -e /etc/kubernetes/bootstrap-kubelet.conf ]; do sleep 0.2; done
    exec kubelet "$@"
}
keep kubelet_when_told --config "$dir/kubelet.yaml" --kubeconfig /etc/kubernetes/kubelet.conf \
    --bootstrap-kubeconfig /etc/kubernetes/bootstrap-kubelet.conf --root-dir /var/lib/kubelet "$@" --hostname-override "$name" --node-ip "$(cat "$dir/address")" --v 2 &
# Reaps what containerd leaves behind, too.
while :; do wait -n || sleep 0.1; done
