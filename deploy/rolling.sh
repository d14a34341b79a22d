#!/bin/sh
# Upgrades control plane nodes, or does anything else that stops their servers, one node at a time. It continues with the next
# node only when every node says that no request would be refused.
#
#   rolling.sh NODE... -- COMMAND [ARGUMENT...]
#
# For each NODE it runs `COMMAND ARGUMENT... NODE`, which must return only after the new processes have started, and then
# `kube-interop-proxy status --wait` on every NODE. It exits with 1 if a command fails or a node takes too long, and does not
# touch the nodes after it. Once the cause is fixed, start it again with the same NODEs and FROM.
#
# It does not stop a NODE that alone serves something: requests for it would be 503 until the NODE is back. During an upgrade
# between versions that is nearly always true of the first new node and the last old one. Look at what it names, and start it
# again with FROM and ONLY_HERE=accept.
#
#   ONLY_HERE `accept`: continue although the next NODE alone serves something
#   FROM      the NODE to begin with: the one whose command failed, or that took too long
#   ON_NODE   runs a command on a node: `$ON_NODE NODE kube-interop-proxy status ...`; default ssh. Where the proxy is a
#             container, a script of yours with `crictl exec`
#   PEERS     how many other servers each node must have, default the number of NODEs minus one
#   TIMEOUT   how long to wait for each node, default 10m
set -eu

usage() {
    echo "rolling.sh NODE... -- COMMAND [ARGUMENT...]" >&2
    exit 64
}

nodes=
count=0
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        -* | *[!A-Za-z0-9._:-]* | '') usage ;;
    esac
    nodes="$nodes $1"
    count=$((count + 1))
    shift
done
[ "$count" -gt 0 ] && [ $# -gt 1 ] || usage
shift
if [ "$count" -eq 1 ] && [ -z "${PEERS:-}" ]; then
    # Without the others nobody would look whether they serve.
    echo "rolling.sh: name all control plane nodes, with FROM to go on; PEERS=0 if there is only this one" >&2
    exit 64
fi
peers=${PEERS:-$((count - 1))}
from=${FROM:-}
case " $nodes " in
    *" $from "*) ;;
    *) usage ;;
esac

status() {
    node=$1
    shift
    # Its standard input is not what COMMAND may want to read.
    ${ON_NODE:-ssh} "$node" kube-interop-proxy status "$@" </dev/null
}

# Each node looks for itself: the servers may not have heard of each other at the same time.
settled() {
    for each in $nodes; do
        status "$each" --wait --peers "$peers" --timeout "${TIMEOUT:-10m}" >/dev/null || {
            echo "$each: not every server serves, see above; no other node is stopped" >&2
            exit 1
        }
    done
}

# A node to go on with may be down already.
[ -n "$from" ] || settled
for next in $nodes; do
    [ -z "$from" ] || [ "$next" = "$from" ] || continue
    # A node to begin with may be down already.
    only_here=$(status "$next" | sed -n 's/^Only here *//p')
    if [ -n "$only_here" ]; then
        echo "$next: only here: $only_here"
        [ "${ONLY_HERE:-}" = accept ] || {
            echo "$next: is not stopped because of that. Go on with FROM=$next ONLY_HERE=accept" >&2
            exit 1
        }
    fi
    from=
    echo "$next: $*"
    "$@" "$next" || {
        echo "$next: the command has failed; no other node is stopped. Go on with FROM=$next" >&2
        exit 1
    }
    settled
done
echo "all nodes are done"
