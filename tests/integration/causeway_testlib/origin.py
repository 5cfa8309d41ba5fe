# SPDX-License-Identifier: Apache-2.0
"""What the gateway relays to: reads a ClientHello, then one request a line, and never decrypts.

Runs as a process of its own inside a namespace (see Origin). A connection that does not begin with
a TLS record is taken as requests alone, which is how tests ask it directly. Requests:

  /bytes/N        N bytes                   /close/N       N bytes, then closes
  /upload/N       reads N bytes, answers their digest       /info          one line of JSON
  /halfclose/N    after the client's end, N bytes, then closes
  /finfirst/N     N bytes and an end, then reads to the client's end
  /blackhole      reads, answers nothing, and goes when the peer is reset
  /flood/N        after the client's end, N bytes as fast as they go
  /trickle/N/MS   N times 64 bytes, MS apart                /echo          until the client's end
  /slowread/N/MS  reads N bytes, 16 KiB each MS, answers their digest
  /reset/N        N bytes, once they are acknowledged a reset
  /stats          what it has seen, one line of JSON        /wait          answers nothing, reads on
"""

import fcntl
import hashlib
import heapq
import json
import select
import socket
import struct
import subprocess
import sys
import threading
import time

try:
    from . import hello
    from .programs import SLOW, die_with_parent
except ImportError:  # as the program
    import hello

CHUNK = 64
_SIOCOUTQ = 0x5411  # linux/sockios.h: bytes that are not acknowledged yet
# A period that no buffer size divides: bytes out of place change the digest.
_PERIOD = 1048573
_seed = hashlib.shake_256(b"causeway").digest(_PERIOD)
_pattern = memoryview(_seed + _seed)
_digests = {}


def pieces(size):
    """The payload of `size` bytes, in order."""
    at = 0
    while at < size:
        begin = at % _PERIOD
        part = min(size - at, _PERIOD)
        yield _pattern[begin:begin + part]
        at += part


def digest(size):
    """Hexadecimal SHA-256 of the payload of `size` bytes."""
    if size not in _digests:
        sha = hashlib.sha256()
        for piece in pieces(size):
            sha.update(piece)
        _digests[size] = sha.hexdigest()
    return _digests[size]


