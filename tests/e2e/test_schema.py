"""docs/openapi.json against the sources and against the server: what it allows is served as it says, what it forbids is
refused, and nothing that a client sends is the server's fault or stays behind.

Two generators draw from the file. schemathesis makes bodies, paths, headers and methods, right and wrong. Our own makes
bodies that also hold what the file cannot say (the context, fields that need each other): each of them must get its 200.
GY_SCHEMA_EXAMPLES=N draws N for each route and mode instead of a few, with fresh randomness: for long runs by hand.
"""

import json
import os
import re

import hypothesis
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from schemathesis.checks import CHECKS, load_all_checks

from program import ROOT
from test_serve import C, CHAT, DEMO, JSON, TEMPLATE, eventually, frames, serve

FILE = ROOT / "docs/openapi.json"
DOC = json.loads(FILE.read_text())
LONG = int(os.environ.get("GY_SCHEMA_EXAMPLES", "0"))
CONTEXT = 96
BODIES = {"/v1/completions": "CompletionRequest", "/v1/chat/completions": "ChatRequest", "/tokenize": "TokenizeRequest",
          "/detokenize": "DetokenizeRequest", "/apply_template": "TemplateRequest"}
HARD = {"structured_outputs", "guided_json", "json_schema", "guided_regex", "regex", "guided_grammar", "grammar", "ebnf",
        "guided_choice", "response_format"}


