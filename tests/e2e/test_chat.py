"""gyre chat as a person and as a pipe see it: pseudo-terminals, a small terminal emulator that knows what the screen shows,
the demo model, and an OpenAI server of the test's own that says what it is told to.

What the local model must say comes from gyre run with the prompt that the template makes.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
import unicodedata
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from program import DEMO, GYRE, LASTING, ROOT, gyre, roomy

CHATML = str(ROOT / "tests/golden/chat/templates/chatml.jinja")
LOCAL = ["chat", DEMO, "--chat-template", CHATML, "--temperature", "0"]
NOTE = f"gyre: note: {DEMO} has random weights: its text means nothing\n"


def chatml(*messages):
    roles = ["user", "assistant"]
    text = "".join(f"<|im_start|>{roles[i % 2]}\n{m}<|im_end|>\n\n" for i, m in enumerate(messages))
    return text + "<|im_start|>assistant\n\n"  # the line ends of that file are part of it


def run_text(prompt, n):
    return gyre("run", DEMO, "--prompt", prompt, "--max-tokens", n, "--json")[0]


def said(prompt, n):
    return json.loads(run_text(prompt, n))["text"]


# ---- a server that says what it is told ------------------------------------------------------------------------------------


def piece(content=None, loops=None, **delta):
    if content is not None:
        delta["content"] = content
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return {"choices": [choice | ({"loops": loops} if loops else {})]}


def usage(prompt, output):
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}}


END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def handle(self):
        with contextlib.suppress(ConnectionError):
            super().handle()

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        f = self.server.fake
        f.seen.append((self.path, dict(self.headers), None))
        self.reply(*f.models)

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def do_POST(self):
        f = self.server.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        f.seen.append((self.path, dict(self.headers), body))
        answer = f.script.pop(0) if f.script else [piece("ok"), END]
        if isinstance(answer, tuple):
            return self.reply(*answer)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in answer:
                if callable(event):
                    event = event()
                if event == "leave":
                    self.close_connection = True
                    continue
                if event == "break":
                    self.close_connection = True
                    return self.connection.shutdown(socket.SHUT_RDWR)
                if isinstance(event, (int, float)):
                    time.sleep(event)
                elif event:
                    self.chunk(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
            self.chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            f.left.set()


class Fake:
    """script: one entry a POST: a list of events (a number: a pause; "break": the
    connection ends here, "leave": behind the reply), or (status, body)."""

    def __init__(self):
        self.script, self.seen, self.left = [], [], threading.Event()
        self.models = (200, {"data": [{"id": "fake-model", "max_model_len": 100}, {"id": "other"}]})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads, self.http.fake = True, self
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def bodies(self):
        return [b for _, _, b in self.seen if b]

    def asked(self, n):
        end = time.monotonic() + 60
        while len(self.bodies()) < n:
            assert time.monotonic() < end
            time.sleep(0.01)


@pytest.fixture
def fake():
    f = Fake()
    yield f
    f.http.shutdown()
    f.http.server_close()


# ---- a terminal ------------------------------------------------------------------------------------------------------------


class Screen:
    """What a terminal shows: wrapping (with the pending wrap at the right edge), scrolling, and the sequences gyre uses."""

    def __init__(self, cols, rows):
        self.cols, self.rows = cols, rows
        self.lines = [[" "] * cols for _ in range(rows)]
        self.x = self.y = 0
        self.pending = False
        self.saved = (0, 0, False)
        self.history = []
        self.rest = ""

    def down(self):
        if self.y == self.rows - 1:
            self.history.append("".join(self.lines.pop(0)).rstrip())
            self.lines.append([" "] * self.cols)
        else:
            self.y += 1

    def put(self, c):
        w = 0 if unicodedata.combining(c) or c in "\u200d\ufe0f" else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        if w == 0:
            return
        if self.pending or self.x + w > self.cols:
            self.x, self.pending = 0, False
            self.down()
        self.lines[self.y][self.x] = c
        if w == 2:
            self.lines[self.y][self.x + 1] = ""
        self.x += w
        if self.x == self.cols:
            self.x, self.pending = self.cols - 1, True

    def csi(self, args, final):
        n = int(args) if args.isdigit() else 0
        if final in "hlm" or args.startswith("?"):
            return
        self.pending = False
        if final == "J" and n == 0:
            self.lines[self.y][self.x:] = [" "] * (self.cols - self.x)
            for y in range(self.y + 1, self.rows):
                self.lines[y] = [" "] * self.cols
        elif final == "K" and n == 0:
            self.lines[self.y][self.x:] = [" "] * (self.cols - self.x)
        elif final == "A":
            self.y = max(0, self.y - max(n, 1))
        elif final == "B":
            self.y = min(self.rows - 1, self.y + max(n, 1))
        elif final == "C":
            self.x = min(self.cols - 1, self.x + max(n, 1))
        elif final == "D":
            self.x = max(0, self.x - max(n, 1))
        elif final == "H":
            self.x = self.y = 0

    def feed(self, text):
        text, i = self.rest + text, 0
        self.rest = ""
        while i < len(text):
            c = text[i]
            if c == "\x1b":
                m = re.compile(r"\x1b(?:\[([0-9;?]*)([@-~])|([DM78=>])|\(.)").match(text, i)
                if not m:
                    self.rest = text[i:]
                    return
                if m.group(2):
                    self.csi(m.group(1), m.group(2))
                elif m.group(3) == "D":
                    self.pending = False
                    self.down()
                elif m.group(3) == "M":
                    self.pending, self.y = False, max(0, self.y - 1)
                elif m.group(3) == "7":
                    self.saved = (self.x, self.y, self.pending)
                elif m.group(3) == "8":
                    self.x, self.y, self.pending = self.saved
                i = m.end()
                continue
            if c == "\r":
                self.x, self.pending = 0, False
            elif c == "\n":
                self.pending = False
                self.down()
            elif c == "\b":
                self.x, self.pending = max(0, self.x - 1), False
            elif c == "\t":
                self.x = min(self.cols - 1, (self.x // 8 + 1) * 8)
            elif c >= " ":
                self.put(c)
            i += 1

    def all(self):
        return self.history + ["".join(line).rstrip() for line in self.lines]


class Tty:
    def __init__(self, *args, home, cols=80, rows=24, program=GYRE, **env):
        env = {**os.environ, "TERM": "xterm-256color", "HOME": str(home), "LC_ALL": "C.UTF-8", **env}
        for name in ("NO_COLOR", "COLORTERM", "XDG_STATE_HOME"):
            if name not in env or env[name] is None:
                env.pop(name, None)
        self.fd, terminal = pty.openpty()
        self.modes = termios.tcgetattr(terminal)  # before the program can change them
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
            for i in range(3):
                os.dup2(terminal, i)
            os.execve(program, [program, *map(str, args)], {k: v for k, v in env.items() if v is not None})
        os.close(terminal)
        self.out, self.mark, self.bytes = "", 0, b""
        self.screen = Screen(cols, rows)
        self.code = None

    def pump(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        self.bytes += data
        n = len(self.bytes)
        while n and n > len(self.bytes) - 4:  # a character may be cut
            try:
                text = self.bytes[:n].decode()
                break
            except UnicodeDecodeError:
                n -= 1
        else:
            text = self.bytes.decode(errors="replace")
            n = len(self.bytes)
        self.bytes = self.bytes[n:]
        self.out += text
        self.screen.feed(text)
        return bool(data)

    def until(self, what, seconds=60):
        """Waits for text behind what was waited for before; returns what came in between."""
        end = time.monotonic() + seconds
        while True:
            at = self.out.find(what, self.mark)
            if at >= 0:
                between = self.out[self.mark:at]
                self.mark = at + len(what)
                return between
            assert time.monotonic() < end, f"no {what!r} in {self.out[self.mark:]!r}"
            alive = self.pump(0.2)
            assert alive or what in self.out[self.mark:], f"ended without {what!r}: {self.out[self.mark:]!r}"

    def prompt(self):
        return self.until("\x1b[?2004h> ")

    def type(self, text):
        os.write(self.fd, text.encode())

    def say(self, line):
        """Types a line, returns all that came until the next prompt."""
        self.type(line + "\r")
        return self.prompt()

    def resize(self, cols, rows):
        self.screen.cols = cols
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def fill(self):
        """Waits until what is written lies in the terminal and no more fits: nobody reads meanwhile."""
        end, same, before = time.monotonic() + 60, 0, -1
        while same < 10:
            now = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, bytes(4)))[0]
            same, before = same + 1 if now == before and now else 0, now
            assert time.monotonic() < end, now
            time.sleep(0.05)

    def wait(self, code=0):
        end = time.monotonic() + 60
        while self.code is None:
            self.pump(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            assert time.monotonic() < end, self.out
        while select.select([self.fd], [], [], 0)[0] and self.pump(0):
            pass
        assert "Sanitizer" not in self.out, self.out
        assert self.code == code, self.out
        return self.out

    def quit(self, code=0):
        self.type("\x04")
        return self.wait(code)

    def is_cooked(self):
        return termios.tcgetattr(self.fd)[3] == self.modes[3]


@contextlib.contextmanager
def tty(*args, **kw):
    t = Tty(*args, **kw)
    try:
        yield t
    finally:
        if t.code is None:
            os.kill(t.pid, signal.SIGKILL)
            os.waitpid(t.pid, 0)
        os.close(t.fd)


def plain(text):
    return re.sub(r"\x1b(\[[0-9;?]*[@-~]|[DM78])", "", text).replace("\r\n", "\n")


# ---- pipes, the local model ------------------------------------------------------------------------------------------------


def test_a_turn_a_line():
    first = said(chatml("hi"), 12)
    second = said(chatml("hi", first, "and /then"), 12)
    out, err = gyre(*LOCAL, "--max-tokens", 12, stdin=b"hi\n\nand /then")
    assert out == f"{first}\n{second}\n" and err == NOTE
    assert gyre(*LOCAL, "--max-tokens", 12, "--message", "hi", "--message", "and /then", stdin=b"not read\n")[0] == out
    assert gyre(*LOCAL, stdin=b"") == ("", NOTE)


def test_options_reach_the_engine():
    prompt = chatml("x")
    for options in (["--exit", "gate", "--exit-threshold", "0.5"], ["--max-loops", "2"], ["--temperature", "0.8", "--seed", "7"],
                    ["--stop", "V"], ["--repetition-penalty", "1.5"], ["--ignore-eos", "--kv-layout", "shared"]):
        want = json.loads(gyre("run", DEMO, "--prompt", prompt, "--max-tokens", 9, "--json", *options)[0])["text"]
        assert gyre(*LOCAL, "--max-tokens", 9, "--message", "x", *options)[0].rstrip("\n") == want.rstrip("\n"), options


def test_raw_continues(tmp_path):
    first = said("Once upon", 7)
    second = said("Once upon" + first + " again", 7)
    out, err = gyre("chat", DEMO, "--raw", "--temperature", 0, "--max-tokens", 7, stdin=b"Once upon\n again\n")
    assert out == f"{first}\n{second}\n" and err == NOTE
    config = tmp_path / "c.json"
    config.write_text('{"raw": true, "temperature": 0, "max_tokens": 7}')
    assert gyre("chat", DEMO, "--config", config, stdin=b"Once upon\n again\n")[0] == out


def test_no_template():
    out, err = gyre("chat", DEMO, "--message", "x", code=2)
    assert out == "" and "this model has no chat template" in err
    assert "--raw lets the model continue plain text; so does gyre run. Or give a --chat-template FILE." in err


def test_context_full():
    out, err = gyre(*LOCAL, "--max-tokens", 8, stdin=b"hi\n" + b"long " * 200 + b"\nnot asked\n", code=2)
    assert out.count("\n") == 1 and "(context)" in err


def test_load_failures(tmp_path):
    assert "not a folder" in gyre("chat", tmp_path / "none", "--message", "x", code=1)[1]
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((ROOT / "models/demo" / name).read_bytes())
    (tmp_path / "model.safetensors").write_bytes((ROOT / "models/demo/model.safetensors").read_bytes()[:9999])
    assert "model.safetensors" in gyre("chat", tmp_path, "--message", "x", code=1)[1]
    assert "--max-len: " in gyre("chat", DEMO, "--max-len", 100000, "--message", "x", code=2)[1]
    assert "no/such" in gyre("chat", DEMO, "--chat-template", "/no/such", "--message", "x", code=1)[1]


MISTAKES = [
    (["chat", DEMO, "--url", "http://x"], "--url: found with MODEL"),
    (["chat", "--url", "http://x", "--threads", "2"], "--threads: has no meaning with --url"),
    (["chat", "--url", "http://x", "--max-len", "2"], "--max-len: has no meaning with --url"),
    (["chat", "--model", "x"], "--model: has no meaning without --url"),
    (["chat", DEMO, "--raw", "--system", "x"], "--system: has no meaning with --raw"),
    (["chat", DEMO, "--exit", "trace:x"], "--exit: found trace:FILE"),
    (["chat", DEMO, "--enable-thinking", "maybe"], "--enable-thinking: found 'maybe'"),
    (["chat", DEMO, "--message", ""], "--message: found an empty text"),
    (["chat", DEMO, "--temperature", "-1"], "--temperature"),
    (["chat", DEMO, "--n", "2"], "unknown option --n"),
    (["chat", "--url", "ftp://x", "--message", "x"], "ftp"),
]


@pytest.mark.parametrize("args, message", MISTAKES, ids=[" ".join(m[0][-2:]) for m in MISTAKES])
def test_mistakes(args, message):
    assert message in gyre(*args, code=2)[1]


def test_help_and_manual():
    options = set(re.findall(r"^  --([a-z0-9-]+)", gyre("chat", "--help")[0], re.M))
    manual = (ROOT / "docs/gyre.1").read_text().replace("\\-", "-")
    section = re.search(r'^\.SS "?gyre chat\b.*?(?=^\.S[SH])', manual, re.M | re.S).group(0)
    common = re.search(r'^\.SS "?Options of.*?(?=^\.S[SH])', manual, re.M | re.S).group(0)
    documented = set(re.findall(r"--([a-z0-9-]+)", section + common))
    assert options <= documented, options - documented


# ---- pipes, another server -------------------------------------------------------------------------------------------------


def test_what_is_asked(fake, tmp_path):
    fake.script = [[piece(role="assistant", content=""), piece("Hel"), piece("lo\x1b[1m"), END, usage(3, 2)], [piece("B"), END]]
    key = tmp_path / "key"
    key.write_text("secret\n")
    out, err = gyre("chat", "--url", fake.url + "/v1", "--api-key", f"@{key}", "--system", "be brief", "--temperature", "0.5",
                    "--exit", "gate", "--enable-thinking", "off", stdin="eins ü\nzwei\n".encode())
    assert out == "Hello\x1b[1m\nB\n" and err == ""  # a pipe gets the bytes as they are
    assert [p for p, _, _ in fake.seen] == ["/v1/models"] + ["/v1/chat/completions"] * 2
    assert all(h["Authorization"] == "Bearer secret" for _, h, _ in fake.seen)
    first, second = fake.bodies()
    assert first == {"model": "fake-model", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.5,
                     "exit": "gate", "chat_template_kwargs": {"enable_thinking": False},
                     "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "eins ü"}]}
    assert second["messages"][2:] == [{"role": "assistant", "content": "Hello\x1b[1m"}, {"role": "user", "content": "zwei"}]


def test_reasoning_is_no_answer(fake):
    fake.script = [[piece(reasoning_content="hm"), piece(reasoning=" so"), piece("42"), END]]
    assert gyre("chat", "--url", fake.url, "--model", "other", "--message", "x")[0] == "42\n"
    assert fake.bodies()[0]["model"] == "other"


def test_raw_asks_for_completions(fake):
    text = {"choices": [{"index": 0, "text": " of time", "finish_reason": None}]}
    fake.script = [[text, END]]
    assert gyre("chat", "--url", fake.url, "--raw", "--message", "the end")[0] == " of time\n"
    assert fake.seen[1][0] == "/v1/completions" and fake.bodies()[0]["prompt"] == "the end"


@pytest.mark.parametrize("reply, code, out, message", [
    ((401, {"error": {"message": "who are \x1b[31myou", "code": "invalid_api_key"}}), 2, "", "who are "),
    ((400, {"error": {"message": "bad"}}), 2, "", "bad"),
    ((404, {"detail": "no such route"}), 2, "", "no such route"),
    ((429, {"error": {"message": "later"}}), 1, "", "later"),
    ((500, {"error": {"message": "broken"}}), 1, "", "broken"),
    ((503, {"error": {"message": "loading"}}), 1, "", "loading"),
    ([piece("par"), {"error": {"message": "lost", "code": 500}}], 1, "par\n", "lost"),
    ([piece("par"), "break"], 1, "par\n", ""),
])
def test_failures(fake, reply, code, out, message):
    fake.script = [reply]
    got, err = gyre("chat", "--url", fake.url, stdin=b"x\nnot asked\n", code=code)
    assert got == out and message in err and err.startswith("gyre: ") and "\x1b" not in err
    assert len(fake.bodies()) == 1


def test_no_server(fake):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        err = gyre("chat", "--url", f"http://127.0.0.1:{s.getsockname()[1]}", "--message", "x", code=1)[1]
        assert "onnect" in err
    fake.models = (401, {"error": {"message": "a key is needed"}})
    assert "a key is needed" in gyre("chat", "--url", fake.url, "--message", "x", code=2)[1]
    fake.models = (404, {"error": {"message": "no models here"}})
    assert "no models here" in gyre("chat", "--url", fake.url, "--message", "x", code=1)[1]
    assert gyre("chat", "--url", fake.url, "--model", "m", "--message", "x")[0] == "ok\n"
    fake.models = (200, {"data": []})
    assert "name one with --model" in gyre("chat", "--url", fake.url, "--message", "x", code=1)[1]


def test_server_that_hangs_up_between_turns(fake):
    fake.script = [["leave", piece("one"), END], ["leave", piece("two"), END]]
    assert gyre("chat", "--url", fake.url, stdin=b"a\nb\nc\n")[0] == "one\ntwo\nok\n"


def test_what_is_no_event(fake):
    for text in ("[1]", "3", "nothing"):
        fake.script = [[piece("a"), text]]
        out, err = gyre("chat", "--url", fake.url, "--message", "x", code=1)
        assert out == "a\n" and err.startswith("gyre: ")


def test_reader_that_leaves(fake):
    fake.script = [[x for _ in range(2000) for x in (piece("text " * 50), 0.001)]]
    p = subprocess.Popen([GYRE, "chat", "--url", fake.url, "--message", "x"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(10)
    p.stdout.close()
    assert p.wait(60) == 1 and p.stderr.read() == b""
    p.stderr.close()
    assert fake.left.wait(60)


def test_interrupt_in_a_pipe(fake):
    for signo in (signal.SIGINT, signal.SIGTERM):
        fake.left.clear()
        fake.script = [[piece("begun"), *[x for _ in range(500) for x in (0.02, piece("."))]]]
        p = subprocess.Popen([GYRE, "chat", "--url", fake.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        p.stdin.write(b"x\n")
        p.stdin.flush()
        assert p.stdout.read(5) == b"begun"
        p.send_signal(signo)
        out, err = p.communicate(timeout=60)
        assert p.returncode == 1 and err == b"" and out.endswith(b"\n")
        assert fake.left.wait(60)


# ---- a terminal ------------------------------------------------------------------------------------------------------------


def test_local_conversation(tmp_path):
    first, second = said(chatml("hi"), 20), said(chatml("hi", said(chatml("hi"), 20), "more"), 20)
    with tty(*LOCAL, "--max-tokens", 20, home=tmp_path) as t:
        t.prompt()
        answer = plain(t.say("hi"))
        assert first in t.screen.all()
        assert re.search(r"depth 4\.0 of 4 █+ \| cut \(length\) \| [\d.]+ tok/s \| TTFT [\d.]+ s \| 20 tokens\n", answer), answer
        t.say("more")
        assert second in t.screen.all()
        show = plain(t.say("/show"))
        used = int(re.search(r"tokens used +(\d+)", show).group(1))
        assert re.search(rf"context +512\n +context left +{512 - used}\n", show) and "2 with answers" in show
        stats = plain(t.say("/stats"))
        assert re.search(r"answers +2\n", stats) and re.search(r"output tokens +40\n", stats)
        assert re.search(r" 4  loops +40 █+\n", stats) and "4.00 loops a token" in stats
        assert not re.search(r"\(0 from the cache", stats)  # the second turn begins with the first
        t.quit()
        assert t.is_cooked()


def test_stop_an_answer_of_the_local_model(tmp_path):
    args = ["chat", roomy(tmp_path), *LOCAL[2:], "--max-tokens", LASTING["max_tokens"], "--ignore-eos"]
    with tty(*args, home=tmp_path) as t:
        t.prompt()
        t.type("hi\r")
        t.until("tok")
        t.type("\x03")
        end = plain(t.prompt())
        assert "stopped" in end
        for line in ("/set max_tokens 5", "again"):
            answer = plain(t.say(line))
        assert "5 tokens" in answer
        t.type("/save " + str(tmp_path / "c.json") + "\r")
        t.prompt()
        messages = json.loads((tmp_path / "c.json").read_text())["messages"]
        assert [m.get("stopped") for m in messages] == [None, True, None, None]
        assert 0 < len(messages[1]["content"]) < LASTING["max_tokens"]
        t.type("/quit\r")
        t.wait()


def test_what_is_shown(fake, tmp_path):
    fake.script = [[piece(role="assistant", content=""), piece(reasoning_content="let me "), piece(reasoning_content="see"),
                    piece("evil \x1b[2J\x9b1m\u202e", [1]), piece(" text\r\nline", [4]), piece(" two", [2]),
                    piece(tool_calls=[{"index": 0, "id": "c", "function": {"name": "look", "arguments": "{\"a\":"}}]),
                    piece(tool_calls=[{"index": 0, "function": {"arguments": "1}"}}]), END, usage(90, 5)]]
    with tty("chat", "--url", fake.url, home=tmp_path, cols=60) as t:
        t.prompt()
        raw = t.say("x")
        assert "\x1b[2mlet me \x1b[0m" in raw  # dim
        assert "\x1b[2J" not in raw and "\x9b" not in raw and "\u202e" not in raw
        text = "\n".join(t.screen.all())
        assert "x\nlet me see\n\nevil \\x1b[2J\\x9b1m\\u202e text\nline two\n\nlook {\"a\":1}\ndepth 2.3 of 4 ▂█▄ | " in text
        assert "gyre: note: 5 of 100 tokens of context are left; /trim" in plain(raw)
        t.quit()


def test_no_color(fake, tmp_path):
    fake.script = [[piece(reasoning="hm"), piece("yes", [3]), END]]
    with tty("chat", "--url", fake.url, "--depth", "color", home=tmp_path, NO_COLOR="1") as t:
        t.prompt()
        raw = t.say("x")
        assert not re.search(r"\x1b\[[0-9;]*m", raw)
        assert "[thinking]\nhm\n\n[answer]\nyes\ndepth 3.0 of 3" in "\n".join(t.screen.all())
        assert "no 256 colours" in plain(t.say("/depth color"))
        t.quit()


def test_dumb_terminal(fake, tmp_path):
    fake.script = [[piece("yes", [3]), END]]
    with tty("chat", "--url", fake.url, home=tmp_path, TERM="dumb") as t:
        t.until("> ")
        t.type("x\r")
        t.until("depth 3.0 of 3")
        assert not re.search(r"\x1b([DM78]|\[[0-9;]*[mJK])", t.out)
        t.quit()


def test_depth_colors(fake, tmp_path):
    events = [piece("a", [1]), piece("b", [4]), END]
    fake.script = [events, events, events]
    with tty("chat", "--url", fake.url, "--depth", "color", home=tmp_path) as t:
        t.prompt()
        t.say("x")
        raw = t.say("x")
        assert "\x1b[38;5;164mb\x1b[0m" in raw and "\x1b[38;5;27ma\x1b[0m" in raw
        t.say("/depth none")
        raw = t.say("x")
        assert "depth" not in raw and "\x1b[38" not in raw and "ab" in raw
        t.quit()
    fake.script = [events]
    with tty("chat", "--url", fake.url, "--depth", "color", home=tmp_path, COLORTERM="truecolor") as t:
        t.prompt()
        assert "\x1b[38;2;215;0;215mb" in t.say("x")
        t.quit()


TEXT = "One 世界 two, thr\u00e9e e\u0301 and 你好你好你好 four five.\n\nA line that is long enough to wrap in each of these windows, twice.\n" * 3


@pytest.mark.parametrize("cols", [12, 20, 21, 33, 40, 80])
def test_status_line_spares_the_text(fake, tmp_path, cols):
    """Pieces of one and more characters, with pauses so that the line is redrawn: the text is what a plain copy shows."""
    pieces, i = [], 0
    while i < len(TEXT):
        n = 1 + len(pieces) % 4
        pieces.append(TEXT[i:i + n])
        i += n
    events = []

    def pause():
        """Until the line is drawn again, where there is one."""
        n, end = t.out.count("\x1b7"), time.monotonic() + (3 if cols >= 20 else 0.11)
        while t.out.count("\x1b7") == n and time.monotonic() < end:
            time.sleep(0.01)

    for k, p in enumerate(pieces):
        events.append(piece(p, [1 + k % 4]))
        if k % 25 == 0:
            events.append(pause)
    fake.script = [[*events, END]]
    with tty("chat", "--url", fake.url, home=tmp_path, cols=cols, rows=8) as t:
        t.prompt()
        t.say("x")
        want = Screen(cols, 200)
        want.feed(TEXT.replace("\n", "\r\n"))
        lines = t.screen.all()
        at = lines.index("> x") + 1
        n = want.y
        assert lines[at:at + n] == want.all()[:n]
        last = lines[at + n]
        assert last.startswith("depth 2.5 of 4") if cols >= 15 else last == ">"
        assert len(last) < cols
        if cols >= 20:
            assert t.out.count("\x1b7") >= 3
        t.quit()


def test_window_changes_meanwhile(fake, tmp_path):
    go = threading.Event()
    fake.script = [[piece("before ", [2]), 0.15, piece("it, ", [2]), lambda: go.wait(60) and None, piece("after", [2]), END]]
    with tty("chat", "--url", fake.url, home=tmp_path, cols=80) as t:
        t.prompt()
        t.type("x\r")
        t.until("it, ")
        t.resize(40, 24)
        time.sleep(0.2)
        go.set()
        raw = t.prompt()
        status = [line for line in plain(raw).split("\n") if line.startswith("depth")]
        assert status and all(len(s) < 40 for s in status)
        t.quit()


def test_signals_while_the_terminal_takes_nothing(fake, tmp_path):
    """A write that waits for the terminal goes on behind a signal: stdio would keep its failure, and the chat end."""
    fake.script = [[piece(f"line {i} " + 60 * "." + "\n", [2]) for i in range(1200)] + [piece("the end", [2]), END]]
    with tty("chat", "--url", fake.url, home=tmp_path) as t:
        t.prompt()
        t.type("x\r")
        t.until("line 0 ")
        t.fill()
        for cols in range(70, 80):
            t.resize(cols, 24)
            time.sleep(0.02)
        t.until("the end")
        t.prompt()
        t.quit()


def test_window_changes_at_the_prompt(fake, tmp_path):
    with tty("chat", "--url", fake.url, home=tmp_path) as t:
        t.prompt()
        t.type("abc")
        t.until("abc")
        t.resize(30, 10)
        time.sleep(0.1)
        t.type("def\r")
        t.until("ok")
        assert fake.bodies()[-1]["messages"][-1]["content"] == "abcdef"
        t.prompt()
        t.quit()


def test_pipe_to_a_terminal(fake, tmp_path):
    """Input from a pipe, output on a terminal: no prompt, but cleaned and with the line of status."""
    fake.script = [[piece("a\x1b[2Jb", [2]), END]]
    with tty("-c", 'echo hi | "$@"', "sh", GYRE, "chat", "--url", fake.url, home=tmp_path, program="/bin/sh") as t:
        t.wait()
        text, status = t.screen.all()[:2]
        assert text == "a\\x1b[2Jb" and status.startswith("depth 2.0 of 2")
        assert "> " not in t.out and "\x1b[2J" not in t.out
    assert not list(tmp_path.iterdir())


def test_ctrl_c(fake, tmp_path):
    go = threading.Event()
    fake.script = [[piece("par", [2]), piece("tial", [2]), *[x for _ in range(400) for x in (0.02, piece("."))]],
                   [lambda: go.wait(60) and None, *[x for _ in range(100) for x in (0.02, piece("."))]], [piece("ok"), END]]
    with tty("chat", "--url", fake.url, home=tmp_path) as t:
        t.prompt()
        t.type("abc\x03")  # clears the line
        t.until("^C")
        t.prompt()
        t.type("\x03")
        assert "/quit or Ctrl-D ends the program" in t.prompt()
        t.type("x\r")
        t.until("tial")
        t.type("typed ahead\x03")
        assert "stopped" in t.prompt()
        assert fake.left.wait(60)
        t.type("\x15y\r")  # what was typed ahead is there, and can be deleted
        fake.asked(2)
        t.type("\x03")  # before anything was said: the question stays
        t.prompt()
        go.set()
        assert "ok" in t.say("/retry")
        messages = fake.bodies()[-1]["messages"]
        assert messages[0] == {"role": "user", "content": "x"} and messages[1]["content"].startswith("partial")
        assert messages[2] == {"role": "user", "content": "y"} and len(messages) == 3
        t.quit()


def test_many_lines(fake, tmp_path):
    with tty("chat", "--url", fake.url, home=tmp_path) as t:
        t.prompt()
        t.type('"""\r')
        t.until("... ")
        t.type("one\r")
        t.until("... ")
        t.type('/two"""\r')
        t.prompt()
        t.type("three\\\r")
        t.until("... ")
        t.say("four")
        t.type("\x1b[200~five\r/six\t\x1b[31m\r\n\x1b[201~")
        t.until("six")
        t.say(" seven")
        t.type('"""\r')
        t.until("... ")
        t.type("dropped\x03")
        t.prompt()
        t.say("größe 世界 \x1b[D\x1b[D\x7f!")
        t.say("//slash")
        asked = [b["messages"][-1]["content"] for b in fake.bodies()]
        assert asked == ["one\n/two", "three\nfour", "five\n/six\t[31m seven", "größe !界 ", "/slash"]
        t.quit()


