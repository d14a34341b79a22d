#!/usr/bin/env python3
"""Writes an image of files of this machine, from scratch, as an archive that `ctr images import` reads.

    image.py ARCHIVE NAME FILE=PATH...

FILE goes to PATH of the image; a program's libraries go along, to their own paths.
"""
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile


def libraries(program):
    """The files that the dynamic linker would load for it; none for a static program."""
    found = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return []
    return re.findall(r"(/\S+) \(0x", found.stdout)


def layer(files):
    """An uncompressed layer: the same files make the same bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, file in sorted(files.items()):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size = os.path.getsize(file)
            entry.mode = 0o755
            with open(file, "rb") as content:
                tar.addfile(entry, content)
    return out.getvalue()


def main():
    archive, name, *pairs = sys.argv[1:]
    files = {}
    for pair in pairs:
        file, path = pair.split("=", 1)
        files[path] = os.path.realpath(file)
        for library in libraries(file):
            files[library] = os.path.realpath(library)
    content = layer(files)
    config = json.dumps({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": [pairs[0].split("=", 1)[1]]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(content).hexdigest()]},
    }).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive + ".part", "w") as tar:
        for path, data in (("config.json", config), ("layer.tar", content), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    os.replace(archive + ".part", archive)


main()