def budget(few):
    return hypothesis.settings(max_examples=LONG or few, deadline=None, database=None, derandomize=not LONG, print_blob=True,
                               phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
                               suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("schema") / "t.jinja"
    path.write_text(TEMPLATE)
    with serve(DEMO, "--chat-template", path, "--max-len", CONTEXT) as s:
        yield s
        assert_books_at_zero(s)


def assert_books_at_zero(s):
    eventually(lambda: s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting") == 0)
    assert s.metric(r'gyre:kv_blocks\{[^}]*owner="requests"\}') == 0
    assert s.ask("GET", "/health")[0] == 200


# ---- the file and the sources ------------------------------------------------------------------------------------------------


def test_file_is_valid():
    meta = {"$ref": "https://json-schema.org/draft/2020-12/schema"}
    for name, schema in DOC["components"]["schemas"].items():
        assert jsonschema_rs.is_valid(meta, schema), name
    refs = re.findall(r'"\$ref": "#/components/(\w+)/(\w+)"', FILE.read_text())
    assert refs and all(name in DOC["components"][kind] for kind, name in refs)
    used = {name for _, name in refs} | {"CompletionChunk", "ChatChunk"}
    assert used == set(DOC["components"]["schemas"]) | set(DOC["components"]["responses"])


def test_fields_are_those_of_the_table():
    """Each row of the table of oai_request.c is a property of the request's schema, and the other way round."""
    one = {"C": "CompletionRequest", "H": "ChatRequest", "T": "TokenizeRequest", "D": "DetokenizeRequest", "A": "TemplateRequest"}
    source = (ROOT / "src/server/oai_request.c").read_text()
    table = re.search(r"field_row fields\[\] = \{(.*?)^\};", source, re.S | re.M).group(1)
    where = {k: [k] for k in one} | {"S": "CH", "M": "HTA", "ALL": "CHTDA"}
    rows = re.findall(r'^ +(?:[A-Z]+\(|\{\.name = )"(\w+)", (?:\.where = )?([A-Z |]+),', table, re.M)
    assert len(rows) == table.count('"') // 2 > 90
    code = {(one[k], name) for name, w in rows for word in w.split(" | ") for k in where[word]}
    assert code == {(s, name) for s in one.values() for name in DOC["components"]["schemas"][s]["properties"]}


def test_routes_are_those_of_the_table():
    table = re.search(r"gy_app_route routes\[\] = \{(.*?)^\};", (ROOT / "src/server/app_route.c").read_text(), re.S | re.M).group(1)
    code = {(path, method.lower()) for path, method in re.findall(r'\{"([^"]+)", (GET|POST),', table)}
    assert code == {(re.sub(r"\{\w+\}", "*", p), m) for p, ms in DOC["paths"].items() for m in ms}


def test_file_is_served(server):
    status, headers, data = server.ask("GET", "/openapi.json")
    assert status == 200 and headers["Content-Type"] == "application/json" and json.loads(data) == DOC


# ---- schemathesis ------------------------------------------------------------------------------------------------------------


def number(v):
    return not isinstance(v, bool) and isinstance(v, (int, float))


@schemathesis.hook
def map_body(context, body):
    """Keeps right numbers small, so that an example is milliseconds of work; wrong ones stay as they were drawn."""
    if isinstance(body, dict):
        for name, top in [("n", 2), ("best_of", 2), ("max_tokens", 4), ("max_completion_tokens", 4), ("min_tokens", 4)]:
            if number(body.get(name)) and body[name] > top:
                body[name] = top
    return body


load_all_checks()
# What their checks think of 4xx for bodies that the file allows: the file cannot say what depends on the model.
CHOSEN = [CHECKS.get_one(name) for name in ["not_a_server_error", "status_code_conformance", "content_type_conformance",
                                            "response_headers_conformance", "response_schema_conformance", "negative_data_rejection",
                                            "unsupported_method"]]
API = schemathesis.openapi.from_path(FILE)
API.config.generation.update(deterministic=not LONG)
API.config.phases.coverage.enabled = bool(LONG)  # thousands of bodies with every field at once


def assert_answer(response):
    assert response.status_code < 500, response.text
    assert response.headers["x-request-id"]
    if response.status_code >= 400:
        assert response.headers["content-type"] == ["application/json"]
        check("Error", json.loads(response.content))


@API.exclude(path="/openapi.json").parametrize()
@budget(20)
def test_fuzz(case, server):
    response = case.call(base_url=f"http://127.0.0.1:{server.port}", timeout=60)
    if case.method != "HEAD":
        assert_answer(response)
    if response.headers.get("content-type") == ["text/event-stream"]:
        frames(response.content)
        return
    case.validate_response(response, checks=CHOSEN)


# ---- one field at a time -----------------------------------------------------------------------------------------------------

VALUES = [True, False, 0, 1, -1, 2, 3, 0.5, -0.5, 1.5, 100, 101, -2, -3, -100, -101, 100.5, -100.5, 1e-300, 1e300, 128, 129, 20, 21, 2**31 - 1,
          2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**70, "", "a", "\0", "a\0", "x" * 257, "y" * 1025,
          "true", "1", "none", "auto", [], [1], [-1], ["a"], [""], [[1]], [[]], [None], [True], [0.5], [{}], [["a", 1]], ["a"] * 5, [2**31],
          [[1, 2], "a"], [1, "a"], {}, {"a": 1}, {"1": 1}, {"1": 101}, {"1": False}, {"1": True}, {"01": 1}, {"-1": 1}, {"type": "text"},
          {"type": "function"}, {"type": "nothing"}, {"include_usage": 1}, {"include_usage": True}, {"chat_template": "x"}]
# What a field needs beside it to be looked at on its own.
BESIDE = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}, "trace": {"exit": "trace"}, "min_tokens": {"max_tokens": 3}}
# Fields whose right values may be refused all the same: they need what is not there, or have to agree with something.
AGREE = {"model", "max_tokens", "best_of", "exit", "exit_threshold", "min_loops", "max_loops", "trace", "tool_choice", "tools", "latent_noise",
         "initial_state", "continue_final_message", "truncate_prompt_tokens", "messages", "tokens", "min_tokens", "stop_token_ids",
         "logit_bias", "prompt"} | HARD
LEAST = {C: {"prompt": "ab", "max_tokens": 1}, CHAT: {"messages": [{"role": "user", "content": "ab"}], "max_tokens": 1},
         "/tokenize": {"prompt": "ab"}, "/detokenize": {"tokens": [1]},
         "/apply_template": {"messages": [{"role": "user", "content": "ab"}]}}


