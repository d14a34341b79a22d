#!/usr/bin/env bash
# Which end-to-end tests pass with which real apiservers: a table in Markdown, as docs/compatibility.md has one.
#
#   tests/compatibility.sh [APISERVERS…]
#
# The tests with real apiservers run once for each argument, a value of KUBE_INTEROP_APISERVERS (CONTRIBUTING.md). Without
# arguments once, with the cached 1.20.2. The output of cargo goes to standard error, the table to standard output. Fails
# if a test failed. Run tests/run.sh or tests/install.sh --tests and the scripts that it calls first.
#
# A row is a folder of tests/e2e. A column is what a test started: one version, or several on one etcd.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

[ $# -gt 0 ] || set -- ''
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$((4 * $(nproc)))}"
ulimit -n "$(ulimit -Hn)" || echo "compatibility: the limit of open files stays at $(ulimit -n)" >&2

# The modules that start real apiservers, as filters for their tests' names.
mapfile -t modules < <(
    grep -rlE 'KubeApiServer|ModernApiServer|testkit::(attacker|nodes?|pair)' tests/e2e |
        sed -e 's:^tests/e2e/::' -e 's:/mod\.rs$:/:' -e 's:\.rs$:/:' -e 's:/:\:\::g' | sort
)

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0
: >"$tmp/all"
for apiservers in "$@"; do
    : >"$tmp/notes"
    KUBE_INTEROP_APISERVERS=$apiservers KUBE_INTEROP_NOTES=$tmp/notes \
        cargo test --locked --test e2e -- "${modules[@]}" 2>&1 | tee "$tmp/output" >&2 || failed=1
    {
        cat "$tmp/notes"
        sed -n 's/^test \([^ ]*\) \.\.\. \(ok\|FAILED\)$/\2: \1:/p' "$tmp/output"
        echo 'end::'
    } >>"$tmp/all"
done

# A line is `what: test: about`.
awk '
    function key(list) { gsub("\n", " + ", list); return list }
    function count(set, area, what) { counts[set, area, what]++; server_sets[set]; areas[area] }
    {
        what = $1; sub(":$", "", what)
        test = $2; sub(":$", "", test)
        about = $0; sub("^[^ ]* [^ ]* ?", "", about)
        area = test; sub("::.*", "", area)
    }
    what == "given" { given = about }
    # Each version once, in order.
    what == "started" && index("\n" started[test] "\n", "\n" about "\n") == 0 {
        if (started[test] == "") started[test] = about
        else if (about < started[test]) started[test] = about "\n" started[test]
        else started[test] = started[test] "\n" about
    }
    what == "skipped" && !(test in skipped) { skipped[test] = area }
    what == "part-skipped" { partly[test] = area }
    what == "ok" || what == "FAILED" { results[test] = what }
    what == "end" || $0 == "end::" {
        for (test in results) {
            area = test; sub("::.*", "", area)
            if (test in skipped) count(given, area, "skipped")
            else if (test in started) count(key(started[test]), area, results[test])
            if (test in partly && test in started) count(key(started[test]), area, "partly")
        }
        delete results; delete started; delete skipped; delete partly; given = ""
    }
    # Sorts list[1 … n].
    function sort(list, n,    i, j, swap) {
        for (i = 2; i <= n; i++) for (j = i; j > 1 && list[j] < list[j - 1]; j--) {
            swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap
        }
    }
    function cell(what, area,    text, n) {
        text = ""
        if ((n = counts[what, area, "ok"])) text = n " passed"
        if ((n = counts[what, area, "FAILED"])) text = text (text == "" ? "" : ", ") "**" n " failed**"
        if ((n = counts[what, area, "partly"])) text = text " (" n " in part)"
        if ((n = counts[what, area, "skipped"])) text = text (text == "" ? "" : ", ") n " skipped"
        return text
    }
    END {
        for (area in areas) area_list[++n] = area
        for (set in server_sets) set_list[++m] = set
        sort(area_list, n); sort(set_list, m)
        header = "| tests |"; line = "|---|"
        for (j = 1; j <= m; j++) { header = header " " set_list[j] " |"; line = line "---|" }
        print header; print line
        for (i = 1; i <= n; i++) {
            text = "| " area_list[i] " |"
            for (j = 1; j <= m; j++) text = text " " cell(set_list[j], area_list[i]) " |"
            print text
        }
    }' "$tmp/all"
exit "$failed"
