# SPDX-License-Identifier: Apache-2.0
"""Which certificate and which protocol a client gets, and which certificate it needs itself."""

import re
import ssl

import pytest

from causeway_testlib import hello
from causeway_testlib.gateway import ONE, THREE, TWO, place, site  # noqa: F401
from causeway_testlib.gateway_client import refused_with
from causeway_testlib.origin import Origin
from causeway_testlib.tls_client import (  # noqa: F401
    VERSIONS, connect, faults, refused, start, terminating, version, wait_fault)
from causeway_testlib.tls_openssl import handshake, s_client
from causeway_testlib.tls_pki import pki


def presented(gateway, name, number=None, **more):
    """The common name of the certificate that a client gets which asks for this name."""
    with connect(gateway, name, number, **more) as client:
        client.get(1)
        return client.presented()


# -- the gateway's certificate

def test_by_name(site, version):  # noqa: F811
    """Exact, wildcard, and for whatever else the first."""
    identities = [pki().issue("first-of-all", "x.test", "a.test"),
                  pki().issue("exact", "one.w.test"),
                  pki().issue("wildcard", "*.w.test"), pki().rsa]
    gateway = start(site, identities=identities, routes=[terminating(names=["default"])])
    assert presented(gateway, "one.w.test", version) == "exact"
    assert presented(gateway, "two.w.test", version) == "wildcard"
    assert presented(gateway, "ONE.W.TEST", version) == "exact"
    assert presented(gateway, "r.test", version) == "r.test"
    assert presented(gateway, "a.test", version) == "first-of-all"
    # A wildcard stands for one label; nobody has these, and the client finds out.
    for name in ("a.two.w.test", "w.test", "elsewhere.test"):
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(gateway, name, version)


def test_without_a_name(site, version):  # noqa: F811
    """The first certificate, where there is a default route."""
    gateway = start(site, routes=[terminating(names=["default"])])
    with connect(gateway, "127.0.0.1", version) as client:  # an address is not sent as a name
        assert client.presented() == "a.test"
        client.get(1000)
    gateway = start(site)
    refused(gateway, "127.0.0.1", version, words=["unrecognized name"])
    gateway.wait_ended("no_name")


# What the client verifies, in its order, and what it gets; TLS 1.2's RSA is PKCS #1's here.
SIGNERS = {
    "ecdsa": ("ECDSA+SHA256", "ECDSA"),
    "rsa": ("{rsa}+SHA256", "{rsa}"),
    "ecdsa_first": ("ECDSA+SHA256:{rsa}+SHA256", "ECDSA"),
    "unknown_first": ("ed25519:{rsa}+SHA384", "{rsa}"),
    "anything": (None, "ECDSA"),
}


@pytest.mark.parametrize("signer", SIGNERS)
@pytest.mark.parametrize("order", ["ecdsa_first", "rsa_first"])
def test_by_what_the_client_can_verify(site, version, signer, order):  # noqa: F811
    """Two certificates for a name: ECDSA's for whoever can have it, RSA's for the others."""
    identities = [pki().ecdsa, pki().issue("a.test-rsa", "a.test", kind="rsa")]
    if order == "rsa_first":
        identities.reverse()
    gateway = start(site, identities=identities)
    rsa = "RSA" if version == "1.2" else "RSA-PSS"
    algorithms, expected = SIGNERS[signer]
    said = handshake(site, gateway, f"-tls{version.replace('.', '_')}",
                     *(["-sigalgs", algorithms.format(rsa=rsa)] if algorithms else []))
    assert f"Peer signature type: {expected.format(rsa=rsa)}\n" in said, said


def test_by_the_cipher_of_tls_1_2(site):  # noqa: F811
    identities = [pki().ecdsa, pki().issue("a.test-rsa", "a.test", kind="rsa")]
    gateway = start(site, identities=identities)
    for kind, name in (("RSA", "a.test-rsa"), ("ECDSA", "a.test")):
        assert presented(gateway, "a.test", "1.2",
                         ciphers=f"ECDHE-{kind}-AES128-GCM-SHA256") == name


@pytest.mark.parametrize("kind", ["p384", "rsa"])
def test_chain(site, version, kind):  # noqa: F811
    """The issuer between comes along: a client that knows the root alone verifies."""
    name = f"{kind}.chain.test"
    gateway = start(site, identities=[pki().issue(name, kind=kind, issuer="between")],
                    routes=[terminating(names=[name])])
    assert presented(gateway, name, version) == name
    _, said = s_client(site, gateway, "-showcerts", f"-tls{version.replace('.', '_')}", name=name)
    assert said.count("BEGIN CERTIFICATE") == 2, said


def test_both_in_one_file(site, version):  # noqa: F811
    """A PEM file with the chain and the key, which needs no `key`."""
    config = {"certificates": [{"cert": str(pki().ecdsa.both)}], "routes": [terminating()]}
    gateway = site.start(config=config)
    assert presented(gateway, "a.test", version) == "a.test"


