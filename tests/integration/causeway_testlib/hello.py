# SPDX-License-Identifier: Apache-2.0
"""TLS ClientHellos made by hand (RFC 8446), the alerts that answer them, and where a hello ends.

Passthrough never decrypts, so a hello and any bytes behind it are a whole client.
"""

import os
import struct

SERVER_NAME, GROUPS, ALPN, PADDING, VERSIONS, KEY_SHARE = 0, 10, 16, 21, 43, 51
X25519, X25519_MLKEM768 = 0x001D, 0x11EC
GREASE, GREASE_TOO = 0x5A5A, 0xDADA  # RFC 8701

# RFC 8446 6.2
UNEXPECTED_MESSAGE, RECORD_OVERFLOW, HANDSHAKE_FAILURE, ILLEGAL_PARAMETER = 10, 22, 40, 47
DECODE_ERROR, INTERNAL_ERROR, UNRECOGNIZED_NAME, NO_PROTOCOL = 50, 80, 112, 120


def vector(width, data):
    """data with its length in front, in `width` bytes."""
    return len(data).to_bytes(width, "big") + data


def extension(kind, body):
    return struct.pack(">H", kind) + vector(2, body)


def server_name(*names):
    entries = b"".join(b"\0" + vector(2, name) for name in names)
    return extension(SERVER_NAME, vector(2, entries))


def _as_bytes(name):
    return name if isinstance(name, bytes) else name.encode("ascii")


def message(name="a.test", alpn=(), browser=False, size=None, extra=b""):
    """A ClientHello with its handshake header; name None: without server_name.

    browser: GREASE in every list, and a post-quantum key share, as browsers send. size: the whole
    message's, reached with the padding extension.
    """
    extensions = [extension(GREASE, b"")] if browser else []
    if name is not None:
        extensions.append(server_name(_as_bytes(name)))
    groups, shares = struct.pack(">H", X25519), extension(X25519, os.urandom(32))
    versions, ciphers = b"\x03\x04\x03\x03", b"\x13\x01\x13\x02\x13\x03\xc0\x2b\xc0\x2f"
    if browser:
        grease = struct.pack(">H", GREASE)
        groups = grease + struct.pack(">H", X25519_MLKEM768) + groups
        # 1,184 bytes of ML-KEM-768 encapsulation key and 32 of X25519.
        shares = extension(GREASE, b"\0") + extension(X25519_MLKEM768, os.urandom(1216)) + shares
        versions, ciphers = grease + versions, grease + ciphers
    extensions += [extension(GROUPS, vector(2, groups)), extension(VERSIONS, vector(1, versions)),
                   extension(KEY_SHARE, vector(2, shares)),
                   extension(13, vector(2, b"\x04\x03\x08\x04\x04\x01"))]
    if alpn:
        extensions.append(extension(ALPN, vector(2, b"".join(vector(1, _as_bytes(p))
                                                             for p in alpn))))
    if browser:
        extensions.append(extension(GREASE_TOO, b"\0"))
    body = (b"\x03\x03" + os.urandom(32) + vector(1, os.urandom(32)) + vector(2, ciphers)
            + b"\x01\0")
    joined = b"".join(extensions) + extra
    if size is not None:
        joined += extension(PADDING, bytes(size - 4 - len(body) - 2 - len(joined) - 4))
    whole = b"\x01" + vector(3, body + vector(2, joined))
    assert size is None or len(whole) == size
    return whole


def record(kind, data, version=0x0301):
    return struct.pack(">BH", kind, version) + vector(2, data)


def records(handshake, step=16384):
    """The message in handshake records of at most `step` bytes each."""
    return b"".join(record(22, handshake[at:at + step]) for at in range(0, len(handshake), step))


def hello(name="a.test", step=16384, **more):
    return records(message(name, **more), step)


def split(data):
    """(the hello, what follows), or None while the ClientHello is not complete."""
    handshake, at = b"", 0
    while True:
        if len(handshake) >= 4 and len(handshake) >= 4 + int.from_bytes(handshake[1:4], "big"):
            return data[:at], data[at:]
        if len(data) < at + 5:
            return None
        size = int.from_bytes(data[at + 3:at + 5], "big")
        if len(data) < at + 5 + size:
            return None
        handshake += data[at + 5:at + 5 + size]
        at += 5 + size


def alert(code):
    """The record that a client which has not negotiated anything reads: fatal, unencrypted."""
    return record(21, bytes([2, code]), 0x0303)
