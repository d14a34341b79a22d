#!/usr/bin/env python3
"""Many clients that keep their connections, as controllers do: asks at a rate until a file appears.

    load.py --server URL --rate N --clients N --started FILE --stop FILE PATH...

Each client asks for one path after the other. A request on a connection that was used before, which ends without a byte of
an answer, is sent once more on a new one, as Go's and most other clients do; what is told to come back (503 and Retry-After)
comes back, up to ten times, as client-go does. Both are counted. Every other answer than 200 is a failure.
"""
import argparse
import collections
import http.client
import multiprocessing
import os
import threading
import time
import urllib.parse

from admin import context

PROCESSES = 2


class Client(threading.Thread):
    def __init__(self, given, tls, number):
        super().__init__()
        self.given, self.tls, self.number = given, tls, number
        self.connection, self.used, self.pause = None, False, 0
        self.told, self.slowest = collections.Counter(), 0.0

    def once(self, path):
        if self.connection is None:
            server = self.given.server
            self.connection = http.client.HTTPSConnection(server.hostname, server.port, timeout=30, context=self.tls)
            self.used = False
        try:
            self.connection.request("GET", path)
            answer = self.connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException) as problem:
            self.connection.close()
            self.connection = None
            if self.used and isinstance(problem, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
                return None
            return type(problem).__name__
        self.used = True
        if answer.will_close:
            self.connection.close()
            self.connection = None
        self.pause = int(answer.getheader("Retry-After", 0)) if answer.status == 503 else 0
        return answer.status

    def ask(self, path):
        for _ in range(10):
            status = self.once(path)
            if status is None:
                self.told["repeated"] += 1
                status = self.once(path)
            if status != 503 or not self.pause:
                break
            self.told["told to come back"] += 1
            time.sleep(self.pause)
        return status

    def run(self):
        pause = self.given.clients / self.given.rate
        next_at = time.monotonic() + pause * self.number / self.given.clients
        count = self.number
        while not os.path.exists(self.given.stop):
            time.sleep(max(0.0, next_at - time.monotonic()))
            begin = time.monotonic()
            next_at = max(next_at + pause, begin)
            path = self.given.paths[count % len(self.given.paths)]
            count += 1
            status = self.ask(path)
            self.slowest = max(self.slowest, time.monotonic() - begin)
            self.told[status if status == 200 else f"{status} {path}"] += 1
            if status == 200 and self.told[200] == 1:
                open(self.given.started, "w", encoding="utf-8").close()


def process(given, number, results):
    tls = context()
    clients = [Client(given, tls, client) for client in range(number, given.clients, PROCESSES)]
    for client in clients:
        client.start()
    told, slowest = collections.Counter(), 0.0
    for client in clients:
        client.join()
        told.update(client.told)
        slowest = max(slowest, client.slowest)
    results.put((told, slowest))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True, type=urllib.parse.urlsplit)
    parser.add_argument("--rate", required=True, type=float)
    parser.add_argument("--clients", required=True, type=int)
    parser.add_argument("--started", required=True)
    parser.add_argument("--stop", required=True)
    parser.add_argument("paths", nargs="+")
    given = parser.parse_args()
    begin = time.monotonic()
    results = multiprocessing.Queue()
    processes = [multiprocessing.Process(target=process, args=(given, number, results)) for number in range(PROCESSES)]
    for one in processes:
        one.start()
    told, slowest = collections.Counter(), 0.0
    for _ in processes:
        more, slow = results.get()
        told.update(more)
        slowest = max(slowest, slow)
    served, repeated, back = (told.pop(key, 0) for key in (200, "repeated", "told to come back"))
    others = ", ".join(f"{number} times {answer}" for answer, number in sorted(told.items(), key=str))
    rate = served / (time.monotonic() - begin)
    print(f"{served} served, {rate:.0f}/s, slowest {slowest:.1f} s, {repeated} repeated, {back} told to come back; others: {others or 'none'}")


main()
