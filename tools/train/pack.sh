#!/bin/bash
# Puts what a training window on a GPU needs into one folder: pack.sh TEXT.xz MODEL_DIR FOLDER
# MODEL_DIR has the tokenizer, and the weights to begin with if there are any (run.sh's FROM=base).
# Then there, from FOLDER: OUT=... bash run.sh. One run of at most 600 s; nothing is fetched.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$3/tok" "$3/base"
cp "$here"/{tasks,data,model,train}.py "$here/run.sh" "$3/"
cp "$1" "$3/text.xz"
cp "$2"/tokenizer.json "$2"/tokenizer_config.json "$3/tok/"
[ ! -f "$2/model.safetensors" ] || cp "$2/model.safetensors" "$3/base/"
echo 660 >"$3/limit"
rm -f "$3/SUMS"
sums=$(cd "$3" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
echo "$sums" >"$3/SUMS"
du -sh "$3"
