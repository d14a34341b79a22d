#!/usr/bin/env bash
# Real control plane nodes on one machine: network namespaces with a containerd and a kubelet each, static pods as kubeadm writes
# them, etcd among them, a load balancer before them, and a virtual IP that moves as keepalived does it. Everything of
# Kubernetes is 1.20.2. On these `install kubeadm` and `uninstall kubeadm` are run, while clients ask.
#
#   tests/nodes.sh [OPTION...] STEP...
#   tests/nodes.sh [OPTION...] all         every step in the order below, `down` in any case
#
#   --nodes N            1 or 3, default 3; counts for the step `up`
#   --layout LAYOUT      what the step `in` asks `install` for: own-pod (default), sidecar or native-sidecar
#
#   build      programs and images; minutes on two cores for the first time
#   up         nodes, without a proxy
#   tied       a client of one node alone, while its apiserver's pod is started again (TIMES times, default 3)
#   in         `check --pre` and `install`, one node after the other
#   look       `check --live`, listeners, Endpoints, peers
#   crash      proxy, apiserver and kubelet of the first node are killed, and started again by kubelet and systemd; clients may notice it
#   again      `install` once more on all nodes: nothing may change
#   proxy      `install` with a newer image, on all nodes at once: they do it one after the other
#   wrong      `install` with an image that is not there, and with one that nobody can fetch: nothing changed, everything put back
#   upgrade    `kubeadm upgrade apply` with other flags on the first node, then `upgrade node` on the others, and `install` as soon
#              as the manifest was written, as deploy/systemd/kube-interop-proxy-keep.path does it
#   versions   kube-apiserver alone becomes that of each directory in VERSIONS, on one node after the other, and then the one before,
#              back to the first; not part of `all`
#   forgotten  `kubeadm upgrade node` on the last node by somebody who does not know the proxy; `install` afterwards
#   rollback   `kubeadm upgrade node` on the last node with an image that nobody has: it restores the manifest
#   rejoin     `kubeadm reset` and `join` on the last node; `install` afterwards
#   renew      kubeadm renews certificates
#   out        `uninstall`, one node after the other
#   down       ends everything that is there
#
# From `in` to `out` clients ask all the time, through the load balancer, through the virtual IP, and each node alone; each step
# says what they saw, and how many seconds it took. With three nodes a step fails if a client of the load balancer notices
# anything. RATE is the requests of kept connections a second, default 100.
#
# PROGRAM names the proxy to install, by default the one that cargo builds for tests; NEXT that of the newer image, by default
# the same.
#
# KUBERNETES names the directory of another version's kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubeadm
# and kubectl; CONTAINERD that of another containerd with its shim and ctr; ETCD another etcd; VERSIONS directories of later
# kube-apiservers, with `:` between them. Give the same ones to all steps.
#
# Needs root, Debian 12, and control groups (version 1) that can be written to. The nodes' addresses, 10.0.0.0/24, are in
# namespaces of their own: the machine itself has none of them, and nothing gets out. State is in
# ${TMPDIR:-/tmp}/kube-interop-proxy-nodes; after `down` what the nodes' programs said is in logs/ there. One run at a time: the
# nodes of two would share directories.
#
# Not as on a real node: no systemd (node.sh starts containerd and kubelet), no CNI (pods on the host's network alone), no
# crictl (ctr instead), haproxy for a load balancer, and one version of kubeadm: but for `versions` other flags stand for another
# version.
set -Eeuo pipefail

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname -- "$here")
state=${TMPDIR:-/tmp}/kube-interop-proxy-nodes
built=${XDG_CACHE_HOME:-${HOME:?}/.cache}/kube-interop-proxy/kubernetes-1.20.2
programs=${KUBERNETES:-$built}
target=${CARGO_TARGET_DIR:-$top/target}
program=${PROGRAM:-$target/debug/kube-interop-proxy}
export PATH=$programs:${CONTAINERD:+$CONTAINERD:}$PATH
readonly cri=unix:///run/containerd/containerd.sock balancer=10.0.0.100 vip=10.0.0.99 prefix=kip-

