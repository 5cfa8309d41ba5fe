# SPDX-License-Identifier: Apache-2.0
"""Certificates that change while the gateway serves: by signal, or by the files alone. A bad one
leaves the old one serving, and says so."""

import os
import signal
import ssl
import threading

import pytest

from causeway_testlib.gateway import place, site  # noqa: F401
from causeway_testlib.programs import SLOW
from causeway_testlib.tls_client import VERSIONS, connect, start, terminating
from causeway_testlib.tls_pki import pki, secret_file
from causeway_testlib.waiting import wait_until

WATCH = "200ms"


class Files:
    """A certificate and its key where a gateway reads them."""

    def __init__(self, directory):
        self.cert, self.key = directory / "served.crt", directory / "served.key"
        directory.mkdir(exist_ok=True)

    def put(self, identity, key=None):
        """In place."""
        secret_file(self.cert, identity.cert.read_bytes(), 0o644)
        secret_file(self.key, (key or identity).key.read_bytes())


def first():
    return pki().issue("first", "a.test")


def second():
    return pki().issue("second", "a.test", kind="rsa")


@pytest.fixture
def files(site):  # noqa: F811
    made = Files(site.directory / f"served{site.place.port()}")
    made.put(first())
    return made


def begin(site, files, watch="never"):  # noqa: F811
    return site.start("--tls-watch", watch, config={
        "certificates": [{"cert": str(files.cert), "key": str(files.key)}],
        "routes": [terminating(names=["a.test"])]})


def presented(gateway, number=None):
    with connect(gateway, version=number) as client:
        client.get(1)
        return client.presented()


def wait_presented(gateway, name):
    wait_until(lambda: {presented(gateway, number) for number in VERSIONS for _ in range(4)}
               == {name}, f"{name} is presented", 5 * SLOW)


def wait_error(gateway, *words):
    error = wait_until(lambda: gateway.status()["last_reload_error"], "the fault is reported",
                       5 * SLOW)
    for word in words:
        assert str(word) in error, error
    assert "\n" not in error
    assert error in gateway.log()


def test_by_signal(site, files):  # noqa: F811
    """New connections see the new one, old ones go on."""
    gateway = begin(site, files)
    held = [connect(gateway, version=number) for number in VERSIONS]
    for client in held:
        client.get(1)
    files.put(second())
    assert presented(gateway) == "first"
    gateway.signal(signal.SIGHUP)
    wait_presented(gateway, "second")
    shown = gateway.status()["tls"]["certificates"]
    assert [entry["key"] for entry in shown] == ["rsa"]
    for client in held:
        client.get(1 << 20)
        client.put(1 << 20)
        client.end()
        client.expect_end()
    assert gateway.status()["last_reload_error"] == ""


def _expired(files):
    files.put(pki().expired)
    return files.cert, "expired"


def _future(files):
    files.put(pki().issue("future", "a.test", days=(2, 30)))
    return files.cert, "not valid before"


def _mismatched(files):
    files.put(second(), pki().rsa)
    return files.key, "does not belong"


def _garbage(files):
    files.cert.write_bytes(b"-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")
    return files.cert, "no certificate"


def _garbage_key(files):
    secret_file(files.key, b"nonsense")
    return files.key, "no private key"


def _empty(files):
    files.cert.write_bytes(b"")
    return files.cert, "no certificate"


def _missing(files):
    files.cert.unlink()
    return files.cert, "No such file"


def _missing_key(files):
    files.key.unlink()
    return files.key, "No such file"


def _world_readable(files):
    files.key.chmod(0o644)
    return files.key, "0600"


def _group_readable(files):
    files.key.chmod(0o640)
    return files.key, "0600"


def _directory(files):
    files.cert.unlink()
    files.cert.mkdir()
    return files.cert, "regular file"


def _for_clients(files):
    files.put(pki().client)
    return files.cert, "server"


def _too_long(files):
    """More issuers than one message has room for, such as a whole bundle of authorities."""
    more = pki().root.cert.read_bytes() * 80
    files.cert.write_bytes(first().cert.read_bytes() + more)
    return files.cert, ""


