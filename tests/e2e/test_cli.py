"""The program as a user sees it: golden checkpoints, text, JSON forms, messages and exit codes.

Expected values come from tests/golden (program.py), from NumPy, or from the definition of the byte-level tokenizer; never
from gyre's own output, except where two ways of asking must agree.
"""

import contextlib
import json
import os
import pty
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from program import (
    FAMILIES, GYRE, MODELS, OURO, ROOT, SHORT, golden, greedy_cases, greedy_line, gyre, ids_arg, roomy, rule_of,
    write_lines,
)


def run_json(*args, **kw):
    return [json.loads(line) for line in gyre("run", *args, "--json", **kw)[0].splitlines()]


# ---- golden checkpoints ------------------------------------------------------------------------------------------------


def flag_groups():
    """Cases of one model with equal flags run as one batch."""
    groups = {}
    for family in FAMILIES:
        for c in greedy_cases(family):
            flags = tuple(f"--{k.replace('_', '-')}={v}" for k, v in rule_of(c).items())
            groups.setdefault((family, c["layout"], flags, len(c["tokens"])), []).append(c)
    return [pytest.param(*key, cases, id="-".join([key[0], key[1], *(f[2:] for f in key[2])])) for key, cases in groups.items()]


@pytest.mark.parametrize("family, layout, flags, n, cases", flag_groups())
def test_greedy_by_flags(family, layout, flags, n, cases):
    prompts = [a for c in cases for a in ("--prompt-ids", ids_arg(c["ids"]))]
    out = run_json(MODELS / f"{family}-tiny", "--dtype", "f32", "--ignore-eos", "--kv-layout", layout, *flags,
                   "--max-tokens", n, *prompts)
    assert len(out) == len(cases)
    for i, (o, c) in enumerate(zip(out, cases)):
        assert o["index"] == i and o["prompt_ids"] == c["ids"]
        assert o["token_ids"] == c["tokens"]
        assert o["loops"] == c["loops"]


@pytest.mark.parametrize("max_rows", [1, 5, 256])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_all_rules_in_one_batch(family, max_rows, tmp_path):
    """Every case of one layout as lines of --input: other rules beside it change nothing, nor does the size of a pass."""
    for layout in {c["layout"] for c in greedy_cases(family)}:
        cases = [c for c in greedy_cases(family) if c["layout"] == layout]
        path = write_lines(tmp_path / "in.jsonl", [greedy_line(c) for c in cases])
        out = run_json(MODELS / f"{family}-tiny", "--dtype", "f32", "--kv-layout", layout, "--max-rows", max_rows,
                       "--input", path)
        assert [(o["token_ids"], o["loops"]) for o in out] == [(c["tokens"], c["loops"]) for c in cases]


@pytest.mark.parametrize("backend", ["cpu", "ref"])
@pytest.mark.parametrize("family", FAMILIES)
def test_prefill(family, backend, tmp_path):
    bound = 5e-4 if family == "huginn" else 2e-4
    cases = [c for c in golden(family) if c["kind"] == "prefill" and c.get("initial_state") is None]
    assert len(cases) == 4
    for c in cases:
        files = [tmp_path / f"{k}.npy" for k in ("logits", "hidden", "gates")]
        gates = ["--gates", files[2]] if c["gates"] else []
        gyre("eval", MODELS / f"{family}-tiny", "--dtype", "f32", "--backend", backend, "--prompt-ids", ids_arg(c["ids"]),
             "--logits", files[0], "--hidden", files[1], *gates)
        logits, hidden = np.load(files[0]), np.load(files[1])
        assert logits.dtype == np.float32 and logits.shape == (len(c["ids"]), len(c["logits"]))
        assert np.abs(logits[-1] - np.array(c["logits"])).max() <= bound
        assert hidden.shape == np.array(c["hidden_last_position"]).shape
        assert np.abs(hidden - np.array(c["hidden_last_position"])).max() <= bound
        if gates:
            assert np.abs(np.load(files[2]) - np.array(c["gates"])).max() <= bound


@pytest.mark.parametrize("family", FAMILIES)
def test_perplexity_and_logprobs_against_the_logits(family, tmp_path):
    ids = next(c["ids"] for c in golden(family) if c.get("name") == "pages")
    model, f = MODELS / f"{family}-tiny", tmp_path / "l.npy"
    out = json.loads(gyre("eval", model, "--dtype", "f32", "--prompt-ids", ids_arg(ids), "--logits", f, "--json")[0])
    x = np.load(f).astype(np.float64)
    logp = x - x.max(1, keepdims=True)
    logp -= np.log(np.exp(logp).sum(1, keepdims=True))
    nll = -logp[np.arange(len(ids) - 1), ids[1:]].mean()
    assert out["n_tok"] == len(ids)
    assert out["mean_nll"] == pytest.approx(nll, rel=1e-9)
    assert out["perplexity"] == pytest.approx(np.exp(nll), rel=1e-9)
    assert f"perplexity {np.exp(nll):.6g}" in gyre("eval", model, "--dtype", "f32", "--prompt-ids", ids_arg(ids))[0]
    # The first output's log probabilities are those of the prompt's last position, best first, lower id among equals.
    (o,) = run_json(model, "--dtype", "f32", "--prompt-ids", ids_arg(ids), "--max-tokens", 1, "--logprobs", 3)
    (lp,) = o["logprobs"]
    order = np.argsort(-x[-1], kind="stable")[:3]
    assert [t["token_id"] for t in lp["top"]] == order.tolist()
    assert [t["logprob"] for t in lp["top"]] == pytest.approx(logp[-1][order].tolist(), abs=1e-5)
    assert lp["token_id"] == order[0] and lp["logprob"] == lp["top"][0]["logprob"]


