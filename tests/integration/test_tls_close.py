# SPDX-License-Identifier: Apache-2.0
"""How a connection whose TLS ends in the gateway comes to its end: halves, cuts, silence."""

import socket
import ssl
import time

import pytest

from causeway_testlib import origin
from causeway_testlib.gateway import ONE, REFUSING, TWO, place, site  # noqa: F401
from causeway_testlib.gateway_client import gone, together
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.tls_client import (  # noqa: F401
    COMBINATIONS, NAMES, VERSIONS, connect, start, terminating, version, wait_fault)
from causeway_testlib.tls_stream import BareEnd, Stopped, up_to
from causeway_testlib.waiting import wait_until

MIB = 1 << 20
REPLY = 4096
SIZES = (0, 1, 16384, 16385, MIB)
IDLE = 2.0
# As in passthrough: the watchdog samples, and what is measured takes its time too.
REAPED = (IDLE, 2.8 * (SLOW if SANITIZED else 1))


@pytest.fixture(params=COMBINATIONS)
def to(request, site):  # noqa: F811
    number, kind = request.param.split("-")
    gateway = start(site)

    def make(**more):
        return connect(gateway, NAMES[kind], number, **more)

    make.gateway = gateway
    return make


@pytest.fixture
def gateway(site):  # noqa: F811
    return start(site)


def both(work):
    """work(version) for both, at once."""
    together(len(VERSIONS), lambda index: work(VERSIONS[index]))


def notified_end(client):
    """A close_notify; what the stream does afterwards is not looked at."""
    assert client.reader.some() == b"" and client.stream.notified


# -- halves

def test_client_ends_first(to):
    """close_notify and FIN: the whole answer still comes, then the gateway's close_notify."""
    for before in SIZES:
        with to() as client:
            if before:
                client.get(before)
            client.ask("halfclose", REPLY)
            client.end()
            client.expect(REPLY)
            client.expect_end()
    to.gateway.wait_ended("orderly", len(SIZES))
    assert to.gateway.counter("truncated") == 0


def test_client_ends_first_without_fin(to):
    """A close_notify alone half-closes as well; the FIN may come much later."""
    with to() as client:
        client.ask("halfclose", REPLY)
        client.stream.close_notify()
        client.expect(REPLY)
        client.expect_end()
    to.gateway.wait_ended("orderly")


def test_client_ends_first_after_an_upload(to):
    for size in (1, 16385, MIB):
        with to() as client:
            client.put(size)
            client.ask("halfclose", REPLY)
            client.end()
            client.expect(REPLY)
            client.expect_end()
    to.gateway.wait_ended("orderly", 3)


def test_client_ends_first_and_a_large_reply_follows(to):
    with to() as client:
        client.ask("halfclose", 10 * MIB)
        client.end()
        client.expect(10 * MIB)
        client.expect_end()
    to.gateway.wait_ended("orderly")


def test_client_ends_right_behind_its_handshake(to):
    """The end may be there before the upstream is connected."""
    with to() as client:
        client.end()
        client.expect_end()
    with to() as client:
        client.ask("bytes", REPLY)
        client.end()
        client.expect(REPLY)
        client.expect_end()
    to.gateway.wait_ended("orderly", 2)


def test_what_follows_a_close_notify_is_not_looked_at(to, place):  # noqa: F811
    known = len(place.ends("halfclose"))
    with to() as client:
        client.ask("halfclose", REPLY)
        client.stream.close_notify()
        client.stream.socket.sendall(b"GET / HTTP/1.0\r\n\r\n")
        client.expect(REPLY)
        notified_end(client)
    wait_until(lambda: len(place.ends("halfclose")) == known + 1, "the origin saw an end", 5 * SLOW)
    assert place.ends("halfclose")[-1]["read"] == 0


def test_application_closes_first(to):
    """The client reads a close_notify behind all that was sent, not a bare end."""
    for size in SIZES:
        with to() as client:
            client.ask("close", size)
            client.expect(size)
            client.expect_end()
            client.end()
    to.gateway.wait_ended("orderly", len(SIZES))


def test_application_closes_first_and_the_client_closes_without_a_word(to):
    """Many clients answer a close_notify with a FIN alone."""
    with to() as client:
        client.ask("close", 1)
        client.expect(1)
        client.expect_end()
    to.gateway.wait_active(0)
    assert to.gateway.ended("orderly") == 1


