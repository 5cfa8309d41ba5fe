# SPDX-License-Identifier: Apache-2.0
"""Every bound of the plain wire, against a peer written from the format alone.

Each violation ends that one connection, is counted under its own reason, and the program serves
the next connection as if nothing had happened.
"""

import os
import socket
import struct

import pytest

from causeway_testlib.pair import GUEST_IP, HOST_IP, on_plain_and_auto
from causeway_testlib.waiting import wait_until
from causeway_testlib.wire import (PEER_MAC, RawListener, RawPeer, checksum, frame_of, ipv4,
                                   record, transport_checksum_is_right)

PEER_IP = "10.77.0.9"

# name: (bytes, whether the peer closes after them, reason)
VIOLATIONS = {
    "length_0": (struct.pack(">I", 0), False, "record_too_short"),
    "length_1": (struct.pack(">I", 1) + b"x", False, "record_too_short"),
    "length_13": (struct.pack(">I", 13) + bytes(13), False, "record_too_short"),
    "length_max_plus_1": (struct.pack(">I", 65551), False, "record_too_long"),
    "length_24_bits": (struct.pack(">I", 0xFFFFFF), False, "record_too_long"),
    "length_all_ones": (b"\xff" * 4, False, "record_too_long"),
    "http_request": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", False, "record_too_long"),
    "tls_client_hello": (bytes.fromhex("1603010200010001fc0303"), False, "record_too_long"),
    "good_then_garbage": (record(frame_of(60)) + b"\xde\xad\xbe\xef", False, "record_too_long"),
    "good_then_too_short": (record(frame_of(60)) * 3 + struct.pack(">I", 5), False,
                            "record_too_short"),
    "closed_in_the_length": (b"\0\0", True, "truncated"),
    "closed_after_the_length": (struct.pack(">I", 60), True, "truncated"),
    "closed_in_the_frame": (record(frame_of(1000))[:500], True, "truncated"),
    "closed_one_byte_early": (record(frame_of(1514))[:-1], True, "truncated"),
    "closed_between_records": (record(frame_of(60)), True, "peer_closed"),
    "closed_at_once": (b"", True, "peer_closed"),
}


def provoke(peer, data, close):
    peer.send(data)
    if close:
        peer.stream.shutdown(socket.SHUT_WR)
    assert peer.wait_end(), "the program did not end the connection"


@on_plain_and_auto
@pytest.mark.parametrize("name", VIOLATIONS)
def test_host_ends_only_that_connection(pair, name):
    data, close, reason = VIOLATIONS[name]
    host = pair.start_host()
    with RawPeer.connect(pair.socket, PEER_IP) as peer:
        if name != "closed_at_once":
            assert peer.ping(HOST_IP)
        provoke(peer, data, close)
    wait_until(lambda: host.ended(reason) == 1, f"ended.{reason} is 1")
    assert sum(host.status()["ended"].values()) == 1
    with RawPeer.connect(pair.socket, PEER_IP) as peer:
        assert peer.ping(HOST_IP)
    assert host.running()


@pytest.mark.parametrize("name", VIOLATIONS)
def test_guest_ends_only_that_connection(pair, name):
    data, close, reason = VIOLATIONS[name]
    with RawListener(pair.socket, PEER_IP) as listener:
        guest = pair.start_guest()
        with listener.accept() as peer:
            assert peer.ping(GUEST_IP)
            provoke(peer, data, close)
        with listener.accept() as peer:
            assert peer.ping(GUEST_IP)
            wait_until(lambda: guest.ended(reason) == 1, f"ended.{reason} is 1")
            assert sum(guest.status()["ended"].values()) == 1
        assert guest.running()


def test_random_bytes_end_connections_and_nothing_else(pair):
    host = pair.start_host()
    rounds = 30
    for _ in range(rounds):
        with RawPeer.connect(pair.socket, PEER_IP) as peer:
            # A first byte that is not zero is a length of at least 16 million.
            provoke(peer, bytes([os.urandom(1)[0] | 1]) + os.urandom(4000), False)
    wait_until(lambda: host.ended("record_too_long") == rounds, "each is counted")
    with RawPeer.connect(pair.socket, PEER_IP) as peer:
        assert peer.ping(HOST_IP)


