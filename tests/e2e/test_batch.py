"""gyre run as an offline batch: --input with mixed requests, --output, interruption and restart.

The oracle of a batch is the same lines run one by one: through one sequence and few rows at a time, and, for some of them,
in processes of their own. Greedy cases of tests/golden are among the lines, so that both are also held against values that
do not come from gyre.
"""

import fcntl
import json
import os
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

from program import FAMILIES, GYRE, MODELS, OURO, SHORT, greedy_cases, greedy_line, ids_arg, write_lines
from program import gyre as any_gyre


def gyre(*args, **kw):
    if args[0] == "run" and "--threads" not in args:
        args += ("--threads", 1)  # these models are too small for a second one to help
    return any_gyre(*args, **kw)


def read_lines(path):
    return [json.loads(x) for x in Path(path).read_text().splitlines()]


def answer(o):
    """What may not depend on anything but the request."""
    return {k: v for k, v in o.items() if k not in ("index", "timing", "request", "cached_tokens")}


def by_index(lines):
    """Answers in the order of the prompts; choices of one prompt must stand together and in order."""
    groups = {}
    for o in lines:
        group = groups.setdefault(o["index"], [])
        assert o.get("choice", 0) == len(group)
        group.append(o)
    return [groups[i] for i in sorted(groups)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The golden checkpoints with a byte-level tokenizer beside them: <|endoftext|> 0, ..., byte b = 3 + b."""
    root = tmp_path_factory.mktemp("models")
    for family in FAMILIES:
        gyre("synth", "--shape", f"tiny-{family}", "--tokenizer", root / f"synth-{family}")
        shutil.copytree(MODELS / f"{family}-tiny", root / family)
        for f in (root / f"synth-{family}").iterdir():
            if f.name.startswith(("tokenizer", "vocab", "merges")):
                shutil.copy(f, root / family / f.name)
    return root


def mixed_requests(family, n, has_gate, n_vocab, n_loop):
    """n different requests: rules, samplers, ends, lengths; prompts that share beginnings."""
    r = random.Random(f"mixed {family}")
    stems = [[r.randrange(3, 259) for _ in range(k)] for k in (40, 25, 17)]
    out = []
    for i in range(n):
        head = r.choice(stems)[:r.choice([0, 16, 17, 40])]
        q = {"prompt_ids": head + [r.randrange(3, n_vocab) for _ in range(r.choice([1, 2, 5, 9, 33]))],
             "max_tokens": r.choice([1, 2, 5, 9, 16])}
        if r.random() < 0.6:
            q["ignore_eos"] = True
        if r.random() < 0.5:
            q.update(temperature=r.choice([0.7, 1.0, 1.5]), seed=r.randrange(1000))
            q.update(r.choice([{}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.05}, {"top_k": 20, "top_p": 0.9}]))
            if r.random() < 0.3:
                q["n"] = r.choice([2, 3, 4])
        q.update(r.choice([{}, {}, {"repetition_penalty": 1.3}, {"presence_penalty": 0.8, "frequency_penalty": 0.4},
                           {"logit_bias": {str(r.randrange(n_vocab)): 4.5, "7": -50}}]))
        rules = [{}, {"max_loops": r.randint(1, n_loop)}, {"exit": "latent", "exit_threshold": 0.4},
                 {"exit": "kl", "exit_threshold": 0.02}, {"exit": "entropy", "exit_threshold": 0.05},
                 {"exit": "argmax", "exit_threshold": 2}]
        if has_gate:
            rules += [{"exit": "gate", "exit_threshold": 0.6, "min_loops": 1}, {"exit": "gate_delayed", "exit_threshold": 0.5},
                      {"exit": "select", "exit_threshold": 0.5}]
        q.update(r.choice(rules))
        q.update(r.choice([{}, {}, {"stop": [chr(r.randrange(97, 123)), "\n"]}, {"stop_ids": [r.randrange(3, n_vocab)]},
                           {"logprobs": 2}, {"prompt_logprobs": 1}]))
        if r.random() < 0.2:
            q["min_tokens"] = r.randint(0, q["max_tokens"])
        if r.random() < 0.2:
            q["priority"] = r.randrange(-2, 3)
        if has_gate and r.random() < 0.1:
            q["gates"] = True
        if family == "huginn" and r.random() < 0.3:
            q.update(initial_state="noise", latent_seed=r.randrange(5))
        out.append(q)
    return out


@pytest.fixture(scope="module")
def batches(models, tmp_path_factory):
    """family -> (model, file with 200 mixed requests, their answers one by one), each made once."""
    made = {}

    def get(family):
        if family in made:
            return made[family]
        model = models / family
        info = json.loads(gyre("inspect", model, "--json")[0])["model"]
        lines = mixed_requests(family, 200, info["exit_gate"], info["n_vocab"], info["n_loop"])
        path = write_lines(tmp_path_factory.mktemp(family) / "in.jsonl", lines)
        out = gyre("run", model, "--input", path, "--json", "--max-seqs", 1, "--max-rows", 8, "--prefill-chunk", 8)[0]
        alone = by_index([json.loads(x) for x in out.splitlines()])
        assert len(alone) == 200 and all(len(a) == q.get("n", 1) for a, q in zip(alone, lines))
        assert {o["finish_reason"] for a in alone for o in a} == {"stop", "length"}
        assert len({tuple(o["loops"]) for a in alone for o in a}) > 6  # depths do mix
        made[family] = model, path, alone
        return made[family]

    return get


@pytest.fixture(params=FAMILIES)
def mixed(request, batches):
    return batches(request.param)


@pytest.fixture
def ouro(batches):
    """For what has nothing to do with the family."""
    return batches("ouro")


def same(found, alone):
    for f, a in zip(by_index(found), alone, strict=True):
        assert [answer(o) for o in f] == [answer(o) for o in a]


# ---- equal to one by one -------------------------------------------------------------------------------------------------

WAYS = {
    "defaults": [],
    "narrow": ["--max-rows", 5, "--max-seqs", 3, "--prefill-chunk", 3, "--max-queue", 5],
    "cache-priority-fused": ["--prefix-cache", "on", "--policy", "priority", "--fuse-loops", 3, "--min-coda", 4],
    "full-cohorts": ["--reserve", "full", "--no-refill", "--prefill-share", "1", "--max-seqs", 40],
}


@pytest.mark.parametrize("way", WAYS)
def test_batch_equals_one_by_one(mixed, way, tmp_path):
    model, path, alone = mixed
    out = tmp_path / "out.jsonl"
    stdout, err = gyre("run", model, "--input", path, "--output", out, *WAYS[way])
    assert stdout == "" and re.fullmatch(r"(gyre: \d+ of 200 done, .*\n)*", err)  # progress, on a machine so slow
    same(read_lines(out), alone)


@pytest.mark.parametrize("preempt", ["park", "recompute"])
def test_little_kv_equals_one_by_one(mixed, preempt, tmp_path):
    """Blocks for a few sequences only: some must give up theirs, and the answers are the same."""
    model, path, alone = mixed
    plan = json.loads(gyre("inspect", model, "--kv", "--max-seqs", 1, "--max-len", 104, "--json")[0])["kv"]
    out = tmp_path / "out.jsonl"
    _, err = gyre("run", model, "--input", path, "--output", out, "--kv-blocks", plan["core_blocks"], "--preempt", preempt,
                  "--watermark", 0, "--log-level", "info")
    did = {k: int(v) for k, v in re.findall(r"(parked|dropped|computed_again)=(\d+)", err)}
    assert (did["parked"] > 2) == (preempt == "park") and (did["dropped"] > 2) == (preempt == "recompute"), err
    same(read_lines(out), alone)


def test_processes_of_their_own(mixed, tmp_path):
    model, path, alone = mixed
    lines = path.read_text().splitlines()
    for i in range(3, 200, 40):
        out = gyre("run", model, "--input", "-", "--json", stdin=lines[i].encode())[0]
        assert [answer(json.loads(x)) for x in out.splitlines()] == [answer(o) for o in alone[i]]


def test_stdout_keeps_the_order(mixed):
    model, path, alone = mixed
    out, err = gyre("run", model, "--input", path, "--json", "--max-queue", 9)
    found = [json.loads(x) for x in out.splitlines()]
    assert [o["index"] for o in found] == [i for i, a in enumerate(alone) for _ in a] and err == ""
    same(found, alone)


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_cases_in_a_batch(family, tmp_path):
    cases = [c for c in greedy_cases(family) if c["layout"] == "last_exited"]
    lines = [greedy_line(c) for c in cases * 4]
    out = tmp_path / "out.jsonl"
    gyre("run", MODELS / f"{family}-tiny", "--dtype", "f32", "--input", write_lines(tmp_path / "in.jsonl", lines),
         "--output", out, "--prefix-cache", "on", "--max-seqs", 7)
    for (o,), c in zip(by_index(read_lines(out)), cases * 4, strict=True):
        assert o["token_ids"] == c["tokens"] and o["loops"] == c["loops"]


# ---- the fields of a line ------------------------------------------------------------------------------------------------


def run_json(*args):
    return [json.loads(x) for x in gyre("run", *args, "--json")[0].splitlines()]


def test_choices_have_their_own_draws_and_share_a_seed():
    out = run_json(OURO, "--prompt-ids", SHORT, "--prompt-ids", "5", "--n", 3, "--temperature", 1.2, "--max-tokens", 12,
                   "--ignore-eos", "--seed", 11)
    assert [(o["index"], o["choice"]) for o in out] == [(i, k) for i in range(2) for k in range(3)]
    assert all(o["seed"] == 11 for o in out) and len({tuple(o["token_ids"]) for o in out}) == 6
    (one,) = run_json(OURO, "--prompt-ids", SHORT, "--temperature", 1.2, "--max-tokens", 12, "--ignore-eos", "--seed", 11)
    assert one["token_ids"] == out[0]["token_ids"] and "choice" not in one
    text = gyre("run", OURO, "--prompt-ids", SHORT, "--n", 2, "--max-tokens", 2, "--ignore-eos")[0]
    assert re.findall(r"^=== (\S+):", text, re.M) == ["0.0", "0.1"]


def test_a_drawn_seed_is_reported_and_repeats():
    args = [OURO, "--prompt-ids", SHORT, "--temperature", 1, "--max-tokens", 16, "--ignore-eos"]
    (a,), (b,) = run_json(*args), run_json(*args)
    assert a["seed"] != b["seed"] and a["token_ids"] != b["token_ids"] and max(a["seed"], b["seed"]) < 2**53
    (again,) = run_json(*args, "--seed", a["seed"])
    assert answer(again) == answer(a)
    assert "seed" not in run_json(OURO, "--prompt-ids", SHORT, "--max-tokens", 2)[0]
    (big,) = run_json(*args, "--seed", 2**64 - 1)
    assert big["seed"] == str(2**64 - 1)
    line = json.dumps({"prompt_ids": [int(i) for i in SHORT.split(",")], "temperature": 1, "max_tokens": 16, "ignore_eos": True,
                       "seed": big["seed"]})
    out = gyre("run", OURO, "--input", "-", "--json", stdin=line.encode())[0]
    assert answer(json.loads(out)) == answer(big)


def test_prompt_logprobs_are_those_of_a_longer_and_longer_prompt():
    ids = [int(i) for i in SHORT.split(",")]
    (o,) = run_json(OURO, "--prompt-ids", SHORT, "--prompt-logprobs", 2, "--max-tokens", 1, "--dtype", "f32")
    lp = o["prompt_logprobs"]
    assert len(lp) == len(ids) and lp[0] is None and [p["token_id"] for p in lp[1:]] == ids[1:]
    for k in range(1, len(ids)):
        (c,) = run_json(OURO, "--prompt-ids", ids_arg(ids[:k]), "--max-tokens", 1, "--dtype", "f32", "--ignore-eos",
                        "--logprobs", 2, "--logit-bias", f"{ids[k]}:100")
        assert c["token_ids"] == [ids[k]]  # forced, and its raw log probability is what the longer prompt reports
        assert c["logprobs"][0]["logprob"] == lp[k]["logprob"] and c["logprobs"][0]["top"] == lp[k]["top"]
    two = run_json(OURO, "--prompt-ids", SHORT, "--prompt-logprobs", 0, "--n", 2, "--max-tokens", 1)
    assert len(two[0]["prompt_logprobs"]) == 7 and two[1]["prompt_logprobs"] is None


def test_gates_are_those_of_eval(tmp_path):
    np = pytest.importorskip("numpy")
    (o,) = run_json(OURO, "--prompt-ids", SHORT, "--gates", "--max-tokens", 5, "--ignore-eos", "--dtype", "f32")
    assert [len(g) for g in o["gates"]] == o["loops"] == [4] * 5
    ids = o["prompt_ids"] + o["token_ids"][:-1]
    gyre("eval", OURO, "--dtype", "f32", "--prompt-ids", ids_arg(ids), "--gates", tmp_path / "g.npy")
    want = np.load(tmp_path / "g.npy")[len(o["prompt_ids"]) - 1:]
    assert np.abs(np.array(o["gates"]) - want).max() < 1e-5
    (o,) = run_json(OURO, "--prompt-ids", SHORT, "--gates", "--max-tokens", 5, "--ignore-eos", "--max-loops", 2)
    assert [len(g) for g in o["gates"]] == o["loops"]


def test_cached_tokens():
    args = [OURO, "--max-tokens", 2, "--ignore-eos", "--max-seqs", 1]
    prompts = ["--prompt-ids", ",".join(["9"] * 40), "--prompt-ids", ",".join(["9"] * 40 + ["8"])]
    cold = run_json(*args, *prompts)
    warm = run_json(*args, *prompts, "--prefix-cache", "on")
    assert [o["cached_tokens"] for o in warm] == [0, 32] and "cached_tokens" not in cold[0]
    assert [answer(o) for o in warm] == [answer(o) for o in cold]
    none = run_json(*args, *prompts, "--prefix-cache", "on", "--no-cache")
    assert [o["cached_tokens"] for o in none] == [0, 0]


def test_what_ended_the_text_is_said():
    free = run_json(OURO, "--prompt-ids", SHORT, "--ignore-eos", "--max-tokens", 12)[0]["token_ids"]
    k = next(i for i in range(3, 12) if free.index(free[i]) == i)
    args = [OURO, "--prompt-ids", SHORT, "--ignore-eos", "--max-tokens", 12, "--stop-ids", f"{free[k]}"]
    (o,) = run_json(*args)
    assert o["token_ids"] == free[:k + 1] and o["finish_reason"] == "stop" and o["stop_reason"] == free[k]
    (o,) = run_json(*args, "--min-tokens", k)
    assert o["token_ids"] == free[:k + 1]
    (o,) = run_json(*args, "--min-tokens", k + 1)
    assert o["token_ids"][:k] == free[:k] and o["token_ids"][k] != free[k]
    (o,) = run_json(*args, "--min-tokens", 12)
    assert len(o["token_ids"]) == 12 and o["finish_reason"] == "length" and "stop_reason" not in o


def test_stop_strings_wait_for_min_tokens(models):
    args = [models / "ouro", "--prompt-ids", SHORT, "--ignore-eos", "--max-tokens", 60, "--temperature", 1, "--seed", 2,
            "--logit-bias", "122:6"]  # "w" often
    (free,) = run_json(*args)
    at = [i for i, t in enumerate(free["token_ids"]) if t == 3 + ord("w")]
    assert len(at) > 3
    for k in (0, at[0], at[0] + 1, at[1] + 1, 60):
        (o,) = run_json(*args, "--stop", "w", "--min-tokens", k)
        end = next((i + 1 for i in at if i >= k), 60)
        assert o["token_ids"] == free["token_ids"][:end]
        if end < 60:
            assert o["finish_reason"] == "stop" and o["stop_reason"] == "w" and o["text"].count("w") == at.index(end - 1)


# ---- restart -------------------------------------------------------------------------------------------------------------


def fail_at(model, path, out, how, after):
    """Starts a batch, ends it with the signal once `after` lines are there; returns (exit code, stderr)."""
    p = subprocess.Popen([GYRE, "run", model, "--input", path, "--output", out, *SLOW], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while p.poll() is None and time.monotonic() < deadline:
        if out.exists() and out.read_bytes().count(b"\n") >= after:
            p.send_signal(how)
            break
        time.sleep(0.002)
    err = p.communicate(timeout=60)[1].decode()
    return p.returncode, err


SLOW = ["--max-seqs", "4", "--max-rows", "8", "--threads", "1"]  # so that there is a middle to be killed in


def test_killed_in_the_middle(ouro, tmp_path):
    model, path, alone = ouro
    for attempt in range(10):  # a batch may end before this process has looked
        out, rounds = tmp_path / f"out{attempt}.jsonl", 0
        for after in (20, 60, 100, 140, 500):
            code, _ = fail_at(model, path, out, signal.SIGKILL, after)
            rounds += code == -signal.SIGKILL
            if code == 0:
                break
        if rounds >= 2:
            break
    assert rounds >= 2 and code == 0
    same(read_lines(out), alone)
    before = out.read_bytes()
    _, err = gyre("run", model, "--input", path, "--output", out)
    assert out.read_bytes() == before and "200 of 200 prompts are answered already" in err


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(ouro, how, tmp_path):
    model, path, alone = ouro
    for attempt in range(10):
        out = tmp_path / f"out{attempt}.jsonl"
        code, err = fail_at(model, path, out, how, 30)
        if code:
            break
    assert code == 1 and "gyre: interrupted\n" in err, err
    done = len(by_index(read_lines(out)))
    assert 1 <= done < 200
    assert f"{out}: {done} of 200 prompts are answered; the same command goes on from there" in err
    _, err = gyre("run", model, "--input", path, "--output", out)
    assert f"{done} of 200 prompts are answered already" in err
    same(read_lines(out), alone)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """(folder, file of 6 requests, a complete output of it)."""
    root = tmp_path_factory.mktemp("small")
    lines = [{"prompt_ids": [i + 1, 7], "max_tokens": 3, "ignore_eos": True} for i in range(6)]
    lines[2].update(n=2, temperature=1, seed=4)
    path = write_lines(root / "in.jsonl", lines)
    gyre("run", OURO, "--input", path, "--output", root / "out.jsonl")
    return root, path, (root / "out.jsonl").read_bytes()


def test_truncated_last_line(small, tmp_path):
    _, path, whole = small
    out = tmp_path / "out.jsonl"
    want = by_index([json.loads(x) for x in whole.splitlines()])
    for n in (0, 1, 10, len(whole) // 2, len(whole) - 300, len(whole) - 1):
        out.write_bytes(whole[:n])
        _, err = gyre("run", OURO, "--input", path, "--output", out)
        same(read_lines(out), want)
        assert ("incomplete answer" in err) == (n > 0)


def test_foreign_output_is_refused(small, tmp_path):
    _, path, whole = small
    out = tmp_path / "out.jsonl"
    other_input = write_lines(tmp_path / "other.jsonl", [{"prompt_ids": [9], "max_tokens": 3}] * 6)
    cases = [
        ([OURO, "--input", other_input], whole, "out.jsonl:1: the prompt_ids of index"),
        ([OURO, "--input", path, "--max-loops", 2], whole, "out.jsonl:1: this answer was made with other options"),
        ([OURO, "--input", path, "--kv-layout", "shared"], whole, "out.jsonl:1: this answer was made with other options"),
        ([OURO, "--input", path, "--dtype", "f32"], whole, "out.jsonl:1: this answer was made with other options"),
        ([MODELS / "nanbeige-tiny", "--input", path], whole, "out.jsonl:1: this answer was made with other options"),
        ([OURO, "--input", path], b"dear diary", "out.jsonl:1: this is not the beginning of an answer"),
        ([OURO, "--input", path], b"dear diary\n", "out.jsonl:1: this is no JSON"),
        ([OURO, "--input", path], whole + b'{"index": 6}\n', 'out.jsonl:8: found no "index" from 0 to 5'),
        ([OURO, "--input", path], whole + whole, "out.jsonl:8: this index is answered twice"),
    ]
    for args, content, message in cases:
        out.write_bytes(content)
        _, err = gyre("run", *args, "--output", out, code=2)
        assert message in err and "name another file" in err, err
        assert out.read_bytes() == content
    # What no result depends on may change.
    out.write_bytes(whole[:whole.index(b"\n") + 1])
    gyre("run", OURO, "--input", path, "--output", out, "--max-seqs", 2, "--threads", 1, "--prefix-cache", "on", "--priority", 3)
    same(read_lines(out), by_index([json.loads(x) for x in whole.splitlines()]))


def test_output_is_a_file_of_its_own(small, tmp_path):
    _, path, _ = small
    before = path.read_bytes()
    assert "is the file that the prompts come from" in gyre("run", OURO, "--input", path, "--output", path, code=2)[1]
    (tmp_path / "link").symlink_to(path)
    assert "is the file that the prompts come from" in gyre("run", OURO, "--input", path, "--output", tmp_path / "link", code=2)[1]
    assert path.read_bytes() == before
    assert "no regular file" in gyre("run", OURO, "--input", path, "--output", "/dev/null", code=2)[1]
    assert "expected a file" in gyre("run", OURO, "--input", path, "--output", "-", code=2)[1]
    assert "cannot open it to write" in gyre("run", OURO, "--input", path, "--output", tmp_path / "no/dir", code=1)[1]
    with open(tmp_path / "locked", "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        assert "another process is writing to it" in gyre("run", OURO, "--input", path, "--output", tmp_path / "locked", code=1)[1]


def test_a_full_disk_loses_nothing_that_was_written(small, tmp_path):
    """A limit on the file's size stands for a full disk: the write fails in the middle of a line."""
    _, path, whole = small
    out = tmp_path / "out.jsonl"
    limit = len(whole) // 2
    script = f"import resource, os, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); os.execv(sys.argv[1], sys.argv[1:])"
    p = subprocess.run(["python3", "-c", script, GYRE, "run", str(OURO), "--input", str(path), "--output", str(out)],
                       capture_output=True, text=True, preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
    assert p.returncode == 1 and f"{out}: cannot write to it: " in p.stderr and "goes on from there" in p.stderr, p.stderr
    assert out.stat().st_size == limit
    gyre("run", OURO, "--input", path, "--output", out)
    same(read_lines(out), by_index([json.loads(x) for x in whole.splitlines()]))


# ---- errors of single lines ----------------------------------------------------------------------------------------------


def test_malformed_lines_are_refused_before_anything_runs(tmp_path):
    out = tmp_path / "out.jsonl"
    for bad, code, message in [('{"prompt_ids": [1', 1, ":2: "), ('{"prompt_ids": [1], "n": 200}', 2, ":2: n: found 200"),
                               ('{"prompt_ids": [1], "stop": "x"}', 2, ":2: stop: "), ("[]", 2, ":2: found an array"),
                               ('{"prompt_ids": [400]}', 2, ":2: prompt: token id 400")]:
        path = tmp_path / "in.jsonl"
        path.write_text('{"prompt_ids": [1]}\n' + bad + "\n")
        assert f"{path}{message}" in gyre("run", OURO, "--input", path, "--output", out, code=code)[1]
        assert not out.exists()


def test_lines_that_can_never_fit(tmp_path):
    """Too long for the context, or for the KV memory: an error line, and the others are answered."""
    good = {"prompt_ids": [5, 6], "max_tokens": 4, "ignore_eos": True}
    lines = [good, {"prompt_ids": [1] * 20, "max_tokens": 500}, good, {"prompt_ids": [1] * 60, "max_tokens": 100, "n": 2}, good]
    path, out = write_lines(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    (want,) = run_json(OURO, "--prompt-ids", "5,6", "--max-tokens", 4, "--ignore-eos")
    args = ["run", OURO, "--input", path, "--kv-blocks", 8]
    _, err = gyre(*args, "--output", out, code=1)
    found = by_index(read_lines(out))
    assert [a[0]["finish_reason"] for a in found] == ["length", "error", "length", "error", "length"]
    assert "the model's context is 512" in found[1][0]["error"] and found[1][0]["token_ids"] == []
    assert len(found[3]) == 2 and all(re.search(r"block", o["error"]) for o in found[3]), found[3]
    assert all(answer(found[i][0]) == answer(want) for i in (0, 2, 4))
    assert f"gyre: request 1 ({path}:2): " in err and f"gyre: request 3 ({path}:4): " in err
    before = out.read_bytes()
    _, err = gyre(*args, "--output", out, code=1)  # answered, and still errors
    assert out.read_bytes() == before and "2 answers are errors; delete their lines" in err
    stdout, _ = gyre(*args, "--json", code=1)
    same([json.loads(x) for x in stdout.splitlines()], found)
    # On the command line the same is a mistake of the one prompt that was typed.
    assert "block" in gyre("run", OURO, "--prompt-ids", ",".join(["1"] * 60), "--max-tokens", 100, "--kv-blocks", 8, code=2)[1]


def test_a_line_with_nan_logits(tmp_path):
    """The embedding of token 5 is NaN (as in test_cli.py): that line is an error, more than ten are summed up."""
    model = tmp_path / "m"
    shutil.copytree(OURO, model)
    data = bytearray((model / "model.safetensors").read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    t = json.loads(data[8:8 + n])["model.embed_tokens.weight"]
    row = 2 * t["shape"][1]
    at = 8 + n + t["data_offsets"][0] + 5 * row
    data[at:at + row] = b"\xc0\x7f" * t["shape"][1]
    (model / "model.safetensors").write_bytes(data)
    lines = [{"prompt_ids": [1, 5 if i % 2 else 6], "max_tokens": 3, "ignore_eos": True} for i in range(30)]
    out = tmp_path / "out.jsonl"
    _, err = gyre("run", model, "--input", write_lines(tmp_path / "in.jsonl", lines), "--output", out, "--prefix-cache", "on", code=1)
    found = by_index(read_lines(out))
    assert [a[0]["finish_reason"] for a in found] == ["length", "error"] * 15
    assert all("NaN" in a[0]["error"] for a in found[1::2]) and len({tuple(a[0]["token_ids"]) for a in found[::2]}) == 1
    assert err.count("gyre: request ") == 10 and err.count("more requests ended in errors") == 1


# ---- progress, plan ------------------------------------------------------------------------------------------------------


def test_progress_on_a_terminal(ouro, tmp_path):
    model, path, _ = ouro
    parent, child = pty.openpty()
    p = subprocess.Popen([GYRE, "run", model, "--input", path, "--output", tmp_path / "o", *SLOW], stderr=child)
    os.close(child)
    text = b""
    try:
        while chunk := os.read(parent, 1 << 16):
            text += chunk
    except OSError:  # Linux says EIO when the other side is closed
        pass
    os.close(parent)
    assert p.wait() == 0
    lines = [x for x in text.decode().split("\r") if " of 200 done" in x]
    assert lines and all(re.search(r"^\d+ of 200 done(, [\d.]+ tok/s, [\d.]+ loops a token)?(, [\d:]+ left)?\033\[K$", x)
                         for x in lines), lines[-1]
    done = [int(x.split()[0]) for x in lines]
    assert done == sorted(done) and "tokens in" in text.decode()


def test_kv_plan():
    def plan(*args):
        return json.loads(gyre("inspect", OURO, "--kv", "--max-len", 64, "--json", *args)[0])["kv"]

    info = json.loads(gyre("inspect", OURO, "--json")[0])
    p = plan("--max-seqs", 5)
    rows = 5 * 4 + 1  # sequences x ceil(64 / 16), and what the watermark of 1 % keeps free
    assert p["core_blocks"] == rows * info["model"]["n_loop"] and p["tokens"] == rows * 16
    assert p["token_bytes"] == info["kv_token_bytes"]["last_exited"] and p["tokens_per_gib"] == 2**30 // p["token_bytes"]
    assert p["bytes"] == p["core_blocks"] * p["core_block_bytes"] + p["boundary_blocks"] * p["boundary_block_bytes"]
    assert p["limit"] == "max_seqs x max_len" and p["workspace_bytes"] > 0 and p["free_before_loading"] > 0
    assert plan("--max-seqs", 5, "--prefix-cache", "on")["core_blocks"] == 2 * p["core_blocks"]
    b = plan("--kv-bytes", "1M")
    assert b["limit"] == "kv_bytes" and 0.5 * 2**20 < b["bytes"] <= 2**20
    assert plan("--kv-blocks", 12)["core_blocks"] == 12 and plan("--kv-blocks", 12)["limit"] == "kv_blocks"
    little = plan("--max-seqs", 4096, "--max-len", 512, "--kv-fraction", "0.01")
    assert little["limit"] in ("memory", "max_seqs x max_len") and little["bytes"] <= 0.01 * little["free_before_loading"]
    assert re.search(r"^  tokens_per_gib +\d+$", gyre("inspect", OURO, "--kv")[0], re.M)


@pytest.mark.parametrize("args, message", [
    (["--kv-blocks", "9", "--kv-bytes", "1M"], "found 2 of --kv-blocks, --kv-bytes, --kv-fraction, expected one"),
    (["--kv-bytes", "1k"], "--kv-bytes: found '1k', expected a number of bytes, or one with K, M or G behind it"),
    (["--kv-bytes", "0"], "--kv-bytes: found 0"),
    (["--kv-bytes", "1K"], "--kv-bytes: "),
    (["--kv-fraction", "0"], "--kv-fraction: found 0"),
    (["--prefill-share", "0"], "--prefill-share: found 0"),
    (["--watermark", "1"], "--watermark: found 1"),
    (["--policy", "lifo"], "--policy: found 'lifo', expected one of fcfs|priority"),
    (["--preempt", "kill"], "--preempt: found 'kill', expected one of auto|park|recompute"),
    (["--n", "129"], "--n: found 129, expected a whole number from 1 to 128"),
    (["--n", "4", "--max-queue", "2"], "--n: found 4 choices, the queue holds 2; raise max_queue"),
    (["--stop-ids", "9999"], "--stop-ids: token id 9999 (number 1): expected 0 to 319"),
    (["--logit-bias", "1"], "--logit-bias: found '1', expected ID:BIAS"),
    (["--repetition-penalty", "0"], "--repetition-penalty: "),
    (["--min-tokens", "7", "--max-tokens", "6"], "--min-tokens: found 7, expected at most max_tokens, 6"),
    (["--output", ""], "--output: found '', expected a file"),
])
def test_mistakes(args, message):
    out, err = gyre("run", OURO, "--prompt-ids", "1", *args, code=2)
    assert out == "" and message in err, err


def test_gates_need_a_gate():
    err = gyre("run", MODELS / "nanbeige-tiny", "--prompt-ids", "1", "--gates", code=2)[1]
    assert "--gates: this nanbeige model has no exit gate" in err
