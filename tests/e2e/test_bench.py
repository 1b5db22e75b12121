"""gyre bench engine as a black box: counts, equalities and forms; never a time.

What is expected is worked out here from the workload (lengths, recorded loops), not read from gyre.
"""

import csv
import io
import json
import math
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from test_serve import eventually

ROOT = Path(__file__).resolve().parents[2]
GYRE = os.environ.get("GYRE", str(ROOT / "build/release/gyre"))
OURO = str(ROOT / "tests/golden/models/ouro-tiny")
DISTS = ["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queue_ms", "tail_ms"]
STATS = ["mean", "p50", "p90", "p95", "p99", "max"]


def gyre(*args, code=0, **kw):
    p = subprocess.run([GYRE, *map(str, args)], capture_output=True, text=True, timeout=600, **kw)
    assert p.returncode == code, f"exit code {p.returncode}, expected {code}\n{p.stdout}\n{p.stderr}"
    assert "Sanitizer" not in p.stderr, p.stderr
    return p.stdout, p.stderr


def bench(*args, code=0):
    """One thread: on a busy machine two of them wait for each other, and results do not depend on it."""
    return json.loads(gyre("bench", "engine", "--threads", 1, *args, "--json", "-", code=code)[0])


def only(o):
    (series,) = o["series"]
    (r,) = series["repeats"]
    return r


def trace_file(tmp_path, lists):
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"loops": x}) + "\n" for x in lists))
    return f"trace:{path}"


def blocks(n_tok):
    return math.ceil(n_tok / 16)


# ---- KV follows the loops that ran ---------------------------------------------------------------------------------------


def loops_of(n_out, pattern):
    """Output 0 comes from the prompt's last token, which runs all four loops."""
    return [4] + [pattern[i % len(pattern)] for i in range(n_out - 1)]


@pytest.mark.parametrize("pattern", [(2, 3), (1, 4), (4, 1, 2, 3)])
def test_blocks_of_one_request_are_those_of_its_loops(pattern, tmp_path):
    """The peak is reached before the step of the last token, which frees everything. Then plane d holds the prompt and each
    output that has run loop d; the last row has one loop to go."""
    n_in, n_out = 20, 200
    loops = loops_of(n_out, pattern)
    r = only(bench(OURO, "--concurrency", 1, "--requests", 1, "--warmup", 0, "--repeat", 1, "--in", n_in, "--out", n_out,
                   "--exit", trace_file(tmp_path, [loops]), "--prefix-cache", "off"))
    done = [*loops[1:-1], loops[-1] - 1]
    assert r["kv_blocks_used_peak"] == sum(blocks(n_in + sum(x > d for x in done)) for d in range(4))
    assert r["kv_blocks_full_reservation_peak"] == 4 * blocks(n_in + n_out)
    assert r["mean_loops"] == pytest.approx(sum(loops) / n_out, rel=1e-12)
    assert r["kv_copied_bytes"] == 0 and r["preemptions"] == 0


@pytest.mark.parametrize("options", [(), ("--max-rows", 24), ("--prefill-chunk", 16)])
def test_mean_exit_of_two_and_a_half_holds_the_executed_share(options, tmp_path):
    """Many requests, each with other depths: what is in use is what ran, and block rounding: less than a block for each
    sequence and plane, and the loops of the row that is under way."""
    n_in, n_out, n_seq, n_plane = 16, 240, 8, 4
    lists = [loops_of(n_out, p) for p in ((2, 3), (3, 2), (1, 4), (2, 2, 3, 3), (1, 2, 3, 4))]
    r = only(bench(OURO, "--concurrency", n_seq, "--requests", 20, "--warmup", 0, "--repeat", 1, "--in", n_in, "--out", n_out,
                   "--exit", trace_file(tmp_path, lists), *options))
    assert r["mean_loops"] == pytest.approx(2.5, abs=0.01)
    used, executed, full = (r[f"decode_kv_blocks_{k}"] for k in ("used", "executed", "full_depth"))
    rounding = n_seq * n_plane * 15 / 16
    assert r["decode_steps"] > 500
    assert executed <= used <= executed + rounding + n_seq * n_plane / 16
    assert used <= 1.1 * executed + rounding
    assert executed < 0.68 * full  # 2.5 / 4, prompts at full depth
    assert used < r["decode_kv_blocks_full_reservation"] and full <= r["decode_kv_blocks_full_reservation"]
    assert r["kv_copied_bytes"] == 0 and r["preemptions"] == 0