say() { printf 'nodes [%4d s]: %s\n' "$SECONDS" "$*"; }
die() {
    printf 'nodes: %s\n' "$@" >&2
    exit 1
}
trap 'printf "nodes: failed at line %s: %s\n" "$LINENO" "$BASH_COMMAND" >&2' ERR

# ---- nodes ----------------------------------------------------------------------------------------------------------

names() { cat "$state/names"; }
address() { echo "10.0.0.1${1#cp-}"; }
pid() { cat "$state/$1/pid"; }
on() { # NODE COMMAND…: in all namespaces of the node
    local node=$1
    shift
    nsenter --target "$(pid "$node")" --mount --uts --ipc --net --pid --wd="$top" -- "$@"
}
kubectl_on() { # NODE ARGUMENT…: as the node's administrator, at the node's own address
    local node=$1
    shift
    on "$node" kubectl --kubeconfig /etc/kubernetes/admin.conf --server "https://$(address "$node"):6443" --request-timeout 10s "$@"
}
outside() { KUBECONFIG=$state/cp-1/root/etc/kubernetes/admin.conf ip netns exec "${prefix}net" "$@"; } # beside the load balancer

# SECONDS WHAT COMMAND…: until the command succeeds.
until_done() {
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || die "waited too long for $what: $*"
        sleep 0.5
    done
}

# Is the process of this file still the one that was started? A number alone may be another process by now.
ours() { # FILE
    local number started
    [ -s "$1" ] && read -r number started <"$1" && [ "$(started_at "$number")" = "$started" ]
}
started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }
remember() { # FILE PID
    printf '%s %s\n' "$2" "$(started_at "$2")" >"$1"
}

# ---- versions -------------------------------------------------------------------------------------------------------

etcd=${ETCD:-$(command -v etcd || true)}
etcd_tag() { "$etcd" --version | awk 'NR == 1 { print $3 "-0" }'; }
version() { kubeadm version --output short; }
minor() { version | cut -d. -f2; }
since() { [ "$(minor)" -ge "$1" ]; }
IFS=: read -ra others <<<"${VERSIONS:-}"
version_in() { "$1/kube-apiserver" --version | cut -d' ' -f2; } # DIRECTORY

# ---- build ----------------------------------------------------------------------------------------------------------

archive_of() { echo "$state/images/$(tr '/:' '--' <<<"$1").tar"; } # NAME
image() { # NAME FILE=PATH…
    python3 "$here/nodes/image.py" "$(archive_of "$1")" "$@"
}

step_build() {
    "$here/install.sh" --nodes
    [ "$programs" != "$built" ] ||
        nice -n 10 "$here/build-kubernetes.sh" kube-apiserver kube-controller-manager kube-scheduler kubelet kubeadm kubectl
    [ -n "${PROGRAM:-}" ] || nice -n 10 cargo build --locked --manifest-path "$top/Cargo.toml" --bin kube-interop-proxy
    rm -rf "$state/images"
    mkdir -p "$state/images"
    cc -static -O2 -o "$state/pause" "$here/nodes/pause.c"
    cc -static -O2 -o "$state/talk" "$here/nodes/talk.c"
    say 'images'
    image local.test/pause:3.2 "$state/pause=/pause"
    image local.test/talk:1 "$state/talk=/talk"
    image "local.test/etcd:$(etcd_tag)" "$etcd=/usr/local/bin/etcd"
    local name
    for name in kube-apiserver kube-controller-manager kube-scheduler; do
        image "local.test/$name:$(version)" "$programs/$name=/usr/local/bin/$name"
    done
    for name in "${others[@]}"; do
        image "local.test/kube-apiserver:$(version_in "$name")" "$name/kube-apiserver=/usr/local/bin/kube-apiserver"
    done
    # kubeadm fetches these too, one minute each if they are not there. None is started.
    for name in $(kubeadm config images list --kubernetes-version "$(version)" --image-repository local.test); do
        [ -e "$(archive_of "$name")" ] || image "$name" "$state/pause=/pause"
    done
    python3 "$here/nodes/image.py" "$state/proxy.tar" kube-interop-proxy:0.1.0 "$program=/usr/local/bin/kube-interop-proxy"
    python3 "$here/nodes/image.py" "$state/next.tar" kube-interop-proxy:next "${NEXT:-$program}=/usr/local/bin/kube-interop-proxy"
}

