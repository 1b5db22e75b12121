"""Prefill and decode in processes of their own: the same answers as one engine, whatever dies.

Every comparison is with the same command without workers. Nothing of a worker may be left behind, however it ended.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from program import FAMILIES, GYRE, MODELS, OURO, gyre, write_lines
from test_serve import C, DEMO, Server

P1D1 = ("--prefill", 1, "--decode", 1)
LAYOUTS = {"1P1D": P1D1, "2P2D": ("--prefill", 2, "--decode", 2), "1P3D": ("--prefill", 1, "--decode", 3), "hybrid": ("--hybrid", 2),
           "mixed": ("--prefill", 1, "--hybrid", 1)}


def children(pid):
    """Processes that any thread of pid has started and that are no zombies."""
    out = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            out += [int(p) for p in (task / "children").read_text().split()]
        except OSError:
            pass
    return [p for p in out if state(p) not in (None, "Z")]


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return None


def role(pid):
    """"" of a child that has not begun to be a worker."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return ""
    return words[words.index(b"--role") + 1].decode() if b"--role" in words else ""


def unused():
    """System V's segments that nobody uses: id and bytes of memory."""
    rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    shmid, cpid, nattch, rss, swap = (rows[0].index(k) for k in ("shmid", "cpid", "nattch", "rss", "swap"))
    return [(r[shmid], int(r[rss]) + int(r[swap])) for r in rows[1:] if r[nattch] == "0" and state(r[cpid]) in (None, "Z")]


def segments():
    """Shared memory that nobody uses, System V's and POSIX's: what other programs work with meanwhile does not count."""
    left = {shmid for shmid, _ in unused()}
    files = set(os.listdir("/dev/shm"))
    for maps in Path("/proc").glob("[0-9]*/maps") if files else ():
        try:
            files -= set(re.findall(r"/dev/shm/(\S+)", maps.read_text()))
        except OSError:
            pass
    return left | files


