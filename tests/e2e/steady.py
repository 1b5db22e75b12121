"""Clients that ask again and again from one thread, over connections that stay open, and the answers that they must get.

A table of answers comes from one engine without workers, one request at a time; steady load then takes its requests in random order and
compares every reply with it, whole, bit for bit. What may differ between an engine and workers is left out: names, times, and how much
of a prompt was cached.
"""

import errno
import json
import random
import select
import socket
import threading
import time

from crowd import replies, request
from test_serve import C, DEMO, serve

LOST = "a worker that held this request was lost; try again"


class Ask:
    """One request; `answer` once it is known."""

    __slots__ = ("data", "body", "stream", "answer", "error")

    def __init__(self, body):
        self.body, self.stream, self.answer, self.error = body, body.get("stream", False), None, None
        self.data = request(C, {**body, "return_token_ids": True}, close=False)


def requests(n, seed, longest=200, most_tokens=24, grammars=True):
    """n distinct ones for models/demo: lengths 1 to longest, shared beginnings, n, log probabilities, rules, grammars, streams."""
    rnd = random.Random(seed)
    ids = lambda k: [rnd.randrange(1, 256) for _ in range(k)]
    begins = [ids(k) for k in (16, 33, 64, 100) if k < longest - 8]
    out = []
    for i in range(n):
        if i % 4 == 0:
            prompt = rnd.choice(begins)
            prompt = prompt + ids(rnd.randrange(1, longest - len(prompt)))
        else:
            prompt = ids(longest if i == 1 else 1 if i == 2 else rnd.choice((1, 2, 15, 16, 17, rnd.randrange(1, longest + 1))))
        body = {"prompt": prompt, "max_tokens": rnd.randrange(1, most_tokens + 1), "ignore_eos": True, "stream": i % 2 == 1}
        if i % 3:
            body.update(temperature=rnd.choice((0.7, 1.1)), seed=rnd.randrange(1 << 30), top_p=rnd.choice((1, 0.9)))
        else:
            body["temperature"] = 0
        body.update(rnd.choice(({}, {}, {}, {"n": 2}, {"n": 3}, {"logprobs": 2}, {"logprobs": 0}, {"repetition_penalty": 1.2},
                                {"exit": "gate", "exit_threshold": 0.5}, {"max_loops": 2}, {"logit_bias": {"97": 4}},
                                {"exit": "kl", "exit_threshold": 0.01}, {"stop_token_ids": [65, 66, 67, 68], "min_tokens": 1})))
        if i % 40 == 7:
            body.update(prompt_logprobs=1, stream=False)  # cannot cross
        if grammars and i % 20 == 3:
            body.update(ignore_eos=False, **rnd.choice(({"guided_regex": "(ab|c)+d{3}"}, {"guided_choice": ["yes", "no", "maybe"]},
                                                        {"guided_grammar": 'root ::= "x" root | "end"'})))
        out.append(Ask(body))
    return out


def strip(choice):
    return {k: v for k, v in choice.items() if v is not None}


def joined(frames):
    """A stream's choices, each put together."""
    out = {}
    for f in frames:
        for c in f["choices"]:
            had = out.setdefault(c["index"], {"index": c["index"], "text": "", "token_ids": [], "loops": []})
            had["text"] += c["text"]
            had["token_ids"] += c.get("token_ids") or []
            had["loops"] += c.get("loops") or []
            for k, v in (c.get("logprobs") or {}).items():
                had.setdefault("logprobs", {}).setdefault(k, []).extend(v)
            had.update({k: c[k] for k in ("finish_reason", "stop_reason", "seed") if c.get(k) is not None})
    return [out[i] for i in sorted(out)]


def events(body):
    return [json.loads(line[6:]) for line in body.decode().split("\n\n") if line.startswith("data: {")]


def answer(ask, got):
    """(choices, None), or (None, what the server says is wrong)."""
    (status, _, body), = replies(got)
    if status != 200:
        return None, f"{status}: {json.loads(body)['error']['message']}"
    if not ask.stream:
        return [strip(c) for c in json.loads(body)["choices"]], None
    frames = events(body)
    wrong = [f["error"]["message"] for f in frames if "error" in f]
    if wrong:
        return None, f"in the stream: {wrong[0]}"
    assert body.endswith(b"data: [DONE]\n\n"), body[-200:]
    return joined(frames), None


def is_beginning(ask, got):
    """What was there when its client left: of each choice the first tokens of the right answer."""
    if not ask.stream or b"\r\n\r\n" not in got:
        return True
    text = got.split(b"\r\n\r\n", 1)[1].decode(errors="replace")
    frames = [json.loads(line[6:]) for line in text.replace("\r\n", "\n").split("\n") if line.startswith("data: {") and line.endswith("}")]
    want = {c["index"]: c for c in ask.answer}
    return all(want[c["index"]]["token_ids"][:len(c["token_ids"])] == c["token_ids"] for c in joined(f for f in frames if "choices" in f))