def test_one_token_has_no_perplexity():
    assert "n/a" in gyre("eval", OURO, "--prompt-ids", "5")[0]
    assert json.loads(gyre("eval", OURO, "--prompt-ids", "5", "--json")[0])["perplexity"] is None


# ---- forms of run --------------------------------------------------------------------------------------------------------


def test_json_form():
    (o,) = run_json(OURO, "--prompt-ids", SHORT, "--max-tokens", 3, "--ignore-eos")
    assert list(o) == ["index", "prompt_ids", "token_ids", "loops", "text", "finish_reason", "logprobs", "timing"]
    assert list(o["timing"]) == ["prompt_tokens", "output_tokens", "ttft_ms", "total_ms", "tokens_per_s"]
    assert o["text"] is None and o["logprobs"] is None and o["finish_reason"] == "length"
    assert o["timing"]["prompt_tokens"] == 7 and o["timing"]["output_tokens"] == 3
    assert 0 < o["timing"]["ttft_ms"] <= o["timing"]["total_ms"]
    (o,) = run_json(OURO, "--prompt-ids", SHORT, "--max-tokens", 3, "--ignore-eos", "--logprobs", 0)
    assert [p["token_id"] for p in o["logprobs"]] == o["token_ids"] and all(p["top"] == [] for p in o["logprobs"])


def test_ids_without_tokenizer():
    want = next(c for c in greedy_cases("ouro") if c["exit"] == "fixed")["tokens"][:5]
    assert gyre("run", OURO, "--dtype", "f32", "--ignore-eos", "--max-tokens", 5, "--prompt-ids", SHORT)[0] == \
        " ".join(map(str, want)) + "\n"
    out = gyre("run", OURO, "--dtype", "f32", "--ignore-eos", "--max-tokens", 5, "--prompt-ids", SHORT, "--prompt-ids", "3")[0]
    lines = out.splitlines()
    assert lines[0].startswith("=== 0") and lines[1] == " ".join(map(str, want)) and lines[2].startswith("=== 1")


def test_results_do_not_depend_on_threads_batch_or_company():
    alone = [run_json(OURO, "--prompt-ids", p, "--temperature", 1, "--seed", 9, "--max-tokens", 20, "--ignore-eos",
                      "--threads", 1)[0] for p in (SHORT, "1,2,3", "7")]
    together = run_json(OURO, "--prompt-ids", SHORT, "--prompt-ids", "1,2,3", "--prompt-ids", "7", "--temperature", 1,
                        "--seed", 9, "--max-tokens", 20, "--ignore-eos", "--threads", 2, "--max-seqs", 2, "--max-rows", 3)
    assert [(o["token_ids"], o["loops"]) for o in alone] == [(o["token_ids"], o["loops"]) for o in together]
    other = run_json(OURO, "--prompt-ids", SHORT, "--temperature", 1, "--seed", 10, "--max-tokens", 20, "--ignore-eos")
    assert other[0]["token_ids"] != alone[0]["token_ids"]


def test_order_of_prompts_and_stdin():
    stdin = b'{"prompt_ids": [4, 5], "max_tokens": 2}\n\n{"prompt_ids": [6]}\n'
    out = run_json(OURO, "--prompt-ids", "1", "--input", "-", "--prompt-ids", "7", "--max-tokens", 3, "--ignore-eos", stdin=stdin)
    assert [o["prompt_ids"] for o in out] == [[1], [4, 5], [6], [7]]
    assert [len(o["token_ids"]) for o in out] == [3, 2, 3, 3]


def test_config_file(tmp_path):
    cfg = tmp_path / "c.json"
    cfg.write_text('{"max_tokens": 4, "ignore_eos": true, "json": true, "dtype": "f32"}')
    out = [json.loads(x) for x in gyre("run", OURO, "--config", cfg, "--prompt-ids", SHORT)[0].splitlines()]
    assert len(out[0]["token_ids"]) == 4
    out = [json.loads(x) for x in gyre("run", OURO, "--max-tokens", 2, "--config", cfg, "--prompt-ids", SHORT)[0].splitlines()]
    assert len(out[0]["token_ids"]) == 2
    cfg.write_text('{"max_token": 4}')
    assert f'{cfg}: unknown field "max_token"; did you mean "max_tokens"?' in \
        gyre("run", OURO, "--config", cfg, "--prompt-ids", SHORT, code=2)[1]


