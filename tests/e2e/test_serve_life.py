"""The life of gyre serve: TLS, deadlines, log files, signals, systemd. Clients are Python's ssl, curl and openai's package;
certificates are made by openssl. A lost engine is in tests/unit/test_app_life.c.
"""

import configparser
import contextlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import time

import pytest

from program import DEMO, GYRE, LASTING, ROOT, gyre, roomy
from test_serve import Server, eventually, frames

JSON = {"Content-Type": "application/json"}
C = "/v1/completions"


class Life(Server):
    """Server with an environment of its own, and https where it speaks that. `ca`: what its clients trust."""

    def __init__(self, *args, ca=None, env=None, wait=True, limit=None, model=DEMO):
        self.ca, self.err, self.lines = ca, "", []
        files = limit and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit))
        self.p = subprocess.Popen([GYRE, "serve", str(model), "--port", "0", *map(str, args)], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, env={**os.environ, **(env or {})}, preexec_fn=files)
        scheme, self.port = re.search(r"listening on (https?)://[^ ]*:(\d+)", self.until("listening on")).groups()
        assert scheme == ("https" if ca else "http")
        if wait:
            self.until("serving ")

    def trust(self, *alpn):
        ctx = ssl.create_default_context(cafile=self.ca)
        if alpn:
            ctx.set_alpn_protocols(alpn)
        return ctx

    def ask(self, method, path, body=None, headers=JSON):
        c = (http.client.HTTPSConnection("localhost", self.port, timeout=60, context=self.trust()) if self.ca
             else http.client.HTTPConnection("127.0.0.1", self.port, timeout=60))
        try:
            c.request(method, path, body if body is None or isinstance(body, str) else json.dumps(body), headers)
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def raw(self, text, *alpn):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        if self.ca:
            s = self.trust(*alpn).wrap_socket(s, server_hostname="localhost")
        s.sendall(text.encode())
        return s


@contextlib.contextmanager
def live(*args, **kw):
    s = Life(*args, **kw)
    try:
        yield s
        s.stop()
    finally:
        if s.p.poll() is None:
            s.p.kill()
            s.p.communicate()


