"""The playground of gyre serve: its files over HTTP, then the page in headless Chromium (browser.py).

What the page shows is compared with what the API answers to the same request.
"""

import base64
import contextlib
import json
import math
import re
import subprocess
import sys

import pytest

import browser
from program import ROOT, gyre
from test_serve import C, CHAT, DEMO, JSON, TEMPLATE, eventually, frames, serve

FOLDER = ROOT / "src/server/page"
FILES = {"/": ("page.html", "text/html; charset=utf-8"), "/page/page.css": ("page.css", "text/css; charset=utf-8"),
         "/page/page.svg": ("page.svg", "image/svg+xml"),
         **{f"/page/{n}.js": (f"{n}.js", "text/javascript; charset=utf-8") for n in ["page", "api", "view", "copy"]}}


@pytest.fixture(scope="module")
def demo():
    with serve(DEMO) as s:
        yield s


# ---- the files -----------------------------------------------------------------------------------------------------------------


def policy(headers):
    return {d.split()[0]: d.split()[1:] for d in headers["Content-Security-Policy"].split("; ")}


@pytest.mark.parametrize("path", FILES)
def test_file(demo, path):
    name, kind = FILES[path]
    status, headers, body = demo.ask("GET", path, headers={})
    assert (status, headers["Content-Type"], body) == (200, kind, (FOLDER / name).read_bytes())
    p = policy(headers)
    assert p["default-src"] == p["base-uri"] == p["form-action"] == p["frame-ancestors"] == ["'none'"]
    assert all(p[k] == ["'self'"] for k in ["script-src", "style-src", "img-src", "connect-src"]) and p["require-trusted-types-for"] == ["'script'"]
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"], headers["Referrer-Policy"]) == ("nosniff", "no-cache", "no-referrer")
    status, head, nothing = demo.ask("HEAD", path, headers={})
    dated = {"Date", "x-request-id"}
    assert (status, nothing) == (200, b"") and {k: v for k, v in head.items() if k not in dated} == {k: v for k, v in headers.items() if k not in dated}
    for method in ["POST", "PUT", "DELETE"]:
        status, headers, _ = demo.ask(method, path)
        assert status == 405 and headers["Allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize("path", FILES)
def test_cache(demo, path):
    tag = demo.ask("GET", path, headers={})[1]["ETag"]
    assert re.fullmatch('"[0-9a-f]{32}"', tag)
    for known in [tag, f"W/{tag}", f'"other", {tag}', "*"]:
        status, headers, body = demo.ask("GET", path, headers={"If-None-Match": known})
        assert (status, body, headers["ETag"], headers["Content-Length"]) == (304, b"", tag, None) and headers["Cache-Control"] == "no-cache"
    for unknown in ['"other"', tag[:-2] + '"', tag[1:-1], "", "**"]:
        assert demo.ask("GET", path, headers={"If-None-Match": unknown})[0] == 200
    others = {demo.ask("GET", p, headers={})[1]["ETag"] for p in FILES}
    assert len(others) == len(FILES)


def test_only_these_files(demo):
    for path in ["/page/", "/page/page.html", "/page/page.js/", "/page/PAGE.js", "/page/../page/page.js/x", "/page/%00"]:
        status, headers, body = demo.ask("GET", path, headers={})
        assert status in (400, 404) and headers["Content-Type"] == "application/json" and b'"error"' in body
    assert {f.name for f in FOLDER.iterdir()} == {name for name, _ in FILES.values()}


def test_list_for_who_wants_text(demo):
    for accept, kind in [("text/plain", "text/plain"), ("text/plain, */*;q=0.1", "text/plain"), ("*/*", "text/html"), ("", "text/html"),
                         ("text/html,application/xhtml+xml", "text/html"), ("text/plain, text/html", "text/html")]:
        status, headers, body = demo.ask("GET", "/", headers={"Accept": accept})
        assert status == 200 and headers["Content-Type"].split(";")[0] == kind, accept
        assert (b"POST /v1/completions" in body) == (kind == "text/plain")


def test_page_is_public_and_the_api_is_not():
    with serve(DEMO, "--api-key", "k") as s:
        for path in FILES:
            assert s.ask("GET", path, headers={})[0] == 200
            assert s.ask("GET", path, headers={"Host": "evil.example"})[0] == 403
            assert s.ask("GET", path, headers={"Origin": "http://evil.example"})[0] == 403
        assert s.ask("GET", "/v1/models", headers={})[0] == 401


def test_nothing_from_elsewhere():
    """Every reference is to a file of the page; no script or style stands in the markup; nothing is parsed from text."""
    html = (FOLDER / "page.html").read_text()
    refs = re.findall(r'(?:src|href|action)="([^"]*)"', html)
    assert {"/" + r for r in refs if not r.startswith("#")} <= set(FILES) and len(refs) >= 4
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son\w+=|javascript:", html)
    for name, _ in FILES.values():
        text = (FOLDER / name).read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|@import|\burl\(", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|parseFromString|localStorage|sessionStorage|cookie", text), name


# ---- in the browser ------------------------------------------------------------------------------------------------------------

AUDIT = (ROOT / "tests/e2e/audit.js").read_text()
in_browser = pytest.mark.skipif(not browser.PROGRAM, reason=browser.MISSING)
STATUS = "document.getElementById('status').textContent"
TOKENS = """[...document.querySelectorAll('#output-%s .tok')].map((e) => ({text: e.textContent, loops: Number(e.dataset.loops),
  tint: getComputedStyle(e).backgroundColor, differs: e.classList.contains('differs')}))"""


@pytest.fixture(scope="module")
def chromium():
    b = browser.Browser()
    yield b
    b.close()


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A model big enough that a run lasts."""
    folder = tmp_path_factory.mktemp("page") / "m"
    gyre("synth", "--shape", "mini-ouro", "--tokenizer", folder)
    with serve(folder, "--max-len", 2048, "--kv-blocks", 600) as s:
        yield s


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "t.jinja"
    path.write_text(TEMPLATE)
    with serve(DEMO, "--api-key", "s3cret", "--chat-template", path) as s:
        yield s


@contextlib.contextmanager
def page(b, s, faults=0):
    """A fresh tab on the page of s. Afterwards: nothing went wrong but so many answers of the API that are errors, and
    nothing was asked of any other host."""
    b.fresh()
    base = f"http://127.0.0.1:{s.port}/"
    b.goto(base)
    b.wait("!document.getElementById('run').disabled || !document.getElementById('key-form').hidden")
    yield b
    assert all(r["url"].startswith(base) for r in b.requests) and len(b.requests) >= 7
    failed = [p for p in b.problems if p.startswith("Failed to load resource: the server responded with a status of 4")]
    assert b.problems == failed and len(failed) == faults, b.problems


def text_of(b, i):
    return b.js(f"document.getElementById('{i}').textContent")


def run(b, end="done"):
    b.click("#run")
    b.wait(f"/^A: {end}/.test({STATUS})")


def sent(b, n=-1):
    """What the page asked: the n-th generation."""
    return [json.loads(r["postData"]) for r in b.requests if r["method"] == "POST"][n]


def answer(s, request, path=C, headers=JSON):
    """The API's whole reply to the same request."""
    body = {k: v for k, v in request.items() if k not in ("stream", "stream_options")}
    return s.post(path, body, headers)["choices"][0]


def varied(s, prompt, n):
    """A threshold with which this prompt's tokens take at least three different numbers of loops."""
    for q in [0.5, 0.45, 0.4, 0.35, 0.55, 0.6, 0.3, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95]:
        loops = s.post(C, {"prompt": prompt, "max_tokens": n, "temperature": 0, "seed": 1, "exit": "gate", "exit_threshold": q, "min_loops": 1})["choices"][0]["loops"]
        if len(set(loops)) >= 3:
            return q
    raise AssertionError("no threshold does")


@in_browser
def test_tints_are_the_loops(chromium, demo):
    with page(chromium, demo) as b:
        q = varied(demo, "Loops: ", 48)
        b.fill("#prompt", "Loops: ")
        b.fill("#max-tokens", "48")
        b.set("#threshold-A", q)
        run(b)
        request, shown = sent(b), b.js(TOKENS % "A")
        assert request["exit"] == "gate" and request["exit_threshold"] == q and request["prompt"] == "Loops: " and request["max_tokens"] == 48
        right = answer(demo, request)
        assert [t["loops"] for t in shown] == right["loops"] and "".join(t["text"] for t in shown) == right["text"]
        # One tint for each number of loops, no tint for two.
        tints = {(t["loops"], t["tint"]) for t in shown}
        assert len(tints) == len(set(right["loops"])) == len({tint for _, tint in tints}) >= 3
        count = {f"{n} loop{'s' * (n > 1)}: {right['loops'].count(n)}" for n in set(right["loops"])}
        assert set(b.js("[...document.querySelectorAll('#depths-A li')].map((e) => e.textContent)")) == count
        legend = b.js("[...document.querySelectorAll('#depths-A li')].map((e) => [parseInt(e.textContent), getComputedStyle(e).backgroundColor])")
        assert {tuple(x) for x in legend} == tints
        stats = text_of(b, "stats-A")
        assert f"{len(shown)} tokens · {sum(right['loops']) / len(shown):.2f} loops each" in stats and "ended by length" in stats
        for i in [0, 7, len(shown) - 1]:
            b.hover(f"#output-A .tok:nth-child({i + 1})")
            b.wait(f"document.getElementById('card').textContent.includes('token {i + 1} of')")
            rows = b.js("[...document.querySelectorAll('#card tbody tr')].map((r) => [...r.cells].slice(0, 3).map((c) => c.textContent))")
            gates = [1 / (1 + math.exp(-g)) for g in right["gates"][i]]
            stay = [math.prod(1 - g for g in gates[:d + 1]) for d in range(len(gates))]
            assert rows == [[str(d + 1), f"{g:.3f}", f"{1 - s:.3f}"] for d, (g, s) in enumerate(zip(gates, stay))] and len(rows) >= right["loops"][i]
            assert f"{right['loops'][i]} loop" in text_of(b, "card")
        b.mouse("mouseMoved", 5, 5)
        b.wait("document.getElementById('card').hidden")


@in_browser
def test_settings_reach_the_engine(chromium, demo):
    with page(chromium, demo) as b:
        b.fill("#max-tokens", "12")
        for change, want in [({"min-A": 2, "max-A": 3, "threshold-A": 0}, {"min_loops": 2, "max_loops": 3, "exit_threshold": 0}),
                             ({"min-A": 4}, {"min_loops": 4, "max_loops": 4}), ({"max-A": 1}, {"min_loops": 1, "max_loops": 1}),
                             ({"exit-A": "fixed", "max-A": 2, "temperature-A": 0.7}, {"exit": "fixed", "max_loops": 2, "temperature": 0.7}),
                             ({"exit-A": "kl"}, {"exit": "kl", "exit_threshold": 0.0005}), ({"exit-A": "argmax"}, {"exit": "argmax", "exit_threshold": 5})]:
            for name, value in change.items():
                b.set(f"#{name}", value)
            run(b)
            request = sent(b)
            assert want.items() <= request.items() and ("exit_threshold" in request) == (request["exit"] != "fixed")
            loops = [t["loops"] for t in b.js(TOKENS % "A")]
            assert loops == answer(demo, request)["loops"] and len(loops) == 12
            # The first comes from the prompt's last token, which ran to the trained depth.
            assert all(request["min_loops"] <= n <= request["max_loops"] for n in loops[1:])
            b.js("document.getElementById('status').textContent = ''")
        b.fill("#seed", "")
        b.fill("#max-tokens", "")
        run(b)
        assert "seed" not in sent(b) and "max_tokens" not in sent(b)


@in_browser
def test_first_settings_and_examples(chromium, demo):
    with page(chromium, demo) as b:
        run(b)
        assert {"exit": "gate", "min_loops": 1, "max_loops": 4}.items() <= sent(b).items()
        b.js("document.getElementById('status').textContent = ''")
        b.set("#example", "358+47")
        run(b)
        assert sent(b)["prompt"] == "358+47"
        b.fill("#prompt", "mine")
        b.set("#example", "")
        assert b.js("document.getElementById('prompt').value") == "mine"


def common(a, b):
    """The length of a longest common subsequence."""
    row = [0] * (len(b) + 1)
    for x in a:
        last = 0
        for j, y in enumerate(b):
            last, row[j + 1] = row[j + 1], last + 1 if x == y else max(row[j + 1], row[j])
    return row[-1]


@in_browser
def test_compare(chromium, demo):
    with page(chromium, demo) as b:
        b.click("#compare")
        run(b)
        assert "B: done" in b.js(STATUS)
        requests = {r["exit"]: r for r in [sent(b, -2), sent(b, -1)]}
        sides = []
        for side, exit_rule in [("A", "gate"), ("B", "fixed")]:
            shown, right = b.js(TOKENS % side), answer(demo, requests[exit_rule])
            assert [t["loops"] for t in shown] == right["loops"] and "".join(t["text"] for t in shown) == right["text"]
            sides.append(list(zip(right["token_ids"], [t["differs"] for t in shown])))
        ids = [[i for i, _ in side] for side in sides]
        same = [[i for i, differs in side if not differs] for side in sides]
        assert same[0] == same[1] and len(same[0]) == common(*ids) < len(ids[0])
        first = next(i for i, (x, y) in enumerate(zip(*ids)) if x != y)
        assert f"differ from token {first + 1} on" in text_of(b, "difference")
        # The same setting twice.
        b.set("#exit-A", "fixed")
        b.js("document.getElementById('status').textContent = ''")
        run(b)
        assert "the same" in text_of(b, "difference") and not any(t["differs"] for side in "AB" for t in b.js(TOKENS % side))
        # One of the two.
        b.click("#compare")
        assert b.js("document.querySelectorAll('.pane')[1].hidden && document.getElementById('difference').hidden")


@in_browser
def test_stop_frees_the_request(chromium, slow):
    aborts = slow.metric(r'vllm:request_success_total\{[^}]*finished_reason="abort"\}')
    with page(chromium, slow) as b:
        b.fill("#max-tokens", "2000")
        b.set("#exit-A", "fixed")
        for n, stop in enumerate([lambda: b.click("#stop"), lambda: b.key("Escape"), lambda: b.goto("about:blank")]):
            b.click("#run")
            b.wait("document.querySelectorAll('#output-A .tok').length > 3")
            assert json.loads(slow.ask("GET", "/stats")[2])["requests"] == 1
            if n == 0:
                b.wait("document.getElementById('live-running').textContent === '1' && parseFloat(document.getElementById('live-kv').textContent) > 0")
                b.wait("document.getElementById('live-loops').textContent === '4.00' && Number(document.getElementById('live-rate').textContent) > 0")
            stop()
            eventually(lambda: json.loads(slow.ask("GET", "/stats")[2])["requests"] == 0)
            eventually(lambda: slow.metric(r'vllm:request_success_total\{[^}]*finished_reason="abort"\}') == aborts + n + 1)
            if n < 2:
                b.wait(f"/^A: stopped/.test({STATUS})")
                assert 3 < b.js("document.querySelectorAll('#output-A .tok').length") < 2000 and "stopped" in text_of(b, "stats-A")
                assert b.js("document.getElementById('stop').disabled && document.getElementById('error-A').hidden")
                b.wait("document.getElementById('live-running').textContent === '0'")
                b.js("document.getElementById('status').textContent = ''")


@in_browser
def test_errors_are_those_of_the_api(chromium, demo):
    with page(chromium, demo, faults=3) as b:
        for field, value in [("#max-tokens", "100000"), ("#max-tokens", "-1"), ("#prompt", "")]:
            b.fill(field, value)
            b.click("#run")
            b.wait(f"/^A: failed/.test({STATUS})")
            request = {k: v for k, v in sent(b).items() if k not in ("stream", "stream_options")}
            status, _, data = demo.ask("POST", C, request)
            e, shown = json.loads(data)["error"], text_of(b, "error-A")
            assert status == 400 and e["message"] in shown and "HTTP 400" in shown and f"type: {e['type']}" in shown
            assert (f"param: {e['param']}" in shown) == (e["param"] is not None) and ("code:" in shown) == (e["code"] is not None)
            assert "null" not in shown and b.js("document.getElementById('error-A').getAttribute('role')") == "alert"
            b.js("document.getElementById('status').textContent = ''")
            b.fill("#max-tokens", "4")
        b.fill("#prompt", "again")
        run(b)
        assert b.js("document.getElementById('error-A').hidden")
        assert "no chat template" in text_of(b, "about")


EVIL = "<img src=http://evil.invalid/x onerror='document.title=1'><script>document.title=2</script>&amp;"


def token(text, **more):
    return {"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None, "loops": [2], "gates": [[0.5, 1]], "token_ids": [7], **more}]}


def canned(b, *pieces, status=200, headers=()):
    """The next generation is answered by these bytes."""
    def on_pause(p):
        b.send("Fetch.fulfillRequest", {"requestId": p["requestId"], "responseCode": status, "body": base64.b64encode(b"".join(pieces)).decode(),
                                        "responseHeaders": [{"name": k, "value": v} for k, v in headers]}, b.session)
    b.handlers["Fetch.requestPaused"] = on_pause
    b.call("Fetch.enable", {"patterns": [{"urlPattern": "*/completions"}]})


def event(o):
    return b"data: " + json.dumps(o).encode() + b"\n\n"


@in_browser
def test_text_never_becomes_markup(chromium, demo):
    with page(chromium, demo) as b:
        canned(b, event(token(EVIL)), event(token("")), event(token("é\n")), event({"choices": [{"index": 0, "text": EVIL, "finish_reason": "stop"}]}), b"data: [DONE]\n\n")
        run(b)
        assert text_of(b, "output-A") == EVIL + "é\n" + EVIL and len(b.js(TOKENS % "A")) == 3
        b.hover("#output-A .tok")
        b.wait("!document.getElementById('card').hidden")
        assert json.dumps(EVIL) in text_of(b, "card")
        b.click("input[value=chat]")
        b.fill("#prompt", EVIL)
        canned(b, event({"choices": [{"index": 0, "delta": {"content": EVIL}, "loops": [1], "token_ids": [7]}]}), b"data: [DONE]\n\n")
        b.js("document.getElementById('status').textContent = ''")
        run(b)
        assert b.js("[...document.querySelectorAll('#turns li')].map((e) => e.lastChild.textContent)") == [EVIL, EVIL]
        canned(b, event({"error": {"message": EVIL, "type": EVIL, "code": None, "param": None}}))
        run(b, "failed")
        assert EVIL in text_of(b, "error-A")
        assert b.js("document.querySelectorAll('img, body script').length") == 0 and b.js("document.title") == "gyre playground"
        # The policy stands behind it: a sink throws, and a script in the page does not run.
        assert b.js("(() => { try { document.body.innerHTML = 'x'; return 'set'; } catch (e) { return e.name; } })()") == "TypeError"
        b.problems.clear()


@in_browser
def test_broken_streams(chromium, demo):
    with page(chromium, demo, faults=1) as b:
        for pieces, more, want in [
                ((event(token("a")), event({"error": {"message": "the engine is lost", "type": "server_error", "code": "engine", "param": None}})), {}, "the engine is lost"),
                ((event(token("a")),), {}, "before it was complete"),
                ((b"no json",), {"status": 429, "headers": [("Retry-After", "7")]}, "no json")]:
            canned(b, *pieces, **more)
            run(b, "failed")
            shown = text_of(b, "error-A")
            assert want in shown and ("Retry-After: 7 s" in shown) == bool(more) and ("code: engine" in shown) == ("lost" in want)
            assert len(b.js(TOKENS % "A")) == (0 if more else 1)
            b.js("document.getElementById('status').textContent = ''")


@in_browser
def test_key_and_chat(chromium, keyed):
    auth = {**JSON, "Authorization": "Bearer s3cret"}
    with page(chromium, keyed, faults=2) as b:
        assert b.js("document.activeElement.id") == "key" and "no valid API key" in text_of(b, "about") and b.js("document.getElementById('run').disabled")
        b.fill("#key", "wrong")
        b.key("Enter")
        b.wait("document.activeElement.id === 'key'")
        eventually(lambda: b.js("1") and len(b.problems) == 2)
        b.fill("#key", "s3cret")
        b.key("Enter")
        b.wait("!document.getElementById('run').disabled && document.getElementById('key-form').hidden")
        assert b.js("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]
        b.click("input[value=chat]")
        assert text_of(b, "prompt-label") == "Message"
        b.fill("#system", "Be brief.")
        b.fill("#max-tokens", "6")
        talk = [{"role": "system", "content": "Be brief."}]
        for said in ["One", "Two"]:
            b.fill("#prompt", said)
            b.js("document.getElementById('status').textContent = ''")
            run(b)
            talk.append({"role": "user", "content": said})
            request = sent(b)
            assert request["messages"] == talk
            right = answer(keyed, request, CHAT, auth)
            assert [t["loops"] for t in b.js(TOKENS % "A")] == right["loops"] and text_of(b, "output-A") == right["message"]["content"]
            talk.append({"role": "assistant", "content": right["message"]["content"]})
        assert b.js("[...document.querySelectorAll('#turns li')].map((e) => e.firstChild.textContent)") == ["user", "assistant"] * 2
        assert b.js("document.querySelectorAll('#turns .tok').length") == 12
        assert b.js(AUDIT) == []
        b.click("#forget")
        assert b.js("document.querySelectorAll('#turns li').length") == 0


@in_browser
def test_copies_run(chromium, demo):
    prompt = "it's \"quoted\" $HOME `x` \\n\n\u00fc\U0001f642"
    with page(chromium, demo) as b:
        b.call("Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "browserContextId": b.context}, None)
        b.call("Emulation.setFocusEmulationEnabled", {"enabled": True})
        b.fill("#prompt", prompt)
        b.fill("#max-tokens", "9")
        run(b)
        shown, loops = text_of(b, "output-A"), [t["loops"] for t in b.js(TOKENS % "A")]
        texts = {}
        for name in ["curl", "python"]:
            b.click(f"#{name}-A")
            b.wait(f"{STATUS}.toLowerCase() === 'copied as {name}.'")
            texts[name] = b.js("navigator.clipboard.readText()")
        out = subprocess.run(["sh", "-c", texts["curl"].replace("curl -N", "curl -sN")], capture_output=True, timeout=60, check=True).stdout
        assert "".join(f["choices"][0]["text"] for f in frames(out)) == shown
        out = subprocess.run([sys.executable, "-c", texts["python"]], capture_output=True, text=True, timeout=60, check=True).stdout
        assert out == f"{shown}\nloops: {loops}\n"
        # Where a page may not write to the clipboard the text is shown, chosen, and Esc closes it.
        b.js("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        b.click("#curl-A")
        b.wait("document.getElementById('code').open")
        assert b.js("document.getElementById('code-text').value") == texts["curl"] and b.js("String(getSelection())") in (texts["curl"], texts["curl"].strip())
        assert b.js(AUDIT) == []
        b.key("Escape")
        b.wait("!document.getElementById('code').open")


@in_browser
def test_copies_hold_no_key(chromium, keyed):
    with page(chromium, keyed, faults=1) as b:
        b.fill("#key", "s3cret")
        b.key("Enter")
        b.wait("!document.getElementById('run').disabled")
        b.js("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        for name in ["curl", "python"]:
            b.click(f"#{name}-A")
            b.wait("document.getElementById('code').open")
            text = b.js("document.getElementById('code-text').value")
            assert "s3cret" not in text and "GYRE_API_KEY" in text
            b.key("Escape")
            b.wait("!document.getElementById('code').open")


@in_browser
def test_keyboard(chromium, demo):
    with page(chromium, demo) as b:
        b.js("document.activeElement.blur()")
        seen = []
        for _ in range(60):
            b.key("Tab")
            seen.append(b.js("(() => { const e = document.activeElement, s = getComputedStyle(e); return [e.id || e.value || e.className, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2]; })()"))
            if len(seen) > 3 and seen[-1][0] in ("", seen[0][0]):
                break
        order = ["skip", "theme", "prompt", "compare", "counts", "example", "prompt", "max-tokens", "seed", "run", "exit-A", "threshold-A", "min-A", "max-A", "temperature-A",
                 "output-A", "curl-A", "python-A"]
        assert [i for i, _ in seen[:len(order)]] == order and all(outlined for i, outlined in seen[:len(order)])
        b.js("document.querySelector('input[value=prompt]').focus()")
        b.key("ArrowRight")
        assert b.js("document.querySelector('input[value=chat]').checked && document.activeElement.id") == "prompt"
        b.js("document.querySelector('input[value=chat]').focus()")
        b.key("ArrowLeft")
        for name in ["compare", "counts"]:
            b.js(f"document.getElementById('{name}').focus()")
            b.key(" ")
            assert b.js(f"document.getElementById('{name}').checked")
        b.js("document.getElementById('prompt').focus()")
        b.key("Enter", browser.CTRL)
        b.wait(f"/^A: done.*B: done/.test({STATUS})")
        b.js("document.getElementById('output-A').focus()")
        for key, place in [("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("ArrowLeft", 1), ("End", 64), ("ArrowRight", 64), ("Home", 1)]:
            b.key(key)
            assert f"token {place} of 64" in text_of(b, "card") and f"token {place} of 64" in text_of(b, "told") and "after loop 1 gate 0." in text_of(b, "told") and b.js("document.querySelector('.picked').dataset.i") == str(place - 1)
        b.key("Escape")
        assert b.js("document.getElementById('card').hidden")
        # The loops without colours.
        assert b.js("getComputedStyle(document.querySelector('#output-A .tok'), '::after').content") == f'"{b.js(TOKENS % "A")[0]["loops"]}"'


PLANTED = """(() => { const m = document.querySelector('main'), add = (tag, props, text) => {
  const e = Object.assign(document.createElement(tag), props); e.append(text ?? ''); m.append(e); return e; };
  add('button', {type: 'button'}); add('input', {id: 'prompt'}); add('label', {htmlFor: 'nowhere'}, 'x'); add('h4', {}, 'deep'); add('h1', {}, 'two');
  add('a', {href: '#', tabIndex: 3}, 'i'); add('p', {}, 'grey').style.color = '#999'; add('p', {}, 'wide').style.width = '5000px';
  add('span', {className: 'tok differs'}, 't').style.boxShadow = 'inset 0 -3px #eee'; add('div', {role: 'wizard'}, 'x');
  document.body.append(Object.assign(document.createElement('div'), {textContent: 'outside'})); document.documentElement.lang = ''; })()"""


@in_browser
def test_audit_finds_what_is_planted(chromium, demo):
    with page(chromium, demo) as b:
        b.scheme("light")
        assert b.js(AUDIT) == []
        b.js(PLANTED)
        found = "\n".join(b.js(AUDIT))
        for fault in ["no name: <button", "no name: <input #prompt", "id twice: prompt", "for leads nowhere: nowhere", "heading 4 behind 2", "not one h1", "positive tabindex",
                      "target of", '4.5: text of <p> "grey"', "wider than the window", "mark of <span .tok differs>", "unknown role", "outside of all landmarks", "no language"]:
            assert fault in found, (fault, found)


@in_browser
def test_looks(chromium, demo):
    """Both schemes, by the system and by hand, wide and narrow: contrast, names, sizes, and two columns only where there is room."""
    with page(chromium, demo) as b:
        assert b.js(AUDIT) == []
        b.click("#compare")
        b.click("#counts")
        b.fill("#max-tokens", "40")
        b.fill("#prompt", "Loops: ")
        b.set("#threshold-A", varied(demo, "Loops: ", 40))
        run(b)
        assert len({t["loops"] for t in b.js(TOKENS % "A")}) >= 3 and any(t["differs"] for t in b.js(TOKENS % "A"))
        back = {}
        for scheme, chosen in [("light", ""), ("dark", ""), ("dark", "light"), ("light", "dark")]:
            b.scheme(scheme)
            b.set("#theme", chosen)
            for width in [1280, 320]:
                b.size(width, 800)
                b.hover("#output-A .tok")
                b.wait("!document.getElementById('card').hidden")
                assert b.js(AUDIT) == [], (scheme, chosen, width)
                card = b.js("(({left, right, top, bottom}) => left >= 0 && right <= innerWidth && top >= 0 && bottom <= innerHeight)(document.getElementById('card').getBoundingClientRect())")
                tops = b.js("[...document.querySelectorAll('.pane')].map((e) => e.getBoundingClientRect().top)")
                assert card and (tops[0] == tops[1]) == (width == 1280)
            back.setdefault(chosen or scheme, set()).add(b.js("getComputedStyle(document.body).backgroundColor"))
        assert all(len(v) == 1 for v in back.values()) and back["light"] != back["dark"]
