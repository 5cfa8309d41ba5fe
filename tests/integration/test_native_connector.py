# SPDX-License-Identifier: Apache-2.0
"""causeway-guest against a listener that answers in every wrong way: refusal, fallback, retry.

With --wire auto a peer that does not speak the native wire gets a plain stream next; a peer that
speaks it and says no does not. Once the plain stream ends, the native wire is tried again.
"""

import contextlib
import time

import pytest

import wire_codec as wire
from causeway_testlib.pair import GUEST_IP
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.waiting import wait_until
from causeway_testlib.wire import RawPeer, frame_of, record
from native_peer import PEER_IP, NativeListener, hello_of, new_session

NOT_NATIVE = {
    "closes": b"",
    "http": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "plain_frame": record(frame_of(60)),
    "half_a_magic": b"CW",
    "wrong_magic": b"CWAX\0\1\0\2{}",
    "ones": b"\xff" * 64,
}


@pytest.fixture
def listening(make_pair):
    """start(wire) gives the framer with a listener for it that is there before it."""
    with contextlib.ExitStack() as stack:
        def start(choice, *more):
            pair = make_pair(choice)
            listener = stack.enter_context(NativeListener(pair.socket))
            return pair.start_guest(*more), listener

        yield start


def check_native(guest, listener, timeout=10.0):
    """The next stream begins with a good preface; answered, it carries frames."""
    with listener.accept_and_agree(timeout) as peer:
        assert peer.ping(GUEST_IP)
        assert guest.status()["wire"] == "native"
        return peer.hello


def check_plain(guest, listener):
    """The next stream is a plain one; returns with it closed again."""
    with RawPeer(listener.accept_stream(), PEER_IP) as peer:
        assert peer.ping(GUEST_IP)
        status = guest.status()
        assert (status["wire"], status["session"]["state"]) == ("plain", "up")


def only(guest, **counts):
    """Nothing else ended, but for the last good stream, which may have been closed by now."""
    ended = {reason: count for reason, count in guest.status()["ended"].items()
             if count and reason not in ("peer_closed", "truncated", "stream_reset",
                                         "stream_broken")}
    assert ended == counts


def test_the_hello_of_the_framer(listening):
    guest, listener = listening("native", "--mtu", "9000", "--max-frame", "20000")
    with listener.accept() as peer:
        hello = peer.hello
    assert hello["versions"] == [1, 1] and (hello["lane"], hello["lanes"]) == (0, 1)
    assert (hello["mtu"], hello["max_frame"]) == (9000, 20000)
    assert "offload" in hello["features"] and "keepalive" in hello["features"]
    assert "offer" not in hello and "refuse" not in hello
    # The same run keeps its session over all streams, so the listener knows it again.
    again = check_native(guest, listener)
    assert again["session"] == hello["session"]


@pytest.mark.parametrize("name", NOT_NATIVE)
def test_fallback_to_plain_and_back(listening, name):
    guest, listener = listening("auto")
    with listener.accept() as peer:
        assert peer.hello["session"]
        peer.send(NOT_NATIVE[name])
    check_plain(guest, listener)
    wait_until(lambda: guest.ended("handshake_fallback") == 1, "the fallback is counted")
    check_native(guest, listener)


def test_silence_falls_back_within_two_seconds(listening):
    guest, listener = listening("auto")
    begin = time.monotonic()
    with listener.accept() as peer:
        assert peer.wait_end(4 * SLOW), "the framer still waits for an answer"
        assert 1.5 < time.monotonic() - begin < 3 * SLOW
        check_plain(guest, listener)
    check_native(guest, listener)


@pytest.mark.parametrize("name", NOT_NATIVE)
def test_no_fallback_with_native_only(listening, name):
    guest, listener = listening("native")
    for _ in range(2):
        with listener.accept() as peer:
            assert peer.hello["session"]
            peer.send(NOT_NATIVE[name])
    check_native(guest, listener)
    assert guest.status()["session"]["connections_total"] == 1


@pytest.mark.parametrize("choice", ["auto", "native"])
@pytest.mark.parametrize("reason", [*wire.REASONS, "a_reason_from_the-future"])
def test_a_refusal_is_no_reason_for_plain(listening, choice, reason):
    guest, listener = listening(choice)
    for _ in range(2):
        with listener.accept() as peer:
            peer.send(wire.encode_preface({"versions": [1, 1], "refuse": reason}))
            assert peer.read_to_end(), "a refused framer closes"
    check_native(guest, listener)
    only(guest, handshake_refused=2)


