#!/bin/bash
# What branch gpu-next must be asked on a GPU (docs/gpu-next.md). From any folder: next.sh DIR OUT STAGE...
#   DIR  gyre, libgyre_cuda.so and the tests named below, beside one another; DIR/base: gyre and libgyre_cuda.so of main
#   first window   right quant equal time pick engine late           about 290 s
#   second window  long soak memcheck race                            about 300 s
# Masks: enum fuse of src/ops/cuda/record.cu: 1 silu 2 rope 4 join 8 ahead 16 let next 32 to 256 rows 64 norm 4096 none.
# A stage says one line a question; logs lie under OUT. `pick` writes OUT/best: of the masks that were right everywhere
# the fastest at 1 row; later stages use it. Goes with GY_FUSE.
set -u
dir=$1
out=$2
shift 2
mkdir -p "$out"
began=$SECONDS
MASKS=${MASKS:-0 1 2 4 6 10 14 16 64 65 7 15 31 71 79 95}
WIDE=${WIDE-0 1 2 4 64 65 31 95} # of these, on Ouro's own width too
BEST=${BEST:-}

head_line() { echo "== $1 ($((SECONDS - began)) s)"; }
best() {
    if [ -n "$BEST" ]; then echo "$BEST"; elif [ -s "$out/best" ]; then cat "$out/best"; else echo 0; fi
}

# ---- first window ----------------------------------------------------------------------------------------------------

# Each mask on four small shapes, in processes of their own (one that hangs costs itself), eight at a time; then the wide
# shapes with what is left right.
one_right() {
    GY_FUSE_SAY=1 timeout -k 1 "$4" "$dir/test_ops_record" --fuse "$1" --shape "$2" >"$3/right_$1_$2.log" 2>&1
    rc=$?
    [ $rc != 0 ] || grep -aq ': equal' "$3/right_$1_$2.log" || rc=77 # skipped: nothing was compared
    echo "$1 $2 $rc" >>"$3/right.all"
}
export -f one_right
export dir
right() {
    head_line "right: recorded and fused = carried out, bit for bit (states, KV)"
    : >"$out/right.all"
    for mask in $MASKS; do for shape in 3 4 5 7; do echo "$mask $shape $out 25"; done; done | xargs -P 8 -L 1 bash -c 'one_right "$@"' _
    small=$(awk '$3 != 0 { bad[$1] = 1 } { seen[$1] = 1 } END { for (m in seen) if (!(m in bad)) print m }' "$out/right.all" | sort -n)
    [ -z "$small" ] || { for mask in $small; do case " $WIDE " in *" $mask "*) echo "$mask 0 $out 40" ;; esac done; for shape in 1 2 6; do echo "$(echo "$small" | tail -n 1) $shape $out 40"; done; } | xargs -P 4 -L 1 bash -c 'one_right "$@"' _
    awk '$3 != 0 { bad[$1] = bad[$1] " shape " $2 ": rc " $3 } { seen[$1] = 1 } END { for (m in seen) print m, (m in bad) ? "WRONG" bad[m] : "right" }' "$out/right.all" | sort -n
    for log in $(awk '$3 != 0 { print "right_" $1 "_" $2 ".log" }' "$out/right.all" | head -n 4); do
        echo "  $log: $(grep -aE 'differ|rror' "$out/$log" | head -n 2 | tr '\n' ' ' | cut -c 1-240)"
    done
    echo "  launches of calls:"
    cat "$out"/right_*_0.log | grep -a '^GY_FUSE' | awk '{ print "  mask " $2, $5, "rows", $7, "of", $10 }' | sort -u | sort -k2n -k3n | awk '$3 == 1 || $3 == 8 || $3 == 64' | head -n 40
}

quant() {
    head_line "quant: products of weights in 8 bits = ref's, = those of BF16 with their values"
    GY_EIGHT=1 timeout -k 1 60 "$dir/test_ops_linear" >"$out/quant.log" 2>&1
    echo "test_ops_linear rc $?, $(grep -ac 'skipped' "$out/quant.log") skipped"
    grep -aE 'differ|rror|FAILED' "$out/quant.log" | head -n 6 | cut -c 1-200
    for t in rows attn sample cuda; do
        (timeout -k 1 40 "$dir/test_ops_$t" >"$out/ops_$t.log" 2>&1
            echo "test_ops_$t rc $?") &
    done
    wait
}

