# The steps of docs/layouts.md and docs/upgrade.md, for tests/nodes.sh, which sources this file.
# shellcheck shell=bash disable=SC2154  # the caller's variables

readonly own=/etc/kubernetes/kube-interop-proxy manifest=/etc/kubernetes/manifests/kube-apiserver.yaml
readonly pod=/etc/kubernetes/manifests/kube-interop-proxy.yaml

is_sidecar() { [ -e "$state/$1/root$manifest" ] && grep -q kube-interop-proxy "$state/$1/root$manifest"; }
is_pod() { [ -e "$state/$1/root$pod" ]; }
is_proxied() { is_sidecar "$1" || is_pod "$1"; }
installed() {
    if is_sidecar "$1"; then echo sidecar; elif is_pod "$1"; then echo 'own pod'; else echo 'no proxy'; fi
}
server_ready() { [ "$(kubectl_on "$1" get --raw /readyz 2>/dev/null)" = ok ]; }
proxy_ready() { on "$1" curl --silent --fail http://127.0.0.1:6450/readyz; }
# The containers of the node that run, an ID a line.
running() { on "$1" ctr --namespace k8s.io tasks list | awk '$3 == "RUNNING" { print $1 }' | sort; }
of_container() { # NODE NAME
    comm -12 <(running "$1") <(on "$1" ctr --namespace k8s.io containers list "labels.\"io.kubernetes.container.name\"==$2" |
        awk 'NR > 1 { print $1 }' | sort)
}
of_apiserver() { of_container "$1" kube-apiserver; }

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
    local node before patches=patches
    [ "$as" = sidecar ] || patches=patches-own-pod
    for node in $(names); do
        say "$node: files, and the new manifest"
        on "$node" sh -euc "
            install -d -m 0700 $own/patches
            cp deploy/kubeadm/proxy.yaml deploy/kubeadm/kube-interop-proxy.yaml $own/
            cp deploy/kubeadm/$patches/kube-apiserver+strategic.yaml $own/patches/
            sed -i 's/10\.0\.0\.11/$(address "$node")/; s/cp-1/$node/' $own/proxy.yaml
            $program check --config $own/proxy.yaml
            cd $own
            kubectl patch --local --type=strategic --output=yaml \
                --filename $manifest --patch-file patches/kube-apiserver+strategic.yaml > kube-apiserver.new.yaml
            diff $manifest kube-apiserver.new.yaml > difference || true
            cp $manifest kube-apiserver.before.yaml"
        before=$(of_apiserver "$node")
        on "$node" mv $own/kube-apiserver.new.yaml $manifest
        if [ "$as" = pod ]; then
            # The proxy ends if something else has its port, and kubelet lets it wait.
            until_done 60 "the end of $node's old apiserver" not_everywhere "$node"
            on "$node" cp $own/kube-interop-proxy.yaml $pod
        fi
        wait_replaced "$node" "$before"
        say "$node: the proxy and its apiserver are ready"
    done
}
not_everywhere() { [[ $(listening "$1") != *'*:6443'* ]]; }

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
        on "$node" "$program" check --config $own/proxy.yaml --live | { grep -v '^ok' || true; }
        on "$node" curl --silent http://127.0.0.1:6450/metrics | grep '^kube_interop_proxy_requests_total{.*decision="local"'
    done
    kubectl_on cp-1 get nodes
}
listening() { on "$1" ss --listening --tcp --numeric --no-header '( sport = :6443 )' | awk '{ print $4 }' | sort -u; }
all_ready() { ! on "$1" curl --silent 'http://127.0.0.1:6450/readyz?verbose' | grep -F '[-]'; }
peers() { on "$1" curl --silent http://127.0.0.1:6450/metrics | grep -qx "kube_interop_proxy_peers{state=\"target\"} $2"; }

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

# NAME NODE SCRIPT ARGUMENT…: a client in the background, in the node's namespaces; waits until it was served. What it saw is in
# $state/NAME.txt once $state/stop is there and `clients` have ended.
clients=()
client() {
    local name=$1 node=$2 script=$3
    shift 3
    rm -f "$state/$name.started"
    on "$node" python3 "$here/nodes/$script.py" --started "$state/$name.started" --stop "$state/stop" "$@" >"$state/$name.txt" &
    clients+=($!)
    until_done 60 "the client $name" test -e "$state/$name.started"
}
tied() { client "tied-$1" "$1" client --server "https://$(address "$1"):6443" --every 0.2 /api/v1/namespaces/default; }
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
        tied "$node"
        restart_pod "$node"
        end_clients
        say "tied to $node ($(installed "$node")), restart $round: $(cat "$state/tied-$node.txt")"
    done
}

