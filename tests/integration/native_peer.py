# SPDX-License-Identifier: Apache-2.0
"""A peer on the native wire built on wire_codec.py, frames to send with it, and eyes on a TAP.

NativePeer is RawPeer with other records: what that can do with frames (ARP, ping) works here too.
"""

import contextlib
import ctypes
import errno
import os
import secrets
import selectors
import socket
import struct
import threading
import time

import pytest

import wire_codec as wire
from causeway_testlib.programs import program_path
from causeway_testlib.wire import PEER_MAC, RawPeer, checksum

FRAME, SUPER_FRAME, CONTROL = 0, 1, 2
FEATURES = ["offload", "uso", "keepalive"]
PEER_IP = "10.77.0.9"
_ETH_P_ALL, _SOL_PACKET, _PACKET_VNET_HDR, _PACKET_OUTGOING = 3, 263, 15, 4
_libc = ctypes.CDLL(None, use_errno=True)


def skip_without_programs():
    """For fixtures of a module, which conftest.py does not know about."""
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        pytest.skip("needs root and /dev/net/tun")
    if not program_path("causeway-host").exists():
        pytest.skip(f"{program_path('causeway-host')} is not built")


def new_session():
    return secrets.token_hex(16)


def hello_of(**changes):
    """A hello with every field; a field changed to None is left out."""
    hello = {"versions": [1, 1], "session": new_session(), "lane": 0, "lanes": 1,
             "features": FEATURES, "mtu": 1500, "max_frame": 65550, **changes}
    return {name: value for name, value in hello.items() if value is not None}


