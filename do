#!/bin/sh
# gyre's one command: ./do help lists what it can do. POSIX sh, so that a bare Debian runs it.
#
# This is the only place that installs anything. Distribution packages come from apt-get, only those that are missing and
# only for the command that was asked for; Python packages go into .venv. Everything that is built lies under build/.
set -eu
cd "$(dirname "$0")"
root=$(pwd)
logs=build/logs

say() { printf '%s\n' "$*"; }
die() {
    printf 'do: %s\n' "$*" >&2
    exit 1
}

# ---- packages --------------------------------------------------------------------------------------------------------

pkgs_build='gcc libc6-dev cmake ninja-build libjansson-dev libpcre2-dev libutf8proc-dev libevent-dev libssl-dev libcurl4-openssl-dev libedit-dev libucx-dev'
pkgs_test="$pkgs_build libcmocka-dev clang clang-format clang-tidy libclang-rt-dev shellcheck etcd-server"
pkgs_aarch64='gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user'
pkgs_fuzz="$pkgs_build libcmocka-dev clang libclang-rt-dev"
pkgs_python='python3 python3-venv openssl curl nghttp2-client wrk apache2-utils iproute2'
pkgs_browser='chromium'

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

missing_packages() {
    for p in $1; do
        state=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) || state=absent
        [ "$state" = installed ] || printf ' %s' "$p"
    done
}

apt() { as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Acquire::Retries=3 "$@"; }

# need REASON "PACKAGE...": installs those of the packages that are not there.
need() {
    if ! command -v apt-get >/dev/null; then
        say "packages: no apt-get here, so nothing is installed; $1 needs the equivalents of: $2"
        return 0
    fi
    missing=$(missing_packages "$2")
    [ -n "$missing" ] || return 0
    say "packages: installing for $1:$missing"
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        die "this needs root: run ./do as root, install sudo, or run as root: apt-get install$missing"
    fi
    mkdir -p "$logs"
    # shellcheck disable=SC2086 # a list of words
    { apt update && apt install -y --no-install-recommends $missing; } >"$logs/apt.log" 2>&1 </dev/null || {
        tail -n 30 "$logs/apt.log" >&2
        die "apt-get failed (above; whole log in $logs/apt.log)"
    }
}

# want REASON "PACKAGE...": the same, but what cannot be had is said, and its tests are skipped.
want() { (need "$1" "$2") || say "packages: going on without$(missing_packages "$2"), so $1 are skipped"; }

# The virtual environment $1 with exactly what the file $2 lists. Made again when that file changes. $3: options of pip.
need_venv() {
    py=/usr/bin/python3
    [ -x "$py" ] || py=python3
    if cmp -s "$2" "$1/requirements.txt"; then return 0; fi
    say "packages: installing into $1 for the black-box tests: all $(grep -vc '^#' "$2") of $2"
    mkdir -p "$logs"
    {
        # shellcheck disable=SC2086 # options may be none
        rm -rf "$1" &&
            "$py" -m venv "$1" &&
            "$1/bin/python" -m pip install --disable-pip-version-check $3 -r "$2" &&
            cp "$2" "$1/requirements.txt"
    } >"$logs/python.log" 2>&1 </dev/null || {
        tail -n 30 "$logs/python.log" >&2
        die "the Python packages could not be installed (above; whole log in $logs/python.log)"
    }
}

# Ours, and in a second place those of foreign clients whose pins exclude ours. Inside the first: it is made first.
need_python() {
    need_venv .venv tests/requirements.txt ''
    need_venv .venv/load tests/requirements-load.txt '--no-deps --no-compile'
}

has_e2e() { ls tests/e2e/test_*.py >/dev/null 2>&1; }

# ---- stages ----------------------------------------------------------------------------------------------------------

passed=0
failed=0
stage_rc=0

