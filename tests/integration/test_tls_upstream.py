# SPDX-License-Identifier: Apache-2.0
"""TLS on both sides: what the gateway demands of an upstream, and how its ends are passed on."""

import signal
import ssl

import pytest

from causeway_testlib import gateway_proxy as proxy
from causeway_testlib import origin
from causeway_testlib.gateway import ONE, NAMED, place, site  # noqa: F401
from causeway_testlib.gateway_client import Client, dial, together
from causeway_testlib.gateway_dns import NameServer
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.tls_client import (  # noqa: F401
    VERSIONS, connect, context, faults, refused, start, terminating, version, wait_fault)
from causeway_testlib.tls_origin import TlsOrigin
from causeway_testlib.tls_pki import pki
from causeway_testlib.tls_stream import TlsStream
from causeway_testlib.waiting import wait_until

MIB = 1 << 20
REPLY = 4096
HOST = "127.0.0.1"
FIRST_PORT = 9100


@pytest.fixture(scope="module")
def upstream(place):  # noqa: F811
    """TLS origins by name: upstream("good") is an address."""
    identities = {
        "good": pki().ecdsa, "rsa": pki().rsa, "expired": pki().expired,
        "untrusted": pki().issue("untrusted", "a.test", issuer="other"),
        "no_server": pki().issue("no-server", "a.test", use="clientAuth"),
        "chained": pki().issue("chained", "a.test", issuer="between"),
        **dict.fromkeys(("certified", "certified_old", "old", "new", "alpn", "proxy", "silent",
                         "unix", "named"), pki().ecdsa)}
    more = {"certified": {"client_ca": pki().root.cert},
            "certified_old": {"client_ca": pki().root.cert, "version": "1.2"},
            "old": {"version": "1.2"},
            "new": {"version": "1.3"}, "alpn": {"alpn": ["h2", "http/1.1"]},
            "proxy": {"proxy": True}, "silent": {"silent": True},
            "unix": {"address": f"unix:{place.directory}/tls"},
            "named": {"address": f"tcp:{NAMED}:{FIRST_PORT}"}}
    listeners = {name: {"address": f"tcp:{HOST}:{FIRST_PORT + index}", "cert": identity.cert,
                        "key": identity.key, **more.get(name, {})}
                 for index, (name, identity) in enumerate(identities.items())}
    made = TlsOrigin(place.namespace, listeners)

    def address(name):
        return listeners[name]["address"]

    def seen(kind):
        """What the origins noted of this kind."""
        stream = dial(place.namespace, (HOST, FIRST_PORT))
        with Client(TlsStream(stream, context(), "a.test").handshake()) as client:
            ends = client.json("stats")["ends"]
            client.end()
        return [end for end in ends if end["kind"] == kind]

    address.seen = seen
    yield address
    made.close()


def securing(*addresses, **more):
    """A route with TLS to the upstream as well. What is None is not said."""
    terms = {"upstream_tls": True, "upstream_ca": str(pki().root.cert), "upstream_name": "a.test",
             **more}
    return terminating(*addresses, **{key: value for key, value in terms.items()
                                      if value is not None})


@pytest.fixture
def gateway(site, upstream):  # noqa: F811
    return start(site, routes=[securing(upstream("good"))])


# -- data

@pytest.mark.parametrize("theirs", ["old", "new"])
def test_data(site, upstream, version, theirs):  # noqa: F811
    """Each version on each side."""
    gateway = start(site, routes=[securing(upstream(theirs))])
    for size in (0, 1, 16383, 16384, 16385, MIB):
        with connect(gateway, version=version) as client:
            client.get(size)
            client.put(size)
            client.end()
            client.expect_end()
    with connect(gateway, version=version) as client:
        info = client.info()
        assert info["version"] == {"old": "TLSv1.2", "new": "TLSv1.3"}[theirs]
        assert (info["name"], info["alpn"], info["client"]) == ("a.test", None, [])
    assert faults(gateway, "upstream_tls_faults") == {}


