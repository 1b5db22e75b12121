#!/bin/sh
# Runs one fuzz target of build/fuzz for a while. usage: fuzz_one.sh SECONDS NAME     (from the repository's root)
# New inputs go to build/fuzz-corpus/NAME, the committed corpus is only read; a crash leaves its input in
# build/fuzz-crashes and makes the exit status 1.
set -eu
seconds=$1 name=$2
short=${name#fuzz_}
binary=$(find build/fuzz -type f -name "$name" -perm -u+x | head -n 1)
[ -n "$binary" ] || {
    echo "$name: not built"
    exit 1
}
found=build/fuzz-corpus/$short
seeds=tests/fuzz/corpus/$short
log=build/logs/fuzz-$short.log
mkdir -p "$found" build/fuzz-crashes build/logs
[ -d "$seeds" ] || seeds=

rc=0
"$binary" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
    -artifact_prefix="build/fuzz-crashes/$short-" "$found" ${seeds:+"$seeds"} >"$log" 2>&1 </dev/null || rc=$?
runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
if [ "$rc" = 0 ]; then
    printf '%-28s ok      %9s runs, %s inputs\n' "$name" "${runs:-?}" "$(find "$found" -type f | wc -l)"
    exit 0
fi
input=$(sed -n 's/.*Test unit written to \(.*\)$/\1/p' "$log" | tail -n 1)
printf '%-28s CRASHED after %s runs\n    input:  %s\n    again:  %s %s\n    log:    %s\n' \
    "$name" "${runs:-?}" "${input:-none written}" "$binary" "${input:-}" "$log"
exit 1
