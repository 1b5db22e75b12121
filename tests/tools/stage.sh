#!/bin/bash
# A stage in one launch (src/ops/cuda/stage.cu) on a GPU, from a build folder: right, then how fast. stage.sh BUILD OUT [BENCH]
# BENCH: gyre-bench-stage-gpu (built by hand: bench/bench_stage_gpu.cu); without it the sweep is skipped. At most 100 s, each
# step has a limit, and a step that fails ends it: a stage that is wrong or hangs is not worth timing. Logs under OUT.
#   bits    rows alone, three shapes, contexts 1 to 2045, stage against operations
#   sweep   the bench: weights alone, then flights, counters, at contexts 128 and 2048, with cycles by phase
#   layer   us a layer beside the recorded launches, one process, contexts 128, 512, 1024, 2048
#   engine  decode of 1 row at 128 and 2048, without and with the stage
set -u
build=$1
out=$2
bench=${3:-}
mkdir -p "$out"
began=$SECONDS

# step NAME LIMIT COMMAND...
step() {
    name=$1
    limit=$2
    shift 2
    begun=$SECONDS
    timeout "$limit" "$@" >"$out/stage_$name.log" 2>&1 </dev/null
    rc=$?
    printf '%-8s rc %d, %d s\n' "$name" "$rc" $((SECONDS - begun))
    return "$rc"
}
show() { sed 's/^/    | /' "$out/stage_$1.log" | cut -c 1-240; }

for shape in 3 7 0; do # small ouro, mini nanbeige, ouro-1.4b
    if ! step "bits_$shape" 20 "$build/tests/test_ops_record" --stage 0 --shape "$shape"; then
        grep -aE 'rror|differ|expected|waited|stage' "$out/stage_bits_$shape.log" | head -n 12 | cut -c 1-300
        exit 1
    fi
done

if [ -n "$bench" ]; then
    step sweep_128 12 "$bench" 128
    show sweep_128
    step sweep_2048 10 "$bench" 2048 5,5,5,weights 4,4,4,stream 4,4,4,free 4,4,4 4,8,4 4,8,8 4,8,4,0,2 4,8,4,0,1
    show sweep_2048
fi

# Flight, of gate and up, of K and V, counters (-1: none), parts; 0: as usual.
ways=(--stage "0" --stage "4,8,4" --stage "5,5,5" --stage "4,4,4,-1")
step layer 40 "$build/tests/test_ops_record" --without 0 "${ways[@]}" --time 1 128 1 512 1 1024 1 2048
show layer

shm=/dev/shm
[ -w "$shm" ] || shm=$out
model=$(mktemp -d "$shm/gyre-stage-XXXXXX")
trap 'rm -rf "$model"' EXIT
step synth 20 "$build/gyre" synth --shape ouro-1.4b --seed 1 "$model/m"
for device in cuda-stage cuda; do
    step "engine_$device" 20 "$build/gyre" bench engine "$model/m" --device "$device" --dtype bf16 --warmup 1 --repeat 1 \
        --cell "decode_1_128 --concurrency 1 --requests 1 --in 128 --out 64 --repeat 3" \
        --cell "decode_1_2048 --concurrency 1 --requests 1 --in 2048 --out 64 --repeat 3"
    show "engine_$device"
done
echo "$((SECONDS - began)) s"