BAD = [_expired, _future, _mismatched, _garbage, _garbage_key, _empty, _missing, _missing_key,
       _world_readable, _group_readable, _directory, _for_clients, _too_long]


@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__.strip("_"))
def test_bad_one_leaves_the_old_one(site, files, spoil):  # noqa: F811
    gateway = begin(site, files)
    held = connect(gateway)
    held.get(1)
    words = spoil(files)
    gateway.signal(signal.SIGHUP)
    wait_error(gateway, *words)
    wait_presented(gateway, "first")
    held.get(1000)
    if files.cert.is_dir():
        files.cert.rmdir()
    files.put(second())
    gateway.signal(signal.SIGHUP)
    wait_presented(gateway, "second")
    wait_until(lambda: gateway.status()["last_reload_error"] == "", "the good one clears it",
               5 * SLOW)


def test_one_bad_of_several(site, files):  # noqa: F811
    """A set is taken whole or not at all."""
    other = Files(site.directory / f"other{site.place.port()}")
    other.put(pki().rsa)
    gateway = site.start("--tls-watch", "never", config={
        "certificates": [{"cert": str(f.cert), "key": str(f.key)} for f in (files, other)],
        "routes": [terminating()]})
    files.put(second())
    other.put(pki().rsa, second())
    gateway.signal(signal.SIGHUP)
    wait_error(gateway, other.key)
    wait_presented(gateway, "first")
    with connect(gateway, "r.test") as client:
        assert client.presented() == "r.test"


# -- by the files alone

def _in_place(files, identity):
    files.put(identity)


def _by_rename(files, identity):
    for path, source in ((files.key, identity.key), (files.cert, identity.cert)):
        fresh = path.with_suffix(".new")
        secret_file(fresh, source.read_bytes())
        os.replace(fresh, path)


@pytest.mark.parametrize("put", [_in_place, _by_rename], ids=["in_place", "by_rename"])
def test_by_change(site, files, put):  # noqa: F811
    gateway = begin(site, files, WATCH)
    assert presented(gateway) == "first"
    put(files, second())
    wait_presented(gateway, "second")
    put(files, first())
    wait_presented(gateway, "first")
    # In between certificate and key may have been of two pairs; in the end all is well.
    wait_until(lambda: gateway.status()["last_reload_error"] == "", "nothing is wrong", 5 * SLOW)


def test_by_symbolic_link(site):  # noqa: F811
    """As secrets are mounted: the files are links through a directory that is a link itself, and
    that alone is replaced."""
    top = site.directory / f"mounted{site.place.port()}"
    top.mkdir()
    for name, identity in (("one", first()), ("two", second())):
        Files(top / name).put(identity)
    (top / "data").symlink_to("one")
    files = Files(top)
    for path in (files.cert, files.key):
        path.symlink_to(f"data/{path.name}")
    gateway = begin(site, files, WATCH)
    assert presented(gateway) == "first"
    (top / "data.new").symlink_to("two")
    os.replace(top / "data.new", top / "data")
    wait_presented(gateway, "second")
    assert gateway.status()["last_reload_error"] == ""


def test_bad_change(site, files):  # noqa: F811
    """Nobody asked for the reload, but what is wrong is said all the same, once."""
    gateway = begin(site, files, WATCH)
    words = _mismatched(files)
    wait_error(gateway, *words)
    lines = len(gateway.log().splitlines())
    wait_presented(gateway, "first")
    threading.Event().wait(1)
    assert len(gateway.log().splitlines()) <= lines + 2, gateway.log()[-2000:]
    files.put(second())
    wait_presented(gateway, "second")
    wait_until(lambda: gateway.status()["last_reload_error"] == "", "the good one clears it",
               5 * SLOW)


def test_never_watched(site, files):  # noqa: F811
    gateway = begin(site, files, "never")
    files.put(second())
    threading.Event().wait(1)
    assert presented(gateway) == "first"


