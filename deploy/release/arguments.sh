# Sourced by image.sh and deb.sh: their arguments, with paths of the caller's directory, as `from` and `to`.
# shellcheck shell=bash disable=SC2034  # the variables are for the scripts
from='' to=''
while [ $# -gt 0 ]; do
    case "$1=${2:+given}" in
    --from=given) from=$(realpath -- "$2") ;;
    --to=given) to=$(realpath -- "$2") ;;
    *) echo "usage: $0 [--from DIRECTORY] [--to FILE]" >&2 && exit 64 ;;
    esac
    shift 2
done