def make_cert(folder, name="localhost"):
    """cert.pem and key.pem, signed by itself; the certificate is also what clients trust."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    assert shutil.which("openssl"), "these tests need the program openssl"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-keyout", key, "-out", cert, "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
                   check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return make_cert(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    """A model of which LASTING can be asked."""
    return roomy(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def secure(pair, lasting):
    with live("--tls-cert", pair[0], "--tls-key", pair[1], ca=str(pair[0]), model=lasting) as s:
        yield s


def rest(sock):
    with sock, contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: sock.recv(65536), b""))


# ---- TLS -------------------------------------------------------------------------------------------------------------------


def test_tls_same_answers(secure):
    body = {"prompt": "Once", "max_tokens": 24, "temperature": 0.8, "seed": 5, "ignore_eos": True}
    want = json.loads(gyre("run", DEMO, "--json", "--prompt", "Once", "--max-tokens", 24, "--temperature", 0.8, "--seed", 5,
                           "--ignore-eos")[0])["text"]
    assert secure.post(C, body)["choices"][0]["text"] == want
    status, _, data = secure.ask("POST", C, {**body, "stream": True})
    assert status == 200 and "".join(f["choices"][0]["text"] for f in frames(data)) == want


def test_tls_versions_and_alpn(secure):
    get = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for alpn, want in [((), None), (("h2", "http/1.1"), "http/1.1"), (("http/1.1",), "http/1.1")]:
        s = secure.raw(get, *alpn)
        assert s.selected_alpn_protocol() == want and s.version() == "TLSv1.3"
        assert rest(s).startswith(b"HTTP/1.1 200 ")
    with pytest.raises(ssl.SSLError):
        secure.raw(get, "h2")
    with pytest.raises(ssl.SSLCertVerificationError):
        with socket.create_connection(("127.0.0.1", secure.port)) as s:
            ssl.create_default_context().wrap_socket(s, server_hostname="localhost")
    plain = socket.create_connection(("127.0.0.1", secure.port), timeout=60)
    plain.sendall(get.encode())
    answer = rest(plain)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"this port speaks TLS; use https://" in answer
    assert secure.ask("GET", "/health")[0] == 200


def test_tls_curl(secure, pair):
    curl = shutil.which("curl")
    if not curl:
        pytest.skip("no curl here")
    url = f"https://localhost:{secure.port}{C}"
    p = subprocess.run([curl, "-sS", "--max-time", "60", "--cacert", pair[0], "-H", "Content-Type: application/json", "-d",
                        json.dumps({"prompt": "a", "max_tokens": 2, "ignore_eos": True, "stream": True}), url],
                       capture_output=True, timeout=90)
    assert p.returncode == 0 and len(frames(p.stdout)) >= 2, p.stderr
    p = subprocess.run([curl, "-sS", "--max-time", "60", url], capture_output=True, timeout=90)
    assert p.returncode == 60, p.stderr


def test_tls_openai(secure, pair):
    """The package with its own defaults: httpx over TLS, many at once."""
    openai = pytest.importorskip("openai")
    ctx = ssl.create_default_context(cafile=str(pair[0]))
    http_client = openai.DefaultHttpxClient(verify=ctx)
    with openai.OpenAI(base_url=f"https://localhost:{secure.port}/v1", api_key="none", http_client=http_client) as client:
        whole = client.completions.create(model="demo", prompt="One day", max_tokens=16, seed=1)
        parts = client.completions.create(model="demo", prompt="One day", max_tokens=16, seed=1, stream=True)
        assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="demo", prompt="a", max_tokens=-1)


@pytest.mark.parametrize("stream", [False, True])
def test_tls_disconnect_frees(secure, stream):
    sock = secure.raw_post(C, {**LASTING, "n": 8, "stream": stream})
    eventually(lambda: secure.metric("vllm:num_requests_running") > 0)
    if stream:
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
    sock.close()
    eventually(lambda: secure.metric("vllm:num_requests_running") == 0)


def test_tls_bad_files(tmp_path, pair):
    """All before the model is looked at: this one would fail too."""
    cert, key = pair
    text = tmp_path / "text.pem"
    text.write_text("no certificate\n")
    other = make_cert(tmp_path)[1]
    for args, what in [
        (["--tls-cert", "/no/such"], "/no/such: "),
        (["--tls-cert", text, "--tls-key", key], f"{text}: found no PEM block, expected -----BEGIN CERTIFICATE-----"),
        (["--tls-cert", key, "--tls-key", key], f"{key}: found a PEM block PRIVATE KEY, expected CERTIFICATE"),
        (["--ssl-certfile", cert, "--ssl-keyfile", other], f"{other}: this key does not belong to the certificate"),
        (["--ssl-certfile", cert], f"{cert}: found a PEM block CERTIFICATE, expected PRIVATE KEY"),
    ]:
        err = gyre("serve", tmp_path, "--port", 0, *args, code=1)[1]
        assert what in err and "config.json" not in err
    assert "--tls-key: found without --tls-cert" in gyre("serve", DEMO, "--tls-key", key, code=2)[1]


# ---- SIGHUP ----------------------------------------------------------------------------------------------------------------


def peer_name(s):
    with s.raw("") as sock:
        return dict(x[0] for x in sock.getpeercert()["subject"])["commonName"]


def test_hangup_reopens_all(tmp_path):
    """logrotate and a renewed certificate; what is broken stays as it was, and the log says so."""
    access, log, ca = tmp_path / "access", tmp_path / "log", tmp_path / "ca.pem"
    cert, key = make_cert(tmp_path, "first")
    shutil.copy(cert, ca)
    with live("--ssl-certfile", cert, "--ssl-keyfile", key, "--access-log-file", access, "--log-file", log, "--log-level", "info",
              ca=str(ca)) as s:
        def hangup(says):
            n = log.read_text().count(says) if log.exists() else 0
            s.p.send_signal(signal.SIGHUP)
            eventually(lambda: log.exists() and log.read_text().count(says) > n)

        assert s.ask("GET", "/version")[0] == 200
        eventually(lambda: access.read_text().count("\n") == 1)
        old = s.raw("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert old.recv(65536).startswith(b"HTTP/1.1 200")
        access.rename(tmp_path / "access.1")
        log.rename(tmp_path / "log.1")
        make_cert(tmp_path, "second")
        ca.write_text(ca.read_text() + cert.read_text())
        assert peer_name(s) == "first"
        hangup("the TLS certificate was read again")
        eventually(access.exists)
        assert peer_name(s) == "second"
        old.sendall(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert old.recv(65536).startswith(b"HTTP/1.1 404")
        eventually(lambda: access.read_text().count("target=/nowhere status=404") == 1)
        moved = (tmp_path / "access.1").read_text()
        assert moved.count("target=/version") == 1 and "/nowhere" not in moved
        key.write_text("half written")
        hangup("the TLS certificate stays the old one")
        assert "found no PEM block" in log.read_text() and peer_name(s) == "second"
        access.unlink()
        access.mkdir()
        hangup("the access log cannot be reopened")
        assert s.ask("GET", "/health")[0] == 200
        old.close()
    assert "listening on https://" in s.err


def test_access_log_that_nobody_reads():
    """A pipe that is full holds up neither answers nor the end."""
    with live("--access-log", "json") as s:
        sock = s.raw("")
        page = "GET /" + "x" * 400 + " HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(30):
            sock.sendall(page.encode() * 100)
            data = b""
            while data.count(b"unknown_url") < 100:
                data += sock.recv(1 << 20)
        sock.close()
        assert s.metric("gyre:log_lines_dropped_total") > 0
        s.p.send_signal(signal.SIGTERM)
        assert s.p.wait(timeout=25) == 0  # what is under way may take 30 s by default; nothing is


# ---- deadlines -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_request_timeout(stream, lasting):
    with live("--request-timeout", 0.4, "--max-rows", 1, model=lasting) as s:
        for _ in range(20):
            begin = time.monotonic()
            data = rest(s.raw(post({**LASTING, "n": 8, "stream": stream}, "Connection: close\r\n")))
            assert time.monotonic() - begin > 0.35
            if not stream or data.startswith(b"HTTP/1.1 200 "):
                break  # else the machine stood still, and the deadline came before the first token
        if stream:
            assert data.startswith(b"HTTP/1.1 200 ") and not data.endswith(b"0\r\n\r\n") and b"[DONE]" not in data
            error = json.loads(data.rsplit(b"data: ", 1)[1].split(b"\n\n")[0])["error"]
        else:
            assert data.startswith(b"HTTP/1.1 408 ")
            error = json.loads(data.split(b"\r\n\r\n", 1)[1])["error"]
        assert error["code"] == "deadline_exceeded" and error["type"] == "timeout_error" and "0.4 s" in error["message"]
        eventually(lambda: s.metric("vllm:num_requests_running") == 0)
        eventually(lambda: s.ask("POST", C, {"prompt": "a", "max_tokens": 1, "ignore_eos": True})[0] == 200)


def post(body, fields=""):
    data = json.dumps(body)
    return (f"POST {C} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{fields}"
            f"Content-Length: {len(data)}\r\n\r\n{data}")


def test_connection_deadlines():
    with live("--idle-timeout", 0.9, "--header-timeout", 0.6, "--body-timeout", 0.6, "--write-timeout", 1) as s:
        begin = time.monotonic()
        head = s.raw("GET /health HTTP/1.1\r\nHos")
        body = s.raw(f"POST {C} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{{")
        idle = s.raw("GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        for sock in head, body:
            assert rest(sock).startswith(b"HTTP/1.1 408 ")
        assert 0.5 < time.monotonic() - begin
        assert rest(idle).startswith(b"HTTP/1.1 200 ")
        assert 0.8 < time.monotonic() - begin < 25  # by default it would be 30 s and more
    assert "--idle-timeout" in gyre("serve", DEMO, "--idle-timeout", 0, code=2)[1]


# ---- systemd, signals, descriptors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("abstract", [False, True])
def test_notify(tmp_path, abstract, lasting):
    """What a unit of Type=notify sees: ready when a request is served, stopping at once when the drain begins."""
    name = f"@gyre-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as inbox:
        inbox.bind("\0" + name[1:] if abstract else name)
        inbox.settimeout(30)
        with live("--max-rows", 1, env={"NOTIFY_SOCKET": name}, wait=False, model=lasting) as s:
            assert inbox.recv(1000) == b"STATUS=loading the model"
            assert inbox.recv(1000).split(b"\n")[0] == b"READY=1"
            assert s.ask("GET", "/health")[0] == 200
            sock = s.raw_post(C, {**LASTING, "stream": True})
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
            s.p.send_signal(signal.SIGTERM)
            assert inbox.recv(1000) == b"STOPPING=1" and s.p.poll() is None
            s.p.send_signal(signal.SIGTERM)
            rest(sock)
            s.p.wait(timeout=30)
    with live(env={"NOTIFY_SOCKET": "/no/such/socket"}) as s:
        assert s.ask("GET", "/health")[0] == 200


def test_unit_file():
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str
    unit.read(ROOT / "docs/gyre.service")
    service = unit["Service"]
    assert service["Type"] == "notify" and service["Restart"] == "on-failure" and service["RestartPreventExitStatus"] == "2"
    assert re.fullmatch(r"/bin/kill -HUP \$MAINPID", service["ExecReload"])
    words = service["ExecStart"].split()
    assert words[0] == "@PREFIX@/bin/gyre" and words[1] == "serve"
    known = set(re.findall(r"^  (--[a-z0-9-]+)", gyre("serve", "--help")[0], re.M))
    assert {w for w in words if w.startswith("--")} <= known
    default = float(re.search(r"--shutdown-timeout.*?default: (\d+)", gyre("serve", "--help")[0], re.S).group(1))
    assert float(service["TimeoutStopSec"]) > default


def test_drain_over_tls(pair):
    """SIGTERM: a stream over TLS ends as if nothing were; a request that was sent before is answered or told to come back."""
    with live("--tls-cert", pair[0], "--tls-key", pair[1], "--max-rows", 1, ca=str(pair[0])) as s:
        idle = s.raw("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(65536).startswith(b"HTTP/1.1 200")
        stream = s.raw_post(C, {"prompt": "abc", "max_tokens": 200, "ignore_eos": True, "stream": True})
        data = stream.recv(65536)
        s.p.send_signal(signal.SIGTERM)
        assert rest(idle) == b""
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", s.port), timeout=5)
        data += rest(stream)
        assert data.endswith(b"\n\ndata: [DONE]\n\n\r\n0\r\n\r\n") and data.count(b'"loops":[4]') == 200


def test_out_of_descriptors():
    """With 64 descriptors: those beyond are turned away, those that are served go on, and it recovers."""
    with live(limit=(64, 64)) as s:
        first = s.raw("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert first.recv(65536).startswith(b"HTTP/1.1 200")
        socks = [s.raw("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(100)]
        status = [rest_line(x) for x in socks]
        assert status.count(b"HTTP/1.1 200 OK") >= 20 and status.count(b"HTTP/1.1 503 Service Unavailable") >= 20
        first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert first.recv(65536).startswith(b"HTTP/1.1 200")
        for x in [first, *socks]:
            x.close()
        eventually(lambda: s.ask("GET", "/health")[0] == 200)
        assert "no file descriptor left" in s.until("no file descriptor left")


def test_unix_socket(tmp_path):
    path = tmp_path / "gyre.sock"
    p = subprocess.Popen([GYRE, "serve", DEMO, "--host", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        said = ""
        while "serving demo" not in said:
            line = p.stderr.readline().decode()
            assert line, said
            said += line
        assert f"listening on {path}, loading" in said
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(path))
            s.sendall(post({"prompt": "a", "max_tokens": 2, "ignore_eos": True}, "Connection: close\r\n").encode())
            assert json.loads(rest(s).split(b"\r\n\r\n")[1])["usage"]["completion_tokens"] == 2
        p.send_signal(signal.SIGTERM)
        assert p.wait(timeout=30) == 0 and not path.exists()
    finally:
        p.kill()
        p.communicate()


def test_soft_limit_is_raised():
    with live(limit=(64, 500)) as s:
        socks = [s.raw("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(100)]
        assert [rest_line(x) for x in socks] == [b"HTTP/1.1 200 OK"] * 100
        for x in socks:
            x.close()


def rest_line(sock):
    try:
        return sock.recv(65536).split(b"\r\n")[0]
    except ConnectionResetError:
        return b""
