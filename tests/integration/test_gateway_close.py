# SPDX-License-Identifier: Apache-2.0
"""How a relay ends: halves, resets, silence. Each in every relay."""

import threading
import time

import pytest

from causeway_testlib import origin
from causeway_testlib.gateway import ARMS, GATE, MODELS, place, site  # noqa: F401
from causeway_testlib.gateway_client import together
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.waiting import wait_until

MIB = 1 << 20
REPLY = 4096
IDLE = 3.0
# The watchdog samples: it may be late by a quarter, and what is measured here takes its time too.
REAPED = (IDLE, 3.9 * (SLOW if SANITIZED else 1))


@pytest.fixture(params=[f"{arm}-{model}" for arm in ARMS for model in MODELS])
def gateway(request, site):  # noqa: F811
    arm, model = request.param.split("-")
    return site.start(*ARMS[arm], "--threads-model", model)


@pytest.fixture
def each_arm(site):  # noqa: F811
    """A gateway for each relay, at the same time: what takes seconds is waited for once."""
    def start(*arguments):
        return [site.start(*options, *arguments) for options in ARMS.values()]

    return start


def test_client_ends_first(gateway, place):  # noqa: F811
    """Before, at and after the gate the whole reply arrives, then the end."""
    request = len(f"/halfclose/{REPLY}\n")
    for before in (0, GATE - request - 1, GATE - request, GATE, GATE + 1, MIB):
        with gateway.connect() as client:
            if before:
                client.get(before)
            client.ask("halfclose", REPLY)
            client.end()
            client.expect(REPLY)
            client.expect_end()
    gateway.wait_ended("orderly", 6)
    assert not place.ends("fault")


def test_client_ends_first_after_an_upload(gateway):
    for size in (1, GATE, MIB):
        with gateway.connect() as client:
            client.put(size)
            client.ask("halfclose", REPLY)
            client.end()
            client.expect(REPLY)
            client.expect_end()
    gateway.wait_ended("orderly", 3)


def test_client_ends_first_and_a_large_reply_follows(gateway):
    with gateway.connect() as client:
        client.ask("halfclose", 10 * MIB)
        client.end()
        client.expect(10 * MIB)
        client.expect_end()
    gateway.wait_ended("orderly")


def test_client_ends_right_behind_its_hello(gateway):
    """The request and the end are there before the upstream is connected."""
    with gateway.connect() as client:
        client.end()
        client.expect_end()
    with gateway.connect() as client:
        client.ask("bytes", REPLY)
        client.end()
        client.expect(REPLY)
        client.expect_end()
    gateway.wait_ended("orderly", 2)


def test_upstream_ends_first(gateway, place):  # noqa: F811
    """After its end the client still sends; all of it arrives."""
    for size in (0, 1, GATE, GATE + 1, 4 * MIB):
        known = len(place.ends("finfirst"))
        with gateway.connect() as client:
            client.ask("finfirst", REPLY)
            client.expect(REPLY)
            client.expect_end()
            for piece in origin.pieces(size):
                client.send(piece)
            client.end()
            wait_until(lambda: len(place.ends("finfirst")) > known, "the upload is over", 5 * SLOW)
        last = place.ends("finfirst")[-1]
        assert (last["size"], last["digest"]) == (size, origin.digest(size))
    gateway.wait_ended("orderly", 5)


def test_upstream_closes_after_a_megabyte(gateway):
    with gateway.connect() as client:
        client.ask("close", MIB)
        client.expect(MIB)
        client.expect_end()
        client.end()
        gateway.wait_ended("orderly")


def test_a_reset_stays_a_reset(gateway, place):  # noqa: F811
    """A cut stream must not look like a complete one, on either side."""
    for size in (1, GATE + 1, MIB):
        with gateway.connect() as client:
            client.ask("reset", size)
            client.expect_reset()
    gateway.wait_ended("upstream_reset", 3)

    known = len(place.ends("reset"))
    for size in (1, GATE + 1, MIB):
        with gateway.connect() as client:
            client.get(size)
            client.ask("wait")
            client.reset()
    wait_until(lambda: len(place.ends("reset")) == known + 3, "the origin sees three resets",
               5 * SLOW)
    gateway.wait_ended("client_reset", 3)


def test_silent_connections_are_reaped(each_arm):
    """Both directions silent for `idle`: before the gate, after it, with and without the hello's
    answer. Seen by the client as a reset."""
    gateways = each_arm("--timeouts-idle", "3s")
    cases = [(gateway, size) for gateway in gateways for size in (None, 1, MIB)]

    def work(index):
        gateway, size = cases[index]
        with gateway.connect() as client:
            if size:
                client.get(size)
            client.ask("wait")
            begin = time.monotonic()
            client.expect_reset()
            seconds = time.monotonic() - begin
            assert REAPED[0] <= seconds <= REAPED[1], f"{size}: {seconds:.2f} s"

    together(len(cases), work)
    for gateway in gateways:
        gateway.wait_ended("idle", 3)