def test_history(fake, tmp_path):
    path = tmp_path / ".local/state/gyre/chat_history"
    with tty("chat", "--url", fake.url, home=tmp_path) as t:
        t.prompt()
        t.say("first")
        t.say("back\\\\slash ü")
        t.type('"""a\r')
        t.until("... ")
        t.say('b"""')
        t.quit()
    assert path.read_text() == "first\nback\\\\\\\\slash ü\na\\nb\n" and path.stat().st_mode & 0o777 == 0o600
    with tty("chat", "--url", fake.url, home=tmp_path) as t:
        t.prompt()
        t.type("\x1b[A\x1b[A\x1b[A\r")
        t.prompt()
        t.type("\x12back\x1b\r")  # Ctrl-R
        t.prompt()
        t.quit()
    assert [b["messages"][-1]["content"] for b in fake.bodies()][3:] == ["first", "back\\\\slash ü"]
    other = tmp_path / "other"
    with tty("chat", "--url", fake.url, "--history", other, home=tmp_path) as t:
        t.prompt()
        t.say("there")
        t.quit()
    assert other.read_text() == "there\n" and "there" not in path.read_text()


def test_a_long_history_is_shortened(fake, tmp_path):
    path = tmp_path / "h"
    path.write_text("".join(f"line {i} {'x' * 90}\n" for i in range(15000)))
    with tty("chat", "--url", fake.url, "--history", path, home=tmp_path) as t:
        t.prompt()
        t.say("new")
        t.quit()
    lines = path.read_text().splitlines()
    assert lines[-2].startswith("line 14999 ") and lines[-1] == "new" and path.stat().st_size < 600000
    assert all(re.fullmatch(r"line \d+ x{90}", s) for s in lines[:-1])