# A manifest of another name takes the place of the proxy's: the new proxy takes over.
step_proxy() {
    local node before
    for node in $(names); do
        is_pod "$node" || continue
        rm -f "$state/stop"
        tied "$node"
        before=$(of_container "$node" kube-interop-proxy)
        on "$node" sh -euc "
            cd $own
            sed 's/name: kube-interop-proxy-1$/name: kube-interop-proxy-2/' kube-interop-proxy.yaml > kube-interop-proxy.new.yaml
            ctr --namespace k8s.io images list --quiet | grep \"\$(sed -n 's/ *image: //p' kube-interop-proxy.new.yaml)\"
            mv $pod kube-interop-proxy.old.yaml
            mv kube-interop-proxy.new.yaml $pod"
        until_done 120 "the old proxy's end on $node" ended "$node" "$before"
        until_done 60 "the new proxy on $node" proxy_ready "$node"
        end_clients
        say "tied to $node, another proxy: $(cat "$state/tied-$node.txt")"
    done
}
ended() { ! running "$1" | grep -qx "$2"; } # NODE CONTAINER

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

# What load and informers ask for, and how many connections the load keeps.
readonly asked='/api/v1/namespaces/default /api/v1/nodes/cp-1 /api/v1/namespaces/kube-system/endpoints /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases'
readonly informed='/api/v1/pods /api/v1/nodes /api/v1/endpoints /api/v1/configmaps /api/v1/events /api/v1/namespaces /api/v1/secrets /apis/coordination.k8s.io/v1/leases'
readonly connections=32

# Clients through the load balancer, which are to notice nothing.
start_clients() {
    local node server=https://$vip:6443
    client new-connections cp-1 client --server "$server" --every 0.05 /api/v1/namespaces/default
    # shellcheck disable=SC2086  # a path each
    client load cp-1 load --server "$server" --rate "${RATE:-100}" --clients $connections $asked
    # shellcheck disable=SC2086  # three informers for each path
    client informers cp-1 informers --server "$server" $informed $informed $informed
    write_all_the_time >"$state/kubectl.txt" &
    clients+=($!)
    for node in $(names); do
        client "logs-$node" cp-1 streams --ends "$state/logs-$node.ends" \
            kubectl --kubeconfig /etc/kubernetes/admin.conf logs --follow --tail 1 "talk-$node"
        client "exec-$node" cp-1 streams --ends "$state/exec-$node.ends" \
            kubectl --kubeconfig /etc/kubernetes/admin.conf exec "talk-$node" -- /talk
        tied "$node"
    done
    watch_leases "$state/leases.txt" &
    clients+=($!)
}

# Until $state/stop is there: a create, a get and a delete of kubectl, one after the other.
write_all_the_time() {
    local number=0 failed=0 arguments said
    while [ ! -e "$state/stop" ]; do
        for arguments in "create configmap written-$number" "get configmap written-$number" "delete configmap written-$number"; do
            # shellcheck disable=SC2086  # words
            said=$(outside kubectl --kubeconfig "$state/cp-1/root/etc/kubernetes/admin.conf" $arguments 2>&1) || {
                failed=$((failed + 1))
                echo "kubectl $arguments: $said" >>"$state/kubectl-failed.txt"
            }
        done
        number=$((number + 1))
        sleep 0.2
    done
    echo "$((number * 3)) commands, $failed failed"
}

