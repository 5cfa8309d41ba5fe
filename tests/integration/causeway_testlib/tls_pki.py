# SPDX-License-Identifier: Apache-2.0
"""Certificates for the tests, made by openssl when they are first asked for: once a session."""

import atexit
import collections
import datetime
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

from .gateway_peers import need

# Paths: the certificate with its issuers behind it, its key, and both in one file.
Identity = collections.namedtuple("Identity", "cert key both")

_KEYS = {"ecdsa": ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"],
         "p384": ["ec", "-pkeyopt", "ec_paramgen_curve:P-384"],
         "p521": ["ec", "-pkeyopt", "ec_paramgen_curve:P-521"],
         "rsa": ["rsa:2048"], "rsa1024": ["rsa:1024"], "ed25519": ["ed25519"]}

# `openssl ca` is the one of its commands that takes both dates.
_CONFIGURATION = """
[ca]
default_ca = this
[this]
database = {directory}/index
new_certs_dir = {directory}
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = supplied
[extensions]
{extensions}
"""


def _openssl(*words):
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True,
                          check=False, timeout=60)
    assert done.returncode == 0, f"openssl {words[0]}: {done.stderr}"


def _date(days):
    when = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=days)
    return when.strftime("%Y%m%d%H%M%SZ")


class Pki:
    """A directory of certificates: two roots ("root", "other"), an issuer between ("between")."""

    def __init__(self):
        need("openssl")
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="cwtls-"))
        atexit.register(shutil.rmtree, self.directory, ignore_errors=True)
        self._made = {}

    def authority(self, label, days=(-30, 365)):
        """"between" is issued by "root", all others are roots."""
        issuer = "root" if label == "between" else label
        if issuer != label:
            self.authority(issuer)
        return self._make(label, "ecdsa", issuer, days,
                          "basicConstraints = critical, CA:true\n"
                          "keyUsage = critical, keyCertSign, cRLSign\n"
                          "subjectKeyIdentifier = hash")

    @property
    def root(self):
        return self.authority("root")

    @property
    def other(self):
        return self.authority("other")

    def issue(self, label, *names, kind="ecdsa", issuer="root", days=(-1, 60), use="serverAuth"):
        """The identity of this label for these names (default: the label), issued by "root",
        "other", or "between", which is in the chain then. days: valid from and to, from now."""
        self.authority(issuer)
        return self._make(label, kind, issuer, days,
                          "basicConstraints = CA:false\n"
                          f"extendedKeyUsage = {use}\n"
                          "subjectAltName = " + ", ".join(
                              ("IP:" if name[-1].isdigit() else "DNS:") + name
                              for name in names or (label,)))

    def _make(self, label, kind, issuer, days, extensions):
        terms = (kind, issuer, days, extensions)
        if label in self._made:
            made, of = self._made[label]
            assert of == terms, f"{label} is another certificate already"
            return made
        path = self.directory / label
        cert, key, both, request, configuration = (
            path.with_name(f"{label}.{end}") for end in ("crt", "key", "pem", "csr", "cnf"))
        configuration.write_text(_CONFIGURATION.format(directory=self.directory,
                                                       extensions=extensions), encoding="ascii")
        (self.directory / "index").touch()
        name = label.replace("*", "any")
        _openssl("req", "-new", "-nodes", "-newkey", *_KEYS[kind], "-keyout", key, "-out", request,
                 "-subj", f"/CN={name}")
        key.chmod(0o600)
        if issuer == label:
            by = ["-selfsign", "-keyfile", key]
        else:
            by = ["-cert", self.directory / f"{issuer}.crt", "-keyfile",
                  self.directory / f"{issuer}.key"]
        _openssl("ca", "-batch", "-notext", "-config", configuration, "-extensions", "extensions",
                 "-in", request, "-out", cert, "-startdate", _date(days[0]), "-enddate",
                 _date(days[1]), *by)
        if issuer == "between" and label != "between":
            cert.write_bytes(cert.read_bytes() + (self.directory / "between.crt").read_bytes())
        secret_file(both, cert.read_bytes() + key.read_bytes())
        self._made[label] = Identity(cert, key, both), terms
        return self._made[label][0]

    # -- those that many tests use

    @property
    def ecdsa(self):
        return self.issue("a.test", "a.test", "*.w.test", "127.0.0.1")

    @property
    def rsa(self):
        return self.issue("r.test", kind="rsa")

    @property
    def expired(self):
        return self.issue("expired.test", "a.test", days=(-30, -1))

    @property
    def client(self):
        return self.issue("client", use="clientAuth")

    @property
    def stranger(self):
        """A client's of another authority."""
        return self.issue("stranger", issuer="other", use="clientAuth")

    @property
    def expired_client(self):
        return self.issue("expired-client", days=(-30, -1), use="clientAuth")


def secret_file(path, content, mode=0o600):
    """Writes it in place."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
    return path


@functools.lru_cache(maxsize=None)
def pki():
    return Pki()