def test_authorities(site):  # noqa: F811
    """Who certifies clients changes too, by signal and by file."""
    path = site.directory / f"clients{site.place.port()}.pem"
    path.write_bytes(pki().root.cert.read_bytes())
    gateway = start(site, "--tls-watch", WATCH, routes=[
        terminating(client_certificates="required", client_ca=str(path))])

    def served(identity):
        try:
            with connect(gateway, identity=identity) as client:
                client.get(1)
                return True
        except ssl.SSLError:
            return False

    assert (served(pki().client), served(pki().stranger)) == (True, False)
    path.write_bytes(pki().other.cert.read_bytes())
    wait_until(lambda: served(pki().stranger), "the new authority counts", 5 * SLOW)
    wait_until(lambda: not served(pki().client), "the old one does not", 5 * SLOW)
    path.write_bytes(b"nonsense")
    wait_error(gateway, path)
    assert (served(pki().client), served(pki().stranger)) == (False, True)


def test_under_load(site, files):  # noqa: F811
    """No connection fails, whichever certificate it meets."""
    gateway = begin(site, files)
    stop, failures, seen = threading.Event(), [], []

    def load(number):
        while not stop.is_set():
            try:
                with connect(gateway, version=number) as client:
                    client.get(20_000)
                    seen.append(client.presented())
                    client.end()
                    client.expect_end()
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=load, args=[VERSIONS[index % 2]], daemon=True)
               for index in range(6)]
    for thread in threads:
        thread.start()
    for turn in range(12):
        files.put(second() if turn % 2 == 0 else first())
        gateway.signal(signal.SIGHUP)
        wait_presented(gateway, "second" if turn % 2 == 0 else "first")
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures[:3]
    assert set(seen) == {"first", "second"}
    assert gateway.status()["last_reload_error"] == ""


# -- at the start

@pytest.mark.parametrize("spoil", BAD, ids=lambda spoil: spoil.__name__.strip("_"))
@pytest.mark.parametrize("check", [False, True], ids=["start", "check_config"])
def test_bad_one_at_the_start(site, files, spoil, check):  # noqa: F811
    """One line that names the file and what to do, and 1."""
    path, words = spoil(files)
    done = site.run("--cert", files.cert, "--key", files.key, "--upstream", "tcp:127.0.0.1:9001",
                    "--listen", f"tcp:127.0.0.1:{site.place.port()}",
                    *(["--check-config"] if check else []))
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"causeway-gateway: {path}: "), line
    assert words in line


def test_good_one_at_check_config(site, files):  # noqa: F811
    done = site.run("--cert", files.cert, "--key", files.key, "--upstream", "tcp:127.0.0.1:9001",
                    "--listen", "tcp:127.0.0.1:20999", "--check-config")
    assert done.returncode == 0, done.stderr
    assert "configuration ok" in done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["rsa1024", "ed25519", "p521"])
def test_key_that_is_not_served(site, kind):  # noqa: F811
    identity = pki().issue(f"kind-{kind}", "a.test", kind=kind)
    done = site.run("--cert", identity.cert, "--key", identity.key, "--upstream",
                    "tcp:127.0.0.1:9001", "--listen", f"tcp:127.0.0.1:{site.place.port()}")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert str(pki().directory) in line


@pytest.mark.parametrize("flag", ["ticket_keys", "client_ca", "upstream_ca", "upstream_key"])
def test_other_files_at_the_start(site, flag):  # noqa: F811
    missing = str(site.directory / "no-such-file")
    terms = {"client_ca": {"client_certificates": "required", "client_ca": missing},
             "upstream_ca": {"upstream_tls": True, "upstream_ca": missing,
                             "upstream_name": "a.test"},
             "upstream_key": {"upstream_tls": True, "upstream_ca": str(pki().root.cert),
                              "upstream_cert": str(pki().client.cert), "upstream_key": missing,
                              "upstream_name": "a.test"}}.get(flag, {})
    config = {"certificates": [{"cert": str(pki().ecdsa.cert), "key": str(pki().ecdsa.key)}],
              "routes": [terminating(**terms)]}
    if flag == "ticket_keys":
        config["tls"] = {"ticket_keys": missing}
    port = site.place.port()
    done = site.run("--config", site.configuration(config, port), "--listen",
                    f"tcp:127.0.0.1:{port}")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("causeway-gateway: ") and f"{missing}: No such file" in line, line
