"""gyre bench serve as a black box: against a server written here, whose delays and mistakes are known, and against gyre serve.

Times are compared with the delays that the server keeps, generously from above; orders and sums exactly.
"""

import contextlib
import csv
import io
import json
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time
import urllib.request
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree

import pytest

from program import GYRE, OURO, ROOT, gyre

DEMO = str(ROOT / "models/demo")
DISTS = ["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "lag_ms"]
STATS = ["mean", "p50", "p90", "p95", "p99", "max"]


# ---- a server of our own ---------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or the first event waits for the acknowledgement of the head, 40 ms

    def log_message(self, *_):
        pass

    def reply(self, status, body, **headers):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for k, v in {"Content-Type": "application/json", "Content-Length": len(data), **headers}.items():
            self.send_header(k.replace("_", "-"), v)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": "first"}, {"id": "second"}]})
        else:
            self.reply(404, {"error": {"message": "no such path"}})

    def chunk(self, text):
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, **fields):
        self.chunk("data: " + json.dumps({"id": "x", "object": "chunk", **fields}) + "\n\n")

    def choice(self, text, reason=None):
        c = {"delta": {"content": text}} if "chat" in self.path else {"text": text}
        return {"index": 0, **c, "finish_reason": reason}

    def stream(self, body, how):
        n = body.get("max_tokens") or body["max_completion_tokens"]
        time.sleep(how.first)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if "chat" in self.path:
            self.event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        for i in range(n):
            if i:
                time.sleep(how.between)
            if how.mistake == "cut" and i == 2:
                self.close_connection = True
                return
            if how.mistake == "error event" and i == 2:
                self.event(error={"message": "the engine is lost", "code": 500})
                return self.chunk("")
            if how.mistake == "not json" and i == 2:
                self.chunk("data: <html>\n\n")
            self.event(choices=[self.choice(f"w{i} ")])
        self.event(choices=[self.choice("", "length")])
        if how.mistake != "no usage":
            self.event(choices=[], usage={"prompt_tokens": 7, "completion_tokens": n, "total_tokens": 7 + n})
        if how.mistake != "no done":
            self.chunk("data: [DONE]\n\n")
        self.chunk("")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        how = self.server.how
        if self.path == "/tokenize":
            n = len(body["prompt"].split()) * how.word_tok
            return self.reply(200, {"count": n}) if n else self.reply(404, {"detail": "Not Found"})
        with how.lock:
            how.seen.append((time.monotonic(), self.path, body, dict(self.headers)))
            number = len(how.seen)
        if how.mistake in ("429", "400") and number > how.good:
            return self.reply(int(how.mistake), {"error": {"message": f"said no {how.mistake}", "type": "x"}}, Retry_After="1")
        self.stream(body, how)