def test_application_ends_first_and_reads_on(to, place):  # noqa: F811
    """After its end the client still sends; all of it arrives."""
    for size in (0, 1, 16385, 4 * MIB):
        known = len(place.ends("finfirst"))
        with to() as client:
            client.ask("finfirst", REPLY)
            client.expect(REPLY)
            notified_end(client)
            for piece in origin.pieces(size):
                client.send(piece)
            client.end()
            wait_until(lambda: len(place.ends("finfirst")) > known, "the upload is over", 5 * SLOW)
        last = place.ends("finfirst")[-1]
        assert (last["size"], last["digest"]) == (size, origin.digest(size))
    to.gateway.wait_ended("orderly", 4)


# -- cuts

def test_client_ends_without_a_close_notify(to, place):  # noqa: F811
    """A FIN alone: the application sees an end, the gateway counts it, the answer comes."""
    known = len(place.ends("halfclose"))
    with to() as client:
        client.ask("halfclose", REPLY)
        client.stream.socket.shutdown(socket.SHUT_WR)
        client.expect(REPLY)
        client.expect_end()
    wait_until(lambda: len(place.ends("halfclose")) == known + 1, "the origin saw an end", 5 * SLOW)
    to.gateway.wait_ended("orderly")
    assert to.gateway.counter("truncated") == 1


def test_client_ends_inside_a_record(gateway, place, version):  # noqa: F811
    """No end, since what the application got is cut: a reset on both sides, and nothing of the
    record that is not whole."""
    cuts = [1, 4, 5, 6, 20, 1000, -1]
    known, halves = len(place.ends("reset")), len(place.ends("halfclose"))
    for cut in cuts:
        with connect(gateway, version=version) as client:
            client.ask("halfclose", REPLY)
            client.stream.socket.sendall(client.stream.seal(bytes(2000))[:cut])
            client.stream.socket.shutdown(socket.SHUT_WR)
            client.expect_reset()
    gateway.wait_ended("client_reset", len(cuts))
    wait_until(lambda: len(place.ends("reset")) == known + len(cuts), "the origin sees resets",
               5 * SLOW)
    assert len(place.ends("halfclose")) == halves


def test_a_reset_of_the_application_stays_one(to):
    """No close_notify, and no orderly end: a cut answer must not look like a complete one."""
    sizes = (1, 16385, MIB)
    for size in sizes:
        with to() as client:
            client.ask("reset", size)
            client.expect_reset()
            assert not client.stream.notified
    to.gateway.wait_ended("upstream_reset", len(sizes))


def test_a_reset_of_the_client_stays_one(to, place):  # noqa: F811
    known = len(place.ends("reset"))
    sizes = (1, 16385, MIB)
    for size in sizes:
        with to() as client:
            client.get(size)
            client.ask("wait")
            client.reset()
    wait_until(lambda: len(place.ends("reset")) == known + len(sizes), "the origin sees resets",
               5 * SLOW)
    to.gateway.wait_ended("client_reset", len(sizes))


@pytest.mark.parametrize("end", ["fin", "reset"])
def test_client_leaves_inside_its_handshake(gateway, version, end):  # noqa: F811
    """At each record, and inside each."""
    leaves = 0
    for count in range(4 if version == "1.2" else 3):
        for then in (b"", b"\x16", b"\x16\x03\x03\x00\x20\x01\0\0\x1c\x03"):
            try:
                client = connect(gateway, version=version, transmit=up_to(count, then),
                                 handshake=False)
                client.stream.handshake()
            except Stopped:
                pass
            else:
                continue
            if end == "reset":
                client.reset()
            client.close()
            leaves += 1
    assert leaves >= 6
    gateway.wait_ended("client_left", leaves)


# -- silence

def test_handshake_timeout(site):  # noqa: F811
    """From the accept on, wherever the client falls silent; what it hears is no close_notify."""
    gateway = start(site, "--timeouts-handshake", "1s", "--timeouts-shutdown", "1s")
    cases = [("1.2", 0), ("1.2", 1), ("1.2", 2), ("1.2", 3), ("1.3", 1), ("1.3", 2)]

    def work(index):
        number, count = cases[index]
        begin = time.monotonic()
        try:
            client = connect(gateway, version=number, transmit=up_to(count), handshake=False)
            client.stream.handshake()
        except Stopped:
            pass
        else:
            raise AssertionError(f"the handshake of {number} is over with {count} records")
        gone(client.stream.socket)
        assert 0.9 <= time.monotonic() - begin <= 2 * SLOW
        client.close()

    together(len(cases), work)
    gateway.wait_ended("handshake_timeout", len(cases))