@pytest.mark.parametrize("home", ["", "/dev/null"])
def test_no_place_for_the_history(fake, home):
    with tty("chat", "--url", fake.url, home=home) as t:
        before = t.prompt()
        assert plain(before).count("the history is not kept") == 1
        assert "ok" in t.say("x") and "not kept" not in t.say("y")
        t.quit()


def test_no_history(fake, tmp_path):
    with tty("chat", "--url", fake.url, "--history", "none", home=tmp_path) as t:
        assert "history" not in t.prompt()
        t.say("x")
        t.quit()
    assert not list(tmp_path.iterdir())


def test_commands(fake, tmp_path):
    saved = tmp_path / "talk.json"
    with tty("chat", "--url", fake.url, home=tmp_path) as t:
        t.prompt()
        assert "there is no message yet" in t.say("/retry") and "there is no message yet" in t.say("/undo")
        t.say("/system be brief")
        t.say("/set temperature 0.5")
        assert "did you mean temperature?" in t.say("/set temperatur 1")
        assert "expected 0 to 100" in t.say("/set temperature 1000")
        assert "it is sent as it stands" in t.say("/set x_mine [1]")
        t.say("one")
        assert fake.bodies()[-1]["temperature"] == 0.5 and fake.bodies()[-1]["x_mine"] == [1]
        t.say("/set temperature")
        t.say("/retry")
        assert "temperature" not in fake.bodies()[-1]
        assert [m["content"] for m in fake.bodies()[-1]["messages"]] == ["be brief", "one"]
        t.say("two")
        t.say("/save ~/talk.json")
        assert json.loads(saved.read_text())["messages"][0] == {"role": "system", "content": "be brief"}
        t.say("/undo")
        t.say("three")
        assert [m["content"] for m in fake.bodies()[-1]["messages"]] == ["be brief", "one", "ok", "three"]
        t.say("/clear")
        t.say("/system")
        t.say("four")
        assert [m["content"] for m in fake.bodies()[-1]["messages"]] == ["four"]
        t.say(f"/load {saved}")
        t.say("/trim")
        t.say("five")
        assert [m["content"] for m in fake.bodies()[-1]["messages"]] == ["be brief", "two", "ok", "five"]
        assert "No such file" in t.say("/load /no/such") and "cannot be written" in t.say("/save /no/such/dir")
        assert "did you mean /help?" in t.say("/hlep") and "/retry" in t.say("/help")
        fake.script = [[{"choices": [{"index": 0, "text": "!", "finish_reason": "stop"}]}]]
        t.say("/raw")
        t.say(" six")
        assert fake.bodies()[-1]["prompt"] == "twookfiveok six"
        t.quit()
    fake.script = []
    gyre("chat", "--url", fake.url, "--load", saved, "--message", "next")
    assert [m["content"] for m in fake.bodies()[-1]["messages"]] == ["be brief", "one", "ok", "two", "ok", "next"]
    saved.write_text("[1]")
    assert "message 1: expected a text" in gyre("chat", "--url", fake.url, "--load", saved, "--message", "x", code=1)[1]