def test_eos_ends_and_is_an_output(tmp_path):
    """generation_config.json names a token that the greedy run produces third."""
    model = tmp_path / "m"
    shutil.copytree(OURO, model)
    tokens = next(c for c in greedy_cases("ouro") if c["exit"] == "fixed")["tokens"]
    eos = tokens[3]
    assert eos not in tokens[:3]
    for value in (eos, [eos, 1]):
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
        (o,) = run_json(model, "--dtype", "f32", "--prompt-ids", SHORT)
        assert o["token_ids"] == tokens[:4] and o["finish_reason"] == "stop"
    (o,) = run_json(model, "--dtype", "f32", "--prompt-ids", SHORT, "--ignore-eos", "--max-tokens", 24)
    assert o["token_ids"] == tokens and o["finish_reason"] == "length"
    (model / "generation_config.json").write_text('{"eos_token_id": "x"}')
    assert "generation_config.json" in gyre("run", model, "--prompt-ids", SHORT, code=1)[1]


def test_trace_replays_a_run(tmp_path):
    case = next(c for c in greedy_cases("ouro") if c["exit"] == "gate" and len(set(c["loops"])) > 2)
    base = [OURO, "--dtype", "f32", "--ignore-eos", "--max-tokens", 24]
    flags = ["--exit", "gate", "--exit-threshold", case["threshold"], "--min-loops", case["min_loops"]]
    prompts = ["--prompt-ids", ids_arg(case["ids"]), "--prompt-ids", "1,2,3"]
    recorded = gyre("run", *base, *flags, *prompts, "--json")[0]
    want = [json.loads(x) for x in recorded.splitlines()]
    assert case["layout"] == "last_exited" and want[0]["loops"] == case["loops"]
    for text in (recorded, json.dumps([o["loops"] for o in want])):
        (tmp_path / "t").write_text(text)
        out = run_json(*base, "--exit", f"trace:{tmp_path / 't'}", *prompts)
        assert [(o["token_ids"], o["loops"]) for o in out] == [(o["token_ids"], o["loops"]) for o in want]
    assert "none for prompt 3" in gyre("run", *base, "--exit", f"trace:{tmp_path / 't'}", *prompts, "--prompt-ids", "5", code=2)[1]


def test_deeper_than_trained_needs_force():
    (o,) = run_json(OURO, "--prompt-ids", SHORT, "--max-loops", 6, "--force-depth", "--max-tokens", 3, "--ignore-eos")
    assert o["loops"][1:] == [6, 6]


# ---- text ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def synth(tmp_path_factory):
    """A random model with the byte-level tokenizer: <|endoftext|> 0, <|im_start|> 1, <|im_end|> 2, then byte b = 3 + b."""
    path = tmp_path_factory.mktemp("synth") / "m"
    out, _ = gyre("synth", "--shape", "tiny-ouro", "--seed", 5, "--tokenizer", path)
    assert "tiny-ouro" in out
    return path


def text_of(ids):
    return bytes(i - 3 for i in ids if 3 <= i < 259).decode("utf-8", errors="replace")


SAMPLE = ["--temperature", "1", "--seed", "3", "--max-tokens", "120", "--ignore-eos", "--dtype", "f32"]


def test_text_prompt_and_output(synth):
    (o,) = run_json(synth, "Hi \u00e4", *SAMPLE)
    assert o["prompt_ids"][-5:] == [3 + b for b in "Hi \u00e4".encode()]
    assert len(o["token_ids"]) == 120
    assert o["text"] == text_of(o["token_ids"])
    assert gyre("run", synth, "Hi \u00e4", *SAMPLE)[0] == o["text"] + "\n"
    assert gyre("run", synth, "--prompt", "Hi \u00e4", *SAMPLE)[0] == o["text"] + "\n"


def test_stream_never_breaks_a_character(synth):
    p = subprocess.Popen([GYRE, "run", synth, "x", *SAMPLE], stdout=subprocess.PIPE)
    whole = b""
    while chunk := os.read(p.stdout.fileno(), 1 << 16):
        chunk.decode("utf-8")
        whole += chunk
    assert p.wait() == 0
    assert whole.decode() == run_json(synth, "x", *SAMPLE)[0]["text"] + "\n"


def test_stop_strings(synth):
    (free,) = run_json(synth, "x", *SAMPLE)
    text = free["text"]
    assert len(text) > 40
    stop = text[20:23]
    (o,) = run_json(synth, "x", *SAMPLE, "--stop", stop)
    assert o["text"] == text[:text.index(stop)] and o["finish_reason"] == "stop"
    n = len(o["token_ids"])
    assert o["token_ids"] == free["token_ids"][:n] and n < 120 and stop in text_of(o["token_ids"])
    assert gyre("run", synth, "x", *SAMPLE, "--stop", "never seen", "--stop", stop)[0] == o["text"] + "\n"
    (o,) = run_json(synth, "x", *SAMPLE, "--stop", text[-2:] + "never")
    assert o["text"] == text and o["finish_reason"] == "length"


