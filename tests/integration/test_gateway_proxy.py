# SPDX-License-Identifier: Apache-2.0
"""The PROXY protocol: read from whom it may come, written for upstreams that want it."""

import contextlib
import time

import pytest

from causeway_testlib import gateway_proxy as proxy
from causeway_testlib import hello
from causeway_testlib.gateway import place, route, site  # noqa: F401
from causeway_testlib.gateway_client import Client, gone
from causeway_testlib.programs import SLOW

TO_V1 = {"names": ["v1.test"], "proxy_protocol": "v1"}
TO_V2 = {"names": ["v2.test"], "proxy_protocol": "v2"}
WITH_PROXY = "tcp:127.0.0.1:9005"

HEADERS = {
    "v1": proxy.v1(),
    "v1_ipv6": proxy.v1("2001:db8::1", 40000, "2001:db8::2", 443),
    "v2": proxy.v2(),
    "v2_ipv6": proxy.v2("2001:db8::1", 40000, "2001:db8::2", 443),
    "v2_tlvs": proxy.v2(tlvs=proxy.tlv(4, bytes(300)) + proxy.tlv(0xE0, b"x")),
}


def start(site, versions="any", trusted=("127.0.0.0/8",), arguments=()):  # noqa: F811
    """Reads headers, and tells the origin what it read in both versions."""
    port = site.place.port()
    return site.start(*arguments, port=port, listen=False, config={
        "listeners": [{"address": f"tcp:127.0.0.1:{port}", "proxy_protocol": versions,
                       "trusted": list(trusted)}],
        "routes": [route(WITH_PROXY, **TO_V1), route(WITH_PROXY, **TO_V2)]})


def told(client):
    return proxy.read(bytes.fromhex(client.info()["proxy"]))


@pytest.mark.parametrize("case", HEADERS)
def test_header_is_passed_on(site, case):  # noqa: F811
    """What a trusted balancer says reaches the upstream, in the version that the route names."""
    gateway, wanted = start(site), proxy.read(HEADERS[case])
    for name, version in (("v1.test", 1), ("v2.test", 2)):
        with gateway.connect(name, first=HEADERS[case]) as client:
            said = told(client)
            client.get(100_000)
        assert (said["version"], said["client"], said["server"]) == (
            version, wanted["client"], wanted["server"])
        # In segments of one byte.
        stream = gateway.dial()
        for byte in HEADERS[case] + hello.hello(name):
            stream.sendall(bytes([byte]))
        assert told(Client(stream))["client"] == wanted["client"]


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", proxy.v2(local=True),
                                    b"PROXY UNKNOWN ffff::1 ffff::1 1 2\r\n"])
def test_header_that_names_nobody(site, header):  # noqa: F811
    """The balancer's own connections, such as its health checks: from where they really come."""
    gateway = start(site)
    with gateway.connect("v2.test", first=header) as client:
        port = client.stream.getsockname()[1]
        assert told(client)["client"] in (None, ("127.0.0.1", port))


def test_versions(site):  # noqa: F811
    for versions, good, bad in (("v1", "v1", "v2"), ("v2", "v2", "v1")):
        gateway = start(site, versions)
        with gateway.connect("v2.test", first=HEADERS[good]) as client:
            client.get(1)
        gone(gateway.connect("v2.test", first=HEADERS[bad]).stream)
        gateway.wait_ended("bad_proxy_header")


BAD = {
    "none": b"",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "v1_port": b"PROXY TCP4 1.2.3.4 1.2.3.4 1 65536\r\n",
    "v1_address": b"PROXY TCP4 1.2.3.256 1.2.3.4 1 2\r\n",
    "v1_family": b"PROXY TCP4 ::1 ::1 1 2\r\n",
    "v1_without_end": b"PROXY TCP4 " + b"1" * 100,
    "v2_version": proxy.SIGNATURE + b"\x31\x11\0\x0c" + bytes(12),
    "v2_short": proxy.SIGNATURE + b"\x21\x11\0\x04" + bytes(4),
    "v2_long": proxy.SIGNATURE + b"\x21\x11\xff\xff" + bytes(3000),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_header(site, case):  # noqa: F811
    gateway = start(site)
    gone(gateway.connect("v2.test", first=BAD[case]).stream)
    gateway.wait_ended("bad_proxy_header")


def test_untrusted(site):  # noqa: F811
    """Who is not trusted cannot say who the client is, and is not served as someone else."""
    gateway = start(site, trusted=["10.0.0.0/8", "127.0.0.9/32"])
    with contextlib.suppress(ConnectionError):  # it may be gone before it has said a word
        gone(gateway.connect("v2.test", first=HEADERS["v2"]).stream)
    gateway.wait_ended("untrusted_proxy")
    with gateway.connect("v2.test", first=HEADERS["v2"], source=("127.0.0.9", 0)) as client:
        assert told(client)["client"] == ("192.0.2.1", 40000)


def test_header_timeout(site):  # noqa: F811
    gateway = start(site, arguments=["--timeouts-proxy-header", "1s"])
    streams = [gateway.dial() for _ in range(3)]
    begin = time.monotonic()
    streams[1].sendall(b"PROXY TCP4")
    streams[2].sendall(HEADERS["v2"][:20])
    for stream in streams:
        gone(stream)
        assert 0.9 <= time.monotonic() - begin <= 2 * SLOW
    gateway.wait_ended("proxy_timeout", 3)


def test_client_leaves_inside_the_header(site):  # noqa: F811
    gateway = start(site)
    for part in (b"", b"PROXY TCP4", HEADERS["v2"][:20]):
        stream = gateway.dial()
        stream.sendall(part)
        stream.close()
    gateway.wait_ended("client_left", 3)


def test_written_from_the_sockets_addresses(site):  # noqa: F811
    """Without a header of a balancer: the client's own address. The client cannot forge it."""
    port = site.place.port()
    gateway = site.start("--listen", f"tcp:[::1]:{port}", port=port, config={"routes": [
        route(WITH_PROXY, **TO_V1), route("tcp:[::1]:9006", **TO_V2)]})
    for name, version in (("v1.test", 1), ("v2.test", 2)):
        with gateway.connect(name) as client:
            said, own = told(client), client.stream.getsockname()[:2]
        assert said["version"] == version
        assert said["client"] == own and said["server"] == ("127.0.0.1", port)
        with gateway.connect(name, address=("::1", port)) as client:
            said, own = told(client), client.stream.getsockname()[:2]
        assert said["client"] == own and said["server"] == ("::1", port)


def test_written_for_a_client_without_address(site):  # noqa: F811
    path = site.directory / "in-proxy"
    gateway = site.start("--listen", f"unix:{path}", config={"routes": [
        route(WITH_PROXY, **TO_V1), route(WITH_PROXY, **TO_V2)]})
    for name, version in (("v1.test", 1), ("v2.test", 2)):
        with gateway.connect(name, address=path) as client:
            said = told(client)
        assert (said["version"], said["client"]) == (version, None)


def test_v2_tells_the_name_and_the_protocol(site):  # noqa: F811
    gateway = start(site)
    with gateway.connect("V2.test", first=HEADERS["v1"], alpn=["h2"]) as client:
        tlvs = told(client)["tlvs"]
    assert tlvs[2] == b"v2.test"  # PP2_TYPE_AUTHORITY


def test_no_header_unless_the_route_says_so(site):  # noqa: F811
    gateway = site.start()
    with gateway.connect() as client:
        assert "proxy" not in client.info()
