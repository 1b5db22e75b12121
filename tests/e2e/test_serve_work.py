"""gyre serve's way from a body to the engine: what takes long holds nobody up, what is bounded is refused, what leaves is forgotten,
and constraints hold whoever asks for them.

Whether something was held up is measured against the work itself: streams that waited for it would stand still as long as it took.
"""

import contextlib
import json
import re
import socket
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from program import LASTING, OURO, gyre, roomy
from test_serve import ABORTED, C, CHAT, DEMO, eventually, frames, serve

# turns: how long the template takes, whatever it prints: 0.15 to 0.6 ms each; 2800 are as many as it may.
TEMPLATE = ("{% for m in messages %}{{ '<' + m.role + '>' }}{{ m.content }}{{ '\\n' }}{% endfor %}"
            "{% for i in range(turns | default(0)) %}{% for j in range(1000) %}{% if j < 0 %}x{% endif %}{% endfor %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}")
WORDS = "The quick brown fox, "
HEAVY = {"prompt": WORDS * 200000}  # most of a second of the lane of large bodies: what waits behind it is there for a while
LARGE = "x" * 70000  # makes a body of that lane


def user(text):
    return [{"role": "user", "content": text}]


def slow(turns, **more):
    return {"messages": user("Hi"), "max_tokens": 4, "temperature": 0, "chat_template_kwargs": {"turns": turns}, **more}


@contextlib.contextmanager
def chat_server(tmp_path, *args, model=DEMO):
    path = tmp_path / "t.jinja"
    path.write_text(TEMPLATE)
    with serve(model, "--chat-template", path, *args) as s:
        yield s


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    with chat_server(tmp_path_factory.mktemp("chat")) as s:
        yield s


def jobs(s):
    return s.metric("gyre:work_jobs")


# ---- nobody waits for a stranger's prompt ------------------------------------------------------------------------------------

# Another process: what it does must not hold up the one that measures.
POSTER = """
import http.client, json, sys, time
port, path = int(sys.argv[1]), sys.argv[2]
made = json.loads(sys.argv[3])
if "repeat" in made:
    text, n = made.pop("repeat")
    made["prompt"] = text * n
data = json.dumps(made)
c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
c.connect()
print("ready", flush=True)
sys.stdin.readline()
begin = time.monotonic()
c.request("POST", path, data, {"Content-Type": "application/json"})
r = c.getresponse()
first = time.monotonic()
body = r.read()
print(json.dumps({"status": r.status, "begin": begin, "end": first, "said": body[:2000].decode(errors="replace")}), flush=True)
"""


class Stream:
    """A stream that never ends; when each piece of it came."""

    def __init__(self, s):
        self.port, self.at = s.port, []
        self.sock = None

    def ask(self):
        body = json.dumps({"prompt": "On and on", "max_tokens": 480, "ignore_eos": True, "stream": True, "temperature": 0})
        self.sock = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        self.sock.sendall((f"POST {C} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}").encode())

    def run(self, until):
        """Streams follow each other; a gap is one between two pieces of one stream."""
        while not until():
            self.ask()
            times = []
            while (data := self.sock.recv(65536)):
                times.append(time.monotonic())
                if until():
                    break
            self.sock.close()
            self.at.append(times)

    def gaps(self, begin, end):
        return [b - a for times in self.at for a, b in zip(times, times[1:]) if b > begin and a < end]


