"""What a token costs gyre serve besides the model: HTTP, JSON, text, events, the loop.

    serve_cost.py BUILD_DIR [--streams 256] [--valgrind]

STREAMS clients stream at once, seeded, temperature 1, from models/demo. All is done with few tokens and with many; the difference
divided by the tokens is what one token costs, without start and requests. Two figures:
  processor time of the server's threads by the kernel's account, system calls included (default);
  instructions by part of the program, from callgrind: no load on the machine changes them (--valgrind; one loop, to be sooner done).
Tokens of a stream: --few and --many.
"""

import argparse
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from crowd import Client, Crowd, replies, request  # noqa: E402

PARTS = [  # first match of the source file, or of the object where it is not known
    (r"src/server/http_", "http"), (r"src/server/oai_", "OpenAI's shapes"), (r"src/server/(app|metrics)", "app, metrics"),
    (r"src/text/", "text"), (r"src/api/", "events"), (r"src/base/json|src/base/utf8|src/base/str", "JSON, strings"), (r"src/base/", "base"),
    (r"src/(engine|sched|kv|loop|model|ops|sample|exit|backend|exec|tensor|spec)", "engine"),
    (r"libevent", "libevent"), (r"libc|ld-linux|string|malloc|libm\.|libm-", "libc"),
]


def part_of(file, obj):
    for where in (file, obj):
        for pattern, name in PARTS:
            if re.search(pattern, where):
                return name
    return "other"


def instructions(path):
    """Own instructions by part of one thread's profile."""
    files, objs, out = {}, {}, {}
    file = obj = ""
    skip = False
    for line in open(path):
        if m := re.match(r"(c?fl|c?fi|fe|c?ob)=\((\d+)\)(?: (.*))?$", line):
            names = objs if m[1].endswith("ob") else files
            if m[3]:
                names[m[2]] = m[3]
            if m[1] in ("fl", "fi", "fe"):
                file = names[m[2]]
            elif m[1] == "ob":
                obj = names[m[2]]
        elif line.startswith("calls="):
            skip = True
        elif re.match(r"[0-9+*-]", line):
            if not skip:
                part = part_of(file, obj)
                out[part] = out.get(part, 0) + int(line.split()[1])
            skip = False
    return out


class Run:
    """One server, one crowd; then what was used, by thread."""

    def __init__(self, build, streams, tokens, valgrind):
        self.dir = tempfile.TemporaryDirectory()
        self.profile = f"{self.dir.name}/p"
        args = [f"{build}/gyre", "serve", str(ROOT / "models/demo"), "--port", "0", "--threads", "1", "--max-seqs", str(streams),
                "--max-queue", str(2 * streams)]
        if valgrind:
            args = ["valgrind", "--tool=callgrind", "--fair-sched=yes", "--separate-threads=yes", f"--callgrind-out-file={self.profile}"] + args
        self.p = subprocess.Popen(args, stderr=subprocess.PIPE, text=True)
        err = ""
        while "serving " not in err:
            line = self.p.stderr.readline()
            if not line:
                sys.exit(f"serve_cost: the server ended:\n{err}")
            err += line
        port = int(re.search(r"listening on http://[^ ]*:(\d+)", err).group(1))
        body = {"max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 1, **({"max_loops": 1} if valgrind else {})}
        clients = [Client(request("/v1/completions", {**body, "prompt": chr(33 + i % 90), "seed": i})) for i in range(streams)]
        with Crowd(port) as crowd:
            crowd.run(clients, 3600)
        for c in clients:
            (status, _, data), = replies(c.got)
            assert status == 200 and data.count(b"data: ") == tokens + 2
        self.bytes = sum(len(c.got) for c in clients)
        self.threads = self.account()
        self.p.send_signal(signal.SIGTERM)
        self.p.communicate()

    def account(self):
        """{name of thread: (s on a processor, s in the kernel)}"""
        out = {}
        for task in Path(f"/proc/{self.p.pid}/task").iterdir():
            name = "http" if task.name == str(self.p.pid) else (task / "comm").read_text().strip()
            stat = (task / "stat").read_text().rsplit(")", 1)[1].split()
            own = int((task / "schedstat").read_text().split()[0]) / 1e9
            kernel = int(stat[12]) / max(1, int(stat[11]) + int(stat[12])) * own
            was = out.get(name, (0, 0))
            out[name] = (was[0] + own, was[1] + kernel)
        return out

    def profiles(self):
        """By thread, the engine's last."""
        all_threads = [instructions(f) for f in sorted(Path(self.dir.name).glob("p-*"))]
        return sorted(all_threads, key=lambda t: t.get("engine", 0))


def by_part(run):
    """Of the engine's threads only what makes events of its results."""
    out = {}
    for t in run.profiles():
        is_engine = t.get("engine", 0) > sum(t.values()) / 2
        for part, n in t.items():
            if part != "engine" and (not is_engine or part in ("events", "text")):
                out[part] = out.get(part, 0) + n
    return out


def main():
    o = argparse.ArgumentParser()
    o.add_argument("build")
    o.add_argument("--streams", type=int, default=256)
    o.add_argument("--few", type=int)
    o.add_argument("--many", type=int)
    o.add_argument("--valgrind", action="store_true")
    o = o.parse_args()
    few, many = (o.few or 2, o.many or 6) if o.valgrind else (o.few or 40, o.many or 440)
    a, b = (Run(o.build, o.streams, n, o.valgrind) for n in (few, many))
    n = (many - few) * o.streams
    print(f"{o.streams} streams, {few} and {many} tokens each; {(b.bytes - a.bytes) / n:.0f} bytes a token on the wire")
    if o.valgrind:
        first, last = by_part(a), by_part(b)
        print(f"{'part':18} {'instructions a token':>20}")
        for p in sorted(last, key=lambda p: first.get(p, 0) - last[p]):
            print(f"{p:18} {(last[p] - first.get(p, 0)) / n:20.0f}")
        print(f"{'all':18} {(sum(last.values()) - sum(first.values())) / n:20.0f}")
    else:
        print(f"{'thread':18} {'us a token':>10} {'in the kernel':>14}")
        for t in sorted(b.threads):
            own, kernel = (y - x for x, y in zip(a.threads.get(t, (0, 0)), b.threads[t]))
            print(f"{t:18} {own / n * 1e6:10.2f} {kernel / n * 1e6:14.2f}")


main()
