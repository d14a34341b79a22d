#!/usr/bin/env bash
# Builds programs of this workspace, and nothing a second time that the tests are made of.
#
#   tests/cargo-build.sh PROGRAM…
#
# What cargo selects decides the features of dependencies. These are the ones of `cargo test --workspace`: all members, and
# with the example their dev-dependencies.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
exec cargo build --locked --workspace --example kube-rs "${@/#/--bin=}"
