"""Workers on other hosts: gyre worker --listen, found through a file or through etcd, that join, leave and die under a
running coordinator. Answers are always those of one engine. First several processes of this host, then hosts in network
namespaces (netns.py), whose links are cut and healed.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from program import GYRE, MODELS, OURO, ROOT, gyre, write_lines
from test_pd import Load, Pd, children, mixed, run_lines, state, wait_until

POOL = ("--kv-blocks", 600, "--max-len", 512, "--threads", 1)


def end(p, how=signal.SIGKILL):
    if p.poll() is None:
        p.send_signal(how)
    p.wait(timeout=60)


class Worker:
    """gyre worker --listen; began again at the same port."""

    def __init__(self, town, role, *args, model=OURO, host="127.0.0.1", port=0, secret=None, spawn=None, device="lo"):
        self.town, self.role, self.host, self.port = town, role, host, port
        self.args = [role and "--role", role, "--secret-file", secret or town.secret, "--transfer-device", device, *POOL, *args]
        self.model, self.spawn = model, spawn or subprocess.Popen
        self.begin()

    def begin(self):
        cmd = [GYRE, "worker", self.model, "--listen", f"{self.host}:{self.port}", *self.args]
        self.log = open(self.town.dir / f"worker-{len(self.town.logs)}.log", "w+")
        self.town.logs.append(self.log)
        self.p = self.spawn([str(x) for x in cmd], stdout=self.log, stderr=self.log)
        wait_until(lambda: "worker on" in self.said() or self.p.poll() is not None)
        assert self.p.poll() is None, self.said()
        self.port = int(re.search(r"worker on [^ ]*:(\d+),", self.said()).group(1))
        self.address = f"{self.host}:{self.port}"

    def said(self):
        return Path(self.log.name).read_text()

    def child(self):
        return next(iter(children(self.p.pid)), None)


class Town:
    def __init__(self, path):
        self.dir, self.logs, self.workers, self.servers = path, [], [], []
        self.secret, self.peers = path / "secret", path / "peers"
        self.secret.write_text("the secret of all hosts in this test\n")
        self.secret.chmod(0o600)

    def add(self, role, *args, **kw):
        self.workers.append(Worker(self, role, *args, **kw))
        return self.workers[-1]

    def list(self, *workers):
        (self.dir / "peers.new").write_text("# workers\n" + "".join(f"{w.address}\n" for w in workers))
        (self.dir / "peers.new").rename(self.peers)

    @property
    def options(self):
        return ("--peers", self.peers, "--secret-file", self.secret)

    def serve(self, *args):
        self.servers.append(Pd(OURO, *self.options, *args))
        return self.servers[-1]

    def close(self):
        for s in self.servers:
            if s.p.poll() is None:
                s.p.send_signal(signal.SIGTERM)
        for s in self.servers:
            s.p.wait(timeout=60)
            s.p.stdout.close()
            s.p.stderr.close()
        lives = [c for w in self.workers for c in children(w.p.pid)]
        for w in self.workers:
            w.p.send_signal(signal.SIGTERM)
        for w in self.workers:
            assert w.p.wait(timeout=60) in (0, -signal.SIGKILL), w.said()
            assert "Sanitizer" not in w.said()
        wait_until(lambda: all(state(c) in (None, "Z") for c in lives))
        for log in self.logs:
            log.close()


@pytest.fixture
def town(tmp_path):
    t = Town(tmp_path)
    try:
        yield t
    finally:
        t.close()


# ---- the same answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("roles", [("prefill", "decode"), ("both", "both"), ("prefill", "prefill", "decode", "decode")])
def test_run_says_the_same(town, tmp_path, roles):
    path = write_lines(tmp_path / "in.jsonl", mixed("ouro"))
    town.list(*[town.add(r) for r in roles])
    want = run_lines(OURO, path)
    for _ in range(2):  # each run is a coordinator of its own, and each finds workers as new
        assert run_lines(OURO, path, *town.options) == want


def test_chat_says_the_same(town):
    demo = str(ROOT / "models/demo")
    chat = ("chat", demo, "--raw", "--max-tokens", 20, "--temperature", 0)
    town.list(*[town.add(r, model=demo) for r in ("prefill", "decode")])
    want = gyre(*chat, stdin=b"Once upon a time\n")[0]
    assert want and gyre(*chat, *town.options, stdin=b"Once upon a time\n")[0] == want


def test_a_worker_dies_and_comes_back(town):
    """kill -9 of lives and of whole workers, under load."""
    p, d1, d2 = town.add("prefill"), town.add("decode"), town.add("decode")
    town.list(p, d1, d2)
    s = town.serve()
    wait_until(lambda: s.n_ready() == 3)
    load = Load(s, 4)
    for victim in (p.child(), d1.child()):
        os.kill(victim, signal.SIGKILL)
        good = load.n_good
        wait_until(lambda: load.n_good > good + 10)
        wait_until(lambda: s.n_ready() == 3)
    end(d2.p)
    good = load.n_good
    wait_until(lambda: load.n_good > good + 10)
    wait_until(lambda: s.n_ready() == 2)
    d2.begin()
    wait_until(lambda: s.n_ready() == 3)
    load.end()
    assert load.n_lost < 6


def test_joins_and_leaves(town):
    """The list changes while requests run: nothing is begun again for it, nothing is lost."""
    p, d = town.add("prefill"), town.add("decode")
    town.list(p, d)
    s = town.serve()
    load = Load(s, 4)
    both = town.add("both")
    town.list(p, d, both)
    wait_until(lambda: s.n_ready() == 3)
    good = load.n_good
    wait_until(lambda: load.n_good > good + 20)
    lives = d.child()
    town.list(p, both)
    wait_until(lambda: s.n_ready() == 2)
    wait_until(lambda: d.child() not in (None, lives))  # it was told to stop, and began anew
    good = load.n_good
    wait_until(lambda: load.n_good > good + 20)
    p.p.send_signal(signal.SIGTERM)  # a worker that ends lets requests end first
    assert p.p.wait(timeout=60) == 0
    load.end()
    assert load.n_lost == 0
    assert s.metric("gyre:pd_worker_deaths_total") == 0 and s.metric("gyre:pd_retries_total") == 0


@pytest.mark.parametrize("how", ["twice", "timeout", "loading"])
def test_a_worker_that_must_end(town, how):
    """SIGTERM: it is not waited for longer than was said; its requests begin again elsewhere."""
    w = town.add("both", "--stop-timeout", 0.3 if how == "timeout" else 600)
    if how == "loading":  # or waiting; nobody needs it
        w.p.send_signal(signal.SIGTERM)
        assert w.p.wait(timeout=60) == 0
        return
    town.list(w)
    s = town.serve()
    prompt = ([3] * 20, 400)
    want = s.ids(*prompt)
    got = []
    threads = [threading.Thread(target=lambda: got.append(s.ids(*prompt))) for _ in range(6)]
    for t in threads:
        t.start()
    time.sleep(0.05)
    for _ in range(2 if how == "twice" else 1):
        w.p.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    assert w.p.wait(timeout=60) == 0
    w.begin()
    for t in threads:
        t.join(timeout=60)
    assert got == [want] * 6


def test_nobody_decodes_for_a_while(town):
    p, d = town.add("prefill"), town.add("decode")
    town.list(p, d)
    s = town.serve()
    want = s.ids([5, 6, 7], 6)
    assert s.ask("GET", "/health")[0] == 200
    end(d.p)
    wait_until(lambda: s.ask("GET", "/health")[0] == 503)
    assert "no worker that decodes is ready" in s.ask("GET", "/health")[2].decode()
    got = []
    t = threading.Thread(target=lambda: got.append(s.ids([5, 6, 7], 6)))
    t.start()
    time.sleep(0.3)
    assert not got
    d.begin()
    t.join(timeout=60)
    assert got == [want]
    wait_until(lambda: s.ask("GET", "/health")[0] == 200)


def test_the_coordinator_is_killed(town):
    p, d = town.add("prefill"), town.add("decode")
    town.list(p, d)
    s = town.serve()
    want = s.ids([1] * 50, 20)
    lives = [p.child(), d.child()]
    threads = [threading.Thread(target=s.try_ids, args=([1] * 50, 400)) for _ in range(4)]
    for t in threads:
        t.start()
    time.sleep(0.1)
    end(s.p)
    wait_until(lambda: all(state(c) in (None, "Z") for c in lives))
    for t in threads:
        t.join()
    s = town.serve()
    assert s.ids([1] * 50, 20) == want
    assert p.p.poll() is None and d.p.poll() is None


def test_a_second_coordinator(town):
    """It is told so, and does not disturb the first."""
    w = town.add("both")
    town.list(w)
    s = town.serve()
    load = Load(s, 2)
    err = gyre("run", OURO, "--prompt-ids", "1,2", "--worker-start-timeout", 2, *town.options, code=1)[1]
    assert f"{w.address}: this worker serves another coordinator" in err
    with contextlib.suppress(OSError), socket.create_connection((w.host, w.port), timeout=60) as c:  # and somebody else
        c.sendall(b"GET / HTTP/1.1\r\n\r\n")
    load.end()
    assert s.metric("gyre:pd_worker_deaths_total") == 0


def test_the_coordinator_is_stopped(town):
    """SIGSTOP: its workers begin anew; when it goes on, so do its requests."""
    fast = ("--peer-timeout", 1)
    p, d = town.add("prefill", *fast), town.add("decode", *fast)
    town.list(p, d)
    s = town.serve(*fast)
    want = s.ids([2] * 50, 300)
    got = []
    t = threading.Thread(target=lambda: got.append(s.ids([2] * 50, 300)))
    t.start()
    time.sleep(0.05)
    lives = (p.child(), d.child())
    s.p.send_signal(signal.SIGSTOP)
    wait_until(lambda: all(c is not None and c not in lives for c in (p.child(), d.child())))
    s.p.send_signal(signal.SIGCONT)
    t.join(timeout=60)
    assert got == [want]


def test_ended_while_it_waits_for_workers(town):
    town.list()
    p = subprocess.Popen([GYRE, "serve", OURO, "--port", "0", *map(str, town.options)], stderr=subprocess.PIPE)
    assert b"listening on" in p.stderr.readline()
    time.sleep(0.2)
    p.send_signal(signal.SIGTERM)
    assert p.wait(timeout=60) == 0
    p.stderr.close()


# ---- what is refused -----------------------------------------------------------------------------------------------------------


def refused(*args, code=2):
    return gyre(*args, code=code)[1]


def test_options_of_a_coordinator(town, tmp_path):
    loose = tmp_path / "loose"
    loose.write_text("x" * 32)
    loose.chmod(0o644)
    short = tmp_path / "short"
    short.write_text("x" * 15)
    short.chmod(0o600)
    run = ("run", OURO, "--prompt-ids", "1,2")
    peers = ("--peers", town.peers)
    town.list()
    assert "--peers: found without --secret-file" in refused(*run, *peers)
    assert str(loose) in refused(*run, *peers, "--secret-file", loose)
    assert "16" in refused(*run, *peers, "--secret-file", short)
    assert "--prefill, --decode or --hybrid" in refused(*run, *town.options, "--prefill", 1, "--decode", 1)
    assert "found both" in refused(*run, *town.options, "--etcd", "http://127.0.0.1:1")
    assert "--cluster: found without --etcd" in refused(*run, *town.options, "--cluster", "x")
    assert "--etcd-ca: found without --etcd" in refused(*run, *town.options, "--etcd-ca", "x")
    assert "--peer-timeout: found without --peers" in refused(*run, "--peer-timeout", 2)
    assert "--kv-blocks: found with --peers" in refused(*run, *town.options, "--kv-blocks", 10)
    assert "--max-seqs: found with --peers" in refused(*run, *town.options, "--max-seqs", 2)
    assert "--prefix-cache: found with --peers" in refused(*run, *town.options, "--prefix-cache", "on")
    bad = tmp_path / "bad"
    bad.write_text("# hosts\n10.0.0.1\n")
    assert re.search(r"bad: line 2: .*10\.0\.0\.1", refused(*run, "--peers", bad, "--secret-file", town.secret))
    assert "no worker is ready that computes prompts or decodes (0 listed" in refused(
        *run, *town.options, "--worker-start-timeout", 0.2, code=1)


def test_help_and_manual_agree():
    text = gyre("help", "worker")[0]
    assert text == gyre("worker", "--help")[0] and "on-listener" not in text
    manual = (ROOT / "docs/gyre.1").read_text().replace("\\-", "-")
    own, common = (re.search(rf'^\.SS "{s}.*?(?=^\.S[SH])', manual, re.M | re.S).group(0) for s in ["gyre worker", "Options of"])
    assert set(re.findall(r"^  --([a-z0-9-]+)", text, re.M)) <= set(re.findall(r"--([a-z0-9-]+)", own + common))


def test_options_of_a_worker(town, tmp_path):
    w = ("worker", OURO, "--listen", "127.0.0.1:0")
    role, secret, device = ("--role", "decode"), ("--secret-file", town.secret), ("--transfer-device", "lo")
    assert "--role: found none" in refused(*w, *secret, *device)
    assert "--secret-file: found none" in refused(*w, *role, *device)
    assert "--transfer-device: found none" in refused(*w, *role, *secret)
    assert "no network device 'eth77'" in refused(*w, *role, *secret, "--transfer-device", "lo,eth77")
    assert "--listen: found none" in refused("worker", OURO, *role, *secret)
    config = tmp_path / "worker.json"
    config.write_text(json.dumps({"role": "decode", "listen": "127.0.0.1:0", "secret_file": str(town.secret)}))
    assert "--transfer-device: found none" in refused("worker", OURO, "--config", config)
    assert "--listen" in refused("worker", OURO, "--listen", "127.0.0.1", *role, *secret, *device)
    assert "--name: found without --etcd" in refused(*w, *role, *secret, *device, "--name", "a")
    assert "did not start" in refused("worker", tmp_path, "--listen", "127.0.0.1:0", *role, *secret, *device, code=1)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        taken = f"127.0.0.1:{s.getsockname()[1]}"
        assert "Address already in use" in refused("worker", OURO, "--listen", taken, *role, *secret, *device, code=1)


def test_another_secret_another_model(town, tmp_path):
    other = tmp_path / "other"
    other.write_text("not the secret of all hosts")
    other.chmod(0o600)
    stranger, alien = town.add("both", secret=other), town.add("both", "--max-len", 256, model=str(MODELS / "huginn-tiny"))
    town.list(stranger, alien)
    err = refused("run", OURO, "--prompt-ids", "1,2", "--worker-start-timeout", 2, *town.options, code=1)
    assert f"{stranger.address}: control channel: the other side has another secret" in err
    assert f"{alien.address}: family: the worker has huginn, config.json here says ouro" in err
    good, small = town.add("both"), town.add("both", "--kv-layout", "shared")
    town.list(stranger, alien, good)
    s = town.serve()
    want = s.ids([5, 6, 7], 6)
    town.list(stranger, alien, good, small)  # not like the first one
    time.sleep(1)
    assert s.n_ready() == 1 and s.ids([5, 6, 7], 6) == want