@on_plain_and_auto
def test_smallest_record_is_accepted(pair):
    host = pair.start_host()
    with RawPeer.connect(pair.socket, PEER_IP) as peer:
        peer.send_frame(frame_of(14))
        wait_until(lambda: host.counter("from_wire_records") == 1, "the record is counted")
        assert peer.ping(HOST_IP)
    assert host.ended("record_too_short") == 0


@on_plain_and_auto
def test_largest_record_is_accepted(pair):
    host = pair.start_host()
    with RawPeer.connect(pair.socket, PEER_IP) as peer:
        peer.send_frame(frame_of(65550))
        wait_until(lambda: host.counter("from_wire_records") == 1, "the record is counted")
        assert host.counter("from_wire_bytes") == 65554
        assert peer.ping(HOST_IP)


def test_max_frame_is_a_bound_of_its_own(pair):
    host = pair.start_host("--max-frame", "1518")
    with RawPeer.connect(pair.socket, PEER_IP) as peer:
        peer.send_frame(frame_of(1518))
        assert peer.ping(HOST_IP)
        provoke(peer, struct.pack(">I", 1519), False)
    wait_until(lambda: host.ended("record_too_long") == 1, "it is counted")


@on_plain_and_auto
def test_records_split_at_every_byte(pair):
    pair.start_host()
    with RawPeer.connect(pair.socket, PEER_IP) as peer:
        mac = peer.resolve(HOST_IP)
        request = record(mac + frame_of(60)[6:])
        for byte in request * 3:
            peer.send(bytes([byte]))
        assert peer.ping(HOST_IP)
        assert pair.host.counter("from_wire_records") >= 4


@on_plain_and_auto
def test_many_records_in_one_write(pair):
    host = pair.start_host()
    with RawPeer.connect(pair.socket, PEER_IP) as peer:
        peer.send(b"".join(record(frame_of(size)) for size in range(14, 1514)))
        wait_until(lambda: host.counter("from_wire_records") == 1500, "all are counted")
        assert peer.ping(HOST_IP)
        assert host.counter("from_wire_reads") < 1500


@on_plain_and_auto
def test_checksums_on_the_plain_wire_are_complete(pair):
    """The TAP runs with offloads on; what leaves on the plain wire must be finished packets."""
    pair.start_host()
    with RawPeer.connect(pair.socket, PEER_IP) as peer:
        peer.resolve(HOST_IP)
        with pair.host_ns.socket(socket.SOCK_DGRAM) as sender:
            sender.sendto(bytes(range(256)) * 4, (PEER_IP, 7))
            packet = peer.wait_packet(lambda p: p[9] == socket.IPPROTO_UDP)
            assert transport_checksum_is_right(packet)
        with pair.host_ns.socket() as sender:
            sender.setblocking(False)
            sender.connect_ex((PEER_IP, 7))
            packet = peer.wait_packet(lambda p: p[9] == socket.IPPROTO_TCP)
            assert transport_checksum_is_right(packet)


def udp_frame(mac, text, damaged):
    udp = struct.pack(">HHHH", 4001, 4000, 8 + len(text), 0) + text
    pseudo = (socket.inet_aton(PEER_IP) + socket.inet_aton(HOST_IP)
              + struct.pack(">BBH", 0, socket.IPPROTO_UDP, len(udp)))
    value = checksum(pseudo + udp) ^ (0x5555 if damaged else 0)
    udp = udp[:6] + struct.pack(">H", value) + udp[8:]
    packet = ipv4(PEER_IP, HOST_IP, socket.IPPROTO_UDP, udp)
    return mac + PEER_MAC + struct.pack(">H", 0x0800) + packet


def test_bad_checksum_from_the_peer_is_not_trusted(pair):
    """A damaged packet of the peer is dropped by the kernel, not passed as if verified."""
    pair.start_host()
    with RawPeer.connect(pair.socket, PEER_IP) as peer, \
            pair.host_ns.socket(socket.SOCK_DGRAM) as receiver:
        receiver.bind((HOST_IP, 4000))
        receiver.settimeout(5)
        mac = peer.resolve(HOST_IP)
        peer.send_frame(udp_frame(mac, b"damaged", True))
        peer.send_frame(udp_frame(mac, b"whole", False))
        assert receiver.recv(2000) == b"whole"