def test_context_full_on_a_terminal(fake, tmp_path):
    full = (400, {"error": {"message": "maximum context length is 100 tokens", "code": 400}})
    fake.script = [[piece("1"), END], [piece("2"), END], full]
    with tty("chat", "--url", fake.url, home=tmp_path) as t:
        t.prompt()
        t.say("one")
        t.say("two")
        answer = plain(t.say("three"))
        assert "maximum context length" in answer and "/trim forgets its oldest message" in answer
        t.say("/trim")
        assert "ok" in t.say("/retry")
        assert [m["content"] for m in fake.bodies()[-1]["messages"]] == ["two", "2", "three"]
        t.quit()


def test_failures_on_a_terminal_go_on(fake, tmp_path):
    fake.script = [(500, {"error": {"message": "oops \x1b[31m"}}), [piece("half"), "break"], [piece("ok"), END]]
    with tty("chat", "--url", fake.url, home=tmp_path) as t:
        t.prompt()
        raw = t.say("one")
        assert "oops" in raw and "\x1b[31m" not in raw
        assert "failed" in t.say("/retry")
        t.say("two")
        assert [m["content"] for m in fake.bodies()[-1]["messages"]] == ["one", "half", "two"]
        t.quit()


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it(fake, tmp_path, signo):
    with tty("chat", "--url", fake.url, home=tmp_path) as t:
        t.prompt()
        t.type("half a line")
        t.until("line")
        os.kill(t.pid, signo)
        t.wait(1)
        assert t.is_cooked() and t.out.endswith("\x1b[?2004l")
    fake.script = [[piece("begun"), *[x for _ in range(500) for x in (0.02, piece("."))]]]
    with tty("chat", "--url", fake.url, home=tmp_path) as t:
        t.prompt()
        t.type("x\r")
        t.until("begun")
        os.kill(t.pid, signo)
        t.wait(1)
        assert t.is_cooked() and fake.left.wait(60)


def test_suspend_and_go_on(fake, tmp_path):
    """Ctrl-Z under a shell with job control: the terminal is in order while the shell has it, and the line is still there."""
    shell = 'set -m; "$@"; stty -a; fg'
    with tty("-c", shell, "sh", GYRE, "chat", "--url", fake.url, home=tmp_path, program="/bin/bash") as t:
        t.prompt()
        t.type("be")
        t.until("be")
        t.type("\x1a")
        stty = t.until("\x1b[?2004h")
        assert "\x1b[?2004l" in stty and re.search(r"[^-]icanon", stty) and re.search(r"[^-]echo ", stty)
        t.until("be")
        t.say("gun")
        assert fake.bodies()[-1]["messages"][-1]["content"] == "begun"
        t.quit()