class Steady:
    """n connections, each with one request under way. next_ask(): (Ask, None), or (Ask, (what, how much)) for a client that leaves:
    after so many "seconds" or "bytes"; None: nothing more. judge(ask, left, got) is told each end. run() is for one thread."""

    def __init__(self, port, n, next_ask, judge):
        self.port, self.next_ask, self.judge = port, next_ask, judge
        self.poll, self.by_fd, self.idle, self.stop = select.epoll(), {}, [], False
        self.n = n

    class Line:
        __slots__ = ("sock", "ask", "leave", "got", "sent", "due")

    def _begin(self, line):
        todo = None if self.stop else self.next_ask()
        if todo is None:
            return self._close(line)
        line.ask, line.leave = todo
        line.got, line.sent = bytearray(), 0
        line.due = time.monotonic() + line.leave[1] if line.leave and line.leave[0] == "seconds" else None
        if line.sock is None:
            self._open(line)
        else:
            self._send(line)

    def _open(self, line):
        line.sock = s = socket.socket()
        s.setblocking(False)
        e = s.connect_ex(("127.0.0.1", self.port))
        assert e in (0, errno.EINPROGRESS), errno.errorcode[e]
        self.by_fd[s.fileno()] = line
        self.poll.register(s, select.EPOLLOUT)

    def _close(self, line):
        if line.sock is not None:
            del self.by_fd[line.sock.fileno()]
            line.sock.close()
            line.sock = None

    def _send(self, line):
        line.sent += line.sock.send(line.ask.data[line.sent:])
        self.poll.modify(line.sock, select.EPOLLIN if line.sent == len(line.ask.data) else select.EPOLLOUT)

    def _is_whole(self, line):
        """Cheap, and right for replies of ours: a head, then a counted or chunked body."""
        at = line.got.find(b"\r\n\r\n")
        if at < 0:
            return False
        head = line.got[:at].lower()
        if b"transfer-encoding: chunked" in head:
            return line.got.endswith(b"\r\n0\r\n\r\n")
        return len(line.got) == at + 4 + int(head.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])

    def _left(self, line):
        ask, got = line.ask, line.got
        self._close(line)
        self.judge(ask, True, got)
        self._begin(line)

    def _read(self, line):
        data = line.sock.recv(1 << 18)
        line.got += data
        if self._is_whole(line):
            keeps = b"connection: close" not in line.got[:400].lower()
            self.judge(line.ask, False, line.got)
            if not keeps:
                self._close(line)
            self._begin(line)
        elif not data and line.got.count(b'"error"') == 1:  # a stream that has begun breaks off behind its error
            self._close(line)
            self.judge(line.ask, False, line.got + b"0\r\n\r\n")
            self._begin(line)
        elif not data:
            raise ConnectionError(f"the server closed after {bytes(line.got[-300:])}")
        elif line.leave and line.leave[0] == "bytes" and len(line.got) >= line.leave[1]:
            self._left(line)

    def run(self):
        for _ in range(self.n):
            line = self.Line()
            line.sock = None
            self._begin(line)
        while self.by_fd:
            for fd, what in self.poll.poll(0.005, 256):
                line = self.by_fd.get(fd)
                if line is not None:
                    self._send(line) if what & select.EPOLLOUT else self._read(line)
            now = time.monotonic()
            for line in [x for x in self.by_fd.values() if x.due is not None and x.due <= now]:
                self._left(line)
        self.poll.close()


class Load:
    """Steady load from a thread of its own. n_total: so many requests, None: until end()."""

    def __init__(self, port, asks, n_line=8, seed=1, leaving=0.1, n_total=None, pause=0.0):
        self.asks, self.rnd, self.leaving, self.n_total = asks, random.Random(seed), leaving, n_total
        self.n_asked = self.n_good = self.n_left = self.n_lost = 0
        self.wrong, self.failure, self.begun = [], None, time.monotonic()
        self.steady = Steady(port, n_line, self._next, self._judge)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _next(self):
        if self.n_asked == self.n_total:
            return None
        self.n_asked += 1
        leave = None
        if self.rnd.random() < self.leaving:
            leave = ("seconds", self.rnd.random() * 0.05) if self.rnd.random() < 0.5 else ("bytes", self.rnd.randrange(1, 3000))
        return self.rnd.choice(self.asks), leave

    def _judge(self, ask, left, got):
        if left:
            self.n_left += 1
            if not is_beginning(ask, got):
                self.wrong.append((ask.body, bytes(got)))
            return
        choices, error = answer(ask, got)
        if error and LOST in error:
            self.n_lost += 1
        elif error or choices != ask.answer:
            self.wrong.append((ask.body, error or choices, ask.answer))
        else:
            self.n_good += 1

    def _run(self):
        try:
            self.steady.run()
        except BaseException as e:  # told in end()
            self.failure = e

    def wait_for_more(self, n, seconds=60):
        """Right answers, from here on."""
        want, end = self.n_good + n, time.monotonic() + seconds
        while self.n_good < want and not self.failure and not self.wrong and self.thread.is_alive():
            assert time.monotonic() < end, f"{self.n_good} right answers, and no more; under way: " + str(
                [(line.ask.body, bytes(line.got)) for line in self.steady.by_fd.values()])
            time.sleep(0.01)

    def end(self, now=True):
        """now: what is under way ends, and nothing new is asked. Otherwise n_total is waited for."""
        self.steady.stop = now
        self.thread.join(timeout=1200)
        assert not self.thread.is_alive(), "clients wait for an answer that does not come"
        if self.failure:
            raise self.failure
        assert not self.wrong, f"{len(self.wrong)} wrong, the first:\n{self.wrong[0]}"


def fill_in(asks, *args, model=DEMO):
    """What one engine says to each, one at a time."""
    with serve(model, *args) as s:
        todo = iter(asks)

        def judge(ask, left, got):
            ask.answer, ask.error = answer(ask, got)

        Steady(s.port, 1, lambda: next(((a, None) for a in todo), None), judge).run()
    assert all(a.answer for a in asks), [a.error for a in asks if a.error][:3]
    return asks
