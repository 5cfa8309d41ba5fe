# SPDX-License-Identifier: Apache-2.0
"""Which upstream a ClientHello leads to: names, wildcards, ALPN, the default, applications."""

import pytest

from causeway_testlib import hello
from causeway_testlib.gateway import ONE, THREE, TWO, place, route, site  # noqa: F401
from causeway_testlib.gateway_client import refused_with


def origin_for(gateway, name, **more):
    with gateway.connect(name, **more) as client:
        return client.origin()


def check_refused(gateway, name, code, reason, **more):
    before = gateway.ended(reason)
    refused_with(gateway.connect(name, **more).stream, code)
    gateway.wait_ended(reason, before + 1)


def test_the_most_specific_name_wins(site):  # noqa: F811
    gateway = site.start(config={"routes": [
        route(TWO, names=["*.a.test", "b.test"]),
        route(THREE, names=["default"]),
        route(ONE, names=["x.a.test"])]})
    assert origin_for(gateway, "x.a.test") == "one"
    assert origin_for(gateway, "X.A.Test.") == "one"
    assert origin_for(gateway, "y.a.test") == "two"
    assert origin_for(gateway, "b.test") == "two"
    # A wildcard stands for exactly one label.
    assert origin_for(gateway, "z.y.a.test") == "three"
    assert origin_for(gateway, "a.test") == "three"
    assert origin_for(gateway, None) == "three"
    assert gateway.route("x.a.test")["total"] == 2
    assert gateway.route("default")["total"] == 3


def test_alpn(site):  # noqa: F811
    gateway = site.start(config={"routes": [
        route(ONE, alpn=["h2"]), route(TWO, alpn=["acme-tls/1", "http/1.1"]),
        route(THREE, names=["b.test"], alpn=["h2"])]})
    assert origin_for(gateway, "a.test", alpn=["h2"]) == "one"
    assert origin_for(gateway, "a.test", alpn=["http/1.1"]) == "two"
    # Of several routes for a name the first is taken, whatever the client prefers.
    assert origin_for(gateway, "a.test", alpn=["http/1.1", "h2"]) == "one"
    check_refused(gateway, "a.test", hello.NO_PROTOCOL, "no_protocol", alpn=["http/1.0"])
    check_refused(gateway, "b.test", hello.NO_PROTOCOL, "no_protocol")

    gateway = site.start(config={"routes": [route(ONE), route(TWO, alpn=["h2"])]})
    assert origin_for(gateway, "a.test", alpn=["h2"]) == "two"
    assert origin_for(gateway, "a.test", alpn=["http/1.1"]) == "one"
    assert origin_for(gateway, "a.test") == "one"


def test_flags_and_file_together(site):  # noqa: F811
    gateway = site.start("--passthrough", f"*.w.test={TWO}", "--passthrough", f"default={THREE}",
                         config={"routes": [route(ONE)]})
    assert origin_for(gateway, "a.test") == "one"
    assert origin_for(gateway, "x.w.test") == "two"
    assert origin_for(gateway, "elsewhere.test") == "three"


APPLICATIONS = {"base_domains": [{
    "name": "apps.test",
    "applications": [{"id": "shop", "hosts": ["127.0.0.2"]},
                     {"id": "narrow", "hosts": ["127.0.0.2"], "ports": [8443]},
                     {"id": "capped", "hosts": ["127.0.0.2"], "max_connections": 2}]}],
    "routes": [route(ONE, names=["www.apps.test"])]}


def test_applications(site):  # noqa: F811
    gateway = site.start(config=APPLICATIONS)
    assert origin_for(gateway, "shop-s.apps.test") == "app"
    assert origin_for(gateway, "shop-443s.apps.test") == "app"
    assert origin_for(gateway, "shop-8443s.apps.test") == "app8443"
    assert origin_for(gateway, "SHOP-8443S.apps.test.") == "app8443"
    assert origin_for(gateway, "narrow-8443s.apps.test") == "app8443"
    # A name of its own is more specific than the grammar.
    assert origin_for(gateway, "www.apps.test") == "one"
    assert gateway.route("shop.apps.test")["total"] == 4


@pytest.mark.parametrize("label", ["other-s", "-s", "shop-443sg", "shop-443gs", "shop-1-2s",
                                   "shop-0s", "shop-00443s", "shop-65536s", "shop--s", "x.shop-s",
                                   "shops"])
def test_names_that_are_no_application(site, label):  # noqa: F811
    gateway = site.start(config=APPLICATIONS)
    stream = gateway.connect(f"{label}.apps.test").stream
    refused_with(stream, hello.UNRECOGNIZED_NAME)


def test_ports_that_an_application_does_not_publish(site):  # noqa: F811
    gateway = site.start(config=APPLICATIONS)
    check_refused(gateway, "narrow-s.apps.test", hello.UNRECOGNIZED_NAME, "forbidden_port")
    check_refused(gateway, "narrow-22s.apps.test", hello.UNRECOGNIZED_NAME, "forbidden_port")


def test_an_application_cannot_be_led_back_to_the_gateway(site):  # noqa: F811
    """An application on the gateway's own host: its own port is not for clients to ask for."""
    port = 28443
    gateway = site.start(port=port, config={"base_domains": [{
        "name": "apps.test", "applications": [{"id": "self", "hosts": ["127.0.0.1"]}]}]})
    check_refused(gateway, f"self-{port}s.apps.test", hello.UNRECOGNIZED_NAME, "forbidden_port")
    assert origin_for(gateway, "self-9001s.apps.test") == "one"


def test_an_applications_limit(site):  # noqa: F811
    gateway = site.start(config=APPLICATIONS)
    clients = [gateway.connect("capped-s.apps.test") for _ in range(2)]
    for client in clients:
        client.get(1)
    stream = gateway.connect("capped-8443s.apps.test").stream
    refused_with(stream, hello.INTERNAL_ERROR)
    gateway.wait_ended("route_limit")
    clients[0].close()
    gateway.wait_active(1)
    assert origin_for(gateway, "capped-8443s.apps.test") == "app8443"


def test_many_routes(site):  # noqa: F811
    """A table of 2,000 names is looked up, not walked, and takes no while to read."""
    routes = [route(ONE if index % 2 else TWO, names=[f"n{index}.many.test"])
              for index in range(2000)]
    gateway = site.start(config={"routes": routes})
    for index in (0, 1, 999, 1998, 1999):
        assert origin_for(gateway, f"n{index}.many.test") == ("one" if index % 2 else "two")


@pytest.mark.parametrize("listen, upstream", [
    ("tcp:[::]:{}", "tcp:127.0.0.1:{}"), ("tcp:[::]:{}", "tcp:10.99.0.1:{}"),
    ("tcp:0.0.0.0:{}", "tcp:10.99.0.1:{}")])
def test_a_loop_is_refused(site, listen, upstream):  # noqa: F811
    """A route that leads back to the gateway, in a way that the configuration does not show."""
    port = site.place.port()
    gateway = site.start("--listen", listen.format(port), port=port, listen=False,
                         config={"routes": [route(upstream.format(port), names=["default"])]})
    with gateway.dial() as client:
        client.sendall(hello.hello("a.test"))
        assert client.recv(100) == hello.alert(hello.INTERNAL_ERROR)
    gateway.wait_ended("forbidden_port")
    # It came back once at most.
    assert gateway.counter("accepted") <= 2
