# SPDX-License-Identifier: Apache-2.0
"""Reaching upstreams: every kind of address, names, choice, retries, races, health, drain."""

import collections
import contextlib
import signal
import socket
import threading
import time

import pytest

from causeway_testlib import hello
from causeway_testlib.gateway import (NAMED, NAMED_TOO, ONE, REFUSING, SILENT, THREE, TWO, place,
                                      route, site)  # noqa: F401
from causeway_testlib.gateway_client import refused_with, together
from causeway_testlib.gateway_dns import NameServer
from causeway_testlib.origin import Origin
from causeway_testlib.programs import SLOW
from causeway_testlib.waiting import wait_until

MIB = 1 << 20


def origins(gateway, count, **more):
    """How often each of the origin's listeners answered."""
    seen = collections.Counter()
    for _ in range(count):
        with gateway.connect(**more) as client:
            seen[client.origin()] += 1
    return seen


@pytest.mark.parametrize("splice", ["off", "0B"])
@pytest.mark.parametrize("kind", ["tcp6", "unix", "hvsock"])
def test_kinds_of_address(site, kind, splice):  # noqa: F811
    address = {"tcp6": "tcp:[::1]:9004", "unix": f"unix:{site.directory}/origin",
               "hvsock": f"hvsock:{site.directory}/vm:5000"}[kind]
    gateway = site.start("--splice-after", splice, config={"routes": [route(address)]})
    with gateway.connect() as client:
        info = client.info()
        client.get(MIB)
        client.put(MIB)
        client.ask("halfclose", 4096)
        client.end()
        client.expect(4096)
        client.expect_end()
    if kind == "hvsock":
        assert info["connect"] == "CONNECT 5000"

    def work(_):
        with gateway.connect() as each:
            each.get(50_000)

    together(32, work)
    assert gateway.upstream("a.test")["connected"] == 33


@pytest.mark.parametrize("kind, reason", [("refuse", "connect_failed"),
                                          ("garbage", "connect_failed"),
                                          ("silent", "connect_timeout")])
def test_hybrid_vsock_that_does_not_connect(site, kind, reason):  # noqa: F811
    gateway = site.start("--timeouts-connect", "1s", config={"routes": [
        route(f"hvsock:{site.directory}/vm_{kind}:5000")]})
    refused_with(gateway.connect().stream, hello.INTERNAL_ERROR)
    gateway.wait_ended(reason)


def test_refusing_upstream(site):  # noqa: F811
    gateway = site.start(config={"routes": [
        route(REFUSING), route(f"unix:{site.directory}/nobody", names=["b.test"])]})
    for name in ("a.test", "b.test"):
        stream = gateway.connect(name).stream
        refused_with(stream, hello.INTERNAL_ERROR)
    gateway.wait_ended("connect_failed", 2)
    assert gateway.upstream("a.test")["failed"] == 1


def test_connect_timeout(site):  # noqa: F811
    gateway = site.start("--timeouts-connect", "1s", config={"routes": [route(SILENT)]})
    begin = time.monotonic()
    stream = gateway.connect().stream
    refused_with(stream, hello.INTERNAL_ERROR)
    assert 0.9 <= time.monotonic() - begin <= 1.5 * SLOW
    gateway.wait_ended("connect_timeout")


@pytest.mark.parametrize("choice", ["round_robin", "least_connections", "race"])
def test_the_next_upstream_when_one_refuses(site, choice):  # noqa: F811
    gateway = site.start(config={"routes": [
        route(REFUSING, f"unix:{site.directory}/nobody", ONE, choice=choice)]})
    assert origins(gateway, 12) == {"one": 12}
    if choice != "race":
        assert gateway.counter("connect_retries") >= 1
    assert gateway.ended("connect_failed") == 0


def test_the_next_upstream_when_one_is_silent(site):  # noqa: F811
    """Within the time of one connect, so the first has to be given up early."""
    gateway = site.start("--timeouts-connect", "2s", threads=1, config={"routes": [
        route(SILENT, ONE)]})
    assert origins(gateway, 2) == {"one": 2}


def test_race(site):  # noqa: F811
    """The first that answers has the connection; the others are closed and counted back."""
    gateway = site.start("--timeouts-connect", "10s", config={"routes": [
        route(SILENT, ONE, REFUSING, choice="race", race=3)]})
    begin = time.monotonic()
    assert origins(gateway, 10) == {"one": 10}
    assert time.monotonic() - begin < 2 * SLOW
    gateway.settle()

    # The losers go at once, not with the connection.
    with gateway.connect() as client:
        client.get(1)
        assert [upstream["active"] for upstream in gateway.route("a.test")["upstreams"]] == [0, 1, 0]

    gateway = site.start(config={"routes": [route(ONE, TWO, THREE, choice="race", race=3)]})
    before = site.place.ask_origin()["accepted"]
    assert sum(origins(gateway, 30).values()) == 30
    gateway.settle()
    seen = site.place.ask_origin()["accepted"]
    # At most three dialled for each, never more.
    assert sum(seen[name] - before.get(name, 0) for name in ("two", "three")) <= 60