def beside(s, path, body):
    """Posts body from another process while a stream runs here. What came of it, how long it took, the stream's longest gap
    meanwhile, and the median one."""
    p = subprocess.Popen([sys.executable, "-c", POSTER, str(s.port), path, json.dumps(body)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
    with p, ThreadPoolExecutor(1) as pool:
        assert p.stdout.readline() == "ready\n"
        reply = pool.submit(p.stdout.readline)
        p.stdin.write("go\n")
        p.stdin.flush()
        stream = Stream(s)
        stream.run(reply.done)
    told = json.loads(reply.result())
    took, gaps = told["end"] - told["begin"], stream.gaps(told["begin"], told["end"])
    return (told, took, max(gaps), statistics.median(gaps)) if len(gaps) > 5 else (told, took, took, took)


@pytest.mark.parametrize("path, body, status, words", [
    (C, {"repeat": [WORDS, 240000]}, 400, "context"),
    ("/tokenize", {"repeat": [WORDS, 120000]}, 200, '"count":'),
    (CHAT, slow(2500), 200, "assistant"),
    ("/apply_template", {"messages": user("Hi"), "chat_template_kwargs": {"turns": 2500}}, 200, "prompt"),
])
def test_streams_flow_beside(chat, path, body, status, words):
    """On the loop the longest gap is about the whole time. The best of ten counts: a machine that others use makes gaps too."""
    seen = []
    for _ in range(10):
        told, took, longest, median = beside(chat, path, body)
        assert told["status"] == status and words in told["said"], told
        seen.append((round(took, 3), round(longest, 3), round(median, 5)))
        if longest < took / 3:
            return
    pytest.fail(f"a stream stood still: (took, longest gap, median gap) = {seen}")


def test_quick_ones_do_not_wait_for_slow_ones(chat):
    """A large body and a constraint have a lane of their own; a chat passes them."""
    with ThreadPoolExecutor(1) as pool:
        big = pool.submit(chat.ask, "POST", "/tokenize", {"prompt": WORDS * 300000})
        eventually(lambda: jobs(chat) > 0)
        chat.post(CHAT, slow(0))
        assert not big.done()
        assert big.result()[0] == 200


@pytest.mark.parametrize("body, words", [
    ('{"prompt":"a","guided_json":' + '{"properties":{"a":' * 5000 + "{}" + "}}" * 5000 + "}", "deep"),
    ({"prompt": "a", "guided_regex": "(" * 5000 + ")" * 5000}, "groups"),
    ({"prompt": "a", "guided_regex": "(a|b)*a(a|b){30}"}, "guided_regex"),
    ({"prompt": "a", "guided_choice": ["x" * 1000] * 1000}, "guided_choice"),
])
def test_what_is_too_deep_or_too_large(chat, body, words):
    status, _, data = chat.ask("POST", C, body)
    assert status == 400 and words in json.loads(data)["error"]["message"], data


# ---- bounds --------------------------------------------------------------------------------------------------------------------


def test_bound_of_the_lane(tmp_path):
    """--max-queue 1 and --max-seqs 1: two may be prepared at a time on a lane, the third is told to come back."""
    with chat_server(tmp_path, "--max-queue", 1, "--max-seqs", 1) as s, ThreadPoolExecutor(8) as pool:
        first = []
        for path, body in ("/tokenize", HEAVY), (CHAT, slow(0, junk=LARGE)):
            first.append(pool.submit(s.ask, "POST", path, body))
            eventually(lambda: jobs(s) == len(first))
        status, headers, data = s.ask("POST", CHAT, slow(0, junk=LARGE))
        e = json.loads(data)["error"]
        assert (status, e["code"], e["type"]) == (429, "queue_full", "rate_limit_error") and "wait to be read" in e["message"]
        assert int(headers["Retry-After"]) >= 1
        assert s.metric("gyre:work_refused_total") == 1
        assert all(f.result()[0] == 200 for f in first)
        assert s.ask("POST", CHAT, slow(0))[0] == 200
        eventually(lambda: s.metric("gyre:request_body_bytes") == 0)  # what was refused is forgotten too


def test_bound_of_prompt_tokens(tmp_path):
    with chat_server(tmp_path, "--max-seqs", 1, "--max-queue-tokens", 100, model=roomy(tmp_path)) as s:
        assert s.metric("gyre:queue_tokens_limit") == 100 and s.metric("gyre:queue_limit") == 1024
        # When nothing waits, what is longer than the bound is taken.
        assert s.ask("POST", C, {"prompt": [5] * 200, "max_tokens": 1})[0] == 200
        runs = s.raw_post(C, LASTING)
        eventually(lambda: s.metric("vllm:num_requests_running") == 1)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(s.ask, "POST", C, {"prompt": [7] * 60, "max_tokens": 1})
            eventually(lambda: s.metric("gyre:backlog_tokens") == 60)
            status, headers, data = s.ask("POST", C, {"prompt": [9] * 41, "max_tokens": 1})
            e = json.loads(data)["error"]
            assert (status, e["code"]) == (429, "queue_full"), data
            assert "60 prompt tokens wait and this request has 41, together at most 100" in e["message"]
            assert 1 <= int(headers["Retry-After"]) <= 60
            also = s.raw_post(C, {"prompt": [9] * 40, "max_tokens": 1})
            eventually(lambda: s.metric("gyre:backlog_tokens") == 100)
            also.close()
            eventually(lambda: s.metric("gyre:backlog_tokens") == 60)  # who leaves waits no more
            runs.close()
            assert waits.result()[0] == 200
        assert s.metric("gyre:backlog_tokens") == 0 and s.metric("gyre:prefill_tokens_per_second") > 0


def test_bound_of_held_bytes(tmp_path):
    """A body counts until its request ends: 128 MiB of them together."""
    big = json.dumps({"prompt": "a", "max_tokens": 1, "junk": "x" * (70 << 20)})
    with chat_server(tmp_path, "--max-body-bytes", "100M") as s, ThreadPoolExecutor(8) as pool:
        before = [pool.submit(s.ask, "POST", "/tokenize", HEAVY) for _ in range(2)]
        eventually(lambda: jobs(s) == 2)
        first = pool.submit(s.ask, "POST", C, big)  # behind those
        eventually(lambda: s.metric("gyre:request_body_bytes") > 70 << 20)
        status, headers, data = s.ask("POST", C, big)
        e = json.loads(data)["error"]
        assert (status, e["code"]) == (429, "queue_full") and "too many bytes" in e["message"] and headers["Retry-After"]
        assert s.ask("POST", C, {"prompt": "a", "max_tokens": 1})[0] == 200
        assert [f.result()[0] for f in [*before, first]] == [200] * 3
        eventually(lambda: s.metric("gyre:request_body_bytes") == 0)


# ---- clients that leave, connections that go on, servers that stop ----------------------------------------------------------------


def test_clients_leave_while_they_are_prepared(chat):
    before = chat.metric("http_requests_total")
    body = json.dumps(slow(400)).encode()
    big = json.dumps({"prompt": WORDS * 100000}).encode()
    socks = [chat.raw(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                      f"Content-Length: {len(b)}\r\n\r\n") for path, b in [(CHAT, body), (C, big), ("/tokenize", big)] * 4]
    for sock, b in zip(socks, [body, big, big] * 4):
        sock.sendall(b)
    eventually(lambda: jobs(chat) > 3)
    for sock in socks:
        sock.close()
    eventually(lambda: jobs(chat) == 0)
    eventually(lambda: chat.metric("http_requests_total") >= before + 12)
    assert chat.metric("vllm:num_requests_running") == 0 and chat.metric("gyre:backlog_tokens") == 0
    assert chat.post(CHAT, slow(0))["choices"]


def test_what_nobody_waits_for_is_not_prepared(chat):
    def busy():
        return chat.metric("gyre:work_seconds_total")

    before = busy()
    chat.post(CHAT, slow(1500))
    one = busy() - before
    before, told = busy(), chat.metric("http_requests_total")
    socks = [chat.raw_post(CHAT, slow(1500)) for _ in range(20)]
    for sock in socks:
        sock.close()
    eventually(lambda: chat.metric("http_requests_total") >= told + 20 and jobs(chat) == 0)
    assert busy() - before < 10 * one  # the one that runs, and what ended before they left


def test_who_leaves_takes_all_prompts_along(tmp_path):
    with serve(roomy(tmp_path)) as s:
        sock = s.raw_post(C, {**LASTING, "prompt": ["a", "b", "c"], "n": 2})
        eventually(lambda: s.metric("vllm:num_requests_running") == 6)
        sock.close()
        eventually(lambda: s.metric("vllm:num_requests_running") == 0)
        eventually(lambda: s.metric(ABORTED) == 6)


def test_answers_keep_the_order_of_a_connection(chat):
    def text(path, body):
        data = json.dumps(body)
        return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n{data}"

    asks = [(CHAT, slow(300), '"chat.completion"'), (C, {"prompt": "a", "max_tokens": 2}, '"text_completion"'),
            ("/tokenize", {"prompt": WORDS * 20000}, '"count":420000'), ("/tokenize", {"prompt": "ab"}, '"count":2')]
    sock = chat.raw("".join(text(path, body) for path, body, _ in asks))
    f = sock.makefile("rb")
    for _, _, words in asks:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += f.readline()
        assert head.startswith(b"HTTP/1.1 200 "), head
        size = int(re.search(rb"Content-Length: (\d+)", head).group(1))
        assert words in f.read(size).decode()
    sock.close()


def test_drain_waits_for_what_is_prepared(tmp_path):
    # The lane is niced: beside others its second may last longer than a drain by default.
    with chat_server(tmp_path, "--shutdown-timeout", 300) as s, ThreadPoolExecutor(2) as pool:
        before = pool.submit(s.ask, "POST", "/tokenize", HEAVY)
        eventually(lambda: jobs(s) == 1)
        asked = pool.submit(s.ask, "POST", CHAT, slow(1500, junk=LARGE))
        eventually(lambda: jobs(s) == 2)
        s.stop()
        assert before.result()[0] == 200
        status, _, data = asked.result()
        assert status == 200 and json.loads(data)["usage"]["completion_tokens"] == 4


def test_stop_does_not_wait_longer_than_it_may(tmp_path):
    with chat_server(tmp_path, "--shutdown-timeout", 0) as s:
        socks = [s.raw_post("/tokenize", HEAVY)]
        eventually(lambda: jobs(s) == 1)
        socks += [s.raw_post(CHAT, slow(1500, junk=LARGE)) for _ in range(2)]
        eventually(lambda: jobs(s) == 3)
        s.stop()  # the one that runs ends, the others never begin
        for sock in socks:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1000) == b""


def test_deadline_while_it_is_prepared(tmp_path):
    with chat_server(tmp_path, "--request-timeout", 0.1) as s, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(s.ask, "POST", CHAT, slow(2500)) for _ in range(4)]
        statuses = [f.result()[0] for f in asked]
        assert statuses.count(408) >= 3 and set(statuses) <= {200, 408}
        eventually(lambda: jobs(s) == 0)
        eventually(lambda: s.ask("POST", C, {"prompt": "a", "max_tokens": 1})[0] == 200)  # within 0.1 s, if this machine lets it


