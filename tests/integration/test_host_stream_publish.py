# SPDX-License-Identifier: Apache-2.0
"""Ports published over a stream: TCP clients, the helper, and what listens in place of the guest.

No guest runs here: a unix socket, or a stand-in for a hybrid vsock device, is all that the helper
sees of one.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import socket
import struct
import threading

import pytest

from causeway_testlib.programs import SLOW
from causeway_testlib.waiting import wait_until

PORT = 8443
PATIENCE = 10.0 * SLOW
PROXY_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def listen(path):
    """Where the helper can connect as the unprivileged user that it runs as."""
    path.parent.chmod(0o711)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    path.chmod(0o666)
    server.listen(64)
    server.settimeout(PATIENCE)
    return server


def accept(server):
    stream, _ = server.accept()
    stream.settimeout(PATIENCE)
    return stream


def connect(pair, port=PORT):
    client = pair.host_ns.socket()
    client.settimeout(PATIENCE)
    client.connect(("127.0.0.1", port))
    return client


def receive(stream, size):
    """Up to size bytes: less only at the end of the stream."""
    parts = []
    while size > 0:
        part = stream.recv(min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def reset(stream):
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


def published(pair):
    (entry,) = pair.host.status()["published"]
    return entry


class HybridDevice:
    """A VMM's vsock socket: `CONNECT PORT\\n` is answered and handed to the guest's listener, or
    closed when nobody listens on that port in the guest."""

    def __init__(self, path):
        self._server = listen(path)
        self.ports = {}  # port -> what serves a stream
        self.refused = 0
        self.faults = []
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        self._server.settimeout(0.05)
        while not self._stop:
            try:
                stream = accept(self._server)
            except TimeoutError:
                continue
            line = b""
            while not line.endswith(b"\n") and len(line) < 32 and (byte := stream.recv(1)):
                line += byte
            match = re.fullmatch(rb"CONNECT (\d+)\n", line)
            if not match:
                self.faults.append(line)
                stream.close()
            elif int(match[1]) not in self.ports:
                self.refused += 1
                stream.close()
            else:
                # The guest's first bytes right behind the answer, as one segment.
                stream.sendall(b"OK 1073741824\nhello ")
                threading.Thread(target=self.ports[int(match[1])], args=[stream],
                                 daemon=True).start()

    def close(self):
        self._stop = True
        self._thread.join()
        self._server.close()


def echo(stream):
    with stream:
        while part := stream.recv(65536):
            stream.sendall(part)
        stream.shutdown(socket.SHUT_WR)


@pytest.fixture
def app(pair):
    """The socket of the application in the guest."""
    with contextlib.closing(listen(pair.directory / "app")) as server:
        yield server


def start(pair, options="", target=None):
    target = target or f"unix:{pair.directory}/app"
    pair.start_host("--publish", f"tcp:127.0.0.1:{PORT}={target}{options}")


def test_both_directions_arrive_whole(pair, app):
    start(pair)
    up, down = random.Random(1).randbytes(32 << 20), random.Random(2).randbytes(24 << 20)
    got = {}

    def send(stream, data):
        stream.sendall(data)
        stream.shutdown(socket.SHUT_WR)

    def digest(name, stream, size):
        got[name] = hashlib.sha256(receive(stream, size + 1)).hexdigest()

    with connect(pair) as client, accept(app) as guest:
        threads = [threading.Thread(target=target, args=args) for target, args in (
            (send, (client, up)), (send, (guest, down)), (digest, ("up", guest, len(up))),
            (digest, ("down", client, len(down))))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert got == {"up": hashlib.sha256(up).hexdigest(), "down": hashlib.sha256(down).hexdigest()}
    wait_until(lambda: published(pair)["active"] == 0, "the connection ends", PATIENCE)
    entry = published(pair)
    assert (entry["bytes_to_guest"], entry["bytes_to_client"]) == (len(up), len(down))
    assert (entry["accepted"], entry["reset"]) == (1, 0)


def test_half_close(pair, app):
    start(pair)
    for first_is_client in (True, False):
        with connect(pair) as client, accept(app) as guest:
            first, second = (client, guest) if first_is_client else (guest, client)
            first.sendall(b"question")
            first.shutdown(socket.SHUT_WR)
            assert receive(second, 100) == b"question"
            second.sendall(b"answer")
            assert receive(first, 6) == b"answer"
            second.shutdown(socket.SHUT_WR)
            assert receive(first, 1) == b""


def test_resets(pair, app):
    start(pair)
    with connect(pair) as client, accept(app) as guest:
        client.sendall(b"x")
        assert receive(guest, 1) == b"x"
        reset(client)
        assert receive(guest, 1) == b""
    with connect(pair) as client:
        guest = accept(app)
        client.sendall(b"unread")
        wait_until(lambda: published(pair)["bytes_to_guest"] == 7, "the bytes arrive", PATIENCE)
        guest.close()  # with bytes unread: what a unix socket has for a reset
        with pytest.raises(ConnectionResetError):
            receive(client, 1)
    wait_until(lambda: published(pair)["active"] == 0, "the connections end", PATIENCE)
    assert published(pair)["reset"] == 2


def test_proxy_v2_names_the_client(pair, app):
    start(pair, ",proxy-v2")
    pair.host_ns.run("ip", "addr", "add", "192.0.2.9/32", "dev", "lo")
    client = pair.host_ns.socket()
    client.settimeout(PATIENCE)
    client.bind(("192.0.2.9", 0))
    client.connect(("127.0.0.1", PORT))
    with client, accept(app) as guest:
        client.sendall(b"hello")
        expected = PROXY_SIGNATURE + b"\x21\x11" + struct.pack(
            ">H4s4sHH", 12, socket.inet_aton("192.0.2.9"), socket.inet_aton("127.0.0.1"),
            client.getsockname()[1], PORT)
        assert receive(guest, len(expected) + 5) == expected + b"hello"


def test_limit(pair, app):
    start(pair, ",limit=1")
    with connect(pair) as client, accept(app):
        # The reset may come as early as connect()'s own end.
        with pytest.raises(ConnectionResetError), connect(pair) as above:
            receive(above, 1)
        assert published(pair)["refused_limit"] == 1
        reset(client)
    wait_until(lambda: published(pair)["active"] == 0, "the place is free", PATIENCE)
    with connect(pair) as client, accept(app) as guest:
        client.sendall(b"x")
        assert receive(guest, 1) == b"x"


def test_idle(pair, app):
    start(pair, ",idle=500ms")
    with connect(pair) as client, accept(app) as guest:
        with pytest.raises(ConnectionResetError):
            receive(client, 1)
        assert receive(guest, 1) == b""
    assert published(pair)["idle_closed"] == 1


def test_hybrid_vsock(pair):
    device = HybridDevice(pair.directory / "vsock")
    with contextlib.closing(device):
        device.ports[443] = echo
        start(pair, target=f"hvsock:{pair.directory}/vsock:443")
        data = random.Random(3).randbytes(1 << 20)
        with connect(pair) as client:
            sender = threading.Thread(target=client.sendall, args=[data])
            sender.start()
            assert receive(client, 6) == b"hello "
            assert receive(client, len(data)) == data
            sender.join(PATIENCE)
            client.shutdown(socket.SHUT_WR)
            assert receive(client, 1) == b""
        assert device.faults == []


def test_hybrid_vsock_waits_for_the_guest_to_listen(pair):
    device = HybridDevice(pair.directory / "vsock")
    with contextlib.closing(device):
        start(pair, target=f"hvsock:{pair.directory}/vsock:443")
        with connect(pair) as client:
            client.sendall(b"early")
            wait_until(lambda: device.refused >= 2, "the helper tries again", PATIENCE)
            device.ports[443] = echo
            assert receive(client, 11) == b"hello early"


def test_a_target_that_never_listens_costs_a_reset_and_nothing_else(pair):
    start(pair)
    with connect(pair) as client, pytest.raises(ConnectionResetError):
        receive(client, 1)
    assert published(pair)["connect_failed"] == 1
    assert pair.host.status()["session"]["state"] == "listening"


def test_a_crowd_leaves_no_descriptor_behind(pair, app):
    start(pair)

    def descriptors():
        return len(os.listdir(f"/proc/{pair.host.pid}/fd"))

    before = descriptors()
    for _ in range(4):
        clients = [connect(pair) for _ in range(50)]
        guests = [accept(app) for _ in clients]
        for client in clients[::2]:
            reset(client)
        for stream in clients[1::2] + guests:
            stream.close()
        wait_until(lambda: published(pair)["active"] == 0, "the connections end", PATIENCE)
    assert published(pair)["accepted"] == 200
    assert descriptors() <= before + 4  # the admin socket's own


def test_reload_keeps_what_stays(pair, app):
    config = pair.directory / "host.json"

    def write(*ports):
        config.write_text(json.dumps({
            "listen": f"unix:{pair.socket}", "tap": "cwh0", "address": ["10.77.0.1/24"],
            "publish": [f"tcp:127.0.0.1:{port}=unix:{pair.directory}/app" for port in ports]}))

    def is_open(port):
        try:
            connect(pair, port).close()
        except ConnectionRefusedError:
            return False
        accept(app).close()
        return True

    write(PORT, PORT + 1)
    pair.host = pair.start(pair.host_ns, "causeway-host", ["--config", config], "host")
    with connect(pair) as stays, accept(app) as guest, connect(pair, PORT + 1) as goes, \
            accept(app):
        write(PORT, PORT + 2)
        pair.host.signal(signal.SIGHUP)
        wait_until(lambda: is_open(PORT + 2), "the new port is open", PATIENCE)
        assert not is_open(PORT + 1)
        with pytest.raises(ConnectionResetError):
            receive(goes, 1)
        stays.sendall(b"still here")
        assert receive(guest, 10) == b"still here"
        assert len(pair.host.status()["published"]) == 2
