# SPDX-License-Identifier: Apache-2.0
"""Session tickets of both versions: resumed by real clients, on every worker, after a restart and
by a fleet; and never where they should not be."""

import os
import signal
import time

import pytest

from causeway_testlib.gateway import ONE, TWO, place, site  # noqa: F401
from causeway_testlib.gateway_peers import need
from causeway_testlib.programs import SLOW
from causeway_testlib.tls_client import (  # noqa: F401
    COMBINATIONS, NAMES, connect, context, start, terminating, version)
from causeway_testlib.tls_openssl import change_session, handshake, with_broken_ticket
from causeway_testlib.tls_peers import web
from causeway_testlib.tls_pki import pki, secret_file
from causeway_testlib.tls_stream import keeping
from causeway_testlib.waiting import wait_until

SESSION_TICKET, PRE_SHARED_KEY = 35, 41  # extensions of a ClientHello


@pytest.fixture
def gateway(site):  # noqa: F811
    return start(site)


def new_session(gateway, name="a.test", number=None, *, use=None, **terms):
    """Of a full handshake, with a ticket."""
    with connect(gateway, name, number, use=use, **terms) as client:
        client.get(1)
        assert not client.tls.session_reused
        session = client.session()
    assert session.has_ticket
    return session


def offers_ticket(hello):
    """Whether this ClientHello, a record, presents a ticket."""
    at = 5 + 4 + 2 + 32
    at += 1 + hello[at]
    at += 2 + int.from_bytes(hello[at:at + 2], "big")
    at += 1 + hello[at] + 2
    found = {}
    while at < len(hello):
        kind, size = (int.from_bytes(hello[at + i:at + i + 2], "big") for i in (0, 2))
        found[kind] = size
        at += 4 + size
    return found.get(SESSION_TICKET, 0) > 0 or PRE_SHARED_KEY in found


def resumes(gateway, session, name="a.test", number=None, **more):
    """Whether the gateway does, when it is presented this session; it is served either way."""
    kept = []
    with connect(gateway, name, number, session=session, transmit=keeping(kept), **more) as client:
        assert offers_ticket(kept[0])
        client.get(100_000)
        client.put(100_000)
        client.end()
        client.expect_end()
        return client.tls.session_reused


def counted(gateway):
    counters = gateway.status()["counters"]
    return counters["handshakes_full"], counters["handshakes_resumed"]


# -- clients

@pytest.mark.parametrize("combination", COMBINATIONS)
def test_python(gateway, combination):
    number, kind = combination.split("-")
    session = new_session(gateway, NAMES[kind], number)
    for _ in range(5):
        assert resumes(gateway, session, NAMES[kind], number)
    assert counted(gateway) == (1, 5)


def test_each_resumed_session_gives_a_new_ticket(gateway, version):  # noqa: F811
    session = new_session(gateway, number=version)
    for _ in range(3):
        with connect(gateway, version=version, session=session) as client:
            client.get(1)
            assert client.tls.session_reused
            session = client.session()
    assert counted(gateway) == (1, 3)


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_openssl(gateway, site, combination):  # noqa: F811
    number, kind = combination.split("-")
    arguments, name = f"-tls{number.replace('.', '_')}", NAMES[kind]
    path = site.directory / "session"
    said = handshake(site, gateway, arguments, "-sess_out", path, name=name)
    assert f"New, TLSv{number}" in said, said
    said = handshake(site, gateway, arguments, "-sess_in", path, name=name)
    assert f"Reused, TLSv{number}" in said, said
    assert counted(gateway) == (1, 1)


@pytest.mark.parametrize("cipher", ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384",
                                    "TLS_CHACHA20_POLY1305_SHA256"])
def test_openssl_with_each_cipher(gateway, site, cipher):  # noqa: F811
    """Each has its own hash behind the resumed secret."""
    path = site.directory / f"session-{cipher}"
    handshake(site, gateway, "-tls1_3", "-ciphersuites", cipher, "-sess_out", path)
    said = handshake(site, gateway, "-tls1_3", "-ciphersuites", cipher, "-sess_in", path)
    assert f"Reused, TLSv1.3, Cipher is {cipher}" in said, said


def test_curl(site):  # noqa: F811
    """Two requests on a connection each; curl keeps the session between them. For TLS 1.2 it asks
    for no tickets."""
    need("curl")
    gateway = start(site, routes=[terminating(web(site))])
    url = f"https://a.test:{gateway.port}/hello"
    done = site.namespace.run(
        "curl", "-sS", "--max-time", 20 * SLOW, "--cacert", pki().root.cert, "--resolve",
        f"a.test:{gateway.port}:127.0.0.1", "--tlsv1.3", "--http1.1",
        "-H", "Connection: close", url, url, check=False, timeout=25 * SLOW)
    assert done.stdout == "hello\n" * 2, done.stderr
    assert counted(gateway) == (1, 1)