def test_eos_is_not_in_the_text(synth, tmp_path):
    model = tmp_path / "m"
    shutil.copytree(synth, model)
    (free,) = run_json(synth, "x", *SAMPLE)
    eos = next(i for i in free["token_ids"][10:] if free["token_ids"].index(i) >= 10 and i >= 3)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    (o,) = run_json(model, "x", *[a for a in SAMPLE if a != "--ignore-eos"])
    at = free["token_ids"].index(eos)
    assert o["token_ids"] == free["token_ids"][:at + 1] and o["finish_reason"] == "stop"
    assert o["text"] == text_of(o["token_ids"][:-1])


def test_summary_only_on_a_terminal(synth):
    assert "tok/s" not in gyre("run", synth, "x", *SAMPLE)[1]
    parent, child = pty.openpty()
    p = subprocess.run([GYRE, "run", synth, "x", *SAMPLE], stdout=subprocess.PIPE, stderr=child)
    os.close(child)
    err = b""
    with contextlib.suppress(OSError):  # Linux says EIO when all was read and the other side is closed
        while chunk := os.read(parent, 1 << 16):
            err += chunk
    os.close(parent)
    err = err.decode()
    assert p.returncode == 0 and "120 tokens in" in err and "tok/s" in err


def test_eval_of_a_text_file(synth, tmp_path):
    f = tmp_path / "t.txt"
    f.write_text("Some text.\n")
    by_text = json.loads(gyre("eval", synth, "--file", f, "--json")[0])
    ids = gyre("tokenize", synth, stdin=b"Some text.\n")[0].strip().replace(" ", ",")
    assert by_text == json.loads(gyre("eval", synth, "--prompt-ids", ids, "--json")[0])


def test_default_model_lies_beside_the_program(synth, tmp_path):
    for place in ("share/gyre/models/gyre-6m", "models/gyre-6m"):
        root = tmp_path / place.replace("/", "-")
        binary = root / ("bin/gyre" if place.startswith("share") else "build/release/gyre")
        binary.parent.mkdir(parents=True)
        shutil.copy(GYRE, binary)
        p = subprocess.run([binary, "run", "--prompt", "x", "--max-tokens", "3"], capture_output=True, text=True)
        assert p.returncode == 2 and "name a model folder" in p.stderr
        shutil.copytree(synth, root / place)
        (root / place / "NOTE.txt").write_text("random")
        p = subprocess.run([binary, "run", "--prompt", "x", "--max-tokens", "3", "--json"], capture_output=True, text=True)
        assert p.returncode == 0 and len(json.loads(p.stdout)["token_ids"]) == 3
        assert p.stderr.count("has random weights: its text means nothing") == 1


# ---- tokenize, inspect, synth ----------------------------------------------------------------------------------------------


def test_tokenize_both_ways(synth):
    text = "a\u00e9\u4e2d \U0001f600<|im_end|>"
    ids = [3 + b for b in "a\u00e9\u4e2d \U0001f600".encode()]
    assert gyre("tokenize", synth, "--add-special", "off", text)[0] == " ".join(map(str, ids + [2])) + "\n"
    plain = gyre("tokenize", synth, "--add-special=off", "--parse-special=off", stdin=text.encode())[0]
    assert plain == " ".join(str(3 + b) for b in text.encode()) + "\n"
    assert gyre("tokenize", synth, "--decode", *ids)[0] == text[:-len("<|im_end|>")] + "\n"
    assert gyre("tokenize", synth, "--decode", stdin=plain.encode())[0] == text + "\n"
    o = json.loads(gyre("tokenize", synth, "--json", "--pieces", "--add-special=off", "a<|im_end|>")[0])
    assert o == {"ids": [100, 2], "pieces": ["a", "<|im_end|>"]}
    assert gyre("tokenize", synth, "--pieces", "--add-special=off", "a<|im_end|>")[0] == "100\ta\n2\t<|im_end|>\n"


def tensors(folder):
    data = (Path(folder) / "model.safetensors").read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    return {k: v for k, v in json.loads(data[8:8 + n]).items() if k != "__metadata__"}


