# The steps of docs/deploy.md and docs/upgrade.md, for tests/nodes.sh, which sources this file.
# shellcheck shell=bash disable=SC2154  # the caller's variables

readonly own=/etc/kubernetes/kube-interop-proxy manifest=/etc/kubernetes/manifests/kube-apiserver.yaml

is_proxied() { [ -e "$state/$1/root$manifest" ] && grep -q kube-interop-proxy "$state/$1/root$manifest"; }
server_ready() { [ "$(kubectl_on "$1" get --raw /readyz 2>/dev/null)" = ok ]; }
proxy_ready() { on "$1" curl --silent --fail http://127.0.0.1:10260/readyz; }
# The containers of the node's apiserver that run: "ID IMAGE" a line.
running() { on "$1" ctr --namespace k8s.io tasks list | awk '$3 == "RUNNING" { print $1 }' | sort; }
of_apiserver() {
    comm -12 <(running "$1") <(on "$1" ctr --namespace k8s.io containers list 'labels."io.kubernetes.container.name"==kube-apiserver' |
        awk 'NR > 1 { print $1 }' | sort)
}

# NODE: until the manifest's pod, and no older one, is there and ready.
replaced() { # NODE CONTAINER BEFORE
    local now
    now=$(of_apiserver "$1")
    [ -n "$now" ] && [ "$(wc -l <<<"$now")" -eq 1 ] && [ "$now" != "$2" ]
}
wait_replaced() { # NODE CONTAINER BEFORE
    until_done 240 "the new pod on $1" replaced "$1" "$2"
    until_done 180 "$1's apiserver" server_ready "$1"
    ! is_proxied "$1" || until_done 60 "$1's proxy" proxy_ready "$1"
}

# ---- in -------------------------------------------------------------------------------------------------------------

step_in() {
    local node before
    for node in $(names); do
        say "$node: files, and the new manifest"
        on "$node" sh -euc "
            install -d -m 0700 $own/patches
            cp deploy/kubeadm/proxy.yaml $own/
            cp deploy/kubeadm/patches/kube-apiserver+strategic.yaml $own/patches/
            sed -i 's/10\.0\.0\.11/$(address "$node")/; s/cp-1/$node/' $own/proxy.yaml
            $target/debug/kube-interop-proxy check --config $own/proxy.yaml
            cd $own
            kubectl patch --local --type=strategic --output=yaml \
                --filename $manifest --patch-file patches/kube-apiserver+strategic.yaml > kube-apiserver.new.yaml
            diff $manifest kube-apiserver.new.yaml > difference || true
            cp $manifest kube-apiserver.before.yaml"
        before=$(of_apiserver "$node")
        on "$node" mv $own/kube-apiserver.new.yaml $manifest
        wait_replaced "$node" "$before"
        say "$node: the proxy and its apiserver are ready"
    done
}

step_look() {
    local node count
    count=$(names | wc -l)
    for node in $(names); do
        say "$node"
        on "$node" ctr --namespace k8s.io containers list | awk '/kube-apiserver|kube-interop-proxy/ { print "  " $2 }' | sort -u
        [ "$(listening "$node")" = "$(printf '%s:6443\n' "$(address "$node")" 127.0.0.1)" ] || die "$node listens on $(listening "$node")"
        until_done 60 "every line of $node's /readyz" all_ready "$node"
        kubectl_on "$node" get --raw /readyz >/dev/null
        kubectl_on "$node" get endpoints kubernetes | grep -q "$(address "$node"):6443" || die "$node is not in the Endpoints"
        until_done 60 "$node's peers" peers "$node" $((count - 1))
        on "$node" "$target/debug/kube-interop-proxy" check --config $own/proxy.yaml --live | { grep -v '^ok' || true; }
        on "$node" curl --silent http://127.0.0.1:10260/metrics | grep '^kube_interop_proxy_requests_total{.*decision="local"'
    done
    kubectl_on cp-1 get nodes
}
listening() { on "$1" ss --listening --tcp --numeric --no-header '( sport = :6443 )' | awk '{ print $4 }' | sort -u; }
all_ready() { ! on "$1" curl --silent 'http://127.0.0.1:10260/readyz?verbose' | grep -F '[-]'; }
peers() { on "$1" curl --silent http://127.0.0.1:10260/metrics | grep -qx "kube_interop_proxy_peers{state=\"target\"} $2"; }

# ---- restarts -------------------------------------------------------------------------------------------------------

# NODE: the pod once more, by a manifest that differs in an annotation alone.
restart_pod() {
    local node=$1 before
    before=$(of_apiserver "$node")
    on "$node" sh -euc "
        kubectl patch --local --type=strategic --output=yaml --filename $manifest \
            --patch '{\"metadata\":{\"annotations\":{\"restart\":\"$(date +%s)\"}}}' > /etc/kubernetes/restart.yaml
        mv /etc/kubernetes/restart.yaml $manifest"
    wait_replaced "$node" "$before"
}

# NAME NODE SERVER SECONDS PATH: a client in the background, in the node's namespaces; waits until it was served. What it saw
# is in $state/NAME.txt once $state/stop is there and `clients` have ended.
clients=()
client() {
    rm -f "$state/$1.started"
    on "$2" python3 "$here/nodes/client.py" --server "https://$3:6443" --every "$4" --started "$state/$1.started" \
        --stop "$state/stop" "$5" >"$state/$1.txt" &
    clients+=($!)
    until_done 60 "the client $1" test -e "$state/$1.started"
}
end_clients() {
    : >"$state/stop"
    wait "${clients[@]}"
    clients=()
}

step_tied() {
    local node round times=${TIMES:-5}
    node=$(names | head -n 1)
    for ((round = 1; round <= times; round++)); do
        rm -f "$state/stop"
        client tied "$node" "$(address "$node")" 0.2 /api/v1/namespaces/default
        restart_pod "$node"
        end_clients
        say "tied to $node ($(is_proxied "$node" && echo sidecar || echo 'no proxy')), restart $round: $(cat "$state/tied.txt")"
    done
}

# ---- upgrade --------------------------------------------------------------------------------------------------------

# What the other flags bring: a group version that is not served without them. Objects of it are asked for all the time.
readonly new_path=/apis/batch/v2alpha1/namespaces/default/cronjobs

# NODE FLAGS: kubeadm writes the apiserver's manifest, as its upgrade does, with the patches if the node has some.
rewrite() {
    local node=$1 patches=()
    ! is_proxied "$node" || patches=(--experimental-patches $own/patches)
    configuration "$node" "$2" >"$state/$node/kubeadm.yaml"
    on "$node" kubeadm init phase control-plane apiserver --config "$state/$node/kubeadm.yaml" "${patches[@]}" >>"$state/$node/kubeadm.log" 2>&1
}

# FILE: each node's lease and readiness, once in half a second, until $state/stop is there.
watch_leases() {
    while [ ! -e "$state/stop" ]; do
        outside kubectl --kubeconfig "$state/cp-1/root/etc/kubernetes/admin.conf" --request-timeout 3s get --namespace kube-node-lease leases \
            --output 'jsonpath={range .items[*]}{.metadata.name} {.spec.renewTime}{"\n"}{end}' 2>/dev/null || true
        outside kubectl --kubeconfig "$state/cp-1/root/etc/kubernetes/admin.conf" --request-timeout 3s get nodes --no-headers 2>/dev/null |
            awk '$2 != "Ready" { print $1, "NotReady" }' || true
        sleep 0.5
    done >"$1"
}

step_upgrade() {
    local node before told to=${FLAGS-'    runtime-config: batch/v2alpha1=true'}
    rm -f "$state/stop" "$state/new.txt"
    client load cp-1 $vip 0.05 /api/v1/namespaces/default
    for node in $(names); do client "tied-$node" "$node" "$(address "$node")" 0.2 /api/v1/namespaces/default; done
    watch_leases "$state/leases.txt" &
    clients+=($!)
    for node in $(names); do
        before=$(of_apiserver "$node")
        rewrite "$node" "$to"
        wait_replaced "$node" "$before"
        say "$node: upgraded"
        if [ "$node" = "$(names | head -n 1)" ] && is_proxied "$node"; then
            # From now on somebody serves it: no node may say that it is not there.
            until_done 60 'the new version, through each node' served_by_all
            client new cp-1 $vip 0.05 $new_path
        fi
    done
    end_clients
    say "through the load balancer: $(cat "$state/load.txt")"
    for node in $(names); do say "tied to $node:            $(cat "$state/tied-$node.txt")"; done
    [ ! -e "$state/new.txt" ] || say "what only new ones serve:  $(cat "$state/new.txt")"
    python3 "$here/nodes/leases.py" "$state/leases.txt" || die 'a node was late, or not ready'
    is_proxied cp-1 || return 0
    for told in load new; do
        [[ ! -e $state/$told.txt || $(cat "$state/$told.txt") == *'others: none' ]] || die 'requests through the load balancer failed'
    done
}
served_by_all() {
    local node
    for node in $(names); do kubectl_on "$node" get --raw $new_path || return; done
}

# ---- renew ----------------------------------------------------------------------------------------------------------

serial() { # NODE: of the certificate that the node shows to clients
    on "$1" sh -c "openssl s_client -connect $(address "$1"):6443 </dev/null 2>/dev/null | openssl x509 -noout -serial"
}
step_renew() {
    local node before
    for node in $(names); do
        before=$(serial "$node")
        on "$node" kubeadm certs renew all --config "$state/$node/kubeadm.yaml" | sed 's/^/  /'
        until_done 30 "$node's new certificate" another_serial "$node" "$before"
        until_done 30 "$node's proxy" proxy_ready "$node"
        kubectl_on "$node" get --raw /readyz >/dev/null
        say "$node: shows the new certificate, without a restart"
    done
}
another_serial() { [ "$(serial "$1")" != "$2" ]; }

# ---- out ------------------------------------------------------------------------------------------------------------

step_out() {
    local node before
    for node in $(names); do
        before=$(of_apiserver "$node")
        on "$node" mv $own/kube-apiserver.before.yaml $manifest
        wait_replaced "$node" "$before"
        [ "$(listening "$node")" = '*:6443' ] || die "$node listens on $(listening "$node")"
        ! on "$node" curl --silent http://127.0.0.1:10260/livez || die "$node: the proxy is still there"
        say "$node: without a proxy"
    done
    # Nothing of the proxies is left but their records, for an hour.
    until_done 60 'the end of the live keys' no_live_keys
    kubectl_on cp-1 get --namespace kube-system leases
}
no_live_keys() {
    [ -z "$(on cp-1 env ETCDCTL_API=3 etcdctl --endpoints https://127.0.0.1:2379 --cacert /etc/kubernetes/pki/etcd/ca.crt \
        --cert /etc/kubernetes/pki/apiserver-etcd-client.crt --key /etc/kubernetes/pki/apiserver-etcd-client.key \
        get --prefix --keys-only /kube-interop-proxy/registry/ | grep /live/)" ]
}
