# The steps with and without the proxy, for tests/nodes.sh, which sources this file.
# shellcheck shell=bash disable=SC2154  # the caller's variables

readonly own=/etc/kubernetes/kube-interop-proxy manifests=/etc/kubernetes/manifests
readonly manifest=$manifests/kube-apiserver.yaml

last() { names | tail -n 1; }
manifest_of() { echo "$state/$1/root$manifest"; }
is_sidecar() { grep -q 'name: kube-interop-proxy' "$(manifest_of "$1")"; }
is_pod() { compgen -G "$state/$1/root$manifests/kube-interop-proxy*.yaml" >/dev/null; }
is_changed() { grep -q -e '--bind-address=127.0.0.1' "$(manifest_of "$1")"; }
installed() { if is_sidecar "$1"; then echo sidecar; elif is_pod "$1"; then echo 'own pod'; else echo 'no proxy'; fi; }
server_ready() { [ "$(kubectl_on "$1" get --raw /readyz 2>/dev/null)" = ok ]; }
# The containers of this name that run on the node, an ID a line.
of_container() { # NODE NAME
    comm -12 <(on "$1" ctr --namespace k8s.io tasks list | awk '$3 == "RUNNING" { print $1 }' | sort) \
        <(on "$1" ctr --namespace k8s.io containers list "labels.\"io.kubernetes.container.name\"==$2" | awk 'NR > 1 { print $1 }' | sort)
}
# NODE BEFORE: the apiserver's container is another one, and alone.
replaced() {
    local now
    now=$(of_container "$1" kube-apiserver)
    [ -n "$now" ] && [ "$(wc -l <<<"$now")" -eq 1 ] && [ "$now" != "$2" ]
}
listening() { on "$1" ss --listening --tcp --numeric --no-header '( sport = :6443 )' | awk '{ print $4 }' | sort -u | xargs; }
all_ready() { ! on "$1" curl --silent 'http://127.0.0.1:6450/readyz?verbose' | grep -F '[-]'; }
peers() { on "$1" curl --silent http://127.0.0.1:6450/metrics | grep -qx "kube_interop_proxy_peers{state=\"target\"} $2"; }
fingerprint() { on "$1" sh -c "cat $own/* $manifests/* 2>/dev/null | sha256sum"; of_container "$1" kube-apiserver; of_container "$1" kube-interop-proxy; }

# NODE WORD…: the program on the node. What it said is in the node's install.log.
program_on() {
    local node=$1
    shift
    on "$node" env CONTAINERD_SNAPSHOTTER=native "$program" "$@" >"$state/$node/install.log" 2>&1
}
install_on() { program_on "$1" install kubeadm --yes "${@:2}" || failed_on "$1"; }
uninstall_on() { program_on "$1" uninstall kubeadm --yes "${@:2}" || failed_on "$1"; }
failed_on() {
    sed 's/^/  /' "$state/$1/install.log" >&2
    die "it failed on $1"
}
timed() { # WHAT COMMAND…
    local begin=${EPOCHREALTIME/./} what=$1 result=0 took
    shift
    "$@" || result=$?
    printf -v took '%d.%d' $(((${EPOCHREALTIME/./} - begin) / 1000000)) $(((${EPOCHREALTIME/./} - begin) / 100000 % 10))
    say "$what: $took s (load average $(cut -d' ' -f1 /proc/loadavg))"
    return $result
}

# ---- clients --------------------------------------------------------------------------------------------------------

# NAME SCRIPT ARGUMENT…: a client in the background; waits until it was served. What it saw is in $state/NAME.txt once
# $state/stop is there and `end_clients` is done.
clients=()
client() {
    local name=$1 script=$2
    shift 2
    rm -f "$state/$name.started"
    outside python3 "$here/nodes/$script.py" --started "$state/$name.started" --stop "$state/stop" "$@" >"$state/$name.txt" &
    clients+=($!)
    until_done 60 "the client $name" test -e "$state/$name.started"
}
tied() { client "tied-$1" client --server "https://$(address "$1"):6443" --every 0.2 /api/v1/namespaces/default; }
end_clients() {
    : >"$state/stop"
    wait "${clients[@]}"
    clients=()
}

# What load and informers ask for, and how many connections the load keeps.
readonly asked='/api/v1/namespaces/default /api/v1/nodes/cp-1 /api/v1/namespaces/kube-system/endpoints /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases'
readonly informed='/api/v1/pods /api/v1/nodes /api/v1/endpoints /api/v1/configmaps /api/v1/events /api/v1/namespaces /api/v1/secrets /apis/coordination.k8s.io/v1/leases'
readonly connections=32
# What the other flags of `upgrade` bring: a group version that is not served without them, in 1.20 and from 1.31 on.
new_path=/apis/batch/v2alpha1/namespaces/default/cronjobs new_flag=runtime-config=batch/v2alpha1=true
newer() { ! since 31 || new_path=/apis/networking.k8s.io/v1beta1/servicecidrs new_flag=runtime-config=networking.k8s.io/v1beta1=true; }

# COMMAND…: while clients ask, who are to notice nothing of it. Afterwards says what they saw.
under_load() {
    local node server=https://$balancer:6443
    rm -f "$state"/{stop,*.txt}
    client new-connections client --server "$server" --every 0.05 /api/v1/namespaces/default
    client virtual-ip client --server "https://$vip:6443" --every 0.2 /api/v1/namespaces/default
    # shellcheck disable=SC2086  # a path each
    client load load --server "$server" --rate "${RATE:-100}" --clients $connections $asked
    # shellcheck disable=SC2086  # three informers for each path
    client informers informers --server "$server" $informed $informed $informed
    write_all_the_time >"$state/kubectl.txt" &
    clients+=($!)
    for node in $(names); do
        client "logs-$node" streams kubectl logs --follow --tail 1 "talk-$node"
        client "exec-$node" streams kubectl exec "talk-$node" -- /talk
        tied "$node"
    done
    watch_leases "$state/leases.txt" &
    clients+=($!)
    "$@"
    end_clients
    tell
}

# Until $state/stop is there: a create, a get and a delete of kubectl, one after the other.
write_all_the_time() {
    local number=0 failed=0 arguments said
    while [ ! -e "$state/stop" ]; do
        for arguments in "create configmap written-$number" "get configmap written-$number" "delete configmap written-$number"; do
            # shellcheck disable=SC2086  # words
            said=$(outside kubectl $arguments 2>&1) || {
                failed=$((failed + 1))
                echo "kubectl $arguments: $said" >>"$state/kubectl-failed.txt"
            }
        done
        number=$((number + 1))
        sleep 0.2
    done
    echo "$((number * 3)) commands; others: $([ $failed -gt 0 ] && echo "$failed times failed" || echo none)"
}

# FILE: each node's lease and readiness, once in half a second, until $state/stop is there.
watch_leases() {
    while [ ! -e "$state/stop" ]; do
        outside kubectl --request-timeout 3s get --namespace kube-node-lease leases \
            --output 'jsonpath={range .items[*]}{.metadata.name} {.spec.renewTime}{"\n"}{end}' 2>/dev/null && date --utc +'asked %Y-%m-%dT%H:%M:%S.%6NZ' || true
        outside kubectl --request-timeout 3s get nodes --no-headers 2>/dev/null | awk '$2 != "Ready" { print $1, "NotReady" }' || true
        sleep 0.5
    done >"$1"
}

# What the clients of under_load saw. Fails if those of the load balancer saw anything; with one node it has nobody else to ask.
tell() {
    local told bad=
    for told in "$state"/{new-connections,load,kubectl,new,virtual-ip,informers,tied-*,logs-*,exec-*,loopback}.txt; do
        [ -e "$told" ] || continue
        say "  $(basename "$told" .txt): $(cat "$told")"
        case $told in
        # It asks only once; client-go would ask again.
        */new-connections.txt) [[ $(cat "$told") =~ others:\ (none|[1-9]\ times\ ${closed:-none})$ ]] || bad=1 ;;
        */load.txt | */kubectl.txt | */new.txt) [[ $(cat "$told") == *'others: none' ]] || bad=1 ;;
        # The proxy that has given way needs a moment.
        */loopback.txt) [ "$(cut -d' ' -f1 "$told")" -lt 5 ] || die 'an apiserver was on loopback without a proxy' ;;
        */informers.txt) [[ $(cat "$told") == *'missed 0 objects'* ]] || bad=1 ;;
        esac
    done
    [ "$(names | wc -l)" -gt 1 ] && [ -z "${may_notice:-}" ] || return 0
    # In the apiserver's pod the proxy ends with it, and kubelet waits as it does without one.
    python3 "$here/nodes/leases.py" "$state/leases.txt" $([ "$layout" = own-pod ] && echo 20 || echo 60) || bad=1
    [ -z "$bad" ] || die 'clients noticed it' "$(cat "$state/kubectl-failed.txt" 2>/dev/null)"
}

