# SPDX-License-Identifier: Apache-2.0
"""TLS over a socket, record by record, so that a test sees and says each of them itself.

A stream for gateway_client.Client and origin.py: sendall(), recv(), shutdown(). Python's own TLS
sockets cannot go on reading after their close_notify, hide a missing one, and show no record.
"""

import socket
import ssl

HANDSHAKE, CHANGE_CIPHER_SPEC, ALERT, DATA = 22, 20, 21, 23
_HEADER = 5
_PART = 1 << 18  # bytes


class BareEnd(Exception):
    """The stream ended without a close_notify."""


class Stopped(Exception):
    """As many records as were asked for are sent."""


def records(data):
    """The records that `data` is made of; all are whole."""
    at = 0
    while at < len(data):
        size = _HEADER + int.from_bytes(data[at + 3:at + 5], "big")
        assert at + size <= len(data)
        yield data[at:at + size]
        at += size


class TlsStream:
    """One side of a connection. `rest`: bytes that were received already. `transmit`: called with
    this stream's socket and each flight of whole records; sends them unless told otherwise."""

    def __init__(self, sock, context, name=None, server=False, session=None, rest=b"",
                 transmit=None):
        self.socket = sock
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, server_side=server, server_hostname=name,
                                    session=session)
        self.transmit = transmit or socket.socket.sendall
        self.notified = False  # by the peer's close_notify
        self._raw, self._at, self._plain = rest, 0, b""

    def __getattr__(self, name):
        return getattr(self.socket, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- records

    def record(self):
        """The next record of the peer's; None at the end, or in the middle of one."""
        while True:
            held = len(self._raw) - self._at
            if held >= _HEADER:
                size = _HEADER + int.from_bytes(self._raw[self._at + 3:self._at + 5], "big")
                if held >= size:
                    self._at += size
                    return self._raw[self._at - size:self._at]
            part = self.socket.recv(_PART)
            if not part:
                return None
            self._raw, self._at = self._raw[self._at:] + part, 0

    def _feed(self):
        record = self.record()
        if record is None:
            raise BareEnd(f"{len(self.held())} bytes of a record, and no close_notify")
        self._in.write(record)

    def flush(self):
        if data := self._out.read():
            self.transmit(self.socket, data)

    def seal(self, data):
        """The records of this plaintext, which are not sent."""
        self.flush()
        self.tls.write(data)
        return self._out.read()

    def take(self, record):
        """What is in this record, given as if it had just come (b"": no data); what there is to say
        to it is sent."""
        self._in.write(record)
        try:
            return self.tls.read(_PART)
        except ssl.SSLWantReadError:
            return b""
        finally:
            self.flush()

    def held(self):
        """What came of a record that is not whole yet, or was not asked for."""
        return self._raw[self._at:]

    # -- the stream

    def handshake(self, flush=True):
        """flush False: the last flight stays here, and goes with what follows."""
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.flush()
                self._feed()
            except ssl.SSLError:
                self.flush()
                raise
        if flush:
            self.flush()
        return self

    def recv(self, limit):
        """b"": a close_notify."""
        if self._plain:
            part, self._plain = self._plain[:limit], self._plain[limit:]
            return part
        while True:
            try:
                part = self.tls.read(limit)
                if not part:
                    self.notified = True
                return part
            except ssl.SSLZeroReturnError:
                self.notified = True
                return b""
            except ssl.SSLWantReadError:
                self.flush()
                self._feed()
            except ssl.SSLError:
                self.flush()
                raise

    def sendall(self, data):
        view = memoryview(data)
        for at in range(0, len(view), _PART):
            self.tls.write(view[at:at + _PART])
            self.flush()

    def close_notify(self):
        # What was decrypted but not read would be lost by it.
        while self.tls.pending():
            self._plain += self.tls.read(_PART)
        try:
            self.tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        self.flush()

    def shutdown(self, how):
        assert how == socket.SHUT_WR
        self.close_notify()
        self.socket.shutdown(how)

    def end_of_records(self):
        """Behind the close_notify there is the stream's end and nothing else."""
        assert self.notified and self.record() is None and not self.held()

    def facts(self):
        cipher = self.tls.cipher()
        return {"version": self.tls.version(), "cipher": cipher and cipher[0],
                "alpn": self.tls.selected_alpn_protocol(), "resumed": self.tls.session_reused}


# -- ways to transmit

def in_segments(size):
    """Each `size` bytes in a segment of their own."""
    def transmit(sock, data):
        for at in range(0, len(data), size):
            sock.sendall(data[at:at + size])
    return transmit


def in_records(size, then=None):
    """The hello in records of at most `size` bytes, other messages that are in clear in records of
    `then` (or the same); what is encrypted stays."""
    clear, first = True, True

    def transmit(sock, data):
        nonlocal clear, first
        step = size if first else then or size
        first = False
        out = b""
        for record in records(data):
            clear = clear and record[0] == HANDSHAKE
            body = record[_HEADER:]
            for at in range(0, len(body), step if clear else len(body)):
                part = body[at:at + step] if clear else body
                out += record[:3] + len(part).to_bytes(2, "big") + part
        sock.sendall(out)
    return transmit


def up_to(count, then=b""):
    """Sends `count` records, the bytes `then`, and raises Stopped."""
    sent = 0

    def transmit(sock, data):
        nonlocal sent
        for record in records(data):
            if sent == count:
                sock.sendall(then)
                raise Stopped
            sock.sendall(record)
            sent += 1
    return transmit


def keeping(kept):
    """Sends, and puts each record into the list."""
    def transmit(sock, data):
        kept.extend(records(data))
        sock.sendall(data)
    return transmit
