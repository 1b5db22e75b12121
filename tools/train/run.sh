#!/bin/bash
# The training window, from the folder that pack.sh made: OUT=folder [SECONDS_ALL=540] bash run.sh
# Call it as the window's own command: what it leaves (model/, resume-*, log.jsonl, eval.md: 8 files under 14 MB, 37 MB in all)
# must come back as files; one archive of all would be too large. Should the compiled run break, the rest of the time goes
# to a run that goes on from the last minute's files, or begins again, without compiling if not a step was done.
cd "$(dirname "$0")" || exit 1
begin=$(date +%s)
all=${SECONDS_ALL:-540}
out=${OUT:-out}
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
common=(--text text.xz --tokenizer tok --out "$out" --seed 1)
sha256sum --quiet -c SUMS || exit 1
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
timeout -k 5 $((all + 30)) python3 train.py "${common[@]}" --seconds "$all" --compile --workers 13 2>&1
rc=$?
left=$((all - $(date +%s) + begin))
[ $rc = 0 ] || [ $left -lt 60 ] || {
    echo "rc $rc, $left s left"
    again=()
    at=$(sed -n 's/.*"progress": \([0-9.]*\).*/\1/p' "$out/log.jsonl" | tail -n 1)
    [ -z "$at" ] || again=(--compile)
    [ ! -f "$out/resume-0.safetensors" ] || again+=(--resume "$out" --progress "$at" --lr 1e-3)
    timeout -k 5 $((left + 30)) python3 train.py "${common[@]}" --seconds "$left" --workers 13 "${again[@]}" 2>&1
    rc=$?
}
ls -l "$out" "$out/model"
exit $rc