def wait_until(what, seconds=60):
    """What only a program that hangs keeps waiting so long."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = segments()
    yield
    wait_until(lambda: segments() <= before)


@pytest.fixture
def server():
    open_ones = []

    def start(model, *args):
        open_ones.append(Pd(model, *args))
        return open_ones[-1]

    yield start
    for s in open_ones:
        workers = children(s.p.pid)
        if s.p.poll() is None:
            s.p.send_signal(signal.SIGTERM)
            s.p.wait(timeout=60)
        s.p.stdout.close()
        s.p.stderr.close()
        wait_until(lambda w=workers: not any(state(p) not in (None, "Z") for p in w))


def timeless(line):
    answer = json.loads(line)
    del answer["timing"]
    return answer


# ---- gyre run ----------------------------------------------------------------------------------------------------------------


def mixed(family):
    rnd = random.Random(5)
    ids = lambda n: [rnd.randrange(300) for _ in range(n)]
    lines = [{"prompt_ids": ids(n), "max_tokens": 9} for n in (1, 2, 15, 16, 17, 40)]
    lines += [{"prompt_ids": ids(70), "max_tokens": 12, "temperature": 0.9, "seed": 11, "n": 3, "logprobs": 2},
              {"prompt_ids": ids(33), "max_tokens": 14, "temperature": 1.2, "top_p": 0.8, "seed": 3, "repetition_penalty": 1.3},
              {"prompt_ids": ids(8), "max_tokens": 6, "prompt_logprobs": 1},  # cannot cross
              {"prompt_ids": ids(20), "max_tokens": 8, "logit_bias": {"7": 100}},
              {"prompt_ids": ids(21), "max_tokens": 12, "stop_ids": [5, 6, 7, 8], "min_tokens": 3},
              {"prompt_ids": ids(18), "max_tokens": 10, "exit": "kl", "exit_threshold": 0.01},
              {"prompt_ids": ids(18), "max_tokens": 10, "exit": "latent", "exit_threshold": 0.3, "cache_salt": "a"}]
    if family == "ouro":
        lines += [{"prompt_ids": ids(50), "max_tokens": 10, "exit": "gate", "exit_threshold": 0.5, "gates": True},
                  {"prompt_ids": ids(30), "max_tokens": 6, "exit": "select", "exit_threshold": 0.5}]
    if family == "huginn":
        lines += [{"prompt_ids": ids(35), "max_tokens": 6, "initial_state": "noise", "latent_seed": 4}]
    same = ids(48)
    return lines + [{"prompt_ids": same + ids(k), "max_tokens": 5} for k in (1, 2, 3)]


def run_lines(model, path, *args):
    return [timeless(line) for line in gyre("run", model, "--input", path, "--json", *args)[0].splitlines()]


@pytest.mark.parametrize("family", FAMILIES)
def test_run_says_the_same(family, tmp_path):
    model, path = MODELS / f"{family}-tiny", write_lines(tmp_path / "in.jsonl", mixed(family))
    want = run_lines(model, path)
    for name in LAYOUTS if family == "ouro" else ["1P1D", "2P2D"]:
        assert run_lines(model, path, *LAYOUTS[name]) == want, name


@pytest.mark.parametrize("options", [("--kv-layout", "shared"), ("--max-rows", 8, "--max-seqs", 2), ("--dtype", "bf16"),
                                     ("--transfer-chunk-bytes", 2000, "--transfer-inflight-bytes", 5000, "--transfer-descriptors", 2),
                                     ("--local-prefill-below", 20), ("--local-prefill-queue", 20), ("--max-queue", 3)])
def test_run_with_options(options, tmp_path):
    path = write_lines(tmp_path / "in.jsonl", mixed("ouro"))
    transfer = "transfer" in options[0] or "local" in options[0]
    assert run_lines(OURO, path, *P1D1, *options) == run_lines(OURO, path, *(() if transfer else options))


STAGES = ["admitted", "d_reserved", "prefill_started", "prefill_compute_completed", "prefill_submitted", "d_activated",
          "first_token", "finished"]


def test_what_it_took_is_told(tmp_path, server):
    """Eight times in order in each line of gyre run, with what moved; the server counts the same and ends with empty books."""
    path = write_lines(tmp_path / "in.jsonl", [{"prompt_ids": list(range(1, n)), "max_tokens": k} for n, k in ((2, 1), (40, 1), (120, 20))])
    for line in gyre("run", OURO, "--input", path, "--json", *P1D1)[0].splitlines():
        t = json.loads(line)["timing"]
        times = [t["pd"][k] for k in STAGES]
        assert None not in times and times == sorted(times) and 0 <= times[0], t
        assert times[-1] * 1000 == pytest.approx(t["total_ms"], abs=0.002)
        assert t["pd"]["bytes"] > 0 and 0 < t["pd"]["transfers"] <= t["pd"]["descriptors"] and t["pd"]["tries"] == 1
        assert (t["pd"]["prefill_worker"], t["pd"]["decode_worker"]) == (0, 1)
    assert "pd" not in json.loads(gyre("run", OURO, "--prompt-ids", "1,2", "--json")[0])["timing"]
    s = server(OURO, *P1D1)
    for n in (5, 100):
        assert s.ask("POST", "/v1/completions", {"prompt": list(range(1, n)), "max_tokens": 12, "ignore_eos": True})[0] == 200
    get = lambda name, label="": float(re.search(rf"^{name}{{[^}}]*{label}[^}}]*}} (\S+)$", s.ask("GET", "/metrics")[2].decode(), re.M).group(1))
    wait_until(lambda: json.loads(s.ask("GET", "/stats")[2]) == {"requests": 0, "used_blocks": 0})
    for stage in STAGES:
        assert get("gyre:pd_stage_seconds_count", f'stage="{stage}"') == 2
    assert get("gyre:pd_stage_seconds_sum", 'stage="admitted"') <= get("gyre:pd_stage_seconds_sum", 'stage="finished"')
    assert get("gyre:pd_prompt_bytes_count") == 2 >= get("gyre:pd_wire_seconds_count") == get("gyre:pd_tail_seconds_count")
    assert get("gyre:pd_info", 'lane="[^"]') == 1
    wait_until(lambda: get("gyre:depth_rows_total", 'depth="0",kind="decode"') == 22 and get("gyre:kv_blocks", 'owner="requests"') == 0)
    assert get("gyre:passes_total") > 0 and get("gyre:depth_rows_total", 'depth="3",kind="prompt"') > 0
    assert get("gyre:pd_transfer_inflight_bytes") == get("gyre:pd_used_blocks") == get("gyre:waiting_tokens") == 0


def test_run_with_prefix_cache(tmp_path):
    """What was computed before differs from process to process, and so does how much of a prompt was cached: nothing else."""
    path = write_lines(tmp_path / "in.jsonl", mixed("ouro"))

    def lines(*args):
        out = run_lines(OURO, path, *args)
        for line in out:
            line.pop("cached_tokens", None)
        return out

    assert lines("--prefix-cache", "on", *LAYOUTS["2P2D"]) == lines()


def test_run_with_grammars(tmp_path):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}}, "required": ["a", "b"]}
    lines = [{"prompt": "once", "max_tokens": 40, "json_schema": schema}, {"prompt": "upon", "max_tokens": 30, "regex": "(ab|c)+d{3}"},
             {"prompt": "a", "max_tokens": 30, "json_object": True, "temperature": 0.8, "seed": 2},
             {"prompt": "time", "max_tokens": 20, "grammar": 'root ::= "x" root | "end"'}]
    path = write_lines(tmp_path / "in.jsonl", lines)
    want = run_lines(DEMO, path)
    assert run_lines(DEMO, path, *P1D1) == want
    assert re.fullmatch("(ab|c)+d{3}|(ab|c)+d*", want[1]["text"])


@pytest.mark.parametrize("family", FAMILIES)
def test_run_with_deaths(family, tmp_path):
    """Two deaths cannot use up the three tries of any request: whatever they hit, the whole output is the same."""
    lines = [{**x, "n": x.get("n", 2)} for x in mixed(family) * (2 if family == "huginn" else 4)]
    model, path = MODELS / f"{family}-tiny", write_lines(tmp_path / "in.jsonl", lines)
    want, rnd = run_lines(model, path), random.Random(family)
    command = [GYRE, "run", str(model), "--input", str(path), "--json", *map(str, LAYOUTS["2P2D"])]
    n_hit = 0
    for _ in range(20):
        p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
        first = p.stdout.readline()
        for kind in ("prefill", "decode"):
            time.sleep(rnd.random() * 0.05)
            with contextlib.suppress(StopIteration, ProcessLookupError):  # it was ending already
                os.kill(next(c for c in children(p.pid) if role(c) == kind), signal.SIGKILL)
        out, err = p.communicate(timeout=120)
        n = err.count(b"it was killed by signal 9")
        assert p.returncode == 0 and n <= 2, err
        assert [timeless(x) for x in (first + out).splitlines()] == want
        n_hit += n > 0
        if n_hit == 2:
            return
    pytest.fail("runs end before they are hit")


def test_run_streams_and_stops(tmp_path):
    args = ("run", DEMO, "Once upon a time", "--max-tokens", 60)
    want = gyre(*args)[0]
    assert gyre(*args, *P1D1)[0] == want
    piece = want[len(want) // 2:][:3]
    short = gyre(*args, "--stop", piece)[0]
    assert len(short) < len(want) and gyre(*args, "--stop", piece, *P1D1)[0] == short


def test_environment_changes_nothing(tmp_path):
    """What it says of transports is for other programs. Not even a word more is printed."""
    path = write_lines(tmp_path / "in.jsonl", mixed("ouro"))
    odd = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "none_such", "UCX_PROTO_ENABLE": "n", "UCX_RNDV_THRESH": "0", "UCX_ZCOPY_THRESH": "0",
           "UCX_SOCKADDR_TLS_PRIORITY": "none", "UCX_MM_SEG_SIZE": "1", "UCX_ERROR_SIGNALS": "", "UCX_LOG_LEVEL": "trace",
           "UCX_STATS_DEST": "stdout", "UCX_HANDLE_ERRORS": "bt", "GYRE_PREFILL": "3", "GYRE_THREADS": "0", "GYRE_TRANSFER": "tcp",
           "GYRE_LOG": "trace", "OMP_NUM_THREADS": "1", "TMPDIR": "/nowhere"}
    clean = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LD_LIBRARY_PATH")}
    want = gyre("run", OURO, "--input", path, "--json", *P1D1, env=clean)
    got = gyre("run", OURO, "--input", path, "--json", *P1D1, env={**clean, **odd})
    assert [timeless(x) for x in got[0].splitlines()] == [timeless(x) for x in want[0].splitlines()] and got[1] == want[1]
    text = gyre("inspect", "--transport", "--transport-min-share", 0, env={**clean, **odd})[0]
    assert re.findall(r"(chosen|\S+_lanes) +(.*)", text) == [("chosen", "sysv"), ("inside_host_lanes", "sysv"),
                                                            ("loopback_network_lanes", "tcp")]


def test_environment_of_workers(server, monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("SECRET", "x")
    s = server(OURO, *P1D1)
    for pid in children(s.p.pid):
        names = {x.split(b"=")[0].decode() for x in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if x}
        assert names <= {"PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "UCX_HANDLE_ERRORS", "UCX_LOG_LEVEL"}, names
        assert "/SYSV" in Path(f"/proc/{pid}/maps").read_text()  # not what UCX_TLS says


def test_run_cannot_start(tmp_path):
    """A worker's own words come out, at once."""
    broken = tmp_path / "broken"
    broken.mkdir()
    for f in Path(OURO).iterdir():
        (broken / f.name).write_bytes(f.read_bytes())
    data = (broken / "model.safetensors").read_bytes()
    name = re.search(rb'"([^"]*embed[^"]*)":', data[:20000]).group(1)
    (broken / "model.safetensors").write_bytes(data.replace(b'"' + name + b'"', b'"' + b"x" * len(name) + b'"', 1))
    err = gyre("run", broken, "--prompt-ids", "1,2", *P1D1, code=1)[1]
    assert re.search(r"worker [01] \((prefill|decode)\) did not start: .*" + name.decode(), err), err


