# What goes wrong when a proxy is installed or stopped, for tests/nodes.sh, which sources this file.
# shellcheck shell=bash disable=SC2154  # the caller's variables

# On the last node, if its proxy is a pod of its own. Clients of the load balancer must not notice it, somebody must name it, and
# the node must come back by itself once the cause is gone.
step_wrong() {
    local node
    node=$(names | tail -n 1)
    is_pod "$node" || { say 'no proxy is a pod of its own'; return; }
    rm -f "$state/stop"
    client load cp-1 load --server "https://$vip:6443" --rate 50 --clients 8 /api/v1/namespaces/default
    wrong_address "$node"
    wrong_image "$node"
    wrong_grace "$node"
    end_clients
    say "through the load balancer: $(cat "$state/load.txt")"
    say "informer of $node: $(cat "$state/informers.txt")"
    [[ $(cat "$state/load.txt") == *'others: none' ]] || die 'clients of the load balancer noticed it'
    [[ $(cat "$state/informers.txt") == *'again 0 times, missed 0 objects'* ]] || die 'the informer lost something'
}

# NODE SED: the proxy's pod under another name, with a changed manifest.
another_pod() {
    on "$1" sh -euc "
        sed -i 's/name: kube-interop-proxy-[0-9]*$/name: kube-interop-proxy-$(date +%s)/; $2' $own/kube-interop-proxy.yaml
        mv $pod $own/kube-interop-proxy.old.yaml
        cp $own/kube-interop-proxy.yaml $own/new.yaml
        mv $own/new.yaml $pod"
}
logged() { grep -rhoE "$2" "$state/$1/root/var/log/pods/"*/kube-interop-proxy/ | tail -n 1 | grep .; } # NODE PATTERN
event() { kubectl_on cp-1 get events --namespace kube-system --output jsonpath='{range .items[*]}{.message}{"\n"}{end}' | grep -m 1 "$1"; } # PATTERN

wrong_address() {
    local node=$1 first
    first=$(address cp-1)
    on "$node" sed -i "s/bindAddress: $(address "$node")/bindAddress: $first/" $own/proxy.yaml
    # It finds a problem, so it fails.
    { on "$node" "$program" check --config $own/proxy.yaml --live || true; } | grep -E '^problem.*bindAddress' || die 'check --live does not name it'
    another_pod "$node" ''
    until_done 180 'a line in the log' logged "$node" "cannot listen on $first[^\"]*"
    say "another node's address: $(logged "$node" "cannot listen on $first[^\"]*")"
    until_done 120 "kubelet's event" event 'Back-off restarting failed container'
    on "$node" sed -i "s/bindAddress: $first/bindAddress: $(address "$node")/" $own/proxy.yaml
    comes_back "$node"
}

wrong_image() {
    local node=$1
    another_pod "$node" 's/image: .*/image: kube-interop-proxy:missing/'
    until_done 180 "kubelet's event" event 'Failed to pull image "kube-interop-proxy:missing"'
    say "missing image: $(event 'Failed to pull image "kube-interop-proxy:missing"')"
    on "$node" ctr --namespace k8s.io images tag docker.io/library/kube-interop-proxy:0.1.0 docker.io/library/kube-interop-proxy:missing
    comes_back "$node"
}

# Killed in the middle of the drain, which a watch keeps going.
wrong_grace() {
    local node=$1 before
    another_pod "$node" 's/image: .*/image: kube-interop-proxy:0.1.0/; s/terminationGracePeriodSeconds: .*/terminationGracePeriodSeconds: 8/'
    comes_back "$node"
    before=$(of_container "$node" kube-interop-proxy)
    client informers "$node" informers --server "https://$(address "$node"):6443" /api/v1/configmaps
    another_pod "$node" 's/terminationGracePeriodSeconds: .*/terminationGracePeriodSeconds: 150/'
    until_done 60 "the old proxy's end" ended "$node" "$before"
    killed "$node" "$before" || die 'it was not killed'
    say "killed at the grace's end: $(killed "$node" "$before")"
    comes_back "$node"
}
killed() { grep -ho -m 1 "Kill container ..$2" "$state/$1/containerd.log"; } # NODE CONTAINER

comes_back() {
    local begin=$SECONDS
    until_done 400 "$1's proxy" proxy_ready "$1"
    until_done 60 "$1's peers" peers "$1" $(($(names | wc -l) - 1))
    say "$1 is back after $((SECONDS - begin)) s"
}
