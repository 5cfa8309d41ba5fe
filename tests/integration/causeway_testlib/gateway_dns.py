# SPDX-License-Identifier: Apache-2.0
"""A DNS server for a handful of names, in the namespace: A and AAAA over UDP (RFC 1035)."""

import socket
import struct
import threading

from .gateway_client import inside

A, AAAA = 1, 28


class NameServer:
    """names: {name: (addresses, seconds to live)}; may be changed at any time. Unknown names do not
    exist; a name with None is not answered."""

    def __init__(self, namespace, names, port=5353):
        self.names, self.asked = dict(names), []
        self.address = f"127.0.0.1:{port}"
        with inside(namespace):
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", port))
        self._socket.settimeout(0.1)
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop = True
        self._thread.join()
        self._socket.close()

    def _run(self):
        while not self._stop:
            try:
                query, peer = self._socket.recvfrom(4096)
            except TimeoutError:
                continue
            answer = self._answer(query)
            if answer:
                self._socket.sendto(answer, peer)

    def _answer(self, query):
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1:at + 1 + query[at]].decode("ascii").lower())
            at += 1 + query[at]
        kind = struct.unpack(">H", query[at + 1:at + 3])[0]
        question, name = query[12:at + 5], ".".join(labels)
        self.asked.append((name, kind))
        if name not in self.names:
            return query[:2] + struct.pack(">HHHHH", 0x8583, 1, 0, 0, 0) + question  # NXDOMAIN
        if self.names[name] is None:
            return None
        addresses, ttl = self.names[name]
        family = {A: socket.AF_INET, AAAA: socket.AF_INET6}.get(kind)
        found = [socket.inet_pton(family, address) for address in addresses
                 if family and (":" in address) == (kind == AAAA)]
        records = b"".join(struct.pack(">HHHIH", 0xC00C, kind, 1, ttl, len(data)) + data
                           for data in found)
        return query[:2] + struct.pack(">HHHHH", 0x8580, 1, len(found), 0, 0) + question + records
