#!/bin/sh
# Tests of the checks in this folder: each must find a planted fault and must accept a clean tree.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0

# expect STATUS TEXT COMMAND...: exit status, and TEXT somewhere in the output.
expect() {
    status=$1 text=$2
    shift 2
    rc=0
    "$@" >"$tmp/out" 2>&1 || rc=$?
    if [ "$rc" != "$status" ] || { [ -n "$text" ] && ! grep -qF -- "$text" "$tmp/out"; }; then
        echo "test_tools: $* gave status $rc, wanted $status with '$text':"
        cat "$tmp/out"
        bad=1
    fi
}

# put FILE TEXT: a file in the planted tree.
put() {
    mkdir -p "$tmp/tree/$(dirname "$1")"
    printf '%b' "$2" >"$tmp/tree/$1"
}
fresh() {
    rm -rf "$tmp/tree"
    put src/base/a.h '#ifndef A\n#define A\n#include <stddef.h>\ntypedef size_t gy_a;\n#endif\n'
    put src/text/t.c '#include "base/a.h"\n#include <pcre2.h>\nint x;\n'
}

# forbidden FILE INCLUDE: this include in this file is found, and named.
forbidden() {
    fresh
    put "$1" "#include $2\n"
    expect 1 "$1" "$here/includes.sh" "$tmp/tree"
}
permitted() {
    fresh
    put "$1" "#include $2\n"
    expect 0 '' "$here/includes.sh" "$tmp/tree"
}

fresh
expect 0 '' "$here/includes.sh" "$tmp/tree"
permitted src/base/b.c '"base/a.h"'
permitted src/ops/cpu/k.c '"ops/ops.h"'
permitted src/ops/cpu/k.c '"ops/ref/host.h"'
permitted src/ops/cpu/k.c '<immintrin.h>'
permitted src/sched/s.c '"kv/kv.h"'
permitted src/engine/e.c '"model/model.h"'
permitted src/base/json.c '<jansson.h>'
permitted src/server/s.c '"gyre.h"'
permitted src/pd/chan_tls.c '<openssl/ssl.h>'
forbidden src/base/b.c '"tensor/dtype.h"'
forbidden src/tensor/t.c '"ops/ops.h"'
forbidden src/ops/o.c '"ops/cpu/cpu.h"'
forbidden src/ops/ref/r.c '"ops/cpu/cpu.h"'
forbidden src/ops/cpu/k.c '"kv/kv.h"'
forbidden src/kv/k.c '"ops/ops.h"'
forbidden src/model/m.c '"engine/exit.h"'
forbidden src/model/m.c '"ops/ref/ref.h"'
forbidden src/sample/s.c '"kv/kv.h"'
forbidden src/sched/s.c '"kv/kv_int.h"'
forbidden src/sched/s.c '"tensor/dtype.h"'
forbidden src/server/s.c '"engine/engine.h"'
forbidden src/pd/p.c '"engine/exit.h"'
forbidden src/pd/p.c '"model/model.h"'
forbidden src/pd/p.c '<openssl/ssl.h>'
forbidden src/text/u.c '"a.h"'
forbidden src/cli/c.c '<jansson.h>'
forbidden src/base/json2.c '<jansson.h>'
forbidden src/engine/e.c '<pcre2.h>'
forbidden src/ops/ref/r.c '<immintrin.h>'
forbidden src/novel/n.c '"base/a.h"'
forbidden src/base/b.c '  "text/t.h" // indented'
forbidden src/ops/cpu/k.inc '"kv/kv.h"'

fresh
for i in 1 2 3; do put "src/base/f$i.c" 'int x;\n'; done
expect 1 'src/base: 4 files and no README.md' "$here/readmes.sh" "$tmp/tree"
put src/base/README.md 'one line\n'
expect 1 'src/base/README.md: 1 lines' "$here/readmes.sh" "$tmp/tree"
seq 40 >"$tmp/tree/src/base/README.md"
expect 0 '' "$here/readmes.sh" "$tmp/tree"
for i in 1 2 3 4; do put "src/base/inner/f$i.c" 'int x;\n'; done
expect 1 'src/base/inner: 4 files and no README.md' "$here/readmes.sh" "$tmp/tree"
echo 'inner/ holds four files' >>"$tmp/tree/src/base/README.md"
expect 0 '' "$here/readmes.sh" "$tmp/tree"
seq 61 >"$tmp/tree/src/base/README.md"
expect 1 '61 lines' "$here/readmes.sh" "$tmp/tree"

fresh
{
    echo '[{'
    echo "  \"command\": \"/usr/bin/cc -I$tmp/tree/src -I$tmp/tree/include -Wall -Werror -Wstrict-prototypes -o a.o -c $tmp/tree/src/base/b.c\","
    echo '}]'
} >"$tmp/commands.json"
expect 0 'note: 1 headers' "$here/headers.sh" "$tmp/tree" "$tmp/commands.json"
put src/base/needs.h '#ifndef N\n#define N\nsize_t gy_n(void);\n#endif\n'
expect 1 'src/base/needs.h: does not compile alone' "$here/headers.sh" "$tmp/tree" "$tmp/commands.json"
put src/base/needs.h 'struct gy_n { int a; };\n'
expect 1 'src/base/needs.h: does not compile alone' "$here/headers.sh" "$tmp/tree" "$tmp/commands.json"
put src/base/needs.h '#ifndef N\n#define N\nint gy_n();\n#endif\n'
expect 1 'src/base/needs.h: does not compile alone' "$here/headers.sh" "$tmp/tree" "$tmp/commands.json"
rm "$tmp/tree/src/base/needs.h"
put include/pub.h '#ifndef P\n#define P\nint gy_p(void);\n#endif\n'
expect 0 'note: 2 headers' "$here/headers.sh" "$tmp/tree" "$tmp/commands.json"
put include/pub.h '#ifndef P\n#define P\n#include "base/a.h"\n#endif\n'
expect 1 'include/pub.h: does not compile with nothing but include/ as c' "$here/headers.sh" "$tmp/tree" "$tmp/commands.json"
if printf 'extern int x;' | gcc -x c++ -fsyntax-only - 2>/dev/null; then
    put include/pub.h '#ifndef P\n#define P\nint gy_p(int class);\n#endif\n'
    expect 1 'include/pub.h: does not compile with nothing but include/ as c++' "$here/headers.sh" "$tmp/tree" "$tmp/commands.json"
fi
: >"$tmp/commands.json"
expect 1 'no compile command' "$here/headers.sh" "$tmp/tree" "$tmp/commands.json"

exit $bad
