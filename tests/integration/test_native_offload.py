# SPDX-License-Identifier: Apache-2.0
"""Offload headers: each rule of PROTOCOL.md broken once, and what a TAP gets of the good ones.

A packet socket on the helper's TAP sees what was written, with the kernel's own idea of its GSO
type and sizes. After each bad super-frame a marked frame is sent: it must be the next to arrive.
"""

import errno
import fcntl
import itertools
import os
import socket
import struct

import pytest

import wire_codec as wire
from causeway_testlib.pair import HOST_IP, HOST_TAP, Pair
from causeway_testlib.waiting import wait_until
from causeway_testlib.wire import PEER_MAC
from native_peer import (FEATURES, PEER_IP, NativePeer, TapEye, ethernet, frame_problem, inside,
                         ip_packet, partial_segment, skip_without_programs)

TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
V4 = (PEER_IP, HOST_IP)
V6 = ("fd77::9", "fd77::1")
MARK = struct.pack("!H", 0x88B5)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def host():
    skip_without_programs()
    pair = Pair("native")
    try:
        program = pair.start_host()
        program.pair = pair
        with TapEye(pair.host_ns, HOST_TAP) as program.eye:
            yield program
    finally:
        problems = pair.close()
    assert not problems, "\n".join(problems)


def establish(host, **changes):
    peer = NativePeer.establish(host.pair.socket, **changes)
    wait_until(lambda: host.status()["session"]["id"] == peer.hello["session"], "it is up")
    host.eye.drain()
    return peer


@pytest.fixture(scope="module")
def peer(host):
    with establish(host) as established:
        assert established.agreed["features"] == FEATURES
        established.answers_pings = True
        yield established


