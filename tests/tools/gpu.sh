#!/bin/bash
# All that needs a GPU, from a build folder whose tests are built: gpu.sh BUILD OUT [NAME...]
# One line a stage, the tables of timings behind; logs under OUT. NAME...: only these stages:
#   ops golden sanitizer race      right or wrong
#   record attn timings depth families    how fast, beside the machine's floors (CEILINGS)
#   long                           the CPU's equalities with the GPU in its place, minutes each; not without its name
# REPEAT=1 for a first look: without it the cells of the headline table are medians of 3.
# Runs from the repository's root. ./do test-gpu builds and calls it.
set -u
build=$1
out=$2
shift 2
only=${*:-ops golden sanitizer race record attn timings depth families}
CEILINGS=${CEILINGS:-4244:790} # GB/s and TFLOP/s of an H200: docs/kernels.md
mkdir -p "$out"
passed=0
failed=0
began=$SECONDS

# stage LOG COMMAND...
stage() {
    log=$out/$1.log
    shift
    begun=$SECONDS
    if timeout 240 "$@" >"$log" 2>&1 </dev/null; then
        verdict=ok
        passed=$((passed + 1))
    else
        verdict=FAILED
        failed=$((failed + 1))
    fi
    printf '%-28s %-6s %4d s\n' "$(basename "$log" .log)" "$verdict" $((SECONDS - begun))
    if [ "$verdict" = FAILED ]; then
        grep -aE 'rror|FAILED|differs|differ|got|skipped' "$log" | head -n 12 | cut -c 1-220 | sed 's/^/    | /'
        tail -n 6 "$log" | cut -c 1-220 | sed 's/^/    | /'
    fi
}

wanted() { case " $only " in *" $1 "*) return 0 ;; *) return 1 ;; esac }

# Operations against ref, poisoned borders, equalities of rows.
if wanted ops; then
    for t in "$build"/tests/test_ops*; do
        if [ -x "$t" ] && [ -f "$t" ]; then stage "$(basename "$t" | sed 's/^test_//')" "$t"; fi
    done
fi

# The golden checkpoints with the GPU in the place of the CPU, and equalities on models of the GPU's own head sizes.
if wanted golden; then
    stage equal_gpu "$build/tests/test_equal_gpu"
    [ ! -x "$build/tests/test_device" ] || stage device env GY_TEST_BACKEND=cuda "$build/tests/test_device" --alone
    for t in golden bf16 eight_bits; do stage "$t" env GY_TEST_BACKEND=cuda "$build/tests/test_$t"; done
    grep -a 'same best token' "$out/eight_bits.log" | sed 's/^/    | /'
    head -c 1800 docs/pd.md >"$out/text"
    for kv in auto int8; do
        stage "eval_6m_kv_$kv" "$build/gyre" eval models/gyre-6m --file "$out/text" --device cuda --kv-dtype "$kv"
        sed 's/^/    | /' "$log"
    done
fi
if wanted long; then
    for t in equal equal_prefix equal_preempt equal_choices; do
        stage "$t" env GY_TEST_BACKEND=cuda "$build/tests/test_$t"
    done
fi

# mini FAMILY: a checkpoint, made once.
mini() {
    if [ ! -d "$out/mini-$1" ]; then "$build/gyre" synth --shape "mini-$1" --seed 3 "$out/mini-$1" >/dev/null 2>&1; fi
}

# Each family in BF16 and F32, prompts that fill tiles, several requests at once.
if wanted sanitizer; then
    ids=$(seq -s, 1 150)
    for family in ouro nanbeige huginn; do
        mini "$family"
        for dtype in bf16 f32; do
            stage "memcheck_${family}_$dtype" compute-sanitizer --tool memcheck --error-exitcode 9 "$build/gyre" run "$out/mini-$family" --device cuda --dtype "$dtype" --prompt-ids "$ids" --prompt-ids 5,6,7 --max-tokens 4 --ignore-eos
        done
    done
    stage memcheck_ouro_kv_int8 compute-sanitizer --tool memcheck --error-exitcode 9 "$build/gyre" run "$out/mini-ouro" --device cuda --dtype bf16 --kv-dtype int8 --prompt-ids "$ids" --prompt-ids 5,6,7 --max-tokens 4 --ignore-eos
    stage memcheck_record compute-sanitizer --tool memcheck --error-exitcode 9 "$build/tests/test_ops_record" --without 0 --shape 4
    ids=$(seq -s, 1 70)
    stage initcheck_ouro compute-sanitizer --tool initcheck --kernel-name kernel_substring=prompt_kernel --kernel-name kernel_substring=decode_kernel --kernel-name kernel_substring=join_kernel --kernel-name kernel_substring=norm_kernel --error-exitcode 9 "$build/gyre" run "$out/mini-ouro" --device cuda --dtype bf16 --prompt-ids "$ids" --max-tokens 2 --ignore-eos
fi

# Shared memory: racecheck fails inside cuBLASLt's kernels, so it walks what has none of them: our kernels alone in both
# dtypes, and a whole model in F32, whose products are ours.
if wanted race; then
    stage race_ops compute-sanitizer --tool racecheck --error-exitcode 9 "$build/tests/test_ops_race"
    mini ouro
    stage race_ouro_f32 compute-sanitizer --tool racecheck --error-exitcode 9 "$build/gyre" run "$out/mini-ouro" --device cuda --dtype f32 --prompt-ids "$(seq -s, 1 40)" --max-tokens 2 --ignore-eos
