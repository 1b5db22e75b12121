"""gyre serve under load: a thousand streams at once, thousands of clients that leave or do not read, pipelined mixes.

What good clients get is compared with gyre run, one request at a time, bit for bit. Counts and bounds come from formulas that stand
where they are asserted.
"""

import json
import random
import re
import resource
import struct
import threading
import time

import pytest

from crowd import Client, Crowd, replies, request
from program import GYRE, gyre, write_lines
from test_serve import C, DEMO, Server, eventually, frames, serve

N_STREAM = 1000
BLOCK_BYTES = 3 * 2 * 64 * 2 * 16  # of models/demo: layers x K and V x width x BF16 x tokens
LOOPS = 4


@pytest.fixture(autouse=True, scope="module")
def descriptors():
    """2,000 sockets here and in the server, which inherits the limit."""
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    if old[0] < 4096:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096 if old[1] == resource.RLIM_INFINITY else min(4096, old[1]), old[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, old)


def distinct(n, max_tokens):
    """Requests that differ in prompt, seed and rule; half are greedy."""
    rules = [{}, {"exit": "gate", "exit_threshold": 0.5, "min_loops": 1}, {"max_loops": 2}]
    return [{"prompt": f"{i:03d}", "max_tokens": max_tokens, "ignore_eos": True, "logprobs": 1, **rules[i % 3],
             **({"temperature": 0} if i % 2 else {"temperature": 1.5, "top_k": 60, "seed": 1000 + i})} for i in range(n)]


def bits(x):
    return struct.pack("f", x)


def alone(tmp_path, bodies):
    """What gyre run says to each, nothing beside it: (ids, loops, text, logprobs)."""
    path = write_lines(tmp_path / "alone.jsonl", bodies)
    out = [json.loads(x) for x in gyre("run", DEMO, "--json", "--input", path, "--max-seqs", 1)[0].splitlines()]
    assert [x["index"] for x in out] == list(range(len(bodies)))
    return [(x["token_ids"], x["loops"], x["text"], [bits(p["logprob"]) for p in x["logprobs"]]) for x in out]


def whole(choice):
    return (choice["token_ids"], choice["loops"], choice["text"], [bits(x) for x in choice["logprobs"]["token_logprobs"]])


def joined(body):
    """A stream's frames as one choice: one token a frame, then the end; each frame names its reply."""
    fs = frames(body)
    parts = [f["choices"][0] for f in fs]
    assert all(len(p["loops"]) == len(p["token_ids"]) == 1 and p["finish_reason"] is None for p in parts[:-1])
    assert parts[-1]["finish_reason"] == "length" and "token_ids" not in parts[-1]
    ids = {f["id"] for f in fs}
    assert len(ids) == 1
    return ids.pop(), (sum((p["token_ids"] for p in parts[:-1]), []), sum((p["loops"] for p in parts[:-1]), []),
                       "".join(p["text"] for p in parts), [bits(x) for p in parts[:-1] for x in p["logprobs"]["token_logprobs"]])


def ask(body, name, stream, last=True):
    body = {**body, "request_id": name, "return_token_ids": True, "stream": stream}
    return request(C, body, last, headers=f"x-request-id: {name}\r\n")


def answer(client, name, stream):
    (status, head, body), = replies(client.got)
    assert status == 200 and f"\r\nx-request-id: {name}" in head, head
    if not stream:
        reply = json.loads(body)
        assert reply["id"] == f"cmpl-{name}"
        return whole(reply["choices"][0])
    reply_id, got = joined(body)
    assert reply_id == f"cmpl-{name}"
    return got


def memory(s, key):
    """VmRSS or VmHWM, bytes."""
    with open(f"/proc/{s.p.pid}/status") as f:
        return int(re.search(rf"{key}:\s+(\d+) kB", f.read()).group(1)) << 10


def blocks(s):
    text = s.ask("GET", "/metrics")[2].decode()
    return {m[1]: int(m[2]) for m in re.finditer(r'^gyre:kv_blocks\{[^}]*owner="(\w+)"\} (\d+)$', text, re.M)}


