#!/bin/sh
# Does each header compile alone, and twice in a row? usage: headers.sh ROOT COMPILE_COMMANDS
# With gcc and, where it is installed, clang. The flags are the build's own: those of the .c file with the header's name,
# else those of any file of its folder's part that shares the prefix before "_" (avx2_..., avx512_...), else the first.
# Headers of include/ also with nothing else on the include path, as C and as C++11: that is how a user sees them.
set -eu
cd "$1"
commands=$2

# "FILE<TAB>FLAGS" of every object that the build compiles.
table=$(sed -n 's/^ *"command": "\(.*\)",$/\1/p' "$commands" |
    sed -n 's/^[^ ]* \(.*\) -o [^ ]* -c \([^ ]*\)$/\2	\1/p')
[ -n "$table" ] || {
    echo "$commands: no compile command found"
    exit 1
}

flags_for() {
    stem=$(basename "$1" .h)
    for pattern in "/${1%.h}.c" "/$(dirname "$1")/${stem%%_*}_[^/]*.c" '/src/[^	]*'; do
        found=$(printf '%s\n' "$table" | grep -m 1 "^[^	]*$pattern	") || continue
        printf '%s\n' "$found" | cut -f 2
        return
    done
    printf '%s\n' "$table" | head -n 1 | cut -f 2
}

compilers=gcc
if command -v clang >/dev/null; then compilers='gcc clang'; fi
bad=0
n=0
for header in $(find src include -name '*.h' -type f 2>/dev/null | sort); do
    # The command line quotes one macro (\"0.1.0\" inside JSON); a header does not need it.
    flags=$(flags_for "$header" | sed 's/-DGY_VERSION=[^ ]*//; s/-fsanitize[^ ]*//g')
    path=${header#src/}
    path=${path#include/}
    for cc in $compilers; do
        # shellcheck disable=SC2086 # flags are words
        printf '#include "%s"\n#include "%s"\nextern int gy_header_alone;\n' "$path" "$path" |
            $cc $flags -std=c17 -fsyntax-only -x c - || {
            echo "$header: does not compile alone with $cc"
            bad=1
        }
    done
    n=$((n + 1))
    case $header in
    src/*) continue ;;
    esac
    for cc in $compilers; do
        for lang in 'c -std=c17 -Wstrict-prototypes' 'c++ -std=c++11'; do
            # A compiler without its C++ half cannot judge.
            echo 'extern int x;' | $cc -x "${lang%% *}" -fsyntax-only - 2>/dev/null || continue
            # shellcheck disable=SC2086 # flags are words
            printf '#include "%s"\n#include "%s"\nextern int gy_header_alone;\n' "$path" "$path" |
                $cc -x $lang -Wall -Wextra -Wundef -pedantic -Werror -Iinclude -fsyntax-only - || {
                echo "$header: does not compile with nothing but include/ as ${lang%% *} with $cc"
                bad=1
            }
        done
    done
done
echo "note: $n headers with $compilers"
[ "$n" -gt 0 ] || bad=1
exit $bad
