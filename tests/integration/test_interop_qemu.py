# SPDX-License-Identifier: Apache-2.0
"""QEMU's `-netdev stream` in the place of the framer: an emulated machine on the plain wire."""

import hashlib
import socket
import threading

import pytest

from causeway_testlib import qemu
from causeway_testlib.pair import HOST_IP
from causeway_testlib.payload import blocks
from causeway_testlib.programs import SLOW
from causeway_testlib.waiting import wait_until

SIZE = 8 << 20
BOOT_SECONDS = 75 * SLOW
SCRIPT = f"""
ip link set lo up
ip link set eth0 up
ip addr add 10.77.0.2/24 dev eth0
ping -q -c 5 -W 5 {HOST_IP} && echo PING-OK
nc {HOST_IP} 5001 </dev/null >/tmp/payload
echo RECEIVED $(wc -c </tmp/payload) $(sha256sum </tmp/payload | cut -d' ' -f1)
nc {HOST_IP} 5002 </tmp/payload
echo SENT
"""


def serve_once(server, action):
    """One connection in a thread: the guest decides when it comes."""
    def work():
        server.settimeout(BOOT_SECONDS)
        stream, _ = server.accept()
        stream.settimeout(BOOT_SECONDS)
        with stream:
            action(stream)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("wire", ["plain", "auto"])
def test_emulated_machine_moves_a_checked_file(make_pair, wire):
    reason = qemu.missing()
    if reason:
        pytest.skip(reason)
    tree = qemu.kernel()
    if tree is None:
        pytest.skip("Debian's cloud kernel could not be downloaded")
    pair = make_pair(wire)
    host = pair.start_host()
    data = b"".join(blocks(SIZE, 33))
    back = bytearray()

    def send(stream):
        stream.sendall(data)
        stream.shutdown(socket.SHUT_WR)

    wires = []

    def receive(stream):
        wires.append(host.status()["wire"])
        while chunk := stream.recv(1 << 16):
            back.extend(chunk)

    with pair.host_ns.socket() as sending, pair.host_ns.socket() as receiving:
        threads = []
        for server, port, action in ((sending, 5001, send), (receiving, 5002, receive)):
            server.bind((HOST_IP, port))
            server.listen(1)
            threads.append(serve_once(server, action))
        machine = pair.adopt(qemu.boot(pair.host_ns, pair.directory, tree, SCRIPT, pair.socket))
        try:
            machine.wait(BOOT_SECONDS)
        finally:
            console = machine.log()
        for thread in threads:
            thread.join(5)
    assert "PING-OK" in console, console[-3000:]
    assert f"RECEIVED {SIZE} {hashlib.sha256(data).hexdigest()}" in console, console[-3000:]
    assert bytes(back) == data, console[-3000:]
    assert wires == ["plain"]
    wait_until(lambda: host.ended("peer_closed") == 1, "the end of the machine is counted")
    assert sum(host.status()["ended"].values()) == 1