def reset(stream):
    """Closes with a reset."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


class Reader:
    """A stream with what was read too far."""

    def __init__(self, stream):
        self.stream = stream
        self.rest = b""

    def some(self, limit=1 << 18):
        if self.rest:
            part, self.rest = self.rest[:limit], self.rest[limit:]
            return part
        return self.stream.recv(limit)

    def line(self, limit=4096):
        """A line without its end; None at the end of the stream."""
        while b"\n" not in self.rest:
            part = self.stream.recv(65536)
            if not part or len(self.rest) > limit:
                return None
            self.rest += part
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode("latin-1").strip()

    def exactly(self, size):
        """(bytes read, digest): fewer bytes only at the end of the stream."""
        sha, left = hashlib.sha256(), size
        while left and (part := self.some(min(left, 1 << 18))):
            sha.update(part)
            left -= len(part)
        return size - left, sha.hexdigest()

    def to_end(self):
        """(bytes, digest) up to the end of the stream."""
        return self.exactly(1 << 62)


class _Origin:
    def __init__(self):
        self._lock = threading.Lock()
        self.seen = {"accepted": {}, "ends": [], "headers": []}
        self._due = []  # trickles: (when, id, stream, how many more, seconds)
        self._wake = threading.Condition()
        threading.Thread(target=self._trickle, daemon=True).start()

    def note(self, kind, **what):
        with self._lock:
            self.seen["ends"].append({"kind": kind, "at": time.monotonic(), **what})

    def accept(self, name, mode, listener):
        while True:
            stream, peer = listener.accept()
            with self._lock:
                self.seen["accepted"][name] = self.seen["accepted"].get(name, 0) + 1
            threading.Thread(target=self._serve, args=[name, mode, stream, peer],
                             daemon=True).start()

    def _serve(self, name, mode, stream, peer):
        kept = False
        try:
            if stream.family != socket.AF_UNIX:
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            kept = self._connection(name, mode, stream, peer)
        except ConnectionError as error:
            self.note("reset", listener=name, error=type(error).__name__)
        except Exception as error:  # tests look for it
            self.note("fault", listener=name, error=repr(error))
        finally:
            if not kept:
                stream.close()

    def _connection(self, name, mode, stream, peer):
        if mode == "reset":
            reset(stream)
            return True
        reader, info = Reader(stream), {"listener": name, "peer": list(peer)[:2]}
        if mode.startswith("hvsock") and not self._virtual_machine(mode, reader, info):
            return False
        while len(reader.rest) < 5:
            part = stream.recv(65536)
            if not part:
                self.note("early end", listener=name, read=len(reader.rest))
                return False
            reader.rest += part
        if mode == "proxy" and reader.rest[:1] != b"/":
            info["proxy"] = self._proxy_header(reader)
            while not reader.rest:
                reader.rest += stream.recv(65536) or b"\n"
        if mode == "close":
            return False
        if reader.rest[:1] == b"\x16":
            while (parts := hello.split(reader.rest)) is None:
                part = stream.recv(65536)
                if not part:
                    self.note("early end", listener=name, read=len(reader.rest))
                    return False
                reader.rest += part
            info["hello"] = hashlib.sha256(parts[0]).hexdigest()
            reader.rest = parts[1]
        while (line := reader.line()) is not None:
            after = self._request(reader, stream, line, info)
            if after:
                return after == "kept"
        self.note("end", listener=name)
        return False

    def _virtual_machine(self, mode, reader, info):
        """The VMM's side of a hybrid vsock device; its answer comes in pieces."""
        info["connect"] = reader.line(32)
        if mode == "hvsock_refuse":
            return False
        answer = {"hvsock_silent": b"", "hvsock_garbage": b"HTTP/1.1 400 Bad\r\n\r\n"}.get(
            mode, b"OK 1073741824\n")
        for byte in answer:
            reader.stream.sendall(bytes([byte]))
            time.sleep(0.001)
        return True

    def _proxy_header(self, reader):
        """The header as hexadecimal; gateway_proxy.py reads what it says."""
        if reader.rest.startswith(b"PROXY"):
            line = reader.line()
            return (line + "\r\n").encode().hex()
        while len(reader.rest) < 16:
            reader.rest += reader.stream.recv(65536)
        size = 16 + int.from_bytes(reader.rest[14:16], "big")
        while len(reader.rest) < size:
            reader.rest += reader.stream.recv(65536)
        header, reader.rest = reader.rest[:size], reader.rest[size:]
        return header.hex()

    def _request(self, reader, stream, line, info):
        """Serves one request. "over": the connection is done; "kept": another thread has it."""
        what, *numbers = line.removeprefix("GET ").strip("/").split("/")
        numbers = [int(number) for number in numbers if number.isdigit()]
        if what in ("bytes", "close", "reset"):
            for piece in pieces(numbers[0]):
                stream.sendall(piece)
            if what == "reset":
                self._drain_then_reset(stream)
                return "kept"
            return "over" if what == "close" else None
        if what in ("info", "stats"):
            with self._lock:
                answer = json.dumps(info if what == "info" else self.seen)
            stream.sendall(answer.encode() + b"\n")
        elif what == "upload":
            self._answer_upload(stream, reader.exactly(numbers[0]))
        elif what == "slowread":
            self._answer_upload(stream, self._read_slowly(reader, *numbers))
        elif what == "echo":
            while part := reader.some():
                stream.sendall(part)
            return "over"
        elif what == "trickle":
            with self._wake:
                heapq.heappush(self._due, (time.monotonic(), id(stream), stream, numbers[0],
                                           numbers[1] / 1000))
                self._wake.notify()
            return "kept"
        elif what == "finfirst":
            for piece in pieces(numbers[0]):
                stream.sendall(piece)
            stream.shutdown(socket.SHUT_WR)
            size, sha = reader.to_end()
            self.note("finfirst", size=size, digest=sha)
            return "over"
        elif what in ("halfclose", "blackhole", "flood", "wait"):
            size, _ = reader.to_end()
            return self._after_end(what, stream, size, numbers)
        else:
            raise ValueError(f"unknown request {line!r}")
        return None

    def _answer_upload(self, stream, result):
        stream.sendall(f"{result[0]} {result[1]}\n".encode())

    def _read_slowly(self, reader, size, milliseconds):
        sha, left = hashlib.sha256(), size
        while left and (part := reader.some(min(left, 16384))):
            sha.update(part)
            left -= len(part)
            time.sleep(milliseconds / 1000)
        return size - left, sha.hexdigest()

    def _after_end(self, what, stream, size, numbers):
        """The client's end was read."""
        ended, sent = time.monotonic(), 0
        if what == "halfclose":
            for piece in pieces(numbers[0]):
                stream.sendall(piece)
            self.note("halfclose", read=size)
        elif what == "flood":
            stream.setblocking(False)
            writable, last = select.poll(), ended
            writable.register(stream, select.POLLOUT)
            try:
                while sent < numbers[0]:
                    if not writable.poll(60_000):
                        break
                    sent += stream.send(_pattern[:65536])
                    last = time.monotonic()
            except BlockingIOError:
                pass
            except ConnectionError:
                pass
            self.note("flood", sent=sent, silent_since=last, client_end=ended)
        elif what == "blackhole":
            poll = select.poll()
            poll.register(stream, 0)  # POLLERR and POLLHUP alone
            poll.poll(120_000)
            self.note("blackhole", read=size, silent_since=ended)
        else:
            self.note("end", read=size)
        return "over"

    def _drain_then_reset(self, stream):
        """Waits until the peer has acknowledged everything: a reset throws away what was not."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if struct.unpack("i", fcntl.ioctl(stream, _SIOCOUTQ, bytes(4)))[0] == 0:
                break
            time.sleep(0.002)
        reset(stream)

    def _trickle(self):
        """One thread for all trickles: 64 bytes each, by their due times."""
        while True:
            with self._wake:
                while not self._due:
                    self._wake.wait()
                when, key, stream, left, pause = heapq.heappop(self._due)
            delay = when - time.monotonic()
            if delay > 0:
                time.sleep(delay)
            try:
                stream.sendall(_pattern[:CHUNK])
            except OSError:
                stream.close()
                continue
            if left > 1:
                with self._wake:
                    heapq.heappush(self._due, (when + pause, key, stream, left - 1, pause))
            else:
                stream.close()


def trickled(count):
    """What /trickle/count sends."""
    return bytes(_pattern[:CHUNK]) * count


def _listener(address):
    kind, _, where = address.partition(":")
    if kind == "unix":
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(where)
    else:
        host, _, port = where.rpartition(":")
        host = host.strip("[]")
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        if ":" in host:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
    listener.listen(4096)
    return listener


def main(arguments):
    """NAME=[MODE,]ADDRESS ...: listens, says "ready", serves until its standard input ends."""
    threading.stack_size(256 * 1024)
    origin = _Origin()
    for argument in arguments:
        name, _, where = argument.partition("=")
        mode, _, address = where.rpartition(",")
        threading.Thread(target=origin.accept, args=[name, mode, _listener(address)],
                         daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


class Origin:
    """The process. listeners: {name: "[MODE,]ADDRESS"}; modes: proxy (a PROXY header comes first),
    reset (the moment it is accepted), close (once there are bytes), hvsock (stands for a VMM whose
    guest it is), hvsock_refuse, hvsock_silent, hvsock_garbage."""

    def __init__(self, namespace, listeners):
        self._process = subprocess.Popen(
            namespace.command("/usr/bin/python3", "-B", __file__,
                              *(f"{name}={where}" for name, where in listeners.items())),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        self.pid = self._process.pid
        assert self._process.stdout.readline() == b"ready\n", "the origin did not start"

    def signal(self, number):
        self._process.send_signal(number)

    def close(self):
        self._process.stdin.close()
        try:
            self._process.wait(5 * SLOW)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    main(sys.argv[1:])
