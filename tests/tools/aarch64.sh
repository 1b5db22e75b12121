#!/bin/sh
# gyre for AArch64 on an x86-64 Debian: every source compiles, warnings being errors, and the operations run under qemu
# against ref. usage: aarch64.sh BUILD_DIR [all]
# Without "all" what takes seconds: values by hand for every operation, row operations against ref, threads, features. With
# it also the sweeps of products and attention, 1 and 5 minutes of an emulator. Third-party headers are the host's, as
# they name no processor; of its libraries nothing is linked.
set -eu
build=$1 tests='unit/test_base_cpu ops/test_ops ops/test_ops_rows ops/test_ops_parallel'
[ "${2:-}" != all ] || tests="$tests ops/test_ops_linear ops/test_ops_attn"
if ! command -v aarch64-linux-gnu-gcc >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
    echo 'note: skipped: needs gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user'
    exit 0
fi
cmake --preset aarch64 -B "$build"
cmake --build "$build" -j "$(nproc)" --target gy_cli

for test in $tests; do
    program=$build/$(basename "$test")
    aarch64-linux-gnu-gcc -std=gnu17 -O1 -Wall -Wextra -Werror -ffp-contract=off -fno-strict-aliasing -D_GNU_SOURCE \
        -isystem tests/support/bare -Isrc -Iinclude -Itests "tests/$test.c" -o "$program" -Wl,--start-group \
        "$build/libgy_ops.a" "$build/libgy_ops_cpu.a" "$build/libgy_ops_ref.a" "$build/libgy_tensor.a" \
        "$build/libgy_base.a" -Wl,--end-group -lpthread -lm -ldl
    qemu-aarch64 -L /usr/aarch64-linux-gnu "$program"
done
echo "note: $(find "$build" -name '*.o' | wc -l) objects for AArch64; under qemu: $tests"
