# SPDX-License-Identifier: Apache-2.0
"""Every byte, in both directions, through each relay and each spread over the workers.

The gateways serve all tests of this module, so counts are compared before and after.
"""

import hashlib
import threading
import time

import pytest

from causeway_testlib import hello, origin
from causeway_testlib.gateway import ARMS, GATE, MODELS, Site, place  # noqa: F401
from causeway_testlib.gateway_client import together
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.waiting import wait_until

MIB = 1 << 20
SIZES = [0, 1, 1024, GATE - 1, GATE, GATE + 1, MIB]
COMBINATIONS = [f"{arm}-{model}" for arm in ARMS for model in MODELS]


@pytest.fixture(scope="module")
def gateways(place):  # noqa: F811
    """One for each combination, by name; started when first asked for."""
    site, started = Site(place), {}

    def get(combination):
        if combination not in started:
            arm, model = combination.split("-")
            started[combination] = site.start(*ARMS[arm], "--threads-model", model)
        return started[combination]

    yield get
    site.close()


@pytest.fixture(params=COMBINATIONS)
def gateway(request, gateways):
    used = gateways(request.param)
    yield used
    used.settle()


@pytest.fixture(params=[name for name in COMBINATIONS if name.endswith("per_core")])
def gateway_of_each_arm(request, gateways):
    return gateways(request.param)


def arm_of(request):
    return request.node.callspec.params["gateway"].split("-")[0]


def test_sizes_on_a_connection_each(gateway):
    for size in SIZES:
        with gateway.connect() as client:
            client.get(size)
            client.end()
            client.expect_end()
        with gateway.connect() as client:
            client.put(size)
            client.end()
            client.expect_end()


def test_sizes_on_one_connection(gateway):
    """The gate is passed somewhere on the way, in the one and in the other direction."""
    for first, second in (("get", "put"), ("put", "get")):
        with gateway.connect() as client:
            for size in SIZES:
                getattr(client, first)(size)
                getattr(client, second)(size)
                getattr(client, first)(1000)
            client.end()
            client.expect_end()


@pytest.mark.parametrize("way", ["get", "put"])
def test_large_payload(gateway_of_each_arm, way):
    with gateway_of_each_arm.connect() as client:
        getattr(client, way)((20 if SANITIZED else 100) * MIB)
        client.get(1)


def test_16_concurrent(gateway):
    def work(index):
        with gateway.connect() as client:
            for _ in range(2):
                client.get(256 * 1024 + index)
                client.put(256 * 1024 - index)

    together(16, work)


def test_256_concurrent(gateway):
    def work(index):
        with gateway.connect() as client:
            client.get(48 * 1024 + 128 * index)
            client.put(48 * 1024 + 128 * index)
            client.end()
            client.expect_end()

    before = gateway.counter("relayed")
    together(256, work)
    assert gateway.counter("relayed") == before + 256


def test_both_directions_at_once(gateway):
    size = 8 * MIB
    with gateway.connect() as client:
        client.ask("echo")

        def send():
            for piece in origin.pieces(size):
                client.send(piece)
            client.end()

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        client.expect(size)
        client.expect_end()
        sender.join()


def test_the_hello_arrives_unchanged(gateway):
    sent = hello.hello(browser=True, alpn=["h2", "http/1.1"])
    stream = gateway.dial()
    stream.sendall(sent)
    stream.sendall(b"/info\n")
    assert hashlib.sha256(sent).hexdigest() in stream.recv(4096).decode()


def test_request_in_the_same_segment_as_the_hello(gateway):
    stream = gateway.dial()
    stream.sendall(hello.hello() + b"/bytes/5\n/close/100000\n")
    data = b""
    while part := stream.recv(1 << 20):
        data += part
    assert hashlib.sha256(data[:5]).hexdigest() == origin.digest(5)
    assert hashlib.sha256(data[5:]).hexdigest() == origin.digest(100000)


def test_what_moves_to_splice(gateway, request):
    """Small exchanges stay in the buffers unless the gate is open from the start."""
    def spliced(*sizes):
        """A size None is a wait until the gate by time is open."""
        before = gateway.counter("spliced")
        with gateway.connect() as client:
            for size in sizes:
                if size is None:
                    time.sleep(0.25)
                else:
                    client.get(size)
            client.end()
            client.expect_end()
            gateway.wait_active(0)
        return gateway.counter("spliced") - before

    arm = arm_of(request)
    assert spliced(1000, 1000) == (1 if arm == "at_once" else 0)
    begin = time.monotonic()
    count = spliced(MIB, 1000, 1000)
    if arm != "by_time" or time.monotonic() - begin < 0.15:
        assert count == (1 if arm in ("at_once", "by_bytes") else 0)
    assert spliced(1000, None, MIB, 1000) == (0 if arm == "buffered" else 1)
    if arm == "buffered":
        assert gateway.status()["pipes"] == {"idle": 0, "in_use": 0}


def test_status_names_the_gate(gateway, request):
    status = gateway.status()
    assert status["splice"] == {"buffered": "off", "at_once": "at once",
                                "by_bytes": "after 64KiB", "by_time": "after 200ms"}[
                                    arm_of(request)]
    assert status["threads_model"] == request.node.callspec.params["gateway"].split("-")[1]
    assert len(status["workers"]) == 2


def test_bytes_are_counted(gateway):
    def moved():
        counters = gateway.status()["counters"]
        return counters["bytes_to_upstream"], counters["bytes_to_client"]

    up, down = moved()
    sent = hello.hello() + b"/bytes/300000\n"
    stream = gateway.dial()
    stream.sendall(sent)
    left = 300000
    while left:
        left -= len(stream.recv(left))
    stream.close()
    wait_until(lambda: moved() == (up + len(sent), down + 300000), "every byte is counted",
               5 * SLOW)


def test_small_messages_in_both_directions_alternate(gateway):
    """Ping-pong of 1 to 200 bytes over the gate by time: nothing waits for more."""
    with gateway.connect() as client:
        client.ask("echo")
        begin = time.monotonic()
        for index in range(400):
            word = bytes([index & 0xFF]) * (1 + index % 200)
            client.send(word)
            answer = b""
            while len(answer) < len(word):
                answer += client.reader.some(len(word) - len(answer))
            assert answer == word
        assert time.monotonic() - begin < 2 * SLOW
