# The steps of docs/deploy.md and docs/upgrade.md, for tests/nodes.sh, which sources this file.
# shellcheck shell=bash disable=SC2154  # the caller's variables

readonly own=/etc/kubernetes/kube-interop-proxy manifest=/etc/kubernetes/manifests/kube-apiserver.yaml

is_proxied() { [ -e "$state/$1/root$manifest" ] && grep -q kube-interop-proxy "$state/$1/root$manifest"; }
server_ready() { [ "$(kubectl_on "$1" get --raw /readyz 2>/dev/null)" = ok ]; }
proxy_ready() { on "$1" curl --silent --fail http://127.0.0.1:10260/readyz; }
# The containers of the node's apiserver that run: "ID IMAGE" a line.
running() { on "$1" ctr --namespace k8s.io tasks list | awk '$3 == "RUNNING" { print $1 }' | sort; }
of_apiserver() {
    on "$1" ctr --namespace k8s.io containers list 'labels."io.kubernetes.container.name"==kube-apiserver' | awk 'NR > 1 { print $1 }' | sort |
        comm -12 - <(running "$1")
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
        on "$node" ctr --namespace k8s.io containers list | grep -E 'kube-apiserver|kube-interop-proxy' | awk '{ print "  " $2 }'
        on "$node" ss --listening --tcp --numeric --no-header '( sport = :6443 )' | awk '{ print "  " $4 }'
        on "$node" ss --listening --tcp --numeric --no-header '( sport = :6443 )' | grep -q '[*]:6443' && die "$node: something listens on all addresses"
        until_done 60 "every line of $node's /readyz" all_ready "$node"
        kubectl_on "$node" get --raw /readyz >/dev/null
        kubectl_on "$node" get endpoints kubernetes | grep -q "$(address "$node"):6443" || die "$node is not in the Endpoints"
        until_done 60 "$node's peers" peers "$node" $((count - 1))
        on "$node" "$target/debug/kube-interop-proxy" check --config $own/proxy.yaml --live
        on "$node" curl --silent http://127.0.0.1:10260/metrics | grep '^kube_interop_proxy_requests_total' | head -n 3
    done
    kubectl_on cp-1 get nodes
}
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

step_tied() {
    local node round times=${TIMES:-5}
    node=$(names | head -n 1)
    for ((round = 1; round <= times; round++)); do
        on "$node" python3 "$here/nodes/client.py" --server "https://$(address "$node"):6443" --every 0.2 \
            --stop "$state/stop" /api/v1/namespaces/default >"$state/tied.txt" &
        local client=$!
        rm -f "$state/stop"
        restart_pod "$node"
        sleep 3
        : >"$state/stop"
        wait "$client"
        say "tied to $node ($(is_proxied "$node" && echo sidecar || echo 'no proxy')), restart $round: $(cat "$state/tied.txt")"
    done
}
