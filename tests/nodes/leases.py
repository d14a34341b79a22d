#!/usr/bin/env python3
"""Reads what watch_leases wrote: lines "NODE RENEWTIME" and "NODE NotReady". Says each node's longest gap."""
import collections
import datetime
import sys

renewed, not_ready = collections.defaultdict(set), collections.Counter()
for line in open(sys.argv[1], encoding="utf-8"):
    node, _, word = line.strip().partition(" ")
    if word == "NotReady":
        not_ready[node] += 1
    elif word:
        renewed[node].add(datetime.datetime.fromisoformat(word.replace("Z", "+00:00")))
for node, times in sorted(renewed.items()):
    times = sorted(times)
    gaps = [(b - a).total_seconds() for a, b in zip(times, times[1:])]
    print(f"  {node}: its lease was renewed {len(times)} times, longest gap {max(gaps, default=0):.1f} s; seen NotReady {not_ready[node]} times")