# -- who resumes

def test_every_worker(site, version):  # noqa: F811
    """What one has sealed, all open."""
    gateway = start(site, threads=2)
    session = new_session(gateway, number=version)

    def on_each():
        assert resumes(gateway, session, number=version)
        return all(worker["counters"]["handshakes_resumed"] for worker in
                   gateway.status()["workers"])

    for _ in range(200):
        if on_each():
            break
    full, resumed = counted(gateway)
    assert full == 1 and on_each() and resumed >= 2


def keys_file(directory, *lines):
    """A key file as text: a key per line."""
    text = "# of the fleet\n\n" + "".join(line.hex() + "\n" for line in lines)
    return secret_file(directory / "ticket-keys", text.encode())


def test_after_a_restart_with_a_key_file(site, version):  # noqa: F811
    path = secret_file(site.directory / "ticket-keys", os.urandom(80))
    first = start(site, "--tls-ticket-keys", path)
    session = new_session(first, number=version)
    assert resumes(first, session, number=version)
    first.settle()
    first.end()
    second = start(site, "--tls-ticket-keys", path, port=first.port)
    assert resumes(second, session, number=version)
    assert counted(second) == (0, 1)
    assert second.status()["tls"]["tickets"] == "file"


def test_a_fleet(site, version):  # noqa: F811
    """Two gateways with the same keys and the same certificate."""
    path = keys_file(site.directory, os.urandom(48))
    first, second = (start(site, "--tls-ticket-keys", path) for _ in range(2))
    session = new_session(first, number=version)
    assert resumes(second, session, number=version)
    other = start(site)
    assert not resumes(other, session, number=version)


def test_after_a_reload(gateway, version):  # noqa: F811
    session = new_session(gateway, number=version)
    for _ in range(3):
        gateway.signal(signal.SIGHUP)
        time.sleep(0.1)
        assert resumes(gateway, session, number=version)
    assert gateway.status()["last_reload_error"] == ""


def test_two_routes_with_the_same_terms(site, version):  # noqa: F811
    """A session is of a name, so each has its own; both resume."""
    gateway = start(site, routes=[terminating(ONE, names=["a.test"]),
                                  terminating(TWO, names=["x.w.test"])])
    for name in ("a.test", "x.w.test"):
        assert resumes(gateway, new_session(gateway, name, version), name, version)


# -- who does not

def test_after_a_restart(site, version):  # noqa: F811
    """Keys that are in memory alone are gone: a full handshake, and no failure."""
    first = start(site)
    session = new_session(first, number=version)
    first.settle()
    first.end()
    second = start(site, port=first.port)
    assert not resumes(second, session, number=version)
    assert counted(second) == (1, 0)


def test_key_file_changes(site, version):  # noqa: F811
    """The first key seals, all open; one that is gone opens nothing any more: the handshake is a
    full one then, and no failure."""
    old, new = os.urandom(80), os.urandom(80)
    path = keys_file(site.directory, old)
    gateway = start(site, "--tls-ticket-keys", path, "--tls-watch", "never", threads=1)
    of_old = new_session(gateway, number=version)

    def change(*keys):
        keys_file(site.directory, *keys)
        gateway.signal(signal.SIGHUP)

    def becomes(session, resumed, what):
        wait_until(lambda: resumes(gateway, session, number=version) == resumed, what, 5 * SLOW)

    change(new)
    becomes(of_old, False, "the old key is gone")
    of_new = new_session(gateway, number=version)
    change(old, new)
    becomes(of_old, True, "the old key is back")
    assert resumes(gateway, of_new, number=version)
    change(os.urandom(80))
    becomes(of_new, False, "both are gone")
    assert not resumes(gateway, of_old, number=version)
    assert gateway.status()["last_reload_error"] == ""


def test_bad_key_file_leaves_the_old_keys(site, version):  # noqa: F811
    path = keys_file(site.directory, os.urandom(48))
    gateway = start(site, "--tls-ticket-keys", path, "--tls-watch", "never")
    session = new_session(gateway, number=version)
    for content, mode in ((b"short", 0o600), (os.urandom(80), 0o640)):
        path.unlink()
        secret_file(path, content, mode)
        gateway.signal(signal.SIGHUP)
        wait_until(lambda: str(path) in gateway.status()["last_reload_error"],
                   "the fault is reported", 5 * SLOW)
        assert resumes(gateway, session, number=version)