BAD_ANSWERS = {  # changes of a good answer, reason
    "another_session": ({"session": "00112233445566778899aabbccddeeff"}, "handshake_refused"),
    "another_lane": ({"lane": 1, "lanes": 2}, "handshake_refused"),
    "no_common_version": ({"versions": [2, 3]}, "handshake_refused"),
    "no_session": ({"session": None}, "handshake_malformed"),
    "mtu_0": ({"mtu": 0}, "handshake_malformed"),
    "features_a_text": ({"features": "offload"}, "handshake_malformed"),
    "bad_offer": ({"offer": {"address4": "10.0.0.1"}}, "handshake_malformed"),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_wrong_answer(listening, name):
    changes, reason = BAD_ANSWERS[name]
    guest, listener = listening("auto")
    with listener.accept() as peer:
        answer = hello_of(**{"session": peer.hello["session"], **changes})
        peer.send(wire.encode_preface(answer))
        assert peer.read_preface() is None, "the connecting side refuses by closing"
    check_native(guest, listener)
    only(guest, **{reason: 1})


RAW_ANSWERS = {
    "no_json": b"CWAY\0\1\0\5nope!",
    "length_0": b"CWAY\0\1\0\0",
    "length_4097": b"CWAY\0\1\x10\1",
    "preface_version_2": b"CWAY\0\2\0\2{}",
    "duplicate_key": b'CWAY\0\1\0\x0d{"a":1,"a":2}',
    "too_deep": b"CWAY\0\1\0\x64" + b'{"a":' * 10 + b"1" + b"}" * 10 + b" " * 39,
}


@pytest.mark.parametrize("name", RAW_ANSWERS)
def test_malformed_answer(listening, name):
    guest, listener = listening("auto")
    with listener.accept() as peer:
        peer.send(RAW_ANSWERS[name])
        assert peer.read_to_end()
    check_native(guest, listener)
    only(guest, handshake_malformed=1)


def test_an_answer_cut_short(listening):
    """The magic was there, so the peer speaks native: no fallback."""
    guest, listener = listening("auto")
    with listener.accept() as peer:
        peer.send(wire.encode_preface(hello_of(session=peer.hello["session"]))[:-1])
    check_native(guest, listener)
    only(guest, handshake_malformed=1)


def test_half_an_answer_and_silence(listening):
    guest, listener = listening("auto")
    begin = time.monotonic()
    with listener.accept() as peer:
        peer.send(wire.encode_preface(hello_of(session=peer.hello["session"]))[:20])
        assert peer.read_to_end(8 * SLOW)
        assert 4 < time.monotonic() - begin < 7 * SLOW
        check_native(guest, listener)
    only(guest, handshake_timeout=1)


def test_features_that_were_not_offered_are_not_used(listening):
    """A listener without features: frames come as type 0, complete, and no keep-alive."""
    guest, listener = listening("native", "--keepalive", "100ms")
    with listener.accept_and_agree(features=[]) as peer:
        assert peer.ping(GUEST_IP)
        kinds = set()
        with contextlib.suppress(TimeoutError):
            for kind, _ in peer.records(1.0):
                kinds.add(kind)
        assert kinds <= {0} and not peer.controls
        assert guest.status()["session"]["features"] == []
        assert guest.status()["session"]["state"] == "up"


def test_records_in_the_same_write_as_the_answer(make_pair):
    """They are not lost, and a ping among them is answered although nothing else moves."""
    pair = make_pair("native")
    # Without IPv6 the TAP is silent: nothing but the ping gives the framer something to do.
    pair.guest_ns.run("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
    with NativeListener(pair.socket) as listener:
        guest = pair.start_guest()
        after = (wire.encode_record(0, frame_of(60)) * 3
                 + wire.encode_record(2, wire.encode_control("ping", token=77)))
        with listener.accept_and_agree(after=after) as peer:
            assert peer.wait_control("pong", 2.0 * SLOW)["token"] == 77
            assert guest.counter("from_wire_records") == 4
            assert peer.ping(GUEST_IP)


def test_more_lanes_than_asked_for_are_not_opened(listening):
    guest, listener = listening("native", "--lanes", "2")
    with listener.accept_and_agree(lanes=1) as first:
        assert first.hello["lanes"] == 2
        assert first.ping(GUEST_IP)
        with pytest.raises(TimeoutError):
            listener.accept_stream(0.5)
        assert len([lane for lane in guest.status()["session"]["lanes"]
                    if lane["state"] == "up"]) == 1
    with listener.accept_and_agree(lanes=16) as first, listener.accept_and_agree() as second:
        assert [first.hello["lane"], second.hello["lane"]] == [0, 1]
        assert first.hello["session"] == second.hello["session"]
        with pytest.raises(TimeoutError):
            listener.accept_stream(0.5)


@pytest.mark.parametrize("reason,counted", [(0, "bye"), (1, "bye"), (3, "bye"), (4, "bye"),
                                            (200, "bye"), (2, "bye_replaced")])
def test_bye_from_the_listener(listening, reason, counted):
    guest, listener = listening("auto")
    with listener.accept_and_agree() as peer:
        assert peer.ping(GUEST_IP)
        peer.send_control("bye", reason=reason)
        assert peer.read_to_end(2 * SLOW), "after a bye the receiver closes"
    check_native(guest, listener)
    assert guest.ended(counted) == 1


@pytest.mark.parametrize("body", [
    b"{", b"[]", b"{}" + bytes(100), b'{"mtu": "1500"}', b'{"address4": 7}', b'{"mtu": 1, "mtu": 2}',
    b'{"address4": "' + b"1" * 65 + b'/24"}', b'{"resolvers": [' + b'"10.0.0.1",' * 9 + b'"::"]}',
    b"[" * 2000])
def test_malformed_offers_are_counted_and_change_nothing(listening, body):
    """However many of them: only the latest is looked at, and the process does not grow."""
    guest, listener = listening("native")
    with listener.accept_and_agree() as peer:
        assert peer.ping(GUEST_IP)
        before = guest.peak_rss()
        peer.send(wire.encode_record(2, b"\x04" + body) * 500)
        assert peer.proves_alive(8, 10 * SLOW)
        assert peer.ping(GUEST_IP)
        wait_until(lambda: guest.status()["session"]["offers_ignored_total"] > 0, "it is counted")
        assert SANITIZED or guest.peak_rss() < before + 4 * 1024 * 1024
        assert guest.running()


def test_sessions_of_two_runs_differ(listening):
    sessions = set()
    for _ in range(3):
        guest, listener = listening("native")
        sessions.add(check_native(guest, listener)["session"])
        assert guest.running()
    assert len(sessions) == 3 and new_session() not in sessions
