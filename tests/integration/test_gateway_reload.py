# SPDX-License-Identifier: Apache-2.0
"""SIGHUP swaps the configuration under load; SIGTERM drains."""

import json
import signal
import threading
import time

import pytest

from causeway_testlib import hello
from causeway_testlib.gateway import ARMS, MODELS, ONE, THREE, TWO, place, route, site  # noqa: F401
from causeway_testlib.gateway_client import refused_with
from causeway_testlib.programs import SLOW
from causeway_testlib.waiting import wait_until

MIB = 1 << 20


def configure(site, gateway, config):  # noqa: F811
    """The file's new text; text that is no JSON may be given as it is."""
    site.configuration(config, gateway.port)
    gateway.signal(signal.SIGHUP)


def labels(gateway):
    return [route["label"] for route in gateway.status()["routes"]]


@pytest.mark.parametrize("model", MODELS)
def test_reload_under_load(site, model):  # noqa: F811
    """No connection fails, whichever configuration it meets; what it had stays."""
    old, new = {"routes": [route(ONE)]}, {"routes": [route(TWO), route(THREE, names=["b.test"])]}
    gateway = site.start("--threads-model", model, config=old)
    held = [gateway.connect() for _ in range(20)]
    for client in held:
        client.get(1000)
    stop, failures, done = threading.Event(), [], []

    def load():
        while not stop.is_set():
            try:
                with gateway.connect() as client:
                    client.get(20_000)
                    done.append(client.origin())
            except (AssertionError, OSError, ValueError) as error:
                failures.append(error)

    threads = [threading.Thread(target=load, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(20):
        configure(site, gateway, new if turn % 2 == 0 else old)
        wanted = 2 if turn % 2 == 0 else 1
        wait_until(lambda: len(labels(gateway)) == wanted, "the configuration is in use", 5 * SLOW)
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]
    assert {"one", "two"} <= set(done)
    for client in held:
        client.get(100_000)
        assert client.origin() == "one"
    assert gateway.status()["last_reload_error"] == ""


def test_what_a_reload_changes(site):  # noqa: F811
    gateway = site.start(config={"routes": [route(ONE)]})
    held = gateway.connect()
    held.get(1)
    configure(site, gateway, {"routes": [route(TWO, names=["b.test"])],
                              "timeouts": {"idle": "1s"}, "splice": {"after": "0B"}})
    wait_until(lambda: labels(gateway) == ["b.test"], "the new route is there")
    refused_with(gateway.connect("a.test").stream, hello.UNRECOGNIZED_NAME)
    with gateway.connect("b.test") as client:
        assert client.origin() == "two"
    assert gateway.status()["splice"] == "at once"
    # A connection keeps the route and the timeouts that it was accepted with.
    time.sleep(1.6)
    held.get(1000)
    assert held.origin() == "one"
    with gateway.connect("b.test") as client:
        client.get(1)
        client.expect_reset()


def test_counts_survive_a_reload(site):  # noqa: F811
    config = {"routes": [route(ONE, max_connections=2)]}
    gateway = site.start(config=config)
    held = [gateway.connect() for _ in range(2)]
    for client in held:
        client.get(1)
    config["routes"].append(route(TWO, names=["b.test"]))
    configure(site, gateway, config)
    wait_until(lambda: len(labels(gateway)) == 2, "the new route is there")
    found = gateway.route("a.test")
    assert (found["active"], found["total"]) == (2, 2)
    assert found["upstreams"][0]["connected"] == 2
    refused_with(gateway.connect().stream, hello.INTERNAL_ERROR)
    gateway.wait_ended("route_limit")


BAD_RELOADS = {
    "no_json": ("{ nonsense", ()),
    "unknown_key": ({"routes": [route(ONE)], "rotues": []}, ("rotues",)),
    "overlap": ({"routes": [route(ONE), route(TWO)]}, ("overlapping", "a.test")),
    "terminate": ({"routes": [route(ONE, mode="terminate")]}, ("needs a certificate",)),
    "no_upstream": ({"routes": [route()]}, ("upstream",)),
    "bad_name": ({"routes": [route(ONE, names=["a..test"])]}, ("a..test",)),
}


@pytest.mark.parametrize("case", BAD_RELOADS)
def test_bad_configuration_leaves_the_old_one_serving(site, case):  # noqa: F811
    text, words = BAD_RELOADS[case]
    gateway = site.start(config={"routes": [route(ONE)]})
    held = gateway.connect()
    held.get(1)
    configure(site, gateway, text)
    error = wait_until(lambda: gateway.status()["last_reload_error"], "the fault is reported")
    for word in (f"g{gateway.port}.json", *words):
        assert word in error, error
    assert error in gateway.log()
    with gateway.connect() as client:
        assert client.origin() == "one"
    held.get(1000)
    # And a good one clears it.
    configure(site, gateway, {"routes": [route(TWO)]})
    wait_until(lambda: gateway.status()["last_reload_error"] == "", "the good one is taken")

    def new_one():
        with gateway.connect() as client:
            return client.origin() == "two"

    wait_until(new_one, "the good one is in use")
    assert held.origin() == "one"


def test_what_only_a_restart_changes_is_said(site):  # noqa: F811
    gateway = site.start(config={"routes": [route(ONE)]})
    port = site.place.port()
    configure(site, gateway, {"routes": [route(ONE)], "listeners": [
        {"address": f"tcp:127.0.0.1:{port}"}]})
    wait_until(lambda: "restart" in gateway.log(), "it says that listeners need a restart")
    with pytest.raises(ConnectionRefusedError):
        gateway.dial(("127.0.0.1", port))
    with gateway.connect() as client:
        client.get(1)


def test_reload_with_the_file_gone(site):  # noqa: F811
    gateway = site.start(config={"routes": [route(ONE)]})
    (site.directory / f"g{gateway.port}.json").unlink()
    gateway.signal(signal.SIGHUP)
    wait_until(lambda: gateway.status()["last_reload_error"], "the fault is reported")
    with gateway.connect() as client:
        client.get(1)


def test_reload_without_a_file(site):  # noqa: F811
    """SIGHUP does not end a gateway that has flags alone."""
    gateway = site.start()
    gateway.signal(signal.SIGHUP)
    with gateway.connect() as client:
        client.get(1)
    assert gateway.running()


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("model", MODELS)
def test_drain(site, arm, model):  # noqa: F811
    """New clients are refused by the kernel, old ones finish, and it ends with 0 when they have."""
    gateway = site.start(*ARMS[arm], "--threads-model", model, drain="30s")
    gateway.settles = False
    busy, quiet = gateway.connect(), gateway.connect()
    busy.get(1)
    quiet.get(1)
    busy.ask("trickle", 60, 20)
    begin = time.monotonic()
    gateway.signal(signal.SIGTERM)

    def refused():
        try:
            gateway.dial().close()
        except ConnectionRefusedError:
            return True
        return False

    wait_until(refused, "new connections are refused", 5 * SLOW)
    quiet.get(2 * MIB)
    quiet.put(2 * MIB)
    quiet.end()
    quiet.expect_end()
    assert busy.reader.exactly(60 * 64)[0] == 60 * 64
    busy.expect_end()
    assert gateway.running()
    busy.end()
    assert gateway.wait(5 * SLOW) == 0
    assert time.monotonic() - begin < 10 * SLOW


def test_drain_timeout(site):  # noqa: F811
    """What is still there then is reset, and the program ends all the same."""
    gateway = site.start(drain="1s")
    gateway.settles = False
    client = gateway.connect()
    client.get(1)
    half = gateway.dial()
    half.sendall(hello.hello()[:20])
    begin = time.monotonic()
    gateway.signal(signal.SIGTERM)
    client.expect_reset()
    assert 0.9 <= time.monotonic() - begin <= 2 * SLOW
    assert gateway.wait(5 * SLOW) == 0


def test_drain_is_shown_and_a_second_signal_hurries(site):  # noqa: F811
    gateway = site.start(drain="60s")
    gateway.settles = False
    client = gateway.connect()
    client.get(1)
    gateway.signal(signal.SIGTERM)
    time.sleep(0.2)
    client.get(1000)
    assert gateway.running()
    gateway.signal(signal.SIGTERM)
    assert gateway.wait(5 * SLOW) == 0
    client.expect_reset()


def test_drain_without_connections_is_immediate(site):  # noqa: F811
    gateway = site.start(drain="30s")
    with gateway.connect() as client:
        client.get(1)
    gateway.wait_active(0)
    code, seconds = gateway.terminate(5 * SLOW)
    assert code == 0 and seconds < 1 * SLOW


def test_a_second_gateway_on_the_same_port(site):  # noqa: F811
    """Refused, although SO_REUSEPORT would let it in and split the clients between the two."""
    gateway = site.start()
    result = site.run("--listen", f"tcp:127.0.0.1:{gateway.port}", "--passthrough",
                      f"a.test={ONE}")
    assert result.returncode == 1, result.stderr
    assert str(gateway.port) in result.stderr and len(result.stderr.splitlines()) == 1
    with gateway.connect() as client:
        client.get(1)


def test_status_is_whole_json(site):  # noqa: F811
    gateway = site.start(config={"routes": [route(ONE, TWO), route(THREE, names=["*.b.test"])]})
    status = gateway.status()
    for key in ("program", "version", "commit", "pid", "uptime_seconds", "threads_model",
                "rebalance", "splice", "workers", "connections", "counters", "ended", "pipes",
                "listeners", "routes", "warnings", "last_reload_error"):
        assert key in status, key
    assert status["program"] == "causeway-gateway"
    (listener,) = status["listeners"]
    assert listener["address"] == f"tcp:127.0.0.1:{gateway.port}"
    assert listener["proxy_protocol"] is None
    first = status["routes"][0]
    assert first["names"] == ["a.test"] and first["mode"] == "passthrough"
    assert [upstream["targets"] for upstream in first["upstreams"]] == [[ONE], [TWO]]
    assert json.loads(json.dumps(status)) == status
