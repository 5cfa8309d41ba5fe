# SPDX-License-Identifier: Apache-2.0
"""Peers that vanish at every point: each connection is counted once, and nothing is left of it."""

import signal
import time

import pytest

from causeway_testlib import hello
from causeway_testlib.gateway import (ARMS, GATE, MODELS, ONE, SILENT, place, route,
                                      site)  # noqa: F401
from causeway_testlib.gateway_client import Client, gone, refusal
from causeway_testlib.origin import Origin, reset
from causeway_testlib.programs import SLOW
from causeway_testlib.waiting import wait_until

MIB = 1 << 20


@pytest.fixture(params=[f"{arm}-{model}" for arm in ARMS for model in MODELS])
def gateway(request, site):  # noqa: F811
    arm, model = request.param.split("-")
    return site.start(*ARMS[arm], "--threads-model", model)


def close(stream):
    stream.close()


@pytest.mark.parametrize("how", [close, reset])
def test_client_during_the_connect(site, how):  # noqa: F811
    gateway = site.start("--timeouts-connect", "2s", config={"routes": [route(SILENT)]})
    stream = gateway.connect().stream
    wait_until(lambda: gateway.counter("connect_attempts") == 1, "it dials")
    begin = time.monotonic()
    how(stream)
    gateway.wait_active(0)
    if how is reset:
        assert time.monotonic() - begin < 1.5 * SLOW
    assert gateway.upstream("a.test")["active"] == 0


@pytest.mark.parametrize("how", [close, reset])
def test_client_during_a_race(site, how):  # noqa: F811
    gateway = site.start("--timeouts-connect", "2s", config={"routes": [
        route(SILENT, "tcp:10.99.0.201:9001", choice="race", race=2)]})
    stream = gateway.connect().stream
    wait_until(lambda: gateway.counter("connect_attempts") == 2, "it dials both")
    how(stream)
    gateway.wait_active(0)


@pytest.mark.parametrize("how", [close, reset])
def test_client_during_the_relay(gateway, place, how):  # noqa: F811
    """Before the gate and after it, idle, in the middle of a download and of an upload."""
    known = place.ask_origin()["ends"]
    count = 0
    for before in (0, 1, GATE + 1):
        for request in (None, "/wait\n", f"/bytes/{100 * MIB}\n", f"/upload/{100 * MIB}\n"):
            client = gateway.connect()
            client.get(before)
            if request:
                client.send(request.encode())
            if request and "upload" in request:
                client.send(bytes(3 * MIB))
            how(client.stream)
            count += 1
    gateway.wait_active(0)
    ended = gateway.status()["ended"]
    assert ended["client_reset"] + ended["orderly"] == count, ended
    if how is reset:
        assert ended["orderly"] == 0
    # Every upstream connection is over too.
    wait_until(lambda: len(place.ask_origin()["ends"]) >= len(known) + count,
               "the origin sees all of them go", 5 * SLOW)
    assert not place.ends("fault")


def test_upstream_right_after_its_accept(site):  # noqa: F811
    """It was there, so the client is cut, as the upstream did; or it was gone again before the
    gateway had looked, and is one that could not be reached. Never an end that looks complete."""
    gateway = site.start(config={"routes": [route("tcp:127.0.0.1:9007"),
                                            route("tcp:127.0.0.1:9008", names=["b.test"])]})
    resets = 0
    for _ in range(300):
        with gateway.connect() as client:
            try:
                assert refusal(client.stream) == hello.alert(hello.INTERNAL_ERROR)
            except ConnectionError:
                resets += 1
    gateway.wait_ended("upstream_reset", resets)
    gateway.wait_ended("connect_failed", 300 - resets)
    # One that ends in order: the client's own end is still to come.
    client = gateway.connect("b.test")
    client.expect_end()
    client.close()
    gateway.wait_active(0)


def test_upstream_during_the_relay(gateway):
    """A reset of the upstream, after all that it sent was passed on."""
    for size in (0, 1, GATE - 1, GATE, MIB):
        client = gateway.connect()
        client.ask("reset", size)
        got = 0
        with pytest.raises(ConnectionResetError):
            while part := client.reader.some():
                got += len(part)
        assert got <= size
    gateway.wait_ended("upstream_reset", 5)


def test_upstream_closes_in_the_middle_of_an_upload(gateway, site):  # noqa: F811
    """An answer before the upload is over, then a close, as servers do that refuse a body: the
    answer arrives before the cut."""
    client = gateway.connect()
    client.ask("close", 1000)
    client.expect(1000)
    try:
        for _ in range(100):
            client.send(bytes(1 << 16))
    except ConnectionError:
        pass
    client.close()
    gateway.wait_active(0)
    ended = gateway.status()["ended"]
    assert ended["upstream_reset"] + ended["orderly"] == 1, ended


def test_killed_upstream(site):  # noqa: F811
    """The upstream's process dies with 30 connections, idle and busy ones."""
    gateway = site.start(config={"routes": [route("tcp:127.0.0.1:9200")]})
    origin = Origin(site.namespace, {"mortal": "tcp:127.0.0.1:9200"})
    clients = [gateway.connect() for _ in range(30)]
    for index, client in enumerate(clients):
        client.get(index * 5000)
    for client in clients[10:]:
        client.ask("bytes", 500 * MIB)
    origin.signal(signal.SIGKILL)
    for client in clients:
        gone(client.stream)
        client.close()
    origin.close()
    gateway.wait_active(0)
    # The one that starts again is found.
    second = Origin(site.namespace, {"mortal": "tcp:127.0.0.1:9200"})
    try:
        def served():
            with gateway.connect() as client:
                client.get(1000)
            return True

        wait_until(served, "it is served again", 5 * SLOW)
        gateway.settle()
    finally:
        second.close()


def test_client_that_vanishes_without_a_word(site):  # noqa: F811
    """The network goes away and nobody says so: the watchdog finds it."""
    gateway = site.start("--timeouts-idle", "1s")
    client = gateway.connect()
    client.get(1)
    client.ask("bytes", 100 * MIB)
    site.namespace.run("ip", "link", "set", "lo", "down")
    try:
        time.sleep(0.2)
        gateway.wait_ended("idle", timeout=3)
    finally:
        site.namespace.run("ip", "link", "set", "lo", "up")


def test_half_open_hello_then_whole(site):  # noqa: F811
    """Vanished clients leave no trace in what the next ones get."""
    gateway = site.start(threads=1)
    whole = hello.hello()
    for part in range(0, len(whole), 7):
        stream = gateway.dial()
        stream.sendall(whole[:part])
        (reset if part % 2 else close)(stream)
    stream = gateway.dial()
    stream.sendall(whole)
    Client(stream).get(100_000)
    assert Client(gateway.connect().stream).origin() == "one"
    assert ONE.endswith("9001")
