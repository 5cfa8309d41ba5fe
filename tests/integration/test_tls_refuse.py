# SPDX-License-Identifier: Apache-2.0
"""What breaks TLS, in the handshake and after it: one counted reason each, the right alert where
there is someone to hear it, and a gateway that goes on serving."""

import random
import ssl

import pytest

from causeway_testlib import hello
from causeway_testlib.gateway import place, site  # noqa: F401
from causeway_testlib.gateway_client import gone, refused_with, together
from causeway_testlib.origin import reset
from causeway_testlib.programs import SLOW
from causeway_testlib.tls_client import (  # noqa: F401
    connect, faults, refused, start, version, wait_fault)
from causeway_testlib.tls_openssl import Openssl, handshake, s_client
from causeway_testlib.tls_stream import Stopped, keeping, records, up_to
from causeway_testlib.waiting import wait_until


@pytest.fixture
def gateway(site):  # noqa: F811
    made = start(site, "--timeouts-shutdown", "1s")
    yield made
    # Whatever came before: it serves.
    with connect(made) as client:
        client.get(1000)
    assert "error" not in made.log().lower()


def clear_alert(data):
    """The number in the last record, an alert in clear."""
    assert len(data) >= 7 and data[-7] == 21 and data[-4:-2] == b"\0\2" and data[-2] == 2, \
        data[-100:].hex()
    return data[-1]


# -- in the handshake

# What a client says behind its ClientHello, in clear. The answer is in clear too, but under TLS
# 1.3, where the gateway already has keys.
AFTER_THE_HELLO = {
    "no_record": (b"\xff" * 64, "bad_record", hello.DECODE_ERROR),
    "http": (b"GET / HTTP/1.1\r\n\r\n", "bad_record", hello.DECODE_ERROR),
    "empty_record": (b"\x16\x03\x03\0\0", "bad_record", hello.DECODE_ERROR),
    "too_long": (b"\x16\x03\x03\x41\x2c" + bytes(16384 + 300), "record_overflow",
                 hello.RECORD_OVERFLOW),
    "data_too_long": (b"\x17\x03\x03\x41\x2c" + bytes(16384 + 300), "record_overflow",
                      hello.RECORD_OVERFLOW),
}


@pytest.mark.parametrize("case", AFTER_THE_HELLO)
def test_behind_the_hello(gateway, version, case):  # noqa: F811
    sent, fault, code = AFTER_THE_HELLO[case]
    client = connect(gateway, version=version, handshake=False, transmit=up_to(1, sent))
    with pytest.raises(Stopped):
        client.stream.handshake()
    data = client.stream.held() + gone(client.stream.socket)
    if version == "1.2":
        assert clear_alert(data) == code
    wait_fault(gateway, "tls_failed", fault)


def test_data_in_place_of_a_key_exchange(gateway):
    """TLS 1.2: application data before there are keys."""
    client = connect(gateway, version="1.2", handshake=False,
                     transmit=up_to(1, hello.record(23, b"/bytes/7\n", 0x0303)))
    with pytest.raises(Stopped):
        client.stream.handshake()
    data = client.stream.held() + gone(client.stream.socket)
    assert clear_alert(data) == hello.UNEXPECTED_MESSAGE
    wait_fault(gateway, "tls_failed", "unexpected_message")


KEY_EXCHANGES = {
    "no_point": b"\x10\0\0\x21\x20" + b"\xff" * 32,
    "empty": b"\x10\0\0\1\0",
    "length_lies": b"\x10\0\0\x21\x40" + bytes(32),
    "zero_point": b"\x10\0\0\x21\x20" + bytes(32),
}


