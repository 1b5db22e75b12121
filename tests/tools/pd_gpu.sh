#!/bin/bash
# What prefill and decode workers on two GPUs must be asked (issue 7; docs/pd.md, GPUs). Needs two GPUs, and in
# the current folder: gyre, bench/gyre-bench-pd, libgyre_cuda.so (or .gz) and a UCX with CUDA (libucx/, libucx_cu13.libs/ of PyPI's
# wheel). usage: pd_gpu.sh [equal] [headline] [mixed] [kill]; without words all. Logs and CSV lie in $OUT (./out). About 75 s
# and 20 s for kill. On a machine without GPUs: put tests/fake's libgyre_cuda.so there and set OURO=tiny-ouro NAN=tiny-nanbeige
# MINI=tiny-ouro LEN=64 MIX=20,90 LONG=60 T1=80 T2=100 T3=60.
#
# Not run yet. Predictions (H200): outputs equal throughout; headline 1p1d 1,150 to 1,250 tok/s (32 prompts of 35 ms, then 64 tokens
# of 20 rows and falling), TTFT p50 0.6 s, tail p50 1.1 ms with whole prompts a pass and 0.6 with halves; 2r 1,500. Kills: the
# channel is gone within 100 ms, answers equal, nothing left.
set -u
[ -e libgyre_cuda.so ] || gunzip -kf libgyre_cuda.so.gz
chmod +x gyre bench/* libucx/lib/*.so* libucx/lib/ucx/*.so* 2>/dev/null
O=${OUT:-$PWD/out}
mkdir -p "$O"
began=$SECONDS
OURO=${OURO:-ouro-1.4b} NAN=${NAN:-nanbeige-3b} MINI=${MINI:-mini-ouro} LEN=${LEN:-2048} MIX=${MIX:-128,4096}
W=$(mktemp -d /dev/shm/gyre-pd-gpu-XXXXXX)
trap 'rm -rf "$W"' EXIT
E="--dtype bf16 --device cuda:0,cuda:1 --repeat 1"
say() { echo "== $* ($((SECONDS - began)) s)"; }
show() { grep -ahE "^cell|^  [a-z0-9@/MG]+ +[0-9]+ x|outputs|DIFFER|gyre:|reason=" "$O/$1.log" "$O/$1.err" | cut -c 1-190; }
checkpoint() { [ -e "$W/$2" ] || ./gyre synth --shape "$1" --seed 1 "$W/$2" >/dev/null 2>&1; }

# bench NAME LIMIT MODEL OPTION...
bench() {
    local name=$1 limit=$2 model=$3
    shift 3
    # shellcheck disable=SC2086
    timeout -k 1 "$limit" ./gyre bench engine "$W/$model" $E --csv "$O/$name.csv" "$@" >"$O/$name.log" 2>"$O/$name.err"
    echo "rc $?"
    show "$name"
}

equal() {
    say "equal: $MINI, seeded, adaptive"
    checkpoint "$MINI" mini
    local b="--workload burst --concurrency 24 --in 20:${LONG:-700} --out 32 --layouts engine,1p1d"
    bench equal "${T1:-18}" mini --max-rows 512 --cell "seeded $b --temperature 0.9" \
        --cell "gate $b --exit gate --exit-threshold 0.5 --min-loops 1"
}

headline() {
    checkpoint "$OURO" ouro
    say "headline: 32 x $LEN in, 64 out"
    local h="--workload burst --concurrency 32 --in $LEN --out 64 --prefill-chunk 2048"
    bench headline "${T2:-38}" ouro --warmup 4 --cell "whole $h --max-rows 2048 --layouts 1p1d,2r,engine" \
        --cell "half $h --max-rows 1024 --layouts 1p1d" --cell "both $h --max-rows 2048 --layouts 2h"
}

mixed() {
    checkpoint "$NAN" nan
    say "mixed: $NAN, $MIX by turns, 64 out, 2 a second"
    bench mixed "${T3:-30}" nan --warmup 4 --max-rows 2048 --prefill-chunk 2048 \
        --cell "mixed-2 --workload poisson --rate 2 --requests 16 --in $MIX --out 64 --max-seqs 16 --layouts 1p1d,2r"
}

kill_() {
    say "kill -9, one pair at a time, answers compared"
    timeout -k 1 "${T4:-19}" bench/gyre-bench-pd detect --kills "${KILLS:-2}" --gyre "$PWD/gyre" --device cuda:0,cuda:1 >"$O/kill.log" 2>&1
    echo "rc $?"
    grep -av "ts=" "$O/kill.log" | tail -n 6 | cut -c 1-200
    grep -ah "level=" "$O/kill.log" | tail -n 12 | cut -c 1-260
}

[ $# -gt 0 ] || set -- equal headline mixed kill
for part in "$@"; do
    case $part in
        kill) kill_ ;;
        equal | headline | mixed) "$part" ;;
        *)
            echo "pd_gpu.sh: found '$part', expected equal, headline, mixed or kill" >&2
            exit 2
            ;;
    esac
done
say end
nvidia-smi --query-gpu=index,memory.used --format=csv,noheader 2>&1
