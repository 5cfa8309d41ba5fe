# SPDX-License-Identifier: Apache-2.0
"""Real clients, servers and proxies: TLS is from end to end, the gateway in the middle."""

import hashlib
import re
import ssl
import time

import pytest

from causeway_testlib import gateway_proxy, origin
from causeway_testlib.gateway import ARMS, place, route, site  # noqa: F401
from causeway_testlib.gateway_client import Client, dial, together
from causeway_testlib.gateway_peers import (certificate, curl, haproxy, need, nginx, s_client,
                                            s_server, tls_socket, with_hosts)
from causeway_testlib.programs import SANITIZED, SLOW

MIB = 1 << 20
SIZE = 5 * MIB
NAMES = ("a.test", "*.a.test")
SEEN = "%[src]:%[src_port] %[dst]:%[dst_port] %[ssl_fc_sni]"  # what haproxy makes of a connection


@pytest.fixture
def web(site):  # noqa: F811
    """A gateway in front of nginx: a.test and *.a.test."""
    port = site.place.port()
    nginx(site, port, NAMES, {"large": b"".join(origin.pieces(SIZE))})
    site.web = route(f"tcp:127.0.0.1:{port}", names=list(NAMES))
    return site.start(config={"routes": [site.web]})


@pytest.mark.parametrize("version", ["1.1", "2"])
def test_curl(site, web, version):  # noqa: F811
    """HTTP/1.1 and HTTP/2: the server's own ALPN answer reaches the client."""
    result = curl(site, web, "hello", f"--http{version}", "-w", "%{http_version} %{response_code}",
                  name="x.a.test")
    assert result.stdout == f"hello\n{version} 200", result.stderr
    path = site.directory / f"got{version}"
    result = curl(site, web, "large", f"--http{version}", "-o", path)
    assert result.returncode == 0, result.stderr
    assert hashlib.sha256(path.read_bytes()).hexdigest() == origin.digest(SIZE)


def test_curl_parallel(site, web):  # noqa: F811
    """40 transfers at once on connections of their own."""
    result = curl(site, web, "large?[1-40]", "--parallel", "--parallel-max", "40", "--http1.1",
                  "-o", "/dev/null", "-w", "%{size_download}\n")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(SIZE)] * 40


def test_curl_and_a_name_without_route(site, web):  # noqa: F811
    """The client can tell why: the alert, not a bare close."""
    result = curl(site, web, "hello", name="b.test")
    assert result.returncode == 35 and "unrecognized name" in result.stderr, result.stderr
    web.wait_ended("unknown_name")


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_s_client(site, web, version):  # noqa: F811
    code, output, errors = s_client(site, web, b"GET /hello HTTP/1.0\r\n\r\n", version)
    assert code == 0 and output.endswith(b"\r\n\r\nhello\n"), errors
    _, output, errors = s_client(site, web, b"", version, name="b.test")
    assert output == b"" and "alert number 112" in errors, errors


def test_openssl_s_server(site):  # noqa: F811
    port = site.place.port()
    s_server(site, port, "-www")
    gateway = site.start(config={"routes": [route(f"tcp:127.0.0.1:{port}")]})
    for version in ("--tlsv1.3", "--tls-max", "--tlsv1.2"):
        more = ["1.2"] if version == "--tls-max" else []
        result = curl(site, gateway, "", version, *more, "--http1.1")
        assert "s_server" in result.stdout, result.stderr


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_python(site, web, version):  # noqa: F811
    """Large payloads on several connections, resumed sessions, an orderly close_notify."""
    context = ssl.create_default_context(cafile=certificate(site.directory, *NAMES)[0])
    context.minimum_version = context.maximum_version = version

    def work(_):
        stream = tls_socket(site, web, context)
        sha, left = hashlib.sha256(), SIZE
        stream.sendall(b"GET /large HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n")
        head = b""
        while b"\r\n\r\n" not in head:
            head += stream.recv(65536)
        body = head.split(b"\r\n\r\n", 1)[1]
        while body:
            sha.update(body)
            left -= len(body)
            body = stream.recv(65536)  # b"": only after the peer's close_notify
        assert left == 0 and sha.hexdigest() == origin.digest(SIZE)
        stream.close()

    together(8, work)


