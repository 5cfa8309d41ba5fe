# SPDX-License-Identifier: Apache-2.0
"""Scenarios with the gateway over real AF_VSOCK (loopback CID)."""

import os
import pathlib
import socket
import ssl
import sys
import threading

import guard
import vm

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from causeway_testlib import hello  # noqa: E402

ADMIN = "/run/causeway/gateway.sock"
TCP_PORT, LISTEN_PORT, UPSTREAM_PORT = 9445, 9446, 9447
PAYLOAD_MIB = 8


def _receive(stream):
    text = bytearray()
    while piece := stream.recv(1 << 16):
        text += piece
    return bytes(text)


def _serve(listener, connections):
    """Reads to the end, then answers with the same backwards."""
    for _ in range(connections):
        stream, _ = listener.accept()
        with stream:
            stream.sendall(_receive(stream)[::-1])


def relay_over_vsock(data):
    """tcp and vsock clients, a vsock upstream: every byte, and half-closes, both ways."""
    command = [vm.program("causeway-gateway", "--passthrough"), "--admin", f"unix:{ADMIN}",
               "--listen", f"tcp:127.0.0.1:{TCP_PORT}",
               "--listen", guard.vsock_listen_address(LISTEN_PORT), "--splice-after", "64KiB",
               "--passthrough", f"a.test={guard.vsock_connect_address(UPSTREAM_PORT)}"]
    process = vm.spawn(command, "gateway", namespace=vm.GUEST)

    def ready():
        vm.check(process.alive(), "the gateway has ended")
        return vm.status(ADMIN)

    vm.wait_until(ready, 10, "the gateway's admin socket")
    payload = hello.hello("a.test") + os.urandom(PAYLOAD_MIB << 20)
    with guard.vsock_socket() as listener:
        listener.bind((socket.VMADDR_CID_ANY, UPSTREAM_PORT))
        listener.listen()
        thread = threading.Thread(target=_serve, args=(listener, 2), daemon=True)
        thread.start()
        for kind in ("tcp", "vsock"):
            client = vm.tcp_socket(vm.GUEST) if kind == "tcp" else guard.vsock_socket()
            with client:
                client.settimeout(60 * vm.PATIENCE)
                client.connect(("127.0.0.1", TCP_PORT) if kind == "tcp"
                               else (guard.CID_LOCAL, LISTEN_PORT))
                client.sendall(payload)
                client.shutdown(socket.SHUT_WR)
                vm.check(_receive(client) == payload[::-1], f"{kind}: the answer differs")
        thread.join(10)
        # Somebody unknown hears the alert over vsock too.
        with guard.vsock_socket() as client:
            client.settimeout(10 * vm.PATIENCE)
            client.connect((guard.CID_LOCAL, LISTEN_PORT))
            client.sendall(hello.hello("other.test"))
            vm.check(_receive(client) == hello.alert(hello.UNRECOGNIZED_NAME), "no alert")
    status = vm.status(ADMIN)
    data["ended"] = {reason: n for reason, n in status["ended"].items() if n}
    data["counters"] = status["counters"]
    vm.check(data["ended"] == {"orderly": 2, "unknown_name": 1}, f"ended: {data['ended']}")
    return f"{PAYLOAD_MIB} MiB each way from tcp and from vsock"


def upstream_without_listener(data):
    """Nobody listens on the upstream's port: counted, and the client hears an alert."""
    command = [vm.program("causeway-gateway", "--passthrough"), "--admin", f"unix:{ADMIN}",
               "--listen", f"tcp:127.0.0.1:{TCP_PORT}",
               "--passthrough", f"a.test={guard.vsock_connect_address(UPSTREAM_PORT + 1)}"]
    vm.spawn(command, "gateway", namespace=vm.GUEST)
    vm.wait_until(lambda: vm.status(ADMIN), 10, "the gateway's admin socket")
    with vm.tcp_socket(vm.GUEST) as client:
        client.settimeout(30 * vm.PATIENCE)
        client.connect(("127.0.0.1", TCP_PORT))
        client.sendall(hello.hello("a.test"))
        vm.check(_receive(client) == hello.alert(hello.INTERNAL_ERROR), "no alert")
    data["ended"] = vm.status(ADMIN)["ended"]
    vm.check(data["ended"]["connect_failed"] == 1, f"ended: {data['ended']}")
    return "refused with an alert"


def _serve_sized(listener, connections, size):
    """Reads `size` bytes, answers with the same backwards, and closes first."""
    for _ in range(connections):
        stream, _ = listener.accept()
        with stream:
            text = bytearray()
            while len(text) < size and (piece := stream.recv(1 << 16)):
                text += piece
            stream.sendall(bytes(text[::-1]))


def terminate_over_vsock(data):
    """TLS ends in the gateway: tcp and vsock clients of both versions, a plain vsock upstream."""
    directory = pathlib.Path("/tmp/gateway-tls")
    directory.mkdir()
    cert, key = directory / "cert.pem", directory / "key.pem"
    vm.run_checked(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=a.test",
                    "-addext", "subjectAltName=DNS:a.test", "-keyout", str(key), "-out", str(cert)])
    key.chmod(0o600)
    command = [vm.program("causeway-gateway", "--cert"), "--admin", f"unix:{ADMIN}",
               "--listen", f"tcp:127.0.0.1:{TCP_PORT}",
               "--listen", guard.vsock_listen_address(LISTEN_PORT), "--cert", str(cert),
               "--key", str(key), "--upstream", guard.vsock_connect_address(UPSTREAM_PORT)]
    vm.spawn(command, "gateway", namespace=vm.GUEST)
    vm.wait_until(lambda: vm.status(ADMIN), 10, "the gateway's admin socket")
    payload = os.urandom(PAYLOAD_MIB << 20)
    kinds = [(kind, version) for kind in ("tcp", "vsock")
             for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)]
    with guard.vsock_socket() as listener:
        listener.bind((socket.VMADDR_CID_ANY, UPSTREAM_PORT))
        listener.listen()
        thread = threading.Thread(target=_serve_sized, daemon=True,
                                  args=(listener, len(kinds), len(payload)))
        thread.start()
        for kind, version in kinds:
            context = ssl.create_default_context(cafile=str(cert))
            context.minimum_version = context.maximum_version = version
            plain = vm.tcp_socket(vm.GUEST) if kind == "tcp" else guard.vsock_socket()
            plain.settimeout(60 * vm.PATIENCE)
            plain.connect(("127.0.0.1", TCP_PORT) if kind == "tcp"
                          else (guard.CID_LOCAL, LISTEN_PORT))
            # An end without a close_notify would be an error of its own.
            with context.wrap_socket(plain, server_hostname="a.test",
                                     suppress_ragged_eofs=False) as client:
                client.sendall(payload)
                vm.check(_receive(client) == payload[::-1], f"{kind} {version}: the answer differs")
        thread.join(10)
    counters = vm.status(ADMIN)["counters"]
    data["counters"] = counters
    data["crypto"] = vm.status(ADMIN)["tls"]["crypto"]
    vm.check((counters["tls_1_2"], counters["tls_1_3"]) == (2, 2), f"counters: {counters}")
    return f"{PAYLOAD_MIB} MiB each way from tcp and from vsock, TLS 1.2 and 1.3"


SCENARIOS = [
    ("gateway_terminate_over_vsock", terminate_over_vsock, 180),
    ("gateway_relay_over_vsock", relay_over_vsock, 120),
    ("gateway_upstream_without_listener", upstream_without_listener, 60),
]
