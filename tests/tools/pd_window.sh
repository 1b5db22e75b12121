#!/bin/bash
# What issue 7 asks of prefill and decode workers on two GPUs, most valuable first, each part by name. Lies in the folder
# that tests/tools/pd_pack.sh makes, beside what it starts. usage: pd_window.sh [PART...]; without words all, at most 400 s.
#
#   part      s    what                                                                       its answer
#   headline  60   Ouro-1.4B, 32 at once, 2048 in, 64 out: 1p1d, 2r, 2h; passes of half       >= 1,250 tok/s, TTFT p50 <= 0.6 s,
#                  a prompt; equal to each other                                              tail p50 <= 1 ms
#   equal     45   greedy, drawn, adaptive, drawn and adaptive: engine, 1p1d, 2h              no output differs
#   kill      80   20 kill -9, prompts of 2048 under way; answers those of one engine         word < 50 ms, nothing left
#   mixed     130  Nanbeige, 128 and 4096 by turns, 2, 1, 0.5, 0.25 a second: 1p1d, 2r, 2h    1p1d not worse than 2r
#   sweep     35   headline by chunk/budget and with error mode peer                          within 5 %
#   chat      30   lengths as people's, 128 out: 1p1d, 2r, 2h                                 1p1d not worse than 2r
#   lanes     20   a killed receiver's memory and next life, puts, a lane that is refused     bytes good, 370 GB/s
#
# Figures are printed as they come, and lie in $OUT/window.txt (./out); logs, CSV and pages in $OUT/window.tgz, new behind each part. A part
# that is over its time is ended.
# DEVICES=cuda:0: all processes on one GPU: what is equal, who notices a death and how soon; not how fast two GPUs are.
# REHEARSE=1: the same commands on tiny models, for a machine without GPUs (tests/tools/pd_pack.sh --rehearse).
set -u
cd "$(dirname "$0")" || exit 2
out=${OUT:-$PWD/out} O=$PWD/logs
mkdir -p "$out" "$O"
exec > >(tee -a "$out/window.txt") 2>&1
tee_pid=$!
began=$SECONDS
OURO=ouro-1.4b NAN=nanbeige-3b MINI=mini-ouro
LEN=2048 LONG=700 SHORT=128 LONGEST=4096 ROWS=2048 HALF=1024 CHAT=64 PEOPLE=sharegpt CON=24 BURST=32 LIMIT=1 REQS='20 10 4 3'
if [ -n "${REHEARSE:-}" ]; then
    OURO=tiny-ouro NAN=tiny-nanbeige MINI=tiny-ouro
    LEN=64 LONG=90 SHORT=16 LONGEST=80 ROWS=64 HALF=32 CHAT=6 PEOPLE=20:120 CON=6 BURST=6 LIMIT=3 REQS='4 3 2 2'
