#!/bin/bash
# Puts what a training window on a GPU needs into one folder: pack.sh TEXT.xz TOKENIZER_DIR FOLDER
# Then there, from FOLDER: OUT=... bash run.sh. One run of at most 600 s; nothing is fetched.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$3/tok"
cp "$here"/{tasks,data,model,train}.py "$here/run.sh" "$3/"
cp "$1" "$3/text.xz"
cp "$2"/tokenizer.json "$2"/tokenizer_config.json "$3/tok/"
echo 660 >"$3/limit"
(cd "$3" && sha256sum ./*.py text.xz tok/* >SUMS)
du -sh "$3"