class Foreign(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    class How:
        def __init__(self, first=0.0, between=0.0, mistake=None, good=10**9, word_tok=0):
            self.first, self.between, self.mistake, self.good, self.word_tok = first, between, mistake, good, word_tok
            self.seen, self.lock = [], threading.Lock()

    def handle_error(self, *_):
        pass  # a client that goes away


@contextlib.contextmanager
def foreign(tls=None, **how):
    s = Foreign(("127.0.0.1", 0), Handler)
    s.how, s.url = Foreign.How(**how), f"http{'s' if tls else ''}://127.0.0.1:{s.server_port}"
    if tls:
        ctx = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ctx.load_cert_chain(*tls)
        s.socket = ctx.wrap_socket(s.socket, server_side=True)
    t = threading.Thread(target=s.serve_forever, args=(0.02,))
    t.start()
    try:
        yield s
    finally:
        s.shutdown()
        t.join()
        s.server_close()


def bench(url, *args, code=0):
    """(figures of the only run, everything) of --json."""
    out, err = gyre("bench", "serve", "--url", url, *args, "--json", "-", "--samples", code=code)
    o = json.loads(out)
    return o["runs"][0], o, err


def prompts(server, warmup=1):
    return [b["prompt"] if "prompt" in b else b["messages"] for _, _, b, _ in server.how.seen[warmup:]]


# ---- times against known delays ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_times_are_those_that_the_server_takes(endpoint):
    first, between, n = 80, 20, 6
    whole = first + (n - 1) * between
    with foreign(first=first / 1e3, between=between / 1e3) as s:
        for _ in range(5):  # a machine that others use makes times longer, and what was late is close to the next
            r, o, _ = bench(s.url, "--endpoint", endpoint, "--concurrency", 4, "--num-prompts", 12, "--output-len", n)
            ends = {"ttft_ms": (first, first + 150), "e2e_ms": (whole, whole + 400),
                    "itl_ms": (between * 0.9, between + 50), "tpot_ms": (between * 0.9, between + 50)}
            if all(a <= r[k]["p50"] < b for k, (a, b) in ends.items()) and r["seconds"] < 3 * whole / 1e3 + 3:
                break
        else:
            pytest.fail(f"not what the server takes: {({k: r[k]['p50'] for k in ends}, r['seconds'])}")
    assert o["model"] == "first" and r["completed"] == r["requests"] == 12 and r["failed"] == 0
    assert r["output_tokens"] == 12 * n and r["prompt_tokens"] == 12 * 7
    # Three requests one after another, four at once; sleeping ends late and never early.
    assert 3 * whole / 1e3 <= r["seconds"]
    assert r["running_peak"] == 4 and r["output_tokens_per_s"] == pytest.approx(12 * n / r["seconds"])
    for k in DISTS:
        assert all(r[k][a] <= r[k][b] for a, b in zip(STATS[1:], STATS[2:]))
    for x in r["samples"]:
        times = [x["sent_ms"] + x["ttft_ms"], *x["output_ms"][1:]]
        assert len(x["output_ms"]) == n and times == sorted(times) and x["output_ms"][0] == pytest.approx(times[0])
        assert x["due_ms"] <= x["sent_ms"] and x["lag_ms"] == pytest.approx(x["sent_ms"] - x["due_ms"], abs=1e-6)
        assert x["tpot_ms"] == pytest.approx((x["e2e_ms"] - x["ttft_ms"]) / (n - 1))
        assert x["sent_ms"] + x["e2e_ms"] >= x["output_ms"][-1]  # the closing event has a choice
    assert r["ttft_ms"]["mean"] == pytest.approx(sum(x["ttft_ms"] for x in r["samples"]) / 12)
    gaps = [b - a for x in r["samples"] for a, b in zip(x["output_ms"], x["output_ms"][1:])]
    assert r["itl_ms"]["mean"] == pytest.approx(sum(gaps) / len(gaps))


def test_goodput_counts_what_keeps_to_it():
    with foreign(first=0.1, between=0.005) as s:
        args = ["--concurrency", 2, "--num-prompts", 4, "--output-len", 3]
        r, o, _ = bench(s.url, *args, "--goodput", "ttft:5000", "tpot:2000", "e2e:9000")
        assert r["good_requests"] == 4 and r["goodput_requests_per_s"] == pytest.approx(4 / r["seconds"])
        assert o["goodput"] == {"ttft_ms": 5000, "tpot_ms": 2000, "e2e_ms": 9000}
        r, _, _ = bench(s.url, *args, "--goodput", "e2e:9000,ttft:99")
        assert r["good_requests"] == 0 and r["completed"] == 4
        assert bench(s.url, *args)[0]["good_requests"] is None


# ---- workloads -----------------------------------------------------------------------------------------------------------------


def test_what_is_sent(tmp_path):
    key = tmp_path / "key"
    key.write_text("sk-7\n")
    with foreign(word_tok=2) as s:
        bench(s.url + "/v1/", "--api-key", f"@{key}", "--header", "X-Team: a", "--num-prompts", 5, "--input-len", 40, "--output-len",
              4, "--prefix-len", 20, "--temperature", 0.5, "--top-k", 9, "--ignore-eos", "--extra-body",
              '{"exit":"latent","max_loops":3,"x":[1,{"y":null}]}', "--warmup", 2)
    assert len(s.how.seen) == 7
    for _, path, b, headers in s.how.seen:
        assert path == "/v1/completions" and headers["Authorization"] == "Bearer sk-7" and headers["X-Team"] == "a"
        words = b.pop("prompt").split()
        assert len(words) == (20 + 40) // 2 and all(re.fullmatch("[a-z]+", w) for w in words)
        assert b == {"model": "first", "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "temperature": 0.5,
                     "top_k": 9, "exit": "latent", "max_loops": 3, "x": [1, {"y": None}], "max_tokens": 4}


def test_prefixes_seeds_and_ids():
    with foreign() as s:
        args = ["--num-prompts", 6, "--output-len", 1, "--concurrency", 1, "--input-len", "3:30", "--prompts", "ids", "--vocab", 50]
        bench(s.url, *args, "--prefix-len", 16)
        bench(s.url, *args, "--prefix-len", 16)
        bench(s.url, *args, "--prefix-len", 16, "--seed", 1)
        p = prompts(s)
    one, two, other = p[:6], p[7:13], p[14:]
    assert one == two != other and len({tuple(x[:16]) for x in one}) == 1
    assert len({tuple(x[16:]) for x in one}) == 6 and len({len(x) for x in one}) > 1
    assert all(19 <= len(x) <= 46 and all(0 <= i < 50 for i in x) for x in one)
    assert s.how.seen[0][2]["prompt"] not in one  # the warm-up


def test_arrivals_are_a_function_of_the_seed():
    args = ["--num-prompts", 40, "--rate", 80, "--output-len", 1, "--warmup", 0]
    with foreign() as s:
        a = bench(s.url, *args)[0]
        b = bench(s.url, *args)[0]
        c = bench(s.url, *args, "--seed", 5)[0]
        even = bench(s.url, *args, "--burstiness", 400)[0]
    due = [[x["due_ms"] for x in r["samples"]] for r in (a, b, c, even)]
    assert due[0] == pytest.approx(due[1], abs=1e-3) and due[0] != pytest.approx(due[2], abs=1)
    assert all(x == sorted(x) for x in due) and a["rate"] == 80
    assert all(x["sent_ms"] >= x["due_ms"] for x in a["samples"])
    gaps = [y - x for x, y in zip([0, *due[3]], due[3])]
    assert all(12.5 * 0.7 < g < 12.5 * 1.3 for g in gaps), gaps  # sd 5 %
    gaps = [y - x for x, y in zip([0, *due[0]], due[0])]
    assert min(gaps) < 12.5 * 0.3 and max(gaps) > 12.5 * 1.7


def test_a_burst_and_a_bound_under_a_rate():
    with foreign(first=0.1) as s:
        r = bench(s.url, "--rate", "inf", "--num-prompts", 30, "--output-len", 1)[0]
        assert r["running_peak"] == 30 and r["rate"] is None and r["concurrency"] is None
        r = bench(s.url, "--request-rate", 1000, "--max-concurrency", 2, "--num-prompts", 8, "--output-len", 1)[0]
    assert r["running_peak"] == 2 and r["held_back"] >= 5 and r["held_back_ms_mean"] > 100


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_conversations_repeat_what_was_said(endpoint):
    with foreign() as s:
        r, o, _ = bench(s.url, "--endpoint", endpoint, "--turns", 3, "--num-prompts", 2, "--concurrency", 1, "--input-len", 5,
                        "--output-len", 2)
        p = prompts(s)
    assert r["completed"] == 6 and len(p) == 6 and r["running_peak"] == 1
    # One conversation after the other: a turn is sent when its reply is there.
    for talk in (p[:3], p[3:]):
        for a, b in zip(talk, talk[1:]):
            if endpoint == "chat":
                assert b[:len(a)] == a and b[len(a)] == {"role": "assistant", "content": "w0 w1 "} and len(b) == len(a) + 2
            else:
                assert b.startswith(a + "w0 w1 ") and len(b.split()) == len(a.split()) + 2 + 5 - 1  # no space before w0
    assert [x["turn"] for x in r["samples"]] == [0, 0, 1, 1, 2, 2]


def test_datasets(tmp_path):
    lines = tmp_path / "d.jsonl"
    lines.write_text('{"prompt":"one \\"é\\"","max_tokens":3}\n{"messages":[{"role":"user","content":"two"}]}\n')
    share = tmp_path / "s.json"
    share.write_text(json.dumps([{"conversations": [{"from": "human", "value": "ask"}, {"from": "gpt", "value": "x" * 40}]}]))
    with foreign() as s:
        r = bench(s.url, "--endpoint", "/v1/chat/completions", "--dataset", lines, "--num-prompts", 3, "--output-len", 2, "--concurrency", 1,
                  "--warmup", 0)[0]
        assert [b["messages"][0]["content"] for _, _, b, _ in s.how.seen] == ['one "é"', "two", 'one "é"']
        assert [x["output_tokens"] for x in r["samples"]] == [3, 2, 3]
        r = bench(s.url, "--dataset-path", share, "--num-prompts", 1, "--warmup", 0)[0]
        assert s.how.seen[-1][2]["prompt"] == "ask" and r["output_tokens"] == 11


def test_max_seconds_and_the_second_run_of_a_sweep():
    with foreign(first=0.05) as s:
        r, _, err = bench(s.url, "--concurrency", 1, "--num-prompts", 1000, "--max-seconds", 0.5, "--output-len", 1)
        assert r["not_sent"] > 900 and r["completed"] == 1000 - r["not_sent"] and r["failed"] == 0
        assert f"{r['not_sent']:.0f} of 1000 requests were not sent" in err
        before = len(s.how.seen)
        o = bench(s.url, "--concurrencies", "1,3", "--num-prompts", 6, "--output-len", 1)[1]
    a, b = o["runs"]
    assert (a["concurrency"], b["concurrency"], a["running_peak"], b["running_peak"]) == (1, 3, 1, 3)
    sent = prompts(s, before + 1)
    assert len(sent) == len(set(sent)) == 12  # no run's prompts are those of the one before


# ---- what goes wrong ---------------------------------------------------------------------------------------------------------------

MISTAKES = [
    ("cut", "broken", 200, "chunk|transfer|closed|partial"),
    ("no done", "broken", 200, r"the stream ended before \[DONE\]"),
    ("error event", "error", 200, "the stream says: the engine is lost"),
    ("not json", "malformed", 200, "an event is not what a server of this API sends: <html>"),
    ("429", "http_429", 429, "HTTP 429: said no 429"),
    ("400", "http_400", 400, "HTTP 400: said no 400"),
]


@pytest.mark.parametrize("mistake,kind,status,message", MISTAKES)
def test_failures_are_counted_and_said(mistake, kind, status, message, tmp_path):
    """With 429 and 400 three of eight requests go well; figures are of them alone."""
    path = tmp_path / "r.csv"
    with foreign(mistake=mistake, good=3) as s:
        r, _, err = bench(s.url, "--num-prompts", 8, "--concurrency", 2, "--output-len", 5, "--warmup", 0, "--csv", path, code=1)
    good = 3 if status != 200 else 0
    assert (r["completed"], r["failed"], r["requests"]) == (good, 8 - good, 8)
    assert r["output_tokens"] == 5 * good and (r["ttft_ms"]["p50"] is None) == (good == 0)
    (e,) = r["errors"]
    assert e["kind"] == kind and e["count"] == 8 - good and re.search(message, e["first"]), e
    assert f"gyre: {8 - good} of 8 requests failed, the first: {e['first']}" in err
    rows = list(csv.DictReader(path.open()))
    assert sum(x["end"] == kind and re.search(message, x["error"]) is not None and x["ttft_ms"] == "" for x in rows) == 8 - good
    assert sum(x["end"] == "done" and x["error"] == "" and float(x["ttft_ms"]) > 0 for x in rows) == good


def test_without_usage_tokens_are_events():
    with foreign(mistake="no usage") as s:
        r, _, _ = bench(s.url, "--num-prompts", 2, "--output-len", 5)
        assert r["output_tokens"] == 10 and r["replies_without_usage"] == 2 and r["cached_prompt_tokens"] is None
        assert "2 replies held no usage" in gyre("bench", "serve", "--url", s.url, "--num-prompts", 2)[0]


def test_silence_is_a_failure():
    with foreign(first=60) as s:
        r, _, _ = bench(s.url, "--num-prompts", 2, "--timeout", 1, "--warmup", 0, code=1)
    assert r["errors"] == [{"kind": "timeout", "count": 2, "first": "nothing came for 1 seconds"}] and r["seconds"] < 50


def test_a_failed_turn_ends_its_conversation():
    with foreign(mistake="400", good=2) as s:
        r, _, err = bench(s.url, "--turns", 3, "--num-prompts", 2, "--concurrency", 2, "--output-len", 1, "--warmup", 0, code=1)
    assert (r["completed"], r["failed"], r["not_sent"]) == (2, 2, 2) and "2 of 6 requests were not sent" in err


def test_warm_up_that_fails_is_the_message():
    with foreign(mistake="400", good=0) as s:
        _, err = gyre("bench", "serve", "--url", s.url, code=1)
        assert f"warm-up: {s.url}: HTTP 400: said no 400" in err and len(s.how.seen) == 1
    url = s.url  # nobody listens there any more
    _, err = gyre("bench", "serve", "--url", url, code=1)
    assert f"gyre: {url}/v1/models: " in err and "connect" in err
    _, err = gyre("bench", "serve", "--url", url, "--model", "m", code=1)
    assert f"gyre: warm-up: {url}: " in err and "connect" in err


def test_ctrl_c_reports_what_there_is():
    with foreign(first=0.1, between=0.05) as s:
        p = subprocess.Popen([GYRE, "bench", "serve", "--url", s.url, "--concurrency", "4", "--num-prompts", "4000", "--json", "-"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while len(s.how.seen) < 9:
            time.sleep(0.01)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=60)
    (r,) = json.loads(out)["runs"]
    assert p.returncode == 1 and r["completed"] + r["failed"] + r["not_sent"] == 4000 and r["completed"] >= 3
    assert [e["kind"] for e in r["errors"]] == ["cancelled"] and 1 <= r["failed"] <= 4


def test_tls(tmp_path):
    cert, pem = tmp_path / "c.pem", tmp_path / "k.pem"
    assert shutil.which("openssl"), "this test needs the program openssl"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-keyout",
                    pem, "-out", cert, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"], check=True,
                   capture_output=True)
    with foreign(tls=(cert, pem)) as s:
        args = ["--num-prompts", 3, "--output-len", 2]
        assert bench(s.url, *args, "--cacert", cert)[0]["completed"] == 3
        assert bench(s.url, *args, "--insecure")[0]["completed"] == 3
        n = len(s.how.seen)
        _, err = gyre("bench", "serve", "--url", s.url, *args, code=1)
        assert "certificate" in err and len(s.how.seen) == n


USAGE = [
    ([], "--url: not given; expected http://HOST:PORT"),
    (["--url", "localhost:8000"], "--url: found 'localhost:8000', expected http://HOST:PORT"),
    (["--url", "http://h", "--rate", "0"], "--rate: found '0', expected requests a second, above 0, or inf"),
    (["--url", "http://h", "--rates", "1,x"], "--rates: found 'x'"),
    (["--url", "http://h", "--rates", "1", "--rate", "2"], "--rates: found --rate or --concurrencies too"),
    (["--url", "http://h", "--concurrencies", "0"], "--concurrencies: found '0', expected 1 to 65536"),
    (["--url", "http://h", "--burstiness", "2"], "--burstiness: has no meaning without a finite --rate"),
    (["--url", "http://h", "--endpoint", "embeddings"], "--endpoint: found 'embeddings', expected completions or chat"),
    (["--url", "http://h", "--endpoint", "chat", "--prompts", "ids"], "--prompts: ids are no messages"),
    (["--url", "http://h", "--turns", "2", "--prompts", "ids"], "--turns: replies come as text"),
    (["--url", "http://h", "--turns", "2", "--dataset", "x"], "--turns: has no meaning with --dataset"),
    (["--url", "http://h", "--input-len", "9:3"], "--input-len: found '9:3'"),
    (["--url", "http://h", "--input-len", "9:30", "--range-ratio", "0.5"], "--range-ratio: --input-len has a range of its own"),
    (["--url", "http://h", "--goodput", "itl:5"], "--goodput: found 'itl:5', expected ttft:MS, tpot:MS or e2e:MS"),
    (["--url", "http://h", "--goodput", "ttft:5", "tpot"], "--goodput: found 'tpot'"),
    (["--url", "http://h", "more"], "found the argument 'more' too much; usage: gyre bench serve --url URL"),
    (["--url", "http://h", "--metrics", "ttft,x"], "--metrics: found 'x', expected ttft, tpot, itl, e2e or lag"),
    (["--url", "http://h", "--extra-body", "[1]"], "--extra-body: found an array, expected an object"),
    (["--url", "http://h", "--extra-body", '{"stream":false}'], '--extra-body: "stream" is for the benchmark itself to say'),
    (["--url", "http://h", "--extra-body", '{"top_p":1}', "--top-p", "0.5"], '--extra-body: "top_p" is also given as --top-p'),
    (["--url", "http://h", "--samples"], "--samples: needs --json"),
    (["--url", "http://h", "--header", "x"], "--header: found 'x', expected 'Name: value'"),
    (["--url", "http://h", "--num-promts", "3"], "unknown option --num-promts; did you mean --num-prompts?"),
    (["--url", "http://h", "--concurrency", "0"], "--concurrency: found 0"),
]


@pytest.mark.parametrize("args,message", USAGE)
def test_mistakes_are_named_before_anybody_is_asked(args, message):
    assert message in gyre("bench", "serve", *args, code=2)[1]


def test_help_and_manual_agree():
    text = gyre("bench", "serve", "--help")[0]
    assert text == gyre("help", "bench", "serve")[0]
    options = set(re.findall(r"^  --([a-z0-9-]+)", text, re.M))
    assert {"url", "rate", "concurrency", "request-rate", "max-concurrency", "goodput", "html"} <= options
    manual = (ROOT / "docs/gyre.1").read_text().replace("\\-", "-")
    section = re.search(r'^\.SS "gyre bench serve".*?(?=^\.S[SH])', manual, re.M | re.S).group(0)
    common = re.search(r'^\.SS "?Options of.*?(?=^\.S[SH])', manual, re.M | re.S).group(0)
    assert options <= set(re.findall(r"--([a-z0-9-]+)", section)) | set(re.findall(r"--([a-z0-9-]+)", common))


# ---- reports -------------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Every tag is closed in its order; remembers tags and their attributes."""

    VOID = {"meta", "link", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.ids = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [v for k, v in attrs if k == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone(tmp_path):
    path = tmp_path / "r.html"
    with foreign(between=0.002) as s:
        gyre("bench", "serve", "--url", s.url, "--rates", "20,60", "--num-prompts", 12, "--output-len", 4, "--html", path, "--goodput",
             "ttft:500", "--model", "<b>&")
    text = path.read_text()
    page = Page()
    page.feed(text)
    assert not page.open and len(page.ids) == len(set(page.ids))
    assert not [t for t in page.tags if t[0] in ("script", "link", "img", "iframe", "object", "b") and t[0] != "b"]
    assert not re.search(r"(src|href)\s*=|url\(|@import|<b>&|nan|inf\b", text)
    assert "<title>gyre bench serve: &lt;b&gt;&amp;</title>" in text and "prefers-color-scheme:dark" in text
    svgs = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(svgs) == 4 + 2 * 6  # the curves, then each run's
    for svg in svgs:
        x = ElementTree.fromstring(svg)
        title, desc = x.find("title"), x.find("desc")
        assert x.get("role") == "img" and x.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
        assert title.text and desc.text
        labels = [t.text for t in x.iter("text") if t.get("class") == "label"]
        assert len(labels) == 2 and all(labels)
        w, h = map(float, x.get("viewBox").split()[2:])
        for m in re.finditer(r'c[xy]="([^"]+)"|[ML]([\d.-]+) ([\d.-]+)', svg):
            for v in filter(None, m.groups()):
                assert -1 <= float(v) <= max(w, h) + 1, m.group(0)


def test_table_and_files(tmp_path):
    with foreign() as s:
        args = ["bench", "serve", "--url", s.url, "--num-prompts", 3, "--output-len", 4]
        table = gyre(*args, "--json", tmp_path / "r.json", "--csv", tmp_path / "r.csv")[0]
        few = gyre(*args, "--percentile-metrics", "ttft,e2el")[0]
        rows = list(csv.DictReader(io.StringIO(gyre(*args, "--csv", "-")[0])))
        gyre(*args, "--save-result", cwd=tmp_path)
        out, err, *_ = gyre(*args, "--html", tmp_path / "no/such", code=1)
        assert "--html" in err and "cannot write" in err and not out  # found before anything is sent
    for word in ["TTFT", "TPOT", "ITL", "E2E", "lag", "requests completed", "output tokens", "generator's processor", "3 of 3"]:
        assert word in table
    assert "ITL" not in few and "TTFT" in few and "E2E" in few and "goodput" not in few
    assert "samples" not in json.loads((tmp_path / "r.json").read_text())["runs"][0]
    assert len(rows) == 3 == len(list(csv.DictReader((tmp_path / "r.csv").open()))) and all(x["output_tokens"] == "4" for x in rows)
    (saved,) = tmp_path.glob("bench-serve-*.json")
    assert json.loads(saved.read_text())["runs"][0]["completed"] == 3


# ---- gyre serve ------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(model, *args):
    p = subprocess.Popen([GYRE, "serve", str(model), "--port", "0", "--threads", "1", *map(str, args)], stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, text=True)
    try:
        seen = ""
        while "serving " not in seen:
            line = p.stderr.readline()
            assert line, seen
            seen += line
        p.url = "http://127.0.0.1:" + re.search(r"listening on http://[^ ]*:(\d+)", seen).group(1)
        yield p
    finally:
        p.kill()
        p.communicate()


def test_gyre_serve():
    with serving(DEMO, "--served-model-name", "demo") as s:
        r, o, _ = bench(s.url, "--num-prompts", 8, "--concurrency", 4, "--input-len", 40, "--output-len", 10, "--ignore-eos")
        assert o["model"] == "demo" and r["completed"] == 8 and r["output_tokens"] == 80
        # The closing event has a text when the last tokens were parts of a character.
        assert all(10 <= len(x["output_ms"]) <= 11 and x["end"] == "done" for x in r["samples"])
        assert 1 <= r["mean_loops"] <= 4 and all(x["mean_loops"] >= 1 for x in r["samples"])
        # The length of words was asked for: prompts are as long as they should be, within half a word each.
        per_word = o["workload"]["tokens_per_word"]
        assert per_word > 1 and abs(r["prompt_tokens"] / 8 - 40) <= 0.25 * 40
        assert all(r[k][v] is not None for k in DISTS for v in STATS) and r["replies_without_usage"] == 0
        # Depth is a field of the request like others.
        r, _, _ = bench(s.url, "--num-prompts", 2, "--output-len", 6, "--ignore-eos", "--seed", 3, "--extra-body",
                        '{"max_loops":2}')
        # The first output comes from the prompt's last token.
        assert r["mean_loops"] <= 2.5
        # Conversations: later turns find the earlier ones in the prefix cache.
        r, _, _ = bench(s.url, "--turns", 3, "--num-prompts", 2, "--input-len", 60, "--output-len", 8, "--ignore-eos", "--seed", 4)
        assert r["completed"] == 6 and r["cached_prompt_tokens"] >= 2 * 2 * 32
        _, err = gyre("bench", "serve", "--url", s.url, "--model", "other", code=1)
        assert "warm-up: " in err and "HTTP 404" in err and "other" in err
        _, err = gyre("bench", "serve", "--url", s.url + "/nowhere", code=1)
        assert "/nowhere/v1/models: HTTP 404" in err


def test_gyre_serve_keys_and_full_queue():
    with serving(OURO, "--api-key", "sk-1", "--max-seqs", 1, "--max-queue", 2) as s:
        _, err = gyre("bench", "serve", "--url", s.url, code=1)
        assert "/v1/models: HTTP 401" in err
        r, _, err = bench(s.url, "--api-key", "sk-1", "--prompts", "ids", "--rate", "inf", "--num-prompts", 12, "--input-len", 8, "--output-len",
                          100, "--ignore-eos", code=1)
        assert r["completed"] >= 3 and [e["kind"] for e in r["errors"]] == ["http_429"]
        assert r["completed"] + r["errors"][0]["count"] == 12 and "HTTP 429" in err


def tokens_so_far(url):
    text = urllib.request.urlopen(url + "/metrics", timeout=60).read().decode()
    return float(re.search(r"^vllm:generation_tokens_total\S* (\S+)", text, re.M).group(1))


def test_gyre_serve_killed_midway():
    with serving(OURO, "--max-seqs", 8) as s:
        b = subprocess.Popen([GYRE, "bench", "serve", "--url", s.url, "--prompts", "ids", "--concurrency", "4", "--num-prompts", "2000",
                              "--input-len", "8", "--output-len", "60", "--json", "-", "--warmup", "0"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
        while tokens_so_far(s.url) < 500:
            time.sleep(0.05)
        s.kill()
        out, err = b.communicate(timeout=120)
    (r,) = json.loads(out)["runs"]
    assert b.returncode == 1 and r["completed"] + r["failed"] == 2000 and r["not_sent"] == 0 and r["completed"] >= 4
    assert {e["kind"] for e in r["errors"]} <= {"broken", "unreached"} and sum(e["count"] for e in r["errors"]) == r["failed"]
    assert "of 2000 requests failed, the first: " in err and r["seconds"] > 0
