"""Clients that others wrote, unchanged, against gyre serve: four load generators and harnesses from PyPI, openai's package,
curl, h2load, wrk and ab. Then what clients that do not install here (vllm's bench and guidellm since 0.4: torch and CUDA;
llmperf: ray) send and read, after their sources.

The PyPI programs start in the background when the first test of this file runs: they use one core while the other tests
use the other. They live in .venv/load, because their pins exclude ours (./do deps makes it).
"""

import asyncio
import json
import math
import os
import re
import socket
import subprocess
import threading
import time
import typing
from concurrent.futures import ThreadPoolExecutor

import openai
import pydantic
import pytest

from program import LASTING, ROOT, gyre, roomy
from test_serve import C, CHAT, DEMO, MESSAGES, TEMPLATE, eventually, frames, serve

LOAD = ROOT / ".venv/load"
PACKAGES = LOAD / "lib"
QUESTIONS = [{"question": "The sky is", "choices": [" blue", " made of cheese", " a fish"], "gold": 0},
             {"question": "Two and two are", "choices": [" five", " four"], "gold": 1},
             {"question": "Once there was a", "choices": [" king", " quark", "\n"], "gold": 0}]
TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
target_delimiter: ""
{rest}
metric_list:
  - metric: {metric}
    aggregation: mean
    higher_is_better: true
"""


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("clients") / "t.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module", autouse=True)
def tools(template, tmp_path_factory):
    """name -> a future of the folder with what the program wrote. The server's log must know no failed request."""
    assert LOAD.exists(), f"{LOAD} is missing: run ./do deps"
    with serve(DEMO, "--chat-template", template, "--access-log", "json") as s, ThreadPoolExecutor(2) as pool:
        log = []
        reader = threading.Thread(target=lambda: log.extend(s.p.stdout))
        reader.start()
        jobs = {name: pool.submit(run_tool, make, s, tmp_path_factory.mktemp(name)) for name, make in TOOLS.items()}
        yield jobs
        for j in jobs.values():
            j.exception()
        eventually(lambda: s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting") == 0)
        s.p.terminate()
        reader.join(60)
        s.p.stdout = open(os.devnull, "rb")  # all of it is in the log
        bad = [x for x in map(json.loads, log) if x["status"] != 200 and x["method"] == "POST"]
        assert len(log) > 100 and not bad, bad


def run_tool(make, s, folder):
    args = make(f"http://127.0.0.1:{s.port}", folder)
    env = {"PATH": f"{LOAD}/bin:{os.environ['PATH']}", "HOME": str(folder), "HF_HOME": str(folder), "HF_HUB_OFFLINE": "1",
           "OPENAI_API_KEY": "none", "TMPDIR": "/tmp"}
    p = subprocess.run([LOAD / "bin/python", *map(str, args)], cwd=folder, env=env, capture_output=True, timeout=600, text=True)
    assert p.returncode == 0, (p.stdout + p.stderr)[-4000:]
    return folder


def script(name):
    return LOAD / "bin" / name


def guidellm(url, folder):
    return [script("guidellm"), "benchmark", "run", "--target", url, "--rate-type", "concurrent", "--rate", 4, "--max-requests", 20,
            "--processor", DEMO, "--data", "prompt_tokens=40,output_tokens=12", "--output-path", folder / "out.json",
            "--disable-progress"]


def aiperf(kind):
    return lambda url, folder: [script("aiperf"), "profile", "--model", "demo", "--tokenizer", DEMO, "--url", url, "--endpoint-type", kind,
                                "--streaming", "--concurrency", 4, "--request-count", 20, "--isl", 40, "--osl", 12,
                                "--num-dataset-entries", 10, "--random-seed", 1, "--extra-inputs", "ignore_eos:true", "--extra-inputs",
                                "temperature:0", "--ui", "none", "--artifact-dir", folder]


def sglang(backend):
    """The file itself is run: the package around it would want torch."""
    return lambda url, folder: [next(PACKAGES.glob("*/site-packages/sglang/bench_serving.py")), "--backend", backend, "--base-url", url,
                                "--model", "demo", "--tokenizer", DEMO, "--dataset-name", "random-ids", "--random-input-len", 40,
                                "--random-output-len", 16, "--random-range-ratio", 0.5, "--num-prompts", 24, "--disable-tqdm",
                                "--output-file", folder / "out.jsonl", "--output-details"]


def lm_eval(url, folder):
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(q) + "\n" for q in QUESTIONS))
    (folder / "mc.yaml").write_text(TASK.format(name="mc", data=data, kind="multiple_choice", metric="acc",
                                                rest="doc_to_choice: choices\ndoc_to_target: gold"))
    (folder / "gen.yaml").write_text(TASK.format(name="gen", data=data, kind="generate_until", metric="exact_match", rest=(
        'doc_to_target: "{{choices[gold]}}"\ngeneration_kwargs:\n  until: ["\\n"]\n  max_gen_toks: 8')))
    model = f"model=demo,base_url={url}{C},tokenizer={DEMO},tokenizer_backend=huggingface,num_concurrent=2,max_retries=1"
    return ["-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model, "--batch_size", 4, "--include_path", folder,
            "--tasks", "mc,gen", "--output_path", folder / "out", "--log_samples"]


