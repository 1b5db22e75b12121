#!/bin/bash
# One window for the fused launches of recorded stages (src/ops/cuda/record.cu, enum fuse): are bits equal, and what does
# each gain? fuse.sh BUILD OUT [right] [time] [memcheck] [engine], from any folder; BUILD has test_ops_record (or tests/ has it),
# libgyre_cuda.so beside it, and for `engine` gyre and tests/test_equal_gpu. About 60, 50, 100 and 150 s. Goes when the
# choice is made.
#   1 silu   2 rope   4 join   8 ahead   16 let next   32 up to 256 rows   64 norm
set -u
build=$1
out=$2
shift 2
only=${*:-right time}
mkdir -p "$out"
test=$build/test_ops_record
[ -x "$test" ] || test=$build/tests/test_ops_record
export GY_FUSE_SAY=1

# right SHAPE MASKS: equal to the single operations, states and KV memory
right() {
    timeout -k 1 40 "$test" --fuse "$2" --shape "$1" >"$out/right_$1.log" 2>&1
    rc=$?
    echo "shape $1, masks $2: rc $rc, $(grep -c ': equal' "$out/right_$1.log") equal"
    [ $rc = 0 ] || grep -av '^\[\|^GY_FUSE' "$out/right_$1.log" | tail -n 4 | cut -c 1-200
}

# times NAME MASKS ROWS CONTEXT...
times() {
    timeout -k 1 60 "$test" --fuse "$2" --time "${@:3}" >"$out/time_$1.log" 2>"$out/time_$1.err"
    echo "rc $?"
    cat "$out/time_$1.log"
    grep -a GY_FUSE "$out/time_$1.err" | sort -u | awk '{ print $2, $3, $5 }' | tr '\n' ';'
    echo
}

case " $only " in *" right "*)
    for shape in 3 4 5 7; do right $shape 0,1,2,4,6,10,16,64,65,7,15,31,95,127; done
    right 0 7,95
    right 1 7,95
    right 6 7,31,95
    right 2 31
    ;;
esac
case " $only " in *" time "*)
    times few 0,16,1,17,2,10,26,64,80,65,81,7,15,23,31,71,95 1 128 4 512
    times long 0,4,6,14,2,10,16,20,30,31,95 1 2048
    times more 0,16,1,17,2,6,14,7,15,31 8 1024 32 1024 64 1024
    times many 0,32,38,46 256 128 256 1024
    ;;
esac
case " $only " in *" memcheck "*)
    for shape in 4 5; do
        timeout -k 1 100 compute-sanitizer --tool memcheck --error-exitcode 9 "$test" --fuse 95 --shape $shape \
            >"$out/memcheck_$shape.log" 2>&1
        echo "memcheck, shape $shape: rc $?, $(grep -a 'ERROR SUMMARY' "$out/memcheck_$shape.log")"
    done
    ;;
esac
case " $only " in *" engine "*)
    for mask in 0 31 95; do
        GY_FUSE=$mask timeout -k 1 100 "$build/tests/test_equal_gpu" >"$out/equal_$mask.log" 2>&1
        echo "test_equal_gpu, mask $mask: rc $?"
    done
    weights=$(mktemp -d /dev/shm/gyre-fuse-XXXXXX)
    "$build/gyre" synth --shape ouro-1.4b --seed 1 "$weights/ouro" >/dev/null 2>&1
    for mask in 0 16 31 95 127; do
        GY_FUSE=$mask timeout -k 1 100 "$build/gyre" bench engine "$weights/ouro" --device cuda --dtype bf16 --max-rows 2048 \
            --warmup 1 --repeat 1 \
            --cell "decode_1_128 --concurrency 1 --requests 1 --in 128 --out 64 --repeat 3" \
            --cell "decode_1_2048 --concurrency 1 --requests 1 --in 2048 --out 64 --repeat 3" \
            --cell "c1 --concurrency 1 --requests 2 --in 1024 --out 128 --repeat 3" \
            --cell "c32 --concurrency 32 --requests 64 --in 1024 --out 128 --prefill-share 1" \
            --cell "rows_256 --workload burst --concurrency 256 --in 16 --out 48" >"$out/engine_$mask.log" 2>&1
        echo "engine, mask $mask: rc $?"
        tail -n 12 "$out/engine_$mask.log"
    done
    rm -rf "$weights"
    ;;
esac