# ---- up -------------------------------------------------------------------------------------------------------------

# NAME=VALUE…: kubeadm's extraArgs.
extra() {
    local flag
    for flag; do
        if since 31; then
            printf '      - {name: %s, value: "%s"}\n' "${flag%%=*}" "${flag#*=}"
        else
            printf '      %s: "%s"\n' "${flag%%=*}" "${flag#*=}"
        fi
    done
}

# NODE NAME=VALUE…: kubeadm's configuration, with further flags of kube-apiserver.
configuration() {
    local node=$1 members='' other api=v1beta2
    shift
    ! since 22 || api=v1beta3
    ! since 31 || api=v1beta4
    for other in $(names); do members+=,$other=https://$(address "$other"):2380; done
    # A cluster of three that is new, and not one that is joined by one member after the other.
    members=(initial-cluster="${members#,}")
    # As later versions of kubeadm do by themselves: last bookmarks need it.
    since 31 || members+=(experimental-watch-progress-notify-interval=5s)
    cat <<EOF
apiVersion: kubeadm.k8s.io/$api
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: $(address "$node"), bindPort: 6443}
nodeRegistration: {name: $node, criSocket: "$cri"}
---
apiVersion: kubeadm.k8s.io/$api
kind: ClusterConfiguration
kubernetesVersion: $(version)
imageRepository: local.test
controlPlaneEndpoint: $balancer:6443
apiServer:
  certSANs: [$vip]
  extraArgs:
$(extra v=2 "$@")
controllerManager:
  extraArgs:
$(extra flex-volume-plugin-dir=/var/lib/kubelet/volumeplugins)
etcd:
  local:
    imageTag: $(etcd_tag)
    dataDir: /var/lib/etcd
    extraArgs:
$(extra "${members[@]}")
EOF
}

kubelet_configuration() {
    cat <<EOF
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: /etc/kubernetes/manifests
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
# As kubeadm writes it: kubelet starts pods before it has a certificate.
rotateCertificates: true
makeIPTablesUtilChains: false
volumePluginDir: /var/lib/kubelet/volumeplugins
evictionHard: {imagefs.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, memory.available: 100Mi}
imageGCHighThresholdPercent: 100
EOF
    # A kubelet that does not know its disk yet would refuse etcd's pod, for good.
    if since 27; then
        echo 'localStorageCapacityIsolation: false'
        echo 'containerRuntimeEndpoint: unix:///run/containerd/containerd.sock'
        ! since 35 || echo 'failCgroupV1: false'
    else
        echo 'featureGates: {LocalStorageCapacityIsolation: false}'
    fi
}

start_node() { # NODE
    local node=$1 dir=$state/$1 holder runtime=()
    mkdir -p "$dir"
    address "$node" >"$dir/address"
    cat >"$dir/containerd.toml" <<EOF
version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]
[plugins."io.containerd.grpc.v1.cri"]
  # Without CAP_SYS_RESOURCE no process may get a better score than its parent.
  restrict_oom_score_adj = true
  sandbox_image = "local.test/pause:3.2"
  # Never asked: all pods are on the host's network. Without a file kubelet's node is not ready.
  cni.conf_dir = "$dir/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
# From version 2 on: the same, and for ctr's imports.
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/amd64"
  snapshotter = "native"