TOOLS = {"lm_eval": lm_eval, "aiperf_completions": aiperf("completions"), "guidellm": guidellm, "aiperf_chat": aiperf("chat"),
         "sglang": sglang("vllm"), "sglang_chat": sglang("vllm-chat")}


# ---- load generators that are not ours ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(template):
    with serve(DEMO, "--chat-template", template, "--api-key", "k") as s:
        s.auth = {"Authorization": "Bearer k", "Content-Type": "application/json"}
        yield s
        metrics = s.ask("GET", "/metrics", headers=s.auth)[2].decode()
        assert re.search(r"^vllm:num_requests_running\{.*\} 0$", metrics, re.M)


# ---- curl, h2load, wrk, ab -----------------------------------------------------------------------------------------------------


def run(*args, stdin=None, code=0):
    p = subprocess.run([*map(str, args)], input=stdin, capture_output=True, timeout=120)
    assert p.returncode == code, (args, p.stdout[-2000:], p.stderr[-2000:])
    return p.stdout.decode()


@pytest.fixture(scope="module")
def body(tmp_path_factory):
    path = tmp_path_factory.mktemp("body") / "body.json"
    path.write_text(json.dumps({"prompt": "Once", "max_tokens": 4, "temperature": 0, "ignore_eos": True}))
    return path


def test_curl(server, tmp_path):
    """A body of 8 KiB: whole, in pieces, and after it was asked for."""
    body = {"prompt": "Once", "max_tokens": 4, "temperature": 0, "ignore_eos": True, "metadata": {"x": "y" * 8000}}
    want = server.post(C, body, server.auth)["choices"]
    pieces, expect = ["-H", "Transfer-Encoding: chunked"], ["-H", "Expect: 100-continue", "--expect100-timeout", "60"]
    for more in [[], pieces, expect, pieces + expect, ["--http1.0"], ["--compressed"]]:
        head, reply = tmp_path / "head", tmp_path / "reply"
        out = run("curl", "-sS", "--max-time", 60, "-H", "Authorization: Bearer k", "-H", "Content-Type: application/json", "-D", head,
                  "-o", reply, "-w", "%{http_code}", "--data-binary", "@-", *more, f"http://127.0.0.1:{server.port}{C}",
                  stdin=json.dumps(body).encode())
        assert out == "200" and json.loads(reply.read_text())["choices"] == want
        assert head.read_text().startswith("HTTP/1.1 100 Continue\n\nHTTP/1.1 200 OK\n" if "60" in more else "HTTP/1.1 200 OK\n")


def test_curl_reuses_its_connection(server):
    url = f"http://127.0.0.1:{server.port}/health"
    out = run("curl", "-sS", "-w", "%{num_connects} ", "-o", os.devnull, url, "-o", os.devnull, url, "-o", os.devnull, url)
    assert out.split() == ["1", "0", "0"]
    assert run("curl", "-sS", "-I", url).startswith("HTTP/1.1 200 OK\r\n")