step_upgrade() {
    local node before begin to=${FLAGS-'    runtime-config: batch/v2alpha1=true'}
    rm -f "$state"/{stop,new.txt,drains,kubectl-failed.txt}
    start_clients
    for node in $(names); do
        before=$(of_apiserver "$node")
        begin=$(date +%s)
        rewrite "$node" "$to"
        until_done 120 "the end of $node's old apiserver" ended "$node" "$before"
        echo "$begin $(date +%s)" >>"$state/drains"
        wait_replaced "$node" "$before"
        say "$node: upgraded"
        if [ "$node" = "$(names | head -n 1)" ] && is_proxied "$node"; then
            # From now on somebody serves it: no node may say that it is not there.
            until_done 60 'the new version, through each node' served_by_all
            client new cp-1 client --server "https://$vip:6443" --every 0.05 $new_path
        fi
    done
    end_clients
    tell
}

# What the clients of step_upgrade saw. Fails if they noticed something that they are not to notice.
tell() {
    local node told
    say "upgraded, $(installed cp-1)"
    for told in new-connections load informers kubectl new; do
        [ ! -e "$state/$told.txt" ] || say "through the load balancer, $told: $(cat "$state/$told.txt")"
    done
    for node in $(names); do
        for told in logs exec; do say "$told of $node: $(cat "$state/$told-$node.txt")"; done
        say "tied to $node: $(cat "$state/tied-$node.txt")"
    done
    python3 "$here/nodes/leases.py" "$state/leases.txt" || die 'a node was late, or not ready'
    # With one node there is nobody else to ask.
    is_proxied cp-1 && [ "$(names | wc -l)" -gt 1 ] || return 0
    # A sidecar serves everything for 5 s (shutdown.delay) before it ends streams; the apiserver of an own pod ends at once.
    # A second for the clocks of both, two for kubectl.
    awk -v delay="$(is_sidecar cp-1 && echo 4 || echo 0)" '
        NR == FNR { begin[NR] = $1 + delay; end[NR] = $2 + 3; drains = NR; next }
        { early = 1; for (i = 1; i <= drains; i++) if ($1 >= begin[i] && $1 <= end[i]) early = 0; count += early }
        END { print "  streams cut outside of a drain: " count + 0; exit count > 0 }' \
        "$state/drains" "$state"/{logs,exec}-*.ends || die 'streams were cut outside of a drain'
    for told in new-connections load new; do
        [[ ! -e $state/$told.txt || $(cat "$state/$told.txt") == *'others: none' ]] || die 'requests through the load balancer failed'
    done
    [[ $(cat "$state/kubectl.txt") == *' 0 failed' ]] || die "kubectl failed: $(cat "$state/kubectl-failed.txt")"
    # Watches get a last bookmark from a proxy that stops, and not from an apiserver that does.
    [[ $(cat "$state/informers.txt") == *'missed 0 objects'* ]] || die 'informers missed objects'
    ! is_sidecar cp-1 || [[ $(cat "$state/informers.txt") == *'again 0 times'* ]] || die 'informers listed again'
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
        if is_pod "$node"; then
            on "$node" mv $pod $own/
            until_done 120 "the end of $node's proxy" no_proxy "$node"
        fi
        on "$node" mv $own/kube-apiserver.before.yaml $manifest
        wait_replaced "$node" "$before"
        [ "$(listening "$node")" = '*:6443' ] || die "$node listens on $(listening "$node")"
        no_proxy "$node" || die "$node: the proxy is still there"
        say "$node: without a proxy"
    done
    # Nothing of the proxies is left but their records, for an hour.
    until_done 60 'the end of the live keys' no_live_keys
    kubectl_on cp-1 get --namespace kube-system leases
}
no_proxy() { [ -z "$(of_container "$1" kube-interop-proxy)" ]; }
no_live_keys() {
    [ -z "$(on cp-1 env ETCDCTL_API=3 etcdctl --endpoints https://127.0.0.1:2379 --cacert /etc/kubernetes/pki/etcd/ca.crt \
        --cert /etc/kubernetes/pki/apiserver-etcd-client.crt --key /etc/kubernetes/pki/apiserver-etcd-client.key \
        get --prefix --keys-only /kube-interop-proxy/registry/ | grep /live/)" ]
}