def test_a_gate_threshold_saves_blocks_too():
    """The same work at fixed depth and with the gate: other depths, fewer blocks, none copied."""
    common = (OURO, "--concurrency", 4, "--requests", 8, "--warmup", 0, "--repeat", 1, "--in", 16, "--out", 128)
    fixed = only(bench(*common))
    gate = only(bench(*common, "--exit", "gate", "--exit-threshold", 0.5, "--min-loops", 1))
    assert fixed["mean_loops"] == 4 and 1 < gate["mean_loops"] < 4
    assert gate["decode_kv_blocks_used"] < fixed["decode_kv_blocks_used"]
    rounding = 4 * 4 * 15 / 16
    assert gate["decode_kv_blocks_used"] <= gate["decode_kv_blocks_executed"] + rounding + 1
    assert fixed["decode_kv_blocks_executed"] <= fixed["decode_kv_blocks_used"]
    assert gate["kv_copied_bytes"] == fixed["kv_copied_bytes"] == 0


# ---- sessions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family, options", [("ouro", ()), ("huginn", ()), ("huginn", ("--initial-state", "noise")),
                                             ("nanbeige", ()), ("ouro", ("--exit", "gate", "--exit-threshold", "0.5")),
                                             ("ouro", ("--temperature", "0.9", "--seed", "7"))])
def test_sessions_with_the_prefix_cache_say_the_same(family, options):
    n_user, n_turn, n_in, n_out = 3, 4, 20, 10
    o = bench("--synthetic", f"tiny-{family}", "--workload", "session", "--users", n_user, "--turns", n_turn, "--in", n_in,
              "--out", n_out, "--compare", "--repeat", 2, *options)
    assert o["outputs_equal"] is True
    off, on = o["series"]
    assert (off["prefix_cache"], on["prefix_cache"]) == (False, True)
    prompts = [n_in + t * (n_in + n_out) for t in range(n_turn)]
    cached = [0] + [p // 16 * 16 for p in prompts[:-1]]  # whole block rows of the prompt of the turn before
    for s in (off, on):
        for r in s["repeats"]:
            assert r["requests"] == n_user * n_turn and r["failed_requests"] == 0
            assert r["prompt_tokens"] == n_user * sum(prompts)
            assert r["output_tokens"] == n_user * n_turn * n_out
            assert r["cached_prompt_tokens"] == (n_user * sum(cached) if s is on else 0)
    assert on["median"]["prefix_hit_rate"] == pytest.approx(sum(cached) / sum(prompts), rel=1e-12)
    assert off["median"]["prefix_hit_rate"] == 0
    assert on["median"]["passes"] < off["median"]["passes"]


# ---- workloads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload, requests", [(("--workload", "burst", "--concurrency", 6), 6),
                                                (("--workload", "closed", "--concurrency", 3, "--requests", 7), 7),
                                                (("--workload", "poisson", "--rate", 200, "--requests", 9), 9),
                                                (("--workload", "session", "--users", 2, "--turns", 3), 6)])