fi
export LD_LIBRARY_PATH=$PWD/found${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
DEVICES=${DEVICES:-cuda:0,cuda:1}
E="--dtype bf16 --device $DEVICES --repeat 1"
W=$(mktemp -d /dev/shm/gyre-pd-XXXXXX)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$W"; exec >&- 2>&-; wait $tee_pid' EXIT

say() { echo "== $* ($((SECONDS - began)) s)"; }
use_libraries() { # of libs those that the system has not, and what these need
    local l more=1
    mkdir -p found
    while [ $more = 1 ]; do
        more=0
        for l in $(ldd gyre bench/gyre-bench-pd found/* 2>/dev/null | awk '/not found/ { print $1 }' | sort -u); do
            [ -e "libs/$l" ] && [ ! -e "found/$l" ] && ln -s "$PWD/libs/$l" found/ && more=1
        done
    done
    ldd gyre bench/gyre-bench-pd libgyre_cuda.so | grep 'not found'
}
write_models() { # while the first part runs; each part waits for its own
    local s
    for s in "$OURO" "$MINI" "$NAN"; do
        [ -e "$W/$s" ] || (./gyre synth --shape "$s" --seed 1 "$W/.$s" >"$O/synth-$s.log" 2>&1 && mv "$W/.$s" "$W/$s")
    done
}
await() {
    local i
    for ((i = 0; i < 600; i++)); do
        [ ! -e "$W/$1" ] || return 0
        sleep 0.1
    done
    echo "$1: no checkpoint"
    return 1
}
left() { # seconds of this part
    local s=$((part_ends - SECONDS))
    echo $((s > 1 ? s : 1))
}

# bench NAME MODEL OPTION...
bench() {
    local name=$1 model=$2
    shift 2
    await "$model" || return
    # shellcheck disable=SC2086
    timeout -k 1 "$(left)" ./gyre bench engine "$W/$model" $E --csv "$O/$name.csv" --html "$O/$name.html" "$@" 2>&1 >"$O/$name.log" |
        tee "$O/$name.err" | grep -a --line-buffered 'repeat\|reason=\|error' | cut -c 1-200
    local rc=${PIPESTATUS[0]}
    grep -ahE '^layouts|processes|threads|^ *[a-z0-9@/MG]+ +[0-9]+ x|^cell|outputs|DIFFER' "$O/$name.log"
    [ "$rc" -eq 0 ] || {
        echo "$name: rc $rc"
        grep -a 'gyre' "$O/$name.err" | tail -n 3 | cut -c 1-300
    }
}

headline() {
    local h="--workload burst --concurrency $BURST --in $LEN --out 64 --prefill-chunk $ROWS"
    bench headline "$OURO" --warmup 4 --cell "whole $h --max-rows $ROWS --layouts 1p1d,2r,2h"
    bench half "$OURO" --warmup 4 --cell "half $h --max-rows $HALF --layouts 1p1d"
}

equal() {
    local b="--workload burst --concurrency $CON --in 20:$LONG --out 32 --layouts engine,1p1d,2h" drawn="--temperature 0.9"
    local gate="--exit gate --exit-threshold 0.5 --min-loops 1" delayed="--exit gate_delayed --exit-threshold 0.5"
    bench equal "$MINI" --max-rows 512 --cell "greedy $b" --cell "drawn $b $drawn" --cell "gate $b $gate" \
        --cell "drawn-delayed $b $drawn $delayed"
}

kill_() {
    timeout -k 1 "$(left)" bench/gyre-bench-pd detect --kills 10 --shape "$MINI" --prompt "$LEN" --gyre "$PWD/gyre" \
        --device "$DEVICES" 2>"$O/kill.err" | tee "$O/kill.log" | grep -a --line-buffered 'killed\|kill -9\|word\|prefill\|decode\|answered'
    echo "rc ${PIPESTATUS[0]}"
    grep -a 'gyre-bench\|ERROR\|error' "$O/kill.err" | tail -n 4 | cut -c 1-300
    echo "left: $(pgrep -c -f 'gyre worker') workers, $(find /dev/shm -type f -not -path "*/gyre-pd-*" | wc -l) files, $(ipcs -m | grep -c '^0x') segments"
    nvidia-smi --query-gpu=index,memory.used --format=csv,noheader 2>/dev/null
}

mixed() {
    local rate n
    # shellcheck disable=SC2086
    set -- $REQS
    for rate in 2 1 0.5 0.25; do
        n=$1
        shift
        bench "mixed-$rate" "$NAN" --warmup 4 --max-rows "$ROWS" --prefill-chunk "$ROWS" --max-seqs 32 --cell \
            "mixed-$rate --workload poisson --rate $rate --requests $n --in $SHORT,$LONGEST --out 64 --layouts 1p1d,2r$([ "$rate" != 2 ] || echo ,2h)"
    done
}

sweep() {
    bench sweep "$OURO" --warmup 4 --cell "sweep --workload burst --concurrency $BURST --in $LEN --out 64 --prefill-chunk $ROWS \
        --max-rows $ROWS --layouts 1p1d@64M/256M,1p1d@256M/1G,1p1d@256M/2G,1p1d@peer"
}

chat() {
    bench chat "$OURO" --warmup 4 --max-rows "$ROWS" --max-seqs 64 --cell \
        "chat --workload poisson --rate 8 --requests $CHAT --in $PEOPLE --out 128 --layouts 1p1d,2r,2h"
}

lanes() {
    timeout -k 1 "$(left)" ./gyre inspect --transport --device "$DEVICES"
    local p
    [ -z "${REHEARSE:-}" ] || return # the rest asks libcuda itself
    for p in memory kill-receiver put refuse; do timeout -k 1 "$(left)" bench/gyre-bench-pd-gpu "$p" || echo "$p: rc $?"; done
}

chmod +x gyre bench/* 2>/dev/null
use_libraries
write_models &
[ $# -gt 0 ] || set -- headline equal kill mixed sweep chat lanes
for part in "$@"; do
    case $part in
        headline) s=60 ;;
        equal) s=45 ;;
        kill) s=80 ;;
        mixed) s=130 ;;
        sweep) s=35 ;;
        chat) s=30 ;;
        lanes) s=20 ;;
        *)
            echo "pd_window.sh: found '$part', expected headline, equal, kill, mixed, sweep, chat or lanes"
            exit 2
            ;;
    esac
    say "$part"
    part_ends=$((SECONDS + s * LIMIT))
    case $part in kill) kill_ ;; *) "$part" ;; esac
    tar -C "$O" -czf "$out/window.tgz" .
done
say end