@pytest.mark.parametrize("path", BODIES)
def test_each_field(server, path):
    """Each field with each value: what the file forbids is refused by the field's name, and what it allows is served."""
    wrong, seen = [], [0, 0]
    for name, schema in DOC["components"]["schemas"][BODIES[path]]["properties"].items():
        allowed = jsonschema_rs.Draft202012Validator({**schema, "components": DOC["components"]})
        for value in [*VALUES, None]:
            body = {**LEAST[path], **BESIDE.get(name, {}), name: value}
            if value is None and name in LEAST[path] and name != "max_tokens":
                continue
            if name in ("content", "messages") and path == "/tokenize":
                body.pop("prompt")
                if value is None:
                    continue
            status, _, data = server.ask("POST", path, body)
            big = type(value) is int and not -(2**63) <= value < 2**63  # in no field, also where anything goes
            fine = allowed.is_valid(value) and not big
            seen[fine] += 1
            error = {} if status == 200 else json.loads(data)["error"]
            if fine and status == 200 or error.get("code") == "context_length_exceeded":
                continue
            if fine and status in (400, 404) and name in AGREE:
                continue
            if not fine and status == 400 and re.match(rf"{name}\b", error["param"] or ""):
                continue
            wrong.append((name, str(value)[:40], "allowed" if fine else "forbidden", status, error.get("message")))
    assert not wrong, "\n".join(map(str, wrong))
    assert all(n > len(DOC["components"]["schemas"][BODIES[path]]["properties"]) for n in seen)


# ---- bodies that must be served ----------------------------------------------------------------------------------------------


def validator(name):
    return jsonschema_rs.Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": DOC["components"]})


VALID = {name: validator(name) for name in [*BODIES.values(), "Completion", "ChatCompletion", "CompletionChunk", "ChatChunk", "Tokens",
                                            "Text", "Error"]}


def check(name, value):
    errors = [f"{'/'.join(map(str, e.instance_path))}: {e.message}" for e in VALID[name].iter_errors(value)]
    assert not errors, (errors, value)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
IDS = st.integers(0, 255)
PART = st.builds(lambda t, s: {"type": t, "text": s}, st.sampled_from(["text", "input_text", "output_text"]), TEXTS)
CONTENT = TEXTS | st.lists(PART | st.builds(lambda s: {"type": "refusal", "refusal": s}, TEXTS), min_size=1, max_size=2)
CALL = st.builds(lambda n, a: {"id": "c", "type": "function", "function": {"name": n, "arguments": a}}, TEXTS, st.just("{}"))
MESSAGE = st.builds(lambda r, c, n: {"role": r, "content": c, "name": n}, st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
                    CONTENT, st.none() | TEXTS.filter(lambda s: "\0" not in s)) | st.builds(
                        lambda c: {"role": "assistant", "content": None, "tool_calls": [c]}, CALL)
PROMPT = TEXTS | st.lists(IDS, min_size=1, max_size=8) | st.lists(TEXTS | st.lists(IDS, min_size=1, max_size=4), min_size=1, max_size=3)
# What the file leaves open, or what has to be smaller here than it may be.
SPECIAL = {
    "model": st.just("demo"), "prompt": PROMPT, "messages": st.lists(MESSAGE, min_size=1, max_size=2), "content": TEXTS,
    "tokens": st.lists(IDS, max_size=20), "n": st.integers(1, 3), "max_tokens": st.integers(1, 6), "max_completion_tokens": st.integers(1, 6),
    "min_tokens": st.integers(0, 1), "max_loops": st.integers(2, 4), "min_loops": st.integers(1, 2),
    "exit": st.sampled_from(["fixed", "gate", "select", "kl", "entropy", "argmax"]), "exit_threshold": st.just(0.5),
    "stop_token_ids": st.lists(IDS, max_size=4), "stop": TEXTS | st.lists(TEXTS, max_size=4),
    "logit_bias": st.dictionaries(IDS.map(str), st.floats(-100, 100) | st.just(False), max_size=4)
    | st.lists(st.tuples(IDS, st.integers(-100, 100)), max_size=4, unique_by=lambda p: p[0]),
    "cache_salt": TEXTS, "request_id": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60),
    "session_id": st.just("s"), "truncate_prompt_tokens": st.sampled_from([-1, 1, 5, 1000]), "chat_template_kwargs": st.just({"x": [1, {}]}),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.booleans(), "continuous_usage_stats": st.booleans()}),
}


