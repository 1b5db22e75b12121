#!/bin/sh
# clang-tidy over one file, unless nothing that it reads has changed. usage: tidy.sh BUILD_DIR CACHE_DIR FILE
# A clean result is remembered as an empty file named after the hash of the source, every header and .inc of ours that it includes,
# its compile command, .clang-tidy and the version of clang-tidy. Findings are never remembered.
set -eu
build=$1 cache=$2 file=$3
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$cache"

# One object of compile_commands.json has its "file" line after its "command" line.
command=$(awk -v file="/$file\"" '/"command":/ { c = $0 } /"file":/ && index($0, file) { print c; exit }' \
    "$build/compile_commands.json")
if [ -z "$command" ]; then
    echo "$file: not part of $build"
    exit 1
fi
headers=$(gcc -MM -std=c17 -D_GNU_SOURCE -DPCRE2_CODE_UNIT_WIDTH=8 -Isrc -Iinclude "$file" |
    sed 's/ /\n/g' | grep '\.\(h\|inc\)$' | sort) || headers=
key=$({
    # shellcheck disable=SC2086 # a list of words
    cat "$file" $headers .clang-tidy "$here/tidy.h"
    printf '%s\n' "$command"
    clang-tidy --version
} | sha256sum | cut -d ' ' -f 1)
[ ! -e "$cache/$key" ] || exit 0

hints="--extra-arg=-include --extra-arg=$here/tidy.h"
case $file in
src/base/status.c | docs/*) hints= ;; # it is the function itself; it sees include/ only
esac
# shellcheck disable=SC2086 # no argument or two
if clang-tidy --quiet -p "$build" $hints "$file" 2>"$cache/$key.err"; then
    rm -f "$cache/$key.err"
    : >"$cache/$key"
else
    grep -v 'warnings generated' "$cache/$key.err" || true
    rm -f "$cache/$key.err"
    exit 1
fi