@contextlib.contextmanager
def inside(namespace):
    """This thread is in the namespace for the length of a with: for sockets and TAPs."""
    with open("/proc/self/ns/net", encoding="ascii") as own, \
            open(f"/run/netns/{namespace.name}", encoding="ascii") as other:
        assert _libc.setns(other.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert _libc.setns(own.fileno(), 0) == 0


class NativePeer(RawPeer):
    """One stream. Pings are answered unless `answers_pings` is off; control records are kept."""

    def __init__(self, stream, address=PEER_IP):
        super().__init__(stream, address)
        self.controls = []
        self.answers_pings = True
        self.hello = self.answer = self.agreed = None

    @classmethod
    def connect(cls, path, address=PEER_IP):
        return super().connect(path, address)

    @classmethod
    def establish(cls, path, address=PEER_IP, **changes):
        """Connected, and both hellos exchanged: `agreed` is what wire_codec makes of them."""
        peer = cls.connect(path, address)
        try:
            peer.hello = hello_of(**changes)
            peer.send(wire.encode_preface(peer.hello))
            peer.answer = peer.read_preface()
            assert peer.answer is not None, "the listener closed without an answer"
            assert "refuse" not in peer.answer, peer.answer
            assert peer.answer["session"] == peer.hello["session"]
            assert peer.answer["lane"] == peer.hello["lane"]
            peer.agreed = wire.negotiate(peer.hello, peer.answer)
            assert isinstance(peer.agreed, dict), peer.agreed
        except BaseException:
            peer.stream.close()
            raise
        return peer

    def read_preface(self, timeout=7.0):
        """The other side's hello; None when the stream ends before it begins."""
        deadline = time.monotonic() + timeout
        while True:
            if self._buffer:
                hello, consumed = wire.decode_preface(self._buffer)
                if hello is not None:
                    self._buffer = self._buffer[consumed:]
                    return hello
            if not self._fill(deadline):
                assert not self._buffer, f"the answer is cut: {self._buffer!r}"
                return None

    def read_to_end(self, timeout=7.0):
        """Whatever comes is thrown away; True when the stream ends in time."""
        deadline = time.monotonic() + timeout
        try:
            while self._fill(deadline):
                pass
        except TimeoutError:
            return False
        return True

    def send_record(self, kind, payload):
        self.send(wire.encode_record(kind, payload))

    def send_frame(self, frame):
        self.send_record(FRAME, frame)

    def send_super_frame(self, offload, frame):
        self.send(wire.encode_super_frame(offload, frame))

    def send_control(self, kind, **more):
        self.send_record(CONTROL, wire.encode_control(kind, **more))

    def records(self, timeout=5.0):
        """(type, payload) as they come, until the stream ends; TimeoutError when time is up."""
        deadline = time.monotonic() + timeout
        while True:
            while len(self._buffer) >= 4:
                (header,) = struct.unpack_from("!I", self._buffer)
                kind, size = header >> 24, header & 0xFFFFFF
                lowest, highest = wire._bounds(kind, (self.agreed or {}).get("max_frame", 65550))
                assert lowest <= size <= highest, f"the program sent {kind}, {size} bytes"
                if len(self._buffer) < 4 + size:
                    break
                payload, self._buffer = self._buffer[4:4 + size], self._buffer[4 + size:]
                if kind == CONTROL:
                    self._take_control(payload)
                yield kind, payload
            if not self._fill(deadline):
                return

    def _take_control(self, payload):
        control = wire.decode_control(payload)
        self.controls.append(control)
        if control["kind"] == "ping" and self.answers_pings:
            self.send_control("pong", token=control["token"])

    def frames(self, timeout=5.0):
        for kind, payload in self.records(timeout):
            if kind == FRAME:
                yield payload
            elif kind == SUPER_FRAME:
                yield payload[8:]

    def listen_for(self, seconds):
        """Reads for that long, answering pings; True when the stream is still open then."""
        try:
            for _ in self.records(seconds):
                pass
        except TimeoutError:
            return True
        return False

    def wait_control(self, kind, timeout=5.0):
        """The next control record of that kind, which may have been read already."""
        for number, control in enumerate(self.controls):
            if control["kind"] == kind:
                return self.controls.pop(number)
        for got, _ in self.records(timeout):
            if got == CONTROL and self.controls[-1]["kind"] == kind:
                return self.controls.pop()
        raise AssertionError(f"the stream ended before a {kind}")

    def proves_alive(self, token=0x1122334455667788, timeout=5.0):
        """A ping and its pong: the session is up and reads what it is sent."""
        self.send_control("ping", token=token)
        deadline = time.monotonic() + timeout
        while self.wait_control("pong", deadline - time.monotonic())["token"] != token:
            pass
        return True


class NativeListener:
    """The listening side, for the framer to connect to."""

    def __init__(self, path):
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(32)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def accept_stream(self, timeout=10.0):
        self._socket.settimeout(timeout)
        stream, _ = self._socket.accept()
        stream.settimeout(5)
        return stream

    def accept(self, timeout=10.0):
        """A stream with the framer's hello read: `hello` is it, and no answer is sent yet."""
        peer = NativePeer(self.accept_stream(timeout))
        peer.hello = peer.read_preface()
        return peer

    def accept_and_agree(self, timeout=10.0, after=b"", **changes):
        """The same, answered; `after` goes into the same write as the answer."""
        peer = self.accept(timeout)
        answer = hello_of(session=peer.hello["session"], lane=peer.hello["lane"],
                          lanes=peer.hello["lanes"])
        answer.update(changes)
        peer.send(wire.encode_preface(answer) + after)
        peer.agreed = wire.negotiate(peer.hello, wire.decode_hello(
            wire.encode_preface(answer)[8:]))
        assert isinstance(peer.agreed, dict), peer.agreed
        return peer


# --- Frames ----------------------------------------------------------------------------------


def sum_of(data):
    """The one's complement sum of the 16-bit words, not complemented."""
    return checksum(data) ^ 0xFFFF


def _pseudo(source, destination, protocol, size, ipv6):
    if ipv6:
        return source + destination + struct.pack("!II", size, protocol)
    return source + destination + struct.pack("!BBH", 0, protocol, size)


def ip_packet(segment, protocol, source, destination, options=b"", fragment=0, extensions=b"",
              next_header=None):
    """IPv4 or IPv6 by the form of the addresses; the segment is what follows the IP header."""
    if ":" in source:
        first = protocol if next_header is None else next_header
        return (struct.pack("!IHBB", 6 << 28, len(extensions) + len(segment), first, 64)
                + socket.inet_pton(socket.AF_INET6, source)
                + socket.inet_pton(socket.AF_INET6, destination) + extensions + segment)
    size = 20 + len(options)
    head = struct.pack("!BBHHHBBH4s4s", 0x40 | size // 4, 0, size + len(segment), 1, fragment, 64,
                       protocol, 0, socket.inet_aton(source), socket.inet_aton(destination))
    head += options
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + segment


def partial_segment(protocol, payload, source, destination, ports=(4001, 4000), tcp_options=b"",
                    sequence=1, udp_length=None):
    """A TCP or UDP segment whose checksum field holds the sum of the pseudo-header only."""
    ipv6 = ":" in source
    family = socket.AF_INET6 if ipv6 else socket.AF_INET
    if protocol == socket.IPPROTO_TCP:
        words = 5 + len(tcp_options) // 4
        segment = struct.pack("!HHIIBBHHH", *ports, sequence, 1, words << 4, 0x18, 8192, 0, 0)
        segment += tcp_options + payload
        at = 16
    else:
        length = 8 + len(payload) if udp_length is None else udp_length
        segment = struct.pack("!HHHH", *ports, length, 0) + payload
        at = 6
    value = sum_of(_pseudo(socket.inet_pton(family, source), socket.inet_pton(family, destination),
                           protocol, len(segment), ipv6))
    return segment[:at] + struct.pack("!H", value) + segment[at + 2:]


def ethernet(packet, destination=b"\xff" * 6, tags=(), ethertype=None):
    kind = ethertype or (0x86DD if packet[0] >> 4 == 6 else 0x0800)
    return (destination + PEER_MAC
            + b"".join(struct.pack("!HH", tpid, 10) for tpid in tags)
            + struct.pack("!H", kind) + packet)


# --- What a plain stream carries -------------------------------------------------------------


def frame_problem(frame, mtu):
    """What is wrong with a frame that ought to be complete, or None. Looks behind one VLAN tag."""
    l3 = 18 if frame[12:14] == b"\x81\0" else 14
    if len(frame) > mtu + l3:
        return f"{len(frame)} bytes"
    packet = frame[l3:]
    kind = frame[l3 - 2:l3]
    if kind == b"\x08\0":
        header, protocol = (packet[0] & 15) * 4, packet[9]
        total = int.from_bytes(packet[2:4], "big")
        if checksum(packet[:header]):
            return "IPv4 checksum"
        addresses, fragment = packet[12:20], int.from_bytes(packet[6:8], "big") & 0x3FFF
        ipv6 = False
    elif kind == b"\x86\xdd":
        header, total, protocol = 40, 40 + int.from_bytes(packet[4:6], "big"), packet[6]
        addresses, fragment, ipv6 = packet[8:40], 0, True
    else:
        return None
    if total > len(packet):
        return f"IP length {total} in {len(packet)} bytes"
    if fragment or protocol not in (6, 17):
        return None
    segment = packet[header:total]
    half = len(addresses) // 2
    pseudo = _pseudo(addresses[:half], addresses[half:], protocol, len(segment), ipv6)
    if protocol == 17 and segment[6:8] == b"\0\0" and not ipv6:
        return None  # UDP over IPv4 may go without
    return "transport checksum" if checksum(pseudo + segment) else None


class Proxy:
    """Sits between the programs on unix sockets; counts, records, and can cut single streams."""

    class Link:
        def __init__(self, client, server):
            self.sockets = (client, server)  # the connecting side's, the listening side's
            self.carried = [0, 0]            # bytes from the connecting, the listening side
            self.recorded = [bytearray(), bytearray()]
            self.first = b""                 # the first bytes of the connecting side
            self.open = True

        @property
        def preface(self):
            """Bytes of the connecting side's preface; the helper counts records alone."""
            return 8 + int.from_bytes(self.first[6:8], "big")

        def cut(self):
            for each in self.sockets:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def __init__(self, path, target, record=False):
        self.path = path
        self._target, self._record = str(target), record
        self.accepting = True  # False: connections are closed at once
        self.links = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(32)
        self._ends, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.write(self._stop, b"x")
        self._thread.join(5)
        for link in self.links:
            for each in link.sockets:
                each.close()
        self._listener.close()
        os.close(self._ends)
        os.close(self._stop)

    def open_links(self):
        return [link for link in self.links if link.open]

    def _run(self):
        # Blocking sends: the kernel's buffers of both streams are the only queue, as on a cable.
        threads = []
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._ends, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == self._ends:
                        for link in self.links:
                            link.cut()
                        for thread in threads:
                            thread.join(5)
                        return
                    self._accept(threads)

    def _accept(self, threads):
        client, _ = self._listener.accept()
        if not self.accepting:
            client.close()
            return
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            server.connect(self._target)
        except OSError:
            client.close()
            server.close()
            return
        link = Proxy.Link(client, server)
        self.links.append(link)
        for way in (0, 1):
            threads.append(threading.Thread(target=self._copy, args=(link, way), daemon=True))
            threads[-1].start()

    def _copy(self, link, way):
        source, sink = link.sockets[way], link.sockets[1 - way]
        try:
            while data := source.recv(1 << 18):
                if way == 0 and len(link.first) < 8:
                    link.first += data[:8]
                link.carried[way] += len(data)
                if self._record:
                    link.recorded[way] += data
                sink.sendall(data)
        except OSError:
            pass
        link.open = False
        link.cut()


class TapEye:
    """A packet socket on an interface: sends, and shows what arrives, with the vnet header."""

    def __init__(self, namespace, interface):
        with inside(namespace):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW,
                                         socket.htons(_ETH_P_ALL))
        self._socket.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        self._socket.bind((interface, _ETH_P_ALL))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def drain(self):
        self._socket.settimeout(0)
        while True:
            try:
                self._socket.recv(1 << 17)
            except BlockingIOError:
                return
            except OSError as error:  # told once when the interface went down
                if error.errno != errno.ENETDOWN:
                    raise

    def send(self, vnet, frame):
        """As if the kernel had sent it out of the interface; towards the program on a TAP."""
        self._socket.send(vnet + frame)

    def arrivals(self, timeout=5.0):
        """(vnet header as a dict, frame without its VLAN tag) until time is up."""
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                data, address = self._socket.recvfrom(1 << 17)
            except TimeoutError:
                return
            if address[2] == _PACKET_OUTGOING:
                continue
            names = ("flags", "gso_type", "hdr_len", "gso_size", "csum_start", "csum_offset")
            yield dict(zip(names, struct.unpack_from("<BBHHHH", data))), data[10:]