@pytest.mark.parametrize("family", FAMILIES)
def test_inspect_model(family):
    folder = MODELS / f"{family}-tiny"
    cfg, header = json.loads((folder / "config.json").read_text()), tensors(folder)
    o = json.loads(gyre("inspect", folder, "--json")[0])
    assert o["model"]["family"] == family and o["model"]["n_vocab"] == cfg["vocab_size"]
    assert o["weights"]["tensors"] == len(header) and o["weights"]["files"] == 1
    assert o["weights"]["params"] == sum(int(np.prod(t["shape"])) for t in header.values())
    assert o["weights"]["bytes"] == max(t["data_offsets"][1] for t in header.values())
    parts = [v for k, v in o["weights"].items() if k.endswith("_bytes")]
    assert sum(parts) == o["weights"]["bytes"] and "other_bytes" not in o["weights"]
    assert o["model"]["dtype"] == ("f32" if family == "huginn" else "bf16")
    # KV of a token: layer planes (core layers once per loop) x K and V x heads x head_dim x element size.
    m, size = o["model"], 4 if family == "huginn" else 2
    plane = 2 * m["n_head_kv"] * m["head_dim"] * size
    once = m["prelude_layers"] + m["coda_layers"]
    assert o["kv_token_bytes"] == {name: (once + m["core_layers"] * n) * plane for name, n in
                                   (("last_exited", m["n_loop"]), ("shared", 1), ("cyclic:2", 2))}
    text = gyre("inspect", folder)[0]
    assert re.search(rf"^  family +{family}$", text, re.M) and "only token ids are accepted" in text


def test_weights_in_fewer_bits():
    """All forms run and differ; workers give what one process gives; inspect counts what each takes."""
    run = ["run", OURO, "--prompt-ids", "1,2,3,4,5,6,7", "--max-tokens", 16, "--ignore-eos"]
    out = {how: gyre(*run, "--weights", how)[0] for how in ("auto", "fp8", "int8", "int4", "int8-channel")}
    assert len(set(out.values())) == 5
    assert out["auto"] == gyre(*run)[0] == gyre(*run, "--weights", "bf16")[0]
    for how in ("int8", "int4", "int8-channel"):
        head = gyre(*run, "--weights", how, "--weights-head", "--threads", 1)[0]
        assert gyre(*run, "--weights", how, "--weights-head", "--prefill", 1, "--decode", 1)[0] == head
    o = json.loads(gyre("inspect", OURO, "--weights", "fp8", "--json")[0])
    assert o["model"]["weights"] == "fp8"
    assert o["held_bytes"]["int4"] < o["held_bytes"]["fp8"] < 0.75 * o["held_bytes"]["auto"]
    assert o["held_bytes"]["fp8"] < o["held_bytes"]["int8"] < 0.75 * o["held_bytes"]["auto"]
    assert o["held_bytes"]["int8-channel"] < o["held_bytes"]["int8"]
    assert "--weights-head: found without" in gyre(*run, "--weights-head", code=2)[1]
    assert "expected one of auto|bf16|fp8|int8|int4|int8-channel" in gyre(*run, "--weights", "q4", code=2)[1]


def test_pack_cache(tmp_path, monkeypatch):
    """The second start reads what the first one kept, with workers too; nothing is written unasked."""
    model, cache = shutil.copytree(OURO, tmp_path / "model"), tmp_path / "cache"
    before = sorted(p.name for p in model.iterdir())
    run = ["run", model, "--prompt-ids", "1,2,3,4,5,6,7", "--max-tokens", 16, "--ignore-eos", "--log-level", "info"]
    for form in ("auto", "int8", "int8-channel"):
        want = gyre(*run, "--weights", form)[0]
        assert sorted(p.name for p in model.iterdir()) == before
        file = tmp_path / f"{form}.pack"
        for line in ("pack cache written", "pack cache found"):
            out, err = gyre(*run, "--weights", form, "--pack-cache", file)
            assert out == want and line in err and file.stat().st_size > 4096
        assert gyre(*run, "--weights", form, "--pack-cache", file, "--prefill", 1, "--decode", 1)[0] == want
    gyre(*run, "--weights", "int4", "--pack-cache", "auto")
    kept = [p for p in model.iterdir() if p.name not in before]
    assert len(kept) == 1 and kept[0].suffix == ".pack"
    kept[0].unlink()
    (model / (kept[0].name + ".part")).mkdir()  # nothing can be written there, by root neither
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert "pack cache written" in gyre(*run, "--weights", "int4", "--pack-cache", "auto")[1]
    assert [p.suffix for p in (cache / "gyre").iterdir()] == [".pack"]
    assert f"--pack-cache: found the folder '{cache}'" in gyre(*run, "--pack-cache", cache, code=2)[1]
    assert "whose folder goes" in gyre("bench", "engine", "--synthetic", "tiny-ouro", "--pack-cache", "auto", code=2)[1]
    assert "expected one of auto|on|off" in gyre(*run, "--pin", "yes", code=2)[1]
    assert gyre(*run, "--weights", "int4", "--pin", "on")[0] == gyre(*run, "--weights", "int4", "--pin", "off")[0]


def test_kv_in_int8():
    """It changes tokens, takes half, is the same with workers, and names what is wrong."""
    run = ["run", OURO, "--prompt-ids", "1,2,3,4,5,6,7", "--max-tokens", 16, "--ignore-eos"]
    plain, int8 = gyre(*run)[0], gyre(*run, "--kv-dtype", "int8")[0]
    assert plain != int8 and gyre(*run, "--kv-dtype", "bf16")[0] == plain
    assert gyre(*run, "--kv-dtype", "int8", "--threads", 1, "--prefill", 1, "--decode", 1)[0] == int8
    size = {t: json.loads(gyre("inspect", OURO, "--kv", "--kv-dtype", t, "--json")[0])["kv"] for t in ("auto", "int8")}
    assert size["int8"]["dtype"] == "int8" and size["int8"]["token_bytes"] < 0.7 * size["auto"]["token_bytes"]
    assert "--kv-dtype: kv_dtype: found \"q8\"" in gyre(*run, "--kv-dtype", "q8", code=2)[1]
    assert "found f32 while activations are in bf16" in gyre(*run, "--kv-dtype", "f32", code=1)[1]


