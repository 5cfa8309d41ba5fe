# SPDX-License-Identifier: Apache-2.0
"""ClientHellos of every legal shape are relayed; what is refused hears the right TLS alert and an
orderly end, and is counted under its reason."""

import time

import pytest

from causeway_testlib import hello
from causeway_testlib.gateway import ONE, TWO, place, route, site  # noqa: F401
from causeway_testlib.gateway_client import Client, refused_with, together
from causeway_testlib.origin import reset
from causeway_testlib.programs import SLOW

KIB = 1024


@pytest.fixture
def gateway(site):  # noqa: F811
    return site.start()


SHAPES = {
    "plain": {},
    "with_alpn": {"alpn": ["h2", "http/1.1"]},
    "browser": {"browser": True, "alpn": ["h2", "http/1.1"]},
    "uppercase": {"name": "A.TeSt"},
    "trailing_dot": {"name": "a.test."},
    "records_of_one_byte": {"step": 1},
    "records_of_100": {"browser": True, "step": 100},
    "4KiB": {"size": 4 * KIB},
    "16KiB_in_one_record": {"size": 16 * KIB},
    "16KiB_in_records": {"size": 16 * KIB, "step": 5000},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_legal_hello(gateway, shape):
    with gateway.connect(**SHAPES[shape]) as client:
        client.get(1000)
    sent = hello.hello(**SHAPES[shape])
    stream = gateway.dial()
    for at in range(0, len(sent), 700):
        stream.sendall(sent[at:at + 700])
        time.sleep(0.001)
    Client(stream).get(1000)


@pytest.mark.parametrize("shape", ["plain", "browser", "records_of_one_byte"])
def test_hello_in_segments_of_one_byte(gateway, shape):
    stream = gateway.dial()
    for byte in hello.hello(**SHAPES[shape]):
        stream.sendall(bytes([byte]))
    Client(stream).get(1000)


def malformed(change):
    """The bytes of a hello after change(bytearray of the handshake message)."""
    message = bytearray(hello.message())
    change(message)
    return hello.records(bytes(message))


def extensions_too_long(message):
    """The list of extensions claims a byte more than the message has."""
    at = 4 + 2 + 32 + 33 + 2 + 10 + 2
    size = int.from_bytes(message[at:at + 2], "big")
    assert len(message) == at + 2 + size
    message[at:at + 2] = (size + 1).to_bytes(2, "big")


def long_session_id(message):
    message[4 + 2 + 32] = 33


def two_names():
    body = hello.vector(2, b"\0" + hello.vector(2, b"a.test") + b"\0" + hello.vector(2, b"b.test"))
    return hello.records(hello.message(None, extra=hello.extension(hello.SERVER_NAME, body)))


REFUSED = {
    "unknown_name": (hello.hello("other.test"), "unknown_name", hello.UNRECOGNIZED_NAME),
    "parent_of_a_route": (hello.hello("test"), "unknown_name", hello.UNRECOGNIZED_NAME),
    "child_of_a_route": (hello.hello("x.a.test"), "unknown_name", hello.UNRECOGNIZED_NAME),
    "no_name": (hello.hello(None), "no_name", hello.UNRECOGNIZED_NAME),
    "address_as_name": (hello.hello("127.0.0.1"), "bad_name", hello.UNRECOGNIZED_NAME),
    "empty_label": (hello.hello("a..test"), "bad_name", hello.UNRECOGNIZED_NAME),
    "control_bytes": (hello.hello(b"a\r\nx: y.test"), "bad_name", hello.UNRECOGNIZED_NAME),
    "bad_utf8": (hello.hello(b"\xff\xfe.test"), "bad_name", hello.UNRECOGNIZED_NAME),
    "nul_in_name": (hello.hello(b"a.test\0.b.test"), "bad_name", hello.UNRECOGNIZED_NAME),
    "name_of_12KB": (hello.hello(b"a" * 12000), "bad_name", hello.UNRECOGNIZED_NAME),
    "two_names": (two_names(), "malformed_hello", hello.ILLEGAL_PARAMETER),
    "extensions_too_long": (malformed(extensions_too_long), "malformed_hello", hello.DECODE_ERROR),
    "session_id_of_33": (malformed(long_session_id), "malformed_hello", hello.DECODE_ERROR),
    "empty_record": (hello.record(22, b""), "malformed_hello", hello.DECODE_ERROR),
    "record_too_long": (b"\x16\x03\x01\x40\x01" + bytes(100), "hello_too_long",
                        hello.RECORD_OVERFLOW),
    "message_too_long": (hello.hello(size=16 * KIB + 1), "hello_too_long",
                         hello.ILLEGAL_PARAMETER),
    "too_many_records": (hello.hello(size=8 * KIB, step=2), "hello_too_long",
                         hello.ILLEGAL_PARAMETER),
    "http": (b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "not_tls", hello.UNEXPECTED_MESSAGE),
    "ssh": (b"SSH-2.0-OpenSSH_9.2\r\n", "not_tls", hello.UNEXPECTED_MESSAGE),
    "sslv2": (b"\x80\x2e\x01\x00\x02" + bytes(41), "not_tls", hello.UNEXPECTED_MESSAGE),
    "alert_first": (hello.alert(40), "not_tls", hello.UNEXPECTED_MESSAGE),
    "server_hello": (hello.record(22, b"\x02\0\0\x26" + bytes(38)), "not_tls",
                     hello.UNEXPECTED_MESSAGE),
    "proxy_header_nobody_wants": (b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n" + hello.hello(), "not_tls",
                                  hello.UNEXPECTED_MESSAGE),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(gateway, case):
    sent, reason, code = REFUSED[case]
    stream = gateway.dial()
    stream.sendall(sent)
    refused_with(stream, code)
    gateway.wait_ended(reason)
    assert gateway.counter("relayed") == 0

    # The same in segments of one byte; the gateway may have answered before all of it came.
    stream = gateway.dial()
    for byte in sent[:300]:
        stream.sendall(bytes([byte]))
    if len(sent) <= 300:
        refused_with(stream, code)
        gateway.wait_ended(reason, 2)


def test_refused_client_that_goes_on_sending(gateway):
    """What comes after a refusal is read away within bounds, so that the alert is not lost to a
    reset; a client that never stops is cut."""
    stream = gateway.dial()
    stream.sendall(hello.hello("other.test") + bytes(100_000))
    refused_with(stream, hello.UNRECOGNIZED_NAME)

    stream = gateway.dial()
    stream.sendall(hello.hello("other.test"))
    sent, begin = 0, time.monotonic()
    try:
        while time.monotonic() - begin < 20 * SLOW:
            sent += stream.send(bytes(1 << 16))
    except (ConnectionError, TimeoutError):
        pass
    assert sent < 64 << 20 and time.monotonic() - begin < 10 * SLOW
    gateway.wait_ended("unknown_name", 2)


def test_refused_client_that_stays(site):  # noqa: F811
    """The end of a refused client's stream is not waited for without bound."""
    gateway = site.start("--timeouts-shutdown", "1s")
    streams = [gateway.dial() for _ in range(20)]
    for stream in streams:
        stream.sendall(hello.hello("other.test"))
    gateway.wait_active(0, 8)
    for stream in streams:
        assert stream.recv(100) == hello.alert(hello.UNRECOGNIZED_NAME)


def test_client_leaves_before_its_hello_is_complete(gateway):
    whole = hello.hello()
    for part in (b"", whole[:1], whole[:5], whole[:100], whole[:-1]):
        stream = gateway.dial()
        stream.sendall(part)
        stream.close()
        stream = gateway.dial()
        stream.sendall(part)
        reset(stream)
    gateway.wait_ended("client_left", 10)


def test_handshake_timeout(site):  # noqa: F811
    gateway = site.start("--timeouts-handshake", "1s", "--timeouts-shutdown", "1s")
    whole = hello.hello()

    def silent(part):
        def work():
            stream = gateway.dial()
            begin = time.monotonic()
            stream.sendall(part)
            refused_with(stream, hello.HANDSHAKE_FAILURE)
            assert 0.9 <= time.monotonic() - begin <= 1.5 * SLOW
        return work

    def drip():
        """Each byte is progress, none of it buys more time."""
        stream = gateway.dial()
        begin = time.monotonic()
        try:
            for byte in whole:
                stream.sendall(bytes([byte]))
                time.sleep(0.05)
        except ConnectionError:
            pass
        assert time.monotonic() - begin <= 2.5 * SLOW

    works = [silent(b""), silent(whole[:1]), silent(whole[:-1]), drip]
    together(len(works), lambda index: works[index]())
    gateway.wait_ended("handshake_timeout", len(works))


def test_many_slow_clients_hold_up_nobody(site):  # noqa: F811
    """Slow-loris: 500 half hellos, and a client among them is served at once."""
    gateway = site.start("--timeouts-handshake", "3s")
    part = hello.hello()[:-10]
    slow = [gateway.dial() for _ in range(500)]
    for stream in slow:
        stream.sendall(part)
    gateway.wait_active(500)
    begin = time.monotonic()
    with gateway.connect() as client:
        client.get(100_000)
    assert time.monotonic() - begin < 1 * SLOW
    gateway.wait_ended("handshake_timeout", 500)


def test_what_is_no_tls_goes_where_the_default_route_takes_it(site):  # noqa: F811
    gateway = site.start(config={"routes": [
        route(TWO), route(ONE, names=["default"], non_tls=True)]})
    client = Client(gateway.dial())
    client.get(1000)
    assert client.origin() == "one"
    with gateway.connect("unknown.test") as client:
        assert client.origin() == "one"
    with gateway.connect("a.test") as client:
        assert client.origin() == "two"
    # A hello that lies is no reason to relay it.
    stream = gateway.dial()
    stream.sendall(malformed(extensions_too_long))
    refused_with(stream, hello.DECODE_ERROR)


def test_refusals_are_not_logged_as_our_errors(gateway):
    for sent, _, _ in REFUSED.values():
        stream = gateway.dial()
        stream.sendall(sent)
        stream.recv(100)
    assert "error" not in gateway.log().lower()
    # Nothing that a client sends reaches the log as it is.
    assert "x: y" not in gateway.log()
