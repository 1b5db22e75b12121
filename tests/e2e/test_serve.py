"""gyre serve as clients see it: raw sockets, http.client, and the package openai.

Expected outputs come from tests/golden, or from gyre run, which must say the same bit for bit, alone or among others.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from program import DEMO, FAMILIES, GYRE, LASTING, MODELS, OURO, ROOT, greedy_cases, greedy_line, gyre, ids_arg, roomy

JSON = {"Content-Type": "application/json"}
C, CHAT = "/v1/completions", "/v1/chat/completions"


class Server:
    def __init__(self, model, *args, wait=True):
        self.p = subprocess.Popen([GYRE, "serve", str(model), "--port", "0", *map(str, args)], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE)
        self.err, self.lines = "", []
        self.port = int(re.search(r"listening on http://[^ ]*:(\d+)", self.until("listening on")).group(1))
        if wait:
            self.until("serving ")

    def until(self, what):
        while True:
            line = self.p.stderr.readline().decode()
            assert line, f"the server ended before it said '{what}':\n{self.err}"
            self.err += line
            if what in line:
                return line

    def ask(self, method, path, body=None, headers=JSON):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)  # no test waits for it to pass
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        try:
            c.request(method, path, data, headers)
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def post(self, path, body, headers=JSON):
        status, _, data = self.ask("POST", path, body, headers)
        assert status == 200, data
        return json.loads(data)

    def metric(self, name):
        text = self.ask("GET", "/metrics")[2].decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"{name}[ {{]", line))

    def cpu_seconds(self):
        """Of the program so far: what else runs on the machine is not in it."""
        with open(f"/proc/{self.p.pid}/stat") as f:
            return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def raw(self, text):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        s.sendall(text.encode())
        return s

    def raw_post(self, path, body):
        data = json.dumps(body)
        return self.raw(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        f"Content-Length: {len(data.encode())}\r\n\r\n{data}")

    def stop(self, code=0):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
        out, err = self.p.communicate(timeout=300)
        self.err += err.decode()
        assert "Sanitizer" not in self.err, self.err
        assert self.p.returncode == code, self.err
        return out.decode()


@contextlib.contextmanager
def serve(model, *args, **kw):
    s = Server(model, *args, **kw)
    try:
        yield s
        s.stop()
    finally:
        if s.p.poll() is None:
            s.p.kill()
            s.p.communicate()


@pytest.fixture(scope="module")
def demo():
    with serve(DEMO) as s:
        yield s


def frames(data):
    """The events of a stream; every rule of the framing is checked."""
    text = data.decode() if isinstance(data, bytes) else data
    assert text.endswith("\n\n") and "\r" not in text
    parts = text[:-2].split("\n\n")
    assert all(p.startswith("data: ") and "\n" not in p for p in parts)
    assert parts[-1] == "data: [DONE]"
    return [json.loads(p[6:]) for p in parts[:-1]]


def eventually(check, seconds=120):
    """What only a server that hangs keeps waiting so long."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- the same as gyre run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_under_load(family):
    """Every greedy case of all rules, 16 at a time, streaming and not."""
    cases = [c for c in greedy_cases(family) if c["layout"] == "last_exited"]
    assert cases

    def one(i):
        body = greedy_line(cases[i % len(cases)])
        body = {**body, "prompt": body.pop("prompt_ids"), "temperature": 0, "return_token_ids": True, "stream": i % 2 == 1}
        status, _, data = s.ask("POST", C, body)
        assert status == 200, data
        if not body["stream"]:
            choice = json.loads(data)["choices"][0]
            return choice["token_ids"], choice["loops"]
        parts = [f["choices"][0] for f in frames(data) if f["choices"]]
        return sum((p.get("token_ids") or [] for p in parts), []), sum((p.get("loops") or [] for p in parts), [])

    with serve(MODELS / f"{family}-tiny", "--dtype", "f32") as s, ThreadPoolExecutor(16) as pool:
        for i, got in enumerate(pool.map(one, range(max(32, 2 * len(cases))))):
            case = cases[i % len(cases)]
            assert got == (case["tokens"], case["loops"]), case


