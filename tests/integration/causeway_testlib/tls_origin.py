# SPDX-License-Identifier: Apache-2.0
"""An upstream that speaks TLS: origin.py's requests inside of it. Runs as a process (TlsOrigin).

More requests:
  /cut/N          N bytes, then the stream's end without a close_notify
And /info has what the handshake was like: version, cipher, alpn, name, client.
"""

import json
import socket
import ssl
import subprocess
import sys
import threading

try:
    from . import origin
    from .programs import SLOW, die_with_parent
    from .tls_stream import BareEnd, TlsStream
except ImportError:  # as the program
    import origin
    from tls_stream import BareEnd, TlsStream


class _TlsOrigin(origin._Origin):
    """`mode` is a listener's settings: see TlsOrigin."""

    def __init__(self):
        super().__init__()
        self._contexts = {}

    def context(self, settings):
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(settings["cert"], settings["key"])
        made.set_alpn_protocols(settings.get("alpn", []))
        if "client_ca" in settings:
            made.load_verify_locations(settings["client_ca"])
            made.verify_mode = ssl.CERT_REQUIRED
        if settings.get("version"):
            made.minimum_version = made.maximum_version = {
                "1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}[settings["version"]]
        made.sni_callback = lambda tls, name, _: setattr(tls, "asked_name", name)
        return made

    def _connection(self, name, mode, stream, peer):
        info = {"listener": name, "peer": list(peer)[:2]}
        rest = b""
        if mode.get("silent"):
            while stream.recv(65536):
                pass
            self.note("end", listener=name)
            return False
        if mode.get("proxy"):
            reader = origin.Reader(stream)
            while not reader.rest:
                reader.rest = stream.recv(65536)
            info["proxy"], rest = self._proxy_header(reader), reader.rest
        if name not in self._contexts:
            self._contexts[name] = self.context(mode)
        tls = TlsStream(stream, self._contexts[name], server=True, rest=rest)
        try:
            tls.handshake()
            client = tls.tls.getpeercert() or {}
            info.update(tls.facts(), name=getattr(tls.tls, "asked_name", None),
                        client=[value for part in client.get("subject", ()) for _, value in part])
            reader = origin.Reader(tls)
            while (line := reader.line()) is not None:
                if line.startswith("/cut/"):
                    for piece in origin.pieces(int(line[5:])):
                        tls.sendall(piece)
                    stream.shutdown(socket.SHUT_WR)
                    self.note("cut", read=reader.to_end()[0])
                    return False
                after = self._request(reader, tls, line, info)
                if after:
                    break
            else:
                self.note("end", listener=name, notified=tls.notified)
                after = "over"
            if after == "over":
                tls.shutdown(socket.SHUT_WR)
            return after == "kept"
        except BareEnd as error:
            self.note("bare end", listener=name, error=str(error))
        except ssl.SSLError as error:
            self.note("tls", listener=name, error=str(error))
        return False


def main(arguments):
    """One JSON object: {name: settings}. Says "ready", serves until its standard input ends."""
    threading.stack_size(256 * 1024)
    served = _TlsOrigin()
    for name, settings in json.loads(arguments[0]).items():
        threading.Thread(target=served.accept, daemon=True,
                         args=[name, settings, origin._listener(settings["address"])]).start()
    print("ready", flush=True)
    sys.stdin.read()


class TlsOrigin:
    """The process. listeners: {name: {"address", "cert", "key", "alpn": [..], "client_ca": a file
    (then clients need certificates), "version", "proxy": true (a PROXY header comes first),
    "silent": true (never says a word)}}."""

    def __init__(self, namespace, listeners):
        self._process = subprocess.Popen(
            namespace.command("/usr/bin/python3", "-B", __file__,
                              json.dumps(listeners, default=str)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=die_with_parent)
        assert self._process.stdout.readline() == b"ready\n", "the TLS origin did not start"

    def close(self):
        self._process.stdin.close()
        try:
            self._process.wait(5 * SLOW)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


if __name__ == "__main__":
    main(sys.argv[1:])
