# SPDX-License-Identifier: Apache-2.0
"""The PROXY protocol from its specification alone, to make headers and to read the gateway's."""

import socket
import struct

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def v1(client="192.0.2.1", client_port=40000, server="192.0.2.2", server_port=443):
    family = "TCP6" if ":" in client else "TCP4"
    return f"PROXY {family} {client} {server} {client_port} {server_port}\r\n".encode()


def v2(client="192.0.2.1", client_port=40000, server="192.0.2.2", server_port=443, tlvs=b"",
       local=False):
    if local:
        body, family = tlvs, 0
    else:
        kind, family = (socket.AF_INET6, 0x21) if ":" in client else (socket.AF_INET, 0x11)
        body = (socket.inet_pton(kind, client) + socket.inet_pton(kind, server)
                + struct.pack(">HH", client_port, server_port) + tlvs)
    return SIGNATURE + struct.pack(">BBH", 0x20 if local else 0x21, family, len(body)) + body


def tlv(kind, value):
    return struct.pack(">BH", kind, len(value)) + value


def read(header):
    """What a header says: version, client, server as (address, port) or None, and its TLVs."""
    if header.startswith(b"PROXY "):
        assert header.endswith(b"\r\n") and len(header) <= 107, header
        words = header[:-2].decode("ascii").split(" ")
        if words[1] == "UNKNOWN":
            return {"version": 1, "client": None, "server": None, "tlvs": {}}
        _, family, client, server, client_port, server_port = words
        assert family == ("TCP6" if ":" in client else "TCP4"), header
        return {"version": 1, "client": (client, int(client_port)),
                "server": (server, int(server_port)), "tlvs": {}}
    assert header.startswith(SIGNATURE) and len(header) >= 16, header
    command, family, size = struct.unpack(">BBH", header[12:16])
    body = header[16:]
    assert len(body) == size and command in (0x20, 0x21), header
    client = server = None
    if family in (0x11, 0x21):
        kind, width = (socket.AF_INET, 4) if family == 0x11 else (socket.AF_INET6, 16)
        ports = struct.unpack(">HH", body[2 * width:2 * width + 4])
        client = (socket.inet_ntop(kind, body[:width]), ports[0])
        server = (socket.inet_ntop(kind, body[width:2 * width]), ports[1])
        body = body[2 * width + 4:]
    tlvs = {}
    while body:
        kind, length = struct.unpack(">BH", body[:3])
        assert len(body) >= 3 + length, header
        tlvs[kind] = body[3:3 + length]
        body = body[3 + length:]
    return {"version": 2, "client": client if command == 0x21 else None,
            "server": server if command == 0x21 else None, "tlvs": tlvs}