def test_handshake_that_drips(site, version):  # noqa: F811
    """Each byte is progress, none of it buys more time."""
    gateway = start(site, "--timeouts-handshake", "1s", "--timeouts-shutdown", "1s")

    def drip(sock, data):
        for byte in data:
            sock.sendall(bytes([byte]))
            time.sleep(0.02)

    begin = time.monotonic()
    with pytest.raises((ConnectionError, ssl.SSLError, BareEnd)):
        connect(gateway, version=version, transmit=drip)
    assert time.monotonic() - begin <= 4 * SLOW
    gateway.wait_ended("handshake_timeout")


def test_silent_connections_are_reaped(site):  # noqa: F811
    """Both directions silent for `idle`; seen by the client as a cut."""
    gateway = start(site, "--timeouts-idle", f"{IDLE:.0f}s")
    # The last: with a record half sent.
    cases = [(number, size) for number in VERSIONS for size in (None, 1, MIB, -1)]

    def work(index):
        number, size = cases[index]
        with connect(gateway, version=number) as client:
            if size:
                client.get(abs(size))
            client.ask("wait")
            if size == -1:
                client.stream.socket.sendall(client.stream.seal(bytes(10_000))[:5000])
            begin = time.monotonic()
            client.expect_reset()
            seconds = time.monotonic() - begin
            assert REAPED[0] <= seconds <= REAPED[1], f"{size}: {seconds:.2f} s"

    together(len(cases), work)
    gateway.wait_ended("idle", len(cases))


def test_silent_application_after_the_clients_end(site, place):  # noqa: F811
    gateway = start(site, "--timeouts-idle", f"{IDLE:.0f}s")
    known = len(place.ends("blackhole"))

    def work(number):
        with connect(gateway, version=number) as client:
            client.ask("blackhole")
            client.end()
            begin = time.monotonic()
            client.expect_reset()
            assert REAPED[0] <= time.monotonic() - begin <= REAPED[1]

    both(work)
    wait_until(lambda: len(place.ends("blackhole")) == known + 2, "the upstream's are gone",
               5 * SLOW)
    gateway.wait_ended("idle", 2)


def test_flooding_application_and_a_client_that_does_not_read(site, place):  # noqa: F811
    gateway = start(site, "--timeouts-idle", f"{IDLE:.0f}s")
    known = len(place.ends("flood"))
    clients = [connect(gateway, version=number, receive_buffer=65536) for number in VERSIONS]
    for client in clients:
        client.get(1)
        client.ask("flood", 1 << 30)
        client.end()
    floods = wait_until(lambda: len(found := place.ends("flood")[known:]) == 2 and found,
                        "every flood is over", 8 * SLOW)
    for flood in floods:
        assert flood["sent"] < 64 * MIB
        assert REAPED[0] - 0.1 <= flood["at"] - flood["silent_since"] <= REAPED[1], flood
    gateway.wait_ended("idle", 2)
    for client in clients:
        client.expect_reset()


