# SPDX-License-Identifier: Apache-2.0
"""What an application hears of the client whose TLS ended in the gateway: the PROXY protocol with
its TLVs; and what a balancer in front says."""

import struct

import pytest

from causeway_testlib import gateway_proxy as proxy
from causeway_testlib.gateway import place, site  # noqa: F401
from causeway_testlib.tls_client import (  # noqa: F401
    COMBINATIONS, NAMES, connect, start, terminating, version)
from causeway_testlib.tls_pki import pki

ALPN, AUTHORITY, SSL, SSL_VERSION, SSL_CIPHER = 0x01, 0x02, 0x20, 0x21, 0x23
CLIENT_SSL, CLIENT_CERT_CONN, CLIENT_CERT_SESS = 1, 2, 4
WITH_PROXY, WITH_PROXY6 = "tcp:127.0.0.1:9005", "tcp:[::1]:9006"


def told(client):
    return proxy.read(bytes.fromhex(client.info()["proxy"]))


def of_ssl(tlvs):
    """PP2_TYPE_SSL: its flags, and {subtype: value}."""
    flags, _ = struct.unpack(">BI", tlvs[SSL][:5])
    rest, found = tlvs[SSL][5:], {}
    while rest:
        kind, size = struct.unpack(">BH", rest[:3])
        assert len(rest) >= 3 + size
        found[kind] = rest[3:3 + size].decode("ascii")
        rest = rest[3 + size:]
    return flags, found


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_v2(site, combination):  # noqa: F811
    """Who it is, the name that was asked for, the protocol, TLS's version and cipher; the same for
    a resumed session."""
    number, kind = combination.split("-")
    gateway = start(site, routes=[terminating(WITH_PROXY, protocols=["h2", "http/1.1"],
                                              proxy_protocol="v2")])
    session = None
    for resumed in (False, True):
        with connect(gateway, NAMES[kind], number, alpn=("http/1.1",), session=session) as client:
            own = client.stream.getsockname()
            said = told(client)
            client.get(100_000)
            session, facts = client.session(), client.stream.facts()
        assert facts["resumed"] == resumed
        assert said["client"] == own and said["server"] == ("127.0.0.1", gateway.port)
        tlvs = said["tlvs"]
        assert (tlvs[AUTHORITY], tlvs[ALPN]) == (NAMES[kind].encode(), b"http/1.1")
        flags, inner = of_ssl(tlvs)
        assert flags & CLIENT_SSL and not flags & (CLIENT_CERT_CONN | CLIENT_CERT_SESS)
        assert inner[SSL_VERSION] == f"TLSv{number}"
        assert inner[SSL_CIPHER] == facts["cipher"]  # OpenSSL's name, as HAProxy writes it


def test_v2_without_a_protocol(site, version):  # noqa: F811
    gateway = start(site, routes=[terminating(WITH_PROXY, proxy_protocol="v2")])
    with connect(gateway, version=version, alpn=("h2",)) as client:
        tlvs = told(client)["tlvs"]
    assert ALPN not in tlvs and of_ssl(tlvs)[0] & CLIENT_SSL


def test_v1(site, version):  # noqa: F811
    gateway = start(site, routes=[terminating(WITH_PROXY, proxy_protocol="v1")])
    with connect(gateway, version=version) as client:
        assert told(client)["client"] == client.stream.getsockname()
        client.get(100_000)
        client.put(100_000)


def test_ipv6(site, version):  # noqa: F811
    port = site.place.port()
    gateway = start(site, "--listen", f"tcp:[::1]:{port}", port=port, routes=[
        terminating(WITH_PROXY6, proxy_protocol="v2")])
    with connect(gateway, version=version, address=("::1", port)) as client:
        said = told(client)
        assert said["client"] == client.stream.getsockname()[:2]
        assert said["server"] == ("::1", port)


@pytest.mark.parametrize("header", [proxy.v1(), proxy.v2(), proxy.v2("2001:db8::1", 40000,
                                                                     "2001:db8::2", 443)])
def test_header_of_a_balancer(site, version, header):  # noqa: F811
    """In front of TLS, in clear; what it says is what the application hears."""
    port = site.place.port()
    gateway = start(site, port=port, listen=False, settings={"listeners": [
        {"address": f"tcp:127.0.0.1:{port}", "proxy_protocol": "any", "trusted": ["127.0.0.0/8"]}]},
        routes=[terminating(WITH_PROXY, proxy_protocol="v2")])
    with connect(gateway, version=version, first=header) as client:
        said, wanted = told(client), proxy.read(header)
        assert (said["client"], said["server"]) == (wanted["client"], wanted["server"])
        assert of_ssl(said["tlvs"])[1][SSL_VERSION] == f"TLSv{version}"
        client.get(100_000)


def test_no_header_unless_the_route_says_so(site, version):  # noqa: F811
    gateway = start(site)
    with connect(gateway, version=version) as client:
        assert "proxy" not in client.info()


def test_long_names(site, version):  # noqa: F811
    """A name and a protocol as long as they may be: nothing is cut."""

    name = ".".join(["n" * 60] * 4) + ".test"
    protocol = "p" * 200
    gateway = start(site, identities=[pki().issue("long", name)], routes=[
        terminating(WITH_PROXY, names=[name], protocols=[protocol], proxy_protocol="v2")])
    with connect(gateway, name, version, alpn=(protocol,)) as client:
        tlvs = told(client)["tlvs"]
    assert tlvs[AUTHORITY] == name.encode() and tlvs[ALPN] == protocol.encode()