def test_every_workload_does_its_work(workload, requests):
    o = bench(OURO, *workload, "--in", "5:19", "--out", "3:9", "--repeat", 2, "--warmup", 1, "--seed", 3)
    assert o["workload"]["requests"] == requests and o["outputs_equal"] is True
    a, b = o["series"][0]["repeats"]
    for r in (a, b):
        assert r["requests"] == requests and r["failed_requests"] == 0
        assert 3 * requests <= r["output_tokens"] <= 9 * requests
        assert r["mean_loops"] == 4
        for d in DISTS:
            s = r[d]
            assert list(s) == STATS
            if d == "tail_ms":  # no prompt crossed, so it has no figure
                assert set(s.values()) == {None}
                continue
            assert 0 <= s["p50"] <= s["p90"] <= s["p95"] <= s["p99"] <= s["max"]
            assert s["mean"] <= s["max"]
        assert r["ttft_ms"]["max"] <= r["e2e_ms"]["max"]
        assert r["output_tokens_per_s"] == pytest.approx(r["output_tokens"] / r["seconds"], rel=1e-6)
        assert 0 < r["kv_blocks_used_peak"] <= r["kv_blocks_total"]
        assert 1 <= r["rows_per_pass"] <= 256
    assert {k: a[k] for k in ("prompt_tokens", "output_tokens")} == {k: b[k] for k in ("prompt_tokens", "output_tokens")}
    other = only(bench(OURO, *workload, "--in", "5:19", "--out", "3:9", "--repeat", 1, "--warmup", 0, "--seed", 4))
    assert (other["prompt_tokens"], other["output_tokens"]) != (a["prompt_tokens"], a["output_tokens"])


def test_an_open_workload_waits_for_its_arrivals():
    """Ten requests at 50 a second cannot be over before the last one has arrived, however fast the engine is."""
    args = (OURO, "--workload", "poisson", "--rate", 50, "--requests", 10, "--in", 4, "--out", 2, "--repeat", 1)
    a, b = only(bench(*args)), only(bench(*args, "--rate", 5000))
    assert a["seconds"] > 0.05 and a["requests"] == b["requests"] == 10


def test_outputs_have_their_length_whatever_ends_a_text():
    """Every id that ends a text is passed over: 500 outputs of a vocabulary of 320 would meet one."""
    r = only(bench(OURO, "--concurrency", 2, "--requests", 2, "--in", 4, "--out", 500, "--repeat", 1, "--warmup", 0,
                   "--temperature", "2"))
    assert r["output_tokens"] == 1000 and r["failed_requests"] == 0


def test_small_memory_preempts_and_says_so():
    """Room for one whole request and a half: the other one is parked or dropped, and its outputs stay what they were."""
    args = (OURO, "--workload", "burst", "--concurrency", 2, "--in", 16, "--out", 112, "--warmup", 0, "--repeat", 1)
    roomy, tight = only(bench(*args)), only(bench(*args, "--kv-blocks", 48))
    assert roomy["preemptions"] == 0 and tight["preemptions"] > 0
    assert tight["kv_blocks_used_peak"] <= tight["kv_blocks_total"] == 48
    assert roomy["output_tokens"] == tight["output_tokens"] == 224