def test_many_certificates(site):  # noqa: F811
    """200 of them: found, not walked; and shown."""
    identity = pki().ecdsa
    many = [pki().issue(f"n{index}.many.test") for index in range(10)]
    gateway = start(site, identities=[identity, *many], routes=[
        terminating(names=[f"n{index}.many.test" for index in range(10)])])
    for index in (0, 5, 9):
        assert presented(gateway, f"n{index}.many.test") == f"n{index}.many.test"
    shown = gateway.status()["tls"]["certificates"]
    assert [entry["names"] for entry in shown[1:]] == [[f"n{index}.many.test"]
                                                       for index in range(10)]


# -- the client's

CLIENTS = {
    # identity: its fault where certificates are optional, and where they are required
    "none": (None, "client_certificate_required"),
    "client": (None, None),
    "stranger": ("bad_certificate", "bad_certificate"),
    "expired_client": ("bad_certificate", "bad_certificate"),
    "ecdsa": ("bad_certificate", "bad_certificate"),  # a server's, of the right authority
}


@pytest.mark.parametrize("who", CLIENTS)
@pytest.mark.parametrize("terms", ["optional", "required"])
def test_client_certificates(site, version, terms, who):  # noqa: F811
    gateway = start(site, routes=[terminating(client_certificates=terms,
                                              client_ca=str(pki().root.cert))])
    identity = None if who == "none" else getattr(pki(), who)
    fault = CLIENTS[who][terms == "required"]
    if fault is None:
        for _ in range(2):
            with connect(gateway, version=version, identity=identity) as client:
                client.get(100_000)
                client.put(100_000)
                client.end()
                client.expect_end()
        gateway.wait_ended("orderly", 2)
    else:
        refused(gateway, version=version, identity=identity, words=["alert"])
        wait_fault(gateway, "tls_failed", fault)
        assert gateway.counter("connect_attempts") == 0


def test_client_certificate_that_nobody_asks_for(site, version):  # noqa: F811
    gateway = start(site)
    with connect(gateway, version=version, identity=pki().stranger) as client:
        client.get(1000)


def test_client_certificates_of_one_route_alone(site, version):  # noqa: F811
    gateway = start(site, routes=[
        terminating(ONE, names=["a.test"]),
        terminating(TWO, names=["r.test"], client_certificates="required",
                    client_ca=str(pki().root.cert))])
    with connect(gateway, "a.test", version) as client:
        assert client.origin() == "one"
    refused(gateway, "r.test", version)
    with connect(gateway, "r.test", version, identity=pki().client) as client:
        assert client.origin() == "two"


def test_more_authorities_than_a_message_can_name(site, version):  # noqa: F811
    path = pki().directory / "many-authorities.pem"
    path.write_bytes(b"".join(pki().authority(f"of-many-{index}").cert.read_bytes()
                              for index in range(10)) * 60 + pki().root.cert.read_bytes())
    gateway = start(site, routes=[terminating(client_certificates="required",
                                              client_ca=str(path))])
    with connect(gateway, version=version, identity=pki().client) as client:
        client.get(1000)


def test_client_certificate_with_a_chain(site, version):  # noqa: F811
    """Issued by one between, whose certificate the client sends along."""
    identity = pki().issue("chained-client", issuer="between", use="clientAuth")
    gateway = start(site, routes=[terminating(client_certificates="required",
                                              client_ca=str(pki().root.cert))])
    with connect(gateway, version=version, identity=identity) as client:
        client.get(1000)


# -- ALPN

def negotiated(gateway, offered, name="a.test", number=None):
    with connect(gateway, name, number, alpn=tuple(offered)) as client:
        client.get(1)
        return client.stream.facts()["alpn"]


def test_protocols(site, version):  # noqa: F811
    """The route's order decides; a client without ALPN is served, one without a match is not."""
    gateway = start(site, routes=[terminating(protocols=["h2", "http/1.1"])])
    assert negotiated(gateway, ["http/1.1", "h2"], number=version) == "h2"
    assert negotiated(gateway, ["http/1.1"], number=version) == "http/1.1"
    assert negotiated(gateway, ["http/1.0", "http/1.1"], number=version) == "http/1.1"
    assert negotiated(gateway, [], number=version) is None
    refused(gateway, version=version, alpn=("http/1.0", "h3"), words=["no application protocol"])
    wait_fault(gateway, "tls_failed", "no_application_protocol")


def test_no_protocols(site, version):  # noqa: F811
    """A route without a list does not negotiate, whatever is offered."""
    gateway = start(site)
    assert negotiated(gateway, ["h2"], number=version) is None
    assert negotiated(gateway, [], number=version) is None


def test_routes_by_alpn(site, version):  # noqa: F811
    """What led to the route is what is negotiated there."""
    gateway = start(site, routes=[
        terminating(ONE, alpn=["h2"]), terminating(TWO, alpn=["acme-tls/1", "http/1.1"]),
        terminating(THREE)])
    for offered, origin, chosen in ((["h2"], "one", "h2"), (["http/1.1"], "two", "http/1.1"),
                                    (["http/1.1", "h2"], "one", "h2"),
                                    (["http/1.0"], "three", None), ([], "three", None)):
        with connect(gateway, version=version, alpn=tuple(offered)) as client:
            assert (client.origin(), client.stream.facts()["alpn"]) == (origin, chosen)