# stage NAME COMMAND...: runs it with its output in build/logs/NAME.log, prints one line with the time, and the tail of the
# log when it failed. Never ends the script: the caller looks at stage_rc. The subshell is not part of a condition,
# because errexit would be off inside it then.
stage() {
    name=$1
    shift
    mkdir -p "$logs"
    log=$logs/$name.log
    printf '%-24s ' "$name"
    begun=$(date +%s)
    set +e
    (
        set -e
        "$@"
    ) >"$log" 2>&1 </dev/null
    stage_rc=$?
    set -e
    took=$(($(date +%s) - begun))
    if [ "$stage_rc" = 0 ]; then
        printf 'ok     %4d s  %s\n' "$took" "$(stage_note "$log")"
    else
        printf 'FAILED %4d s  log: %s\n' "$took" "$log"
        show_failure "$log" | cut -c 1-240 | sed 's/^/    | /'
    fi
}

# The end of a log, and before it those lines that look like the reason.
show_failure() {
    reason='error[: ]|FAILED|\*\*\*|[Uu]ndefined reference|ERROR|Sanitizer|Assert|^E  '
    if [ "$(wc -l <"$1")" -gt 20 ]; then
        grep -E "$reason" "$1" | head -n 30 || true
        echo '...'
    fi
    tail -n 20 "$1"
}

# The last line of a log that sums it up, if it has one.
stage_note() { sed -n -e 's/^note: //p' -e 's/^packages: //p' -e '/tests passed.*out of/p' -e '/ in [0-9.]*s/{/passed\|failed/p}' "$1" | tail -n 1; }