# ---- steps ----------------------------------------------------------------------------------------------------------

# The pod once more, by a manifest that differs in an annotation alone.
restart_pod() { # NODE
    local before
    before=$(of_container "$1" kube-apiserver)
    on "$1" sh -euc "
        kubectl patch --local --type=strategic --output=yaml --filename $manifest \
            --patch '{\"metadata\":{\"annotations\":{\"restart\":\"$(date +%s)\"}}}' > /etc/kubernetes/restart.yaml
        mv /etc/kubernetes/restart.yaml $manifest"
    wait_replaced "$1" "$before"
}
wait_replaced() { # NODE BEFORE
    until_done 240 "the new pod on $1" replaced "$1" "$2"
    until_done 180 "$1's apiserver" server_ready "$1"
    ! is_changed "$1" || until_done 60 "every line of $1's /readyz" all_ready "$1"
}
# Without a proxy clients of the load balancer notice it too.
step_tied() {
    local may_notice=
    is_changed cp-1 || may_notice=1
    under_load restarts
}
restarts() {
    local round
    for ((round = 1; round <= ${TIMES:-3}; round++)); do
        timed "cp-1 ($(installed cp-1)): restart" restart_pod cp-1
    done
}

# A process that is killed breaks its connections off, without a proxy too.
step_crash() {
    local may_notice=1
    under_load crashes
}
crashes() {
    local name
    for name in kube-interop-proxy kube-apiserver; do
        timed "cp-1 ($(installed cp-1)): $name killed" kill_container cp-1 $name
    done
    timed 'cp-1: kubelet killed' kill_kubelet cp-1
}
# NODE NAME: SIGKILL, until kubelet has started it again and all is ready.
kill_container() {
    local before
    before=$(of_container "$1" "$2")
    on "$1" ctr --namespace k8s.io tasks kill --signal SIGKILL "$before"
    until_done 180 "another $2 on $1" is_another "$1" "$2" "$before"
    until_done 180 "$1's apiserver" server_ready "$1"
    until_done 60 "every line of $1's /readyz" all_ready "$1"
}
is_another() { [ -n "$(of_container "$1" "$2")" ] && [ "$(of_container "$1" "$2")" != "$3" ]; }
# NODE: nothing else is to be started again.
kill_kubelet() {
    local before
    before=$(fingerprint "$1")
    on "$1" pkill --signal KILL --exact kubelet
    until_done 60 "kubelet on $1" on "$1" curl --silent --fail http://127.0.0.1:10248/healthz
    # In which it looks at its pods.
    sleep 20
    [ "$before" = "$(fingerprint "$1")" ] || die "$1 is not as before"
}