@pytest.mark.parametrize("case", KEY_EXCHANGES)
def test_bad_key_exchange(gateway, case):
    client = connect(gateway, version="1.2", handshake=False,
                     transmit=up_to(1, hello.record(22, KEY_EXCHANGES[case], 0x0303)
                                    + hello.record(20, b"\1", 0x0303)
                                    + hello.record(22, bytes(40), 0x0303)))
    with pytest.raises(Stopped):
        client.stream.handshake()
    gone(client.stream.socket)
    gateway.wait_ended("tls_failed")
    (fault,) = faults(gateway)
    assert fault in ("decode_error", "illegal_parameter", "bad_mac"), fault


@pytest.mark.parametrize("count", [1, 2])
def test_changed_record_of_the_handshake(gateway, version, count):  # noqa: F811
    """One bit of the client's second or third record is another."""
    sent = []

    def transmit(sock, data):
        for record in records(data):
            sent.append(record)
            if len(sent) == count + 1:
                record = record[:-1] + bytes([record[-1] ^ 1])
            sock.sendall(record)

    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        connect(gateway, version=version, transmit=transmit).get(1)
    wait_until(lambda: gateway.ended("tls_failed") == 1 and sum(faults(gateway).values()) == 1,
               "it is counted", 5 * SLOW)