def test_passthrough_beside_termination(site, version):  # noqa: F811
    """A name of each kind on one listener; passthrough sees nothing of our certificates."""
    gateway = start(site, "--passthrough", f"p.test={TWO}")
    with gateway.connect("p.test") as client:
        assert client.origin() == "two"
        assert "hello" in client.info()
    with connect(gateway, version=version) as client:
        assert client.origin() == "one"
        assert "hello" not in client.info()
    modes = {route["label"]: route["mode"] for route in gateway.status()["routes"]}
    assert modes == {"a.test": "terminate", "p.test": "passthrough"}
    stream = gateway.connect("elsewhere.test").stream
    refused_with(stream, hello.UNRECOGNIZED_NAME)


# -- applications

@pytest.fixture(scope="module")
def applications(place):  # noqa: F811
    """What listens where an application's names lead."""
    made = Origin(place.namespace, {"app80": "tcp:127.0.0.2:80", "app8080": "tcp:127.0.0.2:8080",
                                    "app50051": "tcp:127.0.0.2:50051"})
    yield {"base_domains": [{"name": "apps.test", "applications": [
        {"id": "shop", "hosts": ["127.0.0.2"]},
        {"id": "narrow", "hosts": ["127.0.0.2"], "ports": [8080]}]}]}
    made.close()


def start_applications(site, applications, *identities):  # noqa: F811
    return start(site, identities=[pki().issue("*.apps.test"), *identities], settings=applications,
                 routes=[terminating(names=["a.test"])])


@pytest.mark.parametrize("label, origin", [("shop", "app80"), ("shop-8080", "app8080"),
                                           ("shop-80", "app80"), ("narrow-8080", "app8080")])
def test_application(site, applications, version, label, origin):  # noqa: F811
    gateway = start_applications(site, applications)
    with connect(gateway, f"{label}.apps.test", version, alpn=("h2", "http/1.1")) as client:
        assert client.origin() == origin
        assert client.stream.facts()["alpn"] is None
        client.get(100_000)


@pytest.mark.parametrize("label, origin", [("shop-g", "app80"), ("shop-50051g", "app50051")])
def test_application_of_grpc(site, applications, version, label, origin):  # noqa: F811
    """The client's name says h2: it is offered, and nothing else."""
    gateway = start_applications(site, applications)
    name = f"{label}.apps.test"
    with connect(gateway, name, version, alpn=("http/1.1", "h2")) as client:
        assert client.origin() == origin
        assert client.stream.facts()["alpn"] == "h2"
    with connect(gateway, name, version) as client:
        assert client.origin() == origin
    refused(gateway, name, version, alpn=("http/1.1",), words=["no application protocol"])
    wait_fault(gateway, "tls_failed", "no_application_protocol")


def test_application_that_keeps_its_tls(site, applications):  # noqa: F811
    gateway = start_applications(site, applications)
    with gateway.connect("shop-8443s.apps.test") as client:
        assert client.origin() == "app8443"
    with gateway.connect("shop-s.apps.test") as client:
        assert client.origin() == "app"
        assert "hello" in client.info()


def test_application_and_ports(site, applications, version):  # noqa: F811
    gateway = start_applications(site, applications)
    for label in ("narrow", "narrow-443", "narrow-g", "narrow-8443s"):
        stream = gateway.connect(f"{label}.apps.test").stream
        refused_with(stream, hello.UNRECOGNIZED_NAME)
    gateway.wait_ended("forbidden_port", 4)
    # Nobody listens at that one: the client hears of it inside TLS.
    refused(gateway, "shop-81.apps.test", version, words=["internal error"])
    gateway.wait_ended("connect_failed")


def test_application_without_certificates(site, applications):  # noqa: F811
    """What needs one is no name of ours; what does not is served."""
    gateway = site.start(config=applications)
    for label in ("shop", "shop-8080", "shop-g"):
        refused_with(gateway.connect(f"{label}.apps.test").stream, hello.UNRECOGNIZED_NAME)
    gateway.wait_ended("unknown_name", 3)
    with gateway.connect("shop-8443s.apps.test") as client:
        assert client.origin() == "app8443"
    assert gateway.status()["tls"] is None


def test_what_status_says(site):  # noqa: F811
    gateway = start(site)
    tls = gateway.status()["tls"]
    assert [(entry["cert"], entry["names"], entry["key"]) for entry in tls["certificates"]] == [
        (str(pki().ecdsa.cert), ["*.w.test", "a.test"], "ecdsa"),
        (str(pki().rsa.cert), ["r.test"], "rsa")]
    for entry in tls["certificates"]:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", entry["not_after"]), entry
    assert (tls["min_version"], tls["max_version"], tls["tickets"]) == (*VERSIONS, "rotated")
    assert "mbedTLS" in tls["crypto"]
    assert faults(gateway) == {} and faults(gateway, "upstream_tls_faults") == {}
    status = gateway.status()
    assert "bad_mac" in status["tls_faults"] and "none" not in status["tls_faults"]
    assert gateway.route("a.test")["mode"] == "terminate"
