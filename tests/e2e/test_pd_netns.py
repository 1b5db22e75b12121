"""Transfers between two hosts over UCX's tcp, and a link that is cut in the middle of one (netns.py: hosts in namespaces)."""

import subprocess
import sys
import time
from pathlib import Path

import netns
import pytest
from program import GYRE

END = Path(GYRE).parent / "tests/test_xfer_hosts"  # one end of a transfer; its head comment says what it understands
MB_OP = 4


class End:
    def __init__(self, net, host, role, epoch):
        self.p = net.popen(
            host, [END, role, net.device, epoch], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.first = self.p.stdout.readline().strip()
        assert self.first, f"{role} said nothing, exit code {self.p.wait()}"

    def tell(self, what):
        self.p.stdin.write(what + "\n")
        self.p.stdin.flush()
        line = self.p.stdout.readline().split()
        assert line, f"{what}: no answer, exit code {self.p.wait()}"
        return [int(x) for x in line[1:]]

    def quit(self, seconds=20):
        self.p.stdin.write("quit\n")
        self.p.stdin.flush()
        assert self.p.wait(timeout=seconds) == 0


@pytest.fixture
def net():
    if not END.exists():
        pytest.skip(f"{END} was not built")
    with netns.hosts(2) as n:
        yield n


def start(net):
    to = End(net, 1, "receive", 1)
    return End(net, 0, "send", 2), to, "import " + to.first.split()[1]


def test_whole(net):
    a, b, imp = start(net)
    assert a.tell(imp)[0] == 0
    assert a.tell("post 64")[0] == 64
    assert a.tell("wait 64 30000") == [64, 0, 0]
    assert b.tell("notes") == [64, 0, 0]
    a.quit()
    b.quit()


def test_cut_in_the_middle(net):
    """What was under way ends when the caller drops the peer; a new import over the healed link goes on."""
    a, b, imp = start(net)
    for round in range(3):
        assert a.tell(imp)[0] == 0
        a.tell("post 256")
        some = a.tell("wait 4 30000")
        assert some[0] >= 4
        net.cut(1) if round < 2 else net.carrier(1, up=False)
        begun = time.monotonic()
        done, failed, left = a.tell("wait 256 1500")
        assert left + failed > 0, "the link was cut too late"
        assert a.tell("drop") == [256, 256 - done + failed, 0]
        assert time.monotonic() - begun < 25
        heard, bad, _ = b.tell("notes")  # the receiver answers, and what it heard was true
        assert bad == 0
        net.heal(1) if round < 2 else net.carrier(1, up=True)
    assert a.tell(imp)[0] == 0
    assert a.tell("post 32")[0] == 32
    assert a.tell("wait 32 30000") == [32, 0, 0]
    now, bad, _ = b.tell("notes")  # what the kernel had taken before the cut may come after it
    assert heard + 32 <= now <= heard + 34 and bad == 0
    b.tell("fill 238")  # but not after an op of the new connection
    time.sleep(1)
    assert b.tell("is 238")[0] == 1
    assert b.tell("notes") == [now, 0, 0]
    a.quit()
    b.quit()


def test_cut_before_the_first_byte(net):
    a, b, imp = start(net)
    net.cut(1)
    assert a.tell(imp)[0] == 0  # nothing waits for an answer here
    a.tell("post 8")
    done, failed, left = a.tell("wait 8 1000")
    assert done == failed
    assert a.tell("drop") == [8, 8, 0]
    net.heal(1)
    assert a.tell(imp)[0] == 0
    assert a.tell("post 8")[0] == 8
    assert a.tell("wait 8 30000") == [8, 0, 0]
    assert b.tell("notes") == [8, 0, 0]
    a.quit()
    b.quit()


def test_late_bytes_of_a_living_writer(net):
    """The link comes back by itself and the writer goes on where it stood: nothing of it is taken any more."""
    a, b, imp = start(net)
    assert a.tell(imp)[0] == 0
    a.tell("post 256")
    a.tell("wait 4 30000")
    net.cut(1)
    done = a.tell("wait 256 300")[0]
    assert done < 256, "the link was cut too late"
    assert b.tell("forbid 2")[0] == 0
    b.tell("fill 238")
    heard = b.tell("notes")[0]
    net.heal(1)
    a.tell("wait 256 4000")
    assert b.tell("is 238")[0] == 1
    assert b.tell("notes") == [heard, 0, 0]
    assert a.tell("drop")[0] == 256
    other = End(net, 0, "send", 3)
    assert other.tell(imp)[0] == 0
    assert other.tell("post 16")[0] == 16
    assert other.tell("wait 16 30000") == [16, 0, 0]
    assert b.tell("notes") == [heard + 16, 0, 0]
    for e in (other, a, b):
        e.quit()


def test_ends_with_a_dead_link(net):
    """Both ends can be closed while nothing reaches the other."""
    a, b, imp = start(net)
    assert a.tell(imp)[0] == 0
    a.tell("post 256")
    a.tell("wait 2 30000")
    net.cut(1)
    begun = time.monotonic()
    a.quit()
    b.quit()
    assert time.monotonic() - begun < 45


def test_nothing_is_left(net):
    names = [net.name(0), net.name(1), net.middle]
    sleeper = net.popen(0, ["sleep", "1000"])
    assert netns.wait_for(lambda: str(sleeper.pid) in netns.ip("netns", "pids", net.name(0)).split(), 60)
    assert set(names) <= set(netns.names())
    net.close()
    assert not set(names) & set(netns.names())
    assert sleeper.poll() is not None
    # and of a test that was killed, by the next one
    code = "import netns, os; n = netns.Net(1); print(n.name(0), flush=True); os.kill(os.getpid(), 9)"
    left = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)
    assert left.stdout.strip() in netns.names()
    netns.sweep()
    assert left.stdout.strip() not in netns.names()
