# SPDX-License-Identifier: Apache-2.0
"""A checked transfer of 2 GiB over the native wire outlives 20 kill -9 of either program."""

import statistics
import time

import pytest

from causeway_testlib.pair import GUEST_TAP, HOST_IP, HOST_TAP
from causeway_testlib.payload import Transfer
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.waiting import wait_until

MIB = 1 << 20
TOTAL = (512 if SANITIZED else 2048) * MIB
KILLS = 5 if SANITIZED else 20
STEP = TOTAL // (KILLS + 2)  # payload between two kills, of either direction together
GAP = 1.0  # seconds from the restart until the transfer moves again, in the median
MOVED = MIB  # more than the kernel's own packets and a window sent without an answer make


def restart(pair, name):
    """Kills it, starts it again, and gives the seconds from the new start to traffic both ways."""
    getattr(pair, name).kill9()
    begin = time.monotonic()
    program = pair.start_host() if name == "host" else pair.start_guest()

    def moves():
        # One direction may have sent all it has by now; then the other has its acknowledgements.
        counters = program.status()["counters"]
        both = (counters["to_tap_bytes"], counters["from_tap_bytes"])
        return min(both) > 0 and max(both) > MOVED

    program.wait_state("up", 5)
    wait_until(moves, "the transfer moves again", 5 * SLOW, interval=0.005)
    return time.monotonic() - begin


@pytest.mark.parametrize("name", ["host", "guest"])
def test_two_gib_survive_twenty_kills(make_pair, name):
    pair = make_pair("native")
    pair.start_both()
    gaps = []
    with Transfer(pair.host_ns, HOST_IP, pair.guest_ns, server_sends=TOTAL // 2,
                  client_sends=TOTAL // 2) as transfer:
        for number in range(1, KILLS + 1):
            victim = getattr(pair, name)  # its counters began with the process
            wait_until(lambda: victim.counter("to_tap_bytes") + victim.counter("from_tap_bytes")
                       > STEP or not transfer.running(), f"round {number}: traffic flows",
                       30 * SLOW, interval=0.005)
            assert transfer.running(), f"the transfer ended before kill {number}"
            gaps.append(restart(pair, name))
            assert transfer.running(), f"the transfer ended in the gap of kill {number}"
        pair.wait_up()
        transfer.check()
    survivor = pair.guest if name == "host" else pair.host
    assert sum(survivor.status()["ended"].values()) >= KILLS
    for program, tap in ((pair.host, HOST_TAP), (pair.guest, GUEST_TAP)):
        assert program.status()["tap"]["name"] == tap
        assert not any(program.status()["dropped"].values()), program.status()["dropped"]
    shown = " ".join(f"{gap:.2f}" for gap in gaps)
    print(f"\ngaps after a kill of the {name}, seconds: {shown}")
    # A single gap may hold one more doubling of the kernel's retransmission timer.
    assert statistics.median(gaps) < GAP * SLOW, shown
