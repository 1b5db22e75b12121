"""The playground of gyre serve: its files over HTTP, then the page in headless Chromium (browser.py).

What the page shows is compared with what the API answers to the same request.
"""

import re

import pytest

from program import ROOT
from test_serve import DEMO, serve

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
