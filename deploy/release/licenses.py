#!/usr/bin/env python3
"""Prints the licences of everything that the program is made of besides its own source.

    deploy/release/licenses.py TARGET

The crates of Cargo.lock that are compiled into the program for this target, the C libraries in them, and Rust's standard
library, each with the texts of its licence files. Fails if there is no text for one. Same source, same bytes.
"""
import html
import json
import os
import re
import subprocess
import sys

PACKAGE = "kube-interop-proxy"
# A file with the text of a licence, at any depth: C libraries have theirs beside their sources.
TEXT = re.compile(r"(?i)^(un)?licen[sc]e|^copying|^notice|^copyright|^authors")
NO_SOURCE = {"target", "tests", "benches", "examples", "fuzz", "assets"}


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def compiled(target):
    """(name, version) of each crate in the program: neither what only tests and builds need, nor macros."""
    tree = output(
        "cargo", "tree", "--locked", "--edges", "normal,no-proc-macro", "--target", target,
        "--package", PACKAGE, "--prefix", "none", "--no-dedupe", "--format", "{p}",
    )  # fmt: skip
    crates = {tuple(line.split()[:2]) for line in tree.splitlines()}
    return sorted((name, version[1:]) for name, version in crates)


def texts(crate):
    """Licence files of a crate: their paths in it, and what they say."""
    found = {}
    root = os.path.dirname(crate["manifest_path"])
    for directory, below, files in os.walk(root):
        below[:] = [name for name in below if name not in NO_SOURCE and not name.startswith(".")]
        for name in files:
            # Not modules and pages with such a name.
            if TEXT.match(name) and not name.endswith((".rs", ".c", ".h", ".html")):
                path = os.path.join(directory, name)
                with open(path, encoding="utf-8", errors="replace") as file:
                    found[os.path.relpath(path, root)] = "\n".join(line.rstrip() for line in file).strip()
    return found


def of_others(crate, all_texts, crates, own):
    """For a crate without a licence file: those of its repository's other crates, or the text of its licence."""
    for other in crates:
        same = crate["repository"] and other["repository"] == crate["repository"]
        if same and "LICENSE" in all_texts[other["id"]]:
            return {"LICENSE of its repository": all_texts[other["id"]]["LICENSE"]}
    if "Apache-2.0" in (crate["license"] or ""):
        return {"LICENSE, as its Cargo.toml names it": own}
    sys.exit(f"licenses.py: no text for {crate['name']} {crate['version']} ({crate['license']})")


def standard_library():
    path = os.path.join(output("rustc", "--print", "sysroot").strip(), "share/doc/rust/COPYRIGHT-library.html")
    with open(path, encoding="utf-8") as file:
        text = html.unescape(re.sub(r"<[^>]+>", "", file.read()))
    return re.sub(r"\n\s*\n+", "\n\n", text).strip()


def main(target):
    metadata = json.loads(output("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target))
    known = {(it["name"], it["version"]): it for it in metadata["packages"]}
    crates = [known[key] for key in compiled(target)]
    with open(os.path.join(metadata["workspace_root"], "LICENSE"), encoding="utf-8") as file:
        own = file.read().strip()
    # Not this package's own.
    crates = [it for it in crates if it["source"]]
    all_texts = {it["id"]: texts(it) for it in crates}
    by_text, lines = {}, []
    for crate in crates:
        name = f"{crate['name']} {crate['version']}"
        lines.append(f"  {name}: {crate['license'] or 'see below'}")
        found = all_texts[crate["id"]] or of_others(crate, all_texts, crates, own)
        for path, text in sorted(found.items()):
            # Copies of one text differ in how their lines are broken.
            _, users = by_text.setdefault(" ".join(text.split()), (text, []))
            users.append(f"{name}: {path}")
    print(f"{PACKAGE} contains these libraries, under these licences:\n")
    print("\n".join([*lines, "  Rust's standard library: MIT OR Apache-2.0"]))
    for text, users in by_text.values():
        print("\n" + "=" * 100, *users, "-" * 100, text, sep="\n")
    print("\n" + "=" * 100, "Rust's standard library", "-" * 100, standard_library(), sep="\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
