"""Workers on hosts of their own (netns.py): prompts cross by UCX over tcp, links are cut and healed, hosts go away, and
they find each other through a file or through etcd. Answers are always those of one engine.
"""

import json
import re
import shutil
import subprocess
import threading
import time

import netns
import pytest
from program import GYRE, OURO, gyre
from test_pd import Load, Pd, wait_until
from test_pd_hosts import Town, end

FAST = ("--peer-timeout", 1)


class NetPd(Pd):
    """gyre serve on a host; clients are on the same one."""

    def __init__(self, net, host, *args):
        self.net, self.host, self.err, self.lines = net, host, "", []
        cmd = [GYRE, "serve", OURO, "--port", "0", *args]
        self.p = net.popen(host, cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.port = int(re.search(r"listening on http://[^ ]*:(\d+)", self.until("listening on")).group(1))
        self.until("serving ")
        self.reader = threading.Thread(target=self.read_rest, daemon=True)
        self.reader.start()

    def read_rest(self):
        for line in self.p.stderr:
            self.err += line.decode()

    def ask(self, *args, **kw):
        with self.net.inside(self.host):
            return super().ask(*args, **kw)


class NetTown(Town):
    def __init__(self, path, net, timeout):
        super().__init__(path)
        self.net, self.timeout = net, timeout

    def add(self, host, role, *args, **kw):
        return super().add(role, *self.timeout, *args, host=self.net.address(host), device=self.net.device,
                           spawn=lambda cmd, **k: self.net.popen(host, cmd, **k), **kw)

    def serve(self, host, *args, options=None):
        self.servers.append(NetPd(self.net, host, *(options or self.options), *self.timeout, *args))
        return self.servers[-1]


@pytest.fixture
def make_town(tmp_path):
    towns = []

    def make(n, timeout=FAST):
        hosts = netns.hosts(n)
        net = hosts.__enter__()
        towns.append((hosts, NetTown(tmp_path, net, timeout)))
        return towns[-1][1]

    yield make
    for hosts, t in towns:
        try:
            t.close()
        finally:
            hosts.__exit__(None, None, None)


WANT = {}


def right(s, prompt, n):
    key = (tuple(prompt), n)
    if key not in WANT:
        out = gyre("run", OURO, "--prompt-ids", ",".join(map(str, prompt)), "--max-tokens", n, "--ignore-eos", "--json")[0]
        WANT[key] = json.loads(out)["token_ids"]
    assert s.ids(prompt, n) == WANT[key]


def test_two_hosts(make_town):
    """P here, D there. The link is cut twice: as a cable behind the next switch, and as one that is pulled out."""
    t = make_town(2)
    p, d = t.add(0, "prefill"), t.add(1, "decode")
    t.list(p, d)
    s = t.serve(0)
    for n in (1, 16, 17, 200):
        right(s, [7 + n] * n, 12)
    assert s.metric("gyre:pd_transfer_bytes_total") > 0
    for cut, heal in ((t.net.cut, t.net.heal), (lambda i: t.net.carrier(i, up=False), lambda i: t.net.carrier(i, up=True))):
        lives = d.child()
        cut(1)
        begun = time.monotonic()
        wait_until(lambda: s.ask("GET", "/health")[0] == 503)
        assert time.monotonic() - begun < 25  # the kernel alone would take minutes
        wait_until(lambda: d.child() not in (None, lives))  # it noticed by itself
        got = []
        asks = threading.Thread(target=lambda: got.append(s.ids([9] * 40, 8)))
        asks.start()
        time.sleep(0.3)
        assert not got
        heal(1)
        asks.join(timeout=60)
        assert got
        right(s, [9] * 40, 8)
        wait_until(lambda: s.n_ready() == 2)
    assert s.metric("gyre:pd_worker_deaths_total") >= 2


def test_three_hosts(make_town):
    """Under load: a host is cut off and comes back, one is taken out of the list, one is destroyed."""
    t = make_town(3)
    workers = [t.add(0, "both"), t.add(1, "prefill"), t.add(2, "decode"), t.add(1, "decode")]
    t.list(*workers)
    s = t.serve(0)
    wait_until(lambda: s.n_ready() == 4)
    load = Load(s, 4)

    def goes_on(n=20):
        good = load.n_good
        wait_until(lambda: load.n_good > good + n)

    goes_on()
    t.net.cut(1)
    wait_until(lambda: s.n_ready() == 2)
    goes_on()
    t.net.heal(1)
    wait_until(lambda: s.n_ready() == 4)
    goes_on()
    t.list(workers[0], workers[1], workers[2])  # a person takes one out
    wait_until(lambda: s.n_ready() == 3)
    goes_on()
    end(workers[2].p)
    netns.delete(t.net.name(2))
    wait_until(lambda: s.n_ready() == 2)
    goes_on()
    load.end()
    assert load.n_lost < 8
    t.workers.remove(workers[2])


def test_a_writer_that_reaches_nobody(make_town):
    """The way from P to D is gone, both reach the coordinator: prompts are computed elsewhere."""
    t = make_town(3)
    p, d = t.add(1, "prefill"), t.add(2, "decode")
    t.list(p, d, t.add(0, "both"))
    s = t.serve(0)
    wait_until(lambda: s.n_ready() == 3)
    right(s, [3] * 60, 6)
    netns.ip("-n", t.net.name(1), "route", "add", "blackhole", f"{t.net.address(2)}/32")
    netns.ip("-n", t.net.name(2), "route", "add", "blackhole", f"{t.net.address(1)}/32")
    for i in range(8):
        right(s, [4 + i] * 60, 6)


@pytest.mark.skipif(not shutil.which("etcd"), reason="no etcd here")
def test_etcd(make_town, tmp_path):
    """Workers publish themselves and are found; one that ends is not dialled any more; etcd itself may go and come."""
    t = make_town(3, ())  # nobody is cut off: no death is right, however busy this machine is
    url = f"http://{t.net.address(2)}:2379"

    def begin_etcd():  # and wait for it: a worker that finds none at its start ends
        etcd = t.net.popen(2, ["etcd", "--data-dir", tmp_path / "etcd", "--listen-client-urls", url, "--advertise-client-urls", url,
                               "--listen-peer-urls", f"http://{t.net.address(2)}:2380"], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        wait_until(lambda: t.net.run(2, ["curl", "-sf", f"{url}/health"]).returncode == 0)
        return etcd

    etcd = begin_etcd()
    e = ("--etcd", url, "--cluster", "test")
    t.add(0, "prefill", *e)
    d = t.add(1, "decode", *e, "--name", "d")
    s = t.serve(0, options=(*e, "--secret-file", t.secret))
    right(s, [5] * 33, 7)
    both = t.add(1, "both", *e)
    wait_until(lambda: s.n_ready() == 3)
    end(etcd)  # who serves goes on
    right(s, [6] * 33, 7)
    time.sleep(1)
    right(s, [7] * 33, 7)
    etcd = begin_etcd()
    late = t.add(0, "decode", *e)
    wait_until(lambda: s.n_ready() == 4)
    for w in (d, both):
        w.p.send_signal(15)
        assert w.p.wait(timeout=60) == 0
    wait_until(lambda: s.n_ready() == 2)
    right(s, [8] * 33, 7)
    assert late.child() and s.metric("gyre:pd_worker_deaths_total") == 0
