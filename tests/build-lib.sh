# Sourced by the scripts that build or fetch real servers once and keep them: messages, one build at a time, bounded
# commands, packages of other suites of Debian.
#
# Before it is sourced: `name`, of the script, and `cache`, the directory that it fills. `log` is in there.
# shellcheck shell=bash disable=SC2154  # `name` and `cache` are the caller's

log=$cache/build.log

say() { printf '%s: %s\n' "$name" "$*"; }
die() {
    printf "$name: %s\n" "$@" >&2
    exit 1
}

# COMMAND…: takes the lock on the cache. If another build has it, waits, and then runs the command, which ends the script
# if nothing is left to be done. Then everything below `tmp` is ours, until this script ends.
begin() {
    mkdir -p "$cache"
    exec 9>"$cache/lock"
    if ! flock -n 9; then
        say "waiting for another build in $cache"
        flock -w 5400 9 || die "another build holds $cache/lock for 90 minutes now"
        "$@"
    fi
    # Temporary files that are there are left over from an interrupted run.
    rm -rf "$cache"/tmp.*
    : >"$log"
    tmp=$(mktemp -d "$cache/tmp.XXXXXX")
    child=
    trap clean_up EXIT
    trap 'printf "$name: failed at line %s; output so far: %s\n" "$LINENO" "$log" >&2' ERR
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# shellcheck disable=SC2329  # called by the traps
clean_up() {
    # `timeout` passes the signal on to the whole group that it runs.
    [ -z "$child" ] || kill "$child" 2>/dev/null || true
    rm -rf "$tmp"
}

# SECONDS COMMAND…: runs it in the background, so that a signal to this script ends both; its output goes to the log.
# It inherits the lock: should this script be killed alone, the next one waits for what it left running.
bounded() {
    local limit=$1 status=0
    shift
    printf '\n--- %s\n' "$*" >>"$log"
    nice -n 10 timeout -k 20 "$limit" "$@" >>"$log" 2>&1 </dev/null &
    child=$!
    wait "$child" || status=$?
    child=
    [ "$status" -ne 124 ] || printf -- '--- stopped after %s s\n' "$limit" >>"$log"
    return "$status"
}
# MESSAGE…: the log's end, then the message.
failed() {
    printf "$name: the end of %s:\n" "$log" >&2
    tail -n 15 "$log" | sed 's/^/    /' >&2
    die "$@" "All of the output: $log"
}

# ---- packages of other suites of Debian --------------------------------------------------------------------------------

# Debian's archive among this machine's package sources, as a URI without the slash at the end.
archive() {
    # shellcheck disable=SC2016  # apt fills these in
    apt-get indextargets --format '$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)' 'Identifier: Packages' 2>>"$log" |
        awk '$1 == "Debian" && $2 == "Debian" && $3 == "main" { sub("/+$", "", $4); print $4; exit }'
}
# Without package lists, as images for containers come.
usual_archive() { grep -rhoE 'https?://[^ ]+/debian' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -n 1; }

# SUITE: fills `options` for apt, which then knows this suite of Debian, and of this machine nothing.
know_suite() {
    local suite=$1 apt=$tmp/apt uri keys=/usr/share/keyrings/debian-archive-keyring.gpg
    mkdir -p "$apt"/{sources,lists/partial,archives/partial}
    : >"$apt/status"
    uri=$(archive)
    [ -n "$uri" ] || uri=$(usual_archive) || true
    [ -n "$uri" ] || die "no Debian archive is among this machine's package sources"
    printf '%s\n' 'Types: deb' "URIs: $uri" "Suites: $suite" 'Components: main' >"$apt/sources/suite.sources"
    [ ! -r "$keys" ] || echo "Signed-By: $keys" >>"$apt/sources/suite.sources"
    options=(
        -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/sources"
        -o "Dir::State::lists=$apt/lists" -o "Dir::State::status=$apt/status" -o "Dir::Cache=$apt"
        -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=3
        -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30
    )
    bounded 300 apt-get -q "${options[@]}" update || failed "cannot fetch the package list of Debian's $suite"
}

# PACKAGE: the version that this suite has.
candidate() { apt-cache "${options[@]}" policy "$1" 2>>"$log" | awk '$1 == "Candidate:" && $2 != "(none)" { print $2 }'; }