equal() {
    head_line "equal: whole requests, recorded and late"
    for mask in 0 32 $(best); do
        GY_FUSE=$mask timeout -k 1 60 "$dir/test_equal_gpu" >"$out/equal_$mask.log" 2>&1 &
    done
    GY_FUSE=4096 GY_LATE=0 timeout -k 1 60 "$dir/test_equal_gpu" >"$out/equal_4096.log" 2>&1 &
    wait
    for log in "$out"/equal_*.log; do echo "$(basename "$log"): $(tail -n 1 "$log") $(grep -a FAILED "$log" | head -n 1)"; done
}

# times NAME MASKS ROWS CONTEXT...
times() {
    timeout -k 1 60 "$dir/test_ops_record" --fuse "$2" --time "${@:3}" >"$out/time_$1.log" 2>"$out/time_$1.err"
    rc=$?
    [ $rc = 0 ] || echo "rc $rc"
    cat "$out/time_$1.log"
}
time_() {
    head_line "time: us a layer of Ouro-1.4B's 24, recorded"
    all=${MASKS// /,}
    times few "$all" 1 128
    times long "0,4,6,14,15,31,71,79,95" 1 2048
    times more "0,1,7,15,31,95" 4 512 8 1024 32 1024 64 1024
    times many "0,32,39,47" 256 256
}

pick() {
    head_line "pick"
    if [ ! -s "$out/time_few.log" ]; then # not timed yet: the one that does most
        awk '$3 != 0 { bad[$1] = 1 } { seen[$1] = 1 } END { for (m in seen) if (!(m in bad)) print m }' "$out/right.all" | sort -n | tail -n 1 >"$out/best"
        echo "most that is right: $(cat "$out/best")"
        return
    fi
    awk 'FNR == NR { if ($3 != 0) bad[$1] = 1; else ok[$1] = 1; next }
         /1 rows, context  128/ { on = 1; next } /rows, context/ { on = 0 }
         on && /mask/ { m = $2; sub(":", "", m); if (!(m in bad) && (m in ok) && $3 > 0 && (!best || $3 < least)) { best = m; least = $3 } }
         END { print best == "" ? 0 : best }' "$out/right.all" "$out/time_few.log" >"$out/best"
    echo "best mask at 1 row: $(cat "$out/best")"
}

# bench NAME DIR CELL...: one line a cell.
bench() {
    local name=$1 in=$2
    shift 2
    cells=()
    more=()
    [ -z "${WEIGHTS:-}" ] || more=(--weights "$WEIGHTS")
    for cell in "$@"; do cells+=(--cell "$cell"); done
    timeout -k 1 "${LIMIT:-60}" "$in/gyre" bench engine "$weights" --device cuda --dtype bf16 \
        --max-rows 2048 --warmup 1 --repeat 1 --ceilings 4244:790 "${more[@]}" "${cells[@]}" >"$out/engine_$name.log" 2>&1
    rc=$?
    echo "-- $name: rc $rc"
    grep -aE 'TPOT|^decode|^c1|^c32|^c128|^rows' "$out/engine_$name.log" | cut -c 1-150
}
one=("decode_1_128 --concurrency 1 --requests 1 --in 128 --out 64 --repeat 3"
    "decode_1_2048 --concurrency 1 --requests 1 --in 2048 --out 64 --repeat 3"
    "c1 --concurrency 1 --requests 2 --in 1024 --out 128 --repeat 2"
    "rows_256 --workload burst --concurrency 256 --in 16 --out 48")
synth() {
    weights=$(mktemp -d /dev/shm/gyre-next-XXXXXX)
    trap 'rm -rf "$weights"' EXIT
    "$dir/gyre" synth --shape ouro-1.4b --seed 1 "$weights/m" >/dev/null 2>&1
    weights_root=$weights
    weights=$weights/m
}
# The same requests in processes of all kinds: what they print is compared with main's.
same() {
    ways="base:4096:0 nothing:4096:0 recorded:0:0 late:0:1 best:$(($(best) | 32)):1"
    for way in $ways; do
        IFS=: read -r name mask late <<<"$way"
        in=$dir
        [ "$name" != base ] || in=$dir/base
        prompts=()
        for k in 3 40 150 600; do prompts+=(--prompt-ids "$(seq -s, "$k" $((2 * k)))"); done
        for t in 0 1; do
            GY_FUSE=$mask GY_LATE=$late timeout -k 1 40 "$in/gyre" run "$weights" --device cuda --dtype bf16 "${prompts[@]}" --max-tokens 40 --kv-bytes 4G \
                --ignore-eos --seed 7 --temperature $t >"$out/same_${name}_$t.txt" 2>"$out/same_${name}_$t.err" || echo "same, $name: rc $?"
        done &
    done
    wait
    for way in $ways; do for t in 0 1; do
        name=${way%%:*}
        cmp -s "$out/same_base_$t.txt" "$out/same_${name}_$t.txt" || echo "same: $name, temperature $t DIFFERS from main"
    done; done
    echo "same: compared, $(wc -c <"$out/same_base_0.txt") bytes"
}
engine() {
    head_line "engine: main; this without anything; recorded; recorded and late; with the best mask; 256 rows recorded"
    synth
    m=$(best)
    same
    bench base "$dir/base" "${one[@]}"
    GY_FUSE=4096 GY_LATE=0 bench nothing "$dir" "${one[@]}"
    GY_FUSE=0 GY_LATE=0 bench recorded "$dir" "${one[@]}"
    GY_FUSE=0 bench late "$dir" "${one[@]}"
    GY_FUSE=$((m | 32)) bench "best_$((m | 32))" "$dir" "${one[@]}"
    GY_FUSE=$((m | 32)) bench "best_many" "$dir" "c32 --concurrency 32 --requests 64 --in 1024 --out 128 --prefill-share 1" \
        "c128 --concurrency 128 --requests 256 --in 1024 --out 128 --prefill-share 1"
    GY_EIGHT=1 GY_FUSE=$((m | 32)) WEIGHTS=fp8 LIMIT=30 bench fp8 "$dir" "${one[0]}" "${one[3]}"
    rm -rf "$weights_root"
}

# ---- second window -----------------------------------------------------------------------------------------------------

long() {
    head_line "long: the CPU's equalities with the GPU in its place, all at once"
    for t in equal equal_prefix equal_preempt equal_choices; do
        (GY_FUSE=$(($(best) | 32)) GY_TEST_BACKEND=cuda timeout -k 1 "${LONG:-140}" "$dir/test_$t" >"$out/long_$t.log" 2>&1
            echo "test_$t rc $? (124: cut off), $(grep -ac 'OK \]' "$out/long_$t.log") ok, $(grep -ac 'FAILED' "$out/long_$t.log") failed") &
    done
    for t in golden bf16 equal_drawn; do
        (GY_FUSE=$(($(best) | 32)) GY_TEST_BACKEND=cuda timeout -k 1 "${LONG:-140}" "$dir/test_$t" >"$out/long_$t.log" 2>&1
            echo "test_$t rc $?") &
    done
    wait
}

soak() {
    head_line "soak: recordings, late tokens, parked and dropped; the device's memory to the byte"
    GY_FUSE=$(($(best) | 32)) GY_TEST_BACKEND=cuda timeout -k 1 110 "$dir/test_device" --soak "${SOAK:-60}" --alone >"$out/soak.log" 2>&1
    echo "rc $?"
    grep -avE '^\[ RUN' "$out/soak.log" | tail -n 8 | cut -c 1-200
}

san() { # NAME LIMIT TOOL KERNELS COMMAND...
    local name=$1 limit=$2 tool=$3 kernels=$4
    shift 4
    only=()
    for k in $kernels; do only+=(--kernel-name "kernel_substring=$k"); done
    timeout -k 1 "$limit" compute-sanitizer --tool "$tool" "${only[@]}" --error-exitcode 9 "$@" >"$out/$name.log" 2>&1
    echo "$name rc $?, $(grep -a 'ERROR SUMMARY\|RACECHECK SUMMARY' "$out/$name.log" | tail -n 1)"
}
memcheck() {
    head_line "memcheck: recordings with all fused; 8 bits"
    for shape in 4 5; do san "memcheck_$shape" 60 memcheck "" "$dir/test_ops_record" --fuse "$(best),95" --shape $shape & done
    GY_EIGHT=1 san memcheck_quant 60 memcheck "narrow widen plain" "$dir/test_ops_linear" &
    wait
}
# Filtered by kernel: cuBLASLt's own make racecheck stop.
race() {
    head_line "race: products of ours, attention of decode rows, drawing"
    san race_narrow 60 racecheck narrow_kernel "$dir/test_ops_record" --fuse 95 --shape 5 &
    san race_chunk 60 racecheck chunk_kernel "$dir/test_ops_record" --fuse 31 --shape 4 &
    san race_sample 60 racecheck sample_kernel "$dir/test_ops_sample" &
    wait
}

for stage in "$@"; do
    case $stage in
    time) time_ ;;
    right | quant | equal | pick | engine | long | soak | memcheck | race) $stage ;;
    *) echo "no stage $stage" ;;
    esac
done
echo "all: $((SECONDS - began)) s"
