#!/usr/bin/env python3
"""Informers: each lists once, and watches from there on until a file appears.

    informers.py --server URL --started FILE --stop FILE PATH...

One informer for each path. A watch that ends goes on from the last resourceVersion. A 410, as an answer or as an event, makes
it list again, which is what must not happen. At the end each must know what a list says, within 20 s.
"""
import argparse
import collections
import http.client
import json
import os
import threading
import time
import urllib.parse

from admin import context

PATIENCE = 20


class Gone(Exception):
    pass


class Informer(threading.Thread):
    def __init__(self, given, tls, path):
        super().__init__(daemon=True)
        self.given, self.tls, self.path = given, tls, path
        self.objects, self.version = {}, None
        self.told = collections.Counter()

    def ask(self, query, timeout):
        server = self.given.server
        connection = http.client.HTTPSConnection(server.hostname, server.port, timeout=timeout, context=self.tls)
        try:
            connection.request("GET", self.path + query)
            answer = connection.getresponse()
            if answer.status == 410:
                raise Gone
            if answer.status != 200:
                self.told[f"{answer.status}"] += 1
                raise http.client.HTTPException
            return connection, answer
        except BaseException:
            connection.close()
            raise

    def list(self):
        connection, answer = self.ask("", 30)
        try:
            read = json.load(answer)
        finally:
            connection.close()
        found = {}
        for item in read["items"]:
            meta = item["metadata"]
            found[meta.get("namespace", ""), meta["name"]] = int(meta["resourceVersion"])
        return found, read["metadata"]["resourceVersion"]

    def event(self, line):
        event = json.loads(line)
        if event["type"] == "ERROR":
            if event["object"].get("code") == 410:
                raise Gone
            raise http.client.HTTPException
        meta = event["object"]["metadata"]
        self.version = meta["resourceVersion"]
        key = meta.get("namespace", ""), meta.get("name")
        if event["type"] == "DELETED":
            self.objects.pop(key, None)
        elif event["type"] != "BOOKMARK":
            self.objects[key] = int(self.version)
            self.told["events"] += 1

    def watch(self):
        query = f"?watch=true&allowWatchBookmarks=true&timeoutSeconds=500&resourceVersion={self.version}"
        connection, answer = self.ask(query, 600)
        try:
            for line in answer:
                self.event(line)
            self.told["ends"] += 1
        finally:
            connection.close()

    def run(self):
        while True:
            try:
                if self.version is None:
                    self.objects, self.version = self.list()
                    self.told["lists"] += 1
                self.watch()
            except Gone:
                self.told["gone"] += 1
                self.version = None
            except (OSError, ValueError, http.client.HTTPException):
                self.told["broken"] += 1
                time.sleep(0.2)

    def listed(self):
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return self.list()[0]
            except (OSError, http.client.HTTPException):
                # With one node there may be nobody at the moment.
                if time.monotonic() > until:
                    raise
            time.sleep(0.5)

    def missed(self):
        """How many objects of a list are not known, or not as new."""
        wanted = self.listed()
        until = time.monotonic() + PATIENCE
        while True:
            missing = [key for key, version in wanted.items() if self.objects.get(key, 0) < version]
            if not missing:
                return 0
            if time.monotonic() > until:
                # What was deleted since is nowhere any more.
                still = self.listed()
                return sum(key in still for key in missing)
            time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, type=urllib.parse.urlsplit)
    parser.add_argument("--started", required=True)
    parser.add_argument("--stop", required=True)
    parser.add_argument("paths", nargs="+")
    given = parser.parse_args()
    tls = context()
    informers = [Informer(given, tls, path) for path in given.paths]
    for informer in informers:
        informer.start()
    while any(informer.told["lists"] == 0 for informer in informers):
        time.sleep(0.1)
    open(given.started, "w", encoding="utf-8").close()
    while not os.path.exists(given.stop):
        time.sleep(0.2)
    told = collections.Counter()
    for informer in informers:
        told.update(informer.told)
    missed = sum(informer.missed() for informer in informers)
    again = told.pop("lists") - len(informers)
    counts = ", ".join(f"{number} {what}" for what, number in sorted(told.items()))
    print(f"{len(informers)} informers listed again {again} times, missed {missed} objects; watches: {counts}")


main()
