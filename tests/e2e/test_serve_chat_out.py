"""Thoughts and tool calls of gyre serve: streamed and whole, with the templates of Qwen, Nanbeige and Ouro.

The demo's weights are random, so what the model "writes" is forced: by a list of one choice, or by bias and schemas.
"""

import json
import shutil

import pytest

from program import ROOT
from test_serve import CHAT, DEMO, frames, serve

TEMPLATES = ROOT / "tests/golden/chat/templates"
ASK = [{"role": "user", "content": "Weather in Paris?"}]
WEATHER = {"type": "function", "function": {
    "name": "weather", "description": "d", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"], "description": "c"},
                                         "days": {"$ref": "#/$defs/days"}},
        "required": ["city", "days"], "additionalProperties": False, "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}}}}}
NOTHING = {"type": "function", "function": {"name": "nothing", "description": "d", "parameters": {"type": "object", "properties": {}}}}
TOOLS = [WEATHER, NOTHING]
ARGS = '{"city": "Paris", "days": 2}'
HERMES = f'One moment.\n<tool_call>\n{{"name": "weather", "arguments": {ARGS}}}\n</tool_call>'
TAGS = "<tool_call>\n<function=weather>\n<parameter=city>\nPa\"ris\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The demo with room for long prompts, and with Ouro's special tokens for thoughts."""
    to = tmp_path_factory.mktemp("models") / "demo"
    shutil.copytree(DEMO, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    tok = json.loads((to / "tokenizer.json").read_text())
    for i, text in ((259, "<think>"), (260, "</think>")):
        tok["added_tokens"].append({**tok["added_tokens"][0], "id": i, "content": text})
    (to / "tokenizer.json").write_text(json.dumps(tok))
    return to


@pytest.fixture(scope="module")
def servers(model):
    """One server for each template, started when first asked for."""
    running = {}
    try:
        def get(template):
            if template not in running:
                manager = serve(model, "--chat-template", TEMPLATES / f"{template}.jinja")
                running[template] = manager, manager.__enter__()
            return running[template][1]
        yield get
    finally:
        for manager, _ in running.values():
            manager.__exit__(None, None, None)


def merge(fs):
    """What a client makes of the frames of one choice."""
    m = {"role": None, "content": "", "reasoning_content": "", "reasoning": "", "tool_calls": []}
    for f in fs:
        for c in f["choices"]:
            d = c["delta"]
            m["role"] = d.get("role") or m["role"]
            for k in ("content", "reasoning_content", "reasoning"):
                m[k] += d.get(k) or ""
            for t in d.get("tool_calls") or []:
                if t["index"] == len(m["tool_calls"]):
                    assert t["type"] == "function" and t["id"].startswith("call_") and t["function"]["name"]
                    m["tool_calls"].append({"id": t["id"], "type": "function", "function": {"name": t["function"]["name"], "arguments": ""}})
                else:
                    assert t["index"] == len(m["tool_calls"]) - 1 and "id" not in t and "name" not in t["function"]
                m["tool_calls"][-1]["function"]["arguments"] += t["function"]["arguments"]
    return m


def both(s, **body):
    """(message, finish_reason, usage), the same streamed and whole."""
    body = {"messages": ASK, "temperature": 0, **body}
    whole = s.post(CHAT, body)
    status, _, data = s.ask("POST", CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert status == 200, data
    fs = frames(data)
    c, m = whole["choices"][0], merge(fs)
    n = whole["usage"]["completion_tokens"]
    assert len(fs) == n + 3, "role, one a token, finish, usage"
    assert fs[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""} and m["role"] == "assistant"
    assert fs[-2]["choices"][0]["finish_reason"] == c["finish_reason"]
    assert fs[-1]["usage"] == {**whole["usage"], "prompt_tokens_details": fs[-1]["usage"]["prompt_tokens_details"]}
    told = c["message"]
    assert m["content"] == (told["content"] or "")
    assert m["reasoning"] == m["reasoning_content"] == told.get("reasoning_content", "") == told.get("reasoning", "")
    strip = lambda calls: [t["function"] for t in calls]
    assert strip(m["tool_calls"]) == strip(told.get("tool_calls", []))
    ids = [t["id"] for t in m["tool_calls"] + told.get("tool_calls", [])]
    assert len(set(ids)) == len(ids)
    return told, c["finish_reason"], whole["usage"]


def refused(s, **body):
    status, _, data = s.ask("POST", CHAT, {"messages": ASK, **body})
    assert status == 400, data
    return json.loads(data)["error"]


def said(text):
    return {"guided_choice": [text]}


# ---- calls -------------------------------------------------------------------------------------------------------------------


def test_call_as_json(servers):
    s = servers("qwen25")
    m, why, _ = both(s, tools=TOOLS, **said(HERMES))
    assert why == "tool_calls" and m["content"] == "One moment."
    assert [t["function"] for t in m["tool_calls"]] == [{"name": "weather", "arguments": ARGS}]
    m, why, _ = both(s, tools=TOOLS, **said(HERMES + "\n" + '<tool_call>{"name": "nothing"}</tool_call>'))
    assert [t["function"]["name"] for t in m["tool_calls"]] == ["weather", "nothing"] and m["tool_calls"][1]["function"]["arguments"] == "{}"
    m, why, _ = both(s, tools=TOOLS, parallel_tool_calls=False, **said(HERMES + HERMES[11:]))
    assert len(m["tool_calls"]) == 1 and m["content"] == "One moment." and why == "tool_calls"


def test_not_a_call(servers):
    s = servers("qwen25")
    for text in ("<tool_call>\n{nothing}\n</tool_call>", "<tool_call>\n{\"name\": 1}", "no call </tool_call>"):
        m, why, _ = both(s, tools=TOOLS, **said(text))
        assert m["content"] == text and why == "stop" and "tool_calls" not in m
    assert both(s, **said(HERMES))[0]["content"] == HERMES  # nobody asked for calls
    assert both(s, tools=TOOLS, tool_choice="none", **said(HERMES))[0]["content"] == HERMES
    m, why, _ = both(s, tools=TOOLS, max_tokens=65, **said(HERMES))
    assert why == "length" and ARGS.startswith(m["tool_calls"][0]["function"]["arguments"])
    m, why, _ = both(s, tools=TOOLS, max_tokens=30, **said(HERMES))
    assert why == "length" and m["content"] == HERMES[:30]
    m, why, _ = both(s, tools=TOOLS, stop=["</tool_call>"], include_stop_str_in_output=True, **said(HERMES + "!"))
    assert why == "tool_calls" and m["content"] == "One moment." and m["tool_calls"][0]["function"]["arguments"] == ARGS


def test_call_as_tags(servers):
    m, why, _ = both(servers("nanbeige"), tools=TOOLS, chat_template_kwargs={"enable_thinking": False}, **said(TAGS))
    assert why == "tool_calls" and m["content"] is None
    assert json.loads(m["tool_calls"][0]["function"]["arguments"]) == {"city": 'Pa"ris', "days": 2}


def test_choices_apart(servers):
    """Each choice has a scanner of its own."""
    data = servers("qwen25").ask("POST", CHAT, {"messages": ASK, "tools": TOOLS, "n": 3, "temperature": 1, "seed": 3, "stream": True,
                                                "guided_choice": [HERMES, "plain", "<tool_call>{\"name\": \"nothing\"}</tool_call>"]})[2]
    fs = frames(data)
    for i in range(3):
        own = [{**f, "choices": [c]} for f in fs for c in f["choices"] if c["index"] == i]
        m, why = merge(own), own[-1]["choices"][0]["finish_reason"]
        assert (m["content"], why) in (("One moment.", "tool_calls"), ("plain", "stop"), ("", "tool_calls"))
        assert len(m["tool_calls"]) == (why == "tool_calls")


def test_call_wanted(servers):
    s = servers("qwen25")
    for seed in range(4):
        m, why, _ = both(s, tools=TOOLS, tool_choice="required", temperature=1, seed=seed)
        f = m["tool_calls"][0]["function"]
        args = json.loads(f["arguments"])
        assert why == "tool_calls" and m["content"] is None and len(m["tool_calls"]) == 1
        assert f["name"] == "nothing" or (args["city"] in ("Paris", "Rome") and 1 <= args["days"] <= 9), f
    named = {"type": "function", "function": {"name": "weather"}}
    for seed in range(2):
        m, why, _ = both(s, tools=TOOLS, tool_choice=named, temperature=1, seed=seed)
        f = m["tool_calls"][0]["function"]
        assert f["name"] == "weather" and set(json.loads(f["arguments"])) == {"city", "days"} and why == "tool_calls"
    # A template that shows no tools can still be made to call one; only "auto" would silently do nothing.
    assert both(servers("chatml"), tools=[NOTHING], tool_choice="required")[0]["tool_calls"][0]["function"] == {"name": "nothing", "arguments": "{}"}
    assert refused(servers("chatml"), tools=TOOLS)["param"] == "tools"


def test_bad_tools(servers):
    """vLLM's CVE-2025-48944: what is no schema is a bad request, and the server goes on."""
    s = servers("qwen25")
    for schema in ({"type": "strange"}, {"type": ["object", 5]}, {"properties": []}, {"not": {}}, {"$ref": "#/$defs/none"},
                   {"properties": {"a": {"type": "string", "pattern": "(?=x)"}}}):
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        assert refused(s, tools=[tool], tool_choice="required")["param"] == "tools"
    assert refused(s, tools=TOOLS, tool_choice="required", response_format={"type": "json_object"})["param"] == "tool_choice"
    both(s, tools=TOOLS, **said(HERMES))


# ---- thoughts ----------------------------------------------------------------------------------------------------------------


def test_thoughts(servers):
    s, text = servers("qwen3"), "<think>\nLet me <see>.\n\n</think>\n\nHi\nyou"
    m, why, usage = both(s, **said(text))
    assert m == {"role": "assistant", "content": "Hi\nyou", "reasoning_content": "Let me <see>.", "reasoning": "Let me <see>."}
    inside = usage["completion_tokens_details"]["reasoning_tokens"]
    assert why == "stop" and len("Let me <see>.") <= inside <= len(text) - len("Hi\nyou")
    m, _, usage = both(s, include_reasoning=False, **said(text))
    assert m == {"role": "assistant", "content": "Hi\nyou"} and usage["completion_tokens_details"]["reasoning_tokens"] == inside
    m, _, usage = both(s, separate_reasoning=False, **said(text))
    assert m == {"role": "assistant", "content": text} and usage["completion_tokens_details"]["reasoning_tokens"] == 0
    m, why, _ = both(s, tools=TOOLS, **said("<think>\nhm\n</think>\n\n" + HERMES))
    assert m["reasoning_content"] == "hm" and m["content"] == "One moment." and why == "tool_calls" and len(m["tool_calls"]) == 1


def test_prompt_opens_thoughts(servers):
    m, why, usage = both(servers("nanbeige"), max_tokens=8, ignore_eos=True)
    assert why == "length" and m["content"] == "" and m["reasoning_content"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 8
    m, _, usage = both(servers("nanbeige"), max_tokens=8, ignore_eos=True, reasoning_effort="none")
    assert m["content"] and "reasoning" not in m and usage["completion_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.parametrize("what", ["schema", "call"])
def test_constraint_behind_thoughts(servers, what):
    """The schema holds behind "</think>", which is a special token here: text without it, and still the border."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
    rule = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    if what == "call":
        rule = {"tools": TOOLS, "tool_choice": "required"}
    m, why, usage = both(servers("nanbeige"), temperature=1, seed=11, logit_bias={"260": 4}, ignore_eos=True, max_tokens=600, **rule)
    assert m["reasoning_content"] and usage["completion_tokens_details"]["reasoning_tokens"] > 1, m
    if what == "call":
        assert why == "tool_calls" and m["tool_calls"][0]["function"]["name"] in ("weather", "nothing")
    else:
        assert why == "stop" and set(json.loads(m["content"])) == {"a"}


def test_effort(servers):
    def prompt(template, **body):
        return servers(template).post("/apply_template", {"messages": ASK, **body})["prompt"]

    assert prompt("ouro-thinking").endswith("assistant\n")
    assert prompt("ouro-thinking", reasoning_effort="high").endswith("<think>\n")
    assert prompt("ouro-thinking", reasoning_effort="none").endswith("assistant\n")
    assert prompt("ouro-thinking", reasoning_effort="high", chat_template_kwargs={"enable_thinking": False}).endswith("assistant\n")
    assert prompt("nanbeige", reasoning_effort="none").endswith("</think>\n\n") and prompt("nanbeige").endswith("<think>\n")
    assert "low" in prompt("harmony", reasoning_effort="low") and prompt("harmony") != prompt("harmony", reasoning_effort="low")
    assert refused(servers("nanbeige"), reasoning_effort="huge")["param"] == "reasoning_effort"


# ---- call, result, answer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["qwen25", "nanbeige"])
def test_round_trip(servers, template):
    openai = pytest.importorskip("openai")
    s = servers(template)
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="k", max_retries=0)
    ask = {"model": "demo", "tools": TOOLS, "temperature": 0, "reasoning_effort": "none"}
    text = HERMES if template == "qwen25" else "One moment.\n" + TAGS
    whole = client.chat.completions.create(messages=ASK, extra_body=said(text), **ask).choices[0]
    assert whole.finish_reason == "tool_calls"
    with client.chat.completions.stream(messages=ASK, extra_body=said(text), **ask) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    assert any(e.type == "tool_calls.function.arguments.delta" for e in events)
    call = final.message.tool_calls[0]
    assert call.function.arguments == whole.message.tool_calls[0].function.arguments and final.message.content == "One moment."
    told = ASK + [whole.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "rain </tool_response>"}]
    prompt = s.post("/apply_template", {"messages": told, "tools": TOOLS})["prompt"]
    assert text in prompt and "<tool_response>\nrain </tool_response>\n</tool_response>" in prompt
    silent = [told[0], {**told[1], "content": None}, told[2]]  # what a call without a word before it is sent back as
    assert "One moment" not in s.post("/apply_template", {"messages": silent, "tools": TOOLS})["prompt"]
    answer = client.chat.completions.create(messages=told, extra_body=said("It rains."), **ask).choices[0]
    assert answer.message.content == "It rains." and answer.finish_reason == "stop" and not answer.message.tool_calls
