# SPDX-License-Identifier: Apache-2.0
"""Tools that know TLS well against the gateway: testssl.sh, wrk, curl, openssl's early data."""

import hashlib
import json
import re
import shutil

import pytest

from causeway_testlib import origin
from causeway_testlib.gateway import place, site  # noqa: F401
from causeway_testlib.gateway_peers import need, with_hosts
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.tls_client import connect, faults, start, terminating, version  # noqa: F401
from causeway_testlib.tls_openssl import (Openssl, change_session, handshake, s_client,
                                          with_early_data)
from causeway_testlib.tls_peers import web
from causeway_testlib.tls_pki import pki

SIZE = 5 << 20

# What is claimed, in testssl's words.
PROTOCOLS = {"SSLv2": "not offered", "SSLv3": "not offered", "TLS1": "not offered",
             "TLS1_1": "not offered", "TLS1_2": "offered", "TLS1_3": "offered with final"}
CIPHERS = {
    "TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256",
    *(f"ECDHE-{kind}-{cipher}" for kind in ("ECDSA", "RSA") for cipher in (
        "AES128-GCM-SHA256", "AES256-GCM-SHA384", "CHACHA20-POLY1305")),
}


@pytest.fixture
def served(site):  # noqa: F811
    """nginx, with a certificate of each kind for a.test."""
    return start(site, identities=[pki().ecdsa, pki().issue("a.test-rsa", "a.test", kind="rsa")],
                 routes=[terminating(web(site, {"large": b"".join(origin.pieces(SIZE))}),
                                     protocols=["http/1.1"])])


def curl(site, gateway, path, *arguments):  # noqa: F811
    need("curl")
    return site.namespace.run(
        "curl", "-sS", "--max-time", 20 * SLOW, "--cacert", pki().root.cert, "--resolve",
        f"a.test:{gateway.port}:127.0.0.1", *arguments, f"https://a.test:{gateway.port}/{path}",
        check=False, timeout=25 * SLOW)


def test_curl(site, served, version):  # noqa: F811
    only = (f"--tlsv{version}", "--tls-max", version)
    result = curl(site, served, "hello", *only, "-w", "%{http_version} %{response_code}")
    assert result.stdout == "hello\n1.1 200", result.stderr
    path = site.directory / f"got{served.port}"
    result = curl(site, served, "large", *only, "-o", path)
    assert result.returncode == 0, result.stderr
    assert hashlib.sha256(path.read_bytes()).hexdigest() == origin.digest(SIZE)
    result = curl(site, served, "large?[1-20]", *only, "--parallel", "--parallel-max", "20", "-o",
                  "/dev/null", "-w", "%{size_download}\n")
    assert result.stdout.split() == [str(SIZE)] * 20, result.stderr


ODD_CLIENTS = [
    # Records of 512 bytes at most in both directions; records that are mostly padding.
    ["-maxfraglen", "512"], ["-maxfraglen", "4096"], ["-record_padding", "16384"],
    ["-max_send_frag", "512"],
    # What we do not have and pass over: a key of its own, stapled status, a ticket that it rejects.
    ["-psk", "123456"], ["-status"], ["-no_ticket"], ["-use_srtp", "SRTP_AES128_CM_SHA1_80"],
    ["-no_etm"],
]


@pytest.mark.parametrize("arguments", ODD_CLIENTS, ids=lambda words: "".join(words).strip("-"))
def test_odd_clients(site, version, arguments):  # noqa: F811
    gateway = start(site)
    with Openssl(site, gateway, f"-tls{version.replace('.', '_')}", *arguments) as client:
        client.get(300_000)
        client.put(300_000)


