# SPDX-License-Identifier: Apache-2.0
"""Clients of a gateway where TLS ends, and gateways with the certificates of tls_pki.py."""

import functools
import ssl
import threading
import warnings

import pytest

from .gateway import ONE, route
from .gateway_client import Client
from .programs import SLOW
from .tls_pki import pki
from .tls_stream import TlsStream
from .waiting import wait_until

VERSIONS = ("1.2", "1.3")
NAMES = {"ecdsa": "a.test", "rsa": "r.test"}  # by the kind of their certificate
COMBINATIONS = [f"{version}-{kind}" for version in VERSIONS for kind in NAMES]

_lock = threading.Lock()
_VERSIONS = {"1.0": ssl.TLSVersion.TLSv1, "1.1": ssl.TLSVersion.TLSv1_1,
             "1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def context(version=None, alpn=(), ciphers=None, identity=None, ca="root", verify=True):
    """A client's: one version, or any; verifies with the authority of that label. The same for the
    same terms, since sessions belong to one."""
    with _lock:
        return _context(version, alpn, ciphers, identity, ca, verify)


@functools.lru_cache(maxsize=None)
def _context(version, alpn, ciphers, identity, ca, verify):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if verify:
        made.load_verify_locations(pki().authority(ca).cert)
    else:
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if version:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            made.minimum_version = made.maximum_version = _VERSIONS[version]
    if ciphers:
        made.set_ciphers(ciphers)
    if alpn:
        made.set_alpn_protocols(list(alpn))
    if identity:
        made.load_cert_chain(identity.cert, identity.key)
    return made


class TlsClient(Client):
    """A client of the origin's protocol inside TLS."""

    @property
    def tls(self):
        return self.stream.tls

    def expect_end(self):
        """A close_notify, then the stream's end, with nothing in front of it or between."""
        super().expect_end()
        self.stream.end_of_records()

    def expect_alert(self, *words):
        """A fatal alert inside TLS, which ssl names with one of these words."""
        try:
            part = self.reader.some()
        except ssl.SSLError as error:
            assert not words or any(word in str(error).lower() for word in words), str(error)
            return
        raise AssertionError(f"no alert: {part[:64]!r}")

    def session(self):
        """To resume with; read something first, so that TLS 1.3's ticket has come."""
        return self.tls.session

    def presented(self):
        """The common name of the gateway's certificate."""
        (name,) = [value for part in self.tls.getpeercert()["subject"] for key, value in part
                   if key == "commonName"]
        return name


def connect(gateway, name="a.test", version=None, *, use=None, session=None, address=None,
            first=b"", receive_buffer=None, source=None, transmit=None, handshake=True, **terms):
    """A client that has shaken hands. use: a context; or terms: arguments of context()."""
    sock = gateway.dial(address, receive_buffer=receive_buffer, source=source)
    if first:
        sock.sendall(first)
    stream = TlsStream(sock, use or context(version, **terms), name, session=session,
                       transmit=transmit)
    if handshake:
        stream.handshake()
    return TlsClient(stream)


def refused(gateway, name="a.test", version=None, *, words=(), **more):
    """Both a handshake that the gateway ends with an alert, and one that it ends right behind it
    (in TLS 1.3 a client is done before its Finished is looked at)."""
    try:
        client = connect(gateway, name, version, **more)
    except ssl.SSLError as error:
        assert not words or any(word in str(error).lower() for word in words), str(error)
        return
    client.stream.settimeout(3 * SLOW)
    client.expect_alert(*words)
    client.close()


def start(site, *arguments, routes=None, identities=None, settings=None, **more):
    """A gateway with certificates for a.test (and more: the default) and r.test, and a route for
    those names that terminates."""
    if identities is None:
        identities = [pki().ecdsa, pki().rsa]
    config = {"certificates": [{"cert": str(i.cert), "key": str(i.key)} for i in identities],
              "routes": routes or [terminating()], **(settings or {})}
    return site.start(*arguments, config=config, **more)


def terminating(*upstreams, names=("a.test", "r.test"), **more):
    """A route of a configuration file where TLS ends."""
    return route(*(upstreams or (ONE,)), names=names, mode="terminate", **more)


def faults(gateway, key="tls_faults"):
    """Those that were counted."""
    return {name: count for name, count in gateway.status()[key].items() if count}


def wait_fault(gateway, reason, fault, count=1, key="tls_faults"):
    """As many connections ended for this reason, each with this fault, and none with another."""
    gateway.wait_ended(reason, count)
    wait_until(lambda: faults(gateway, key) == {fault: count}, f"{count} x {fault}", 5 * SLOW)


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param
