#!/usr/bin/env python3
"""A client that asks with a new connection each time, and counts what it is told, until a file appears.

    client.py --server URL --every SECONDS --started FILE --stop FILE PATH...

The first file is written after the first answer 200.

Says how long it was not served (from one answer 200 to the next, less the pause between requests), how often it was told
to come back (503 and Retry-After, which client-go does by itself), and each other answer's number.
"""
import argparse
import collections
import http.client
import os
import time
import urllib.parse

from admin import context

BACK = "told to come back"


def ask(server, path, tls):
    """The status, or the name of what went wrong."""
    connection = http.client.HTTPSConnection(server.hostname, server.port, timeout=5, context=tls)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return BACK if answer.status == 503 and answer.getheader("Retry-After") else answer.status
    except OSError as problem:
        return type(problem).__name__
    except http.client.HTTPException as problem:
        return type(problem).__name__
    finally:
        connection.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, type=urllib.parse.urlsplit)
    parser.add_argument("--every", required=True, type=float)
    parser.add_argument("--started", required=True)
    parser.add_argument("--stop", required=True)
    parser.add_argument("paths", nargs="+")
    given = parser.parse_args()
    tls = context()
    told = collections.Counter()
    away = longest = 0.0
    served = time.monotonic()
    failing = False
    number = 0
    started = False
    next_at = time.monotonic()
    while not os.path.exists(given.stop):
        path = given.paths[number % len(given.paths)]
        number += 1
        answer = ask(given.server, path, tls)
        now = time.monotonic()
        told[answer if len(given.paths) == 1 or answer in (200, BACK) else f"{answer} {path}"] += 1
        if answer == 200:
            if failing:
                away += now - served - given.every
                longest = max(longest, now - served - given.every)
            served, failing = now, False
            if not started:
                open(given.started, "w", encoding="utf-8").close()
                started = True
        else:
            failing = True
        next_at = max(next_at + given.every, now)
        time.sleep(max(0.0, next_at - now))
    back = told.pop(BACK, 0)
    others = ", ".join(f"{number} times {answer}" for answer, number in sorted(told.items(), key=str) if answer != 200)
    print(f"{told[200]} served, not served for {away:.1f} s, longest {longest:.1f} s, {back} times told to come back; others: {others or 'none'}")


main()
