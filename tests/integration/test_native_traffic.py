# SPDX-License-Identifier: Apache-2.0
"""Real traffic over the real pair on both wires: checked TCP and UDP, MTUs, fragments, tags.

Where frames are looked at, a proxy between the programs records the stream, and wire_codec.py and
an independent checksum judge every record of it.
"""

import contextlib
import socket
import struct
import subprocess

import pytest

import wire_codec as wire
from causeway_testlib.pair import GUEST_IP, GUEST_TAP, HOST_IP, HOST_TAP, on_each_wire
from causeway_testlib.payload import Transfer
from causeway_testlib.programs import SANITIZED, SLOW, program_path
from causeway_testlib.waiting import wait_until
from causeway_testlib.wire import PEER_MAC
from native_peer import (Proxy, TapEye, ethernet, frame_problem, inside, ip_packet,
                         partial_segment)

MIB = 1 << 20
BULK = (16 if SANITIZED else 64) * MIB
HOST_IP6, GUEST_IP6 = "fd77::1", "fd77::2"
UDP_SEGMENT = 103  # linux/udp.h


def start(pair, host=(), guest=(), proxy=None):
    """Both programs with IPv6 addresses that may be used at once."""
    for namespace in (pair.host_ns, pair.guest_ns):
        namespace.run("sysctl", "-qw", "net.ipv6.conf.default.accept_dad=0")
    pair.start_host("--address", f"{HOST_IP6}/64", *host)
    arguments = pair.guest_arguments("--address", f"{GUEST_IP6}/64", *guest)
    if proxy:
        arguments[arguments.index(f"unix:{pair.socket}")] = f"unix:{proxy.path}"
    pair.guest = pair.start(pair.guest_ns, "causeway-guest", arguments, "guest")
    pair.wait_up()
    wait_until(lambda: pair.guest_ns.ping(HOST_IP6, count=1), "IPv6 works")


def transfer(pair, address=HOST_IP, to_host=BULK, to_guest=BULK, port=5001):
    with Transfer(pair.host_ns, address, pair.guest_ns, port=port, server_sends=to_guest,
                  client_sends=to_host) as both:
        both.check()


def check_nothing_dropped(pair):
    for program in (pair.host, pair.guest):
        status = program.status()
        assert not any(status["dropped"].values()), (program.name, status["dropped"])
        assert not any(count for reason, count in status["ended"].items()
                       if reason != "handshake_fallback"), status["ended"]