@pytest.mark.parametrize("way", ["get", "put"])
def test_large_payload(gateway, version, way):  # noqa: F811
    with connect(gateway, version=version) as client:
        getattr(client, way)((10 if SANITIZED else 50) * MIB)
        client.get(1)


def test_concurrent(gateway):
    def work(index):
        with connect(gateway, version=VERSIONS[index % 2]) as client:
            client.get(256 * 1024 + index)
            client.put(256 * 1024 - index)
            client.end()
            client.expect_end()

    together(32, work)
    gateway.wait_ended("orderly", 32)


def test_both_directions_at_once(gateway, version):  # noqa: F811
    size = 4 * MIB
    with connect(gateway, version=version) as client:
        client.ask("echo")
        sealed = b"".join(client.stream.seal(piece) for piece in origin.pieces(size))
        together(2, lambda index: client.stream.socket.sendall(sealed) if index
                 else client.expect(size))


# -- ends

def test_client_ends_first(gateway, upstream, version):  # noqa: F811
    """The application sees a close_notify, and its answer arrives."""
    known = upstream.seen("bare end")
    for size in (0, REPLY, 10 * MIB):
        with connect(gateway, version=version) as client:
            client.ask("halfclose", size)
            client.end()
            client.expect(size)
            client.expect_end()
    gateway.wait_ended("orderly", 3)
    assert upstream.seen("bare end") == known


def test_application_closes_first(gateway, version):  # noqa: F811
    for size in (0, 1, 16385, MIB):
        with connect(gateway, version=version) as client:
            client.ask("close", size)
            client.expect(size)
            client.expect_end()
            client.end()
    gateway.wait_ended("orderly", 4)
    assert gateway.counter("upstream_truncated") == 0


def test_application_ends_first_and_reads_on(gateway, upstream, version):  # noqa: F811
    known = len(upstream.seen("finfirst"))
    with connect(gateway, version=version) as client:
        client.ask("finfirst", REPLY)
        client.expect(REPLY)
        assert client.reader.some() == b"" and client.stream.notified
        for piece in origin.pieces(MIB):
            client.send(piece)
        client.end()
        wait_until(lambda: len(upstream.seen("finfirst")) > known, "the upload is over", 5 * SLOW)
    assert upstream.seen("finfirst")[-1]["digest"] == origin.digest(MIB)
    gateway.wait_ended("orderly")


def test_application_ends_without_a_close_notify(gateway, version):  # noqa: F811
    """Whoever cut the stream, the client must not take it for complete."""
    for size in (1, 16385, MIB):
        with connect(gateway, version=version) as client:
            client.ask("cut", size)
            client.expect_reset()
            assert not client.stream.notified
    gateway.wait_ended("upstream_reset", 3)
    assert gateway.counter("upstream_truncated") == 3


def test_resets(gateway, upstream, version):  # noqa: F811
    for size in (1, MIB):
        with connect(gateway, version=version) as client:
            client.ask("reset", size)
            client.expect_reset()
            assert not client.stream.notified
    gateway.wait_ended("upstream_reset", 2)
    known = len(upstream.seen("reset"))
    with connect(gateway, version=version) as client:
        client.get(MIB)
        client.ask("wait")
        client.reset()
    wait_until(lambda: len(upstream.seen("reset")) == known + 1, "the origin sees a reset",
               5 * SLOW)
    gateway.wait_ended("client_reset")


# -- what is demanded

