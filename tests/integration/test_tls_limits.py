# SPDX-License-Identifier: Apache-2.0
"""Caps, failures behind the handshake, drain, and what terminated connections cost."""

import re
import signal
import ssl
import time

import pytest

from causeway_testlib.gateway import ONE, REFUSING, SILENT, TWO, place, site  # noqa: F401
from causeway_testlib.gateway_client import together
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.tls_client import (  # noqa: F401
    VERSIONS, connect, context, refused, start, terminating, version)
from causeway_testlib.tls_pki import pki
from causeway_testlib.tls_stream import Stopped, up_to
from causeway_testlib.waiting import wait_until
from test_gateway_hygiene import system_calls

KIB, MIB = 1 << 10, 1 << 20


# -- behind the handshake

def test_nobody_to_connect_to(site, version):  # noqa: F811
    """The client hears it inside TLS: an alert that it believes."""
    gateway = start(site, "--timeouts-connect", "500ms", routes=[
        terminating(REFUSING, names=["a.test"]), terminating(SILENT, names=["r.test"])])
    with connect(gateway, "a.test", version) as client:
        client.expect_alert("internal error")
        client.stream.socket.recv(1)
    gateway.wait_ended("connect_failed")
    with connect(gateway, "r.test", version) as client:
        client.expect_alert("internal error")
    gateway.wait_ended("connect_timeout")
    assert gateway.counter("handshakes_full") == 2


def test_refused_client_that_stays_or_goes_on(site, version):  # noqa: F811
    gateway = start(site, "--timeouts-shutdown", "1s", routes=[terminating(REFUSING)])
    stays = [connect(gateway, version=version) for _ in range(5)]
    for client in stays:
        client.expect_alert("internal error")
    talks = connect(gateway, version=version)
    talks.send(bytes(100_000))
    talks.expect_alert("internal error")
    gateway.wait_active(0, 8)
    gateway.wait_ended("connect_failed", 6)


CAPS = {
    "route": ({"max_connections": 5}, "route_limit"),
    "upstream": ({"upstreams": [{"address": ONE, "max_connections": 2},
                                {"address": TWO, "max_connections": 3}]}, "upstream_limit"),
}


@pytest.mark.parametrize("cap", CAPS)
def test_cap_is_exact(site, version, cap):  # noqa: F811
    """40 at once: as many as allowed are served, the others hear why."""
    terms, reason = CAPS[cap]
    gateway = start(site, routes=[{**terminating(), **terms}])
    served, turned_away = [], []

    def work(_):
        try:
            client = connect(gateway, version=version)
            client.get(7)
            served.append(client)
        except ssl.SSLError as error:
            turned_away.append(error)

    together(40, work)
    assert (len(served), len(turned_away)) == (5, 35)
    gateway.wait_ended(reason, 35)
    served.pop().close()
    wait_until(lambda: gateway.route("a.test")["active"] == 4, "a place is free", 5 * SLOW)
    with connect(gateway, version=version) as client:
        client.get(1000)


def test_handshakes_hold_no_places_for_ever(site, version):  # noqa: F811
    """Clients that never finish their handshake count for no longer than it may last."""
    gateway = start(site, "--timeouts-handshake", "1s", routes=[terminating(max_connections=3)])
    for _ in range(3):
        with pytest.raises(Stopped):
            connect(gateway, version=version, transmit=up_to(1))
    gateway.wait_ended("handshake_timeout", 3)
    clients = [connect(gateway, version=version) for _ in range(3)]
    for client in clients:
        client.get(1)


def test_the_gateways_cap(site, version):  # noqa: F811
    gateway = start(site, "--max-connections", 5)
    clients = [connect(gateway, version=version) for _ in range(5)]
    for client in clients:
        client.get(1)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        connect(gateway, version=version)
    gateway.wait_ended("gateway_limit")


@pytest.mark.parametrize("choice", ["race", "least_connections"])
def test_choice_of_an_upstream(site, version, choice):  # noqa: F811
    gateway = start(site, routes=[terminating(REFUSING, TWO, ONE, choice=choice)])
    for _ in range(10):
        with connect(gateway, version=version) as client:
            assert client.origin() in ("one", "two")
            client.get(100_000)
    assert gateway.ended("connect_failed") == 0


# -- drain

def test_drain(site, version):  # noqa: F811
    """Those that are there finish, each with a close_notify; then it ends with 0."""
    gateway = start(site, drain="30s")
    gateway.settles = False
    busy, quiet = (connect(gateway, version=version) for _ in range(2))
    busy.get(1)
    quiet.get(1)
    busy.ask("trickle", 60, 20)
    gateway.signal(signal.SIGTERM)

    def nobody_listens():
        try:
            gateway.dial().close()
        except ConnectionRefusedError:
            return True
        return False

    wait_until(nobody_listens, "new connections are refused", 5 * SLOW)
    quiet.get(2 * MIB)
    quiet.put(2 * MIB)
    quiet.end()
    quiet.expect_end()
    assert busy.reader.exactly(60 * 64)[0] == 60 * 64
    busy.expect_end()
    assert gateway.running()
    busy.end()
    assert gateway.wait(5 * SLOW) == 0


def test_drain_timeout(site, version):  # noqa: F811
    gateway = start(site, drain="1s")
    gateway.settles = False
    client = connect(gateway, version=version)
    client.get(1)
    with pytest.raises(Stopped):
        connect(gateway, version=version, transmit=up_to(1))
    begin = time.monotonic()
    gateway.signal(signal.SIGTERM)
    client.expect_reset()
    assert not client.stream.notified
    assert 0.9 <= time.monotonic() - begin <= 2 * SLOW
    assert gateway.wait(5 * SLOW) == 0


# -- what it costs