def test_curl_streams(server):
    """-N prints each event as it comes: the first ones are there long before the last."""
    data = json.dumps({"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 2})
    p = subprocess.Popen(["curl", "-sSN", "-H", "Authorization: Bearer k", "-H", "Content-Type: application/json", "-d", data,
                          f"http://127.0.0.1:{server.port}{C}"], stdout=subprocess.PIPE, bufsize=0)
    first = p.stdout.readline()
    assert first.startswith(b"data: ") and p.poll() is None
    rest, _ = p.communicate(timeout=60)
    assert p.returncode == 0 and len(frames(first + rest)) == 2 * 401


def test_h2load(server, body):
    """Pipelining: up to 8 requests on their way on each of 4 connections."""
    for path, more, size in [("/health", [], len(b'{"status":"ok"}')), (C, ["-d", body, "-H", "Content-Type: application/json"], 0)]:
        out = run("h2load", "--h1", "-n", 200, "-c", 4, "-m", 8, "-t", 1, "-H", "Authorization: Bearer k", *more,
                  f"http://127.0.0.1:{server.port}{path}")
        assert "200 total, 200 started, 200 done, 200 succeeded, 0 failed, 0 errored, 0 timeout" in out, out
        assert "status codes: 200 2xx, 0 3xx, 0 4xx, 0 5xx" in out, out
        if size:
            assert f"({200 * size}) data" in out, out


WRK = """wrk.method, wrk.body = "POST", [[%s]]
wrk.headers["Content-Type"], wrk.headers["Authorization"] = "application/json", "Bearer k"
response = function(status, headers, body) if status ~= 200 or not string.find(body, '"loops":[4,4,4,4]', 1, true) then bad = (bad or 0) + 1 end end
threads = {}
setup = function(t) table.insert(threads, t) end
done = function(summary) local e, n = summary.errors, 0
  for _, t in ipairs(threads) do n = n + (t:get("bad") or 0) end
  print("done", summary.requests, e.connect + e.read + e.write + e.timeout + e.status, n) end
"""


def test_wrk(server, body, tmp_path):
    lua = tmp_path / "post.lua"
    lua.write_text(WRK % body.read_text())
    out = run("wrk", "-t", 1, "-c", 8, "-d", "1s", "--timeout", "60s", "-s", lua, f"http://127.0.0.1:{server.port}{C}")
    requests, errors, bad = map(int, re.search(r"^done\t(\d+)\t(\d+)\t(\d+)$", out, re.M).groups())
    assert requests > 20 and errors == 0 and bad == 0, out


@pytest.mark.parametrize("keep", [[], ["-k"]])
def test_ab(server, body, keep):
    """HTTP/1.0, with and without keep-alive."""
    out = run("ab", "-q", "-n", 100, "-c", 4, *keep, "-p", body, "-T", "application/json", "-H", "Authorization: Bearer k",
              f"http://127.0.0.1:{server.port}{C}")
    assert re.search(r"Complete requests: +100\nFailed requests: +(\d+)", out), out
    # Ids differ in nothing but their digits, so that all replies are of one length.
    assert re.search(r"Failed requests: +0\n", out) and "Non-2xx" not in out, out
    assert int(re.search(r"Keep-Alive requests: +(\d+)", out).group(1) if keep else 100) == 100, out


# ---- openai's package -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="k") as c:
        yield c


def test_openai_streams(server, client):
    """Both endpoints, sync and async, whole and streamed, say the same; 16 at once too."""
    make = {"model": "demo", "max_tokens": 12, "seed": 3, "temperature": 0.8, "n": 2, "logprobs": 2}
    chat = {**make, "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    text = {**make, "prompt": ["Once", "Twice"]}
    want_text, want_chat = client.completions.create(**text), client.chat.completions.create(**chat)
    usage = {"stream": True, "stream_options": {"include_usage": True}}

    def put(parts, got):
        for p in parts.choices:
            got[p.index] = got.get(p.index, "") + ((p.delta.content if hasattr(p, "delta") else p.text) or "")

    async def ask(a):
        got, got_chat = {}, {}
        async for p in await a.completions.create(**text, **usage):
            put(p, got)
            last = p
        assert last.choices == [] and last.usage == want_text.usage
        async for p in await a.chat.completions.create(**chat, **usage):
            put(p, got_chat)
            last = p
        assert last.choices == [] and last.usage.completion_tokens == want_chat.usage.completion_tokens
        assert got == {c.index: c.text for c in want_text.choices}
        assert got_chat == {c.index: c.message.content for c in want_chat.choices}

    async def many():
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key="k") as a:
            await asyncio.gather(*[ask(a) for _ in range(8)])

    asyncio.run(many())
    assert [c.logprobs.token_logprobs for c in want_text.choices] and len(want_text.choices) == 4
    assert all(len(c.logprobs.content) == len(c.model_extra["loops"]) for c in want_chat.choices)


def test_openai_raw_response(client):
    r = client.completions.with_raw_response.create(model="demo", prompt="a", max_tokens=1, extra_headers={"x-request-id": "mine-7"})
    assert r.headers["x-request-id"] == "mine-7" and r.http_response.status_code == 200
    assert r.parse()._request_id == "mine-7" and r.retries_taken == 0
    with client.chat.completions.with_streaming_response.create(model="demo", messages=MESSAGES, max_tokens=2, stream=True) as r:
        assert r.headers["content-type"] == "text/event-stream" and r.headers["x-request-id"]
        assert "".join(r.iter_text()).endswith("data: [DONE]\n\n")


def test_openai_own_fields(client):
    c = client.completions.create(model="demo", prompt="abc", max_tokens=3, extra_body={"max_loops": 2, "ignore_eos": True, "gates": True,
                                                                                       "return_token_ids": True}).choices[0]
    # The first token comes from the prompt's last one, and prompts have full depth unless told.
    assert c.model_extra["loops"] == [4, 2, 2] and len(c.model_extra["token_ids"]) == 3
    assert [len(g) for g in c.model_extra["gates"]] == [4, 2, 2]


class Answer(pydantic.BaseModel):
    sure: bool
    colour: typing.Literal["red", "green"]


def test_openai_parse(client):
    """A class goes out as a JSON schema and comes back as an object, also from a stream."""
    ask = {"model": "demo", "messages": MESSAGES, "max_tokens": 60, "seed": 1}
    assert isinstance(client.chat.completions.parse(**ask, response_format=Answer).choices[0].message.parsed, Answer)
    with client.chat.completions.stream(**ask, response_format=Answer) as s:
        kinds = [e.type for e in s]
    assert kinds.count("content.delta") > 10 and "content.done" in kinds and isinstance(s.get_final_completion().choices[0].message.parsed, Answer)


@pytest.mark.parametrize("error, call", [
    (openai.BadRequestError, lambda c: c.completions.create(model="demo", prompt="a", max_tokens=-1)),
    (openai.BadRequestError, lambda c: c.chat.completions.create(model="demo", messages=[])),
    (openai.BadRequestError, lambda c: c.completions.create(model="demo", prompt="a" * 600)),
    (openai.BadRequestError, lambda c: c.completions.create(model="demo", prompt="a", extra_body={"exit": "soon"})),
    (openai.NotFoundError, lambda c: c.completions.create(model="gpt-4", prompt="a")),
    (openai.NotFoundError, lambda c: c.models.retrieve("gpt-4")),
    (openai.NotFoundError, lambda c: c.embeddings.create(model="demo", input="a")),
    (openai.AuthenticationError, lambda c: c.with_options(api_key="other").models.list()),
    (openai.PermissionDeniedError, lambda c: c.with_options(default_headers={"Origin": "http://evil.example"}).models.list()),
])
def test_openai_errors(server, client, error, call):
    """A mistake of the client is told once, by its class: the package must not try it again."""
    asked = count_requests(server)
    with pytest.raises(error) as e:
        call(client)
    assert type(e.value) is error and e.value.request_id and e.value.body["message"]
    assert count_requests(server) == asked + 2  # this one, and the look at the metrics before


def count_requests(server):
    text = server.ask("GET", "/metrics", headers=server.auth)[2].decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(r"http_requests_total\{", line))


def test_openai_rate_limit(tmp_path):
    """429 with Retry-After: an error without retries, an answer with them, not before the server's time has passed."""
    with serve(roomy(tmp_path), "--max-seqs", 1, "--max-queue", 1, "--max-rows", 1) as s:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="k", max_retries=0) as c:
            held = s.raw_post(C, LASTING)
            eventually(lambda: s.metric("vllm:num_requests_running") == 1)
            waiting = s.raw_post(C, LASTING)
            eventually(lambda: s.metric("vllm:num_requests_waiting") == 1)
            with pytest.raises(openai.RateLimitError) as e:
                c.completions.create(model="demo", prompt="a", max_tokens=1)
            wait = int(e.value.response.headers["retry-after"])
            assert e.value.code == "queue_full" and wait >= 1
            threading.Timer(0.2, lambda: (held.close(), waiting.close())).start()
            begin = time.monotonic()
            r = c.with_options(max_retries=2).completions.with_raw_response.create(model="demo", prompt="a", max_tokens=1)
            assert r.retries_taken == 1 and time.monotonic() - begin >= wait