@pytest.mark.parametrize("before", [0, 2 * GATE])
def test_silent_upstream_after_the_clients_end(each_arm, place, before):  # noqa: F811
    gateways = each_arm("--timeouts-idle", "3s")
    known = len(place.ends("blackhole"))

    def work(index):
        with gateways[index].connect() as client:
            if before:
                client.get(before)
            client.ask("blackhole")
            client.end()
            begin = time.monotonic()
            client.expect_reset()
            seconds = time.monotonic() - begin
            assert REAPED[0] <= seconds <= REAPED[1], f"arm {index}: {seconds:.2f} s"

    together(len(gateways), work)
    wait_until(lambda: len(place.ends("blackhole")) == known + len(gateways),
               "every upstream connection is gone")
    for gateway in gateways:
        gateway.wait_ended("idle")


def test_flooding_upstream_and_a_client_that_does_not_read(each_arm, place):  # noqa: F811
    gateways = each_arm("--timeouts-idle", "3s")
    known = len(place.ends("flood"))
    clients = []
    for gateway in gateways:
        client = gateway.connect(receive_buffer=65536)
        client.get(1)
        client.ask("flood", 1 << 30)
        client.end()
        clients.append(client)
    floods = wait_until(lambda: len(found := place.ends("flood")[known:]) == len(gateways)
                        and found, "every flood is over", 8 * SLOW)
    for flood in floods:
        assert flood["sent"] < 64 * MIB
        seconds = flood["at"] - flood["silent_since"]
        assert REAPED[0] - 0.1 <= seconds <= REAPED[1], f"{seconds:.2f} s: {flood}"
    for gateway, client in zip(gateways, clients):
        gateway.wait_ended("idle")
        client.expect_reset()


def test_a_slow_reader_that_moves_is_not_reaped(each_arm):
    """Slower than the gateway's socket buffer turns writable again: what it reads is progress."""
    gateways = each_arm("--timeouts-idle", "2s")

    def work(index):
        gateway, half_closed = gateways[index // 2], index % 2
        with gateway.connect(receive_buffer=16384) as client:
            if half_closed:
                client.ask("halfclose", 6 * MIB)
                client.end()
            else:
                client.ask("bytes", 6 * MIB)
            left, until = 6 * MIB, time.monotonic() + 7
            while time.monotonic() < until:
                left -= len(client.reader.some(16384))
                time.sleep(0.2)
            got, _ = client.reader.exactly(left)
            assert got == left, f"arm {index // 2}: cut {left - got} bytes before the end"
            if half_closed:
                client.expect_end()

    together(2 * len(gateways), work)
    for gateway in gateways:
        assert gateway.ended("idle") == 0


def test_a_slow_upstream_that_moves_is_not_reaped(each_arm):
    gateways = each_arm("--timeouts-idle", "2s")

    def work(index):
        with gateways[index].connect() as client:
            client.put(1 * MIB, "slowread", 60)

    together(len(gateways), work)
    assert all(gateway.ended("idle") == 0 for gateway in gateways)


def test_a_trickle_is_not_reaped(each_arm):
    """One direction alone moves, a little before each time that `idle` would be over."""
    gateways = each_arm("--timeouts-idle", "1s")

    def work(index):
        with gateways[index].connect() as client:
            client.ask("trickle", 5, 700)
            assert client.reader.exactly(5 * origin.CHUNK)[0] == 5 * origin.CHUNK
            client.expect_end()

    together(len(gateways), work)


def test_waiting_for_a_long_answer_is_no_shutdown(each_arm):
    """After the client's end the answer may take its time: `shutdown` is about refused clients."""
    gateways = each_arm("--timeouts-shutdown", "300ms")

    def work(index):
        with gateways[index].connect() as client:
            client.ask("trickle", 3, 700)
            client.end()
            assert client.reader.exactly(3 * origin.CHUNK)[0] == 3 * origin.CHUNK
            client.expect_end()

    together(len(gateways), work)
    for gateway in gateways:
        gateway.wait_ended("orderly")


def test_total(each_arm):
    """A connection that never falls silent is closed at its age."""
    gateways = each_arm("--timeouts-total", "1500ms", "--timeouts-handshake", "1s")

    def work(index):
        client = gateways[index].connect()
        begin = time.monotonic()
        client.ask("trickle", 1000, 20)
        client.expect_reset()
        assert 1.4 <= time.monotonic() - begin <= 2.5 * SLOW

    together(len(gateways), work)
    for gateway in gateways:
        gateway.wait_ended("total")


def test_never_is_never(site):  # noqa: F811
    """With `idle never` a connection outlives what would have reaped its neighbour."""
    patient = site.start("--timeouts-idle", "never")
    strict = site.start("--timeouts-idle", "500ms")
    clients = [patient.connect(), strict.connect()]
    for client in clients:
        client.get(1)
    clients[1].expect_reset()
    threading.Event().wait(0.5)
    clients[0].get(1)