def test_weighted_turns(site):  # noqa: F811
    gateway = site.start(threads=1, config={"routes": [
        route({"address": ONE, "weight": 3}, TWO)]})
    assert origins(gateway, 40) == {"one": 30, "two": 10}


def test_least_connections(site):  # noqa: F811
    gateway = site.start(config={"routes": [
        route({"address": ONE, "weight": 3}, TWO, choice="least_connections")]})
    held = [gateway.connect() for _ in range(40)]
    seen = collections.Counter(client.origin() for client in held)
    assert abs(seen["one"] - 30) <= 1, seen
    for client in held:
        if client.origin() == "two":
            client.close()
    gateway.wait_active(seen["one"])
    # Those that went are made up for.
    assert {gateway.connect().origin() for _ in range(8)} == {"two"}


def test_passive_health(site):  # noqa: F811
    """An upstream that keeps refusing is left alone for a while, and tried again after it."""
    gateway = site.start(threads=1, config={"routes": [route("tcp:127.0.0.1:9100", ONE)]})
    assert origins(gateway, 30) == {"one": 30}
    first = gateway.upstream("a.test")
    assert 3 <= first["failed"] <= 6 and not first["available"], first
    with contextlib.closing(Origin(site.namespace, {"late": "tcp:127.0.0.1:9100"})):
        wait_until(lambda: origins(gateway, 2)["late"], "it is tried again", 8 * SLOW)
        assert gateway.upstream("a.test")["available"]
        assert origins(gateway, 10) == {"late": 5, "one": 5}
        gateway.settle()


def test_all_down_is_tried_all_the_same(site):  # noqa: F811
    gateway = site.start(config={"routes": [route("tcp:127.0.0.1:9101")]})
    for _ in range(8):
        gateway.connect().stream.recv(10)
    assert not gateway.upstream("a.test")["available"]
    with contextlib.closing(Origin(site.namespace, {"late": "tcp:127.0.0.1:9101"})):
        assert origins(gateway, 1) == {"late": 1}
        gateway.settle()


def test_active_health(site):  # noqa: F811
    gateway = site.start(config={"routes": [
        route("tcp:127.0.0.1:9102", ONE,
              health={"interval": "100ms", "timeout": "500ms", "fall": 2, "rise": 2})]})

    def available():
        return [upstream["available"] for upstream in gateway.route("a.test")["upstreams"]]

    wait_until(lambda: available() == [False, True], "the check finds the one down", 5 * SLOW)
    attempts = gateway.counter("connect_attempts")
    assert origins(gateway, 10) == {"one": 10}
    # No client had to find out, and a check is no connection of a client's.
    assert gateway.counter("connect_attempts") == attempts + 10
    assert gateway.upstream("a.test")["connected"] == 0
    with contextlib.closing(Origin(site.namespace, {"late": "tcp:127.0.0.1:9102"})):
        wait_until(lambda: available() == [True, True], "the check finds it up", 5 * SLOW)
        assert origins(gateway, 10)["late"] > 0
        gateway.settle()
    wait_until(lambda: available() == [False, True], "the check finds it down", 5 * SLOW)
    assert "127.0.0.1:9102" in gateway.log()


def test_drained_upstream(site):  # noqa: F811
    """What an upstream has stays; new ones go elsewhere, and nowhere when all are drained."""
    both = {"routes": [route(ONE, TWO, choice="least_connections")]}
    gateway = site.start(config=both)
    held = [gateway.connect() for _ in range(8)]
    assert {client.origin() for client in held} == {"one", "two"}

    both["routes"][0]["upstreams"][0]["drain"] = True
    site.configuration(both, gateway.port)
    gateway.signal(signal.SIGHUP)
    wait_until(lambda: gateway.upstream("a.test")["drain"], "the new configuration is in use")
    assert origins(gateway, 10) == {"two": 10}
    for client in held:
        client.get(1000)
    assert gateway.upstream("a.test")["active"] == 4

    both["routes"][0]["upstreams"][1]["drain"] = True
    site.configuration(both, gateway.port)
    gateway.signal(signal.SIGHUP)
    wait_until(lambda: gateway.upstream("a.test", 1)["drain"], "the newer one is in use")
    refused_with(gateway.connect().stream, hello.INTERNAL_ERROR)
    gateway.wait_ended("no_upstream")


