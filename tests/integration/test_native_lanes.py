# SPDX-License-Identifier: Apache-2.0
"""Sessions and lanes: who replaces whom, how many there are, and what the loss of one costs."""

import contextlib
import hashlib
import random
import socket
import threading
import time

import pytest

from causeway_testlib.pair import GUEST_IP, HOST_IP
from causeway_testlib.programs import SLOW
from causeway_testlib.waiting import wait_until
from causeway_testlib.wire import RawPeer
from native_peer import PEER_IP, NativePeer, Proxy, inside, new_session

KIB, MIB = 1 << 10, 1 << 20


def lanes_up(program):
    return [lane["index"] for lane in program.status()["session"]["lanes"]
            if lane["state"] == "up"]


def lane_of(pair, session, lane, lanes=2):
    return NativePeer.establish(pair.socket, session=session, lane=lane, lanes=lanes)


def check_replaced(*peers):
    for peer in peers:
        assert peer.wait_control("bye", 3 * SLOW)["reason"] == 2
        assert peer.read_to_end(3 * SLOW)


# --- Who replaces whom -----------------------------------------------------------------------


def test_newest_session_wins(make_pair):
    pair = make_pair("native")
    host = pair.start_host("--lanes", "2")
    old = new_session()
    with lane_of(pair, old, 0) as zero, lane_of(pair, old, 1) as one:
        wait_until(lambda: lanes_up(host) == [0, 1], "both lanes are up")
        assert zero.proves_alive() and one.proves_alive()
        with lane_of(pair, new_session(), 0) as newer:
            check_replaced(zero, one)
            wait_until(lambda: lanes_up(host) == [0], "the lane that only the old one had is down")
            status = host.status()
            assert status["session"]["id"] == newer.hello["session"] != old
            assert status["session"]["replaced_total"] == 2
            assert status["ended"]["replaced"] == 2
            assert newer.ping(HOST_IP)
            # The old one is not locked out: whoever came last is served.
            with lane_of(pair, old, 0) as again:
                check_replaced(newer)
                assert again.ping(HOST_IP)


@pytest.mark.parametrize("lane", [0, 1])
def test_the_same_lane_of_the_same_session_is_replaced_alone(make_pair, lane):
    pair = make_pair("native")
    host = pair.start_host("--lanes", "2")
    session = new_session()
    with lane_of(pair, session, 0) as zero, lane_of(pair, session, 1) as one:
        wait_until(lambda: lanes_up(host) == [0, 1], "both lanes are up")
        first, other = (zero, one) if lane == 0 else (one, zero)
        with lane_of(pair, session, lane) as second:
            check_replaced(first)
            assert second.proves_alive() and other.proves_alive()
            status = host.status()
            assert lanes_up(host) == [0, 1] and status["session"]["id"] == session
            assert (status["session"]["replaced_total"], status["ended"]["replaced"]) == (1, 1)


def test_the_session_lives_as_long_as_one_lane(make_pair):
    pair = make_pair("native")
    host = pair.start_host("--lanes", "2")
    session = new_session()
    with lane_of(pair, session, 0) as zero, lane_of(pair, session, 1) as one:
        zero.stream.close()
        wait_until(lambda: lanes_up(host) == [1], "lane 0 is down")
        assert host.status()["session"]["state"] == "up"
        assert one.ping(HOST_IP)
        with lane_of(pair, session, 0) as again:
            wait_until(lambda: lanes_up(host) == [0, 1], "lane 0 is back")
            assert again.proves_alive()
            one.stream.close()
            wait_until(lambda: lanes_up(host) == [0], "lane 1 is down")
            assert again.ping(HOST_IP)
    host.wait_state("listening")
    assert host.status()["session"]["id"] is None and host.status()["wire"] is None


