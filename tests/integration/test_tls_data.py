# SPDX-License-Identifier: Apache-2.0
"""Every byte, in both directions, through TLS of both versions that ends in the gateway.

The gateway serves all tests of this module, so counts are compared before and after.
"""

import socket
import threading
import time

import pytest

from causeway_testlib import origin
from causeway_testlib.gateway import ONE, Site, place, site  # noqa: F401
from causeway_testlib.gateway_client import together
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.tls_client import (  # noqa: F401
    COMBINATIONS, NAMES, VERSIONS, connect, start, terminating, version)
from causeway_testlib.tls_openssl import Openssl
from causeway_testlib.tls_pki import pki
from causeway_testlib.tls_stream import in_records, in_segments, keeping
from causeway_testlib.waiting import wait_until

MIB = 1 << 20
LARGE = (20 if SANITIZED else 100) * MIB
SIZES = [0, 1, 16383, 16384, 16385, MIB]
# By the counter: TLS 1.2's names by kind of certificate, and TLS 1.3's.
CIPHERS = {
    "aes_128_gcm": ("ECDHE-{}-AES128-GCM-SHA256", "TLS_AES_128_GCM_SHA256"),
    "aes_256_gcm": ("ECDHE-{}-AES256-GCM-SHA384", "TLS_AES_256_GCM_SHA384"),
    "chacha20_poly1305": ("ECDHE-{}-CHACHA20-POLY1305", "TLS_CHACHA20_POLY1305_SHA256"),
}


@pytest.fixture(scope="module")
def served(place):  # noqa: F811
    made = Site(place)
    yield start(made)
    made.close()


@pytest.fixture
def gateway(served):
    yield served
    served.settle()


@pytest.fixture(params=COMBINATIONS)
def to(request, gateway):
    """Connects by one version to the name with one kind of certificate."""
    number, kind = request.param.split("-")
    return lambda **more: connect(gateway, NAMES[kind], number, **more)


def counted(gateway, *names):
    counters = gateway.status()["counters"]
    return [counters[name] for name in names]


def test_sizes_on_a_connection_each(to):
    for size in SIZES:
        with to() as client:
            client.get(size)
            client.end()
            client.expect_end()
        with to() as client:
            client.put(size)
            client.end()
            client.expect_end()


def test_sizes_on_one_connection(to):
    for first, second in (("get", "put"), ("put", "get")):
        with to() as client:
            for size in SIZES:
                getattr(client, first)(size)
                getattr(client, second)(size)
            client.end()
            client.expect_end()


@pytest.mark.parametrize("way", ["get", "put"])
def test_large_payload(to, way):
    with to() as client:
        getattr(client, way)(LARGE)
        client.get(1)


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("cipher", CIPHERS)
def test_each_cipher_1_2(gateway, cipher, kind):
    name = CIPHERS[cipher][0].format(kind.upper())
    check_cipher(gateway, cipher, lambda: connect(gateway, NAMES[kind], "1.2", ciphers=name))


@pytest.mark.parametrize("cipher", CIPHERS)
def test_each_cipher_1_3(gateway, site, cipher):  # noqa: F811
    """Python's module cannot choose among these; OpenSSL's program can."""
    check_cipher(gateway, cipher, lambda: Openssl(site, gateway, "-tls1_3", "-ciphersuites",
                                                  CIPHERS[cipher][1]))


def check_cipher(gateway, cipher, make):
    before = counted(gateway, *CIPHERS)
    with make() as client:
        client.get(LARGE)
        client.put(LARGE)
    more = [after - first for after, first in zip(counted(gateway, *CIPHERS), before)]
    assert more == [int(name == cipher) for name in CIPHERS]


@pytest.mark.parametrize("cipher", CIPHERS)
def test_handshakes_are_counted(gateway, cipher):
    names = ("handshakes_full", "handshakes_resumed", "tls_1_2", "tls_1_3", *CIPHERS)
    before = counted(gateway, *names)
    with connect(gateway, "a.test", "1.2", ciphers=CIPHERS[cipher][0].format("ECDSA")) as client:
        client.get(1)
    with connect(gateway, "a.test", "1.3") as client:
        client.get(1)
        assert client.stream.facts()["cipher"] == "TLS_AES_256_GCM_SHA384"
    more = [after - first for after, first in zip(counted(gateway, *names), before)]
    expected = {"aes_256_gcm": 1}
    expected[cipher] = expected.get(cipher, 0) + 1
    assert more == [2, 0, 1, 1, *(expected.get(name, 0) for name in CIPHERS)]


def test_16_concurrent(to):
    def work(index):
        with to() as client:
            for _ in range(2):
                client.get(256 * 1024 + index)
                client.put(256 * 1024 - index)

    together(16, work)


def test_256_concurrent(to, gateway):
    def work(index):
        with to() as client:
            client.get(48 * 1024 + 128 * index)
            client.put(48 * 1024 + 128 * index)
            client.end()
            client.expect_end()

    before = gateway.counter("relayed")
    together(256, work)
    assert gateway.counter("relayed") == before + 256


def test_both_directions_at_once(to):
    size = 8 * MIB
    with to() as client:
        client.ask("echo")
        # Sealed before: Python's TLS must not be used by two threads at once.
        sealed = b"".join(client.stream.seal(piece) for piece in origin.pieces(size))
        sender = threading.Thread(target=client.stream.socket.sendall, args=[sealed], daemon=True)
        sender.start()
        client.expect(size)
        sender.join()
        client.end()
        client.expect_end()