# ---- gyre serve ----------------------------------------------------------------------------------------------------------------


def test_serve_with_openai(server, tmp_path):
    import openai

    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    one, two = server(DEMO, "--chat-template", template), server(DEMO, "--chat-template", template, *P1D1)
    ask = {"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 24, "temperature": 0}
    replies = []
    for s in (one, two):
        c = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none")
        whole = c.chat.completions.create(**ask)
        pieces = [p.choices[0].delta.content or "" for p in c.chat.completions.create(**ask, stream=True) if p.choices]
        drawn = c.chat.completions.create(**{**ask, "temperature": 0.9, "seed": 5, "n": 2})
        prompt = c.completions.create(model="demo", prompt="Once", max_tokens=9, logprobs=2, temperature=0)
        assert "".join(pieces) == whole.choices[0].message.content
        replies.append([whole.choices[0].message.content, [x.message.content for x in drawn.choices], prompt.choices[0].text,
                        prompt.choices[0].logprobs, whole.usage])
    assert replies[0] == replies[1]
    assert sorted(role(p) for p in children(two.p.pid)) == ["decode", "prefill"]


def test_serve_cancels(server):
    """Clients that go away in every phase; the places that they had are given back."""
    s = server(OURO, *P1D1, "--max-seqs", 2)
    for i in range(30):
        s.cut(C, {"prompt": [1 + i] * 200, "max_tokens": 100, "ignore_eos": True, "stream": True}, 0.001 * (i % 10))
    want = json.loads(gyre("run", OURO, "--prompt-ids", "5,6,7", "--max-tokens", 6, "--json")[0])["token_ids"]
    assert s.ids([5, 6, 7], 6) == want


class Pd(Server):
    """With answers as ids."""

    def ids(self, prompt, n):
        body = {"prompt": prompt, "max_tokens": n, "ignore_eos": True, "return_token_ids": True, "temperature": 0}
        return self.post(C, body)["choices"][0]["token_ids"]

    def n_ready(self):
        return int(re.search(r'gyre:pd_workers\{[^}]*state="ready"\} (\d+)', self.ask("GET", "/metrics")[2].decode()).group(1))

    def cut(self, path, body, seconds):
        s = self.raw_post(path, body)
        time.sleep(seconds)
        s.close()

    def ids_or_error(self, prompt, n):
        status, _, data = self.ask("POST", C, {"prompt": prompt, "max_tokens": n, "ignore_eos": True, "return_token_ids": True,
                                               "temperature": 0})
        return json.loads(data)["choices"][0]["token_ids"] if status == 200 else data.decode()

    def try_ids(self, prompt, n):
        try:
            return self.ids(prompt, n)
        except Exception:
            return None


class Load:
    """Clients that ask until they are told to stop; every answer must be the right one, or say that it was lost."""

    def __init__(self, s, n=6):
        self.s, self.stop, self.n_good, self.n_lost, self.wrong = s, threading.Event(), 0, 0, []
        rnd = random.Random(1)
        self.asks = [([rnd.randrange(300) for _ in range(rnd.choice((3, 20, 90, 200)))], rnd.choice((4, 30, 90))) for _ in range(12)]
        self.want = {i: s.ids(*a) for i, a in enumerate(self.asks)}
        self.pool = ThreadPoolExecutor(n)
        self.work = [self.pool.submit(self.run, k) for k in range(n)]

    def run(self, k):
        rnd = random.Random(k)
        while not self.stop.is_set():
            i = rnd.randrange(len(self.asks))
            got = self.s.ids_or_error(*self.asks[i])
            if got == self.want[i]:
                self.n_good += 1
            elif isinstance(got, str) and "a worker that held this request was lost; try again" in got:
                self.n_lost += 1  # after three tries
            else:
                self.wrong.append((i, got))

    def end(self):
        self.stop.set()
        for w in self.work:
            w.result(timeout=60)
        self.pool.shutdown()
        assert not self.wrong, self.wrong[:2]
        return self.n_good


@pytest.mark.parametrize("layout", ["1P1D", "2P2D", "hybrid"])
def test_kill_under_load(server, layout):
    """kill -9 at random points: each answer is still the right one, the dead are replaced."""
    rnd, killed = random.Random(layout), {"prefill": 0, "decode": 0, "both": 0}
    s = server(OURO, *LAYOUTS[layout])
    n, load = len(children(s.p.pid)), Load(s)
    for _ in range(8):
        time.sleep(rnd.random() * 0.2)
        wait_until(lambda: s.n_ready() == n)
        victim = rnd.choice(children(s.p.pid))
        if killed[role(victim)] == 4:  # a worker that dies five times in a minute stays down
            victim = next(p for p in children(s.p.pid) if role(p) != role(victim)) if layout != "hybrid" else None
        if victim is None:
            break
        killed[role(victim)] += 1
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: s.metric("gyre:pd_worker_deaths_total") == sum(killed.values()))  # before it, n_ready is as it was
    good = load.n_good
    wait_until(lambda: load.n_good > good + 20)
    load.end()
    wait_until(lambda: s.n_ready() == n)
    assert sum(killed.values()) >= 4 and load.n_lost < 10


