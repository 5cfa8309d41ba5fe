# SPDX-License-Identifier: Apache-2.0
"""A checked TCP transfer. Run as a program inside a namespace, it is one end:

    payload.py listen|connect ADDRESS PORT --send BYTES --seed N [--end-last] [--rate N]

It sends pseudo-random bytes that the seed determines, receives to the end of the stream, and prints
one JSON object: bytes and SHA-256 of both directions, and whether the end of the stream was seen.
It ends its own direction when all is sent; with --end-last not before the peer has ended its own.
With --rate the kernel paces what it sends to that many bytes a second.
Every block begins with its number, so that lost, repeated or swapped blocks change the digest.
"""

import argparse
import hashlib
import json
import random
import socket
import struct
import subprocess
import sys
import threading

BLOCK = 256 * 1024
SO_MAX_PACING_RATE = getattr(socket, "SO_MAX_PACING_RATE", 47)


def blocks(count, seed):
    base = random.Random(seed).randbytes(BLOCK)
    number = 0
    while count > 0:
        yield (struct.pack(">Q", number) + base[8:])[:count]
        number += 1
        count -= BLOCK


def _send(stream, count, seed, result, may_end):
    digest = hashlib.sha256()
    sent = 0
    for block in blocks(count, seed):
        stream.sendall(block)
        digest.update(block)
        sent += len(block)
    may_end.wait()
    stream.shutdown(socket.SHUT_WR)
    result.update(sent=sent, sent_sha256=digest.hexdigest())


def _receive(stream, result):
    digest = hashlib.sha256()
    received = 0
    buffer = memoryview(bytearray(BLOCK))
    while True:
        size = stream.recv_into(buffer)
        if size == 0:
            break
        digest.update(buffer[:size])
        received += size
    result.update(received=received, received_sha256=digest.hexdigest(), eof=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("listen", "connect"))
    parser.add_argument("address")
    parser.add_argument("port", type=int)
    parser.add_argument("--send", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--end-last", action="store_true")
    parser.add_argument("--rate", type=int)
    parser.add_argument("--timeout", type=float, default=120)
    options = parser.parse_args()
    if options.role == "listen":
        family = socket.AF_INET6 if ":" in options.address else socket.AF_INET
        with socket.create_server((options.address, options.port), family=family) as server:
            print("listening", flush=True)
            server.settimeout(options.timeout)
            stream, _ = server.accept()
    else:
        stream = socket.create_connection((options.address, options.port), options.timeout)
        print("connected", flush=True)
    stream.settimeout(options.timeout)
    if options.rate:
        stream.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, options.rate)
    result = {"eof": False}
    may_end = threading.Event()
    if not options.end_last:
        may_end.set()
    sender = threading.Thread(target=_send, daemon=True,
                              args=(stream, options.send, options.seed, result, may_end))
    sender.start()
    _receive(stream, result)
    may_end.set()
    sender.join()
    stream.close()
    print(json.dumps(result), flush=True)


class End:
    """One end of a transfer, running in a namespace."""

    def __init__(self, namespace, role, address, port, send, seed, timeout, *more):
        self._timeout = timeout
        # Unbuffered, so that wait_ready() takes its line and leaves the rest to result().
        self._popen = subprocess.Popen(
            namespace.command("/usr/bin/python3", __file__, role, address, port, "--send", send,
                              "--seed", seed, "--timeout", timeout, *more),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)

    def wait_ready(self):
        """Returns when it listens, or is connected."""
        line = self._popen.stdout.readline()
        if line.strip() not in (b"listening", b"connected"):
            self.close()
            raise AssertionError(f"payload.py: {self._popen.communicate()[1][-2000:].decode()}")

    def running(self):
        return self._popen.poll() is None

    def result(self):
        out, err = self._popen.communicate(timeout=self._timeout)
        assert self._popen.returncode == 0, err[-2000:].decode()
        return json.loads(out.splitlines()[-1])

    def close(self):
        if self.running():
            self._popen.kill()
        self._popen.wait(5)


class Transfer:
    """Server in one namespace, client in another; a context that ends both on any path.

    ends_last ("client" or "server") makes that side keep its direction open until the other ended;
    rate paces both sides (bytes a second).
    """

    def __init__(self, server_ns, address, client_ns, port=5001, server_sends=0, client_sends=0,
                 bind=None, timeout=120.0, ends_last=None, rate=None):
        def more(side):
            return ([*(["--end-last"] if ends_last == side else []),
                     *(["--rate", rate] if rate else [])])

        self._ends = []
        try:
            self.server = End(server_ns, "listen", bind or address, port, server_sends, 11, timeout,
                              *more("server"))
            self._ends.append(self.server)
            self.server.wait_ready()
            self.client = End(client_ns, "connect", address, port, client_sends, 22, timeout,
                              *more("client"))
            self._ends.append(self.client)
            self.client.wait_ready()
        except BaseException:
            self.close()
            raise
        self._expected = (server_sends, client_sends)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for end in self._ends:
            end.close()

    def running(self):
        return all(end.running() for end in self._ends)

    def check(self):
        """Waits for both ends, and compares counts and digests of both directions."""
        client, server = self.client.result(), self.server.result()
        server_sends, client_sends = self._expected
        assert client["eof"] and server["eof"]
        assert client["sent"] == server["received"] == client_sends
        assert server["sent"] == client["received"] == server_sends
        assert client["sent_sha256"] == server["received_sha256"]
        assert server["sent_sha256"] == client["received_sha256"]


if __name__ == "__main__":
    sys.exit(main())
