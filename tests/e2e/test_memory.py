"""What a 2.9 GB checkpoint costs in memory: weights aside, mapped or packed, less than 300 MB.

The kernel's account of the running program is read, not gyre's own: RssAnon is what the process has written or zeroed
(workspace, scratch, KV, heap), RssFile the pages of the mapped checkpoint. The KV of a few tokens (12.6 MB: one block on
each of four planes) is left inside the figure, which makes the bound a little harder than promised.
"""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from program import GYRE, ROOT

MB = 10**6
BOUND = 300 * MB
# 24 layers of 51,380,224 matrix elements and an LM head of 49152 x 2048 (ouro.md, constants), in BF16: what one token reads.
TOUCHED = (24 * 51_380_224 + 49152 * 2048) * 2


def available_memory():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


@pytest.fixture(scope="module")
def checkpoint():
    where = ROOT / "build" if (ROOT / "build").is_dir() else Path(tempfile.gettempdir())
    free = shutil.disk_usage(where).free
    if free < 8000 * MB:
        pytest.skip(f"needs 8 GB of free disk for a checkpoint of 2.9 GB; {where} has {free / 1e9:.1f} GB")
    if available_memory() < 5000 * MB:
        pytest.skip(f"needs 5 GB of memory, or pages of the checkpoint come and go; {available_memory() / 1e9:.1f} GB are available")
    with tempfile.TemporaryDirectory(prefix="memory-test-", dir=where) as tmp:
        out = Path(tmp) / "ouro-1.4b"
        p = subprocess.run([GYRE, "synth", "--shape", "ouro-1.4b", "--seed", "1", str(out)], capture_output=True, timeout=300)
        assert p.returncode == 0, p.stderr.decode()
        yield out


def memory_of(pid):
    """Bytes by field of /proc/PID/status; empty when the process has no memory any more."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {f: int(v.split()[0]) * 1024 for f, v in (x.split(":", 1) for x in lines) if f == "VmHWM" or f.startswith("Rss")}


def watch(args):
    """Runs args to its end; returns stdout and the largest value of each field that was seen."""
    most = {}
    p = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 240
    while p.poll() is None:
        for field, v in memory_of(p.pid).items():
            most[field] = max(v, most.get(field, 0))
        if time.monotonic() > deadline:
            p.kill()
        time.sleep(0.002)
    out, err = p.communicate()
    assert p.returncode == 0, err.decode()
    return out.decode(), most


@pytest.mark.parametrize("pack", ["off", "on"])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_memory_beyond_the_weights(checkpoint, dtype, pack):
    size = (checkpoint / "model.safetensors").stat().st_size
    assert size > TOUCHED
    out, most = watch([GYRE, "run", str(checkpoint), "--prompt-ids", "17,42", "--max-tokens", "2", "--ignore-eos",
                       "--dtype", dtype, "--pack", pack, "--json"])
    assert '"finish_reason":"length"' in out.replace(" ", "")
    if pack == "off":  # the weights were really read, through a mapping of the file, and none of them was copied
        assert TOUCHED < most["RssFile"] < size + 100 * MB
        anon, beyond = most["RssAnon"], most["VmHWM"] - most["RssFile"]
    else:  # all of them were copied, and never more than one matrix of the file, the head of 201 MB, was held beside
        assert most["RssFile"] < 350 * MB
        anon, beyond = most["RssAnon"] - TOUCHED, most["VmHWM"] - TOUCHED - 202 * MB
        assert anon > 0
    assert anon < BOUND, f"RssAnon beyond the weights reached {anon / MB:.1f} MB"
    assert beyond < BOUND, f"VmHWM beyond the weights reached {beyond / MB:.1f} MB"
    print(f"{dtype}, pack {pack}: RssAnon {anon / MB:.1f} MB, VmHWM {beyond / MB:.1f} MB beyond the weights")