def test_inspect_kv_cpu_transport():
    o = json.loads(gyre("inspect", OURO, "--kv", "--max-seqs", 3, "--max-len", 40, "--kv-layout", "cyclic:2", "--json")[0])
    assert o["kv"]["core_blocks"] == 2 * (3 * 3 + 1)  # planes x (sequences x ceil(40 / 16) + a row for the watermark of 1 %)
    assert o["kv"]["bytes"] == 20 * o["kv"]["core_block_bytes"]
    odd = os.environ | {"UCX_TLS": "tcp", "UCX_MM_SEG_SIZE": "1", "UCX_SHM_DEVICES": "none", "UCX_LOG_LEVEL": "trace"}
    o = json.loads(gyre("inspect", "--cpu", "--transport", "--transport-min-share", 0.05, "--json", env=odd)[0])
    assert o["cpu"]["physical_cores"] >= 1
    lane = o["transport"]
    assert lane["chosen"] == lane["inside_host_lanes"] and set(lane["chosen"].split(", ")) <= {"sysv", "posix", "cma", "self"}
    assert lane["inside_host_gb_per_s"] > 0.05 * lane["memcpy_gb_per_s"] > 0 and lane["loopback_network_lanes"] == "tcp"
    assert lane["inside_host_share_of_memcpy"] == pytest.approx(lane["inside_host_gb_per_s"] / lane["memcpy_gb_per_s"], rel=1e-3)
    if "avx2" in o["cpu"]["features_found"]:
        masked = json.loads(gyre("inspect", "--cpu", "--cpu-mask", "", "--json")[0])["cpu"]
        assert masked["variant"] == "cpu-portable" and masked["features_found"] != "none"
        masked = json.loads(gyre("inspect", "--cpu", "--cpu-mask", "avx2", "--json")[0])["cpu"]
        assert masked["features_found"] == o["cpu"]["features_found"] and masked["variant"] == "cpu-avx2"


def test_synth_is_a_function_of_shape_and_seed(tmp_path):
    for shape in ("tiny-ouro", "tiny-nanbeige", "tiny-huginn"):
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            gyre("synth", "--shape", shape, "--seed", seed, tmp_path / f"{shape}-{name}")
        a, b, c = ((tmp_path / f"{shape}-{n}" / "model.safetensors").read_bytes() for n in "abc")
        assert a == b != c
        (o,) = run_json(tmp_path / f"{shape}-a", "--prompt-ids", "1,2,3", "--max-tokens", 4, "--ignore-eos")
        assert len(o["token_ids"]) == 4


# ---- help and manual -------------------------------------------------------------------------------------------------------

