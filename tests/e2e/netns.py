"""Hosts that are not there: network namespaces of this machine, joined by a bridge, each with an address of its own.

    with netns.hosts(2) as net:
        net.popen(0, ["gyre", "worker", ...])     # runs on host 0
        net.address(1), net.device                # "10.77.3.2", "gy0"
        net.cut(1); net.heal(1)                   # frames of host 1 go nowhere, and nobody is told; and go again
        with net.inside(1): ...                   # sockets that this thread opens here are host 1's

Needs root and ip(8); where that is not to be had, why_not() says so and tests skip. All that was made is deleted when the
block is left, when the interpreter ends, and, if it was killed, by the next one that comes: names hold the process id.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import time

import pytest

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
PREFIX = "gyt"
libc = ctypes.CDLL(None, use_errno=True)
made = []


def ip(*args, check=True):
    p = subprocess.run(["ip", *args], capture_output=True, text=True, timeout=60)
    if check and p.returncode:
        raise RuntimeError(f"ip {' '.join(args)}: {p.stderr.strip()}")
    return p.stdout


def names():
    return [line.split()[0] for line in ip("netns", "list", check=False).splitlines() if line.startswith(PREFIX)]


def delete(name):
    for pid in ip("netns", "pids", name, check=False).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    ip("netns", "del", name, check=False)


def sweep():
    """What processes left that are no more."""
    for name in names():
        pid = name[len(PREFIX) :].split("-")[0]
        if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            delete(name)


def why_not():
    """None, or why there can be no hosts here."""
    if os.geteuid() != 0:
        return "not root"
    name = f"{PREFIX}{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("netns", "exec", name, "true")
        ip("-n", name, "link", "add", "br0", "type", "bridge")
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as e:
        return f"no network namespaces: {e}"
    finally:
        with contextlib.suppress(OSError):
            delete(name)
    return None


def die_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Net:
    device = "gy0"

    def __init__(self, n):
        self.n = n
        self.number = len(made)
        self.base = f"{PREFIX}{os.getpid()}-{self.number}"
        self.middle = f"{self.base}-mid"
        self.programs = []
        made.append(self)
        try:
            self.build()
        except BaseException:
            self.close()
            raise

    def name(self, i):
        return f"{self.base}-{i}"

    def address(self, i):
        return f"10.77.{self.number % 250}.{i + 1}"

    def build(self):
        ip("netns", "add", self.middle)
        ip("-n", self.middle, "link", "add", "br0", "type", "bridge")
        ip("-n", self.middle, "link", "set", "br0", "up")
        for i in range(self.n):
            host, port = self.name(i), f"p{i}"
            ip("netns", "add", host)
            ip("-n", host, "link", "add", self.device, "type", "veth", "peer", "name", port, "netns", self.middle)
            ip("-n", host, "addr", "add", f"{self.address(i)}/24", "dev", self.device)
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "link", "set", self.device, "up")
            ip("-n", self.middle, "link", "set", port, "master", "br0")
            ip("-n", self.middle, "link", "set", port, "up")

    def cut(self, i):
        """As a cable that is pulled somewhere behind the next switch: host i still has its carrier."""
        ip("-n", self.middle, "link", "set", f"p{i}", "nomaster")

    def heal(self, i):
        ip("-n", self.middle, "link", "set", f"p{i}", "master", "br0")

    def carrier(self, i, up):
        """As a cable that is pulled at host i: its kernel knows."""
        ip("-n", self.middle, "link", "set", f"p{i}", "up" if up else "down")

    def command(self, i, args):
        return ["ip", "netns", "exec", self.name(i), *map(str, args)]

    def popen(self, i, args, **kw):
        p = subprocess.Popen(self.command(i, args), preexec_fn=die_with_parent, **kw)
        self.programs.append(p)
        return p

    def run(self, i, args, timeout=60, **kw):
        return subprocess.run(self.command(i, args), capture_output=True, text=True, timeout=timeout, **kw)

    @contextlib.contextmanager
    def inside(self, i):
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.name(i)}", os.O_RDONLY)
        try:
            if libc.setns(there, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            try:
                yield
            finally:
                libc.setns(home, CLONE_NEWNET)
        finally:
            os.close(there)
            os.close(home)

    def close(self):
        for p in self.programs:
            if p.poll() is None:
                p.kill()
        for p in self.programs:
            p.wait()
        self.programs = []
        for name in [*(self.name(i) for i in range(self.n)), self.middle]:
            delete(name)


@contextlib.contextmanager
def hosts(n):
    """n hosts, 0 .. n - 1. Skips the test where there can be none."""
    sweep()
    reason = why_not()
    if reason:
        pytest.skip(f"hosts in namespaces: {reason}")
    net = Net(n)
    atexit.register(net.close)
    try:
        yield net
    finally:
        net.close()
        atexit.unregister(net.close)


def wait_for(what, seconds, every=0.02):
    """Calls it until it says something true, and returns that; None when the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        got = what()
        if got:
            return got
        time.sleep(every)
    return None