def books_are_closed(s):
    """Nothing runs, waits or holds KV, and every block is somewhere."""
    eventually(lambda: s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting") == 0)
    own = blocks(s)
    total = int(re.search(r'num_gpu_blocks="(\d+)"', s.ask("GET", "/metrics")[2].decode()).group(1))
    assert own["requests"] == 0 and own["none"] + own["prefix_cache"] == total, (own, total)
    assert s.metric("vllm:kv_cache_usage_perc") == 0 and s.metric("gyre:requests_parked") == 0


def is_instrumented():
    """Sanitizers multiply memory."""
    with open(GYRE, "rb") as f:
        return b"__asan_init" in f.read()


def n_blocks(loops, n_prompt=3):
    """KV blocks of a sequence: on plane k are the prompt, at the depth of its first output, and the outputs but the last that ran more
    than k loops."""
    deep = [n_prompt * (loops[0] > k) + sum(x > k for x in loops[1:]) for k in range(LOOPS)]
    return sum(-(-n // 16) for n in deep)


# ---- a thousand streams ------------------------------------------------------------------------------------------------------


def test_thousand_streams(tmp_path):
    n_tokens, n_kind = 28, 200
    bodies = distinct(n_kind, n_tokens)
    want = alone(tmp_path, bodies)
    kv = sum(n_blocks(want[i % n_kind][1]) for i in range(N_STREAM)) * BLOCK_BYTES
    with serve(DEMO, "--max-seqs", N_STREAM, "--max-rows", N_STREAM, "--max-queue", N_STREAM, "--kv-bytes", kv + (1 << 20)) as s:
        s.post(C, {"prompt": "a", "max_tokens": 2})
        idle, peak = memory(s, "VmRSS"), []
        for again in range(2):
            clients = [Client(ask(bodies[i % n_kind], f"{again}-{i}", True)) for i in range(N_STREAM)]
            open_now = []
            with Crowd(s.port) as crowd:
                crowd.run(clients, 600, lambda: open_now.append(sum(1 for c in clients if c.got and not c.done)))
            assert max(open_now) > 0.8 * N_STREAM  # had begun and not ended
            for i, c in enumerate(clients):
                assert c.error is None and answer(c, f"{again}-{i}", True) == want[i % n_kind], i
            peak.append(memory(s, "VmHWM"))
        books_are_closed(s)
        assert s.metric("vllm:generation_tokens_total") == 2 * N_STREAM * n_tokens + 2
        # A stream that is read costs 24 KiB at most: connection 3, input and ring 8, request and reply 4, room for all its events 3,
        # its row of the model's workspace and of logits 6. 4 MiB are what depends on neither. The second thousand needs what the
        # first left, and what of the KV pool the first did not touch at the same time.
        if not is_instrumented():
            assert peak[0] - idle < kv + N_STREAM * (24 << 10) + (4 << 20), (idle, peak)
            assert peak[1] - peak[0] < 12 << 20, peak


# ---- clients that leave ------------------------------------------------------------------------------------------------------


class Logged(Server):
    """With an access log that is read while it is written: a full pipe would hold the server."""

    def __init__(self, *args):
        super().__init__(DEMO, "--access-log", "json", *args)
        self.out, self.p.stdout, self.log = self.p.stdout, open("/dev/null", "rb"), []
        self.reader = threading.Thread(target=lambda: self.log.extend(map(json.loads, self.out)))
        self.reader.start()

    def stop(self, code=0):
        super().stop(code)
        self.reader.join()
        self.out.close()


def leaving(rng, i):
    """A client that does not stay: streaming or not, with few or many choices, before, in or after its request."""
    stream = rng.random() < 0.6
    body = {"prompt": f"{i} leaves" + "x" * rng.randrange(60), "max_tokens": rng.choice([4, 16, 100]), "n": rng.choice([1, 1, 2, 5]),
            "ignore_eos": True, "temperature": 1, "seed": i}
    data = ask(body, f"bad-{i}", stream)
    leave = ("after", rng.choice([0, 0.001, 0.01, 0.1, 0.5]) * rng.random())
    if rng.random() < 0.05:
        data = data[:rng.randrange(1, len(data))]
    elif stream and rng.random() < 0.5:
        leave = ("bytes", rng.randrange(1, 3000))
    return Client(data, rng.random() * LOAD_S, leave, rng.choice(["close", "close", "reset", "half"]))


LOAD_S = 5  # over which they come
KV_BYTES = 32 << 20


def test_clients_that_leave(tmp_path):
    """2,000 that leave, 10 that do not read, 300 good ones among them."""
    n_kind, rng = 60, random.Random(4)
    bodies = distinct(n_kind, 24)
    want = alone(tmp_path, bodies)
    good = [Client(ask(bodies[i % n_kind], f"good-{i}", i % 2 == 0), rng.random() * LOAD_S) for i in range(300)]
    bad = [leaving(rng, i) for i in range(2000)]
    # 16 echoes of 200 KB each: more than the kernel takes for a client that does not read (2 MB here).
    fat = {"prompt": "deaf" * 100, "n": 16, "max_tokens": 50, "echo": True, "logprobs": 20, "ignore_eos": True}
    deaf = [Client(ask({**fat, "seed": i}, f"deaf-{i}", True), rng.random() * LOAD_S, deaf=True) for i in range(10)]
    n_open = []
    s = Logged("--max-seqs", 256, "--max-queue", 20000, "--kv-bytes", KV_BYTES)
    try:
        s.post(C, {"prompt": "a", "max_tokens": 2})
        idle, files = memory(s, "VmRSS"), s.metric("process_open_fds")
        with Crowd(s.port) as crowd:
            crowd.run(good + bad + deaf, 600, lambda: n_open.append(len(crowd.by_fd)))
            eventually(lambda: sum(x["request_id"].startswith("deaf") for x in s.log) == len(deaf), 60)
        peak = memory(s, "VmHWM")
        for i, c in enumerate(good):
            assert c.error is None and answer(c, f"good-{i}", i % 2 == 0) == want[i % n_kind], i
        books_are_closed(s)
        eventually(lambda: s.metric("process_open_fds") <= files)
        # Every choice that was ever begun ended, and each of them once.
        eventually(lambda: s.metric("vllm:request_params_n_sum") == s.metric("vllm:request_success_total"))
        # As above, and for one that does not read: ring 128, the events of its 16 choices with 20 alternatives each 512.
        if not is_instrumented():
            assert peak - idle < KV_BYTES + max(n_open) * (24 << 10) + len(deaf) * (640 << 10) + (4 << 20), (idle, peak, max(n_open))
        for i, body in enumerate(bodies[:4]):
            c = Client(ask(body, "after", False))
            with Crowd(s.port) as crowd:
                crowd.run([c])
            assert answer(c, "after", False) == want[i]
        s.stop()
    finally:
        s.p.kill()
    ends = {}
    for x in s.log:
        kind, _, number = x["request_id"].partition("-")
        ends.setdefault(kind, {}).setdefault((x["status"], x.get("error")), []).append(number)
    # One line for each request that came whole: none is missing, none is there twice.
    assert sorted(map(int, ends["good"].pop((200, None)))) == list(range(300)) and not ends["good"]
    assert sorted(map(int, ends["deaf"].pop((499, "slow_reader")))) == list(range(10)) and not ends["deaf"]
    gone = sum(ends["bad"].values(), [])
    assert 1500 < len(gone) == len(set(gone)) and set(ends["bad"]) == {(200, None), (499, "client_gone")}


def snapshot(s):
    """Of one moment: steps, running, waiting, blocks of requests."""
    text = s.ask("GET", "/metrics")[2].decode()
    names = ["gyre:steps_total", "vllm:num_requests_running", "vllm:num_requests_waiting", 'gyre:kv_blocks\\{[^}]*owner="requests"']
    return [int(float(re.search(rf"^{n}[^ ]* (\S+)$", text, re.M)[1])) for n in names]


def test_disconnect_frees_in_two_steps():
    """Beside 192 long outputs a client leaves, streaming, waiting for a whole reply, or in the queue. The step that runs when it leaves
    ends as it began; the next one has neither it nor its blocks."""
    # Slower kernels: steps long enough to be counted from outside.
    args = ["--max-seqs", 193, "--max-rows", 512, "--prefix-cache", "off", "--cpu-mask", "avx2"]
    with serve(DEMO, *args) as s:
        load = [s.raw_post(C, {"prompt": "load", "n": 64, "max_tokens": 250, "ignore_eos": True}) for _ in range(3)]
        eventually(lambda: snapshot(s)[1] == 192)
        steps, freed = [], []
        for i in range(12):
            kind = ["stream", "whole", "queued"][i % 3]
            body = {"prompt": "x" * 400, "max_tokens": 100, "ignore_eos": True, "stream": kind == "stream"}
            socks = [s.raw_post(C, body) for _ in range(2 if kind == "queued" else 1)]
            eventually(lambda: snapshot(s)[1:3] == [193, len(socks) - 1], 30)
            joined = snapshot(s)[0]
            eventually(lambda: snapshot(s)[0] >= joined + 7)  # its prompt is computed: 4 chunks of 128
            before, after = snapshot(s), []
            socks.pop().close()
            end = time.monotonic() + 30
            while not after or sum(after[-1][1:3]) >= sum(before[1:3]):  # without a nap, which lasts many steps
                assert time.monotonic() < end
                after.append(snapshot(s))
            steps.append(after[-1][0] - before[0])
            if kind != "queued":
                freed.append(before[3] - after[-1][3])
            for sock in socks:
                sock.close()
            eventually(lambda: snapshot(s)[1:3] == [192, 0])
        # Two at best; a look from outside takes longer than a step of this model, so the others show how long looks took.
        assert sorted(steps)[0] <= 3 and sorted(steps)[len(steps) // 2] <= 6, steps
        # 400 tokens; others can only hide it: 192 of them take theirs each 16 steps, so a quarter of the looks must have seen it.
        assert sum(n >= 25 * LOOPS for n in freed) * 4 >= len(freed), freed
        for sock in load:
            sock.close()
        books_are_closed(s)


# ---- pipelined ---------------------------------------------------------------------------------------------------------------


def test_pipelined_mixes(tmp_path):
    """60 connections that are kept, 25 requests on each, written ahead in pieces of any size: each answer in its place, whatever the
    others were: streams, whole replies, small routes, mistakes, chunked bodies."""
    n_kind, n_each, rng = 30, 25, random.Random(6)
    bodies = distinct(n_kind, 12)
    want = alone(tmp_path, bodies)

    def one(name, last):
        kind = rng.choice(["stream", "whole", "chunked", "health", "missing", "method", "bad", "tokenize"])
        i = rng.randrange(n_kind)
        head = f"x-request-id: {name}\r\n"
        if kind in ("stream", "whole"):
            return kind, i, ask(bodies[i], name, kind == "stream", last)
        if kind == "chunked":
            body = {**bodies[i], "request_id": name, "return_token_ids": True}
            return "whole", i, request(C, body, last, headers=head, chunks=rng.randrange(1, 40))
        if kind == "bad":
            return kind, i, request(C, rng.choice([b"{", b"[]", b'{"prompt":5}', b'{"prompt":"a","max_tokens":-1}']), last, headers=head)
        if kind == "tokenize":
            return kind, i, request("/tokenize", {"prompt": f"{i:03d}"}, last, headers=head)
        path, method = {"health": ("/health", "GET"), "missing": ("/nowhere", "GET"), "method": (C, "GET")}[kind]
        return kind, i, request(path, None, last, method, head)

    conns = []
    for k in range(60):
        asked = [one(f"{k}-{j}", j == n_each - 1) for j in range(n_each)]
        conns.append((asked, Client(b"".join(a[2] for a in asked), rng.random(), piece=rng.choice([7, 100, 1500, 1 << 20]))))
    with serve(DEMO, "--max-seqs", 32) as s:
        with Crowd(s.port) as crowd:
            crowd.run([c for _, c in conns], 600)
        for k, (asked, c) in enumerate(conns):
            got = replies(c.got)
            assert c.error is None and len(got) == n_each
            for j, ((kind, i, _), (status, head, body)) in enumerate(zip(asked, got)):
                assert f"\r\nx-request-id: {k}-{j}" in head
                assert status == {"bad": 400, "missing": 404, "method": 405}.get(kind, 200), (kind, head, body)
                if kind == "stream":
                    assert joined(body) == (f"cmpl-{k}-{j}", want[i])
                elif kind == "whole":
                    reply = json.loads(body)
                    assert reply["id"] == f"cmpl-{k}-{j}" and whole(reply["choices"][0]) == want[i]
                elif kind == "tokenize":
                    assert json.loads(body)["count"] == 3
        books_are_closed(s)
