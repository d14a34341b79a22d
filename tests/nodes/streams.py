#!/usr/bin/env python3
"""Runs a command that never ends by itself, again whenever it ends, until a file appears.

    streams.py --started FILE --stop FILE COMMAND...

Says how often it ended.
"""
import argparse
import os
import subprocess
import threading
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--started", required=True)
    parser.add_argument("--stop", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    lines = silent = ends = 0
    while not os.path.exists(given.stop):
        stream = subprocess.Popen(given.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        ender = threading.Thread(target=end, args=(given.stop, stream))
        ender.start()
        before = lines
        for _ in stream.stdout:
            lines += 1
            if lines == 1:
                open(given.started, "w", encoding="utf-8").close()
        stream.wait()
        ender.join()
        if os.path.exists(given.stop):
            break
        if lines == before:
            silent += 1
        else:
            ends += 1
        time.sleep(0.5)
    print(f"{lines} lines; ended {ends} times, could not be started {silent} times")


def end(stop, stream):
    while stream.poll() is None and not os.path.exists(stop):
        time.sleep(0.1)
    stream.terminate()


main()