def test_plain_and_native_replace_each_other(make_pair):
    pair = make_pair("auto")
    host = pair.start_host()
    with NativePeer.establish(pair.socket) as native:
        assert native.ping(HOST_IP)
        with RawPeer.connect(pair.socket, PEER_IP) as plain:
            assert plain.ping(HOST_IP)
            check_replaced(native)
            assert host.status()["wire"] == "plain" and host.status()["session"]["id"] is None
            with NativePeer.establish(pair.socket) as again:
                assert plain.wait_end(3 * SLOW)
                assert again.ping(HOST_IP)
                assert host.status()["wire"] == "native"
    assert host.ended("replaced") == 2


def test_twenty_sessions_in_a_row(make_pair):
    pair = make_pair("native")
    host = pair.start_host()
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(NativePeer.establish(pair.socket)) for _ in range(20)]
        assert peers[-1].ping(HOST_IP)
        check_replaced(*peers[:-1])
        assert host.ended("replaced") == 19
        assert host.status()["session"]["id"] == peers[-1].hello["session"]


@pytest.mark.parametrize("host_lanes,guest_lanes",
                         [(1, 1), (2, 2), (2, 4), (4, 2), (1, 4), (16, 16)])
def test_lanes_are_the_lower_number(make_pair, host_lanes, guest_lanes):
    pair = make_pair("native")
    pair.start_both(["--lanes", host_lanes], ["--lanes", guest_lanes])
    wanted = list(range(min(host_lanes, guest_lanes)))
    for program in (pair.host, pair.guest):
        wait_until(lambda: lanes_up(program) == wanted, f"{program.name} has lanes {wanted}")
        assert program.status()["tap"]["queues"] == \
            (host_lanes if program is pair.host else guest_lanes)
    assert pair.host.status()["session"]["id"] == pair.guest.status()["session"]["id"]
    assert pair.guest_ns.ping(HOST_IP, count=20) and pair.host_ns.ping(GUEST_IP, count=20)
    for program in (pair.host, pair.guest):
        assert not any(program.status()["ended"].values())


# --- The loss of a lane under load -----------------------------------------------------------