# A plain apiserver that is told to stop closes connections without an answer.
step_in() {
    local closed=RemoteDisconnected
    under_load each_in
}
each_in() {
    local node
    for node in $(names); do
        program_on "$node" check --pre -o short || failed_on "$node"
        timed "$node: install" install_on "$node" --layout "$layout" --image-archive "$state/proxy.tar"
        grep '^note: ' "$state/$node/install.log" || true
    done
}

step_look() {
    local node expected
    for node in $(names); do
        expected=$(printf '%s:6443\n' $balancer "$(address "$node")" $vip 127.0.0.1 | sort | xargs)
        [ "$(listening "$node")" = "$expected" ] || die "$node listens on $(listening "$node")"
        until_done 60 "every line of $node's /readyz" all_ready "$node"
        until_done 60 "$node's peers" peers "$node" $(($(names | wc -l) - 1))
        kubectl_on "$node" get endpoints kubernetes | grep -q "$(address "$node"):6443" || die "$node is not in the Endpoints"
        program_on "$node" check --live -o short || failed_on "$node"
        sed 's/^/  /' "$state/$node/install.log"
    done
    kubectl_on cp-1 get nodes
}

step_again() {
    local node before
    for node in $(names); do
        before=$(fingerprint "$node")
        timed "$node: install, again" install_on "$node"
        grep -qx 'Nothing is to be changed.' "$state/$node/install.log" || failed_on "$node"
        [ "$before" = "$(fingerprint "$node")" ] || die "$node is not as before"
    done
}