def test_a_slow_reader_that_moves_is_not_reaped(site):  # noqa: F811
    gateway = start(site, "--timeouts-idle", f"{IDLE:.0f}s")
    size = 6 * MIB

    def work(index):
        number, half_closed = VERSIONS[index // 2], index % 2
        with connect(gateway, version=number, receive_buffer=16384) as client:
            client.ask("halfclose" if half_closed else "bytes", size)
            if half_closed:
                client.end()
            left, until = size, time.monotonic() + 6
            while time.monotonic() < until:
                # Beside TLS, so that the socket is really read slowly.
                record = client.stream.record()
                left -= len(client.stream.take(record))
                time.sleep(0.2)
            got, _ = client.reader.exactly(left)
            assert got == left, f"{number}: cut {left - got} bytes before the end"
            if half_closed:
                client.expect_end()

    together(4, work)
    assert gateway.ended("idle") == 0


def test_a_slow_application_that_moves_is_not_reaped(site):  # noqa: F811
    gateway = start(site, "--timeouts-idle", f"{IDLE:.0f}s")

    def work(number):
        with connect(gateway, version=number) as client:
            client.put(MIB, "slowread", 60)

    both(work)
    assert gateway.ended("idle") == 0


def test_a_trickle_is_not_reaped(site):  # noqa: F811
    gateway = start(site, "--timeouts-idle", "1s", "--timeouts-shutdown", "300ms")

    def work(index):
        with connect(gateway, version=VERSIONS[index // 2]) as client:
            client.ask("trickle", 4, 700)
            if index % 2:
                client.end()
            assert client.reader.exactly(4 * origin.CHUNK)[0] == 4 * origin.CHUNK
            client.expect_end()

    together(4, work)
    gateway.wait_ended("orderly", 4)


def test_a_record_that_comes_byte_by_byte_is_progress(site):  # noqa: F811
    """A record that takes longer than `idle` to come, a byte at a time, is no silence."""
    gateway = start(site, "--timeouts-idle", "1s")

    def work(number):
        with connect(gateway, version=number) as client:
            client.get(1)
            sealed = client.stream.seal(b"/bytes/1000\n")
            for at in range(len(sealed)):
                client.stream.socket.sendall(sealed[at:at + 1])
                time.sleep(0.05)
            client.expect(1000)

    both(work)
    assert gateway.ended("idle") == 0


def test_a_record_that_pauses(site):  # noqa: F811
    """The first part of a record is kept while nothing moves, for less than `idle`."""
    gateway = start(site, "--timeouts-idle", f"{IDLE:.0f}s")
    parts = [(number, part) for number in VERSIONS for part in (1, 5, 8000, 16384)]

    def work(index):
        number, part = parts[index]
        with connect(gateway, version=number) as client:
            client.ask("upload", 16384)
            sealed = client.stream.seal(b"".join(origin.pieces(16384)))
            for piece in (sealed[:part], sealed[part:-1], sealed[-1:]):
                client.stream.socket.sendall(piece)
                time.sleep(0.7 * IDLE)
            assert client.reader.line() == f"16384 {origin.digest(16384)}"

    together(len(parts), work)
    assert gateway.ended("idle") == 0


def test_total(site):  # noqa: F811
    gateway = start(site, "--timeouts-total", "1500ms", "--timeouts-handshake", "1s")

    def work(number):
        begin = time.monotonic()
        client = connect(gateway, version=number)
        client.ask("trickle", 1000, 20)
        client.expect_reset()
        assert 1.4 <= time.monotonic() - begin <= 2.5 * SLOW

    both(work)
    gateway.wait_ended("total", 2)


def test_broken_record_ends_both_sides(gateway, place, version):  # noqa: F811
    """The application sees a reset, not the end of a request; the client hears why."""
    known = len(place.ends("reset"))
    with connect(gateway, version=version) as client:
        client.ask("wait")
        sealed = bytearray(client.stream.seal(b"more of it"))
        sealed[-1] ^= 1
        client.stream.socket.sendall(sealed)
        client.expect_alert("bad record mac")
    wait_fault(gateway, "tls_broken", "bad_mac")
    wait_until(lambda: len(place.ends("reset")) == known + 1, "the origin sees a reset", 5 * SLOW)


def test_application_that_resets_at_once(site, version):  # noqa: F811
    """The moment it has accepted: a cut or an alert, never an end that looks complete."""
    gateway = start(site, routes=[terminating("tcp:127.0.0.1:9007")])
    for _ in range(20):
        with connect(gateway, version=version) as client:
            try:
                client.send(b"/bytes/1\n")
                assert client.reader.some() != b"", "a close_notify"
            except (ssl.SSLError, ConnectionError):
                assert not client.stream.notified
    wait_until(lambda: gateway.ended("upstream_reset") + gateway.ended("connect_failed") == 20,
               "all are counted", 5 * SLOW)


def test_retry_on_the_next_upstream(site, version):  # noqa: F811
    """One that refuses to connect is passed over, with TLS as without."""
    gateway = start(site, routes=[terminating(REFUSING, TWO, ONE)])
    for _ in range(3):
        with connect(gateway, version=version) as client:
            assert client.origin() in ("one", "two")
    assert gateway.counter("connect_retries") >= 1