def test_another_checkpoint(server, tmp_path):
    """The files change while they are served. A worker that starts after that would compute something else: it is refused, with a
    sentence, and the others serve on."""
    model = tmp_path / "model"
    model.mkdir()
    for f in Path(OURO).iterdir():
        (model / f.name).write_bytes(f.read_bytes())
    s = server(model, "--prefill", 1, "--decode", 2)
    want = s.ids([3, 4, 5], 20)
    data = bytearray((model / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "new").write_bytes(data)
    os.replace(tmp_path / "new", model / "model.safetensors")  # the old one lives as long as somebody maps it
    victim = next(p for p in children(s.p.pid) if role(p) == "decode")
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: s.metric("gyre:pd_worker_deaths_total") >= 3)
    assert all(s.ids([3, 4, 5], 20) == want for _ in range(5))
    assert s.n_ready() == 2
    line = s.until("fingerprints")
    assert re.search(r'a worker died" worker=[12] role=decode .*its checkpoint or options differ from the others', line), line


def test_stopped_worker(server):
    """SIGSTOP: others go on; what the worker was decoding goes on when it does."""
    s = server(OURO, "--prefill", 1, "--decode", 2)
    want, long = s.ids([3, 4, 5], 40), s.ids([3, 4, 5], 400)
    stopped = [p for p in children(s.p.pid) if role(p) == "decode"][0]
    with ThreadPoolExecutor(8) as pool:
        held = [pool.submit(s.ids, [3, 4, 5], 400) for _ in range(6)]
        time.sleep(0.05)
        os.kill(stopped, signal.SIGSTOP)
        assert all(w.result(timeout=60) == want for w in [pool.submit(s.ids, [3, 4, 5], 40) for _ in range(6)])
        os.kill(stopped, signal.SIGCONT)
        assert all(w.result(timeout=60) == long for w in held)
    assert len(children(s.p.pid)) == 3