COMMANDS = ["run", "eval", "tokenize", "inspect", "synth"]
DESIGN = {  # the forms that scripts rely on
    "run": "prompt prompt-ids input output max-tokens temperature top-k top-p min-p seed ignore-eos stop logprobs exit exit-threshold "
           "min-loops max-loops kv-layout initial-state latent-seed dtype device threads max-rows max-seqs kv-blocks "
           "prefix-cache prefill decode json",
    "eval": "prompt-ids file logits hidden gates", "tokenize": "decode", "inspect": "cpu transport kv", "synth": "shape seed",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_and_manual_agree(command):
    text = gyre(command, "--help")[0]
    assert text == gyre("help", command)[0] == gyre(command, "-h")[0]
    options = set(re.findall(r"^  --([a-z0-9-]+)", text, re.M))
    assert set(DESIGN[command].split()) <= options
    manual = (ROOT / "docs/gyre.1").read_text().replace("\\-", "-")
    section = re.search(rf'^\.SS "?gyre {command}\b.*?(?=^\.S[SH])', manual, re.M | re.S).group(0)
    common = re.search(r'^\.SS "?Options of.*?(?=^\.S[SH])', manual, re.M | re.S).group(0)
    documented = set(re.findall(r"--([a-z0-9-]+)", section)) | set(re.findall(r"--([a-z0-9-]+)", common))
    assert options <= documented, options - documented


def test_overview_and_version():
    text = gyre("--help")[0]
    assert text == gyre("help")[0] and all(re.search(rf"^  {c} ", text, re.M) for c in COMMANDS)
    assert re.fullmatch(r"gyre \d+\.\d+\.\d+\n", gyre("--version")[0])
    assert gyre(code=2)[0] == text


# ---- mistakes --------------------------------------------------------------------------------------------------------------

MISTAKES = [
    (["run", "no-such-model", "--prompt-ids", "1"], 1, "no-such-model: not a folder"),
    (["run", OURO, "--prompt-ids", "1", "--max-token", "3"], 2, "unknown option --max-token; did you mean --max-tokens?"),
    (["run", OURO, "some text"], 2, f"--prompt: {OURO} holds no tokenizer, so text cannot be read; give token ids"),
    (["run", OURO, "--prompt-ids", "1,320"], 2, "--prompt: token id 320 (number 2): expected 0 to 319"),
    (["run", OURO, "--prompt-ids", "1,x"], 2, "--prompt-ids: found 'x', expected token ids"),
    (["run", OURO, "--prompt-ids", "1", "--exit", "gate", "--exit-threshold", "1.5"], 2, "--exit-threshold: found 1.5"),
    (["run", OURO, "--prompt-ids", "1", "--exit", "gate"], 2, "--exit-threshold: not given; exit gate needs one"),
    (["run", OURO, "--prompt-ids", "1", "--min-loops", "3", "--max-loops", "2"], 2, "--min-loops: found 3"),
    (["run", OURO, "--prompt-ids", "1", "--max-loops", "5"], 2, "--max-loops: found 5, expected at most 4"),
    (["run", OURO, "--prompt-ids", "1", "--max-tokens", "512"], 2,
     "--prompt: 1 tokens and max_tokens 512 make 513, the model's context is 512"),
    (["run", OURO, "--prompt-ids", ids_arg([1] * 512)], 2, "the model's context is 512"),
    (["run", OURO, "--input", "/no/such/file"], 1, "/no/such/file: "),
    (["run", OURO], 2, "no prompt; give one of --prompt TEXT, --prompt-ids 1,2,3, --input FILE.jsonl"),
    (["run", OURO, "--prompt-ids", "1", "--device", "cuda:x"], 2, "--device: found 'cuda:x', expected cpu, cuda or cuda:N"),
    (["run", OURO, "--prompt-ids", "1", "--device", "cuda:999"], 1, "device cuda"),
    (["run", OURO, "--prompt-ids", "1", "--device", "cuda", "--backend", "ref"], 2, "--backend: it chooses among the CPU's"),
    (["serve", OURO, "--device", "cuda:0,cuda:x", "--hybrid", "1"], 2, "found 'cuda:0,cuda:x', expected cpu, cuda or cuda:N, or a list"),
    (["run", OURO, "--prompt-ids", "1", "--device", "cuda:0,cuda:1"], 2, "found 'cuda:0,cuda:1', expected cpu, cuda or cuda:N"),
    (["run", OURO, "--prompt-ids", "1", "--device", "cuda:0,cuda:1", "--hybrid", "1"], 2, "found 2 devices for 1 workers"),
    (["run", OURO, "--prompt-ids", "1", "--device", "tpu"], 2, "--device: found 'tpu', expected cpu, cuda or cuda:N"),
    (["run", OURO, "--prompt-ids", "1", "--prefix-cache", "yes"], 2, "--prefix-cache: found 'yes', expected one of on|off"),
    (["run", OURO, "--prompt-ids", "1", "--prefill", "1"], 2, "--prefill: found 1 without --decode (or --hybrid)"),
    (["run", OURO, "--prompt-ids", "1", "--decode", "1"], 2, "--decode: found 1 without --prefill (or --hybrid)"),
    (["run", OURO, "--prompt-ids", "1", "--local-prefill-below", "9"], 2, "--local-prefill-below: found without --prefill"),
    (["run", OURO, "--prompt-ids", "1", "--local-prefill-queue", "9"], 2, "--local-prefill-queue: found without --prefill"),
    (["run", OURO, "--prompt-ids", "1", "--hybrid", "1", "--transfer-chunk-bytes", "0"], 2, "transfer chunk: found 0 bytes"),
    (["worker", OURO], 2, "gyre worker: found no control channel on descriptor 3"),
    (["run", OURO, "--prompt-ids", "1", "--kv-layout", "ring"], 2, "--kv-layout: "),
    (["run", OURO, "--prompt-ids", "1", "--kv-layout", "cyclic:9"], 2, "cyclic:9"),
    (["run", OURO, "--prompt-ids", "1", "--kv-blocks", "2"], 2, "kv_blocks"),
    (["run", OURO, "--prompt-ids", "1", "--cpu-mask", "mmx"], 2, "--cpu-mask: found 'mmx', expected names among avx2"),
    (["run", OURO, "--prompt-ids", "1", "--initial-state", "noise"], 2, "--initial-state: found noise; ouro models have no"),
    (["run", OURO, "--prompt-ids", "1", "--stop", "x"], 2, "--stop: "),
    (["run", OURO, "--prompt-ids", "1", "--exit", "trace:/no/file"], 1, "/no/file: "),
    (["run", OURO, "a", "b"], 2, "found the argument 'b' too much"),
    (["run", str(MODELS / "nanbeige-tiny"), "--prompt-ids", "1", "--exit", "gate", "--exit-threshold", "0.5"], 2,
     "--exit: found gate, which needs an exit gate"),
    (["eval", OURO], 2, "found neither --prompt-ids and --file"),
    (["eval", "--prompt-ids", "1"], 2, "no MODEL"),
    (["eval", str(MODELS / "nanbeige-tiny"), "--prompt-ids", "1", "--gates", "/tmp/x.npy"], 2, "--gates: this nanbeige model"),
    (["eval", OURO, "--prompt-ids", "1", "--logits", "/no/such/dir/x.npy"], 1, "/no/such/dir/x.npy"),
    (["tokenize", OURO, "x"], 1, "holds no tokenizer"),
    (["inspect"], 2, "nothing to look at"),
    (["inspect", "--kv"], 2, "--kv needs a MODEL"),
    (["synth", "--shape", "ouro-9b", "/tmp/never"], 2, "--shape: "),
    (["synth", "--shape", "tiny-ouro"], 2, "no OUT"),
    (["serve", "--port", "65536"], 2, "--port"),
    (["pull"], 2, "not in this build yet"),
    (["evol"], 2, "unknown command 'evol'; did you mean eval?"),
]


@pytest.mark.parametrize("args, code, message", MISTAKES, ids=[" ".join(m[0])[-40:] + f"-{i}" for i, m in enumerate(MISTAKES)])
def test_mistakes(args, code, message):
    out, err = gyre(*args, code=code)
    assert out == "" and err.startswith("gyre: ") and message in err, err


def test_bad_line_of_input_is_named(tmp_path):
    f = tmp_path / "in.jsonl"
    f.write_text('{"prompt_ids": [1]}\n{"prompt_ids": [1],}\n')
    assert f"{f}:2: " in gyre("run", OURO, "--input", f, code=1)[1]
    f.write_text('{"prompt_ids": [1]}\n\n{"prompt_ids": [1], "min_loops": 9}\n')
    out, err = gyre("run", OURO, "--input", f, code=2)
    assert out == "" and f"{f}:3: min_loops: found 9" in err
    f.write_text("\n")
    assert "found no request" in gyre("run", OURO, "--input", f, code=2)[1]


def test_broken_checkpoints_fail_with_1(tmp_path):
    model = tmp_path / "m"
    shutil.copytree(OURO, model)
    data = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(data[:-10])
    assert "model.safetensors" in gyre("run", model, "--prompt-ids", "1", code=1)[1]
    (model / "model.safetensors").write_bytes(data)
    cfg = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**cfg, "use_flux_capacitor": True}))
    assert "use_flux_capacitor" in gyre("run", model, "--prompt-ids", "1", code=1)[1]


