# SPDX-License-Identifier: Apache-2.0
"""A peer on the plain wire written from the format alone: u32 big-endian length, then a frame.

It also speaks enough ARP, IPv4, ICMP, UDP and TCP to prove that frames pass and are whole.
"""

import select
import socket
import struct
import time

PEER_MAC = bytes.fromhex("020000000099")
BROADCAST = b"\xff" * 6
ARP, IPV4 = 0x0806, 0x0800


def record(frame):
    return struct.pack(">I", len(frame)) + frame


def frame_of(size, destination=BROADCAST, ethertype=0x88B5):
    """A frame of a local experimental type, `size` bytes with its Ethernet header."""
    header = destination + PEER_MAC + struct.pack(">H", ethertype)
    return (header + bytes(max(0, size - len(header))))[:size]


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def ipv4(source, destination, protocol, payload):
    head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 1, 0, 64, protocol, 0,
                       socket.inet_aton(source), socket.inet_aton(destination))
    return head[:10] + struct.pack(">H", checksum(head)) + head[12:] + payload


def transport_checksum_is_right(packet):
    """Of a TCP or UDP packet in IPv4: the sum over pseudo header and segment is zero."""
    header = (packet[0] & 15) * 4
    total = struct.unpack(">H", packet[2:4])[0]
    segment = packet[header:total]
    pseudo = packet[12:20] + struct.pack(">BBH", 0, packet[9], len(segment))
    return checksum(packet[:header]) == 0 and checksum(pseudo + segment) == 0


class RawPeer:
    def __init__(self, stream, address):
        self.stream = stream
        self.address = address
        self._buffer = b""

    @classmethod
    def connect(cls, path, address):
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.settimeout(5)
        stream.connect(str(path))
        return cls(stream, address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()

    def send(self, data):
        """Sends; a peer that has already closed is no error here."""
        try:
            self.stream.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def send_frame(self, frame):
        self.send(record(frame))

    def _fill(self, deadline):
        """Reads once; False at the end of the stream."""
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self.stream], [], [], left)[0]:
            raise TimeoutError("no data")
        try:
            data = self.stream.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        self._buffer += data
        return bool(data)

    def frames(self, timeout=5.0):
        """Frames as they arrive, until the stream ends; TimeoutError when time is up."""
        deadline = time.monotonic() + timeout
        while True:
            while len(self._buffer) >= 4:
                size = struct.unpack(">I", self._buffer[:4])[0]
                assert 14 <= size <= 65550, f"the program sent a record of {size} bytes"
                if len(self._buffer) < 4 + size:
                    break
                frame, self._buffer = self._buffer[4:4 + size], self._buffer[4 + size:]
                yield frame
            if not self._fill(deadline):
                return

    def wait_end(self, timeout=5.0):
        """True when the program ends the connection in time."""
        try:
            for _ in self.frames(timeout):
                pass
        except TimeoutError:
            return False
        return True

    def _answer_arp(self, frame):
        if frame[12:14] != struct.pack(">H", ARP) or frame[20:22] != b"\0\1":
            return
        if frame[38:42] != socket.inet_aton(self.address):
            return
        reply = (frame[6:12] + PEER_MAC + frame[12:20] + b"\0\2" + PEER_MAC + frame[38:42]
                 + frame[22:28] + frame[28:32])
        self.send_frame(reply)

    def wait_packet(self, wanted, timeout=5.0):
        """The first IPv4 packet for which wanted(packet) holds; answers ARP on the way."""
        for frame in self.frames(timeout):
            self._answer_arp(frame)
            if frame[12:14] == struct.pack(">H", IPV4) and wanted(frame[14:]):
                return frame[14:]
        raise AssertionError("the connection ended")

    def resolve(self, target, timeout=5.0):
        """The MAC of target, by ARP: proof that frames pass in both directions."""
        request = (BROADCAST + PEER_MAC + struct.pack(">HHHBBH", ARP, 1, IPV4, 6, 4, 1) + PEER_MAC
                   + socket.inet_aton(self.address) + bytes(6) + socket.inet_aton(target))
        self.send_frame(request)
        for frame in self.frames(timeout):
            self._answer_arp(frame)
            if (frame[12:14] == struct.pack(">H", ARP) and frame[20:22] == b"\0\2"
                    and frame[28:32] == socket.inet_aton(target)):
                return frame[22:28]
        raise AssertionError("the connection ended before ARP was answered")

    def ping(self, target, payload=b"causeway" * 16, timeout=5.0):
        """An ICMP echo whose answer is compared byte by byte."""
        mac = self.resolve(target, timeout)
        echo = struct.pack(">BBHHH", 8, 0, 0, 77, 1) + payload
        echo = echo[:2] + struct.pack(">H", checksum(echo)) + echo[4:]
        packet = ipv4(self.address, target, socket.IPPROTO_ICMP, echo)
        self.send_frame(mac + PEER_MAC + struct.pack(">H", IPV4) + packet)
        answer = self.wait_packet(lambda p: p[9] == socket.IPPROTO_ICMP and p[20] == 0, timeout)
        total = struct.unpack(">H", answer[2:4])[0]
        return answer[28:total] == payload and checksum(answer[20:total]) == 0


class RawListener:
    """The listening side, for the framer to connect to."""

    def __init__(self, path, address):
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(8)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def accept(self, timeout=10.0):
        self._socket.settimeout(timeout)
        stream, _ = self._socket.accept()
        stream.settimeout(5)
        return RawPeer(stream, self._address)
