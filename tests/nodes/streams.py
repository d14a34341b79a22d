#!/usr/bin/env python3
"""Runs a command that never ends by itself, again whenever it ends, until a file appears.

    streams.py --ends FILE --started FILE --stop FILE COMMAND...

Writes the time of each end (seconds since 1970) to a file, a line each, and says how often it ended.
"""
import argparse
import os
import subprocess
import threading
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ends", required=True)
    parser.add_argument("--started", required=True)
    parser.add_argument("--stop", required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    lines = silent = 0
    ends = []
    with open(given.ends, "w", encoding="utf-8") as file:
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
                ends.append(time.time())
                file.write(f"{ends[-1]:.1f}\n")
                file.flush()
            time.sleep(0.5)
    print(f"{lines} lines; ended {len(ends)} times, could not be started {silent} times")


def end(stop, stream):
    while stream.poll() is None and not os.path.exists(stop):
        time.sleep(0.1)
    stream.terminate()


main()
