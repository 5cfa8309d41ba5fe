# SPDX-License-Identifier: Apache-2.0
"""Everything a connecting side can do wrong before there is an agreement, against causeway-host.

One helper with one live session serves the whole file: each bad connection is refused, counted
under its own reason and no other, and the live session goes on. The malformed hellos are those of
proto/vectors/hello.json, so each error in PROTOCOL.md's tables is here in each of its forms.
"""

import json
import os
import pathlib
import socket
import struct
import time

import pytest

import wire_codec as wire
from causeway_testlib.pair import HOST_IP, Pair
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.waiting import wait_until
from causeway_testlib.wire import frame_of, record
from native_peer import NativePeer, hello_of, new_session, skip_without_programs

VECTORS = json.loads((pathlib.Path(__file__).resolve().parents[2] / "proto" / "vectors"
                      / "hello.json").read_text())["cases"]
GOOD = wire.encode_preface(hello_of(session="00112233445566778899aabbccddeeff"))
MIB = 1 << 20


class LiveHost:
    """A helper with an established session that must not notice any of the others."""

    def __init__(self, pair, *more):
        self.pair = pair
        self.host = pair.start_host(*more)
        self.live = NativePeer.establish(pair.socket)
        self.wait_settled()

    def wait_settled(self):
        wait_until(lambda: self.host.status()["session"]["id"] == self.live.hello["session"],
                   "the live session is up")

    def connect(self):
        return NativePeer.connect(self.pair.socket)

    def ended(self):
        return {reason: count for reason, count in self.host.status()["ended"].items() if count}

    def check_live(self):
        assert self.live.proves_alive()
        assert self.live.ping(HOST_IP)
        session = self.host.status()["session"]
        assert session["id"] == self.live.hello["session"]
        assert (session["state"], session["connections_total"], session["replaced_total"]) == \
            ("up", 1, 0)

    def expect(self, before, reason, count=1):
        """The counters of ended connections went up by this much and nothing else did."""
        def wanted():
            return {**before, reason: before.get(reason, 0) + count}

        wait_until(lambda: sum(self.ended().values()) >= sum(wanted().values()),
                   f"ended.{reason} goes up by {count}")
        assert self.ended() == wanted()
        self.check_live()


@pytest.fixture(scope="module", params=["native", "auto"])
def live_host(request):
    skip_without_programs()
    pair = Pair(request.param)
    try:
        host = LiveHost(pair)
        yield host
        host.live.stream.close()
    finally:
        problems = pair.close()
    assert not problems, "\n".join(problems)


def provoke(host, data, close=False):
    """Sends; returns the answer to it, or None. The helper must end the connection."""
    with host.connect() as peer:
        peer.send(data)
        if close:
            peer.stream.shutdown(socket.SHUT_WR)
        answer = peer.read_preface()
        assert peer.wait_end(), "the helper did not end the connection"
    return answer


def not_native(host):
    """The reason under which a stream that begins neither way is counted."""
    return "handshake_refused" if host.pair.wire == "native" else "record_too_long"


def errors_but(*names):
    return [pytest.param(case, id=case["name"]) for case in VECTORS
            if case.get("error", "") not in ("", *names)]


def errors_of(name):
    return [pytest.param(case, id=case["name"]) for case in VECTORS if case.get("error") == name]


@pytest.mark.parametrize("case", errors_but("bad_magic", "bad_length", "bad_version"))
def test_malformed_hello_is_refused(live_host, case):
    before = live_host.ended()
    answer = provoke(live_host, bytes.fromhex(case["preface"]))
    assert answer and answer["refuse"] == "malformed"
    live_host.expect(before, "handshake_malformed")


@pytest.mark.parametrize("case", errors_of("bad_version"))
def test_other_preface_version_is_refused(live_host, case):
    before = live_host.ended()
    answer = provoke(live_host, bytes.fromhex(case["preface"]))
    assert answer and answer["refuse"] == "version" and answer["versions"] == [1, 1]
    live_host.expect(before, "handshake_malformed")


@pytest.mark.parametrize("case", errors_of("bad_length"))
def test_bad_length_is_noticed_at_once_and_not_answered(live_host, case):
    before = live_host.ended()
    answer = provoke(live_host, bytes.fromhex(case["preface"])[:8])
    live_host.expect(before, "handshake_malformed")
    assert answer is None, "a preface with a wrong length is not answered"


