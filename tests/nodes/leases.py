#!/usr/bin/env python3
"""Reads what watch_leases wrote: lines "NODE RENEWTIME", "NODE NotReady" and "asked TIME". Says each node's longest gap.

    leases.py FILE SECONDS

Fails if a node was seen NotReady, or if a lease was not renewed for so long: kubelet renews it every 10 s. While nobody asked
for as long, a renewal may have passed unseen: such a gap does not count.
"""
import collections
import datetime
import sys

renewed, not_ready, asked = collections.defaultdict(set), collections.Counter(), []
for line in open(sys.argv[1], encoding="utf-8"):
    node, _, word = line.strip().partition(" ")
    if word == "NotReady":
        not_ready[node] += 1
    elif word:
        time = datetime.datetime.fromisoformat(word.replace("Z", "+00:00"))
        asked.append(time) if node == "asked" else renewed[node].add(time)
# A short step sees few renewals.
watched = (asked[-1] - asked[0]).total_seconds() if asked else 0
holes = [(a, b) for a, b in zip(asked, asked[1:]) if (b - a).total_seconds() > 9]
late = False
for node, times in sorted(renewed.items()):
    times = sorted(times)
    seen = [(a, b) for a, b in zip(times, times[1:]) if not any(begin < b and end > a for begin, end in holes)]
    gaps = [(b - a).total_seconds() for a, b in seen]
    late = late or (len(gaps) < 2 and watched > 40) or max(gaps, default=0) >= float(sys.argv[2])
    print(f"  {node}: its lease was renewed {len(times)} times, longest gap {max(gaps, default=0):.1f} s; seen NotReady {not_ready[node]} times")
sys.exit(1 if late or not_ready else 0)
