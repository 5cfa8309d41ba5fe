# SPDX-License-Identifier: Apache-2.0
"""Scenarios with the gateway over real AF_VSOCK (loopback CID)."""

import os
import pathlib
import socket
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


SCENARIOS = [
    ("gateway_relay_over_vsock", relay_over_vsock, 120),
    ("gateway_upstream_without_listener", upstream_without_listener, 60),
]
