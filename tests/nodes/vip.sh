#!/usr/bin/env bash
# Moves a virtual IP as keepalived does: to a node that is ready, when the one that has it was not ready twice.
#
#   vip.sh PREFIX ADDRESS NODE...          called by tests/nodes.sh
set -u
prefix=$1 vip=$2 holder='' failed=0
shift 2
ready() { ip netns exec "${prefix}net" curl --silent --fail --insecure --max-time 1 "https://10.0.0.1${1#cp-}:6443/readyz" >/dev/null; }
while sleep 1; do
    if [ -n "$holder" ] && ready "$holder"; then failed=0; continue; fi
    [ -z "$holder" ] || [ $((failed += 1)) -ge 2 ] || continue
    for node; do
        [ "$node" != "$holder" ] && ready "$node" || continue
        [ -z "$holder" ] || ip -n "$prefix$holder" address del "$vip/24" dev eth0
        ip -n "$prefix$node" address add "$vip/24" dev eth0
        # In place of keepalived's gratuitous ARP.
        ip -n "${prefix}net" neigh flush to "$vip"
        holder=$node failed=0
        echo "$(date +%T) $node has $vip"
        break
    done
done