# ---- constraints -----------------------------------------------------------------------------------------------------------------

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0,
          "maximum": 120}, "tags": {"type": "array", "items": {"enum": ["a", "b", 3, None]}, "maxItems": 3}},
          "required": ["name", "age"], "additionalProperties": False}
EBNF = 'root ::= word ("-" word)? "!"\nword ::= [a-c]{2} | "\\"" [0-9] "\\""'
CHOICES = ["yes", "no (or maybe)", "a|b*", "\\d+", "ä\n\t\"'", "yes!"]


def is_person(text):
    v = json.loads(text)
    assert set(v) <= {"name", "age", "tags"} and {"name", "age"} <= set(v)
    assert isinstance(v["name"], str) and len(v["name"]) <= 6
    assert type(v["age"]) is int and 0 <= v["age"] <= 120
    assert len(v.get("tags", [])) <= 3 and all(t in ["a", "b", 3, None] for t in v.get("tags", []))


def is_object(text):
    assert isinstance(json.loads(text), dict)


def matches(pattern):
    def check(text):
        assert re.fullmatch(pattern, text), text
    return check


def is_choice(text):
    assert text in CHOICES, text


RE = r"[A-Z][a-z]{1,3} (\d\.){2}(x|yy)"
KINDS = [
    ({"response_format": {"type": "json_object"}}, is_object),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}}, is_person),
    ({"response_format": {"type": "json_object", "schema": PERSON}}, is_person),
    ({"guided_json": PERSON}, is_person),
    ({"json_schema": PERSON}, is_person),
    ({"guided_regex": RE}, matches(RE)),
    ({"guided_grammar": EBNF}, matches(r'([a-c]{2}|"\d")(-([a-c]{2}|"\d"))?!')),
    ({"grammar": EBNF}, matches(r'([a-c]{2}|"\d")(-([a-c]{2}|"\d"))?!')),
    ({"guided_choice": CHOICES}, is_choice),
    ({"structured_outputs": {"json": PERSON}}, is_person),
    ({"structured_outputs": {"regex": RE}}, matches(RE)),
    ({"structured_outputs": {"grammar": EBNF}}, matches(r'([a-c]{2}|"\d")(-([a-c]{2}|"\d"))?!')),
    ({"structured_outputs": {"choice": CHOICES}}, is_choice),
    ({"structured_outputs": {"json_object": True}}, is_object),
]