def test_another_certificates_name(site, version):  # noqa: F811
    """A session of a.test is none of r.test, whose client might not trust the same."""
    gateway = start(site)
    session = new_session(gateway, "a.test", version)
    assert not resumes(gateway, session, "r.test", version)
    assert resumes(gateway, session, "a.test", version)
    assert counted(gateway) == (2, 1)


def test_another_name_of_the_same_certificate(site, version):  # noqa: F811
    gateway = start(site, routes=[terminating(names=["a.test", "x.w.test"])])
    session = new_session(gateway, "a.test", version)
    assert not resumes(gateway, session, "x.w.test", version)


def test_a_certificate_with_another_key(site, version):  # noqa: F811
    """After a certificate was renewed with a new key, what was made with the old one is over."""
    path = site.directory / f"changing-{version}.pem"
    secret_file(path, pki().ecdsa.both.read_bytes())
    gateway = site.start("--tls-watch", "never", config={
        "certificates": [{"cert": str(path), "key": str(path)}], "routes": [terminating()]})
    session = new_session(gateway, number=version)
    assert resumes(gateway, session, number=version)
    secret_file(path, pki().issue("renewed", "a.test").both.read_bytes())
    gateway.signal(signal.SIGHUP)
    wait_until(lambda: not resumes(gateway, session, number=version), "it is over", 5 * SLOW)


def test_terms_that_changed(site, version):  # noqa: F811
    """A session without a client's certificate is none where one is required."""
    plain = {"certificates": [{"cert": str(pki().ecdsa.cert), "key": str(pki().ecdsa.key)}],
             "routes": [terminating()]}
    strict = {**plain, "routes": [terminating(client_certificates="required",
                                              client_ca=str(pki().root.cert))]}
    gateway = site.start(config=plain)
    use = context(version, identity=pki().client)
    session = new_session(gateway, use=use)
    assert resumes(gateway, session, use=use)
    site.configuration(strict, gateway.port)
    gateway.signal(signal.SIGHUP)
    wait_until(lambda: not resumes(gateway, session, use=use), "it is over", 5 * SLOW)


def test_client_certificate_and_resumption(site, version):  # noqa: F811
    gateway = start(site, routes=[terminating(client_certificates="required",
                                              client_ca=str(pki().root.cert))])
    use = context(version, identity=pki().client)
    session = new_session(gateway, use=use)
    assert resumes(gateway, session, use=use)
    assert counted(gateway) == (1, 1)


def test_tickets_are_off(site, version):  # noqa: F811
    keyed = start(site)
    session = new_session(keyed, number=version)
    gateway = start(site, "--tls-tickets", "false")
    with connect(gateway, version=version) as client:
        client.get(1)
        assert client.session() is None or not client.session().has_ticket
    assert not resumes(gateway, session, number=version)
    assert counted(gateway) == (2, 0)
    assert gateway.status()["tls"]["tickets"] == "off"


def test_a_changed_ticket(gateway, site, version):  # noqa: F811
    """One bit of it is another: a full handshake, and no failure."""
    arguments = f"-tls{version.replace('.', '_')}"
    path, changed = site.directory / "session", site.directory / "changed"
    handshake(site, gateway, arguments, "-sess_out", path)
    change_session(path, changed, with_broken_ticket)
    said = handshake(site, gateway, arguments, "-sess_in", changed)
    assert f"New, TLSv{version}" in said, said
    said = handshake(site, gateway, arguments, "-sess_in", path)
    assert f"Reused, TLSv{version}" in said, said
    assert counted(gateway) == (2, 1)


def test_a_ticket_of_the_other_version(gateway, site):  # noqa: F811
    """Sessions of TLS 1.2 are offered by a client that now wants 1.3 alone, and the other way."""
    for first, second in (("1_2", "1_3"), ("1_3", "1_2")):
        path = site.directory / f"session{first}"
        handshake(site, gateway, f"-tls{first}", "-sess_out", path)
        said = handshake(site, gateway, f"-tls{second}", "-sess_in", path)
        assert f"New, TLSv{second.replace('_', '.')}" in said, said


def test_key_file_and_what_it_looks_like(site):  # noqa: F811
    """Neither the log nor the status has anything of the keys."""
    key = os.urandom(80)
    gateway = start(site, "--tls-ticket-keys", keys_file(site.directory, key), "--log-level",
                    "debug")
    new_session(gateway)
    for part in (key[:16].hex(), key[16:32].hex(), key[48:64].hex()):
        assert part not in gateway.log().lower()
        assert part not in str(gateway.status()).lower()
