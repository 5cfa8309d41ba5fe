# SPDX-License-Identifier: Apache-2.0
"""Real TLS servers and proxies around the gateway; configurations and certificates made here."""

import shutil
import socket
import subprocess

import pytest

from .gateway_client import dial
from .programs import SLOW
from .waiting import wait_until


def need(*tools):
    """Skips the test when one of the programs is not on this machine."""
    for tool in tools:
        if not shutil.which(tool) and not shutil.which(tool, path="/usr/sbin:/sbin"):
            pytest.skip(f"{tool} is not installed")


def certificate(directory, *names):
    """A self-signed ECDSA certificate: (certificate, key, both in one file)."""
    need("openssl")
    cert, key, both = (directory / f"{names[0]}.{end}" for end in ("crt", "key", "pem"))
    if not both.exists():
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", f"/CN={names[0]}", "-keyout", key, "-out", cert,
             "-addext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in names)],
            check=True, capture_output=True, timeout=30)
        both.write_bytes(cert.read_bytes() + key.read_bytes())
    return cert, key, both


def wait_listening(namespace, port, process, host="127.0.0.1"):
    def listening():
        assert process.running() or process.returncode() is None, process.log()
        dial(namespace, (host, port)).close()
        return True

    wait_until(listening, f"{process.name} listens on {port}", 10 * SLOW)


def nginx(site, port, names=("a.test",), content=()):
    """nginx with TLS, HTTP/1.1 and HTTP/2 on 127.0.0.1:port. content: {file name: bytes}."""
    need("nginx")
    directory = site.directory / f"nginx{port}"
    directory.mkdir()
    cert, key, _ = certificate(site.directory, *names)
    for name, data in dict(content).items():
        (directory / name).write_bytes(data)
    temporary = "\n".join(f"  {kind}_temp_path {directory}/{kind};" for kind in
                          ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (directory / "nginx.conf").write_text(f"""
daemon off; master_process off; user root; pid {directory}/pid; error_log {directory}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000;
{temporary}
  server {{
    listen 127.0.0.1:{port} ssl http2 backlog=1024;
    ssl_certificate {cert}; ssl_certificate_key {key}; ssl_protocols TLSv1.2 TLSv1.3;
    root {directory};
    location = /hello {{ return 200 "hello\\n"; }}
  }}
}}
""", encoding="ascii")
    process = site.process(f"nginx{port}", "nginx", "-c", directory / "nginx.conf", "-p", directory,
                           "-e", directory / "error.log")
    wait_listening(site.namespace, port, process)
    return process


def haproxy(site, port, text):
    """haproxy with these sections; port is one that it listens on."""
    need("haproxy")
    path = site.directory / f"haproxy{port}.cfg"
    path.write_text(f"""
global
  nbthread 1
defaults
  timeout connect 5s
  timeout client 30s
  timeout server 30s
{text}
""", encoding="ascii")
    process = site.process(f"haproxy{port}", "haproxy", "-db", "-f", path)
    wait_listening(site.namespace, port, process)
    return process


def s_server(site, port, *arguments):
    cert, key, _ = certificate(site.directory, "a.test", "*.a.test")
    process = site.process(f"s_server{port}", "openssl", "s_server", "-accept",
                           f"127.0.0.1:{port}", "-cert", cert, "-key", key, "-quiet", *arguments)
    wait_listening(site.namespace, port, process)
    return process


def curl(site, gateway, path, *arguments, name="a.test"):
    """The result of curl asking the gateway for https://NAME/PATH."""
    need("curl")
    cert = certificate(site.directory, "a.test", "*.a.test")[0]
    return site.namespace.run("curl", "-sS", "--max-time", 20 * SLOW, "--cacert", cert, "--resolve",
                              f"{name}:{gateway.port}:127.0.0.1", *arguments,
                              f"https://{name}:{gateway.port}/{path}", check=False,
                              timeout=25 * SLOW)


def s_client(site, gateway, data, *arguments, name="a.test"):
    """What openssl s_client says after sending `data`; (exit code, output, errors)."""
    need("openssl")
    cert = certificate(site.directory, "a.test", "*.a.test")[0]
    command = site.namespace.command(
        "openssl", "s_client", "-connect", f"127.0.0.1:{gateway.port}", "-servername", name,
        "-CAfile", cert, "-verify_return_error", "-ign_eof", "-quiet", *arguments)
    done = subprocess.run(command, input=data, capture_output=True, check=False,
                          timeout=20 * SLOW)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def with_hosts(site, **names):
    """A wrapper for a command that sees these names in its /etc/hosts; no other process does."""
    path = site.directory / "hosts-of-peer"
    path.write_text("".join(f"{address} {name}\n" for name, address in names.items()),
                    encoding="ascii")
    return ["sh", "-c", f'mount --bind {path} /etc/hosts && exec "$@"', "sh"]


def tls_socket(site, gateway, context, name="a.test"):
    """A Python TLS client that has shaken hands through the gateway."""
    stream = dial(site.namespace, ("127.0.0.1", gateway.port))
    assert stream.family == socket.AF_INET
    try:
        return context.wrap_socket(stream, server_hostname=name)
    except BaseException:
        stream.close()
        raise