@pytest.fixture(scope="module")
def brace(chat):
    """What makes an object of random weights end soon."""
    return {str(chat.post("/tokenize", {"prompt": c})["tokens"][0]): b for c, b in (("}", 12), ('"', 6), ("]", 6))}


@pytest.mark.parametrize("i", range(len(KINDS)))
def test_constraint(chat, brace, i):
    """Both routes, streamed and not, three choices, greedy and seeded."""
    extra, check = KINDS[i]
    bias = {"logit_bias": brace} if check is is_object else {}
    n = 0
    for k, (path, what) in enumerate([(C, {"prompt": "Say "}), (CHAT, {"messages": user("Say")})] * 2):
        body = {**what, **extra, **bias, "max_tokens": 200, "n": 3, "seed": i, "temperature": 1.2 if k > 1 else 0, "stream": k % 2 == 1}
        status, _, data = chat.ask("POST", path, body)
        assert status == 200, data
        if body["stream"]:
            texts, ends = [""] * 3, [None] * 3
            for f in frames(data):
                for c in f["choices"]:
                    texts[c["index"]] += c["text"] if path == C else c["delta"].get("content") or ""
                    ends[c["index"]] = c["finish_reason"] or ends[c["index"]]
        else:
            choices = json.loads(data)["choices"]
            texts = [c["text"] if path == C else c["message"]["content"] for c in choices]
            ends = [c["finish_reason"] for c in choices]
        for text, end in zip(texts, ends):
            if end == "stop":
                check(text)
                n += 1
    assert n >= 9, "too few outputs ended"