def test_a_stopped_decoder_holds_up_nobody(server):
    """It had nothing when it was stopped. What is reserved there meanwhile is moved after two seconds of silence: all ends without it."""
    s = server(OURO, "--prefill", 1, "--decode", 2)
    want = s.ids([3, 4, 5], 20)
    stopped = [p for p in children(s.p.pid) if role(p) == "decode"][1]
    os.kill(stopped, signal.SIGSTOP)
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: s.ids([3, 4, 5], 20), range(60), timeout=100))
    assert all(x == want for x in got) and state(stopped) == "T"
    assert s.metric("gyre:pd_worker_deaths_total") == s.metric("gyre:pd_retries_total") == 0
    os.kill(stopped, signal.SIGCONT)
    with ThreadPoolExecutor(8) as pool:
        assert all(x == want for x in pool.map(lambda _: s.ids([3, 4, 5], 20), range(16), timeout=100))
    wait_until(lambda: s.metric("vllm:num_requests_running") == 0)


def test_a_stopped_prefiller(server):
    """What it holds ends at its deadline, with an error that says so; all others go by the other one."""
    s = server(OURO, "--prefill", 2, "--decode", 1, "--request-timeout", 4)
    want = s.ids([3, 4, 5], 20)
    stopped = [p for p in children(s.p.pid) if role(p) == "prefill"][0]
    os.kill(stopped, signal.SIGSTOP)
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda _: s.ids_or_error([3, 4, 5], 20), range(60), timeout=100))
    late = [x for x in got if x != want]
    assert 1 <= len(late) <= 8 and all("not done within 4 s" in x for x in late), late
    os.kill(stopped, signal.SIGCONT)
    with ThreadPoolExecutor(8) as pool:
        assert all(x == want for x in pool.map(lambda _: s.ids([3, 4, 5], 20), range(16), timeout=100))
    wait_until(lambda: s.metric("vllm:num_requests_running") == 0)
    assert s.metric("gyre:pd_worker_deaths_total") == 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_parent_ends(server, how):
    s = server(OURO, *P1D1)
    workers = children(s.p.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGSTOP) if how == signal.SIGKILL else None
    load = [threading.Thread(target=lambda: s.try_ids([1] * 100, 300)) for _ in range(3)]
    for t in load:
        t.start()
    time.sleep(0.1)
    s.p.send_signal(how)
    s.p.wait(timeout=60)
    wait_until(lambda: all(state(p) in (None, "Z") for p in workers))
    for t in load:
        t.join()


