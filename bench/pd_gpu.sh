#!/bin/sh
# Transfers between two GPUs and what deaths leave, in about 40 s: for a machine with two NVIDIA GPUs that nobody else
# uses (memory in use is part of the answer). usage: bench/pd_gpu.sh FOLDER
#
# FOLDER has gyre, gyre-bench-pd-gpu (build/release, build/release/bench), libgyre_cuda.so, and the wheel libucx-cu13
# unpacked (libucx, libucx_cu13.libs; docs/pd.md). Nothing of it needs the machine where it was built.
#
# Open since 30 November 2026: is a receiver's memory given back, and its next life reached, now that a drop closes the
# endpoint (kill-receiver; before it: "bytes BAD", 2 GiB more in use with each life)? What do puts reach that are not cut
# (put: 390 GB/s at 256 MiB is expected, of ipc's 392)?
set -u
cd "${1:?usage: bench/pd_gpu.sh FOLDER}" || exit 2
part() {
    limit=$1
    shift
    timeout -k 2 "$limit" "$@" 2>&1
    echo "rc=$?: $*"
}
nvidia-smi topo -m | head -4
part 16 ./gyre-bench-pd-gpu memory kill-receiver
part 10 ./gyre-bench-pd-gpu put
part 10 ./gyre inspect --transport --device cuda:0,cuda:1
part 6 ./gyre-bench-pd-gpu refuse
part 14 ./gyre-bench-pd-gpu kill-receiver-errors
part 10 ./gyre-bench-pd-gpu kill-sender
part 8 ./gyre-bench-pd-gpu descs
part 8 ./gyre-bench-pd-gpu ipc
part 6 env UCX_PROTO_INFO=y ./gyre-bench-pd-gpu few
part 3 ./gyre-bench-pd-gpu memory
