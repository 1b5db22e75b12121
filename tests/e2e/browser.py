"""Headless Chromium, driven over the DevTools protocol through two pipes: messages of JSON that end with a NUL byte.

Nothing but the browser itself is needed. One tab; everything that it logs, throws or asks for is kept.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
MISSING = "no chromium here; ./do deps installs Debian's package chromium, and without it the page is not tested"
FLAGS = ["--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu", "--disable-extensions",
         "--disable-component-update", "--disable-background-networking", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--force-color-profile=srgb", "--lang=en-US", "--password-store=basic", "--window-size=1280,900"]
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), " ": (32, " "), "ArrowLeft": (37, ""), "ArrowRight": (39, ""), "Home": (36, ""), "End": (35, "")}
CTRL, SHIFT = 2, 8


class Browser:
    def __init__(self):
        self.home = tempfile.mkdtemp(prefix="gyre-chromium-")
        to_read, self.to = os.pipe()
        self.came, to_write = os.pipe()
        # The sandbox needs namespaces that containers of tests do not give to root.
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        self.p = subprocess.Popen([PROGRAM, *FLAGS, *root, f"--user-data-dir={self.home}", "about:blank"], pass_fds=[3, 4],
                                  preexec_fn=lambda: place(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self.rest, self.n, self.session, self.context = b"", 0, None, None

    def close(self):
        self.send("Browser.close", {}, None)
        try:
            self.p.wait(10)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
        os.close(self.to)
        os.close(self.came)
        shutil.rmtree(self.home, ignore_errors=True)

    def fresh(self):
        """A tab without cookies, cache or history of those before."""
        if self.context:
            self.call("Target.disposeBrowserContext", {"browserContextId": self.context}, None)
        self.requests, self.problems, self.handlers = [], [], {}
        self.context = self.call("Target.createBrowserContext", {}, None)["browserContextId"]
        target = self.call("Target.createTarget", {"url": "about:blank", "browserContextId": self.context, "width": 1280, "height": 900}, None)["targetId"]
        self.session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True}, None)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")

    # ---- messages ----

    def send(self, method, params, session):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params, **({"sessionId": session} if session else {})}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        return self.n

    def receive(self, limit):
        """The next message, None if none came in time."""
        end = time.monotonic() + limit
        while b"\0" not in self.rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.came], [], [], left)[0]:
                return None
            data = os.read(self.came, 1 << 20)
            assert data, f"the browser ended with {self.p.wait()}"
            self.rest += data
        one, self.rest = self.rest.split(b"\0", 1)
        return json.loads(one)

    def call(self, method, params=None, session=""):
        session = self.session if session == "" else session
        n = self.send(method, params or {}, session)
        while True:
            m = self.receive(120)
            assert m is not None, f"no answer to {method}"
            if m.get("id") == n:
                assert "error" not in m, (method, params, m["error"])
                return m["result"]
            self.note(m)

    def note(self, m):
        kind, p = m.get("method"), m.get("params")
        if m.get("sessionId") != self.session:
            return
        if kind == "Network.requestWillBeSent":
            self.requests.append(p["request"])
        elif kind == "Runtime.exceptionThrown":
            self.problems.append(p["exceptionDetails"].get("exception", {}).get("description") or p["exceptionDetails"]["text"])
        elif kind == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in p["args"]))
        elif kind == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.problems.append(p["entry"]["text"])
        elif kind in self.handlers:
            self.handlers[kind](p)

    # ---- the page ----

    def goto(self, url):
        self.call("Page.navigate", {"url": url})
        self.wait("document.readyState === 'complete'")

    def js(self, code):
        """The value of an expression; a promise is waited for."""
        r = self.call("Runtime.evaluate", {"expression": code, "awaitPromise": True, "returnByValue": True})
        assert "exceptionDetails" not in r, (code, r["exceptionDetails"])
        return r["result"].get("value")

    def wait(self, condition, limit=60):
        end = time.monotonic() + limit
        while not self.js(condition):
            assert time.monotonic() < end, f"never true: {condition}; problems: {self.problems}; the page says: {self.js('document.body.innerText')[:1500]}"
            m = self.receive(0.01)
            if m:
                self.note(m)

    def point(self, selector):
        """The middle of an element's first line, in view."""
        return self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}});"
                       " const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2]; })()")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def hover(self, selector):
        self.mouse("mouseMoved", *self.point(selector))

    def click(self, selector):
        at = self.point(selector)
        for kind in ["mouseMoved", "mousePressed", "mouseReleased"]:
            self.mouse(kind, *at, **({} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}))

    def key(self, name, modifiers=0):
        code, text = KEYS[name]
        base = {"key": name, "code": "Space" if name == " " else name, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", {"type": "keyDown", **base, **({"text": text} if text and not modifiers else {})})
        self.call("Input.dispatchKeyEvent", {"type": "keyUp", **base})

    def fill(self, selector, text):
        """Types over what is there."""
        self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus(); e.select(); }})()")
        if text:
            self.call("Input.insertText", {"text": text})
        else:
            self.js("document.execCommand('delete')")

    def set(self, selector, value):
        """A slider or a choice, as by hand."""
        self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(str(value))};"
                " for (const k of ['input', 'change']) e.dispatchEvent(new Event(k, {bubbles: true})); })()")

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def screenshot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", {"format": "png"})["data"]))


def place(to_read, to_write):
    """In the child: the pipes become descriptors 3 and 4, wherever they were."""
    a, b = os.dup(to_read), os.dup(to_write)
    while a < 5:
        a = os.dup(a)
    while b < 5:
        b = os.dup(b)
    os.dup2(a, 3)
    os.dup2(b, 4)
