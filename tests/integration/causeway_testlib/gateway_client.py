# SPDX-License-Identifier: Apache-2.0
"""A client of the gateway: a ClientHello, then requests that origin.py understands."""

import contextlib
import ctypes
import json
import os
import socket
import threading

from . import hello, origin
from .programs import SLOW

PATIENCE = 10.0 * SLOW
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(namespace):
    """This thread makes sockets inside the namespace; they stay there."""
    with open("/proc/thread-self/ns/net", encoding="ascii") as own, \
            open(f"/run/netns/{namespace.name}", encoding="ascii") as there:
        assert _libc.setns(there.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert _libc.setns(own.fileno(), 0) == 0


def dial(namespace, address, receive_buffer=None, source=None, timeout=PATIENCE):
    """A connected socket; address: (host, port), or the path of a unix socket."""
    if isinstance(address, tuple):
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    else:
        family = socket.AF_UNIX
    with inside(namespace):
        stream = socket.socket(family, socket.SOCK_STREAM)
    try:
        stream.settimeout(timeout)
        if family != socket.AF_UNIX:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_buffer:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source:
            stream.bind(source)
        stream.connect(address if isinstance(address, tuple) else str(address))
    except BaseException:
        stream.close()
        raise
    return stream


class Client:
    """A stream whose next bytes belong to the origin's protocol."""

    def __init__(self, stream):
        self.stream = stream
        self.reader = origin.Reader(stream)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.stream.close()

    def reset(self):
        origin.reset(self.stream)

    def end(self):
        """Half-closes."""
        self.stream.shutdown(socket.SHUT_WR)

    def send(self, data):
        self.stream.sendall(data)

    def ask(self, *words):
        """ask("bytes", 5) sends the request /bytes/5."""
        self.send(("/" + "/".join(map(str, words)) + "\n").encode())

    def expect(self, size):
        """Reads the payload of `size` bytes and checks it."""
        got, digest = self.reader.exactly(size)
        assert got == size, f"{got} of {size} bytes came"
        assert digest == origin.digest(size), f"{size} bytes came changed"

    def get(self, size):
        self.ask("bytes", size)
        self.expect(size)

    def put(self, size, request="upload", *more):
        self.ask(request, size, *more)
        for piece in origin.pieces(size):
            self.send(piece)
        assert self.reader.line() == f"{size} {origin.digest(size)}"

    def json(self, request):
        self.ask(request)
        line = self.reader.line(1 << 22)
        assert line is not None, f"no answer to {request}"
        return json.loads(line)

    def info(self):
        return self.json("info")

    def origin(self):
        """The name of the origin's listener that answers."""
        return self.info()["listener"]

    def expect_end(self):
        """An orderly end, with nothing in front of it."""
        part = self.reader.some()
        assert part == b"", f"{len(part)} bytes instead of the end: {part[:64]!r}"

    def expect_reset(self):
        """The stream is reset; an orderly end would pass for a complete one."""
        try:
            while part := self.reader.some():
                pass
        except ConnectionError:
            return
        raise AssertionError(f"an end, not a reset ({part!r})")


def refusal(stream):
    """All bytes up to an orderly end: a reset or a bare close of a refused client is a failure."""
    data = b""
    while part := stream.recv(4096):
        data += part
    return data


def refused_with(stream, code):
    """Exactly this alert, then an orderly end."""
    data = refusal(stream)
    assert data == hello.alert(code), f"{data.hex()} instead of alert {code}"
    stream.close()


def gone(stream):
    """Waits until the stream is over, in whatever way; what came before."""
    data = b""
    try:
        while part := stream.recv(4096):
            data += part
    except ConnectionError:
        pass
    return data


def together(count, work):
    """work(0) .. work(count - 1), each on a thread of its own; the first failure is raised."""
    failures = []

    def run(index):
        try:
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=[index], daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
