#!/bin/sh
# What a token costs gyre serve besides the model: instructions by part of the program (callgrind), and processor time with system calls.
# Counts of valgrind's callgrind do not depend on load or clock, so that two versions can be compared on any machine.
#
#   bench/callgrind_serve.sh [BUILD_DIR]     default build/release; needs gyre there, python3 and valgrind
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/release}

if [ ! -x "$build/gyre" ]; then
    echo "callgrind_serve: $build/gyre is not there: run ./do build, or name the build folder" >&2
    exit 1
fi
python3 bench/serve_cost.py "$build"
if ! command -v valgrind >/dev/null; then
    echo 'callgrind_serve: valgrind is not installed, so no instructions are counted (Debian: apt-get install valgrind)'
    exit 0
fi
python3 bench/serve_cost.py "$build" --valgrind