def test_constraint_of_each_prompt(chat):
    done = chat.post(C, {"prompt": ["a", [70, 71], "c"], "guided_regex": "[0-9]{6}", "n": 2, "max_tokens": 20, "temperature": 1, "seed": 5})
    assert len(done["choices"]) == 6 and all(re.fullmatch("[0-9]{6}", c["text"]) for c in done["choices"]), done


@pytest.mark.parametrize("size", [10, 2000, 70000])
def test_unknown_fields_count_once(chat, size):
    """On the loop, on the lane of chats and then on the other, or only there."""
    for path, what in (C, {"prompt": "a"}), (CHAT, {"messages": user("a")}):
        before = chat.metric("gyre:unknown_fields_total")
        chat.post(path, {**what, "guided_regex": "a", "max_tokens": 2, "no_such": "x" * size, "nor_this": 1})
        assert chat.metric("gyre:unknown_fields_total") == before + 2


@pytest.mark.parametrize("extra, param, code, words", [
    ({"guided_regex": "(a"}, "guided_regex", None, "expected ')'"),
    ({"guided_regex": "a(?=b)"}, "guided_regex", "unsupported_parameter", "lookahead"),
    ({"guided_regex": ""}, "guided_regex", None, "not empty"),
    ({"guided_grammar": "root ::= x"}, "guided_grammar", None, "x"),
    ({"guided_grammar": "start ::= \"a\""}, "guided_grammar", None, "root"),
    ({"guided_choice": []}, "guided_choice", None, "array"),
    ({"guided_json": {"type": "objekt"}}, "guided_json", None, "objekt"),
    ({"guided_json": {"type": "string", "format": "iri-reference"}}, "guided_json", "unsupported_parameter", "iri-reference"),
    ({"guided_json": {"$ref": "http://example.com/s.json"}}, "guided_json", "unsupported_parameter", ""),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"properties": {"a": {"not": {}}}}}}},
     "response_format.json_schema.schema", "unsupported_parameter", "not"),
    ({"response_format": {"type": "xml"}}, "response_format.type", None, "xml"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", None, "second constraint"),
    ({"structured_outputs": {"regex": "a", "grammar": "root ::= \"a\""}}, "structured_outputs.grammar", None, "second constraint"),
    ({"guided_regex": "a" * 300000}, "guided_regex", None, ""),
])
def test_bad_constraint(chat, extra, param, code, words):
    for path, what in (C, {"prompt": "a"}), (CHAT, {"messages": user("a")}):
        status, _, data = chat.ask("POST", path, {**what, **extra, "max_tokens": 4})
        e = json.loads(data)["error"]
        assert status == 400 and e["param"] == param and words in e["message"], data
        assert code is None or e["code"] == code, data


