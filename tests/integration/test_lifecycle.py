# SPDX-License-Identifier: Apache-2.0
"""Order of start, replacement, the end by SIGTERM, and that nothing is left behind."""

import pathlib
import socket

import pytest

from causeway_testlib import namespaces
from causeway_testlib.pair import GUEST_TAP, HOST_IP, HOST_TAP, on_each_wire
from causeway_testlib.payload import Transfer
from causeway_testlib.programs import SLOW
from causeway_testlib.waiting import wait_until
from causeway_testlib.wire import RawPeer


@on_each_wire
def test_host_first(pair):
    pair.start_host()
    assert pair.host.status()["session"]["state"] == "listening"
    pair.start_guest()
    pair.wait_up()
    assert pair.guest_ns.ping(HOST_IP)


@on_each_wire
def test_guest_first(pair):
    pair.start_guest()
    assert pair.guest.status()["session"]["state"] == "connecting"
    pair.start_host()
    pair.wait_up()
    assert pair.guest_ns.ping(HOST_IP)


def test_newest_connection_replaces_the_older(pair):
    host = pair.start_host()
    with RawPeer.connect(pair.socket, "10.77.0.8") as older:
        assert older.ping(HOST_IP)
        with RawPeer.connect(pair.socket, "10.77.0.9") as newer:
            assert older.wait_end()
            assert newer.ping(HOST_IP)
            status = host.status()
            assert status["session"]["state"] == "up"
            assert status["session"]["replaced_total"] == 1
            assert status["ended"]["replaced"] == 1
            assert status["session"]["connections_total"] == 2


def test_a_restarted_guest_replaces_one_that_hangs(pair):
    """A guest that vanished without a word must not lock its successor out."""
    host = pair.start_host()
    with RawPeer.connect(pair.socket, "10.77.0.9") as silent:
        assert silent.ping(HOST_IP)
        pair.start_guest()
        pair.wait_ping()
        assert silent.wait_end()
        assert host.ended("replaced") == 1


@on_each_wire
@pytest.mark.parametrize("name", ["host", "guest"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_sigterm_ends_within_a_second(pair, name, busy):
    pair.start_both()
    pair.wait_ping()
    program = getattr(pair, name)
    if busy:
        with Transfer(pair.host_ns, HOST_IP, pair.guest_ns, server_sends=4 << 30,
                      client_sends=4 << 30):
            wait_until(lambda: program.counter("to_tap_bytes") > 8 << 20, "traffic flows")
            code, seconds = program.terminate()
    else:
        code, seconds = program.terminate()
    assert code == 0
    assert seconds < 1.0 * SLOW


@on_each_wire
@pytest.mark.parametrize("name", ["host", "guest"])
def test_sigterm_before_any_connection(pair, name):
    program = pair.start_host() if name == "host" else pair.start_guest()
    code, seconds = program.terminate()
    assert code == 0
    assert seconds < 1.0 * SLOW


def test_sigterm_with_a_peer_that_does_not_read(pair):
    """A full socket must not hold the helper up."""
    host = pair.start_host()
    with RawPeer.connect(pair.socket, "10.77.0.9") as peer:
        assert peer.ping(HOST_IP)
        with pair.host_ns.socket(socket.SOCK_DGRAM) as sender:
            wait_until(lambda: fill(sender, host), "the stream is full", 20)
        code, seconds = host.terminate()
    assert code == 0
    assert seconds < 1.0 * SLOW


def fill(sender, host):
    """Sends towards the peer; true once the program takes no more from its TAP."""
    before = host.counter("from_tap_frames")
    for _ in range(2000):
        try:
            sender.sendto(bytes(1400), socket.MSG_DONTWAIT, ("10.77.0.9", 9))
        except OSError:
            break
    return host.counter("from_tap_frames") == before


@on_each_wire
def test_tap_is_up_with_what_was_asked(pair):
    pair.start_both()
    for namespace, tap, program in ((pair.host_ns, HOST_TAP, pair.host),
                                    (pair.guest_ns, GUEST_TAP, pair.guest)):
        link = namespace.links()[tap]
        shown = program.status()["tap"]
        assert "UP" in link["flags"]
        assert (shown["name"], shown["mtu"], shown["mac"]) == (tap, link["mtu"], link["address"])
        assert shown["txqueuelen"] == link["txqlen"]


def test_mac_is_stable_over_restarts(pair):
    pair.start_host()
    mac = pair.host_ns.links()[HOST_TAP]["address"]
    pair.host.terminate()
    pair.start_host()
    assert pair.host_ns.links()[HOST_TAP]["address"] == mac


def test_nothing_is_left_behind(make_pair):
    before = namespaces.machine_state()
    pair = make_pair()
    pair.start_both()
    with Transfer(pair.host_ns, HOST_IP, pair.guest_ns, server_sends=8 << 20,
                  client_sends=8 << 20) as transfer:
        transfer.check()
    assert namespaces.machine_state() == before
    for program in (pair.host, pair.guest):
        code, _ = program.terminate()
        assert code == 0
    assert HOST_TAP not in pair.host_ns.links() and GUEST_TAP not in pair.guest_ns.links()
    for namespace in (pair.host_ns, pair.guest_ns):
        assert namespace.run("nft", "list", "ruleset").stdout == ""
    left = sorted(path.name for path in pair.directory.iterdir() if path.is_socket())
    assert left == [], "sockets that the programs made and did not remove"
    directory = str(pair.directory)
    assert pair.close() == []
    assert namespaces.machine_state() == before
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                assert directory not in (entry / "cmdline").read_text(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                pass
