#!/bin/sh
# Do the includes of src/ point down only? usage: includes.sh ROOT
# The arrows are those of docs/ARCHITECTURE.md; this table is their definition. Exit 1 and one line per forbidden include.
set -eu
cd "$1"

# part: what a file of this part may include between quotes, besides files of its own folder. A word ending in "/" is a
# folder; any other word is one file. Files directly in src/ops may not reach into ref/ and cpu/: backends are found
# through the table that they export in ops/ops.h; ref/host.h is what the two host backends share.
arrows='
base
tensor    base/
ops       base/ tensor/
ops/ref   base/ tensor/ ops/ops.h
ops/cpu   base/ tensor/ ops/ops.h ops/ref/host.h
ops/cuda  ops/ops.h ops/cuda_abi.h
kv        base/ tensor/
model     base/ tensor/ ops/ops.h kv/
text      base/
sample    base/ tensor/
sched     base/ kv/kv.h kv/prefix.h
engine    base/ tensor/ ops/ops.h kv/ model/ text/ sample/ sched/
api       base/ tensor/ ops/ops.h kv/ model/ text/ sample/ sched/ engine/ pd/ gyre.h
pd        base/ tensor/ engine/engine.h engine/handoff.h ops/ops.h kv/kv.h
server    base/ text/ gyre.h
cli       base/ tensor/ ops/ops.h kv/ model/ text/ sample/ sched/ engine/ api/ pd/ server/ gyre.h
cli/main  base/ cli/
'

# A system header and where alone it may be included: what hides a library behind one of our own headers.
fences='
jansson.h      src/base/json.c
pcre2.h        src/text/
utf8proc.h     src/text/
event2/event.h src/server/
event2/event_struct.h src/server/
openssl/ssl.h  src/server/ src/pd/chan_tls.c
openssl/err.h  src/server/ src/pd/chan_tls.c
ucp/api/ucp.h  src/pd/
curl/curl.h    src/cli/ src/pd/disc_etcd_http.c
histedit.h     src/cli/
immintrin.h    src/ops/cpu/ src/base/cpu.c
x86intrin.h    src/ops/cpu/ src/base/cpu.c
cpuid.h        src/base/cpu.c
cuda_runtime.h src/ops/cuda/
cuda_bf16.h    src/ops/cuda/
cuda_fp16.h    src/ops/cuda/
cublasLt.h     src/ops/cuda/
'

find src -type f \( -name '*.[ch]' -o -name '*.inc' -o -name '*.cu' -o -name '*.cuh' \) | sort | while read -r file; do
    sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*\([<"]\)\([^">]*\)[">].*/\1 \2/p' "$file" | sed "s|^|$file |"
done | awk -v arrows="$arrows" -v fences="$fences" '
    function under(path, list,    n, w, i) {
        n = split(list, w, " ")
        for (i = 1; i <= n; i++)
            if (w[i] == path || (w[i] ~ /\/$/ && index(path, w[i]) == 1 && substr(path, length(w[i]) + 1) !~ /\//)) return 1
        return 0
    }
    function complain(text) { print $1 ": " text; bad++ }
    BEGIN {
        n = split(arrows, line, "\n")
        for (i = 1; i <= n; i++) if (split(line[i], w, " ")) {
            part = w[1]; sub(/^[^ ]+ */, "", line[i]); allowed[part] = line[i]; known[part] = 1 }
        n = split(fences, line, "\n")
        for (i = 1; i <= n; i++) if (split(line[i], w, " ")) {
            header = w[1]; sub(/^[^ ]+ */, "", line[i]); fence[header] = line[i] }
    }
    {
        folder = $1; sub(/^src\//, "", folder); sub(/\/[^\/]*$/, "", folder)
        if (!(folder in known)) { complain("its folder has no line in the table of includes.sh"); next }
        if ($2 == "<") {
            if (($3 in fence) && !under($1, fence[$3])) complain("<" $3 "> may be included only in " fence[$3])
            next
        }
        if ($3 !~ /\// && $3 != "gyre.h") { complain("\"" $3 "\": write the path from src/"); next }
        if (!under($3, folder "/ " allowed[folder])) complain("may not include \"" $3 "\" (allowed: " folder "/ " allowed[folder] ")")
    }
    END { exit bad > 0 }'