def test_equals_run_seeded(demo):
    prompts = [f"Prompt number {i}: once upon" for i in range(16)]
    args = [a for p in prompts for a in ("--prompt", p)]
    flags = ["--temperature", "0.9", "--top-p", "0.95", "--top-k", "40", "--seed", "7", "--n", "2", "--max-tokens", "24"]
    want = [json.loads(line) for line in gyre("run", DEMO, "--json", *flags, *args)[0].splitlines()]

    def one(p):
        return demo.post(C, {"prompt": p, "temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 7, "n": 2, "max_tokens": 24,
                             "return_token_ids": True})

    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(one, prompts))
    by_prompt = {}
    for w in want:
        by_prompt.setdefault(w["index"], []).extend(w["outputs"] if "outputs" in w else [w])
    for i, g in enumerate(got):
        assert [c["token_ids"] for c in g["choices"]] == [w["token_ids"] for w in by_prompt[i]]
        assert [c["text"] for c in g["choices"]] == [w["text"] for w in by_prompt[i]]
        assert [c["index"] for c in g["choices"]] == [0, 1]


# ---- completions -----------------------------------------------------------------------------------------------------------


def test_stream_equals_whole(demo):
    body = {"prompt": ["One day", [5, 6, 7]], "max_tokens": 12, "seed": 3, "n": 2, "logprobs": 2}
    whole = demo.post(C, body)
    status, headers, data = demo.ask("POST", C, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert status == 200 and headers["Content-Type"] == "text/event-stream"
    assert headers["Cache-Control"] == "no-cache" and headers["X-Accel-Buffering"] == "no"
    fs = frames(data)
    assert fs[-1]["choices"] == [] and fs[-1]["usage"] == whole["usage"]
    assert all(f["usage"] is None for f in fs[:-1])
    assert len({f["id"] for f in fs}) == 1 and fs[0]["object"] == "text_completion"
    for c in whole["choices"]:
        mine = [f["choices"][0] for f in fs[:-1] if f["choices"][0]["index"] == c["index"]]
        assert "".join(m["text"] for m in mine) == c["text"]
        assert [m["finish_reason"] for m in mine] == [None] * (len(mine) - 1) + [c["finish_reason"]]
        logprobs = [m["logprobs"]["token_logprobs"] for m in mine if m["logprobs"]]
        assert sum(logprobs, []) == c["logprobs"]["token_logprobs"]
        assert sum((m.get("loops") or [] for m in mine), []) == c["loops"]
    usage = whole["usage"]
    assert usage["prompt_tokens"] == len("One day") + 3 and usage["completion_tokens"] == sum(len(c["loops"]) for c in whole["choices"])
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_echo_logprobs(demo):
    """What lm-eval asks: the prompt scored, nothing (or one token) made."""
    out = demo.post(C, {"prompt": "hello", "max_tokens": 0, "echo": True, "logprobs": 1})
    c = out["choices"][0]
    lp = c["logprobs"]
    assert c["text"] == "hello" and lp["tokens"] == list("hello") and lp["text_offset"] == [0, 1, 2, 3, 4]
    assert lp["token_logprobs"][0] is None and all(x < 0 for x in lp["token_logprobs"][1:])
    assert out["usage"]["completion_tokens"] == 0
    ids = demo.post("/tokenize", {"prompt": "hello"})["tokens"]
    same = demo.post(C, {"prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0})["choices"][0]
    assert same["logprobs"]["token_logprobs"][:5] == lp["token_logprobs"]
    ref = json.loads(gyre("run", DEMO, "--json", "--prompt", "hello", "--max-tokens", "1", "--prompt-logprobs", "1")[0])
    assert [x["logprob"] if isinstance(x, dict) else x for x in ref["prompt_logprobs"]][-4:] == lp["token_logprobs"][1:]


def test_stop(demo):
    free = demo.post(C, {"prompt": "abc", "max_tokens": 40, "temperature": 0.8, "seed": 11, "ignore_eos": True})["choices"][0]["text"]
    stop = free[5:7]
    at = free.index(stop)
    for extra, want in [({}, free[:at]), ({"include_stop_str_in_output": True}, free[:at] + stop)]:
        c = demo.post(C, {"prompt": "abc", "max_tokens": 40, "temperature": 0.8, "seed": 11, "ignore_eos": True, "stop": [stop],
                          **extra})["choices"][0]
        assert (c["text"], c["finish_reason"], c["stop_reason"]) == (want, "stop", stop)


def test_cached_tokens(demo):
    prompt = "The same beginning of a text that is longer than a few blocks of sixteen tokens. " * 2
    first, second = (demo.post(C, {"prompt": prompt, "max_tokens": 2, "temperature": 0}) for _ in range(2))
    assert first["choices"] == second["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 16


def test_small_routes(demo):
    text = "Hello, world"
    t = demo.post("/tokenize", {"prompt": text, "return_token_strs": True})
    assert t["count"] == len(t["tokens"]) and "".join(t["token_strs"]) == text
    assert demo.post("/detokenize", {"tokens": t["tokens"]}) == {"prompt": text}
    models = json.loads(demo.ask("GET", "/v1/models")[2])
    assert [m["id"] for m in models["data"]] == ["demo"] and models["data"][0]["max_model_len"] == t["max_model_len"]
    assert json.loads(demo.ask("GET", "/v1/models/demo")[2])["id"] == "demo"
    assert models["data"][0]["gyre"] == {"family": "ouro", "n_loop": 4, "max_loops": 4, "has_gate": True, "has_tokenizer": True, "has_chat_template": False}
    assert demo.ask("GET", "/health")[0] == 200
    assert json.loads(demo.ask("GET", "/version")[2])["version"] == gyre("--version")[0].split()[1]
    status, headers, page = demo.ask("GET", "/", headers={"Accept": "text/plain"})
    assert status == 200 and headers["Content-Type"].startswith("text/plain") and b"/v1/completions" in page
    status, headers, page = demo.ask("HEAD", "/health")
    assert (status, page) == (200, b"")


def test_request_id(demo):
    headers = demo.ask("GET", "/health", headers={"x-request-id": "abc-1"})[1]
    assert headers["x-request-id"] == "abc-1" and headers["Server"].startswith("gyre/")
    ids = {demo.ask("GET", p, headers={"x-request-id": bad})[1]["x-request-id"]
           for p, bad in [("/health", "a b"), ("/nowhere", ""), ("/health", "x" * 200)]}
    assert len(ids) == 3 and all(re.fullmatch("[0-9a-f]{24}", i) for i in ids)
    # The body's own: 128 bytes of it at most, cut between characters.
    for own in ["é" * 100, "x" + "é" * 100, "漢" * 85]:
        assert demo.post(C, {"prompt": "a", "max_tokens": 1, "request_id": own})["id"] == "cmpl-" + own.encode()[:128].decode(errors="ignore")


# ---- chat --------------------------------------------------------------------------------------------------------------------

TEMPLATE = ("{% for m in messages %}{{ '<' + m.role + '>' }}{{ m.content }}{{ '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}")
MESSAGES = [{"role": "system", "content": ""}, {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "u"}]
PROMPT = "<system>\n<user>Hi\n<assistant>"


def test_chat(tmp_path):
    path = tmp_path / "t.jinja"
    path.write_text(TEMPLATE)
    with serve(DEMO, "--chat-template", path) as s:
        assert s.post("/apply_template", {"messages": MESSAGES})["prompt"] == PROMPT
        ids = s.post("/tokenize", {"messages": MESSAGES})["tokens"]
        assert s.post("/detokenize", {"tokens": ids})["prompt"] == PROMPT
        want = s.post(C, {"prompt": ids, "max_tokens": 10, "temperature": 0})
        got = s.post(CHAT, {"messages": MESSAGES, "max_completion_tokens": 10, "temperature": 0, "logprobs": True, "top_logprobs": 2})
        c = got["choices"][0]
        assert got["object"] == "chat.completion" and got["id"].startswith("chatcmpl-")
        assert c["message"]["role"] == "assistant" and c["message"]["content"] == want["choices"][0]["text"]
        assert got["usage"]["prompt_tokens"] == len(ids) and len(c["logprobs"]["content"]) == 10
        # This vocabulary has tokens that are parts of characters: their bytes are told, not what replaces them.
        told = bytes(b for t in c["logprobs"]["content"] for b in t["bytes"])
        assert told.decode(errors="replace") == c["message"]["content"]
        odd = s.post(CHAT, {"messages": MESSAGES, "max_tokens": 60, "seed": 5, "ignore_eos": True, "logprobs": True})["choices"][0]
        told = [t["bytes"] for t in odd["logprobs"]["content"]]
        assert bytes(sum(told, [])).replace(b"<|im_end|>", b"").decode(errors="replace") == odd["message"]["content"]
        assert "\ufffd" in odd["message"]["content"] and [0xEF, 0xBF, 0xBD] not in told
        data = s.ask("POST", CHAT, {"messages": MESSAGES, "max_tokens": 10, "temperature": 0, "stream": True})[2]
        fs = frames(data)
        assert fs[0]["choices"][0]["delta"]["role"] == "assistant"
        assert "".join(f["choices"][0]["delta"].get("content") or "" for f in fs) == c["message"]["content"]
        assert fs[-1]["choices"][0]["finish_reason"] == "length"
        status, _, data = s.ask("POST", CHAT, {"messages": []})
        assert (status, json.loads(data)["error"]["param"]) == (400, "messages"), data


def test_chat_without_template(demo):
    status, _, data = demo.ask("POST", CHAT, {"messages": MESSAGES})
    e = json.loads(data)["error"]
    assert status == 400 and e["param"] == "messages" and "--chat-template" in e["message"] and "models/demo" not in e["message"]


# ---- errors ------------------------------------------------------------------------------------------------------------------

BAD_BODIES = [  # path, body, param, code, words of the message
    (C, "{", None, None, ""),
    (C, "[]", None, None, "object"),
    (C, '{"prompt":"a","max_tokens":NaN}', None, None, ""),
    (C, '{"prompt":"a","prompt":"b"}', None, None, ""),
    (C, "[" * 1000, None, None, ""),
    (C, '{"prompt":"\\ud800"}', None, None, ""),
    (C, {}, "prompt", None, ""),
    (C, {"prompt": ""}, "prompt", None, ""),
    (C, {"prompt": []}, "prompt", None, ""),
    (C, {"prompt": 5}, "prompt", None, ""),
    (C, {"prompt": [1, 999999]}, "prompt", None, ""),
    (C, {"prompt": "a", "max_tokens": -1}, "max_tokens", None, ""),
    (C, {"prompt": "a", "max_tokens": "7"}, "max_tokens", None, "integer"),
    (C, {"prompt": "a", "max_tokens": 0}, "max_tokens", None, ""),
    (C, {"prompt": "a", "max_tokens": 100000}, "max_tokens", "context_length_exceeded", "100000"),
    (C, {"prompt": "a" * 600}, "prompt", "context_length_exceeded", "600"),
    (C, {"prompt": "a", "n": 0}, "n", None, ""),
    (C, {"prompt": "a", "n": 1000}, "n", None, ""),
    (C, {"prompt": "a", "temperature": -1}, "temperature", None, ""),
    (C, {"prompt": "a", "top_p": 0}, "top_p", None, ""),
    (C, {"prompt": "a", "logprobs": 21}, "logprobs", None, ""),
    (C, {"prompt": "a", "stop": ["a", "b", "c", "d", "e"]}, "stop", None, ""),
    (C, {"prompt": "a", "stop": ""}, "stop", None, ""),
    (C, {"prompt": "a", "seed": 1 << 70}, "seed", None, ""),
    (C, {"prompt": "a", "logit_bias": {"999999": 1}}, "logit_bias", None, ""),
    (C, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", None, ""),
    (C, {"prompt": "a", "max_loops": 1000}, "max_loops", None, ""),
    (C, {"prompt": "a", "exit": "never"}, "exit", None, ""),
    (C, {"prompt": "a", "guided_json": {"not": {}}}, "guided_json", "unsupported_parameter", "not supported"),
    (C, {"prompt": "a", "guided_regex": "(a"}, "guided_regex", None, "expected ')'"),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, "top_logprobs", None, ""),
    (CHAT, {"messages": [{"role": "nobody", "content": "a"}]}, "messages", None, ""),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": []}, "tools", None, ""),
    ("/detokenize", {"tokens": ["a"]}, "tokens", None, ""),
]


@pytest.mark.parametrize("i", range(len(BAD_BODIES)))
def test_bad_bodies(demo, i):
    path, body, param, code, words = BAD_BODIES[i]
    status, headers, data = demo.ask("POST", path, body)
    e = json.loads(data)["error"]
    assert status == 400 and set(e) == {"message", "type", "param", "code"}
    assert e["type"] == "invalid_request_error" and e["message"] and words in e["message"]
    assert param is None or (e["param"] or "").startswith(param), e
    assert code is None or e["code"] == code, e
    assert headers["x-request-id"] and headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("method, path, body, headers, status, code", [
    ("GET", "/nowhere", None, {}, 404, "unknown_url"),
    ("GET", C, None, {}, 405, "method_not_allowed"),
    ("DELETE", "/v1/models", None, {}, 405, "method_not_allowed"),
    ("POST", C, "prompt=a", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
    ("POST", C, "{}", {}, 415, "unsupported_media_type"),
    ("POST", C, {"prompt": "a", "model": "gpt-4"}, JSON, 404, "model_not_found"),
    ("GET", "/v1/models/gpt-4", None, {}, 404, "model_not_found"),
    ("GET", "/v1/models", None, {"Host": "evil.example"}, 403, "forbidden"),
    ("GET", "/v1/models", None, {"Origin": "http://evil.example"}, 403, "forbidden"),
    ("GET", "/v1/models", None, {"x": "y" * 40000}, 431, "headers_too_large"),
])
def test_refused(demo, method, path, body, headers, status, code):
    got, reply, data = demo.ask(method, path, body, headers)
    assert (got, json.loads(data)["error"]["code"]) == (status, code), data
    assert reply["x-request-id"]
    if status == 405:
        assert "OPTIONS" in reply["Allow"]


def test_refused_by_the_parser(demo):
    for text in ["GET / HTTP/1.1\r\n\r\n", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
                 f"POST {C} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"]:
        with demo.raw(text) as s:
            data = b"".join(iter(lambda: s.recv(65536), b""))
        head, body = data.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 400 ") and b"x-request-id: " in head and json.loads(body)["error"]["code"] == "bad_http_request"


def test_unknown_fields(demo):
    before = demo.metric("gyre:unknown_fields_total")
    demo.post(C, {"prompt": "a", "max_tokens": 1, "user": None, "x_new_field": {"a": 1}, "stop": None, "n": None, "logprobs": None})
    assert demo.metric("gyre:unknown_fields_total") == before + 1


# ---- keys, origins, limits, the log --------------------------------------------------------------------------------------------


def test_keys_and_origins():
    args = ["--api-key", "first", "--api-key", "second-key", "--allowed-origin", "http://page:1", "--allowed-host", "good.example", "--allowed-host", "h",
            "--served-model-name", "big", "--served-model-name", "small", "--max-body-bytes", "1K", "--access-log", "json"]
    with serve(DEMO, *args) as s:
        host = {"Host": "good.example:80"}
        for key, status in [(None, 401), ("", 401), ("firs", 401), ("first1", 401), ("firstfirst", 401), ("FIRST", 401),
                            ("first", 200), ("second-key", 200)]:
            auth = {} if key is None else {"Authorization": f"Bearer {key}"}
            for path in ["/v1/models", "/metrics", "/version"]:
                got, headers, data = s.ask("GET", path, headers={**host, **auth})
                assert got == status, (key, path)
                if status == 401:
                    assert headers["WWW-Authenticate"] == "Bearer" and json.loads(data)["error"]["code"] == "invalid_api_key"
        assert s.ask("GET", "/nowhere", headers=host)[0] == 401
        assert s.ask("GET", "/health", headers=host)[0] == 200
        host["Authorization"] = "bearer first"
        assert s.ask("GET", "/v1/models", headers={**host, "Host": "localhost"})[0] == 403
        got, headers, _ = s.ask("GET", "/v1/models", headers={**host, "Origin": "http://page:1"})
        assert got == 200 and headers["Access-Control-Allow-Origin"] == "http://page:1" and headers["Vary"] == "Origin"
        assert s.ask("GET", "/v1/models", headers={**host, "Origin": "http://good.example:80"})[0] == 200
        assert s.ask("GET", "/v1/models", headers={**host, "Origin": "http://page:2"})[0] == 403
        for origin, status in [("http://h", 200), ("http://", 403), ("://", 403), ("h", 403), ("null", 403), ("http://hh", 403)]:
            assert s.ask("GET", "/v1/models", headers={**host, "Host": "h", "Origin": origin})[0] == status, origin
        got, headers, _ = s.ask("OPTIONS", C, headers={"Host": "good.example", "Origin": "http://page:1",
                                                      "Access-Control-Request-Method": "POST"})
        assert got == 204 and "POST" in headers["Access-Control-Allow-Methods"]
        assert "Authorization" in headers["Access-Control-Allow-Headers"]
        for name in ["big", "small"]:
            got, _, data = s.ask("POST", C, {"model": name, "prompt": "a", "max_tokens": 2, "ignore_eos": True}, {**host, **JSON})
            assert got == 200 and json.loads(data)["model"] == name
        got, _, data = s.ask("POST", C, {"prompt": "a" * 2000}, {**host, **JSON})
        assert got == 413 and json.loads(data)["error"]["code"] == "body_too_large"
        # A page is told too: without the header its browser would hide what was wrong.
        got, headers, _ = s.ask("POST", C, b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n",
                                {**host, **JSON, "Origin": "http://page:1", "Transfer-Encoding": "chunked"})
        assert got == 413 and headers["Access-Control-Allow-Origin"] == "http://page:1"
        lines = [json.loads(line) for line in s.stop().splitlines()]
    assert [x["status"] for x in lines[-4:]] == [200, 200, 413, 413] and lines[-3]["model"] == "small"
    assert lines[-3]["output_tokens"] == 2 and "first" not in json.dumps(lines)


def test_queue_full(tmp_path):
    with serve(roomy(tmp_path), "--max-seqs", 1, "--max-queue", 2, "--max-rows", 1) as s:
        held = [s.raw_post(C, LASTING) for _ in range(3)]
        eventually(lambda: s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting") >= 3)
        status, headers, data = s.ask("POST", C, {"prompt": "abc", "max_tokens": 1})
        assert status == 429 and int(headers["Retry-After"]) >= 1, data
        assert json.loads(data)["error"]["type"] == "rate_limit_error"
        # Of a body with several prompts, those that were taken already are given back.
        held.pop().close()
        eventually(lambda: s.metric("vllm:num_requests_waiting") == 1)
        assert s.ask("POST", C, {"prompt": ["a", "b"], "max_tokens": 1})[0] == 429
        eventually(lambda: s.metric("vllm:num_requests_waiting") == 1)
        held.pop().close()
        eventually(lambda: s.metric("vllm:num_requests_waiting") == 0)
        assert s.ask("POST", C, {"prompt": ["a", "b", "c"], "max_tokens": 1})[0] == 400  # can never wait together
        held[0].close()
        eventually(lambda: s.metric("vllm:num_requests_running") == 0)
        assert s.ask("POST", C, {"prompt": "abc", "max_tokens": 1})[0] == 200


# ---- life --------------------------------------------------------------------------------------------------------------------


ABORTED = 'vllm:request_success_total{model_name="demo",engine="0",finished_reason="abort"}'


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_frees(stream, tmp_path):
    """A client that leaves costs nothing from then on: running goes to 0, far before the work would be done."""
    with serve(roomy(tmp_path), "--max-rows", 1) as s:
        sock = s.raw_post(C, {**LASTING, "n": 8, "stream": stream})
        eventually(lambda: s.metric("vllm:num_requests_running") > 0)
        if stream:
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
        sock.close()
        eventually(lambda: s.metric("vllm:num_requests_running") == 0)
        eventually(lambda: s.metric(ABORTED) == 8)  # the gauge is the engine's; what ended is counted when its event is taken
        assert s.metric("vllm:generation_tokens_total") < LASTING["max_tokens"]


def test_drain_lets_a_stream_finish():
    s = Server(DEMO, "--max-rows", 1)
    sock = s.raw_post(C, {"prompt": "abc", "max_tokens": 200, "ignore_eos": True, "stream": True})
    data = sock.recv(65536)
    s.p.send_signal(signal.SIGTERM)
    eventually(lambda: is_closed(s.port))
    data += b"".join(iter(lambda: sock.recv(65536), b""))
    assert data.endswith(b"\n\ndata: [DONE]\n\n\r\n0\r\n\r\n") and data.count(b'"loops":[4]') == 200
    s.stop()


def is_closed(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except ConnectionError:
        return True
    return False


def test_second_signal_ends(tmp_path):
    s = Server(roomy(tmp_path), "--max-rows", 1)
    sock = s.raw_post(C, {**LASTING, "n": 16, "stream": True})
    data = sock.recv(65536)
    s.p.send_signal(signal.SIGINT)
    eventually(lambda: is_closed(s.port))  # so it has come
    assert s.p.poll() is None
    s.stop()
    with contextlib.suppress(ConnectionError):
        data += b"".join(iter(lambda: sock.recv(65536), b""))
    assert b"[DONE]" not in data and not data.endswith(b"0\r\n\r\n")


def test_hangup_says_that_nothing_is_reopened():
    with serve(DEMO) as s:
        s.p.send_signal(signal.SIGHUP)
        s.until("SIGHUP")
        assert s.ask("GET", "/health")[0] == 200


def test_loading(tmp_path):
    """The port is there before the model, whose tokenizer takes long to read here: it begins with 50 MB of blanks."""
    model = tmp_path / "m"
    shutil.copytree(DEMO, model)
    text = (model / "tokenizer.json").read_text()
    (model / "tokenizer.json").write_text(" " * 50_000_000 + text)
    with serve(model, wait=False) as s:
        for method, path in [("GET", "/health"), ("GET", "/v1/models"), ("POST", C)]:
            status, headers, data = s.ask(method, path, "{}" if method == "POST" else None)
            assert status == 503 and headers["Retry-After"] and json.loads(data)["error"]["code"] == "loading", data
        assert s.ask("GET", "/version")[0] == 200
        s.until("serving ")
        assert s.ask("GET", "/health")[0] == 200
        assert s.post(C, {"prompt": "a", "max_tokens": 1, "ignore_eos": True})["usage"]["completion_tokens"] == 1


def test_broken_model_and_busy_port(tmp_path, demo):
    err = gyre("serve", tmp_path, "--port", "0", code=1)[1]
    assert "config.json" in err
    err = gyre("serve", DEMO, "--port", demo.port, code=1)[1]
    assert f"127.0.0.1:{demo.port}: another process has this port" in err
    assert "--kv-layout" in gyre("serve", DEMO, "--kv-layout", "none", code=2)[1]
    assert "--max-body-bytes" in gyre("serve", DEMO, "--max-body-bytes", "0", code=2)[1]


def test_without_tokenizer():
    with serve(OURO, "--dtype", "f32") as s:
        for path, body in [(C, {"prompt": "text"}), ("/tokenize", {"prompt": "text"}), ("/detokenize", {"tokens": [1]}),
                           (C, {"prompt": [1, 2], "stop": ["a"]}), (CHAT, {"messages": [{"role": "user", "content": "a"}]})]:
            status, _, data = s.ask("POST", path, body)
            assert status == 400 and "tokenizer" in json.loads(data)["error"]["message"], (path, data)
        out = s.post(C, {"prompt": [1, 2, 3], "max_tokens": 4, "echo": True, "logprobs": 1, "return_token_ids": True,
                         "ignore_eos": True})
        assert len(out["choices"][0]["token_ids"]) == 4


def test_metrics_parse(demo):
    status, headers, data = demo.ask("GET", "/metrics")
    assert status == 200 and headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    types, seen = {}, set()
    for line in data.decode().splitlines():
        if m := re.fullmatch(r"# TYPE (\S+) (counter|gauge|histogram)", line):
            types[m[1]] = m[2]
        elif not line.startswith("# HELP "):
            m = re.fullmatch(r'([a-z_:][a-z0-9_:]*)((?:\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)+\})?) (\S+)', line)
            assert m, line
            float(m[3])
            assert (m[1], m[2]) not in seen
            seen.add((m[1], m[2]))
            assert m[1] in types or re.sub("_(bucket|sum|count)$", "", m[1]) in types, line
    assert {"vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds"} <= set(types)


def test_many_disconnects(demo):
    """Clients that leave at any moment: nothing is left over."""
    def one(i):
        sock = demo.raw_post(C, {"prompt": f"client {i}", "max_tokens": 60, "n": 1 + i % 3, "stream": i % 2 == 0})
        time.sleep(i % 7 * 0.003)
        sock.close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(120)))
    eventually(lambda: demo.metric("vllm:num_requests_running") + demo.metric("vllm:num_requests_waiting") == 0)
    assert demo.post(C, {"prompt": "a", "max_tokens": 1, "ignore_eos": True})["usage"]["completion_tokens"] == 1


def test_help_and_manual_agree():
    text = gyre("serve", "--help")[0]
    manual = (ROOT / "docs/gyre.1").read_text().replace("\\-", "-")
    own, common = (re.search(rf'^\.SS "{s}.*?(?=^\.S[SH])', manual, re.M | re.S).group(0) for s in ["gyre serve", "Options of"])
    documented = set(re.findall(r"--([a-z0-9-]+)", own + common))
    assert set(re.findall(r"^  --([a-z0-9-]+)", text, re.M)) <= documented


# ---- openai's own client -------------------------------------------------------------------------------------------------------


def test_openai(tmp_path):
    openai = pytest.importorskip("openai")
    path = tmp_path / "t.jinja"
    path.write_text(TEMPLATE)
    with serve(DEMO, "--api-key", "k", "--chat-template", path) as s:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="k", max_retries=0)
        assert [m.id for m in client.models.list()] == ["demo"]
        whole = client.completions.create(model="demo", prompt="Once", max_tokens=8, temperature=0, logprobs=1)
        parts = list(client.completions.create(model="demo", prompt="Once", max_tokens=8, temperature=0, stream=True))
        assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text and whole.usage.completion_tokens == 8
        chat = client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=8, temperature=0)
        parts = list(client.chat.completions.create(model="demo", messages=MESSAGES, max_tokens=8, temperature=0, stream=True,
                                                    stream_options={"include_usage": True}))
        assert "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == chat.choices[0].message.content
        assert parts[-1].usage.total_tokens == chat.usage.total_tokens > 8
        with pytest.raises(openai.BadRequestError) as e:
            client.completions.create(model="demo", prompt="a", max_tokens=-1)
        assert e.value.param == "max_tokens" and e.value.request_id
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model="gpt-4", prompt="a")
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="no").models.list()
        async_client = openai.AsyncOpenAI(base_url=client.base_url, api_key="k", max_retries=0)

        async def ask():
            stream = await async_client.completions.create(model="demo", prompt="Once", max_tokens=8, temperature=0, stream=True)
            return "".join([p.choices[0].text async for p in stream])

        import asyncio
        assert asyncio.run(ask()) == whole.choices[0].text
