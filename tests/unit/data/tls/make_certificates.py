#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the certificates and keys beside it, for tests/unit/gateway_tls_*_test.cpp: test keys, of no
worth to anyone. Needs python3-cryptography; the tests do not."""
import datetime
import ipaddress
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

HERE = pathlib.Path(__file__).parent
FROM, TO = datetime.datetime(2020, 1, 1), datetime.datetime(2099, 12, 31)


def write_key(name, key, password=None):
    kind = (serialization.BestAvailableEncryption(password) if password
            else serialization.NoEncryption())
    (HERE / f"{name}.key").write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, kind))


def general_name(name):
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def make(common_name, key, issuer=None, names=(), ca=False, usage=None, since=FROM, until=TO):
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = (x509.CertificateBuilder().subject_name(subject)
               .issuer_name(issuer[0].subject if issuer else subject)
               .public_key(key.public_key()).serial_number(x509.random_serial_number())
               .not_valid_before(since).not_valid_after(until)
               .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True))
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([general_name(name) for name in names]), critical=False)
    if usage:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256())


def write(name, *certificates):
    (HERE / f"{name}.pem").write_bytes(b"".join(
        c.public_bytes(serialization.Encoding.PEM) for c in certificates))


def p256():
    return ec.generate_private_key(ec.SECP256R1())


SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH

root_key, issuing_key = p256(), p256()
root = make("causeway test root", root_key, ca=True)
issuing = make("causeway test issuing", issuing_key, (root, root_key), ca=True)
issuer = (issuing, issuing_key)
write("root", root)

names = ("a.example", "*.wild.example")
ecdsa = p256()
write("ecdsa", make("a.example", ecdsa, issuer, names, usage=SERVER), issuing)
write_key("ecdsa", ecdsa)
rsa2048 = rsa.generate_private_key(65537, 2048)
write("rsa", make("a.example", rsa2048, issuer, names, usage=SERVER), issuing)
write_key("rsa", rsa2048)
p384 = ec.generate_private_key(ec.SECP384R1())
write("p384", make("c.example", p384, issuer, ("c.example",), usage=SERVER), issuing)
write_key("p384", p384)
other = p256()
write("other", make("b.example", other, issuer, ("b.example", "x.wild.example")), issuing)
write_key("other", other)

write("addresses", make("10.0.0.1", other, issuer, ("10.0.0.1", "fd00::1")), issuing)
write("common_name", make("Named.Example", other, issuer), issuing)
write("wrong_order", issuing, make("a.example", ecdsa, issuer, names))
write("expired", make("a.example", ecdsa, issuer, names, since=FROM,
                      until=datetime.datetime(2021, 1, 1)))
write("future", make("a.example", ecdsa, issuer, names, since=datetime.datetime(2098, 1, 1)))
write("not_for_servers", make("a.example", ecdsa, issuer, names, usage=CLIENT))
write_key("encrypted", ecdsa, b"secret")
short = rsa.generate_private_key(65537, 1024)
write("short", make("a.example", short, issuer, names))
write_key("short", short)

client_root_key, client_key, stranger_key = p256(), p256(), p256()
client_root = make("causeway test client root", client_root_key, ca=True)
write("client_root", client_root)
write("client", make("a client", client_key, (client_root, client_root_key), usage=CLIENT))
write_key("client", client_key)
stranger_root = make("a stranger's root", stranger_key, ca=True)
write("stranger", make("a stranger", stranger_key, (stranger_root, stranger_key), usage=CLIENT))
write_key("stranger", stranger_key)
