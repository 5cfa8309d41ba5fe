# SPDX-License-Identifier: Apache-2.0
"""openssl s_client: once for what it says, or as a stream for gateway_client.Client."""

import os
import socket
import subprocess

from .gateway_client import Client
from .gateway_peers import need
from .programs import SLOW, die_with_parent
from .tls_pki import pki


def _command(site, gateway, name, arguments):
    need("openssl")
    return site.namespace.command(
        "openssl", "s_client", "-connect", f"127.0.0.1:{gateway.port}",
        *(["-servername", name] if name else ["-noservername"]), "-CAfile", pki().root.cert,
        *arguments)


def s_client(site, gateway, *arguments, name="a.test", send=b"/close/7\n"):
    """(exit code, all that it says) until the gateway closes, by default because the application
    has; by then the tickets of TLS 1.3 have come."""
    done = subprocess.run(_command(site, gateway, name, ["-ign_eof", *arguments]), input=send,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          timeout=20 * SLOW)
    return done.returncode, done.stdout.decode(errors="replace")


def handshake(site, gateway, *arguments, name="a.test", send=b"/close/7\n"):
    """As s_client(), where the handshake has to succeed."""
    code, said = s_client(site, gateway, "-verify_return_error", *arguments, name=name, send=send)
    assert code == 0 and "Verify return code: 0 (ok)" in said, said
    return said


class _Pipe:
    """The process as a stream."""

    def __init__(self, process):
        self._process = process

    def sendall(self, data):
        self._process.stdin.write(data)

    def recv(self, limit):
        return os.read(self._process.stdout.fileno(), limit)

    def shutdown(self, how):
        """To this program the end of its input is no end of the stream (-ign_eof)."""
        assert how == socket.SHUT_WR
        self._process.stdin.close()

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass


class Openssl(Client):
    """A client of the origin's protocol, where OpenSSL does the TLS. quiet False: what is read has
    its own words too, and what is sent may be its commands."""

    def __init__(self, site, gateway, *arguments, name="a.test", quiet=True):
        self.process = subprocess.Popen(
            _command(site, gateway, name, [*(["-quiet"] if quiet else []), "-verify_return_error",
                                           *arguments]),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, preexec_fn=die_with_parent,
            stderr=subprocess.DEVNULL if quiet else subprocess.STDOUT)
        super().__init__(_Pipe(self.process))


# -- what it keeps of a session

def _element(data, at):
    """(tag, begin of the content, end) of the DER element at `at`."""
    tag, size, at = data[at], data[at + 1], at + 2
    if size & 0x80:
        width = size & 0x7F
        size, at = int.from_bytes(data[at:at + width], "big"), at + width
    return tag, at, at + size


def _der(tag, content):
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    width = (size.bit_length() + 7) // 8
    return bytes([tag, 0x80 | width]) + size.to_bytes(width, "big") + content


def change_session(source, target, change):
    """Rewrites a file of -sess_out: change({tag: element}) gets the SSL_SESSION's elements, whole,
    in order (a tag that occurs twice, as INTEGER does, by (tag, index))."""
    def run(*words, data):
        return subprocess.run(["openssl", *words], input=data, capture_output=True, check=True,
                              timeout=30).stdout

    der = run("sess_id", "-outform", "DER", data=source.read_bytes())
    _, at, end = _element(der, 0)
    elements, index = {}, 0
    while at < end:
        tag, _, after = _element(der, at)
        elements[tag if tag & 0x80 else (tag, index)] = der[at:after]
        at, index = after, index + 1
    change(elements)
    whole = _der(0x30, b"".join(elements.values()))
    target.write_bytes(run("sess_id", "-inform", "DER", "-outform", "PEM", data=whole))
    return target


def with_early_data(elements):
    """As if the server had said that it takes early data: max_early_data, [15], in its place."""
    later = {tag: elements.pop(tag) for tag in list(elements) if isinstance(tag, int)
             and tag > 0xAF}
    elements[0xAF] = _der(0xAF, _der(2, (16384).to_bytes(2, "big")))
    elements.update(later)


def with_broken_ticket(elements):
    """One bit of the ticket, [10], is another."""
    ticket = bytearray(elements[0xAA])
    ticket[len(ticket) // 2] ^= 1
    elements[0xAA] = bytes(ticket)
