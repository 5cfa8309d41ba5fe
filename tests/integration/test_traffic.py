# SPDX-License-Identifier: Apache-2.0
"""The pair carries real traffic: echo both ways, bulk both ways, duplex, in little memory."""

import pytest

from causeway_testlib.pair import GUEST_IP, GUEST_TAP, HOST_IP, HOST_TAP, on_each_wire
from causeway_testlib.payload import Transfer
from causeway_testlib.programs import SANITIZED
from causeway_testlib.waiting import wait_until

MIB = 1 << 20
BULK = (64 if SANITIZED else 512) * MIB
RSS_LIMIT = 16 * MIB

pytestmark = on_each_wire


def check_memory(pair):
    if SANITIZED:
        return
    for program in (pair.host, pair.guest):
        assert program.peak_rss() < RSS_LIMIT, f"{program.name}: {program.peak_rss()} bytes"


def test_ping_both_ways(pair):
    pair.start_both()
    assert pair.guest_ns.ping(HOST_IP, count=10)
    assert pair.host_ns.ping(GUEST_IP, count=10)


def test_ping_of_every_frame_size_up_to_the_mtu(pair):
    pair.start_both()
    pair.wait_ping()
    for size in (0, 1, 7, 18, 63, 64, 511, 1024, 1471, 1472):
        shown = pair.guest_ns.run("ping", "-q", "-M", "do", "-s", size, "-c", "2", "-i", "0.02",
                                  "-W", "2", HOST_IP, check=False)
        assert shown.returncode == 0, f"{size} bytes: {shown.stdout}{shown.stderr}"
    beyond = pair.guest_ns.run("ping", "-q", "-M", "do", "-s", 1473, "-c", "1", "-W", "1",
                               HOST_IP, check=False)
    assert beyond.returncode != 0


def test_ping_over_ipv6(pair):
    pair.start_both(["--address", "fd77::1/64"], ["--address", "fd77::2/64"])
    # Duplicate address detection takes a second or two before the addresses may be used.
    wait_until(lambda: pair.guest_ns.ping("fd77::1", count=1), "IPv6 works")
    assert pair.host_ns.ping("fd77::2", count=5)


@pytest.mark.parametrize("direction", ["host_to_guest", "guest_to_host", "duplex"])
def test_bulk_transfer_is_whole(pair, direction):
    pair.start_both()
    host_sends = BULK if direction != "guest_to_host" else 0
    guest_sends = BULK if direction != "host_to_guest" else 0
    with Transfer(pair.host_ns, HOST_IP, pair.guest_ns, server_sends=host_sends,
                  client_sends=guest_sends) as transfer:
        transfer.check()
    check_memory(pair)
    # The counters saw it: every byte of payload crossed both TAPs and the wire.
    host, guest = pair.host.status()["counters"], pair.guest.status()["counters"]
    assert host["from_tap_bytes"] >= host_sends and guest["to_tap_bytes"] >= host_sends
    assert guest["from_tap_bytes"] >= guest_sends and host["to_tap_bytes"] >= guest_sends
    assert host["to_wire_bytes"] >= host_sends and host["from_wire_bytes"] >= guest_sends
    assert not any(pair.host.status()["ended"].values())
    assert not any(pair.guest.status()["ended"].values())


def test_bulk_at_a_large_mtu(pair):
    pair.start_both(["--mtu", "9000"], ["--mtu", "9000"])
    assert pair.host_ns.links()[HOST_TAP]["mtu"] == 9000
    assert pair.guest_ns.links()[GUEST_TAP]["mtu"] == 9000
    with Transfer(pair.host_ns, HOST_IP, pair.guest_ns, server_sends=64 * MIB,
                  client_sends=64 * MIB) as transfer:
        transfer.check()


def test_many_connections_at_once(pair):
    pair.start_both()
    transfers = []
    try:
        for number in range(8):
            transfers.append(Transfer(pair.host_ns, HOST_IP, pair.guest_ns, port=6000 + number,
                                      server_sends=4 * MIB, client_sends=4 * MIB))
        for transfer in transfers:
            transfer.check()
    finally:
        for transfer in transfers:
            transfer.close()


def test_gateway_becomes_the_default_route(pair):
    pair.start_both(guest_more=["--gateway", HOST_IP])
    routes = pair.guest_ns.run("ip", "route", "show", "default").stdout
    assert f"via {HOST_IP}" in routes and GUEST_TAP in routes
    # An address of the host that only the default route leads to.
    pair.host_ns.run("ip", "addr", "add", "192.0.2.1/32", "dev", "lo")
    assert pair.guest_ns.ping("192.0.2.1")