def test_wrk(site, served):  # noqa: F811
    need("wrk")
    result = site.namespace.run(*with_hosts(site, **{"a.test": "127.0.0.1"}), "wrk", "-t1", "-c32",
                                "-d2s", f"https://a.test:{served.port}/hello", check=False,
                                timeout=20 * SLOW)
    assert result.returncode == 0, result.stderr
    assert "Socket errors" not in result.stdout and "Non-2xx" not in result.stdout, result.stdout
    count = int(re.search(r"(\d+) requests in", result.stdout).group(1))
    assert count > (20 if SANITIZED else 500), result.stdout
    assert served.counter("relayed") >= 32
    for reason in ("upstream_reset", "connect_failed", "tls_failed", "tls_broken", "idle"):
        assert served.ended(reason) == 0, reason
    assert faults(served) == {}


def test_early_data(site):  # noqa: F811
    """A client that was told (by a forged session) that it may send early data: none of it is ever
    taken for data, since whoever recorded it could send it again."""
    gateway = start(site)
    path, forged = site.directory / "session", site.directory / "forged"
    early = site.directory / "early"
    early.write_bytes(b"/upload/3\nabc\n")
    handshake(site, gateway, "-tls1_3", "-sess_out", path)
    change_session(path, forged, with_early_data)
    _, said = s_client(site, gateway, "-tls1_3", "-sess_in", forged, "-early_data", early)
    gateway.wait_active(0)
    assert f"3 {hashlib.sha256(b'abc').hexdigest()}" not in said
    if gateway.ended("orderly") == 1:
        assert gateway.ended("tls_failed") == 1 and faults(gateway) == {"bad_mac": 1}, said
        assert gateway.counter("connect_attempts") == 1
    # The same client without it resumes or not, but is served.
    handshake(site, gateway, "-tls1_3", "-sess_in", path)


def findings(site, gateway, *arguments):  # noqa: F811
    """{id: (severity, finding)} of testssl.sh."""
    tool = shutil.which("testssl") or shutil.which("testssl.sh")
    if not tool:
        pytest.skip("testssl.sh is not installed")
    need("openssl")
    path = site.directory / f"testssl{gateway.port}.json"
    site.namespace.run(
        *with_hosts(site, **{"a.test": "127.0.0.1"}), tool, "--quiet", "--color", "0", "--warnings",
        "batch", "--ip", "127.0.0.1", "--nodns", "min", "--add-ca", pki().root.cert, "--jsonfile",
        path, *arguments, f"a.test:{gateway.port}", check=False, timeout=85 * SLOW)
    return {entry["id"]: (entry["severity"], entry["finding"])
            for entry in json.loads(path.read_text(encoding="utf-8"))}


@pytest.mark.skipif(SANITIZED, reason="hundreds of handshakes, each slow here")
def test_testssl(site, served):  # noqa: F811
    """No vulnerability; the protocols and the ciphers that are claimed, and no others."""
    found = findings(site, served, "-p", "-s", "-f", "-U")
    for name, wanted in PROTOCOLS.items():
        assert found[name][1].startswith(wanted), f"{name}: {found[name]}"
    bad = {name: entry for name, entry in found.items()
           if entry[0] in ("LOW", "MEDIUM", "HIGH", "CRITICAL", "FATAL")}
    # BREACH is about compressed pages, not about TLS.
    bad.pop("BREACH", None)
    assert not bad, bad
    for name in ("heartbleed", "CCS", "ticketbleed", "ROBOT", "CRIME_TLS", "POODLE_SSL",
                 "SWEET32", "FREAK", "DROWN", "LOGJAM", "BEAST", "LUCKY13", "RC4"):
        assert found[name][0] in ("OK", "INFO"), f"{name}: {found[name]}"
    offered = {word for name, (_, text) in found.items() if "FS_ciphers" in name
               for word in text.split() if "_" in word or "-" in word}
    assert offered == CIPHERS, offered ^ CIPHERS
    with connect(served) as client:
        client.send(b"GET /hello HTTP/1.0\r\n\r\n")
        assert client.reader.some(4).startswith(b"HTTP")
    assert served.status()["ended"]["own_fault"] == 0
    assert faults(served).get("internal", 0) == 0