def tcp(payload=4000, addresses=V4, tcp_options=b"", tags=(), **ip):
    segment = partial_segment(TCP, bytes(range(256)) * (payload // 256) + bytes(payload % 256),
                              *addresses, tcp_options=tcp_options)
    return ethernet(ip_packet(segment, TCP, *addresses, **ip), tags=tags)


def udp(payload=4000, addresses=V4, udp_length=None, tags=(), **ip):
    segment = partial_segment(UDP, bytes(payload), *addresses, udp_length=udp_length)
    return ethernet(ip_packet(segment, UDP, *addresses, **ip), tags=tags)


def header(flags=1, gso_type=1, gso_size=1400, csum_start=34, csum_offset=16):
    return {"flags": flags, "gso_type": gso_type, "gso_size": gso_size, "csum_start": csum_start,
            "csum_offset": csum_offset}


def v6(**changes):
    return header(**{"gso_type": 4, "csum_start": 54, **changes})


def uso(**changes):
    return header(**{"gso_type": 5, "csum_offset": 6, **changes})


def patched(frame, at, value):
    return frame[:at] + value + frame[at + len(value):]


BAD = {  # reason, offload header, frame
    "flag_4": ("flags", header(flags=4), tcp()),
    "flag_1_and_4": ("flags", header(flags=5), tcp()),
    "flag_0x80": ("flags", header(flags=0x81), tcp()),
    "gso_without_checksum": ("flags", header(flags=0), tcp()),
    "gso_with_data_valid_only": ("flags", header(flags=2), tcp()),
    "type_2": ("type", header(gso_type=2), tcp()),
    "type_ufo": ("type", header(gso_type=3), udp()),
    "type_6": ("type", header(gso_type=6), tcp()),
    "type_ecn": ("type", header(gso_type=0x81), tcp()),
    "type_tunnel": ("type", header(gso_type=0x20), tcp()),
    "type_0xff": ("type", header(gso_type=0xFF), tcp()),
    "tag_cut": ("ethernet", header(), bytes(12) + b"\x81\0" + b"\0\1"),
    "two_tags": ("vlan_depth", header(csum_start=42), tcp(tags=(0x88A8, 0x8100))),
    "three_tags": ("vlan_depth", header(csum_start=46), tcp(tags=(0x8100,) * 3)),
    "arp": ("ethertype", header(gso_type=0), ethernet(bytes(28), ethertype=0x0806)),
    "tcp4_on_ipv6": ("ethertype", header(csum_start=54), tcp(addresses=V6)),
    "tcp6_on_ipv4": ("ethertype", v6(csum_start=34), tcp()),
    "header_alone": ("ip_header", header(), tcp()[:14]),
    "ipv4_cut": ("ip_header", header(), tcp()[:33]),
    "ipv4_version": ("ip_header", header(), patched(tcp(), 14, b"\x55")),
    "ipv4_header_of_16": ("ip_header", header(), patched(tcp(), 14, b"\x44")),
    "ipv4_header_longer_than_frame": ("ip_header", header(), patched(tcp()[:40], 14, b"\x4f")),
    "ipv6_cut": ("ip_header", v6(), tcp(addresses=V6)[:53]),
    "ipv6_version": ("ip_header", v6(), patched(tcp(addresses=V6), 14, b"\x40")),
    "padding": ("ip_length", header(), tcp() + b"\0"),
    "ipv4_length_of_0": ("ip_length", header(), patched(tcp(), 16, b"\0\0")),
    "ipv4_length_too_long": ("ip_length", header(), patched(tcp(), 16, b"\xff\xff")),
    "ipv6_padding": ("ip_length", v6(), tcp(addresses=V6) + bytes(4)),
    "ipv6_jumbogram": ("ip_length", v6(), patched(tcp(addresses=V6), 18, b"\0\0")),
    "first_fragment": ("fragment", header(), tcp(fragment=0x2000)),
    "last_fragment": ("fragment", header(), tcp(fragment=1)),
    "ipv6_fragment": ("fragment", v6(csum_start=62),
                      tcp(addresses=V6, next_header=44, extensions=bytes([6]) + bytes(7))),
    "hop_by_hop": ("extension_header", v6(csum_start=62),
                   tcp(addresses=V6, next_header=0, extensions=bytes([6]) + bytes(7))),
    "routing": ("extension_header", v6(csum_start=62),
                tcp(addresses=V6, next_header=43, extensions=bytes([6]) + bytes(7))),
    "destination_options": ("extension_header", v6(csum_start=62),
                            tcp(addresses=V6, next_header=60, extensions=bytes([6]) + bytes(7))),
    "icmp": ("protocol", header(gso_type=0), patched(tcp(), 23, b"\1")),
    "sctp": ("protocol", header(gso_type=0), patched(tcp(), 23, b"\x84")),
    "gre": ("protocol", header(), patched(tcp(), 23, b"\x2f")),
    "tcp4_on_udp": ("protocol", header(csum_offset=6), udp()),
    "uso_on_tcp": ("protocol", uso(csum_offset=16), tcp()),
    "tcp_header_of_16": ("transport_header", header(), patched(tcp(), 46, b"\x40")),
    "tcp_header_longer_than_packet": ("transport_header", header(),
                                      patched(tcp(payload=0), 46, b"\xf0")),
    "udp_length_too_long": ("transport_header", uso(), udp(udp_length=4009)),
    "udp_length_of_one_datagram": ("transport_header", uso(), udp(udp_length=1408)),
    "udp_length_of_0": ("transport_header", uso(), udp(udp_length=0)),
    "start_one_early": ("checksum_place", header(csum_start=33), tcp()),
    "start_one_late": ("checksum_place", header(csum_start=35), tcp()),
    "start_0": ("checksum_place", header(csum_start=0), tcp()),
    "start_0xffff": ("checksum_place", header(csum_start=0xFFFF), tcp()),
    "offset_of_udp": ("checksum_place", header(csum_offset=6), tcp()),
    "offset_0xffff": ("checksum_place", header(csum_offset=0xFFFF), tcp()),
    "start_without_the_tag": ("checksum_place", header(), tcp(tags=(0x8100,))),
    "size_0": ("gso_size", header(gso_size=0), tcp()),
    "size_1": ("gso_size", header(gso_size=1), tcp()),
    "size_511": ("gso_size", header(gso_size=511), tcp()),
    "size_above_the_mtu": ("gso_size", header(gso_size=1461), tcp()),
    "size_above_the_mtu_with_options": ("gso_size", header(gso_size=1449),
                                        tcp(tcp_options=b"\1" * 12)),
    "size_above_the_mtu_ipv6": ("gso_size", v6(gso_size=1441), tcp(addresses=V6)),
    "size_above_the_mtu_udp": ("gso_size", uso(gso_size=1473), udp()),
    "size_0xffff": ("gso_size", header(gso_size=0xFFFF), tcp()),
    "no_payload": ("segments", header(), tcp(payload=0)),
}


def send_mark(peer):
    """A frame that is known again; what it carries is returned. What was sent before it is through
    the helper by then: order is kept within a flow, and this is another one."""
    assert peer.proves_alive()
    text = struct.pack("!Q", next(_numbers)) + bytes(40)
    peer.send_frame(b"\xff" * 6 + PEER_MAC + MARK + text)
    return text


def arrivals_before(host, mark):
    """What arrived from the peer's MAC before the marked frame."""
    seen = []
    for vnet, frame in host.eye.arrivals():
        if frame[6:12] != PEER_MAC:
            continue
        if frame[12:14] == MARK and frame[14:] == mark:
            return seen
        seen.append((vnet, frame))
    raise AssertionError("the marked frame did not arrive")


def drops(host):
    return {reason: count for reason, count in host.status()["dropped"].items() if count}


def check_dropped(host, peer, reason, offload, frame):
    before = drops(host)
    peer.send_super_frame(offload, frame)
    seen = arrivals_before(host, send_mark(peer))
    assert not seen, f"written to the TAP: {seen[0]}"
    assert drops(host) == {**before, reason: before.get(reason, 0) + 1}
    status = host.status()["session"]
    assert status["state"] == "up" and status["id"] == peer.hello["session"]


@pytest.mark.parametrize("name", BAD)
def test_bad_super_frame_is_dropped_under_its_reason(host, peer, name):
    reason, offload, frame = BAD[name]
    with pytest.raises(wire.WireError) as raised:  # the second implementation says the same
        wire.rebuild_offload(offload, frame, 1500, offload=True, uso=True)
    assert raised.value.args[0] == f"offload_{reason}"
    check_dropped(host, peer, f"offload_{reason}", offload, frame)


def test_every_reason_is_tried(host):
    known = {name for name in host.status()["dropped"] if name.startswith("offload_")}
    tried = {f"offload_{reason}" for reason, *_ in BAD.values()}
    assert known == tried | {"offload_not_negotiated"}


@pytest.mark.parametrize("name", [name for name in BAD if not name.startswith("two_tags")])
def test_the_same_frame_without_a_request_passes(host, peer, name):
    """Rule 1: with flags and type 0 a frame passes as it is, whatever it and the header hold."""
    _, offload, frame = BAD[name]
    if frame[12:14] in (b"\x81\0", b"\x88\xa8"):
        pytest.skip("the kernel takes tags off before a packet socket sees the frame")
    before = drops(host)
    peer.send_super_frame({**offload, "flags": 0, "gso_type": 0}, frame)
    sent = frame[:6] + PEER_MAC + frame[12:]
    peer.send_super_frame({**offload, "flags": 2, "gso_type": 0}, sent)
    seen = arrivals_before(host, send_mark(peer))
    assert [got for _, got in seen if got[12:] == frame[12:]], "it did not arrive"
    assert all(vnet == dict.fromkeys(vnet, 0) for vnet, _ in seen), seen[0][0]
    assert drops(host) == before


GOOD = {  # offload header, frame, how it arrives: gso_type, gso_size
    "tcp4": (header(), tcp(), 1, 1400),
    "tcp4_data_valid_too": (header(flags=3), tcp(), 1, 1400),
    "tcp4_ip_options": (header(csum_start=38), tcp(options=b"\1\1\1\0"), 1, 1400),
    "tcp4_tcp_options": (header(gso_size=1448), tcp(tcp_options=b"\1" * 12), 1, 1448),
    "tcp4_smallest_size": (header(gso_size=512), tcp(), 1, 512),
    "tcp4_largest_size": (header(gso_size=1460), tcp(), 1, 1460),
    "tcp4_128_segments": (header(gso_size=512), tcp(payload=65495), 1, 512),
    "tcp4_two_segments": (header(), tcp(payload=1401), 1, 1400),
    "tcp4_one_segment": (header(), tcp(payload=1400), 0, 0),
    "tcp4_one_byte": (header(), tcp(payload=1), 0, 0),
    "tcp4_tagged": (header(csum_start=38), tcp(tags=(0x8100,)), 1, 1400),
    "tcp6": (v6(), tcp(addresses=V6), 4, 1400),
    "tcp6_largest_size": (v6(gso_size=1440), tcp(addresses=V6), 4, 1440),
    "udp4": (uso(), udp(), 5, 1400),
    "udp6": (uso(csum_start=54), udp(addresses=V6), 5, 1400),
    "udp4_largest_size": (uso(gso_size=1472), udp(payload=44 * 1472), 5, 1472),
    "checksum_tcp4": (header(gso_type=0, gso_size=0), tcp(payload=100), 0, 0),
    "checksum_tcp6": (v6(gso_type=0, gso_size=0), tcp(payload=100, addresses=V6), 0, 0),
    "checksum_udp4": (uso(gso_type=0, gso_size=0), udp(payload=100), 0, 0),
    "checksum_size_means_nothing": (header(gso_type=0, gso_size=7), tcp(payload=100), 0, 0),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_super_frame_arrives_whole(host, peer, name):
    offload, frame, gso_type, gso_size = GOOD[name]
    rebuilt = wire.rebuild_offload(offload, frame, 1500, offload=True, uso=True)
    assert (rebuilt["gso_type"], rebuilt["gso_size"]) == (gso_type, gso_size)
    before = drops(host)
    peer.send_super_frame(offload, frame)
    seen = arrivals_before(host, send_mark(peer))
    assert len(seen) == 1, f"{len(seen)} frames, dropped: {drops(host)}"
    vnet, got = seen[0]
    tag = 4 if frame[12:14] == b"\x81\0" else 0
    assert got == frame[:12] + frame[12 + tag:]
    assert (vnet["gso_type"], vnet["gso_size"]) == (gso_type, gso_size)
    assert vnet["flags"] == 1
    assert (vnet["csum_start"] + tag, vnet["csum_offset"]) == \
        (offload["csum_start"], offload["csum_offset"])
    assert drops(host) == before


def test_the_agreed_mtu_bounds_the_size(host):
    with establish(host, mtu=1000) as low:
        assert low.agreed["mtu"] == 1000
        check_dropped(host, low, "offload_gso_size", header(gso_size=961), tcp())
        low.send_super_frame(header(gso_size=960), tcp())
        (vnet, _), = arrivals_before(host, send_mark(low))
        assert vnet["gso_size"] == 960


def test_a_larger_mtu_of_the_peer_changes_nothing(host):
    with establish(host, mtu=9000) as high:
        check_dropped(host, high, "offload_gso_size", header(gso_size=1461), tcp())


@pytest.mark.parametrize("features", [[], ["uso"], ["keepalive"]], ids=str)
def test_super_frame_without_offload(host, features):
    with establish(host, features=features) as other:
        assert "offload" not in other.agreed["features"]
        for offload, frame, *_ in (GOOD["tcp4"], GOOD["tcp6"], GOOD["udp4"], GOOD["checksum_udp4"]):
            check_dropped(host, other, "offload_not_negotiated", offload, frame)
        other.send_super_frame(dict.fromkeys(wire.OFFLOAD, 0), tcp(payload=100))
        (vnet, got), = arrivals_before(host, send_mark(other))
        assert got == tcp(payload=100) and vnet["gso_type"] == 0


def test_uso_without_its_feature(host):
    with establish(host, features=["offload"]) as other:
        check_dropped(host, other, "offload_not_negotiated", *GOOD["udp4"][:2])
        other.send_super_frame(*GOOD["tcp4"][:2])
        assert len(arrivals_before(host, send_mark(other))) == 1


def test_frames_of_both_types_keep_their_order(host):
    """Also with a peer without offload, whose frames of type 0 the helper may merge."""
    zero = dict.fromkeys(wire.OFFLOAD, 0)
    for features in (FEATURES, []):
        with establish(host, features=features) as other:
            marks = []
            data = b""
            for number in range(40):
                marks.append(struct.pack("!I", number))
                frame = udp_datagram(marks[-1])
                data += (wire.encode_super_frame(zero, frame) if number % 3 == 2
                         else wire.encode_record(0, frame))
            other.send(data)
            got = []
            for _, frame in arrivals_before(host, send_mark(other)):
                text = frame[42:]
                got += [text[at:at + 4] for at in range(0, len(text), 512)]
            assert got == marks, features


def udp_datagram(mark):
    """A complete datagram of 512 bytes of one flow, such as may be merged."""
    from causeway_testlib.wire import checksum
    segment = partial_segment(UDP, mark + bytes(508), *V4)
    value = checksum(segment) or 0xFFFF  # the pseudo-header's sum is in its checksum field
    return ethernet(ip_packet(segment[:6] + struct.pack("!H", value) + segment[8:], UDP, *V4))


# --- What the helper's own kernel hands out --------------------------------------------------


@pytest.mark.parametrize("size", [1, 100, 488, 511, 512, 1000, 1472])
@pytest.mark.parametrize("features", [FEATURES, []], ids=str)
def test_udp_segment_of_any_size_reaches_the_peer(host, features, size):
    """A sender holds its own super-frames against the rules; what they exclude goes in pieces."""
    host.pair.host_ns.run("ip", "neigh", "replace", PEER_IP, "lladdr", PEER_MAC.hex(":"), "dev",
                          HOST_TAP)
    count = min(60, 60_000 // size)
    text = bytes(number % 251 for number in range(size * count - size // 2))
    with establish(host, features=features) as other, \
            host.pair.host_ns.socket(socket.SOCK_DGRAM) as sender:
        sender.setsockopt(UDP, 103, size)  # UDP_SEGMENT, linux/udp.h
        sender.sendto(text, (PEER_IP, 7))
        got = b""
        for kind, payload in other.records():
            offload = dict.fromkeys(wire.OFFLOAD, 0)
            if kind == 1:
                offload, payload = dict(zip(wire.OFFLOAD, struct.unpack_from("!BBHHH", payload))), \
                    payload[8:]
            if kind == 2 or payload[12:14] != b"\x08\0" or payload[23] != UDP:
                continue
            rebuilt = wire.rebuild_offload(offload, payload, 1500, "offload" in features,
                                           "uso" in features)
            if rebuilt["flags"] == 0:
                assert frame_problem(payload, 1500) is None
                assert len(payload) <= 42 + size
            else:
                assert rebuilt["gso_type"] in (0, 5)
                assert rebuilt["gso_size"] in (0, size)
            got += payload[42:]
            if len(got) >= len(text):
                break
        assert got == text


# --- What the TAP refuses --------------------------------------------------------------------


def test_link_down_is_counted(host):
    with establish(host) as other:
        before = drops(host)
        host.pair.host_ns.run("ip", "link", "set", HOST_TAP, "down")
        try:
            for _ in range(3):
                send_mark(other)
            assert other.proves_alive(2)
            assert drops(host) == {**before,
                                   "tap_write_down": before.get("tap_write_down", 0) + 3}
        finally:
            host.pair.host_ns.run("ip", "link", "set", HOST_TAP, "up")
        host.eye.drain()
        arrivals_before(host, send_mark(other))
        assert host.status()["session"]["id"] == other.hello["session"]


def test_a_write_that_the_kernel_refuses_is_counted(make_pair):
    """The kernel is made to want a vnet header longer than header and frame together are."""
    tunsetiff, tunsetvnethdrsz = 0x400454CA, 0x400454D8
    tap_no_pi_vnet_multi = 0x0002 | 0x1000 | 0x4000 | 0x0100
    pair = make_pair("native")
    host = pair.start_host("--lanes", "2")
    with NativePeer.establish(pair.socket) as peer:
        assert peer.proves_alive()
        with inside(pair.host_ns):
            queue = os.open("/dev/net/tun", os.O_RDWR)
        try:
            try:
                fcntl.ioctl(queue, tunsetiff, struct.pack("16sH22x", HOST_TAP.encode(),
                                                          tap_no_pi_vnet_multi))
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # A program that uses IFF_BACKPRESSURE asks the same of everyone.
                pytest.skip("the TAP takes no further queue from a test")
            fcntl.ioctl(queue, tunsetvnethdrsz, struct.pack("i", 4096))
            try:
                for _ in range(3):
                    send_mark(peer)
                assert peer.proves_alive()
            finally:
                fcntl.ioctl(queue, tunsetvnethdrsz, struct.pack("i", 10))
        finally:
            os.close(queue)
        assert drops(host).get("tap_write_invalid") == 3
        assert host.status()["session"]["state"] == "up"
        assert peer.ping(HOST_IP)
