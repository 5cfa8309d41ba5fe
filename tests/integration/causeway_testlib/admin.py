# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 over the admin socket, with the standard library's client."""

import http.client
import json
import socket


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Admin:
    def __init__(self, path, timeout=5.0):
        self.path = path
        self._timeout = timeout

    def get(self, target):
        """(status code, content type, body)."""
        connection = _UnixConnection(self.path, self._timeout)
        try:
            connection.request("GET", target)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", ""), answer.read()
        except http.client.HTTPException as error:
            raise OSError(f"admin socket: {error!r}") from error
        finally:
            connection.close()

    def status(self):
        code, _, body = self.get("/status")
        if code != 200:
            raise OSError(f"/status answered {code}")
        return json.loads(body)