def test_a_request_that_ends_in_an_error_harms_no_other(tmp_path):
    """The embedding of token 5 is NaN: a prompt with it has no logits to choose from. The other prompt goes on."""
    model = tmp_path / "m"
    shutil.copytree(OURO, model)
    data = bytearray((model / "model.safetensors").read_bytes())
    t = tensors(model)["model.embed_tokens.weight"]
    row = 2 * t["shape"][1]
    at = 8 + struct.unpack("<Q", data[:8])[0] + t["data_offsets"][0] + 5 * row
    data[at:at + row] = b"\xc0\x7f" * t["shape"][1]
    (model / "model.safetensors").write_bytes(data)
    want = next(c for c in greedy_cases("ouro") if c["exit"] == "fixed")
    args = [model, "--dtype", "f32", "--ignore-eos", "--max-tokens", 24, "--prompt-ids", "1,5", "--prompt-ids", SHORT]
    out, err = gyre("run", *args, "--json", code=1)
    bad, good = map(json.loads, out.splitlines())
    assert bad["finish_reason"] == "error" and bad["token_ids"] == [] and bad["timing"]["ttft_ms"] is None
    assert "is NaN" in bad["error"] and f"gyre: request 0: {bad['error']}" in err
    assert good["token_ids"] == want["tokens"] and "error" not in good
    assert "=== 0: 2 prompt tokens, 0 tokens, error" in gyre("run", *args, code=1)[0]


def test_lost_output_is_a_failure():
    with open("/dev/full", "w") as full:
        p = subprocess.run([GYRE, "run", OURO, "--prompt-ids", "1", "--max-tokens", "3"], stdout=full, stderr=subprocess.PIPE)
    assert p.returncode == 1 and b"standard output: cannot write" in p.stderr
    with open("/dev/full", "w") as full:
        p = subprocess.run([GYRE, "--help"], stdout=full, stderr=subprocess.PIPE)
    assert p.returncode == 1 and b"standard output: cannot write" in p.stderr


def test_reader_that_leaves_is_no_noise(tmp_path):
    p = subprocess.Popen([GYRE, "run", roomy(tmp_path, OURO), "--prompt-ids", "1", "--max-tokens", "30000", "--ignore-eos"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    os.read(p.stdout.fileno(), 1)
    p.stdout.close()
    assert p.stderr.read() == b"" and p.wait() == 1