EOF
    mkdir -p "$dir/cni"
    echo '{"cniVersion": "0.3.1", "name": "none", "plugins": [{"type": "loopback"}]}' >"$dir/cni/none.conflist"
    kubelet_configuration >"$dir/kubelet.yaml"
    since 27 || runtime=(--container-runtime remote --container-runtime-endpoint unix:///run/containerd/containerd.sock)
    ip netns add "$prefix$node"
    ip -n "${prefix}net" link add "$node" type veth peer name eth0 netns "$prefix$node"
    ip -n "${prefix}net" link set "$node" master nodes up
    ip -n "$prefix$node" address add "$(address "$node")/24" dev eth0
    ip -n "$prefix$node" link set eth0 up
    ip -n "$prefix$node" route add default via $balancer
    PATH=$PATH setsid nsenter --net="/run/netns/$prefix$node" unshare --mount --uts --ipc --pid --fork --kill-child --mount-proc \
        "$here/nodes/node.sh" "$dir" "$node" "${runtime[@]}" >"$dir/node.log" 2>&1 </dev/null &
    holder=$!
    remember "$dir/holder" "$holder"
    until_done 20 "$node" pgrep --parent "$holder"
    pgrep --parent "$holder" >"$dir/pid"
    until_done 60 "$node's containerd" test -e "$dir/up"
    local archive
    for archive in "$state"/images/*.tar; do
        on "$node" ctr --namespace k8s.io images import --snapshotter native "$archive" >/dev/null
    done
}

authorities() { # NODE: gets the first one's
    local file
    on "$1" mkdir -p /etc/kubernetes/pki/etcd
    for file in {,front-proxy-,etcd/}ca.{crt,key} sa.{pub,key}; do
        cp "$state/cp-1/root/etc/kubernetes/pki/$file" "$state/$1/root/etc/kubernetes/pki/$file"
    done
}

etcd_flags() { # NODE: kubeadm from 1.34 on takes every etcd for 3.6
    ! since 34 || [[ $(etcd_tag) != 3.[0-5].* ]] ||
        sed -i -e '/--feature-gates=/d' -e 's/--watch-progress/--experimental-watch-progress/' "$state/$1/root/etc/kubernetes/manifests/etcd.yaml"
}

kubeadm_init() { # NODE: what kubeadm init does, without the parts that need a running cluster
    local node=$1
    configuration "$node" >"$state/$node/kubeadm.yaml"
    [ "$node" = cp-1 ] || authorities "$node"
    local phase phases=('certs all' 'kubeconfig admin')
    ! since 29 || phases+=('kubeconfig super-admin')
    for phase in "${phases[@]}" 'kubeconfig controller-manager' 'kubeconfig scheduler' 'control-plane all' 'etcd local' 'kubeconfig kubelet' kubelet-start; do
        # shellcheck disable=SC2086  # two words
        kubeadm_on "$node" init phase $phase --config "$state/$node/kubeadm.yaml" || {
            tail -n 5 "$state/$node/kubeadm.log" >&2
            die "kubeadm init phase $phase failed on $node"
        }
    done
    etcd_flags "$node"
    on "$node" cp "$here/nodes/talk.yaml" /etc/kubernetes/manifests/
    echo "vrrp_instance api { virtual_ipaddress { $vip/24 } }" >"$state/$node/root/etc/keepalived/keepalived.conf"
}

start_balancer() {
    local node
    {
        cat <<EOF
global
    maxconn 4000
defaults
    mode tcp
    timeout connect 2s
    # On a busy machine an answer takes longer than the pause between two checks.
    timeout check 5s
    timeout client 1h
    timeout server 1h
frontend api
    bind $balancer:6443
    default_backend nodes
backend nodes
    option httpchk GET /readyz
    option redispatch 1
    retries 3
    default-server check check-ssl verify none inter 2s fall 2 rise 2
EOF
        for node in $(names); do echo "    server $node $(address "$node"):6443"; done
    } >"$state/haproxy.cfg"
    # It stands for another machine, which is not busy with the nodes.
    setsid nice -n -10 ip netns exec "${prefix}net" haproxy -db -f "$state/haproxy.cfg" >"$state/haproxy.log" 2>&1 </dev/null &
    remember "$state/haproxy.pid" $!
    # shellcheck disable=SC2046  # a name each
    setsid "$here/nodes/vip.sh" $prefix $vip $(names) >"$state/vip.log" 2>&1 </dev/null &
    remember "$state/vip.pid" $!
}

grant() { # what kubeadm init grants once the apiserver serves
    local create='kubectl --kubeconfig /etc/kubernetes/super-admin.conf create clusterrolebinding'
    # shellcheck disable=SC2086  # words
    until_done 60 'the rights of administrators' on cp-1 $create kubeadm:cluster-admins \
        --clusterrole cluster-admin --group kubeadm:cluster-admins
    # shellcheck disable=SC2086
    until_done 60 'the rights of apiservers' on cp-1 $create kubeadm:apiserver-kubelet-client \
        --clusterrole system:kubelet-api-admin --user kube-apiserver-kubelet-client
}

step_up() {
    [ ! -e "$state/names" ] || die "nodes are there already; end them first: $0 down"
    [ -d "$state/images" ] || die "no images yet: $0 build"
    local node
    : >"$state/names"
    for ((node = 1; node <= nodes; node++)); do echo "cp-$node" >>"$state/names"; done
    ip netns add "${prefix}net"
    ip -n "${prefix}net" link set lo up
    ip -n "${prefix}net" link add nodes type bridge
    ip -n "${prefix}net" address add $balancer/24 dev nodes
    ip -n "${prefix}net" link set nodes up
    start_balancer
    # All pods of all nodes are in this group: by default they would have as much as one process beside it.
    mkdir -p /sys/fs/cgroup/cpu/k8s.io
    echo 16384 >/sys/fs/cgroup/cpu/k8s.io/cpu.shares
    for node in $(names); do
        say "$node"
        start_node "$node"
        kubeadm_init "$node"
    done
    for node in $(names); do
        until_done 300 "$node's apiserver" kubectl_on "$node" get --raw /readyz
        say "$node's apiserver is ready"
    done
    ! since 29 || grant
    for node in $(names); do
        until_done 120 "$node in the cluster" kubectl_on "$node" get node "$node"
        upload "$node"
    done
    for node in $(names); do until_done 120 "$node's own pod" kubectl_on cp-1 logs --tail 1 "talk-$node"; done
    kubectl_on cp-1 get nodes
    kubectl_on cp-1 --namespace kube-system get pods --output wide
}

# ---- down -----------------------------------------------------------------------------------------------------------

step_down() {
    local holder netns group
    : >"$state/stop"
    for holder in "$state"/*/holder "$state"/{haproxy,vip}.pid; do
        ! ours "$holder" || kill -KILL "$(cut -d' ' -f1 "$holder")" 2>/dev/null || true
    done
    for holder in "$state"/*/holder; do
        # The kernel ends what is in a node's process namespace with its first process.
        [ ! -e "$holder" ] || until_done 30 "the end of $(dirname "$holder")" gone "$(cat "$(dirname "$holder")/pid" 2>/dev/null)"
    done
    # What programs said stays, until the next end.
    [ ! -e "$state/names" ] || rm -rf "$state/logs"
    for holder in "$state"/cp-*; do
        [ ! -d "$holder" ] || { mkdir -p "$state/logs/$(basename "$holder")" && mv "$holder"/*.log "$holder"/root/var/log/pods "$state/logs/$(basename "$holder")/"; }
    done
    [ ! -e "$state/names" ] || mv "$state"/{haproxy,vip}.log "$state/logs/"
    for netns in $(ip netns list | awk -v p="$prefix" 'index($1, p) == 1 { print $1 }'); do ip netns delete "$netns"; done
    # What containerd and kubelet made in there, deepest first; directories in which somebody is stay.
    for group in /sys/fs/cgroup/*/k8s.io; do
        [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
    if [ -e "$state/made" ]; then
        sort -r "$state/made" | xargs rmdir --ignore-fail-on-non-empty 2>/dev/null || true
    fi
    rm -rf "$state/made" "$state"/cp-* "$state/names" "$state"/{haproxy,vip}.*
}
gone() { [ -z "$1" ] || ! kill -0 "$1"; }

# ---- steps ----------------------------------------------------------------------------------------------------------

nodes=3 layout=own-pod
[ "$(id -u)" -eq 0 ] || die 'needs root'
mkdir -p "$state"
. "$here/nodes/steps.sh"
trap ': >"$state/stop"' EXIT
[ $# -gt 0 ] || die "usage: $0 [OPTION...] STEP..."
[ "${*: -1}" != all ] || {
    trap 'step_down' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    set -- "${@:1:$#-1}" build down up tied in look tied crash again proxy wrong upgrade forgotten rollback rejoin look renew out
}
while [ $# -gt 0 ]; do
    case $1 in
    --nodes) nodes=$2; shift ;;
    --layout) layout=$2; shift ;;
    build | up | tied | in | look | crash | again | proxy | wrong | upgrade | versions | forgotten | rollback | rejoin | renew | out | down) say "step $1"; "step_$1" ;;
    *) die "usage: $0 [OPTION...] STEP..." ;;
    esac
    shift
done