@on_each_wire
@pytest.mark.parametrize("address", [HOST_IP, HOST_IP6])
def test_checked_tcp(pair, address):
    """causeway-traffic compares the digest of what it got with that of what was sent."""
    start(pair)
    traffic = program_path("causeway-traffic")
    if not traffic.exists():
        pytest.skip("causeway-traffic is not built")
    where = f"[{address}]:5003" if ":" in address else f"{address}:5003"
    sizes = ["--bytes", str(BULK), "--seed", "5", "--peer-seed", "6"]
    server = subprocess.Popen(
        pair.host_ns.command(traffic, "duplex", "--listen", where, "--timeout", "60", *sizes[:2],
                             "--seed", "6", "--peer-seed", "5"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        client = pair.guest_ns.run(traffic, "duplex", "--connect", where, "--patience", "5",
                                   "--timeout", "60", *sizes, check=False, timeout=70)
        assert client.returncode == 0, client.stdout + client.stderr
        out, err = server.communicate(timeout=20)
        assert server.returncode == 0, out + err
    finally:
        if server.poll() is None:
            server.kill()
        server.wait(5)
    check_nothing_dropped(pair)


MIXES = [("auto", "auto", "native"), ("native", "auto", "native"), ("auto", "native", "native"),
         ("plain", "auto", "plain"), ("auto", "plain", "plain")]


@pytest.mark.parametrize("host,guest,wanted", MIXES, ids="-".join)
def test_mixed_choices(make_pair, host, guest, wanted):
    pair = make_pair(host)
    pair.start_host()
    pair.wire = guest
    pair.start_guest()
    pair.wire = "auto"
    pair.wait_up(15)
    assert pair.host.status()["wire"] == pair.guest.status()["wire"] == wanted
    transfer(pair, to_host=BULK // 2, to_guest=BULK // 2)


def test_native_only_and_plain_only_never_meet(make_pair):
    pair = make_pair("native")
    pair.start_host()
    pair.wire = "plain"
    pair.start_guest()
    pair.guest_ns.run("ping", "-c", "1", "-W", "1", HOST_IP, check=False)
    wait_until(lambda: pair.host.ended("handshake_refused") >= 1, "the plain framer is refused")
    assert pair.host.status()["session"]["connections_total"] == 0


# --- UDP -------------------------------------------------------------------------------------


def check_datagrams(pair, family, server, size, sends, per_send):
    """Numbered datagrams, several to a send: each arrives once, whole and in order."""
    with inside(pair.host_ns):
        receiver = socket.socket(family, socket.SOCK_DGRAM)
    with inside(pair.guest_ns):
        sender = socket.socket(family, socket.SOCK_DGRAM)
    with receiver, sender:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 64 * MIB)  # SO_RCVBUFFORCE
        receiver.bind((server, 5004))
        receiver.settimeout(5 * SLOW)
        sender.connect((server, 5004))
        if per_send > 1:
            sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size)

        def datagram(number):
            return (struct.pack("!I", number) * (size // 4 + 1))[:size]

        for turn in range(sends):
            first = turn * per_send
            sender.send(b"".join(datagram(first + each) for each in range(per_send)))
            for each in range(per_send):
                assert receiver.recv(1 << 16) == datagram(first + each), (turn, each)


@on_each_wire
@pytest.mark.parametrize("family,server", [(socket.AF_INET, HOST_IP), (socket.AF_INET6, HOST_IP6)],
                         ids=["v4", "v6"])
@pytest.mark.parametrize("size,per_send", [(1400, 40), (512, 64), (100, 64), (1, 64), (1400, 1)])
def test_udp_segment_is_whole(pair, family, server, size, per_send):
    start(pair)
    before = pair.host.status()["counters"], pair.guest.counter("from_tap_frames")
    check_datagrams(pair, family, server, size, 50, per_send)
    if per_send > 1 and size >= 512 and "uso" in pair.guest.status()["tap"]["offloads"]:
        # It left the guest's kernel as super-frames; and reached the host's as such.
        assert pair.guest.counter("from_tap_frames") - before[1] < 50 * per_send / 4
        assert pair.host.counter("to_tap_frames") - before[0]["to_tap_frames"] < 50 * per_send / 4
    check_nothing_dropped(pair)


# --- MTUs ------------------------------------------------------------------------------------


@on_each_wire
@pytest.mark.parametrize("mtu", [576, 1280, 1500, 9000, 65520])
def test_every_mtu(pair, mtu):
    if mtu < 1280:
        pair.start_both(["--mtu", mtu], ["--mtu", mtu])
    else:
        start(pair, ["--mtu", mtu], ["--mtu", mtu])
        transfer(pair, HOST_IP6, BULK // 2, BULK // 2)
    transfer(pair, HOST_IP, BULK // 2, BULK // 2, 5002)
    assert pair.guest_ns.run("ping", "-q", "-M", "do", "-s", mtu - 28 if mtu < 65000 else 60000,
                             "-c", "3", "-i", "0.05", HOST_IP).returncode == 0
    check_nothing_dropped(pair)


@on_each_wire
@pytest.mark.parametrize("host,guest", [(1500, 9000), (9000, 1500), (1280, 65520)])
def test_mtus_that_differ(pair, host, guest):
    start(pair, ["--mtu", host], ["--mtu", guest])
    if pair.wire == "native":
        for program in (pair.host, pair.guest):
            assert program.status()["session"]["mtu"] == min(host, guest)
    transfer(pair, HOST_IP, BULK // 2, BULK // 2)
    transfer(pair, HOST_IP6, BULK // 2, BULK // 2, 5002)
    check_nothing_dropped(pair)


# --- What is on the stream -------------------------------------------------------------------


def all_traffic(pair):
    """Something of everything, in both directions."""
    transfer(pair, HOST_IP, 8 * MIB, 8 * MIB)
    transfer(pair, HOST_IP6, 4 * MIB, 4 * MIB, 5002)
    check_datagrams(pair, socket.AF_INET, HOST_IP, 1400, 10, 40)
    check_datagrams(pair, socket.AF_INET6, HOST_IP6, 100, 10, 60)
    check_datagrams(pair, socket.AF_INET, HOST_IP, 4000, 10, 1)
    for size in (1400, 4000):
        assert pair.guest_ns.run("ping", "-q", "-s", size, "-c", "2", "-i", "0.05",
                                 HOST_IP).returncode == 0


@contextlib.contextmanager
def recorded(pair, host=(), guest=()):
    with Proxy(pair.directory / "proxy", pair.socket, record=True) as proxy:
        start(pair, host, guest, proxy)
        yield proxy


@pytest.mark.parametrize("flags", [(), ("--max-frame", "1518")], ids=["65550", "1518"])
def test_frames_on_the_plain_wire_are_complete(make_pair, flags):
    """None above the MTU, every checksum right."""
    pair = make_pair("plain")
    with recorded(pair, flags, flags) as proxy:
        all_traffic(pair)
        check_nothing_dropped(pair)
        (link,) = proxy.links
        for way in (0, 1):
            records, end = wire.decode_stream(bytes(link.recorded[way]), "plain", 1514)
            assert end in ("clean", "truncated"), end  # truncated: recorded in mid-record
            assert len(records) > 5_000
            problems = {frame_problem(record["payload"], 1500) for record in records}
            assert problems == {None}


@pytest.mark.parametrize("features", ["offload", "without"])
def test_records_on_the_native_wire_keep_the_rules(make_pair, features):
    pair = make_pair("native")
    more = () if features == "offload" else ("--offload=false",)
    with recorded(pair, more, more) as proxy:
        all_traffic(pair)
        check_nothing_dropped(pair)
        (link,) = proxy.links
        agreed = pair.host.status()["session"]
        for way in (0, 1):
            stream = bytes(link.recorded[way])
            hello, consumed = wire.decode_preface(stream)
            assert hello["session"] == agreed["id"]
            records, end = wire.decode_stream(stream[consumed:], "native", agreed["max_frame"])
            assert end in ("clean", "truncated"), end
            longest = 0
            for record in records:
                if record["type"] == "control":
                    assert wire.decode_control(record["payload"])["kind"] in ("ping", "pong")
                    continue
                frame = record["payload"]
                offload = record.get("offload", dict.fromkeys(wire.OFFLOAD, 0))
                # Raises when a rule is broken: what our peer would have dropped.
                rebuilt = wire.rebuild_offload(offload, frame, agreed["mtu"],
                                               "offload" in agreed["features"],
                                               "uso" in agreed["features"])
                longest = max(longest, len(frame))
                if rebuilt["flags"] == 0:
                    assert all(value == 0 for value in offload.values()), offload
                    assert frame_problem(frame, agreed["mtu"]) is None
            if features == "offload":
                assert longest > 20_000, "no super-frame crossed"
            else:
                assert longest <= 1514 and not any("offload" in each for each in records)


# --- Fragments and tags ----------------------------------------------------------------------


@on_each_wire
def test_pings_and_fragments(pair):
    start(pair)
    for size in (1400, 4000, 20_000, 65_000):
        for namespace, address in ((pair.guest_ns, HOST_IP), (pair.host_ns, GUEST_IP),
                                   (pair.guest_ns, HOST_IP6), (pair.host_ns, GUEST_IP6)):
            shown = namespace.run("ping", "-q", "-s", size, "-c", "3", "-i", "0.05", "-W", "2",
                                  address, check=False)
            assert shown.returncode == 0, (size, address, shown.stdout + shown.stderr)
    check_nothing_dropped(pair)


def tagged_super_frame(protocol, addresses, payload, sequence):
    """(vnet header, frame) such as a VLAN interface on the TAP would send."""
    tcp = protocol == socket.IPPROTO_TCP
    ipv6 = ":" in addresses[0]
    segment = partial_segment(protocol, payload, *addresses, sequence=sequence)
    frame = ethernet(ip_packet(segment, protocol, *addresses), tags=(0x8100,))
    start_at = 18 + (40 if ipv6 else 20)
    gso_type = (4 if ipv6 else 1) if tcp else 5
    return struct.pack("<BBHHHH", 1, gso_type, start_at + (20 if tcp else 8), 1400, start_at,
                       16 if tcp else 6), frame


@on_each_wire
def test_tagged_super_frames(pair):
    """Put onto the guest's TAP by a packet socket; they need no VLAN interface."""
    v4, v6 = (GUEST_IP, HOST_IP), (GUEST_IP6, HOST_IP6)
    with recorded(pair) as proxy, TapEye(pair.host_ns, HOST_TAP) as eye, \
            TapEye(pair.guest_ns, GUEST_TAP) as hand:
        eye.drain()
        sent = {}
        for number, (protocol, addresses) in enumerate(
                [(6, v4), (6, v6), *([(17, v4), (17, v6)] if "uso" in
                                     pair.guest.status()["tap"]["offloads"] else [])]):
            payload = bytes((number + at) % 253 for at in range(30_000))
            vnet, frame = tagged_super_frame(protocol, addresses, payload, 1)
            hand.send(vnet, frame)
            sent[protocol, addresses] = payload
        got = dict.fromkeys(sent, b"")
        for _, frame in eye.arrivals(5 * SLOW):
            ipv6 = frame[12:14] == b"\x86\xdd"
            l4 = 54 if ipv6 else 34
            protocol = frame[20] if ipv6 else frame[23]
            if frame[6:12] == PEER_MAC and protocol in (6, 17):
                got[protocol, v6 if ipv6 else v4] += frame[l4 + (20 if protocol == 6 else 8):]
            if got == sent:
                break
        assert got == sent
        check_nothing_dropped(pair)
        stream = bytes(proxy.links[0].recorded[0])
        if pair.wire == "native":
            stream = stream[wire.decode_preface(stream)[1]:]
        tagged = [record for record in wire.decode_stream(stream, pair.wire)[0]
                  if record["payload"][6:12] == PEER_MAC]
        assert all(record["payload"][12:16] == b"\x81\0\0\x0a" for record in tagged)
        if pair.wire == "native":
            assert len(tagged) == len(sent), "each crossed whole"
        else:
            assert len(tagged) == 22 * len(sent), "cut to the MTU"
            assert {frame_problem(record["payload"], 1500) for record in tagged} == {None}


@on_each_wire
@pytest.mark.parametrize("protocol", ["802.1Q", "802.1ad"])
def test_a_tagged_network(pair, protocol):
    start(pair)
    for namespace, tap, number in ((pair.host_ns, HOST_TAP, 1), (pair.guest_ns, GUEST_TAP, 2)):
        shown = namespace.run("ip", "link", "add", "link", tap, "name", "vlan10", "type", "vlan",
                              "proto", protocol, "id", "10", check=False)
        if shown.returncode:
            pytest.skip(f"no VLAN interfaces here: {shown.stderr.strip()}")
        namespace.run("ip", "addr", "add", f"10.78.0.{number}/24", "dev", "vlan10")
        namespace.run("ip", "addr", "add", f"fd78::{number}/64", "dev", "vlan10", "nodad")
        namespace.run("ip", "link", "set", "vlan10", "up")
    wait_until(lambda: pair.guest_ns.ping("10.78.0.1", count=1), "the tagged network works")
    transfer(pair, "10.78.0.1")
    transfer(pair, "fd78::1", BULK // 2, BULK // 2, 5002)
    check_datagrams(pair, socket.AF_INET, "10.78.0.1", 1400, 20, 40)
    check_nothing_dropped(pair)
