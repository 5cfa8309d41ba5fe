# SPDX-License-Identifier: Apache-2.0
"""A peer that nobody here wrote: Debian's passt, in the place of the helper.

passt takes frames from a unix stream and carries their connections out through ordinary sockets of
the namespace it runs in: the guest reaches a server there under passt's gateway address, which
passt translates to the loopback.

Two habits of Debian 12's passt (2023-03-09), seen in its own packet capture and system calls, shape
the transfers. It passes no end of stream on to a guest that has ended its own direction before, so
the guest's side ends last. When the socket behind it is full it drops what it has read and leaves
the recovery to the guest's retransmission timer, so the transfers are paced.
"""

import shutil

import pytest

from causeway_testlib.pair import GUEST_TAP
from causeway_testlib.payload import Transfer
from causeway_testlib.programs import Process, SANITIZED, SLOW
from causeway_testlib.waiting import wait_until

MIB = 1 << 20
ADDRESS, GATEWAY = "192.0.2.10", "192.0.2.1"
SIZE = (16 if SANITIZED else 64) * MIB
RATE = 40 * MIB

pytestmark = pytest.mark.skipif(shutil.which("passt") is None, reason="passt is not installed")


@pytest.fixture
def outside(pair):
    """The namespace that passt runs in: one interface, one default route, nothing behind it."""
    namespace = pair.host_ns
    namespace.run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "up1")
    namespace.run("ip", "link", "set", "up1", "up")
    namespace.run("ip", "addr", "add", f"{ADDRESS}/24", "dev", "up0")
    namespace.run("ip", "link", "set", "up0", "up")
    namespace.run("ip", "route", "add", "default", "via", GATEWAY, "dev", "up0")
    return namespace


def start_passt(pair, namespace, *more):
    # passt drops to nobody, which must be able to reach the socket's directory.
    pair.directory.chmod(0o777)
    passt = pair.adopt(Process(namespace, [
        shutil.which("passt"), "--foreground", "--socket", pair.socket, "--address", ADDRESS,
        "--netmask", "24", "--gateway", GATEWAY, "--mtu", "1500", *more],
        pair.directory / "passt.log"))
    wait_until(lambda: pair.socket.exists() or not passt.running(), "passt listens")
    assert passt.running(), passt.log()
    return passt


def start_guest(pair, *more):
    pair.guest = pair.start(pair.guest_ns, "causeway-guest", [
        "--connect", f"unix:{pair.socket}", "--tap", GUEST_TAP, "--address", f"{ADDRESS}/24",
        "--gateway", GATEWAY, *more], "guest")
    pair.guest.wait_state("up")
    return pair.guest


@pytest.mark.parametrize("wire", ["plain", "auto"])
def test_checked_transfer_through_passt(pair, outside, wire):
    passt = start_passt(pair, outside)
    guest = start_guest(pair, "--wire", wire)
    with Transfer(outside, GATEWAY, pair.guest_ns, server_sends=SIZE, client_sends=SIZE,
                  bind="127.0.0.1", ends_last="client", rate=RATE) as transfer:
        transfer.check()
    assert passt.running()
    status = guest.status()
    assert status["wire"] == "plain"
    if wire == "plain":
        assert not any(status["ended"].values())


def test_passt_forwards_a_port_to_the_guest(pair, outside):
    """The other way round: passt opens the connection towards the framer's namespace."""
    start_passt(pair, outside, "--tcp-ports", "7000")
    start_guest(pair, "--wire", "plain")
    with Transfer(pair.guest_ns, "127.0.0.1", outside, port=7000, server_sends=SIZE // 4,
                  client_sends=SIZE // 4, bind="0.0.0.0", ends_last="server",
                  rate=RATE) as transfer:
        transfer.check()


def test_framer_comes_back_to_passt(pair, outside):
    start_passt(pair, outside)
    start_guest(pair, "--wire", "plain").kill9()
    start_guest(pair, "--wire", "plain")
    with Transfer(outside, GATEWAY, pair.guest_ns, server_sends=MIB, client_sends=MIB,
                  bind="127.0.0.1", timeout=30 * SLOW, ends_last="client", rate=RATE) as transfer:
        transfer.check()


def test_framer_outlives_passt(pair, outside):
    passt = start_passt(pair, outside)
    guest = start_guest(pair, "--wire", "plain")
    index = pair.guest_ns.links()[GUEST_TAP]["ifindex"]
    passt.kill9()
    guest.wait_state("connecting")
    pair.socket.unlink()
    start_passt(pair, outside)
    guest.wait_state("up")
    assert pair.guest_ns.links()[GUEST_TAP]["ifindex"] == index
    with Transfer(outside, GATEWAY, pair.guest_ns, server_sends=MIB, client_sends=MIB,
                  bind="127.0.0.1", timeout=30 * SLOW, ends_last="client", rate=RATE) as transfer:
        transfer.check()