@pytest.mark.parametrize("at", range(4))
def test_bad_magic(live_host, at):
    before = live_host.ended()
    data = bytearray(GOOD)
    data[at] ^= 0x20
    assert provoke(live_host, bytes(data)) is None
    live_host.expect(before, not_native(live_host))


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("1603010200010001fc0303") + bytes(64),
    "ones": b"\xff" * 64,
    "ssh": b"SSH-2.0-x\r\n",
    "long": b"\xa5" * 100_000,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(live_host, name):
    before = live_host.ended()
    assert provoke(live_host, GARBAGE[name]) is None
    live_host.expect(before, not_native(live_host))


PLAIN_LENGTHS = {"0": ("record_too_short", 0), "13": ("record_too_short", 13),
                 "65551": ("record_too_long", 65551), "0x00ffffff": ("record_too_long", 0xFFFFFF)}


@pytest.mark.parametrize("name", PLAIN_LENGTHS)
def test_plain_length_out_of_bounds(live_host, name):
    reason, length = PLAIN_LENGTHS[name]
    before = live_host.ended()
    assert provoke(live_host, struct.pack("!I", length)) is None
    live_host.expect(before, "handshake_refused" if live_host.pair.wire == "native" else reason)


def test_a_plain_peer_is_refused_by_native_only(make_pair):
    pair = make_pair("native")
    host = LiveHost(pair)
    before = host.ended()
    assert provoke(host, record(frame_of(60))) is None
    host.expect(before, "handshake_refused")


@pytest.mark.parametrize("changes,reason", [
    ({"versions": [2, 9]}, "version"),
    ({"versions": [65535, 65535]}, "version"),
    ({"lanes": 2, "lane": 1}, "lanes"),
    ({"lanes": 16, "lane": 15}, "lanes"),
    ({"refuse": "busy"}, None),
], ids=str)
def test_no_agreement(live_host, changes, reason):
    """A hello without fault that does not fit; `refuse` is no word for a connecting side."""
    before = live_host.ended()
    answer = provoke(live_host, wire.encode_preface(hello_of(**changes)))
    if reason:
        assert answer and answer["refuse"] == reason
    live_host.expect(before, "handshake_refused")


def test_cut_at_every_byte(live_host):
    """The peer closes: before a record, inside the first four bytes, inside the preface."""
    before = live_host.ended()
    for size in range(len(GOOD)):
        with live_host.connect() as peer:
            peer.send(GOOD[:size])
            peer.stream.shutdown(socket.SHUT_WR)
            assert peer.wait_end(), f"{size} bytes"
    wanted = dict(before)
    for reason, count in (("peer_closed", 1), ("truncated", 3),
                          ("handshake_malformed", len(GOOD) - 4)):
        wanted[reason] = wanted.get(reason, 0) + count
    wait_until(lambda: sum(live_host.ended().values()) >= sum(wanted.values()), "all are counted")
    assert live_host.ended() == wanted
    live_host.check_live()