fi
rm -rf "$out"/mini-*

# A layer by operations, recorded, and recorded without letting the next kernel in.
if wanted record; then
    stage record_times "$build/tests/test_ops_record" --without 0,4 --time 1 128 1 2048 8 1024 32 1024 64 1024
    sed 's/^/    | /' "$out/record_times.log"
    stage record_times_kv_int8 "$build/tests/test_ops_record" --without 0 --kv int8 --time 1 128 1 2048 32 1024
    sed 's/^/    | /' "$out/record_times_kv_int8.log"
fi

if wanted attn && [ -x "$build/bench/gyre-bench-attn-gpu" ]; then
    stage attn "$build/bench/gyre-bench-attn-gpu"
    sed 's/^/    | /' "$out/attn.log" | cut -c 1-160
    stage attn_kv_int8 "$build/bench/gyre-bench-attn-gpu" --kv int8
    sed 's/^/    | /' "$out/attn_kv_int8.log" | cut -c 1-160
fi

# ---- models of the published sizes, random weights -----------------------------------------------------------------

# Weights in memory where there is room for the largest: a disk would be timed else.
shm=/dev/shm
[ -w "$shm" ] && [ "$(df -k --output=avail "$shm" | tail -n 1)" -gt 25000000 ] || shm=$out
weights=$(mktemp -d "$shm/gyre-gpu-XXXXXX")
trap 'rm -rf "$weights"' EXIT

synth() { stage "synth_$1" "$build/gyre" synth --shape "$1" --seed 1 "$weights/$1"; }

# cells NAME SHAPE OPTION...: a table, one line a --cell, the model loaded once.
cells() {
    name=$1
    shape=$2
    shift 2
    stage "bench_$name" "$build/gyre" bench engine "$weights/$shape" --device cuda --dtype bf16 --max-rows 2048 --warmup 1 --repeat 1 --ceilings "$CEILINGS" --json "$out/$name.json" "$@"
    sed 's/^/    | /' "$log"
}

three=${REPEAT:-3}
if wanted timings || wanted depth; then synth ouro-1.4b; fi

# The table of docs/kernels.md. A share of 1: what is asked for is the rate and the first token, not even steps between
# tokens (0.5 gives those). rows_256: what the host does for 256 sequences.
if wanted timings; then
    cells ouro ouro-1.4b \
        --cell "decode_1_128 --concurrency 1 --requests 1 --in 128 --out 64 --repeat $three" \
        --cell "decode_1_2048 --concurrency 1 --requests 1 --in 2048 --out 64 --repeat $three" \
        --cell "c1 --concurrency 1 --requests 2 --in 1024 --out 128 --repeat $three" \
        --cell "c32 --concurrency 32 --requests 64 --in 1024 --out 128 --prefill-share 1 --repeat $three" \
        --cell "c128 --concurrency 128 --requests 256 --in 1024 --out 128 --prefill-share 1 --repeat $three" \
        --cell "rows_256 --workload burst --concurrency 256 --in 16 --out 48"
    few=(--cell "decode_1_128 --concurrency 1 --requests 1 --in 128 --out 32" --cell "decode_32 --workload burst --concurrency 32 --in 128 --out 33")
    cells few ouro-1.4b "${few[@]}"
    cells fp8 ouro-1.4b --weights fp8 "${few[@]}"
    long=(--cell "decode_1_2048 --concurrency 1 --requests 1 --in 2048 --out 32" --cell "decode_32_1024 --workload burst --concurrency 32 --in 1024 --out 64")
    cells long ouro-1.4b "${long[@]}"
    cells kv_int8 ouro-1.4b --kv-dtype int8 "${long[@]}"
fi

# Outputs of 1 to 4 loops, 2.5 on average, another pattern in each request; the same work at full depth beside it, and
# again under a gate rule that no token can meet: what waiting for gates costs.
if wanted depth; then
    awk 'BEGIN { for (i = 0; i < 32; i++) { printf "{\"loops\":[4"
        for (k = 1; k < 128; k++) printf ",%d", (k * (i % 3 == 1 ? 3 : 1) + i + int(k / 4) * (i % 2)) % 4 + 1
        print "]}" } }' >"$out/depths.jsonl"
    load="--workload burst --concurrency 32 --in 512 --out 128"
    cells depth ouro-1.4b --cell "full_depth $load" --cell "depth_2.5 $load --exit trace:$out/depths.jsonl" \
        --cell "gate_never $load --exit gate --exit-threshold 0.999999 --min-loops 1"
    awk '$1 == "full_depth" { full = $5 } $1 == "depth_2.5" { printf "    | a token at full depth over one at mean depth 2.5 (TPOT): %.2f, goal 1.45\n", full / $5 }
        $1 == "gate_never" { printf "    | waiting for gates in 3 of 4 passes: %.0f us a token (TPOT)\n", 1000 * ($5 - full) }' "$log"
fi
rm -rf "$weights/ouro-1.4b"

if wanted families; then
    for shape in nanbeige-3b huginn; do
        synth $shape
        cells $shape $shape \
            --cell "decode_1 --concurrency 1 --requests 1 --in 128 --out 17" \
            --cell "decode_32 --workload burst --concurrency 32 --in 128 --out 17" \
            --cell "prompt_1024 --concurrency 1 --requests 2 --in 1024 --out 1"
        rm -rf "${weights:?}/$shape"
    done
fi

echo "$passed passed, $failed failed, $((SECONDS - began)) s"
[ "$failed" = 0 ]