# A stage that counts as one test.
check() {
    stage "$@"
    if [ "$stage_rc" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# A stage whose log ends with ctest's or pytest's sum, which is added to the total.
suite() {
    stage "$@"
    counts=$(awk '
        /tests passed, [0-9]+ tests failed out of [0-9]+/ { f = $4; t = $9; p += t - f; n += f }
        /(passed|failed|error).* in [0-9.]+s/ { for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) p += $(i - 1)
            if ($i ~ /^(failed|errors?)/) n += $(i - 1) } }
        END { printf "%d %d", p, n }' "$log")
    passed=$((passed + ${counts% *}))
    failed=$((failed + ${counts#* }))
    if [ "$stage_rc" != 0 ] && [ "${counts#* }" = 0 ]; then failed=$((failed + 1)); fi
    if [ "$stage_rc" = 0 ] && [ "$counts" = '0 0' ]; then
        say "    | $name ran no test"
        failed=$((failed + 1))
    fi
}

# ---- build -----------------------------------------------------------------------------------------------------------

jobs() { nproc 2>/dev/null || echo 2; }

configure() {
    # The tests are part of a build only when they were asked for: a user who builds needs no cmocka. The compile commands
    # of the release build are what the header check and clang-tidy read.
    cmake --preset "$1" -DGY_TESTS="$2"
}

build() {
    configure "$1" "$2"
    cmake --build --preset "$1" -j "$(jobs)"
}

build_release() {
    need 'building gyre' "$pkgs_build"
    stage build-release build release "$(keep_tests)"
    [ "$stage_rc" = 0 ] || exit 1
}

# A build folder that already has the tests keeps them: switching them off would throw away what was built.
keep_tests() {
    if grep -qs '^GY_TESTS:BOOL=ON' build/release/CMakeCache.txt; then echo ON; else echo OFF; fi
}

# ---- checks ----------------------------------------------------------------------------------------------------------

# All but the one table that a script writes.
our_sources() {
    find src include tests bench tools docs/examples -type f \( -name '*.[ch]' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' \) ! -name unicode_extra.inc 2>/dev/null | sort
}

check_format() {
    version=$(clang-format --version | sed -n 's/.*version \([0-9]*\).*/\1/p')
    if [ "$version" != 14 ]; then
        say "note: skipped: versions differ in taste, and this is clang-format $version, not 14"
        return 0
    fi
    # Many files a process: starting one costs six times what a file does.
    our_sources | xargs -P "$(jobs)" -n 16 clang-format --dry-run -Werror 2>&1 |
        sed -n 's/^\([^:]*\):[0-9]*:.*code should be clang-formatted.*/\1/p' | sort -u >build/logs/unformatted
    [ -s build/logs/unformatted ] || return 0
    sed 's/^/not formatted; run: clang-format -i /' build/logs/unformatted
    return 1
}

check_scripts() { shellcheck ./do .ci/run tests/tools/*.sh bench/*.sh; }

check_tidy() {
    command -v clang-tidy >/dev/null || die 'clang-tidy is not installed'
    # The comparison with oneDNN is built only where that is installed, NEON kernels by the stage aarch64.
    if grep -qs onednn_side build/release/compile_commands.json; then without=nothing; else without='*onednn*'; fi
    find src bench docs/examples -name '*.c' ! -name "$without" ! -name 'neon_*' -type f 2>/dev/null | sort | xargs -r -P "$(jobs)" -n 1 tests/tools/tidy.sh build/release build/tidy
}

quick_checks() {
    check check-format check_format
    check check-scripts check_scripts
    check check-tools tests/tools/test_tools.sh
    check check-includes tests/tools/includes.sh .
    check check-readmes tests/tools/readmes.sh .
    check configure configure release ON
    [ "$stage_rc" = 0 ] || return 0
    check check-headers tests/tools/headers.sh . build/release/compile_commands.json
    check check-tidy check_tidy
}

# ---- tests -----------------------------------------------------------------------------------------------------------

# Tests of the preset; those with the label "serial" measure time or take all cores and run alone.
run_ctest() {
    preset=$1
    shift
    # The thread sanitizer of gcc 12 cannot map its shadow under high address-space randomisation.
    plain=
    if [ "$preset" = tsan ] && setarch "$(uname -m)" -R true 2>/dev/null; then plain="setarch $(uname -m) -R"; fi
    rc=0
    $plain ctest --preset "$preset" -j "$(jobs)" -LE serial "$@" || rc=$?
    if ctest --preset "$preset" -N -L serial "$@" | grep -q 'Test *#'; then
        $plain ctest --preset "$preset" -j 1 -L serial "$@" || rc=$?
    fi
    return "$rc"
}

python_is_there() {
    cat build/logs/need-python.log
    return "$1"
}

# Two files at a time: most tests wait for programs that they started. The tests of one file, and its servers, stay together.
run_e2e() { .venv/bin/python -m pytest -q -p no:cacheprovider --durations=5 -n 2 --dist loadfile tests/e2e; }

# build_and_test PRESET: a build that fails counts as one failed test, and its tests are not run.
build_and_test() {
    check "build-$1" build "$1" ON
    [ "$stage_rc" = 0 ] || return 0
    suite "test-$1" run_ctest "$1"
}

finish() {
    say "$passed passed, $failed failed"
    [ "$failed" = 0 ]
}

# ---- commands --------------------------------------------------------------------------------------------------------

cmd_build() {
    build_release
    [ -x build/release/gyre ] || die 'the build made no build/release/gyre'
    say 'built: build/release/gyre'
}

cmd_demo() {
    build_release
    say
    say 'model: models/gyre-6m, which comes with gyre: 5.8 million parameters, 4 loops, trained by tools/train on sums,'
    say '       sorting, reversing, brackets, look-ups and definitions. Behind each prompt stands what it writes.'
    say
    if [ $# -gt 0 ]; then
        build/release/gyre run --prompt "$1" --max-tokens 64
        return
    fi
    for prompt in '358+47' '90417+9584' 'sort q c a f m x b' 'reverse l o o p' 'close ( [ { } {' 'follow q c, c m, m f, f q; q 3' 'define boat'; do
        printf '%s ' "$prompt"
        build/release/gyre run --prompt "$prompt" --max-tokens 64
    done
    say
    say 'Now with the exit gate (--exit gate --exit-threshold 0.95 --min-loops 1): the loops of each token; 4 are all, the first token always takes them.'
    say
    for prompt in '1+2' 'sort q c a f m x b'; do
        printf '%s   ' "$prompt"
        build/release/gyre run --prompt "$prompt" --exit gate --exit-threshold 0.95 --min-loops 1 --json | sed 's/.*"loops":\(\[[0-9,]*\]\).*"text":"\([^"]*\)".*/\2   \1/'
    done
    say
    say 'More: build/release/gyre serve, and a browser at the address that it prints; build/release/gyre chat --temperature 0.'
}

cmd_deps() {
    need 'building and testing gyre' "$pkgs_test$(if [ "$(uname -m)" = x86_64 ]; then printf ' %s' "$pkgs_aarch64"; fi)"
    if has_e2e; then
        need 'the black-box tests' "$pkgs_python"
        want "the page's tests" "$pkgs_browser"
    fi
}

cmd_check() {
    need 'building and checking gyre' "$pkgs_test"
    quick_checks
    finish
}

cmd_test() {
    started=$(date +%s)
    cmd_deps
    say "packages: all there ($(($(date +%s) - started)) s)"
    mkdir -p "$logs"
    # What pip does is mostly waiting, so the checks run meanwhile.
    python=0
    if has_e2e; then need_python >build/logs/need-python.log 2>&1 & fi
    quick_checks
    if has_e2e; then
        python_rc=0
        wait $! || python_rc=$?
        check python-packages python_is_there "$python_rc"
        [ "$stage_rc" != 0 ] || python=1
    fi
    build_and_test release
    if [ "$(uname -m)" = x86_64 ]; then check aarch64 tests/tools/aarch64.sh build/aarch64; fi
    if [ -f build/release/libgyre_cuda.so ]; then check build-every-gpu cmake --build --preset release -j "$(jobs)" --target gyre_cuda_every; fi
    build_and_test asan
    build_and_test tsan
    if [ "$python" = 1 ]; then suite test-e2e run_e2e; fi
    say "all stages took $(($(date +%s) - started)) s"
    finish
}

cmd_test_gpu() {
    if ! command -v nvidia-smi >/dev/null || ! nvidia-smi -L >/dev/null 2>&1; then
        say 'skipped: no NVIDIA GPU here (nvidia-smi finds none)'
    elif ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
        say 'skipped: there is a GPU but no CUDA compiler (nvcc)'
    else
        need 'building and testing gyre' "$pkgs_build libcmocka-dev"
        stage build-release build release ON
        [ "$stage_rc" = 0 ] || exit 1
        [ -f build/release/libgyre_cuda.so ] || die 'the build made no libgyre_cuda.so: see build/logs/build-release.log'
        exec tests/tools/gpu.sh build/release build/gpu-test "$@"
    fi
}

# Without a name all of them but the comparison with oneDNN; with one, that one and its arguments. callgrind counts the scheduler's instructions, callgrind-serve
# the server's for a token.
cmd_bench() {
    if [ "${1:-}" = onednn ]; then need 'comparing with oneDNN' libdnnl-dev; fi
    build_release
    case ${1:-callgrind} in callgrind*) need 'counting instructions' 'valgrind python3' ;; esac
    if [ "${1:-}" = callgrind ]; then exec bench/callgrind.sh build/release; fi
    if [ "${1:-}" = callgrind-serve ]; then exec bench/callgrind_serve.sh build/release; fi
    if [ $# -gt 0 ]; then
        one=build/release/bench/gyre-bench-$1
        [ -x "$one" ] || die "bench: no benchmark '$1' (known: $(bench_names)callgrind callgrind-serve)"
        shift
        exec "$one" "$@"
    fi
    names=$(bench_names)
    [ -n "$names" ] || die 'no benchmark was built (bench/)'
    for b in $names; do
        [ "$b" != onednn ] || continue
        say "== $b"
        "build/release/bench/gyre-bench-$b"
    done
    say '== callgrind'
    bench/callgrind.sh build/release
    say '== callgrind-serve'
    bench/callgrind_serve.sh build/release
}

bench_names() {
    for b in build/release/bench/gyre-bench-*; do
        if [ -f "$b" ] && [ -x "$b" ]; then printf '%s ' "${b##*/gyre-bench-}"; fi
    done
}

cmd_fuzz() {
    seconds=${1:-60}
    case $seconds in '' | *[!0-9]*) die "fuzz: seconds must be a number, found '$seconds'" ;; esac
    need 'fuzzing' "$pkgs_fuzz"
    names=$(for f in tests/fuzz/fuzz_*.c; do [ -f "$f" ] && basename "$f" .c; done)
    [ -n "$names" ] || die 'no fuzz target in tests/fuzz'
    # shellcheck disable=SC2086 # a list of words
    stage build-fuzz build_fuzz $names
    [ "$stage_rc" = 0 ] || exit 1
    say "fuzzing each target for $seconds s, two at a time; new inputs are kept in build/fuzz-corpus"
    mkdir -p build/fuzz-crashes "$logs"
    # shellcheck disable=SC2086
    printf '%s\n' $names | xargs -P 2 -n 1 tests/tools/fuzz_one.sh "$seconds" || die 'fuzz: some targets failed, see above'
}

build_fuzz() {
    configure fuzz ON
    cmake --build --preset fuzz -j "$(jobs)" --target "$@"
}

cmd_install() {
    prefix=/usr/local
    while [ $# -gt 0 ]; do
        case $1 in
        --prefix)
            [ $# -ge 2 ] || die 'install: --prefix needs a directory'
            prefix=$2
            shift 2
            ;;
        --prefix=*)
            prefix=${1#--prefix=}
            shift
            ;;
        *) die "install: unknown argument '$1' (known: --prefix DIR)" ;;
        esac
    done
    case $prefix in /*) ;; *) prefix=$root/$prefix ;; esac
    build_release
    # What of the prefix exists already decides whether root is needed.
    at=$prefix
    while [ ! -e "$at" ]; do at=$(dirname "$at"); done
    if [ -w "$at" ]; then put=; else put=as_root; fi
    $put install -D -m 755 build/release/gyre "$prefix/bin/gyre"
    $put install -D -m 644 include/gyre.h "$prefix/include/gyre.h"
    $put install -D -m 644 build/release/libgyre.so.0 "$prefix/lib/libgyre.so.0"
    if [ -f build/release/libgyre_cuda.so ]; then $put install -D -m 755 build/release/libgyre_cuda.so "$prefix/lib/libgyre_cuda.so"; fi
    $put ln -sf libgyre.so.0 "$prefix/lib/libgyre.so"
    $put install -D -m 644 build/release/gyre.pc "$prefix/lib/pkgconfig/gyre.pc"
    $put install -D -m 644 LICENSE "$prefix/share/doc/gyre/LICENSE"
    $put install -D -m 644 README.md "$prefix/share/doc/gyre/README.md"
    $put install -D -m 644 docs/gyre-gpu.conf "$prefix/share/doc/gyre/gyre-gpu.conf"
    sed "s|@PREFIX@|$prefix|g" docs/gyre.service | $put install -D -m 644 /dev/stdin "$prefix/lib/systemd/system/gyre.service"
    if [ -f docs/gyre.1 ]; then $put install -D -m 644 docs/gyre.1 "$prefix/share/man/man1/gyre.1"; fi
    for f in models/gyre-6m/*; do
        if [ -f "$f" ]; then $put install -D -m 644 "$f" "$prefix/share/gyre/$f"; fi
    done
    say "installed: $prefix/bin/gyre, lib/libgyre.so with include/gyre.h and gyre.pc, the manual page gyre(1), a unit for systemd, $prefix/share/gyre/models/gyre-6m, the licence"
}

cmd_help() {
    cat <<'EOF'
usage: ./do COMMAND

  demo [PROMPT]           install what is missing, build, generate text with the model of this repository
  test                    install what is missing, build, run every check and test
  build                   build/release/gyre
  check                   the quick part of test: format, scripts, includes, headers, clang-tidy
  bench [NAME [ARGS]]     build and run the benchmarks, or one of them; the first run writes a 2.9 GB checkpoint
  fuzz [SECONDS]          run each fuzz target for that long (60)
  test-gpu [STAGE...]     build, and run the tests and timings that need an NVIDIA GPU
  install [--prefix DIR]  program, library and header, manual page, trained model, licence, under /usr/local by default
  deps                    only install what the others need
  help                    this text

Missing Debian packages are installed with apt-get, as root or through sudo; Python packages into .venv.
Logs of all stages are in build/logs.
EOF
}

command=${1:-help}
[ $# -eq 0 ] || shift
case $command in
build) cmd_build "$@" ;;
demo) cmd_demo "$@" ;;
test) cmd_test "$@" ;;
check) cmd_check "$@" ;;
test-gpu) cmd_test_gpu "$@" ;;
bench) cmd_bench "$@" ;;
fuzz) cmd_fuzz "$@" ;;
install) cmd_install "$@" ;;
deps)
    cmd_deps "$@"
    if has_e2e; then need_python; fi
    ;;
help | -h | --help) cmd_help ;;
*)
    cmd_help >&2
    printf "do: unknown command '%s'\n" "$command" >&2
    exit 2
    ;;
esac
