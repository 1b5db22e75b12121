#!/bin/sh
# Instructions of the scheduler's step: how many per row, whether they grow with rows only, and which functions they are.
# Counts of valgrind's callgrind do not depend on load or clock, so that two versions can be compared on any machine.
#
#   bench/callgrind.sh [BUILD_DIR]     default build/release; needs gyre-bench-sched there and valgrind
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/release}
prog=$build/bench/gyre-bench-sched
out=$build/callgrind
steps=200

if ! command -v valgrind >/dev/null || ! command -v callgrind_annotate >/dev/null; then
    echo 'callgrind: valgrind is not installed, so no instructions are counted (Debian: apt-get install valgrind)'
    exit 0
fi
if [ ! -x "$prog" ]; then
    echo "callgrind: $prog is not there: run ./do build, or name the build folder" >&2
    exit 1
fi
mkdir -p "$out"

# count SEQS CONTEXT: one line; the profile stays in $out.
count() {
    file=$out/$1-$2
    json=$(valgrind --tool=callgrind --collect-atstart=no --toggle-collect=step_collected \
        --callgrind-out-file="$file" "$prog" --seqs "$1" --context "$2" --steps "$steps" --json 2>"$file.log") || {
        cat "$file.log" >&2
        exit 1
    }
    total=$(sed -n 's/^\(summary\|totals\): *//p' "$file" | tail -n 1)
    rows=$(printf '%s' "$json" | sed 's/.*"rows":\([0-9.]*\).*/\1/')
    awk -v s="$1" -v c="$2" -v t="$total" -v n="$steps" -v r="$rows" \
        'BEGIN { printf "%6d %8d %8.1f %16.0f %20.1f\n", s, c, r, t / n, t / n / r }'
}

printf '%6s %8s %8s %16s %20s\n' seqs context rows 'instr. a step' 'instr. a step a row'
for seqs in 64 128 256 512; do count "$seqs" 100; done
count 256 1000

echo
echo 'functions at 256 sequences, instructions of their own:'
callgrind_annotate --auto=no --threshold=98 "$out/256-100" | grep -E '^ *[0-9,]+ \(' | grep -v 'PROGRAM TOTALS' |
    sed -e 's/\[.*//' -e 's|[^ ]*/||' | head -n 16
