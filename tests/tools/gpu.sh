#!/bin/sh
# All that needs a GPU, from a build folder whose tests are built: gpu.sh BUILD OUT [NAME...]
# One line a stage, the table of timings last; logs under OUT. NAME...: only these stages (ops, golden, sanitizer, timings;
# long: the CPU's equalities with the GPU in its place, minutes each).
# Runs from the repository's root. ./do test-gpu builds and calls it.
set -u
build=$1
out=$2
shift 2
only=${*:-ops golden sanitizer timings}
mkdir -p "$out"
passed=0
failed=0

# stage LOG COMMAND...
stage() {
    log=$out/$1.log
    shift
    begun=$(date +%s)
    if timeout 240 "$@" >"$log" 2>&1 </dev/null; then
        verdict=ok
        passed=$((passed + 1))
    else
        verdict=FAILED
        failed=$((failed + 1))
    fi
    printf '%-28s %-6s %4d s\n' "$(basename "$log" .log)" "$verdict" $(($(date +%s) - begun))
    if [ "$verdict" = FAILED ]; then
        grep -aE 'rror|FAILED|differs|differ|got|skipped' "$log" | head -n 12 | cut -c 1-220 | sed 's/^/    | /'
        tail -n 6 "$log" | cut -c 1-220 | sed 's/^/    | /'
    fi
}

wanted() { case " $only " in *" $1 "*) return 0 ;; *) return 1 ;; esac }

# Operations against ref, poisoned borders, equalities of rows.
if wanted ops; then
    for t in ops ops_rows ops_linear ops_attn ops_parallel ops_cuda; do stage "$t" "$build/tests/test_$t"; done
fi

# The golden checkpoints with the GPU in the place of the CPU, and equalities on models of the GPU's own head sizes.
if wanted golden; then
    stage equal_gpu "$build/tests/test_equal_gpu"
    for t in golden bf16; do stage "$t" env GY_TEST_BACKEND=cuda "$build/tests/test_$t"; done
fi
if wanted long; then
    for t in equal equal_prefix equal_preempt equal_choices; do
        stage "$t" env GY_TEST_BACKEND=cuda "$build/tests/test_$t"
    done
fi

# Each family in BF16 and F32, prompts that fill tiles, several requests at once.
if wanted sanitizer; then
    ids=$(seq -s, 1 150)
    for family in ouro nanbeige huginn; do
        dir=$out/mini-$family
        "$build/gyre" synth --shape "mini-$family" --seed 3 "$dir" >/dev/null 2>&1
        for dtype in bf16 f32; do
            stage "memcheck_${family}_$dtype" compute-sanitizer --tool memcheck --error-exitcode 9 "$build/gyre" run "$dir" --device cuda --dtype "$dtype" --prompt-ids "$ids" --prompt-ids 5,6,7 --max-tokens 4 --ignore-eos
        done
    done
    # Not racecheck: it fails inside cuBLASLt's kernels (docs/kernels-gpu.md).
    ids=$(seq -s, 1 70)
    stage initcheck_ouro compute-sanitizer --tool initcheck --kernel-name kernel_substring=prompt_kernel --kernel-name kernel_substring=decode_kernel --kernel-name kernel_substring=join_kernel --kernel-name kernel_substring=norm_kernel --error-exitcode 9 "$build/gyre" run "$out/mini-ouro" --device cuda --dtype bf16 --prompt-ids "$ids" --max-tokens 2 --ignore-eos
    rm -rf "$out"/mini-*
fi

bench() {
    name=$1
    shift
    stage "bench_$name" "$build/gyre" bench engine --device cuda --dtype bf16 --warmup 2 --repeat 3 "$@"
    awk -v name="$name" '
        $1 == "TTFT" { ttft = $3 } $1 == "TPOT" { tpot = $3 } /^  output tokens\/s/ { rate = $3 } /host part/ { host = $3 }
        / step  / { step = $2 } /sampler/ { sampler = $2 }
        END { printf "    | %-16s TTFT %9s ms  a token %8s ms  %9s tok/s  step %9s us, of it host %s, sampler %s\n", name, ttft, tpot, rate, step, host, sampler }
    ' "$log"
}

# Ouro-1.4B's shape, medians of 3.
if wanted timings; then
    model=$out/ouro-1.4b
    stage synth "$build/gyre" synth --shape ouro-1.4b --seed 1 "$model"
    bench decode_1_128 "$model" --concurrency 1 --requests 1 --in 128 --out 64
    bench decode_1_2048 "$model" --concurrency 1 --requests 1 --in 2048 --out 64 --max-rows 2048
    bench c32 "$model" --concurrency 32 --requests 64 --in 1024 --out 128 --max-rows 2048 --max-seqs 32
    rm -rf "$model"
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