BAD = {
    "other_authority": ("untrusted", {}, "bad_certificate"),
    "expired": ("expired", {}, "bad_certificate"),
    "no_servers": ("no_server", {}, "bad_certificate"),
    "other_name": ("good", {"upstream_name": "b.test"}, "bad_certificate"),
    "systems_authorities": ("good", {"upstream_ca": None}, "bad_certificate"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_certificate(site, upstream, version, case):  # noqa: F811
    """The client hears an alert inside its TLS, and not a byte of it goes to the impostor."""
    name, terms, fault = BAD[case]
    gateway = start(site, routes=[securing(upstream(name), **terms)])
    refused(gateway, version=version, words=["internal error"])
    wait_fault(gateway, "upstream_tls", fault, key="upstream_tls_faults")
    assert gateway.counter("bytes_to_upstream") == 0
    assert faults(gateway) == {}


def test_chain(site, upstream, version):  # noqa: F811
    gateway = start(site, routes=[securing(upstream("chained"))])
    with connect(gateway, version=version) as client:
        client.get(1000)


def test_wildcard_name(site, upstream, version):  # noqa: F811
    gateway = start(site, routes=[securing(upstream("good"), upstream_name="x.w.test")])
    with connect(gateway, version=version) as client:
        assert client.info()["name"] == "x.w.test"


def test_name_is_the_host_of_the_address(site, upstream, version):  # noqa: F811
    """Without upstream_name: a DNS name is asked for and verified."""
    with NameServer(site.namespace, {"a.test": ([NAMED], 60), "b.test": ([NAMED], 60)}) as dns:
        port = upstream("named").rpartition(":")[2]
        gateway = start(site, "--dns-servers", dns.address, routes=[
            securing(f"tcp:a.test:{port}", names=["a.test"], upstream_name=None),
            securing(f"tcp:b.test:{port}", names=["r.test"], upstream_name=None)])
        wait_until(lambda: all(r["upstreams"][0]["targets"] for r in gateway.status()["routes"]),
                   "the names are resolved", 5 * SLOW)
        with connect(gateway, "a.test", version) as client:
            assert client.info()["name"] == "a.test"
        refused(gateway, "r.test", version, words=["internal error"])
        wait_fault(gateway, "upstream_tls", "bad_certificate", key="upstream_tls_faults")


def test_unix_upstream(site, upstream, version):  # noqa: F811
    gateway = start(site, routes=[securing(upstream("unix"))])
    with connect(gateway, version=version) as client:
        assert client.origin() == "unix"
        client.get(MIB)
        client.put(MIB)


def test_certificate_is_presented(site, upstream, version):  # noqa: F811
    gateway = start(site, routes=[
        securing(upstream("certified"), names=["a.test"], upstream_cert=str(pki().client.cert),
                 upstream_key=str(pki().client.key)),
        securing(upstream("certified"), names=["r.test"])])
    with connect(gateway, "a.test", version) as client:
        assert client.info()["client"] == ["client"]
        client.get(100_000)
    # The upstream of TLS 1.3 says so only behind its handshake.
    refused(gateway, "r.test", version)
    wait_until(lambda: gateway.ended("upstream_tls") + gateway.ended("upstream_tls_broken")
               + gateway.ended("upstream_reset") == 1, "it is counted", 5 * SLOW)


def test_protocol_is_carried_through(site, upstream, version):  # noqa: F811
    """What the client negotiated is what the upstream is asked for."""
    gateway = start(site, routes=[securing(upstream("alpn"), protocols=["h2", "http/1.1"])])
    for offered in ("h2", "http/1.1"):
        with connect(gateway, version=version, alpn=(offered,)) as client:
            assert client.info()["alpn"] == offered
            assert client.stream.facts()["alpn"] == offered
    with connect(gateway, version=version) as client:
        assert client.info()["alpn"] is None


def test_proxy_header(site, upstream, version):  # noqa: F811
    """In front of the upstream's TLS, in clear."""
    gateway = start(site, routes=[securing(upstream("proxy"), proxy_protocol="v2")])
    with connect(gateway, version=version) as client:
        info = client.info()
        said = proxy.read(bytes.fromhex(info["proxy"]))
        assert said["client"] == client.stream.getsockname()
        client.get(100_000)


# -- sessions

def upstream_handshakes(gateway):
    counters = gateway.status()["counters"]
    return counters["upstream_handshakes_full"], counters["upstream_handshakes_resumed"]


@pytest.mark.parametrize("theirs", ["old", "new"])
def test_sessions_are_resumed(site, upstream, theirs):  # noqa: F811
    gateway = start(site, threads=1, routes=[securing(upstream(theirs))])
    for resumed in (False, True, True, True):
        with connect(gateway) as client:
            assert client.info()["resumed"] == resumed
            client.get(100_000)
            client.put(100_000)
            client.end()
            client.expect_end()
    assert upstream_handshakes(gateway) == (1, 3)


def test_concurrent_sessions(site, upstream, version):  # noqa: F811
    gateway = start(site, routes=[securing(upstream("good"))])

    def work(_):
        for _ in range(10):
            with connect(gateway, version=version) as client:
                client.get(10_000)
                client.put(10_000)

    together(8, work)
    full, resumed = upstream_handshakes(gateway)
    assert full + resumed == 80 and resumed > 0


@pytest.mark.parametrize("theirs", ["old", "new"])
def test_sessions_are_of_a_routes_terms(site, upstream, theirs):  # noqa: F811
    """A session is not verified again: none may serve where other things are demanded, on another
    route, or on the same one after a reload."""
    address = upstream(theirs)
    terms = [("a.test", {}), ("x.w.test", {"upstream_ca": str(pki().other.cert)}),
             ("r.test", {"upstream_name": "b.test"})]
    gateway = start(site, threads=1, routes=[securing(address, names=[name], **more)
                                             for name, more in terms])
    for _ in range(3):
        with connect(gateway, "a.test") as client:
            client.get(100_000)
        for name, _ in terms[1:]:
            refused(gateway, name, words=["internal error"])
    assert faults(gateway, "upstream_tls_faults") == {"bad_certificate": 6}
    settings = {"certificates": [{"cert": str(i.cert), "key": str(i.key)}
                                 for i in (pki().ecdsa, pki().rsa)]}
    for count, changed in enumerate(more for _, more in terms[1:]):
        # The number of routes shows that it is in use.
        routes = [securing(address, names=["a.test"], **changed),
                  *(terminating(names=[f"n{index}.test"]) for index in range(count))]
        site.configuration({**settings, "routes": routes}, gateway.port)
        gateway.signal(signal.SIGHUP)
        wait_until(lambda: len(gateway.status()["routes"]) == 1 + count, "the reload is done",
                   5 * SLOW)
        refused(gateway, "a.test", words=["internal error"])
    assert upstream_handshakes(gateway) == (1, 2)


@pytest.mark.parametrize("theirs", ["certified", "certified_old"])
def test_sessions_are_of_one_certificate(site, upstream, theirs):  # noqa: F811
    """What was reached with a certificate is not for the route that has none."""
    gateway = start(site, threads=1, routes=[
        securing(upstream(theirs), names=["a.test"], upstream_cert=str(pki().client.cert),
                 upstream_key=str(pki().client.key)),
        securing(upstream(theirs), names=["r.test"])])
    for _ in range(3):
        with connect(gateway, "a.test") as client:
            assert client.info()["client"] == ["client"]
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connect(gateway, "r.test").info()


# -- what is no TLS

def test_upstream_without_tls(site, version):  # noqa: F811
    """It takes the hello for a passthrough's, or closes: no TLS comes back."""
    gateway = start(site, "--timeouts-connect", "1s", routes=[
        securing(ONE, names=["a.test"]), securing("tcp:127.0.0.1:9008", names=["r.test"])])
    refused(gateway, "r.test", version, words=["internal error"])
    refused(gateway, "a.test", version, words=["internal error"])
    wait_until(lambda: gateway.ended("upstream_tls") + gateway.ended("connect_timeout")
               + gateway.ended("connect_failed") == 2, "both are counted", 5 * SLOW)


def test_silent_upstream(site, upstream, version):  # noqa: F811
    """One that accepts and never says a word."""
    gateway = start(site, "--timeouts-connect", "1s", routes=[securing(upstream("silent"))])
    refused(gateway, version=version, words=["internal error"])
    wait_until(lambda: gateway.ended("upstream_tls") + gateway.ended("connect_timeout") == 1,
               "it is counted", 5 * SLOW)
