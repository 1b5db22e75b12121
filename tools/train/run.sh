#!/bin/bash
# The training window, from the folder that pack.sh made:
# OUT=folder [SECONDS_ALL=540] [FROM=base|scratch] [RESUME=folder PROGRESS=0.4] [WORKERS=13] bash run.sh [OPTIONS of train.py]
# FROM=base (default) teaches look-ups to the weights in base/, half of all tasks; scratch trains all tasks anew.
# RESUME goes on from an earlier window's files, in the schedule from PROGRESS on; on the same machine they are in /tmp/train-last.
# Call it as the window's own command: what it leaves (model/, resume-*, log.jsonl, eval.md: 8 files of at most 15 MB, 37 MB in all)
# must come back as files; one archive of all would be too large. Should the compiled run break, the rest of the time goes
# to a run that goes on from the last minute's files, or begins again, without compiling if there were no ten steps in WATCH s.
cd "$(dirname "$0")" || exit 1
begin=$(date +%s)
all=${SECONDS_ALL:-540}
out=${OUT:-out}
export PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
common=(--text text.xz --tokenizer tok --out "$out" --seed 1 "$@")
[ "${FROM:-base}" = scratch ] || common=(--init base --lr 1e-3 --warm 200 "${common[@]}")
[ -z "${RESUME:-}" ] || common+=(--resume "$RESUME" --progress "${PROGRESS:-0.4}")
sha256sum --quiet -c SUMS || exit 1
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
mkdir -p "$out"
set -m # a process group of its own, so that the workers end with it
timeout -k 5 $((all + 30)) python3 train.py "${common[@]}" --seconds "$all" --compile --workers "${WORKERS:-13}" 2>&1 &
pid=$!
for ((i = 0; i < ${WATCH:-170}; i++)); do
    sleep 1
    kill -0 $pid 2>/dev/null || break
    grep -qs '"progress"' "$out/log.jsonl" && break
done
grep -qs '"progress"' "$out/log.jsonl" || kill -- -$pid 2>/dev/null
wait $pid
rc=$?
set +m
left=$((all - $(date +%s) + begin))
[ $rc = 0 ] || [ $left -lt 60 ] || {
    echo "rc $rc, $left s left"
    again=()
    at=$(sed -n 's/.*"progress": \([0-9.]*\).*/\1/p' "$out/log.jsonl" 2>/dev/null | tail -n 1)
    [ -z "$at" ] || again=(--compile)
    [ ! -f "$out/resume-0.safetensors" ] || again+=(--resume "$out" --progress "$at" --lr 1e-3)
    timeout -k 5 $((left + 30)) python3 train.py "${common[@]}" --seconds "$left" --workers "${WORKERS:-13}" "${again[@]}" 2>&1
    rc=$?
}
rm -rf /tmp/train-last
cp -r "$out" /tmp/train-last
ls -l "$out" "$out/model"
exit $rc