def strategy(name, schema):
    if name in SPECIAL:
        return SPECIAL[name]
    if schema.get("$ref", "").endswith("/Ignored"):
        return st.sampled_from([1, "x", {"a": [None]}, True])
    if schema.get("$ref", "").endswith("/Unsupported"):
        return st.sampled_from(["", []])
    if "enum" in schema:
        return st.sampled_from([x for x in schema["enum"] if x is not None])
    kind = schema["type"][0]
    if kind == "boolean":
        return st.booleans()
    if kind == "integer":
        return st.integers(schema["minimum"], schema["maximum"])
    lo, hi = (schema.get(f"exclusive{e}", schema.get(e.lower())) for e in ["Minimum", "Maximum"])
    return st.floats(lo, hi, exclude_min="exclusiveMinimum" in schema, exclude_max="exclusiveMaximum" in schema)


# Those that only some models or some other fields allow are drawn by tests of their own.
LEFT_OUT = HARD | {"gates", "tools", "tool_choice", "parallel_tool_calls", "trace", "best_of", "add_special", "continue_final_message",
                   "latent_noise", "initial_state", "add_generation_prompt", "truncate_prompt_tokens"}


CONSTRAINTS = [
    {"response_format": {"type": "text"}}, {"response_format": {"type": "json_object"}}, {"guided_choice": ["ab", "b"]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "additionalProperties": False}}}},
    {"structured_outputs": {"regex": "[ab]+"}}, {"structured_outputs": {"json": {"type": "boolean"}}}, {"regex": "a|b"},
    {"structured_outputs": {"choice": ["x"], "json_object": None}}, {"grammar": 'root ::= "a" | "b"'}, {"guided_json": {"enum": [1, "x"]}},
]


@st.composite
def bodies(draw, path):
    properties = DOC["components"]["schemas"][BODIES[path]]["properties"]
    needed = {"/v1/completions": ["prompt"], "/v1/chat/completions": ["messages"], "/apply_template": ["messages"],
              "/detokenize": ["tokens"], "/tokenize": [draw(st.sampled_from(["prompt", "messages", "content"]))]}[path]
    if path in (C, CHAT):
        needed = [*needed, "max_tokens"]
    optional = sorted(set(properties) - LEFT_OUT - {"prompt", "messages", "tokens", "content"})
    names = needed + draw(st.lists(st.sampled_from(optional), unique=True, max_size=12))
    body = {k: draw(strategy(k, properties[k]) if k in needed else st.none() | strategy(k, properties[k])) for k in names}
    if path in (C, CHAT) and draw(st.integers(0, 3)) == 0:
        body |= draw(st.sampled_from(CONSTRAINTS))
        body["logit_bias"] = body["min_tokens"] = None  # may leave no token that the constraint allows
    return settle(path, body)


def settle(path, b):
    """What one field asks of another."""
    if path == "/tokenize" and isinstance(b.get("prompt"), list) and any(isinstance(x, list) for x in b["prompt"]):
        b["prompt"] = [1, "a"]
    if not b.get("stream"):
        b.pop("stream_options", None)
    else:
        b.pop("prompt_logprobs", None)
    if b.get("top_logprobs") is not None:
        b["logprobs"] = True
    if b.get("exit") in ("gate", "select"):
        b["exit_threshold"] = 0.5
    elif b.get("exit") not in ("kl", "entropy"):
        b.pop("exit_threshold", None)
    return b


REPLIES = {C: "Completion", CHAT: "ChatCompletion", "/tokenize": "Tokens", "/detokenize": "Text", "/apply_template": "Text"}


@pytest.mark.parametrize("path", BODIES)
def test_what_is_right_is_served(server, path):
    @budget(100 if path in (C, CHAT) else 25)
    @given(bodies(path))
    def run(body):
        check(BODIES[path], body)
        status, headers, data = server.ask("POST", path, body)
        assert status == 200, (data, body)
        if not body.get("stream") or path not in (C, CHAT):
            assert headers["Content-Type"] == "application/json"
            check(REPLIES[path], json.loads(data))
            return
        for f in frames(data):
            check("CompletionChunk" if path == C else "ChatChunk", f)

    run()