step_proxy() { under_load all_proxies; }
all_proxies() {
    local node installs=()
    for node in $(names); do
        timed "$node: install of a newer image" install_on "$node" --image kube-interop-proxy:next --image-archive "$state/next.tar" &
        installs+=($!)
    done
    for node in "${installs[@]}"; do wait "$node"; done
    for node in $(names); do
        grep -rhq 'image: kube-interop-proxy:next' "$state/$node/root$manifests" || die "$node does not have it"
    done
}

step_wrong() { under_load wrong_images; }
wrong_images() {
    local node before
    node=$(last)
    before=$(fingerprint "$node")
    ! timed "$node: install of a missing image" program_on "$node" install kubeadm --yes --image kube-interop-proxy:missing || die 'it is installed'
    [ "$before" = "$(fingerprint "$node")" ] || die "$node is not as before"
    before=$(on "$node" sh -c "cat $own/proxy.yaml $manifests/*")
    ! timed "$node: install of an image that cannot be fetched" program_on "$node" install kubeadm --yes --timeout 40s \
        --image registry.invalid/kube-interop-proxy:1 || die 'it is installed'
    tail -n 1 "$state/$node/install.log"
    [ "$before" = "$(on "$node" sh -c "cat $own/proxy.yaml $manifests/*")" ] || die "the files of $node are not as before"
    until_done 180 "every line of $node's /readyz" all_ready "$node"
}

# ---- other versions of kube-apiserver -------------------------------------------------------------------------------

# FROM TO: minor versions; a path that only TO serves, of two that follow each other in 20, 24, 36.
only_in() {
    case $1,$2 in
    20,24) echo /apis/autoscaling/v2/horizontalpodautoscalers ;;
    24,36) echo /apis/networking.k8s.io/v1/servicecidrs ;;
    36,24) echo /apis/policy/v1beta1/poddisruptionbudgets ;;
    24,20) echo /apis/extensions/v1beta1/ingresses ;;
    *) die "nothing is known of 1.$2 that 1.$1 does not serve" ;;
    esac
}

step_versions() {
    local all=("$(version)") index node
    [ ${#others[@]} -gt 0 ] || die 'VERSIONS names no other kube-apiserver'
    for node in "${others[@]}"; do all+=("$(version_in "$node")"); done
    for node in $(names); do cp "$(manifest_of "$node")" "$state/$node/first.yaml"; done
    for ((index = 1; index < ${#all[@]}; index++)); do under_load each_version "${all[index - 1]}" "${all[index]}"; done
    for ((index -= 1; index > 0; index--)); do under_load each_version "${all[index]}" "${all[index - 1]}"; done
}
each_version() { # FROM TO
    local node from to new_path
    from=$(cut -d. -f2 <<<"$1") to=$(cut -d. -f2 <<<"$2")
    new_path=$(only_in "$from" "$to")
    for node in $(names); do
        timed "$node: kube-apiserver $1 to $2" put_version "$node" "$2" "$to"
        kubectl_on "$node" get --raw /version | grep -q "\"$2\"" || die "$node's apiserver is another one"
        [ "$node" = cp-1 ] || continue
        until_done 60 "what only $2 serves, through each node" served_by_all
        client new client --server "https://$balancer:6443" --every 0.05 "$new_path"
    done
}
# NODE VERSION MINOR: the pod with this apiserver, without the flags that it does not know. From 1.29 on FlowSchemas are stored
# in a version that older ones cannot read; priority and fairness would wait for them.
put_version() {
    local before edit=("s|/kube-apiserver:.*|/kube-apiserver:$2|")
    [ "$3" -lt 24 ] || edit+=('/--insecure-port=/d')
    [ "$3" -lt 29 ] || edit+=('s|^\( *\)- --secure-port=.*|&\n\1- --runtime-config=flowcontrol.apiserver.k8s.io/v1=false\n\1- --enable-priority-and-fairness=false|')
    before=$(of_container "$1" kube-apiserver)
    sed "${edit[@]/#/-e}" "$state/$1/first.yaml" >"$state/$1/root/etc/kubernetes/version.yaml" &&
        on "$1" mv /etc/kubernetes/version.yaml $manifest || return
    wait_replaced "$1" "$before"
}

# ---- kubeadm upgrade ------------------------------------------------------------------------------------------------

upload() { # NODE: the cluster's configuration becomes that of the node's file
    kubeadm_on "$1" init phase upload-config all --config "$state/$1/kubeadm.yaml"
}
kubeadm_on() { # NODE ARGUMENT…
    on "$1" env PATH="$here/nodes/bin:$PATH" kubeadm "${@:2}" >>"$state/$1/kubeadm.log" 2>&1
}
kubeadm_upgrade() { # NODE
    kubeadm_on "$1" upgrade node phase control-plane --etcd-upgrade=false --certificate-renewal=false
}
# NODE: what differs from a real node is ignored, and that no pod of its own can be scheduled.
kubeadm_apply() {
    kubeadm_on "$1" upgrade apply "$(version)" --yes --etcd-upgrade=false --certificate-renewal=false --ignore-preflight-errors all
}
upgrade_and_keep() { # NODE COMMAND
    local kubeadm before
    before=$(of_container "$1" kube-apiserver)
    "$2" "$1" &
    kubeadm=$!
    until_done 120 "kubeadm's manifest" is_plain "$1"
    timed "$1: install after kubeadm's manifest" install_on "$1"
    # The one from before may still wait for its connections, with its port closed.
    of_container "$1" kube-apiserver | grep -qvxF "$before" || die "install did not wait for the new apiserver on $1"
    wait $kubeadm || die "kubeadm failed on $1: $(tail -n 3 "$state/$1/kubeadm.log")"
}
is_plain() { ! is_changed "$1"; }

step_upgrade() { under_load each_upgrade; }
each_upgrade() {
    local node command
    newer
    configuration cp-1 "$new_flag" >"$state/cp-1/kubeadm.yaml"
    upload cp-1
    for node in $(names); do
        # As its documents say: the first node, then the others.
        [ "$node" = cp-1 ] && command=kubeadm_apply || command=kubeadm_upgrade
        timed "$node: $command with install" upgrade_and_keep "$node" $command
        # Once more, as after a failure in one of its later steps: it writes the same.
        [ "$node" != cp-1 ] || timed "$node: again" upgrade_and_keep "$node" $command
        if [ "$node" = cp-1 ] && [ "$(names | wc -l)" -gt 1 ]; then
            # From now on somebody serves it: no node may say that it is not there, and none may leave.
            until_done 60 'the new version, through each node' served_by_all
            client new client --server "https://$balancer:6443" --every 0.05 $new_path
            ! program_on "$(last)" uninstall kubeadm --yes || die 'uninstall did not refuse'
            tail -n 1 "$state/$(last)/install.log"
        fi
    done
}
served_by_all() {
    local node
    for node in $(names); do kubectl_on "$node" get --raw $new_path || return; done
}

step_forgotten() { under_load forget_install; }
forget_install() {
    local node said=succeeds
    node=$(last)
    newer
    configuration cp-1 "$new_flag" event-ttl=2h >"$state/cp-1/kubeadm.yaml"
    upload cp-1
    watch_loopback "$node" >"$state/loopback.txt" &
    clients+=($!)
    timed "$node: kubeadm upgrade alone" kubeadm_upgrade "$node" || said=fails
    say "kubeadm $said; $(installed "$node"); it listens on $(listening "$node"); manifest $(is_changed "$node" && echo with the change || echo without it)"
    sleep 20
    say "20 s later it listens on $(listening "$node"); its apiserver is $(server_ready "$node" && echo ready || echo not ready)"
    timed "$node: install" install_on "$node"
    is_changed "$node" || die 'install has not changed the manifest'
}
# NODE: how often the apiserver was on loopback without a proxy, asked five times a second.
watch_loopback() {
    local alone=0
    while [ ! -e "$state/stop" ]; do
        [ "$(listening "$1")" != 127.0.0.1:6443 ] || alone=$((alone + 1))
        sleep 0.2
    done
    echo "$alone times on loopback without a proxy"
}

# An upgrade of which nothing comes: kubeadm waits five minutes for an apiserver without an image.
step_rollback() { under_load roll_back; }
roll_back() {
    local node before
    node=$(last)
    before=$(on "$node" cat $manifest)
    configuration cp-1 | sed 's|^imageRepository:.*|imageRepository: nowhere.invalid|' >"$state/cp-1/kubeadm.yaml"
    upload cp-1
    watch_loopback "$node" >"$state/loopback.txt" &
    clients+=($!)
    ! timed "$node: kubeadm upgrade of which nothing comes" kubeadm_upgrade "$node" || die 'it succeeded'
    [ "$before" = "$(on "$node" cat $manifest)" ] || die 'the manifest is not the one from before'
    until_done 180 "every line of $node's /readyz" all_ready "$node"
    newer
    configuration cp-1 "$new_flag" event-ttl=2h >"$state/cp-1/kubeadm.yaml"
    upload cp-1
}

# The last node leaves the cluster with everything that kubeadm knows of, and joins it again.
step_rejoin() {
    local node token asks flag=--patches prepared=()
    node=$(last)
    [ "$node" != cp-1 ] || { say 'a single node cannot join'; return; }
    timed "$node: kubeadm reset" kubeadm_on "$node" reset --force --cri-socket "$cri"
    [ -z "$(of_container "$node" kube-apiserver)$(of_container "$node" kube-interop-proxy)" ] || die 'something still runs'
    say "left there: $(on "$node" ls $own $manifests | xargs); it listens on $(listening "$node")"
    say "check --live at cp-1: $(program_on cp-1 check --live -o short && echo fine || cat "$state/cp-1/install.log")"
    kubectl_on cp-1 delete node "$node"
    kubeadm_on cp-1 init phase bootstrap-token --config "$state/cp-1/kubeadm.yaml"
    token=$(on cp-1 kubeadm token create 2>>"$state/cp-1/kubeadm.log")
    authorities "$node"
    # With the files of a layout in one pod kubeadm joins behind a proxy. The configuration is the one that was left.
    since 22 || flag=--experimental-patches
    case $layout in
    sidecar) prepared=($flag "$top/deploy/kubeadm/patches") ;;
    native-sidecar) prepared=($flag "$top/deploy/kubeadm/patches-native-sidecar") ;;
    esac
    # kubeadm waits for etcd.
    { until_done 120 "etcd's manifest" on "$node" test -s $manifests/etcd.yaml && etcd_flags "$node"; } &
    timed "$node: kubeadm join ${prepared[*]}" kubeadm_on "$node" join $balancer:6443 --control-plane --token "$token" \
        --discovery-token-unsafe-skip-ca-verification --apiserver-advertise-address "$(address "$node")" --node-name "$node" \
        --cri-socket "$cri" --ignore-preflight-errors all "${prepared[@]}" || die "kubeadm failed: $(tail -n 5 "$state/$node/kubeadm.log")"
    on "$node" cp "$here/nodes/talk.yaml" $manifests/
    asks=$(on "$node" sed -n 's/^ *server: //p' /etc/kubernetes/kubelet.conf)
    say "it listens on $(listening "$node"); its kubelet asks $asks"
    # ControlPlaneKubeletLocalMode
    ! since 33 || [ "$asks" = "https://$(address "$node"):6443" ] || die 'kubelet does not ask its own node'
    timed "$node: install" install_on "$node" --layout "$layout" --image kube-interop-proxy:next --image-archive "$state/next.tar"
    until_done 60 "a sign of life from the kubelet of $node" renewed_since "$node" "$(renewed "$node")"
}
renewed() { kubectl_on cp-1 --namespace kube-node-lease get lease "$1" --output jsonpath='{.spec.renewTime}'; }
renewed_since() { [ "$(renewed "$1")" != "$2" ]; }

serial() { # NODE: of the certificate that the node shows to clients
    on "$1" sh -c "openssl s_client -connect $(address "$1"):6443 </dev/null 2>/dev/null | openssl x509 -noout -serial"
}
step_renew() {
    local node before
    for node in $(names); do
        before=$(serial "$node")
        kubeadm_on "$node" certs renew all --config "$state/$node/kubeadm.yaml"
        timed "$node: the new certificate without a restart" until_done 30 "$node's new certificate" another_serial "$node" "$before"
        until_done 30 "every line of $node's /readyz" all_ready "$node"
    done
}
another_serial() { [ "$(serial "$1")" != "$2" ]; }

step_out() { under_load each_out; }
each_out() {
    local node
    for node in $(names); do
        timed "$node: uninstall" uninstall_on "$node"
        [ "$(listening "$node")" = '*:6443' ] || die "$node listens on $(listening "$node")"
        [ "$(installed "$node")" = 'no proxy' ] && ! on "$node" test -e $own || die "$node: files are left"
        [ -z "$(of_container "$node" kube-interop-proxy)" ] || die "$node: the proxy is still there"
    done
    [ -z "$(on cp-1 env ETCDCTL_API=3 etcdctl --endpoints https://127.0.0.1:2379 --cacert /etc/kubernetes/pki/etcd/ca.crt \
        --cert /etc/kubernetes/pki/apiserver-etcd-client.crt --key /etc/kubernetes/pki/apiserver-etcd-client.key \
        get --prefix --keys-only /kube-interop-proxy/)" ] || die 'keys are left in etcd'
}