# ---- clients that do not install here --------------------------------------------------------------------------------------------


class VllmStream:
    """How vllm's bench client cuts a stream: whatever bytes came, stripped, split at empty lines; a rest that is JSON
    already is taken at once. (vllm, benchmarks/lib/endpoint_request_func.py)"""

    def __init__(self):
        self.rest = ""

    def add(self, data):
        self.rest += data.strip().decode()
        *whole, self.rest = self.rest.split("\n\n")
        if self.rest.startswith("data: "):
            text = self.rest[6:].strip()
            try:
                if text != "[DONE]":
                    json.loads(text)
                whole.append(self.rest)
                self.rest = ""
            except json.JSONDecodeError:
                pass
        return [m.strip().removeprefix("data: ") for m in whole if m.strip()]


AIOHTTP = ("POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer k\r\nx-request-id: bench-{i}\r\nAccept: */*\r\n"
           "Accept-Encoding: gzip, deflate\r\nUser-Agent: Python/3.11 aiohttp/3.12.15\r\nContent-Length: {n}\r\n"
           "Content-Type: application/json\r\n\r\n{body}")


def pieces(sock):
    """The body of one chunked reply, as recv gives it."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    head, data = data.split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"Transfer-Encoding: chunked" in head, head
    while True:
        while b"\r\n" not in data:
            data += sock.recv(65536)
        size, data = data.split(b"\r\n", 1)
        n = int(size, 16)
        while len(data) < n + 2:
            data += sock.recv(65536)
        if n == 0:
            assert data == b"\r\n"
            return
        yield data[:n]
        data = data[n + 2:]


VLLM = {
    "completions": (C, {"model": "demo", "prompt": "Once upon a time", "repetition_penalty": 1.0, "max_tokens": 12, "logprobs": None,
                        "stream": True, "stream_options": {"include_usage": True}}),
    "ignore_eos": (C, {"model": "demo", "prompt": "Once", "repetition_penalty": 1.0, "max_tokens": 12, "logprobs": 1, "stream": True,
                       "stream_options": {"include_usage": True}, "ignore_eos": True, "temperature": 0.0, "top_p": 1.0}),
    "ids": (C, {"model": "demo", "prompt": [5, 6, 7, 8], "repetition_penalty": 1.0, "max_tokens": 12, "logprobs": None, "stream": True,
                "stream_options": {"include_usage": True}, "ignore_eos": True}),
    "chat": (CHAT, {"model": "demo", "messages": [{"role": "user", "content": [{"type": "text", "text": "Once"}]}],
                    "max_completion_tokens": 12, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}),
}


@pytest.mark.parametrize("shape", VLLM)
def test_vllm_bench(server, shape):
    """Its readiness test request and three more, on one connection."""
    path, body = VLLM[shape]
    text = json.dumps(body)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as sock:
        for i in range(4):
            sock.sendall(AIOHTTP.format(path=path, port=server.port, i=i, n=len(text), body=text).encode())
            cut, tokens, made = VllmStream(), 0, None
            for piece in pieces(sock):
                for message in cut.add(piece):
                    if message == "[DONE]":
                        made = made or {}
                        continue
                    data = json.loads(message)
                    if data.get("choices"):
                        tokens += bool(data["choices"][0].get("loops"))
                        data["choices"][0].get("text") if path == C else data["choices"][0]["delta"].get("content")
                    elif data.get("usage"):
                        made = data["usage"]
            assert made["completion_tokens"] == tokens and (tokens == 12 or not body.get("ignore_eos")) and not cut.rest


GUIDELLM = {"model": "demo", "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stop": None,
            "ignore_eos": True}


@pytest.mark.parametrize("path, more", [
    (C, {"max_tokens": 12, "prompt": "Once upon"}),
    (CHAT, {"max_completion_tokens": 12, "messages": [{"role": "system", "content": "Short."},
                                                      {"role": "user", "content": [{"type": "text", "text": "Once"}]}]})])
def test_guidellm_of_today(server, path, more):
    """Since 0.4 it asks for usage in each event, sends chats as parts, and takes the numbers of the last usage it saw; a
    frame with an error ends it, and so does a reply without text and tokens."""
    status, headers, data = server.ask("POST", path, {**GUIDELLM, **more}, server.auth)
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream")
    lines = [line[5:].strip() for line in data.decode().split("\n") if line.strip().startswith("data:")]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    assert not any("error" in e for e in events)
    counts = [e["usage"]["completion_tokens"] for e in events]
    assert counts == sorted(counts) and counts[-1] == 12 and events[-1]["choices"] == []
    texts = [e["choices"][0].get("text") or e["choices"][0].get("delta", {}).get("content") for e in events[:-1]]
    assert any(texts) and events[-1]["usage"]["prompt_tokens"] == events[0]["usage"]["prompt_tokens"]


def test_llmperf(server):
    """An empty system text; each data line has choices[0].delta, and none is a comment."""
    body = {"model": "demo", "messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Once"}], "stream": True,
            "max_tokens": 12, "ignore_eos": True}
    status, _, data = server.ask("POST", CHAT, body, {**server.auth, "User-Agent": "python-requests/2.34.2", "Accept-Encoding": "gzip",
                                                      "Accept": "*/*", "Connection": "keep-alive"})
    assert status == 200
    lines = [line for line in data.split(b"\n") if line.strip()]
    assert lines[-1] == b"data: [DONE]"
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines[:-1]]
    assert "".join(d.get("content") or "" for d in deltas) and len(deltas) == 1 + 12 + 1


# ---- what the background programs said -------------------------------------------------------------------------------------------


def test_lm_eval(tools):
    """Log-likelihoods that lm-eval took from echo and logprobs are those that gyre run computes."""
    folder = tools["lm_eval"].result()
    (file,) = folder.glob("out/*/samples_mc_*.jsonl")
    samples = {s["doc"]["question"]: s for s in map(json.loads, file.read_text().splitlines())}
    assert set(samples) == {q["question"] for q in QUESTIONS}
    for q in QUESTIONS:
        for choice, (got,) in zip(q["choices"], samples[q["question"]]["resps"], strict=True):
            out = json.loads(gyre("run", DEMO, "--json", "--prompt", q["question"] + choice, "--max-tokens", 1, "--prompt-logprobs", 1)[0])
            tail = [x["logprob"] if isinstance(x, dict) else x for x in out["prompt_logprobs"]][-len(choice):]
            assert math.isclose(float(got[0]), sum(tail), rel_tol=1e-6, abs_tol=1e-6)
    (file,) = folder.glob("out/*/samples_gen_*.jsonl")
    for s in map(json.loads, file.read_text().splitlines()):
        out = gyre("run", DEMO, "--prompt", s["doc"]["question"], "--max-tokens", 8, "--stop", "\n")[0]
        assert out.rstrip("\n").endswith(s["resps"][0][0].rstrip("\n"))


def test_guidellm(tools):
    report = json.loads((tools["guidellm"].result() / "out.json").read_text())
    (b,) = report["benchmarks"]
    assert b["request_totals"] == {"successful": 20, "errored": 0, "incomplete": 0, "total": 20}
    assert {r["output_tokens"] for r in b["requests"]["successful"]} == {12}


@pytest.mark.parametrize("kind", ["completions", "chat"])
def test_aiperf(tools, kind):
    report = json.loads((tools[f"aiperf_{kind}"].result() / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == 20 and not report["error_summary"]
    assert report["time_to_first_token"]["avg"] > 0 and report["output_sequence_length"]["min"] > 0


@pytest.mark.parametrize("kind", ["sglang", "sglang_chat"])
def test_sglang(tools, kind):
    (report,) = map(json.loads, (tools[kind].result() / "out.jsonl").read_text().splitlines())
    assert report["completed"] == 24 and not any(report["errors"])
    assert report["total_output_tokens"] == sum(report["output_lens"]) > 24 * 8 and all(t > 0 for t in report["ttfts"])