class Flows:
    """TCP flows from the guest to the host that send until told to stop, checked block by block."""

    BLOCK = random.Random(3).randbytes(64 * KIB)

    def __init__(self, pair, count, port=5100):
        with inside(pair.host_ns):
            self._server = socket.create_server((HOST_IP, port), backlog=count)
        self.received = [0] * count
        self.digests = {}
        self._stop = threading.Event()
        self._sockets, self._threads = [], []
        for number in range(count):
            with inside(pair.guest_ns):
                client = socket.socket()
            client.settimeout(30 * SLOW)
            client.connect((HOST_IP, port))
            accepted, _ = self._server.accept()
            accepted.settimeout(30 * SLOW)
            self._sockets += [client, accepted]
            self._threads += [threading.Thread(target=self._send, args=(number, client)),
                              threading.Thread(target=self._receive, args=(number, accepted))]
        for thread in self._threads:
            thread.start()

    def _send(self, number, stream):
        digest, block = hashlib.sha256(), 0
        with contextlib.suppress(OSError):  # finish() finds no digest of a flow that broke
            while not self._stop.is_set():
                data = f"{number} {block} ".encode() + self.BLOCK
                stream.sendall(data)
                digest.update(data)
                block += 1
            stream.shutdown(socket.SHUT_WR)
            self.digests[number, "sent"] = digest.hexdigest()

    def _receive(self, number, stream):
        digest = hashlib.sha256()
        while data := stream.recv(256 * KIB):
            digest.update(data)
            self.received[number] += len(data)
        self.digests[number, "received"] = digest.hexdigest()

    def wait_progress(self, what, least=256 * KIB, timeout=15.0):
        """Each flow brings that much more."""
        before = list(self.received)
        wait_until(lambda: all(now - then >= least for now, then in zip(self.received, before)),
                   what, timeout * SLOW)

    def finish(self):
        self._stop.set()
        for thread in self._threads:
            thread.join(30 * SLOW)
            assert not thread.is_alive(), "a flow does not end"
        for number in range(len(self.received)):
            assert self.digests[number, "sent"] == self.digests[number, "received"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stop.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in [*self._sockets, self._server]:
            each.close()


@contextlib.contextmanager
def pair_behind_proxy(make_pair, wire, lanes=2):
    pair = make_pair(wire)
    pair.start_host("--lanes", lanes)
    with Proxy(pair.directory / "proxy", pair.socket) as proxy:
        arguments = pair.guest_arguments("--lanes", lanes)
        arguments[arguments.index(f"unix:{pair.socket}")] = f"unix:{proxy.path}"
        pair.guest = pair.start(pair.guest_ns, "causeway-guest", arguments, "guest")
        for program in (pair.host, pair.guest):
            wait_until(lambda: lanes_up(program) == list(range(lanes)), "all lanes are up")
        pair.wait_ping()
        yield pair, proxy


def test_flows_use_both_lanes(make_pair):
    with pair_behind_proxy(make_pair, "native") as (pair, proxy), Flows(pair, 16) as flows:
        flows.wait_progress("all flows carry", 1 * MIB)
        flows.finish()
        one, two = proxy.open_links()
        assert min(one.carried[0], two.carried[0]) > 1 * MIB, (one.carried, two.carried)
        # The counters are the sum over the lanes.
        wait_until(lambda: pair.host.counter("from_wire_bytes")
                   == sum(link.carried[0] - link.preface for link in proxy.links),
                   "both lanes are counted")
        assert not any(pair.host.status()["ended"].values())


@pytest.mark.parametrize("lane", [0, 1])
@pytest.mark.parametrize("wire", ["native", "auto"])
def test_loss_of_one_lane(make_pair, wire, lane):
    """The other lane carries all flows meanwhile; the lost one is opened again."""
    with pair_behind_proxy(make_pair, wire) as (pair, proxy), Flows(pair, 8) as flows:
        flows.wait_progress("all flows carry")
        session = pair.host.status()["session"]["id"]
        proxy.accepting = False
        proxy.links[lane].cut()
        for program in (pair.host, pair.guest):
            wait_until(lambda: lanes_up(program) == [1 - lane], f"lane {lane} is down")
        flows.wait_progress("all flows go on over the other lane")
        assert lanes_up(pair.host) == [1 - lane], "nothing but the lost lane changed"
        assert pair.host.status()["session"]["id"] == session
        proxy.accepting = True
        for program in (pair.host, pair.guest):
            wait_until(lambda: lanes_up(program) == [0, 1], f"lane {lane} is back")
        flows.wait_progress("all flows go on over both lanes")
        flows.finish()
        status = pair.host.status()
        assert status["session"]["id"] == session and status["wire"] == "native"
        assert status["session"]["replaced_total"] == 0
        assert sum(status["ended"].values()) == 1, status["ended"]


def test_a_lost_lane_comes_back_soon(make_pair):
    with pair_behind_proxy(make_pair, "native") as (pair, proxy):
        for number in range(6):
            link = [each for each in proxy.links if each.open][number % 2]
            before = pair.host.status()["session"]["connections_total"]
            begin = time.monotonic()
            link.cut()
            wait_until(lambda: pair.host.status()["session"]["connections_total"] > before
                       and lanes_up(pair.host) == lanes_up(pair.guest) == [0, 1], "it is back",
                       3 * SLOW)
            assert time.monotonic() - begin < 2.5 * SLOW
        assert pair.guest_ns.ping(HOST_IP, count=20)


def test_loss_of_both_lanes_at_once(make_pair):
    with pair_behind_proxy(make_pair, "native") as (pair, proxy), Flows(pair, 4) as flows:
        flows.wait_progress("all flows carry")
        session = pair.host.status()["session"]["id"]
        for link in proxy.open_links():
            link.cut()
        wait_until(lambda: pair.host.status()["session"]["connections_total"] == 4
                   and lanes_up(pair.host) == lanes_up(pair.guest) == [0, 1], "both are back")
        flows.wait_progress("all flows go on")
        flows.finish()
        assert pair.host.status()["session"]["id"] == session, "the framer's session is its run"
