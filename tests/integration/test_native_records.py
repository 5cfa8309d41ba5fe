# SPDX-License-Identifier: Apache-2.0
"""Records of an established native session, good and bad, against causeway-host."""

import os
import socket
import struct
import time

import pytest

import wire_codec as wire
from causeway_testlib.pair import HOST_IP, Pair
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.waiting import wait_until
from causeway_testlib.wire import frame_of
from native_peer import CONTROL, FRAME, SUPER_FRAME, NativePeer, skip_without_programs

MIB = 1 << 20
MAX = 3000  # max_frame of this file's peer: the bounds follow the agreement, not the default
ZERO = bytes(8)


@pytest.fixture(scope="module")
def host():
    """One helper for all; each test brings a session of its own."""
    skip_without_programs()
    pair = Pair("native")
    try:
        program = pair.start_host()
        program.pair = pair
        yield program
    finally:
        problems = pair.close()
    assert not problems, "\n".join(problems)


def ended(host):
    return {reason: count for reason, count in host.status()["ended"].items() if count}


def resident(host):
    with open(f"/proc/{host.pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def peer(host):
    """An established session with max_frame 3000."""
    wait_until(lambda: host.status()["session"]["state"] == "listening", "the last one is gone")
    host.before = ended(host)
    with NativePeer.establish(host.pair.socket, max_frame=MAX) as established:
        assert established.agreed["max_frame"] == MAX
        assert established.proves_alive()
        yield established


def check_ended(host, peer, reason):
    assert peer.read_to_end(3 * SLOW), "the helper did not end the stream"
    wanted = {**host.before, reason: host.before.get(reason, 0) + 1}
    wait_until(lambda: ended(host) != host.before, "an end is counted")
    assert ended(host) == wanted
    with NativePeer.establish(host.pair.socket) as another:
        assert another.ping(HOST_IP)


def header(kind, length):
    return struct.pack("!I", kind << 24 | length)


OUT_OF_BOUNDS = {
    "frame_0": (header(FRAME, 0), "record_too_short"),
    "frame_13": (header(FRAME, 13), "record_too_short"),
    "frame_max_and_1": (header(FRAME, MAX + 1), "record_too_long"),
    "frame_65551": (header(FRAME, 65551), "record_too_long"),
    "frame_24_bits": (header(FRAME, 0xFFFFFF), "record_too_long"),
    "super_frame_0": (header(SUPER_FRAME, 0), "record_too_short"),
    "super_frame_8": (header(SUPER_FRAME, 8), "record_too_short"),
    "super_frame_21": (header(SUPER_FRAME, 21), "record_too_short"),
    "super_frame_max_and_1": (header(SUPER_FRAME, MAX + 9), "record_too_long"),
    "super_frame_24_bits": (header(SUPER_FRAME, 0xFFFFFF), "record_too_long"),
    "control_0": (header(CONTROL, 0), "record_too_short"),
    "control_4097": (header(CONTROL, 4097), "record_too_long"),
    "control_24_bits": (header(CONTROL, 0xFFFFFF), "record_too_long"),
    "good_then_bad": (wire.encode_record(FRAME, frame_of(60)) * 3 + header(FRAME, 1),
                      "record_too_short"),
    "second_preface": (wire.encode_preface({"versions": [1, 1]}), "unknown_record_type"),
}


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_header_out_of_bounds_ends_the_stream(host, peer, name):
    data, reason = OUT_OF_BOUNDS[name]
    peer.send(data)  # and none of the payload: the header is judged alone
    check_ended(host, peer, reason)


@pytest.mark.parametrize("length", [0, 1, 14, 0xFFFFFF])
@pytest.mark.parametrize("kind", [3, 4, 0x20, 0x7E, 0x7F], ids=hex)
def test_unknown_type_ends_the_stream(host, peer, kind, length):
    peer.send(header(kind, length))
    check_ended(host, peer, "unknown_record_type")


GOOD = {
    "frame_14": wire.encode_record(FRAME, frame_of(14)),
    "frame_max": wire.encode_record(FRAME, frame_of(MAX)),
    "super_frame_22": wire.encode_record(SUPER_FRAME, ZERO + frame_of(14)),
    "super_frame_max": wire.encode_record(SUPER_FRAME, ZERO + frame_of(MAX)),
}


@pytest.mark.parametrize("name", GOOD)
def test_the_last_good_length(host, peer, name):
    before = host.counter("to_tap_frames")
    peer.send(GOOD[name])
    assert peer.proves_alive()
    assert host.counter("to_tap_frames") == before + 1
    assert ended(host) == host.before


def test_the_longest_frames_without_a_lower_agreement(host):
    with NativePeer.establish(host.pair.socket) as peer:
        before = host.counter("to_tap_frames")
        peer.send_record(FRAME, frame_of(65550))
        peer.send_record(SUPER_FRAME, ZERO + frame_of(65550))
        assert peer.proves_alive()
        assert host.counter("to_tap_frames") == before + 2


@pytest.mark.parametrize("kind", [0x80, 0x81, 0xC0, 0xFF], ids=hex)
@pytest.mark.parametrize("length", [0, 1, MAX + 9, 70_000, 0xFFFFFF])
def test_skippable_types_are_skipped(host, peer, kind, length):
    level = resident(host)
    peer.send(header(kind, length) + bytes(length))
    assert peer.proves_alive(length + 1, 10 * SLOW)
    assert ended(host) == host.before
    if not SANITIZED:
        assert resident(host) - level < MIB, "a skipped record takes memory"


def test_skipped_ones_between_others_byte_by_byte(host, peer):
    ping = wire.encode_record(CONTROL, wire.encode_control("ping", token=5))
    for byte in (header(0x80, 0) + header(0x9A, 3) + b"abc" + ping + header(0xFF, 1) + b"x"):
        peer.send(bytes([byte]))
    assert peer.wait_control("pong")["token"] == 5
    assert peer.proves_alive(6)


CUT = {
    "header_1": b"\0", "header_3": b"\0\0\0", "after_the_header": header(FRAME, 60),
    "in_the_frame": header(FRAME, 60) + bytes(59),
    "in_the_offload_header": header(SUPER_FRAME, 60) + bytes(7),
    "in_the_super_frame": header(SUPER_FRAME, 60) + bytes(59),
    "in_a_control": header(CONTROL, 9) + b"\1" + bytes(7),
    "in_a_skipped_one": header(0x80, 1000) + bytes(999),
    "before_a_skipped_one": header(0x80, 0xFFFFFF),
}


@pytest.mark.parametrize("name", CUT)
def test_closed_inside_a_record(host, peer, name):
    peer.send(CUT[name])
    peer.stream.shutdown(socket.SHUT_WR)
    check_ended(host, peer, "truncated")


def test_closed_between_records(host, peer):
    peer.send_frame(frame_of(60))
    peer.send_record(0x80, b"xyz")
    peer.stream.shutdown(socket.SHUT_WR)
    check_ended(host, peer, "peer_closed")


MALFORMED = {f"{name}_of_{size}": bytes([kind]) + bytes(size)
             for kind, name in ((1, "ping"), (2, "pong")) for size in range(8)}
MALFORMED |= {"bye_without_reason": b"\3", "offer_without_text": b"\4"}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_control_ends_the_stream(host, peer, name):
    peer.send_record(CONTROL, MALFORMED[name])
    check_ended(host, peer, "control_malformed")


@pytest.mark.parametrize("size", [0, 1, 8, 4095])
@pytest.mark.parametrize("kind", [0, 5, 0x7F, 0xFF])
def test_unknown_control_is_counted_and_ignored(host, peer, kind, size):
    before = host.counter("unknown_controls")
    peer.send_record(CONTROL, bytes([kind]) + bytes(size))
    assert peer.proves_alive()
    assert host.counter("unknown_controls") == before + 1
    assert ended(host) == host.before


@pytest.mark.parametrize("offer", [b"{}", b"nope", b"[", b'{"mtu":1}', b" " * 4095])
def test_an_offer_from_the_connecting_side_is_ignored(host, peer, offer):
    peer.send_record(CONTROL, b"\4" + offer)
    assert peer.proves_alive()
    assert ended(host) == host.before


@pytest.mark.parametrize("tail", [0, 1, 4096 - 9])
@pytest.mark.parametrize("token", [0, 1, 0x8000000000000000, 2**64 - 1], ids=hex)
def test_ping_is_answered_with_its_token(host, peer, token, tail):
    peer.send_record(CONTROL, wire.encode_control("ping", token=token) + bytes(tail))
    assert peer.wait_control("pong")["token"] == token
    assert ended(host) == host.before


def test_a_pong_that_nobody_asked_for(host, peer):
    before = host.counter("pongs_received")
    peer.send_control("pong", token=99)
    assert peer.proves_alive()
    assert host.counter("pongs_received") == before + 1


def test_pings_without_end(host, peer):
    """Not answered one by one, if they come faster; the last one is, and nothing piles up."""
    level = resident(host)
    ping = wire.encode_record(CONTROL, wire.encode_control("ping", token=1))
    for _ in range(20):
        peer.send(ping * 10_000)
    assert peer.proves_alive(2, 20 * SLOW)
    if not SANITIZED:
        assert resident(host) - level < MIB


def test_pings_of_a_peer_that_does_not_read(host, peer):
    """The flow control of the stream holds it, and memory stays as it is."""
    level = resident(host)
    frame = peer.resolve(HOST_IP)
    assert frame
    ping = wire.encode_record(CONTROL, wire.encode_control("ping", token=1))
    peer.stream.settimeout(0.5)
    try:
        for _ in range(200):
            peer.stream.sendall(ping * 2_000)
    except TimeoutError:
        pass
    if not SANITIZED:
        assert resident(host) - level < MIB
    assert host.status()["session"]["state"] == "up"


@pytest.mark.parametrize("tail", [b"", b"tail", bytes(4094)], ids=len)
@pytest.mark.parametrize("reason,counted", [(0, "bye"), (1, "bye"), (3, "bye"), (4, "bye"),
                                            (255, "bye"), (2, "bye_replaced")])
def test_bye_ends_the_stream(host, peer, reason, counted, tail):
    peer.send_record(CONTROL, wire.encode_control("bye", reason=reason) + tail)
    check_ended(host, peer, counted)


def test_nothing_after_a_bye_is_taken(host, peer):
    before = host.counter("to_tap_frames")
    peer.send(wire.encode_record(CONTROL, wire.encode_control("bye", reason=1))
              + wire.encode_record(FRAME, frame_of(60)) * 5)
    assert peer.read_to_end(3 * SLOW)
    wait_until(lambda: host.status()["session"]["state"] == "listening", "it is over")
    assert host.counter("to_tap_frames") == before


def test_the_helper_says_bye_when_it_stops(make_pair):
    pair = make_pair("native")
    host = pair.start_host()
    with NativePeer.establish(pair.socket) as peer:
        assert peer.ping(HOST_IP)
        host.terminate()
        assert peer.wait_control("bye")["reason"] == 1
        assert peer.read_to_end(2 * SLOW)


# --- Keep-alive ------------------------------------------------------------------------------


@pytest.fixture
def short(make_pair):
    """A helper with a keep-alive of 200 ms."""
    pair = make_pair("native")
    host = pair.start_host("--keepalive", "200ms")
    host.pair = pair
    return host


def test_a_silent_peer_is_pinged_and_ended(short):
    with NativePeer.establish(short.pair.socket) as peer:
        peer.answers_pings = False
        begin = time.monotonic()
        peer.wait_control("ping", 2 * SLOW)
        assert 0.15 < time.monotonic() - begin < 0.5 * SLOW
        assert peer.wait_control("bye", 2 * SLOW)["reason"] == 3
        assert peer.read_to_end(1 * SLOW)
        assert 0.5 < time.monotonic() - begin < 1.0 * SLOW, "three intervals are 600 ms"
        assert not peer.controls, "one ping, one bye"
    wait_until(lambda: ended(short) == {"keepalive_timeout": 1}, "it is counted")


def test_a_peer_that_answers_stays(short):
    with NativePeer.establish(short.pair.socket) as peer:
        assert peer.listen_for(2.0), "a peer that answers was ended"
        assert len([each for each in peer.controls if each["kind"] == "ping"]) >= 5
        assert short.counter("pongs_received") >= 5
        assert peer.ping(HOST_IP)
    assert "keepalive_timeout" not in ended(short)


def test_any_record_is_a_sign_of_life(short):
    """Also a skipped one; and a peer that talks is not pinged."""
    with NativePeer.establish(short.pair.socket) as peer:
        peer.answers_pings = False
        for number in range(40):
            peer.send_record(0x80 if number % 2 else FRAME, frame_of(60))
            assert peer.listen_for(0.05)
        assert not peer.controls
        assert short.counter("pings_sent") == 0
    assert "keepalive_timeout" not in ended(short)


def test_a_peer_that_neither_reads_nor_speaks(short):
    """A full stream cannot hold the helper: it ends that one and takes the next."""
    with NativePeer.establish(short.pair.socket) as peer, \
            short.pair.host_ns.socket(socket.SOCK_DGRAM) as sender:
        mac = peer.resolve(HOST_IP)
        assert mac
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        wait_until(lambda: sender.sendto(bytes(1400), ("10.77.0.255", 9)) and
                   short.ended("keepalive_timeout") == 1, "the stalled stream is ended",
                   3 * SLOW, interval=0.0005)
    with NativePeer.establish(short.pair.socket) as another:
        assert another.ping(HOST_IP)


def test_without_the_feature_silence_is_no_fault(short):
    with NativePeer.establish(short.pair.socket, features=["offload"]) as peer:
        assert peer.listen_for(1.2), "ended without keepalive agreed"
        assert not peer.controls
        assert peer.ping(HOST_IP)


def test_a_plain_peer_knows_no_keep_alive(make_pair):
    from causeway_testlib.wire import RawPeer
    pair = make_pair("auto")
    pair.start_host("--keepalive", "100ms")
    with RawPeer.connect(pair.socket, "10.77.0.9") as peer:
        assert peer.ping(HOST_IP)
        assert not peer.wait_end(1.0)
        assert peer.ping(HOST_IP)