def test_silence_of_every_kind_times_out(live_host):
    """Peers that stop in the middle: the helper does not wait for ever, and answers the others."""
    before = live_host.ended()
    pieces = [GOOD[:size] for size in (4, 6, 8, 9, len(GOOD) // 2, len(GOOD) - 1)]
    if live_host.pair.wire == "native":  # auto takes an all too silent peer for a plain one
        pieces += [b"", b"C", b"CWA"]
    begin = time.monotonic()
    peers = []
    try:
        for piece in pieces:
            peers.append(live_host.connect())
            peers[-1].send(piece)
        live_host.check_live()
        for peer in peers:
            assert peer.wait_end(8 * SLOW), "the helper still waits"
        assert 4.5 < time.monotonic() - begin < 7 * SLOW
    finally:
        for peer in peers:
            peer.stream.close()
    live_host.expect(before, "handshake_timeout", len(pieces))


@pytest.mark.parametrize("piece", [b"C", b"CW", b"CWA", b"\xff", b"\x16\x03"], ids=repr)
def test_half_a_word_is_not_a_plain_peer(make_pair, piece):
    """A first byte other than 0 is no plain length, whatever follows or does not follow it."""
    host = LiveHost(make_pair("auto"))
    with host.connect() as peer:
        peer.send(piece)
        # Detection gives up after a second; the live session must be there well after that.
        assert host.live.listen_for(2.0), "the live session was ended"
        host.check_live()


def test_a_silent_connection_does_not_end_a_live_session(make_pair):
    """It may be a plain peer, but it has not said so: no frame may go to it before four bytes of
    its own (PROTOCOL.md, "Which format a stream speaks"), so it takes nobody's place either."""
    host = LiveHost(make_pair("auto"))
    with host.connect() as peer:
        assert host.live.listen_for(2.0), "the live session was ended"
        host.check_live()
        peer.send(record(frame_of(60)))  # now it has
        assert host.live.wait_control("bye", 3 * SLOW)["reason"] == 2
        wait_until(lambda: host.host.status()["wire"] == "plain", "the plain peer has its place")


def test_a_byte_that_trickles_does_not_extend_the_time(live_host):
    before = live_host.ended()
    begin = time.monotonic()
    with live_host.connect() as peer:
        ended = False
        for byte in GOOD[:60]:
            peer.send(bytes([byte]))
            try:
                ended = not peer._fill(time.monotonic() + 0.15)
            except TimeoutError:
                continue
            if ended:
                break
        assert ended, "a hello that trickled for 9 s was waited for"
    assert time.monotonic() - begin < 7 * SLOW
    live_host.expect(before, "handshake_timeout")


def test_two_thousand_bad_connections(live_host):
    """Refused one after the other in flat memory."""
    kinds = [bytes.fromhex(case["preface"]) for case in VECTORS
             if case.get("error", "bad_magic") not in ("bad_magic",)]
    kinds += [GOOD[:30], b"", b"CW", *GARBAGE.values()]

    def storm(count):
        for number in range(count):
            with live_host.connect() as peer:
                peer.send(kinds[number % len(kinds)])
                peer.stream.shutdown(socket.SHUT_WR)
                assert peer.read_to_end()

    def resident():
        with open(f"/proc/{live_host.host.pid}/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = sum(live_host.ended().values())
    storm(200)  # the allocator's arenas find their size
    level = resident()
    storm(2000)
    wait_until(lambda: sum(live_host.ended().values()) == before + 2200, "each is counted")
    if not SANITIZED:
        assert resident() - level < MIB
    live_host.check_live()
    descriptors = os.listdir(f"/proc/{live_host.host.pid}/fd")
    assert len(descriptors) < 40, "descriptors pile up"


def test_more_than_32_at_once(make_pair):
    host = LiveHost(make_pair("native"))
    before = host.ended()
    waiting = [host.connect() for _ in range(32)]
    beyond = [host.connect() for _ in range(8)]
    try:
        for peer in beyond:
            assert peer.wait_end(2 * SLOW), "one too many is ended at once"
        host.expect(before, "too_many_handshakes", 8)
        for peer in waiting:
            peer.send(wire.encode_preface({"versions": [1, 1]}))
            assert peer.read_preface()["refuse"] == "malformed"
        wait_until(lambda: host.ended().get("handshake_malformed") == 32, "the places are free")
        host.check_live()
        with NativePeer.establish(host.pair.socket) as peer:
            assert peer.ping(HOST_IP)
    finally:
        for peer in waiting + beyond:
            peer.stream.close()


def test_hello_split_at_every_byte(make_pair):
    """The good ones: whole in one write, byte by byte, and with unknown fields."""
    pair = make_pair("auto")
    host = pair.start_host()
    for number, hello in enumerate([hello_of(), {"versions": [1, 1], "session": new_session()},
                                    hello_of(features=["x"] * 31 + ["keepalive"], tomorrow=[{}]),
                                    hello_of(versions=[1, 40000])]):
        with NativePeer.connect(pair.socket) as peer:
            for byte in wire.encode_preface(hello):
                peer.send(bytes([byte]))
            peer.answer = peer.read_preface()
            peer.agreed = wire.negotiate(wire.decode_hello(json.dumps(hello).encode()), peer.answer)
            assert peer.ping(HOST_IP)
            status = host.status()
            assert status["wire"] == "native"
            assert status["session"]["id"] == hello["session"]
            assert status["session"]["connections_total"] == number + 1
            assert status["session"]["features"] == peer.agreed["features"]


def test_agreement_is_the_lower_of_both(make_pair):
    pair = make_pair("native")
    host = pair.start_host("--mtu", "9000", "--max-frame", "9014")
    for changes in ({"mtu": 1400, "max_frame": 2000}, {"mtu": 9500, "max_frame": 60000},
                    {"mtu": 576, "max_frame": 590}, {"features": []},
                    {"features": ["uso"]}, {"features": ["offload"]}, {"lanes": 16}):
        with NativePeer.establish(pair.socket, **changes) as peer:
            wait_until(lambda: host.status()["session"]["id"] == peer.hello["session"], "it is up")
            session = host.status()["session"]
            assert (session["mtu"], session["max_frame"], session["features"]) == \
                (peer.agreed["mtu"], peer.agreed["max_frame"], peer.agreed["features"])
            assert peer.agreed["lanes"] == 1
            assert peer.answer["mtu"] == 9000 and peer.answer["max_frame"] == 9014