def test_small_messages_in_both_directions_alternate(to):
    with to() as client:
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


def test_many_small_records(to):
    """5,000 records of 1 to 64 bytes sent at once: one answer to each byte."""
    sizes = [1 + index * 7 % 64 for index in range(5000)]
    with to() as client:
        client.ask("upload", sum(sizes))
        data = b"".join(bytes(piece) for piece in origin.pieces(sum(sizes)))
        sealed, at = b"", 0
        for size in sizes:
            sealed += client.stream.seal(data[at:at + size])
            at += size
        client.stream.socket.sendall(sealed)
        assert client.reader.line() == f"{sum(sizes)} {origin.digest(sum(sizes))}"


def test_records_in_small_segments(to):
    """Records come in parts, whatever the parts."""
    with to() as client:
        client.stream.transmit = in_segments(1)
        client.put(3000)
        client.stream.transmit = in_segments(1000)
        client.put(200_000)
        client.stream.transmit = in_segments(16384)
        client.put(MIB)


@pytest.mark.parametrize("way", ["segments", "records", "records_of_100"])
def test_handshake_in_pieces(to, way):
    """In segments of one byte; the hello in records of one byte, and what follows in as small ones
    as mbedTLS takes."""
    transmit = {"segments": in_segments(1), "records": in_records(1, then=4),
                "records_of_100": in_records(100)}[way]
    with to(transmit=transmit) as client:
        client.get(100_000)
        client.put(3000)


def test_request_in_the_same_segment_as_the_finished(to):
    client = to(handshake=False)
    sent = []

    def hold(sock, data):
        if not sent:  # the hello goes
            sock.sendall(data)
        sent.append(data)

    client.stream.transmit = hold
    if client.stream.tls.context.maximum_version.name == "TLSv1_3":
        client.stream.handshake()
        client.send(b"/bytes/5\n/close/100000\n")
        client.stream.socket.sendall(b"".join(sent[1:]))
        client.stream.transmit = socket.socket.sendall
    else:
        # In TLS 1.2 the client waits for the server's Finished; the request is sealed at once.
        client.stream.transmit = socket.socket.sendall
        client.stream.handshake()
        client.send(b"/bytes/5\n/close/100000\n")
    client.expect(5)
    client.expect(100_000)
    client.expect_end()
    client.close()


def test_bytes_are_counted(to, gateway):
    """Those of the application, not TLS's own."""
    up, down = counted(gateway, "bytes_to_upstream", "bytes_to_client")
    sent = b"/bytes/300000\n"
    with to() as client:
        client.send(sent)
        client.expect(300_000)
    wait_until(lambda: counted(gateway, "bytes_to_upstream", "bytes_to_client")
               == [up + len(sent), down + 300_000], "every byte is counted", 5 * SLOW)


def test_bulk_in_full_records(gateway, version):  # noqa: F811
    """A bulk answer comes in records of 16 KiB, but for a few."""
    with connect(gateway, version=version) as client:
        client.ask("bytes", 10 * MIB)
        count = left = 10 * MIB
        seen = []
        while left:
            record = client.stream.record()
            seen.append(len(record))
            left -= len(client.stream.take(record))
        assert len(seen) <= 2.5 * count / 16384, f"{len(seen)} records"


def test_a_record_never_says_less_than_it_could_have(gateway, version):  # noqa: F811
    """A small answer is one record, which goes at once."""
    kept = []
    with connect(gateway, version=version, transmit=keeping(kept)) as client:
        for _ in range(50):
            client.get(200)
        client.ask("bytes", 200)
        record = client.stream.record()
        assert len(client.stream.take(record)) == 200
        assert len(record) <= 200 + 5 + 8 + 16 + 16


@pytest.mark.parametrize("upstream", ["unix:{}/origin", "tcp:[::1]:9004"])
def test_upstreams_of_other_families(site, version, upstream):  # noqa: F811
    gateway = start(site, routes=[terminating(upstream.format(site.directory))])
    with connect(gateway, version=version) as client:
        assert client.origin() == ("unix" if upstream[0] == "u" else "v6")
        client.get(MIB)
        client.put(MIB)
        client.end()
        client.expect_end()
    gateway.wait_ended("orderly")


@pytest.mark.parametrize("model", ["per_core", "shared"])
def test_flags_alone(site, model):  # noqa: F811
    """--cert, --key, --upstream, --terminate: without a file."""
    gateway = site.start("--cert", pki().ecdsa.cert, "--key", pki().ecdsa.key, "--upstream", ONE,
                         "--terminate", "x.w.test=tcp:127.0.0.1:9002", "--threads-model", model,
                         route=False)
    for number in VERSIONS:
        with connect(gateway, "a.test", number) as client:
            assert client.origin() == "one"
        with connect(gateway, "x.w.test", number) as client:
            assert client.origin() == "two"
            client.get(MIB)


@pytest.mark.parametrize("model", ["per_core", "shared"])
def test_handed_over(site, model):  # noqa: F811
    """Connections that change the worker before their handshake."""
    gateway = start(site, "--rebalance", "true", "--threads-model", model)

    def work(index):
        for _ in range(5):
            with connect(gateway, version=VERSIONS[index % 2]) as client:
                client.get(10_000)
                client.put(10_000)

    together(16, work)
    workers = gateway.status()["workers"]
    assert all(worker["counters"]["handshakes_full"] for worker in workers)