def test_memory_of_idle_connections(site, version):  # noqa: F811
    """A connection that is silent holds no buffer: mbedTLS's own would be 34 KiB."""
    gateway = start(site, routes=[terminating(ONE, TWO)])
    count = 500

    def crowd():
        clients = [connect(gateway, version=version) for _ in range(count)]
        for client in clients:
            client.get(1000)
        return clients

    for client in crowd():  # the allocator's and the pools' own
        client.close()
    gateway.wait_active(0)
    before = gateway.rss()
    clients = crowd()
    assert gateway.active() == count
    if not SANITIZED:
        each = (gateway.rss() - before) / count
        assert each < 6 * KIB, f"{each:.0f} bytes for each connection"
    for client in clients:
        client.get(100)


def test_nothing_is_left_of_1000_handshakes(site, version):  # noqa: F811
    """Full and resumed ones, good ones and failures: the second thousand adds nothing."""
    gateway = start(site)
    idle = len(gateway.descriptors())
    use, stranger = context(version), context(version, ca="other")

    def thousand():
        def work(index):
            session = None
            for turn in range(50):
                if turn % 10 == 9:
                    with pytest.raises(ssl.SSLCertVerificationError):
                        connect(gateway, use=stranger)
                    continue
                with connect(gateway, use=use, session=session) as client:
                    client.get(20_000)
                    session = client.session() if turn % 2 else None
                    client.end()
                    client.expect_end()

        together(20, work)
        gateway.settle()

    thousand()
    memory = gateway.rss()
    assert len(gateway.descriptors()) <= idle + 4
    thousand()
    assert len(gateway.descriptors()) <= idle + 4
    if not SANITIZED:
        assert gateway.rss() <= memory + 3 * MIB, (memory, gateway.rss())
    assert gateway.counter("handshakes_resumed") > 0


@pytest.mark.skipif(SANITIZED, reason="a sanitizer makes system calls of its own")
@pytest.mark.parametrize("way", ["get", "put"])
def test_no_lock_for_a_record(site, version, way):  # noqa: F811
    """Bulk takes no lock, no memory, no clock; and several records to a system call."""
    gateway = start(site, threads=1)
    client = connect(gateway, version=version)
    getattr(client, way)(4 * MIB)
    size = 32 * MIB
    calls = system_calls(site, gateway, lambda: getattr(client, way)(size))
    for name in ("futex", "mmap", "munmap", "brk", "clock_gettime", "gettimeofday", "madvise",
                 "epoll_ctl", "timerfd_settime", "getrandom"):
        assert calls.get(name, 0) <= 8, f"{name}: {calls}"
    moves = sum(calls.get(name, 0) for name in ("recv", "recvfrom", "recvmsg", "read", "readv",
                                                "send", "sendto", "sendmsg", "write", "writev"))
    # One call each way for 16 KiB would be 2 for each record.
    assert moves <= 2 * size // (16 * KIB), calls


@pytest.mark.skipif(SANITIZED, reason="a sanitizer makes system calls of its own")
def test_round_trips(site, version):  # noqa: F811
    """A small request and answer: one read and one write each way."""
    rounds = 500
    gateway = start(site, threads=1)
    client = connect(gateway, version=version)
    for _ in range(20):
        client.get(200)

    def work():
        for _ in range(rounds):
            client.get(200)

    calls = system_calls(site, gateway, work)
    for name in ("futex", "mmap", "munmap", "brk", "clock_gettime", "epoll_ctl", "setsockopt",
                 "ioctl", "getrandom"):
        assert calls.get(name, 0) <= 5, f"{name}: {calls}"
    moves = sum(calls.get(name, 0) for name in ("recv", "recvfrom", "recvmsg", "read", "readv",
                                                "send", "sendto", "sendmsg", "write", "writev"))
    assert moves <= 4 * rounds + 50, calls


def test_handshakes_take_few_calls(site, version):  # noqa: F811
    """A connection's whole life: bounded calls, and locks only where PSA's key store is."""
    if SANITIZED:
        pytest.skip("a sanitizer makes system calls of its own")
    gateway = start(site, threads=1)

    def connections(count):
        for _ in range(count):
            with connect(gateway, version=version) as client:
                client.get(200)
                client.end()
                client.expect_end()

    connections(20)
    count = 100
    calls = system_calls(site, gateway, lambda: connections(count))
    for name in ("futex", "mmap", "munmap", "pipe2", "openat", "clock_gettime"):
        assert calls.get(name, 0) <= 20, f"{name}: {calls}"
    assert sum(calls.values()) <= 40 * count, calls


# -- what must not be seen

def test_no_secret_is_shown(site):  # noqa: F811
    """Neither log nor status has a key, a session, or what was said inside of TLS."""
    gateway = start(site, "--log-level", "debug")
    session = None
    for number in VERSIONS:
        with connect(gateway, version=number) as client:
            client.ask("echo")
            client.send(b"c0nfidential words")
            assert client.reader.exactly(18)[0] == 18
            session = client.session()
    refused(gateway, "a.test", "1.2", ciphers="AES128-SHA:@SECLEVEL=0")
    connect(gateway, version="1.3", session=None).close()
    gateway.signal(signal.SIGHUP)
    gateway.settle()
    shown = gateway.log() + str(gateway.status())
    assert session and session.id.hex() not in shown
    for identity in (pki().ecdsa, pki().rsa):
        body = [line for line in identity.key.read_text(encoding="ascii").splitlines()
                if not line.startswith("-----")]
        assert not any(line in shown for line in body)
    assert "c0nfidential" not in shown
    assert not re.search(r"-----BEGIN|PRIVATE KEY", shown)
    assert str(pki().ecdsa.cert) in shown  # the paths are what an operator needs
