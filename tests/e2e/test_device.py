"""--device cuda where it cannot be, is too small, or is lost while it works: every way ends with a sentence, none hangs.

The device is tests/fake: a libgyre_cuda.so that computes on the host. It lies beside a second name of the program, which is
where the program looks. What a real GPU adds is in tests/ops/test_ops_lost.c and tests/golden/test_device.c.
"""

import http.client
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from program import GYRE, ROOT

DEMO = str(ROOT / "models/demo")
FAKE = Path(GYRE).parent / "tests/fake/libgyre_cuda.so"
RUN = ["run", DEMO, "--prompt", "hi", "--max-tokens", "40", "--ignore-eos", "--device", "cuda"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the program and the fake device."""
    d = tmp_path_factory.mktemp("device")
    shutil.copy2(GYRE, d / "gyre")
    shutil.copy2(FAKE, d / "libgyre_cuda.so")
    return d


def call(place, args, code, **env):
    p = subprocess.run([place / "gyre", *map(str, args)], capture_output=True, timeout=60, text=True,
                       env={**os.environ, **{k: str(v) for k, v in env.items()}})
    assert p.returncode == code, (p.returncode, p.stdout, p.stderr)
    return p.stdout, p.stderr


def test_it_computes(place):
    here = subprocess.run([GYRE, *RUN[:-2], "--backend", "ref"], capture_output=True, timeout=60, text=True)
    assert call(place, RUN, 0)[0] == here.stdout != ""


def test_weights_in_fewer_bits(place):
    fp8 = ["--weights", "fp8"]
    here = subprocess.run([GYRE, *RUN[:-2], "--backend", "ref", *fp8], capture_output=True, timeout=60, text=True)
    assert call(place, [*RUN, *fp8], 0)[0] == here.stdout != ""
    for how in ("int8", "int4", "int8-channel"):
        err = call(place, [*RUN, "--weights", how], 1)[1]
        assert f"weights: found {how}, which backend cuda does not take; use --weights auto, or --device cpu" in err


def test_kv_in_int8(place):
    kv = ["--kv-dtype", "int8"]
    here = subprocess.run([GYRE, *RUN[:-2], "--backend", "ref", *kv], capture_output=True, timeout=60, text=True)
    assert call(place, [*RUN, *kv], 0)[0] == here.stdout != ""


def test_no_library(tmp_path):
    shutil.copy2(GYRE, tmp_path / "gyre")
    err = call(tmp_path, RUN, 1, LD_LIBRARY_PATH="/nowhere")[1]
    assert "device cuda: libgyre_cuda.so cannot be loaded" in err and "beside the program, or use device cpu" in err


def test_not_a_library(tmp_path):
    shutil.copy2(GYRE, tmp_path / "gyre")
    (tmp_path / "libgyre_cuda.so").write_text("an HTML page\n")
    err = call(tmp_path, RUN, 1)[1]
    assert "libgyre_cuda.so cannot be loaded" in err and ("invalid ELF header" in err or "file too short" in err)


def test_a_library_of_something_else(tmp_path, place):
    shutil.copy2(GYRE, tmp_path / "gyre")
    other = Path(GYRE).parent / "libgyre.so.0"
    shutil.copy2(other, tmp_path / "libgyre_cuda.so")
    assert "libgyre_cuda.so has no gy_cuda_entry" in call(tmp_path, RUN, 1)[1]


def test_another_build(place):
    err = call(place, RUN, 1, GY_FAKE_BUILD="other")[1]
    assert "is of another build of gyre" in err and "build both together" in err


def test_no_driver(place):
    assert "no driver here" in call(place, RUN, 1, GY_FAKE_DRIVER="none")[1]


def test_no_driver_for_a_transfer():
    """The real library, where it is built and has nothing to run on: a sentence that helps, whoever asks for the GPU."""
    if not (Path(GYRE).parent / "libgyre_cuda.so").exists():
        pytest.skip("no libgyre_cuda.so here")
    said = subprocess.run([GYRE, *RUN], capture_output=True, timeout=60, text=True).stderr
    if "there is no NVIDIA driver here" not in said:
        pytest.skip("a driver is here")
    p = subprocess.run([GYRE, "inspect", "--transport", "--device", "cuda:0,cuda:1"], capture_output=True, timeout=60, text=True)
    assert p.returncode == 1 and p.stderr == said.splitlines(keepends=True)[-1]


def test_too_small_for_the_weights(place):
    """Before they are read: the sentence has the numbers."""
    out, err = call(place, RUN, 1, GY_FAKE_MEM=300_000)
    assert not out and re.search(r"does not fit .* weights 0\.38 MB, .* while 0\.30 MB are free; .* use --device cpu", err)


def test_too_small_for_what_was_asked_for(place):
    err = call(place, [*RUN, "--kv-bytes", "20M"], 1, GY_FAKE_MEM=10_000_000)[1]
    assert re.search(r"KV of at least 2\d\.\d\d MB, while 10\.00 MB are free", err)


def plan_of(err):
    line = next(x for x in err.splitlines() if 'msg="memory plan"' in x)
    return dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line))


def test_sizes_that_are_asked_for(place):
    """--kv-fraction and --kv-bytes count on a device, and what stays free is what the plan leaves."""
    args = ["bench", "engine", DEMO, "--device", "cuda", "--log-level", "info", "--concurrency", "64", "--requests", "1",
            "--in", "100", "--out", "100", "--warmup", "0", "--repeat", "1", "--max-seqs", "64"]
    half = plan_of(call(place, [*args, "--kv-fraction", "0.5"], 0, GY_FAKE_MEM=24_000_000)[1])
    most = plan_of(call(place, [*args, "--kv-fraction", "0.9"], 0, GY_FAKE_MEM=24_000_000)[1])
    said = plan_of(call(place, [*args, "--kv-bytes", "3M"], 0, GY_FAKE_MEM=24_000_000)[1])
    assert half["limit"] == most["limit"] == '"memory"' and said["limit"] == '"kv_bytes"'
    assert int(half["kv"]) < int(most["kv"]) and 2_900_000 < int(said["kv"]) <= 3 << 20
    for p in (half, most, said):
        took = sum(int(p[k]) for k in ("weights", "workspace", "map", "kv"))
        assert abs(24_000_000 - took - int(p["free"])) < 100_000 and p["backend"] == "cuda" and p["mapped"] == "0"


@pytest.mark.parametrize("n", range(1, 12))
def test_memory_ends_while_it_opens(place, n):
    out, err = call(place, RUN, 1, GY_FAKE_NOMEM=n)
    assert not out and re.search(r"gyre: .*no memory for \d+ bytes", err)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 20, 57])
def test_lost_while_it_runs(place, n):
    """What was printed before is right, and nothing came after."""
    whole = call(place, RUN, 0)[0]
    out, err = call(place, RUN, 1, GY_FAKE_LOST=n)
    assert "it fell off the bus" in err and whole.startswith(out.rstrip("\n")) and len(out) < len(whole)


PROMPTS = ["--prompt", "hi", "--prompt", "a longer one, of several blocks of KV, that crosses from one device to the other"]
WAYS = [[], ["--temperature", "0.9", "--seed", "7"], ["--exit", "gate", "--exit-threshold", "0.6", "--min-loops", "1"]]


@pytest.mark.parametrize("how", [["--prefill", "1", "--decode", "1", "--device", "cuda:0,cuda:1"],
                                 ["--prefill", "1", "--decode", "2", "--device", "cuda"],
                                 ["--hybrid", "2", "--device", "cuda:1", "--transfer-chunk-bytes", "5000",
                                  "--transfer-inflight-bytes", "9000", "--kv-bytes", "4M"]])
def test_workers_on_devices(place, how):
    """What crosses from device to device is what one engine on a device makes."""
    for way in WAYS:
        args = ["run", DEMO, *PROMPTS, "--max-tokens", "12", "--ignore-eos", "--json", *way]
        want = [json.loads(x) for x in call(place, [*args, "--device", "cuda"], 0)[0].splitlines()]
        got = [json.loads(x) for x in call(place, [*args, *how], 0)[0].splitlines()]
        assert [(x["token_ids"], x["loops"]) for x in got] == [(x["token_ids"], x["loops"]) for x in want] != []
        assert "--hybrid" in how or all(x["timing"]["pd"]["prefill_worker"] == 0 for x in got)


def test_lost_in_a_bench(place):
    err = call(place, ["bench", "engine", DEMO, "--device", "cuda", "--concurrency", "4", "--requests", "8", "--in", "20",
                       "--out", "20"], 1, GY_FAKE_LOST=30)[1]
    assert "it fell off the bus" in err


def test_lost_while_it_serves(place):
    """Streams end with an error, /health and new requests get 503, the process ends with 1: docs/gyre.service starts it again."""
    p = subprocess.Popen([place / "gyre", "serve", DEMO, "--port", "0", "--device", "cuda"], stderr=subprocess.PIPE, text=True,
                         stdout=subprocess.DEVNULL, env={**os.environ, "GY_FAKE_LOST": "150"})
    try:
        said = ""
        while "serving " not in said:
            line = p.stderr.readline()
            assert line, said
            said += line
        assert re.search(r"note: memory: weights 0\.38 MB, workspace .* stay free", said)
        c = http.client.HTTPConnection("127.0.0.1", int(re.search(r":(\d+), loading", said).group(1)), timeout=60)
        body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        with pytest.raises(http.client.IncompleteRead) as cut:  # behind the error, without the last chunk
            c.getresponse().read()
        text = cut.value.partial.decode()
        assert text.count('"text"') > 5 and '"error"' in text and "[DONE]" not in text
        statuses = []
        for method, path, sent in (("GET", "/health", None), ("POST", "/v1/completions", json.dumps({"prompt": "a"}))):
            c.close()
            c.request(method, path, sent, {"Content-Type": "application/json"})
            r = c.getresponse()
            statuses.append(r.status)
            r.read()
        assert statuses == [503, 503]
        assert p.wait(timeout=60) == 1
        assert "it fell off the bus" in p.stderr.read()
    finally:
        p.kill()
        p.stderr.close()