def test_name_from_dns(site):  # noqa: F811
    """Resolved, again after its time to live, and the last good answer kept when none comes."""
    with NameServer(site.namespace, {"up.test": ([NAMED], 1)}) as names:
        gateway = site.start("--dns-servers", names.address,
                             config={"routes": [route("tcp:up.test:9001")]})
        assert origins(gateway, 5) == {"named": 5}
        names.names["up.test"] = ([NAMED_TOO], 1)
        wait_until(lambda: origins(gateway, 1) == {"named_too": 1}, "the new address is used",
                   5 * SLOW)
        names.names["up.test"] = None
        threading.Event().wait(1.5)
        assert origins(gateway, 3) == {"named_too": 3}
        del names.names["up.test"]
        threading.Event().wait(1.5)
        names.names["up.test"] = ([NAMED, NAMED_TOO], 300)
        wait_until(lambda: len(gateway.upstream("a.test")["targets"]) == 2, "both are known",
                   15 * SLOW)
        assert origins(gateway, 3).total() == 3


def test_name_that_does_not_resolve(site):  # noqa: F811
    with NameServer(site.namespace, {}, port=5354) as names:
        gateway = site.start("--dns-servers", names.address, config={"routes": [
            route("tcp:none.test:9001"), route(ONE, names=["b.test"])]})
        refused_with(gateway.connect().stream, hello.INTERNAL_ERROR)
        gateway.wait_ended("no_upstream")
        assert origins(gateway, 1, name="b.test") == {"one": 1}
        names.names["none.test"] = ([NAMED], 60)
        wait_until(lambda: origins(gateway, 1) == {"named": 1}, "the name came up", 10 * SLOW)


def test_a_name_server_that_is_silent_holds_up_nobody(site):  # noqa: F811
    with NameServer(site.namespace, {"mute.test": None}, port=5355) as names:
        gateway = site.start("--dns-servers", names.address, config={"routes": [
            route("tcp:mute.test:9001"), route(ONE, names=["b.test"])]})
        begin = time.monotonic()
        assert origins(gateway, 3, name="b.test") == {"one": 3}
        assert time.monotonic() - begin < 1 * SLOW
        refused_with(gateway.connect().stream, hello.INTERNAL_ERROR)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0.0.0.0", "::ffff:127.0.0.1"])
def test_a_name_does_not_lead_to_the_gateways_own_loopback(site, address):  # noqa: F811
    """Whoever answers DNS queries must not choose what listens beside the gateway."""
    with NameServer(site.namespace, {"evil.test": ([address], 60)}, port=5356) as names:
        gateway = site.start("--dns-servers", names.address, config={"routes": [
            route("tcp:evil.test:9001")]})
        refused_with(gateway.connect().stream, hello.INTERNAL_ERROR)
        gateway.wait_ended("no_upstream")
        assert gateway.upstream("a.test")["targets"] == []


def test_name_from_the_hosts_file(site):  # noqa: F811
    """An operator's own file may lead anywhere. The file is seen by this one process."""
    hosts = site.directory / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n{NAMED} file.test\n", encoding="ascii")
    gateway = site.start(
        wrap=["sh", "-c", f'mount --bind {hosts} /etc/hosts && exec "$@"', "sh"],
        config={"routes": [route("tcp:file.test:9001"),
                           route("tcp:localhost:9001", names=["b.test"])]})
    assert origins(gateway, 2) == {"named": 2}
    assert origins(gateway, 2, name="b.test") == {"one": 2}


def test_race_goes_on_past_silent_ones(site):  # noqa: F811
    """More silent upstreams than are dialled at once: the one that answers is still reached."""
    silent = [f"tcp:10.99.0.200:{port}" for port in (1, 2, 3)]
    gateway = site.start("--timeouts-connect", "8s", config={"routes": [
        route(*silent, ONE, choice="race", race=2)]})
    begin = time.monotonic()
    with gateway.connect() as client:
        assert client.origin() == "one"
    assert time.monotonic() - begin < 8 * SLOW
    assert gateway.ended("connect_timeout") == 0


def test_full_unix_backlog_is_waited_for(site):  # noqa: F811
    """A unix server that is slow to accept has done nothing wrong."""
    path = str(site.directory / "slow")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(0)
        waiting = []
        while True:  # until the backlog is full
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            one.setblocking(False)
            waiting.append(one)
            try:
                one.connect(path)
            except BlockingIOError:
                break
        gateway = site.start("--timeouts-connect", "20s",
                             config={"routes": [route(f"unix:{path}")]})
        with gateway.connect() as client:
            time.sleep(0.5)
            assert gateway.active() == 1
            for _ in range(len(waiting) - 1):
                listener.accept()[0].close()
            stream, _ = listener.accept()
            with stream:
                assert stream.recv(100_000)
            client.expect_end()
        upstream = gateway.upstream("a.test")
        assert (upstream["connected"], upstream["failed"]) == (1, 0)
        for one in waiting:
            one.close()