def test_plain_http(gateway):
    """On the port of TLS: not even a hello."""
    stream = gateway.dial()
    stream.sendall(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
    refused_with(stream, hello.UNEXPECTED_MESSAGE)
    gateway.wait_ended("not_tls")


@pytest.mark.parametrize("old", ["1.0", "1.1"])
def test_old_versions(gateway, old):
    refused(gateway, version=old, ciphers="ALL:@SECLEVEL=0", words=["protocol version"])
    wait_fault(gateway, "tls_failed", "no_shared_version")


@pytest.mark.parametrize("arguments, refuses, serves, words, fault", [
    (["--tls-min-version", "1.3"], "1.2", "1.3", "protocol version", "no_shared_version"),
    # To a server of TLS 1.2 alone the hello of 1.3 is one of 1.2 without a cipher.
    (["--tls-max-version", "1.2"], "1.3", "1.2", "handshake failure", "no_shared_cipher")])
def test_versions_that_are_off(site, arguments, refuses, serves, words, fault):  # noqa: F811
    gateway = start(site, *arguments)
    refused(gateway, version=refuses, words=[words])
    wait_fault(gateway, "tls_failed", fault)
    with connect(gateway, version=serves) as client:
        client.get(1000)
    with connect(gateway) as client:  # which has both
        client.get(1000)
        assert client.tls.version() == f"TLSv{serves}"
    tls = gateway.status()["tls"]
    assert serves in (tls["min_version"], tls["max_version"])
    assert refuses not in (tls["min_version"], tls["max_version"])


@pytest.mark.parametrize("ciphers", ["AES128-SHA", "AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-SHA",
                                     "DHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256"])
def test_no_shared_cipher(gateway, ciphers):
    """What is weak, and what goes with another kind of certificate than this name has."""
    refused(gateway, version="1.2", ciphers=f"{ciphers}:@SECLEVEL=0", words=["handshake failure"])
    wait_fault(gateway, "tls_failed", "no_shared_cipher")


@pytest.mark.parametrize("arguments", [["-tls1_3", "-groups", "P-521"],
                                       ["-tls1_3", "-sigalgs", "ed25519"],
                                       ["-tls1_2", "-curves", "P-521"]])
def test_nothing_in_common(gateway, site, arguments):  # noqa: F811
    code, said = s_client(site, gateway, *arguments)
    assert code == 1 and "alert handshake failure" in said, said
    wait_fault(gateway, "tls_failed", "no_shared_cipher")


def test_hello_retry(gateway, site):  # noqa: F811
    """A client whose first guess of a group is not ours."""
    for groups in ("P-521:P-256", "P-521:X25519", "P-384"):
        assert "TLSv1.3" in handshake(site, gateway, "-tls1_3", "-groups", groups)


def test_client_that_does_not_trust_us(gateway, version):  # noqa: F811
    """Its alert is read and counted."""
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(gateway, version=version, ca="other")
    wait_fault(gateway, "tls_failed", "alert_received")


# -- after it

def test_changed_record(gateway, version):  # noqa: F811
    with connect(gateway, version=version) as client:
        client.get(1000)
        sealed = bytearray(client.stream.seal(b"/bytes/7\n"))
        sealed[-1] ^= 1
        client.stream.socket.sendall(sealed)
        client.expect_alert("bad record mac")
    wait_fault(gateway, "tls_broken", "bad_mac")


def test_what_came_before_a_changed_record_arrives(gateway, place, version):  # noqa: F811
    known = len(place.ends("reset"))
    with connect(gateway, version=version) as client:
        client.ask("upload", 1 << 20)
        good = client.stream.seal(bytes(100_000))
        bad = bytearray(client.stream.seal(b"x"))
        bad[7] ^= 1
        client.stream.socket.sendall(good + bad)
        client.expect_alert("bad record mac")
    wait_fault(gateway, "tls_broken", "bad_mac")
    wait_until(lambda: len(place.ends("reset")) == known + 1, "the origin sees a reset", 5 * SLOW)


@pytest.mark.parametrize("order", ["twice", "swapped", "lost"])
def test_records_out_of_order(gateway, version, order):  # noqa: F811
    with connect(gateway, version=version) as client:
        client.get(1)
        first, second = client.stream.seal(b"/bytes/7\n"), client.stream.seal(b"/bytes/8\n")
        if order == "twice":
            client.stream.socket.sendall(first)
            client.expect(7)
        client.stream.socket.sendall({"twice": first, "swapped": second + first,
                                      "lost": second}[order])
        client.expect_alert("bad record mac")
    wait_fault(gateway, "tls_broken", "bad_mac")


OPEN_RECORDS = {
    "too_long": (b"\x17\x03\x03\x41\x2c" + bytes(16384 + 300), "record_overflow",
                 "record overflow"),
    "empty": (b"\x17\x03\x03\0\0", "bad_record", "decode error"),
    "no_record": (b"\xff" * 64, "bad_record", "decode error"),
    "http": (b"GET / HTTP/1.0\r\n\r\n", "bad_record", "decode error"),
    "garbage": (hello.record(23, random.Random(1).randbytes(500), 0x0303), "bad_mac",
                "bad record mac"),
    "too_short": (hello.record(23, b"abc", 0x0303), None, ""),
    "plain_alert": (hello.alert(40), None, ""),
    "plain_hello": (hello.hello(), None, ""),
}


@pytest.mark.parametrize("case", OPEN_RECORDS)
def test_bad_record_after_the_handshake(gateway, version, case):  # noqa: F811
    sent, fault, words = OPEN_RECORDS[case]
    with connect(gateway, version=version) as client:
        client.get(1000)
        client.stream.socket.sendall(sent)
        client.expect_alert(words)
    gateway.wait_ended("tls_broken")
    counted = faults(gateway)
    assert sum(counted.values()) == 1, counted
    assert fault is None or counted == {fault: 1}
    assert set(counted) <= {"bad_mac", "bad_record", "record_overflow", "decode_error",
                            "unexpected_message"}, counted


def test_flood_of_change_cipher_specs(gateway, version):  # noqa: F811
    """TLS 1.3 allows one in a handshake; nobody needs a thousand."""
    with connect(gateway, version=version) as client:
        client.get(1)
        try:
            client.stream.socket.sendall(hello.record(20, b"\1", 0x0303) * 1000)
            client.expect_alert()
        except ConnectionError:
            pass
    gateway.wait_ended("tls_broken")
    assert sum(faults(gateway).values()) == 1


def test_alert_of_the_client(gateway, version):  # noqa: F811
    """It says that a record of ours was broken, and goes."""
    with connect(gateway, version=version) as client:
        client.get(1)
        client.ask("bytes", 100)
        record = bytearray(client.stream.record())
        record[-1] ^= 1
        with pytest.raises(ssl.SSLError):
            client.stream.take(bytes(record))
        gone(client.stream.socket)
    wait_fault(gateway, "tls_broken", "alert_received")


def test_key_update(gateway, site):  # noqa: F811
    """mbedTLS does not have it: counted as what it is, and the client hears of it."""
    for letter in ("k", "K"):
        s_client_types(site, gateway, letter, "-tls1_3")
    wait_fault(gateway, "tls_broken", "key_update", 2)


def test_renegotiation_is_refused(gateway, site):  # noqa: F811
    said = s_client_types(site, gateway, "R", "-tls1_2")
    assert "RENEGOTIATING" in said and "no renegotiation" in said, said
    assert "Secure Renegotiation IS supported" in said  # RFC 5746, which it takes to refuse safely
    gateway.wait_active(0)
    assert gateway.status()["ended"]["own_fault"] == 0
    assert gateway.counter("handshakes_full") == 1


def s_client_types(site, gateway, letter, *arguments):  # noqa: F811
    """What it says when this is typed, which it takes for a command."""
    with Openssl(site, gateway, *arguments, quiet=False) as client:
        said = b""
        while b"Verify return code" not in said and (part := client.stream.recv(65536)):
            said += part
        client.send(letter.encode() + b"\n")
        while part := client.stream.recv(65536):
            said += part
    return said.decode(errors="replace")


# -- whatever comes

@pytest.mark.parametrize("seed", range(3))
def test_random_bytes(gateway, seed):
    """Behind a hello, behind a handshake, in place of parts of either."""
    chance = random.Random(seed)

    def noise():
        kind = chance.choice([20, 21, 22, 23, 24, chance.randrange(256)])
        size = chance.choice([0, 1, 2, 40, chance.randrange(2000), 16384 + 256, 65535])
        data = chance.randbytes(min(size, 20000))
        return bytes([kind, 3, chance.randrange(5)]) + size.to_bytes(2, "big") + data

    plans = [(chance.choice(["1.2", "1.3"]), chance.randrange(5),
              b"".join(noise() for _ in range(chance.randrange(1, 4))), chance.random() < 0.5)
             for _ in range(60)]

    def work(index):
        number, count, junk, cut = plans[index]
        try:
            client = connect(gateway, version=number, transmit=up_to(count, junk),
                             handshake=False)
            try:
                client.stream.handshake()
                client.send(b"/bytes/100\n")
                client.expect(100)
            finally:
                if cut:
                    reset(client.stream.socket)
                client.close()
        except (Stopped, OSError, AssertionError):
            pass

    together(len(plans), work)
    gateway.wait_active(0, 8)
    status = gateway.status()
    assert set(reason for reason, count in status["ended"].items() if count) <= {
        "client_left", "tls_failed", "tls_broken", "orderly", "client_reset", "not_tls",
        "malformed_hello", "hello_too_long", "handshake_timeout", "unknown_name"}, status["ended"]
    assert faults(gateway).get("internal", 0) == 0


def test_many_slow_handshakes_hold_up_nobody(site):  # noqa: F811
    """300 clients that stop behind their hello, and a client among them is served."""
    gateway = start(site, "--timeouts-handshake", "3s")
    sent = []
    connect(gateway, transmit=keeping(sent)).close()
    slow = [gateway.dial() for _ in range(300)]
    for stream in slow:
        stream.sendall(sent[0])
    for stream in slow:
        assert stream.recv(5)
    with connect(gateway) as client:
        client.get(100_000)
    gateway.wait_ended("handshake_timeout", 300)


def test_the_same_hello_again_is_no_session(gateway, version):  # noqa: F811
    """A recorded client: its second flight does not fit what the gateway says now."""
    kept = []
    with connect(gateway, version=version, transmit=keeping(kept)) as client:
        client.get(1)
        client.ask("bytes", 7)
    stream = gateway.dial()
    stream.sendall(b"".join(kept))
    data = gone(stream)
    assert b"/bytes" not in data
    gateway.wait_ended("tls_failed")
