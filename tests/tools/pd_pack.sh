#!/bin/bash
# Makes the folder that a window on two GPUs needs (tests/tools/pd_window.sh), from a finished build: pd_pack.sh FOLDER [BUILD]
# BUILD (build/release) has gyre, bench/gyre-bench-pd, bench/gyre-bench-pd-gpu and libgyre_cuda.so. WHEEL=FILE: of libucx-cu13
# (else it is fetched from PyPI). Built on Debian 12 for any system with a later glibc: what is linked and is not the C library
# comes along in libs/, and pd_window.sh uses of that only what the other machine lacks. All is one archive, FOLDER/pd.tar.xz
# (at most 40 MB; tar and xz, or python3, unpack it), and the script:
#
#     cd FOLDER && python3 -c 'import tarfile; tarfile.open("pd.tar.xz").extractall()' && bash pd/pd_window.sh
#
# pd_pack.sh --rehearse FOLDER [BUILD]: unpacks that archive with the made-up device of tests/fake in the GPU's place and runs all
# parts on tiny models here. WORDS: some parts.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
rehearse=
if [ "${1:-}" = --rehearse ]; then
    rehearse=1
    shift
fi
folder=${1:?usage: pd_pack.sh [--rehearse] FOLDER [BUILD]}
build=${2:-$here/build/release}

if [ -n "$rehearse" ]; then
    rm -rf "$folder/pd" "$folder/out"
    tar -C "$folder" -xf "$folder/pd.tar.xz"
    cp "$build/tests/fake/libgyre_cuda.so" "$folder/pd/"
    # shellcheck disable=SC2086
    OUT=$folder/out REHEARSE=1 exec bash "$folder/pd/pd_window.sh" ${WORDS:-}
fi

mkdir -p "$folder"
pack=$folder/pd
rm -rf "$pack" "$folder/pd.tar.xz"
mkdir -p "$pack/bench" "$pack/libs"
for f in gyre libgyre_cuda.so bench/gyre-bench-pd bench/gyre-bench-pd-gpu; do
    [ -e "$build/$f" ] || {
        echo "pd_pack.sh: no $build/$f; ninja -C $build gyre gyre_cuda gyre-bench-pd gyre-bench-pd-gpu" >&2
        exit 1
    }
    cp "$build/$f" "$pack/$f"
    strip "$pack/$f"
done
ln -s ../libgyre_cuda.so "$pack/bench/libgyre_cuda.so"
ln -s ../libucx "$pack/bench/libucx"
cp "$here/tests/tools/pd_window.sh" "$pack/"

# The loader, the C library and what the C++ compiler brings are the other machine's own.
ldd "$pack/gyre" "$pack/libgyre_cuda.so" "$pack/bench/gyre-bench-pd" "$pack/bench/gyre-bench-pd-gpu" |
    awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^/]*|libstdc\+\+|libgcc_s)\.so' |
    while read -r lib; do cp -L "$lib" "$pack/libs/"; done

wheel=${WHEEL:-}
if [ -z "$wheel" ]; then
    mkdir -p "$folder/wheel"
    ls "$folder"/wheel/*.whl >/dev/null 2>&1 ||
        python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
            --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 -d "$folder/wheel" libucx-cu13==1.22.0
    wheel=$(ls "$folder"/wheel/*.whl)
fi
python3 - "$wheel" "$pack" <<'PY'
import os, re, sys, zipfile
wheel, pack = sys.argv[1:]
modules = "uct_cuda|ucm_cuda|uct_cma"
keep = re.compile(r"(libucx/lib/lib(ucp|uct|ucs|ucm)\.so\.0|libucx/lib/ucx/lib(%s)\.so\.0|libucx_cu13\.libs/[^/]+)$" % modules)
for info in zipfile.ZipFile(wheel).infolist():
    if not keep.match(info.filename):
        continue
    path = os.path.join(pack, info.filename)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(zipfile.ZipFile(wheel).read(info))
    os.chmod(path, 0o755)
    if info.filename.endswith(".so.0"):
        os.symlink(os.path.basename(path), path[:-2])
PY
tar -C "$folder" -cJf "$folder/pd.tar.xz" pd
bytes=$(stat -c %s "$folder/pd.tar.xz")
echo "$folder/pd.tar.xz: $bytes bytes"
[ "$bytes" -lt 40000000 ] || {
    echo "pd_pack.sh: more than 40 MB" >&2
    exit 1
}