def test_killed_while_it_starts():
    """At any moment of its first tenths of a second. Nobody is there to tidy up: there must be nothing to."""
    before, rnd, n_worker, longest = set(os.listdir("/dev/shm")), random.Random(2), 0, 0.15
    for i in range(41):
        begun = time.monotonic()
        p = subprocess.Popen([GYRE, "run", OURO, "--prompt-ids", "1,2,3", "--max-tokens", "400", "--ignore-eos", *map(str, P1D1)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if i == 0:  # how long it takes here until both workers are there
            wait_until(lambda: len(children(p.pid)) == 2 or p.poll() is not None)
            longest = max(longest, 5 * (time.monotonic() - begun))
        else:
            time.sleep(rnd.random() * longest)
        workers = children(p.pid)
        p.kill()
        p.wait()
        n_worker += len(workers)
        wait_until(lambda w=workers: all(state(x) in (None, "Z") for x in w))
        for shmid, size in unused():  # an id exists for microseconds before it is marked to go with its process; nothing was written
            assert size == 0, size
            subprocess.run(["ipcrm", "-m", shmid], check=True)
    assert n_worker > 20
    wait_until(lambda: {f for f in os.listdir("/dev/shm") if f in segments()} <= before)


def test_interrupted_run():
    """Ctrl-C goes to the terminal's foreground group: workers are not in it, and end with the program."""
    p = subprocess.Popen([GYRE, "run", OURO, "--prompt-ids", "1,2,3", "--max-tokens", "400", "--ignore-eos", "--n", "64", *map(str, P1D1)],
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    wait_until(lambda: len(children(p.pid)) == 2)
    workers = children(p.pid)
    wait_until(lambda: all(map(role, workers)))  # a child that is not yet one has its fork behind it, and perhaps no more: unit.spawn
    assert all(os.getpgid(w) == w for w in workers)
    os.killpg(p.pid, signal.SIGINT)
    p.wait(timeout=60)
    p.stderr.close()
    wait_until(lambda: all(state(w) in (None, "Z") for w in workers))
