"""Thousands of clients in one thread: what each sends, when it leaves and how; what came back, as bytes, to be judged afterwards."""

import errno
import json
import select
import socket
import struct
import time

RESET = struct.pack("ii", 1, 0)


class Client:
    """Sends `data`, keeps what comes until the server closes.

    start: seconds after the crowd's begin. leave: None, ("after", seconds since it connected) or ("bytes", n received).
    how: "close", "reset" or "half" (closes its sending side only). deaf: its window is tiny and it never reads, so that it does not
    learn when the server leaves.
    piece: data goes out in pieces of so many bytes.
    """

    __slots__ = ("data", "start", "leave", "how", "deaf", "piece", "got", "sock", "sent", "begin", "error", "done")

    def __init__(self, data, start=0.0, leave=None, how="close", deaf=False, piece=1 << 20):
        self.data, self.start, self.leave, self.how, self.deaf, self.piece = data, start, leave, how, deaf, piece
        self.got, self.sock, self.sent, self.begin, self.error, self.done = bytearray(), None, 0, 0.0, None, False


def request(path, body, close=True, method="POST", headers="", chunks=0):
    """body: None, bytes as they are, or a value; chunks: sent in chunks of so many bytes."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{headers}"
    if body is not None:
        head += "Content-Type: application/json\r\n"
        head += "Transfer-Encoding: chunked\r\n" if chunks else f"Content-Length: {len(data)}\r\n"
    if close:
        head += "Connection: close\r\n"
    if chunks:
        parts = [data[i:i + chunks] for i in range(0, len(data), chunks)] + [b""]
        data = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts)
    return head.encode() + b"\r\n" + data


class Crowd:
    def __init__(self, port):
        self.port, self.poll, self.by_fd, self.timers = port, select.epoll(), {}, []

    def _open(self, c):
        c.sock = s = socket.socket()
        s.setblocking(False)
        if c.deaf:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        e = s.connect_ex(("127.0.0.1", self.port))
        assert e in (0, errno.EINPROGRESS), errno.errorcode[e]
        c.begin = time.monotonic()
        self.by_fd[s.fileno()] = c
        self.poll.register(s, select.EPOLLOUT)
        if c.leave and c.leave[0] == "after":
            self.timers.append((c.begin + c.leave[1], c))

    def _drop(self, c):
        if c.done:
            return
        c.done = True
        del self.by_fd[c.sock.fileno()]
        self.poll.unregister(c.sock)
        c.sock.close()

    def _leave(self, c):
        if c.done:
            return
        if c.how == "half":
            try:
                c.sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            c.sent = len(c.data)
            self.poll.modify(c.sock, select.EPOLLIN)  # then the server closes
            c.leave = None
            return
        if c.how == "reset":
            c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._drop(c)

    def _write(self, c):
        try:
            c.sent += c.sock.send(c.data[c.sent:c.sent + c.piece])
        except BlockingIOError:
            return
        if c.sent >= len(c.data):
            self.poll.modify(c.sock, 0 if c.deaf else select.EPOLLIN)
        elif c.piece < 1 << 20:
            self._read(c)  # replies to what was pipelined before

    def _read(self, c):
        try:
            data = c.sock.recv(1 << 16)
        except BlockingIOError:
            return
        c.got += data
        if not data:
            self._drop(c)
        elif c.leave and c.leave[0] == "bytes" and len(c.got) >= c.leave[1]:
            self._leave(c)

    def _event(self, c, what):
        try:
            if what & select.EPOLLIN:
                self._read(c)
            elif what & select.EPOLLOUT:
                self._write(c)
            elif c.deaf:
                self.poll.modify(c.sock, select.EPOLLET)
            else:
                self._drop(c)
        except OSError as e:
            c.error = e
            self._drop(c)

    def run(self, clients, seconds=600, each_turn=lambda: None):
        """Until all but the deaf are done."""
        todo = sorted(clients, key=lambda c: -c.start)
        begin = time.monotonic()
        n_deaf = sum(c.deaf for c in clients)
        while todo or len(self.by_fd) > n_deaf:
            now = time.monotonic()
            assert now < begin + seconds, f"{len(todo) + len(self.by_fd)} clients are not done after {seconds} s"
            while todo and begin + todo[-1].start <= now:
                self._open(todo.pop())
            if self.timers:
                due = [c for t, c in self.timers if t <= now]
                self.timers = [(t, c) for t, c in self.timers if t > now]
                for c in due:
                    self._leave(c)
            for fd, what in self.poll.poll(0.002 if todo or self.timers else 0.05, 4096):
                if fd in self.by_fd:
                    self._event(self.by_fd[fd], what)
            each_turn()

    def close(self):
        for c in list(self.by_fd.values()):
            self._drop(c)
        self.poll.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def replies(data):
    """What a connection's bytes say: [(status, head, body)], a chunked body put together. Nothing may be left over."""
    out, data = [], bytes(data)
    while data:
        head, sep, data = data.partition(b"\r\n\r\n")
        assert sep, head
        head = head.decode("latin-1")
        fields = {k.lower(): v for k, _, v in (line.partition(": ") for line in head.split("\r\n")[1:])}
        if fields.get("transfer-encoding") == "chunked":
            body = bytearray()
            while True:
                size, sep, data = data.partition(b"\r\n")
                assert sep and size, "the transfer is not complete"
                n = int(size, 16)
                body += data[:n]
                assert data[n:n + 2] == b"\r\n", "the transfer is not complete"
                data = data[n + 2:]
                if n == 0:
                    break
            body = bytes(body)
        else:
            n = int(fields.get("content-length", 0))
            body, data = data[:n], data[n:]
            assert len(body) == n, "the body is not complete"
        out.append((int(head.split(" ", 2)[1]), head, body))
    return out
