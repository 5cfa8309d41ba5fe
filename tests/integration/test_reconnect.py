# SPDX-License-Identifier: Apache-2.0
"""Loss of either program in the middle of a transfer: the TCP connection survives."""

import time

import pytest

from causeway_testlib.pair import GUEST_TAP, HOST_IP, HOST_TAP, on_each_wire
from causeway_testlib.payload import Transfer
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.waiting import wait_until

MIB = 1 << 20
TOTAL = (256 if SANITIZED else 1024) * MIB

pytestmark = on_each_wire


def restart(pair, name):
    getattr(pair, name).kill9()
    return pair.start_host() if name == "host" else pair.start_guest()


@pytest.mark.parametrize("name", ["host", "guest"])
def test_transfer_survives_kill_9(pair, name):
    pair.start_both()
    with Transfer(pair.host_ns, HOST_IP, pair.guest_ns, server_sends=TOTAL // 2,
                  client_sends=TOTAL // 2) as transfer:
        for round_number in (1, 2, 3):
            # Its counters start from zero with the process, so this means traffic of this round.
            victim = getattr(pair, name)
            wait_until(lambda: victim.counter("to_tap_bytes") > TOTAL // 16,
                       f"round {round_number}: traffic flows", 30 * SLOW)
            assert transfer.running(), "the transfer ended before the program was killed"
            restart(pair, name)
            pair.wait_up()
            assert transfer.running()
        transfer.check()


@pytest.mark.parametrize("name", ["host", "guest"])
def test_traffic_flows_within_a_second_of_the_restart(pair, name):
    pair.start_both()
    pair.wait_ping()
    restart(pair, name)
    pair.wait_up(1.0)
    pair.wait_ping(1.0)


def test_the_guest_keeps_its_tap(pair):
    """The device, its index and its addresses stay when the helper goes and comes back."""
    pair.start_both()
    before = pair.guest_ns.links()[GUEST_TAP]
    pair.host.kill9()
    pair.guest.wait_state("connecting")
    assert GUEST_TAP in pair.guest_ns.links()
    pair.start_host()
    pair.wait_up()
    after = pair.guest_ns.links()[GUEST_TAP]
    assert after["ifindex"] == before["ifindex"]
    assert after["addr_info"][0]["local"] == before["addr_info"][0]["local"]
    assert pair.guest_ns.ping(HOST_IP)
    assert sum(pair.guest.status()["ended"].values()) == 1


def test_the_host_keeps_its_tap(pair):
    pair.start_both()
    before = pair.host_ns.links()[HOST_TAP]["ifindex"]
    pair.guest.kill9()
    pair.host.wait_state("listening")
    pair.start_guest()
    pair.wait_up()
    assert pair.host_ns.links()[HOST_TAP]["ifindex"] == before
    assert pair.guest_ns.ping(HOST_IP)


def test_twenty_restarts_in_a_row(pair):
    """Descriptors and sessions do not pile up, and the last one still works."""
    pair.start_both()
    for _ in range(20):
        pair.guest.kill9()
        pair.start_guest()
        pair.guest.wait_state("up")
    pair.wait_up()
    assert pair.guest_ns.ping(HOST_IP)
    assert pair.host.status()["session"]["connections_total"] == 21


def test_guest_without_a_host_does_not_spin(pair):
    """Back-off: a framer that cannot connect uses next to no processor time."""
    pair.start_guest()

    def ticks():
        with open(f"/proc/{pair.guest.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    begin, used = time.monotonic(), ticks()
    wait_until(lambda: time.monotonic() - begin > 2.0, "two seconds pass")
    assert ticks() - used < 50, "more than a quarter of a processor while waiting"