def test_wrk(site, web):  # noqa: F811
    need("wrk")
    seconds = 2
    result = site.namespace.run(*with_hosts(site, **{"a.test": "127.0.0.1"}), "wrk", "-t1", "-c32",
                                f"-d{seconds}s", f"https://a.test:{web.port}/hello", check=False,
                                timeout=20 * SLOW)
    assert result.returncode == 0, result.stderr
    assert "Socket errors" not in result.stdout and "Non-2xx" not in result.stdout, result.stdout
    count = int(re.search(r"(\d+) requests in", result.stdout).group(1))
    assert count > (20 if SANITIZED else 500), result.stdout
    assert web.counter("relayed") >= 32
    for reason in ("upstream_reset", "connect_failed", "no_descriptors", "idle"):
        assert web.ended(reason) == 0


@pytest.mark.parametrize("arm", ARMS)
def test_large_download_in_each_relay(site, web, arm):  # noqa: F811
    gateway = site.start(*ARMS[arm], config={"routes": [site.web]})
    path = site.directory / f"got-{arm}"
    result = curl(site, gateway, "large", "-o", path, "--limit-rate", "20M")
    assert result.returncode == 0, result.stderr
    assert hashlib.sha256(path.read_bytes()).hexdigest() == origin.digest(SIZE)


@pytest.mark.parametrize("version", ["send-proxy", "send-proxy-v2"])
def test_haproxy_in_front(site, version):  # noqa: F811
    """haproxy tells who the client is, and the gateway passes that on."""
    port, front = site.place.port(), site.place.port()
    gateway = site.start(port=port, listen=False, config={
        "listeners": [{"address": f"tcp:127.0.0.1:{port}", "proxy_protocol": "any",
                       "trusted": ["127.0.0.1/32"]}],
        "routes": [route("tcp:127.0.0.1:9005", proxy_protocol="v2")]})
    haproxy(site, front, f"""
listen in
  mode tcp
  bind 127.0.0.1:{front}
  server gateway 127.0.0.1:{port} {version}
""")
    for _ in range(4):
        with gateway.connect(address=("127.0.0.1", front), source=("127.0.0.77", 0)) as client:
            own = client.stream.getsockname()
            said = gateway_proxy.read(bytes.fromhex(client.info()["proxy"]))
            client.get(MIB)
            client.put(MIB)
        assert said["client"] == own and said["server"] == ("127.0.0.1", front)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_haproxy_behind(site, version):  # noqa: F811
    """haproxy terminates TLS behind the gateway and sees the client's address as its own peer's."""
    port = site.place.port()
    both = certificate(site.directory, *NAMES)[2]
    haproxy(site, port, f"""
frontend in
  mode http
  bind 127.0.0.1:{port} accept-proxy ssl crt {both} alpn h2,http/1.1
  http-request return status 200 content-type text/plain lf-string "{SEEN}"
""")
    gateway = site.start(config={"routes": [
        route(f"tcp:127.0.0.1:{port}", proxy_protocol=version)]})
    for http in ("--http1.1", "--http2"):
        result = curl(site, gateway, "", http, "--interface", "127.0.0.78", "-w",
                      "\n%{local_ip}:%{local_port}")
        said, own = result.stdout.split("\n")
        assert said == f"{own} 127.0.0.1:{gateway.port} a.test", result.stderr
        assert own.startswith("127.0.0.78:")


def test_server_speaks_first_after_the_handshake(site, web):  # noqa: F811
    """A client that waits: nothing is held back until the client says more."""
    context = ssl.create_default_context(cafile=certificate(site.directory, *NAMES)[0])
    begin = time.monotonic()
    for _ in range(10):
        stream = tls_socket(site, web, context)
        stream.sendall(b"GET /hello HTTP/1.0\r\n\r\n")
        assert stream.recv(1000).startswith(b"HTTP/1.1 200")
        stream.close()
    assert time.monotonic() - begin < 2 * SLOW


def test_non_tls_client_of_a_tls_server(site, web):  # noqa: F811
    """Plain HTTP sent to the TLS port hears an alert that says so."""
    client = Client(dial(site.namespace, ("127.0.0.1", web.port)))
    client.send(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n")
    assert client.reader.some() == b"\x15\x03\x03\x00\x02\x02\x0a"
    client.expect_end()
    client.close()