def test_constraint_without_tokenizer():
    with serve(OURO) as s:
        status, _, data = s.ask("POST", C, {"prompt": [5, 6], "guided_regex": "a+"})
        assert status == 400 and json.loads(data)["error"]["param"] == "guided_regex" and "tokenizer" in data.decode()


def test_constrained_equals_run(chat, tmp_path):
    """16 clients at a time, four constraints, seeds: what gyre run says alone."""
    kinds = [("regex", "guided_regex", RE), ("grammar", "guided_grammar", EBNF), ("json_schema", "guided_json", PERSON),
             ("regex", "guided_regex", r"(ab|[0-9]+)*x")]
    asks = [{"prompt": f"Number {i}: ", "max_tokens": 60, "temperature": 0.9, "seed": 100 + i, "n": 2, "top_p": 0.95} for i in range(32)]
    lines = tmp_path / "in.jsonl"
    lines.write_text("".join(json.dumps({**a, kinds[i % 4][0]: kinds[i % 4][2]}) + "\n" for i, a in enumerate(asks)))
    want = {}
    for line in gyre("run", DEMO, "--json", "--input", lines)[0].splitlines():
        r = json.loads(line)
        want[r["index"], r.get("choice", 0)] = r["token_ids"]

    def one(i):
        body = {**asks[i], kinds[i % 4][1]: kinds[i % 4][2], "return_token_ids": True}
        return [c["token_ids"] for c in chat.post(C, body)["choices"]]

    with ThreadPoolExecutor(16) as pool:
        for i, got in enumerate(pool.map(one, range(len(asks)))):
            assert got == [want[i, 0], want[i, 1]], asks[i]


CALLS = [{"type": "function", "function": {"name": "light", "parameters": {"type": "object", "properties": {
             "room": {"enum": ["hall", "bath"]}, "level": {"type": "integer", "minimum": 0, "maximum": 9}},
             "required": ["room", "level"], "additionalProperties": False}}},
         {"type": "function", "function": {"name": "off"}}]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "light"}}])
def test_a_call_that_must_be_made(chat, choice):
    for seed in range(6):
        body = {"messages": user("Do it"), "tools": CALLS, "tool_choice": choice, "max_tokens": 200, "seed": seed}
        c = chat.post(CHAT, body)["choices"][0]
        (call,) = c["message"]["tool_calls"]
        args = json.loads(call["function"]["arguments"])
        assert call["function"]["name"] == "light" or (choice == "required" and call["function"]["name"] == "off" and args == {})
        if call["function"]["name"] == "light":
            assert args["room"] in ("hall", "bath") and 0 <= args["level"] <= 9


def test_masks_are_kept(chat):
    for _ in range(2):
        chat.post(C, {"prompt": "a", "guided_regex": "[a-f]{8}", "max_tokens": 20})
    masks = re.findall(r'gyre:grammar_masks_total{.*source="cache"} (\S+)', chat.ask("GET", "/metrics")[2].decode())
    assert float(masks[0]) > 0


def test_openai_parses(chat):
    openai = pytest.importorskip("openai")
    pydantic = pytest.importorskip("pydantic")

    class Step(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=5)
        ok: bool

    class Plan(pydantic.BaseModel):
        steps: list[Step] = pydantic.Field(max_length=2)
        total: int = pydantic.Field(ge=0, le=9)

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{chat.port}/v1", api_key="-", max_retries=0)
    done = client.chat.completions.parse(model="demo", messages=user("Plan"), response_format=Plan, max_tokens=300, seed=3)
    plan = done.choices[0].message.parsed
    assert isinstance(plan, Plan) and 0 <= plan.total <= 9 and len(plan.steps) <= 2
    with client.chat.completions.stream(model="demo", messages=user("Plan"), response_format=Plan, max_tokens=300, seed=4) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Plan)
    done = client.chat.completions.create(model="demo", messages=user("Say"), extra_body={"guided_choice": ["left", "right"]})
    assert done.choices[0].message.content in ("left", "right")
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="demo", messages=user("Say"), extra_body={"guided_regex": "(?<=a)b"})
    assert e.value.param == "guided_regex" and e.value.code == "unsupported_parameter"