def test_requests_that_fail_are_counted(tmp_path):
    """Weights that are no numbers: every request ends in an error, which is said once; the figures are still written."""
    folder = tmp_path / "nan"
    shutil.copytree(OURO, folder)
    data = bytearray((folder / "model.safetensors").read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8:8 + n])["lm_head.weight"]["data_offsets"]
    data[8 + n + begin:8 + n + end] = b"\xc0\x7f" * ((end - begin) // 2)  # BF16 NaN
    (folder / "model.safetensors").write_bytes(data)
    out, err = gyre("bench", "engine", folder, "--requests", 3, "--concurrency", 1, "--in", 4, "--out", 4, "--repeat", 2,
                    "--warmup", 0, "--json", "-", code=1)
    o = json.loads(out)
    assert [r["failed_requests"] for r in o["series"][0]["repeats"]] == [3, 3]
    assert o["series"][0]["median"]["output_tokens"] == 0 and o["series"][0]["median"]["ttft_ms"]["p50"] is None
    assert err.count("gyre: request 0: ") == 1 and "gyre: 6 requests ended in an error" in err


def test_max_seqs_makes_requests_queue():
    o = bench(OURO, "--workload", "burst", "--concurrency", 6, "--max-seqs", 2, "--in", 8, "--out", 40, "--repeat", 1)
    r = only(o)
    assert o["engine"]["max_seqs"] == 2 and r["failed_requests"] == 0
    assert r["kv_blocks_full_reservation_peak"] == 2 * 4 * blocks(48)


# ---- reports and files ---------------------------------------------------------------------------------------------------


def test_json_csv_and_table_agree(tmp_path):
    j, c = tmp_path / "o.json", tmp_path / "o.csv"
    table, _ = gyre("bench", "engine", "--synthetic", "tiny-nanbeige", "--requests", 4, "--concurrency", 2, "--in", 8, "--out", 4,
                    "--repeat", 3, "--json", j, "--csv", c)
    o = json.loads(j.read_text())
    rows = list(csv.DictReader(io.StringIO(c.read_text())))
    assert o["model"] == {"shape": "tiny-nanbeige", "family": "nanbeige", "n_loop": 2, "dtype": "bf16"}
    assert o["machine"]["physical_cores"] >= 1 and o["machine"]["threads"] >= 1 and o["machine"]["cpu"]
    repeats = o["series"][0]["repeats"]
    assert len(rows) == len(repeats) == 3
    for i, (row, r) in enumerate(zip(rows, repeats)):
        assert (row["model"], row["workload"], row["repeat"]) == ("tiny-nanbeige", "closed", str(i))
        flat = {k: v for k, v in r.items() if k not in DISTS} | {f"{d}_{s}": r[d][s] for d in DISTS for s in STATS}
        assert set(row) == set(flat) | {"model", "workload", "prefix_cache", "concurrency", "repeat"}
        for k, v in flat.items():
            assert row[k] == "" if v is None else float(row[k]) == pytest.approx(v, rel=1e-8)
    rates = sorted(r["output_tokens_per_s"] for r in repeats)
    assert o["series"][0]["median"]["output_tokens_per_s"] == rates[1]
    assert f"{rates[1]:10.1f}  ({rates[0]:.1f} to {rates[2]:.1f})" in table
    assert "outputs of all 3 runs are equal" in table
    for word in ("TTFT", "TPOT", "ITL", "E2E", "queue", "KV blocks", "host part"):
        assert word in table


# ---- layouts -------------------------------------------------------------------------------------------------------------


def test_layouts_do_the_same_work(tmp_path):
    c, page = tmp_path / "o.csv", tmp_path / "o.html"
    o = bench(OURO, "--layouts", "engine,2r,1p1d,2h", "--workload", "poisson", "--rate", 200, "--requests", 6, "--in", "20:60",
              "--out", "3:9", "--repeat", 2, "--csv", c, "--html", page)
    assert o["outputs_equal"] is True and "on_over_off" not in o
    assert [(s["layout"], s["processes"], s["threads_of_each"]) for s in o["series"]] == [
        ("engine", 1, 1), ("2r", 2, 1), ("1p1d", 2, 1), ("2h", 2, 1)]
    asked = {(r["requests"], r["prompt_tokens"], r["output_tokens"], r["failed_requests"]) for s in o["series"] for r in s["repeats"]}
    assert len(asked) == 1 and asked.pop()[3] == 0
    rows = list(csv.DictReader(io.StringIO(c.read_text())))
    assert [(r["layout"], r["repeat"]) for r in rows] == [(x, str(k)) for k in range(2) for x in ("engine", "2r", "1p1d", "2h")]
    text = page.read_text()
    n = text.count("<rect") // 4  # plots of four layouts; the tail's only if it is known of some prompt
    assert n in (3, 4) and text.count("<svg") == text.count("</svg>") == n and "outputs of all runs are equal" in text


def test_workers_alone_and_their_table():
    table, _ = gyre("bench", "engine", OURO, "--prefill", 1, "--decode", 1, "--concurrency", 2, "--requests", 4, "--out", 4,
                    "--repeat", 1)
    (line,) = [x for x in table.splitlines() if x.startswith("  1p1d ")]
    assert line.split()[1:3] == ["2", "x"]
    assert "layouts, median of 1 in turns" in table and "KV blocks" not in table


def test_a_layout_that_cannot_start_is_named():
    _, err = gyre("bench", "engine", OURO, "--layouts", "engine,1p1d", "--transfer-inflight-bytes", "1K", "--requests", 1, code=2)
    assert "layout 1p1d: transfer in flight: found 1024 bytes" in err


def test_the_synthetic_checkpoint_leaves_nothing_behind():
    folders = lambda: set(Path("/tmp").glob("gyre-bench-*"))
    before = folders()
    bench("--synthetic", "tiny-ouro", "--requests", 1, "--concurrency", 1, "--in", 2, "--out", 2, "--repeat", 1)
    bench("--synthetic", "tiny-ouro", "--requests", 1, "--concurrency", 1, "--in", 2, "--out", 2, "--repeat", 1, "--layouts", "2h")
    gyre("bench", "engine", "--synthetic", "tiny-ouro", "--in", 4000, code=2)
    there = folders() - before
    eventually(lambda: not there & folders())  # those of benchmarks that others run meanwhile go too


def test_bench_alone_lists_what_there_is():
    out, err = gyre("bench", code=2)
    assert out == "" and "usage: gyre bench engine" in err and "gyre-bench-ops" in err and "gyre-bench-decode" in err


def test_help_and_manual_agree():
    """Options of run keep their place in the manual; those that a benchmark alone has are in its own section."""
    text = gyre("bench", "--help")[0]
    options = set(re.findall(r"^  --([a-z0-9-]+)", text, re.M))
    assert {"workload", "exit", "exit-threshold", "kv-layout", "prefix-cache", "max-rows", "threads", "latent-seed"} <= options
    manual = (ROOT / "docs/gyre.1").read_text().replace("\\-", "-")
    own, run, common = (set(re.findall(r"--([a-z0-9-]+)", re.search(rf'^\.SS "{s}.*?(?=^\.S[SH])', manual, re.M | re.S).group(0)))
                        for s in ("gyre bench engine", "gyre run", "Options of"))
    assert options <= own | run | common, options - own - run - common
    assert {"synthetic", "workload", "concurrency", "requests", "rate", "users", "turns", "in", "out", "warmup", "repeat",
            "compare", "layouts", "json", "csv"} <= own


MISTAKES = [
    (["nothing"], 2, "bench: found 'nothing', expected engine"),
    (["engine"], 2, "no MODEL; give a folder, or --synthetic SHAPE"),
    (["engine", "no-such-model"], 1, "no-such-model: not a folder"),
    (["engine", OURO, "--synthetic", "tiny-ouro"], 2, "--synthetic: found a MODEL too"),
    (["engine", "--synthetic", "tiny-gpt"], 2, "--synthetic: shape: found \"tiny-gpt\""),
    (["engine", OURO, "--in", "500"], 2, "--in, --out: 1 turn of up to 500 + 32 tokens make 532; the model's context is 512"),
    (["engine", OURO, "--workload", "session", "--turns", "8"], 2, "8 turns of up to 128 + 32 tokens make 1280"),
    (["engine", OURO, "--workload", "closed", "--rate", "3"], 2, "--rate: has no meaning with --workload closed"),
    (["engine", OURO, "--workload", "poisson"], 2, "--rate: not given"),
    (["engine", OURO, "--max-tokens", "3"], 2, "--max-tokens: has no meaning in a benchmark"),
    (["engine", OURO, "--in", "0"], 2, "--in: found '0', expected a number of tokens or LOW:HIGH"),
    (["engine", OURO, "--exit", "gate"], 2, "--exit-threshold: not given"),
    (["engine", OURO, "--initial-state", "noise"], 2, "--initial-state: found noise; ouro models have no"),
    (["engine", OURO, "--kv-blocks", "2"], 2, "needs 40 KV blocks at full depth, the pool has 2"),
    (["engine", OURO, "--layouts", "engine,1p"], 2, "--layouts: found '1p', expected engine, 2r"),
    (["engine", OURO, "--layouts", "2h", "--hybrid", "2"], 2, "--layouts: found --prefill, --decode or --hybrid too"),
    (["engine", OURO, "--cell", "a --device cpu"], 2, "--cell a --device cpu: --device: is for all cells, not for one"),
    (["engine", OURO, "--cell", "--out 3"], 2, "--cell --out 3: found 0 names, expected one"),
    (["engine", OURO, "--cell", "a --workload session", "--compare"], 2, "--cell: does not go together with --compare"),
    (["engine", OURO, "--cell", "a --rate 3"], 2, "--cell a: --rate: has no meaning with --workload closed"),
    (["engine", OURO, "--ceilings", "4244"], 2, "--ceilings: found '4244', expected GB/s:TFLOP/s"),
    (["engine", OURO, "--prefill", "1"], 2, "--prefill: found 1 without --decode"),
    (["engine", OURO, "--workload", "session", "--compare", "--layouts", "2r"], 2, "--layouts: --compare is about one engine"),
    (["engine", "/no/model", "--json", "/no/such/dir/x.json"], 1, "--json: /no/such/dir/x.json: cannot write: No such"),
    (["engine", "/no/model", "--html", "/"], 1, "--html: /: cannot write: Is a directory"),
    (["engine", "/no/model", "--csv", "/proc/version/x"], 1, "--csv: /proc/version/x: cannot write: Not a directory"),
    (["serve", "--url", "http://127.0.0.1:1", "--csv", "/no/such/x"], 1, "--csv: /no/such/x: cannot write: No such"),
]


@pytest.mark.parametrize("args, code, message", MISTAKES, ids=[" ".join(m[0][-3:]) for m in MISTAKES])
def test_mistakes(args, code, message):
    assert message in gyre("bench", *args, code=code)[1]


def test_cells_are_the_command_with_their_options(tmp_path):
    """Same work and counts as a command of its own; a cell that fails leaves the others."""
    base = (OURO, "--warmup", 0, "--repeat", 2, "--in", 20)
    cells = ["a --requests 3 --concurrency 2 --out 5", "b --workload burst --concurrency 4 --out 3 --max-rows 16 --repeat 1"]
    path = tmp_path / "r.json"
    out, _ = gyre("bench", "engine", "--threads", 1, *base, "--cell", cells[0], "--cell", cells[1], "--ceilings", "10:1", "--json", path)
    both = json.loads(path.read_text())
    assert [line.split()[0] for line in out.splitlines()] == ["cell;", "a", "b"]
    for cell, got in zip(cells, both, strict=True):
        alone = bench(*base, *cell.split()[1:])
        assert got["workload"] == alone["workload"] and got["engine"] == alone["engine"]
        assert len(got["series"][0]["repeats"]) == len(alone["series"][0]["repeats"])
        for name in ["output_tokens", "prompt_tokens", "passes", "rows_per_pass", "mean_loops", "kv_blocks_used_peak"]:
            assert got["series"][0]["median"][name] == alone["series"][0]["median"][name], name
        assert got["series"][0]["median"]["floor_token_ms"] > 0 and alone["series"][0]["median"]["floor_token_ms"] is None
    _, err = gyre("bench", "engine", "--threads", 1, *base, "--cell", "big --kv-blocks 2 --out 3", "--cell", cells[1], code=2)
    assert "--cell big: " in err


def test_steps_are_the_parts_of_the_whole(tmp_path):
    path = tmp_path / "steps.csv"
    r = only(bench(OURO, "--warmup", 1, "--repeat", 1, "--in", 20, "--out", 6, "--requests", 5, "--concurrency", 2, "--steps", path))
    rows = [{k: float(v) for k, v in x.items()} for x in csv.DictReader(io.StringIO(path.read_text()))]
    assert sum(x["prompt_rows"] for x in rows) == 5 * 20 * 4 and sum(x["decode_rows"] for x in rows) == 5 * 5 * 4
    assert sum(x["outputs"] for x in rows) == r["output_tokens"] == 30 and sum(x["passes"] for x in rows) == r["passes"]
    assert all(x["wait_us"] == 0 < x["step_us"] for x in rows) and rows == sorted(rows, key=lambda x: x["ms"])


def test_a_trace_must_be_long_enough(tmp_path):
    _, err = gyre("bench", "engine", OURO, "--out", "9:12", "--exit", trace_file(tmp_path, [[4] * 12, [4] * 11]), code=2)
    assert "--exit: list 2 of" in err and "holds 11 loops, --out asks for up to 12" in err
