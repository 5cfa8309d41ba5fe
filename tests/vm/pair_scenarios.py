# SPDX-License-Identifier: Apache-2.0
"""Scenarios with a pair over real AF_VSOCK (loopback CID)."""

import os
import socket
import statistics
import struct
import threading
import time

import guard
import vm
from pair import ADDRESS, TAP, Pair, Transfer, affordable, both_ways, describe

ROUNDS = 3
# Rates are compared, so that the slow arm may get a smaller payload than the fast ones.
ARMS = ("reference", "plain", "native")
MEASURED_MIB, MEASURED_SECONDS = 64, 3
GOAL_NATIVE = 4.0  # times the reference, over vsock in User Mode Linux
MAX_WRITE = 31000  # bytes: larger vsock sends have been corrupted by hypervisors


def reference(data):
    """The design that we are compared with, up to 64 MiB checked: the harness itself is sound."""
    Pair("reference").start_both()
    data.update(both_ways(32, seconds=8))
    return describe(data)


def checked(wire):
    def scenario(data):
        pair = Pair(wire).start_both()
        pair.ping_both()
        for end in pair.processes:
            vm.check(pair.wire(end) == wire, f"{end} reports the wire {pair.wire(end)}")
        data.update(both_ways(256, seconds=15))
        text = describe(data)
        drops, again = pair.drops(), sum(r["retransmits"] for r in data.values())
        text += f", {drops} TAP drops, {again} retransmits"
        if wire == "native":
            vm.check(drops == 0 and again == 0, text)
        return text

    return scenario


def status_over_vsock(data):
    """What status must say about a vsock lane: its buffers, and writes that are never too large."""
    pair = Pair("auto").start_both()
    for end in pair.processes:
        lane = pair.status(end)["session"]["lanes"][0]
        data[end] = lane
        vm.check(lane["transport"] == "vsock", f"{end}: {lane}")
        vm.check(0 < lane["max_write"] <= MAX_WRITE, f"{end}: max_write {lane['max_write']}")
    sizes = {end: {k: v for k, v in lane.items() if "buffer" in k} for end, lane in data.items()}
    if not all(sizes.values()):
        raise vm.Skip("status has no vsock buffer size yet")
    for end, found in sizes.items():
        # The kernel's default is 256 KiB: an effective value above it shows that it was raised.
        vm.check(all(v > 256 << 10 for v in found.values()), f"{end}: {found}")
    return str(sizes)


def any_start_order(_data):
    """Framer first; refused connections (ECONNRESET on vsock) are tried again."""
    pair = Pair("auto")
    pair.start(vm.GUEST)
    vm.wait_until(lambda: pair.state(vm.GUEST) == "connecting", 10, "the framer to try")
    pair.start(vm.HOST)
    pair.wait_up()
    for end in (vm.GUEST, vm.HOST):
        began = time.monotonic()
        code = pair.terminate(end)
        vm.check(code == 0, f"{end} ended with {code} after SIGTERM")
        vm.check(time.monotonic() - began < 1.5, f"{end} took {time.monotonic() - began:.1f} s")


def unreachable_cid(_data):
    """ENODEV from connect(): the framer stays and keeps trying."""
    pair = Pair("auto", cid=77)
    pair.start(vm.GUEST)
    vm.wait_until(lambda: pair.state(vm.GUEST) == "connecting", 10, "the framer to try")
    began = time.monotonic()
    while time.monotonic() - began < 1.0:  # several attempts: the back-off starts at 50 ms
        vm.check(pair.state(vm.GUEST) == "connecting", f"state {pair.state(vm.GUEST)}")
        time.sleep(0.1)


def port_in_use(_data):
    """A second helper on the same port ends with one line that says why."""
    pair = Pair("auto")
    pair.start(vm.HOST)
    pair.wait_listening()
    command = list(pair.commands[vm.HOST])
    command[command.index("--tap") + 1] = "cwh1"
    command[command.index("--admin") + 1] = "unix:/run/causeway/second.sock"
    process = vm.spawn(command, "second", namespace=vm.HOST)
    code = process.wait(10)
    text = process.log_bytes().decode(errors="replace")
    vm.check(code == 1, f"exit {code}: {text}")
    vm.check("in use" in text, text)


def reconnect(wire):
    def scenario(data):
        """kill -9 of each end in the middle of a checked transfer: the TCP connection survives."""
        pair = Pair(wire).start_both()
        for end in (vm.GUEST, vm.HOST):
            pair.wait_up()
            vm.check(pair.wire(end) == wire, f"{end} reports the wire {pair.wire(end)}")
            # Some seconds long, so that the kill surely falls into it.
            transfer = Transfer(vm.HOST, affordable(vm.HOST, 256, 6))
            before = pair.status(vm.GUEST)["counters"]["to_tap_bytes"]
            vm.wait_until(
                lambda before=before: pair.status(vm.GUEST)["counters"]["to_tap_bytes"]
                > before + (2 << 20), 60, "the transfer to be under way")
            vm.check(transfer.running(), "the transfer was over before the kill")
            pair.kill(end)
            began = time.monotonic()
            pair.start(end)
            vm.wait_until(lambda: pair.state(vm.GUEST) == "up" and pair.state(vm.HOST) == "up", 10,
                          "the session to be up again")
            data[f"{end}_up_again_seconds"] = round(time.monotonic() - began, 2)
            transfer.finish()
        return ", ".join(f"{name} {value}" for name, value in data.items())

    return scenario


def lanes(data):
    """Two lanes are two vsock streams; several flows at once, every payload checked."""
    pair = Pair("native", lanes=2).start_both()
    for end in pair.processes:

        def all_up(end=end):
            found = pair.status(end)["session"]["lanes"]
            return [x["state"] for x in found] == ["up", "up"] and found

        found = vm.wait_until(all_up, 10, f"two lanes of {end} to be up")
        vm.check({x["transport"] for x in found} == {"vsock"}, f"{end}: {found}")
    pair.ping_both()
    mib = affordable(vm.HOST, 32, 4)
    transfers = [Transfer(sender, mib) for sender in (vm.HOST, vm.GUEST) for _ in range(3)]
    results = [transfer.finish() for transfer in transfers]
    data["mib_per_second"] = [r["mib_per_second"] for r in results]
    return f"{len(results)} flows of {mib} MiB at once"


def wire_fallback(data):
    """`auto` meets a plain peer, from either side, and says which wire is in use."""
    for host, guest, expected in (
        ("auto", "auto", "native"),
        ("plain", "auto", "plain"),
        ("auto", "plain", "plain"),
    ):
        pair = Pair("auto", host_wire=host, guest_wire=guest).start_both()
        found = {end: pair.wire(end) for end in pair.processes}
        data[f"{host}-{guest}"] = found
        vm.check(set(found.values()) == {expected}, f"{host} and {guest}: {found}")
        Transfer(vm.GUEST, 8).finish()
        pair.stop()


def wrong_peer(data):
    """Garbage over vsock ends that connection only, each under its reason; the next is served."""
    pair = Pair("auto")
    pair.start(vm.HOST)
    pair.wait_listening()
    hello = b"{not json"
    cases = {
        "record_too_long": b"GET / HTTP/1.1\r\nHost: causeway\r\n\r\n",
        "record_too_short": struct.pack(">I", 13) + bytes(13),
        "truncated": struct.pack(">I", 60) + bytes(20),
        "handshake_malformed": b"CWAY" + struct.pack(">HH", 1, len(hello)) + hello,
    }

    def disturb():
        for reason, text in cases.items():
            before = pair.ended(vm.HOST).get(reason, 0)
            with guard.vsock_socket() as client:
                client.settimeout(5)
                client.connect((guard.CID_LOCAL, pair.port))
                client.sendall(text)
                if reason != "truncated":  # that one closes first, in the middle of a record
                    wait_closed(client, reason)
            vm.wait_until(lambda r=reason, b=before: pair.ended(vm.HOST).get(r, 0) == b + 1, 5,
                          f"one more {reason} (found {pair.ended(vm.HOST)})")

    disturb()
    pair.start(vm.GUEST)
    pair.wait_up()
    # The same while a guest is served: whatever that does to its session, it has a network at once.
    disturb()
    pair.wait_up()
    Transfer(vm.HOST, 8).finish()
    data["ended"] = pair.ended(vm.HOST)
    return str(data["ended"])


def guest_by_cid(data):
    """The peer's CID decides whose connection it is. On loopback every peer has CID 1."""
    address = [ADDRESS[vm.HOST] + "/24"]
    mine = {"name": "mine", "cid": guard.CID_LOCAL, "tap": TAP[vm.HOST], "address": address}
    other = {"name": "other", "cid": 77, "tap": "cwh7", "address": ["10.78.0.1/24"]}
    pair = Pair("native", config={"guests": [other, mine]})
    pair.start(vm.HOST)
    pair.wait_listening()
    pair.start(vm.GUEST)
    pair.ping()
    found = {each["name"]: each["session"]["state"] for each in pair.status(vm.HOST)["guests"]}
    vm.check(found == {"mine": "up", "other": "listening"}, f"{found}")
    data["lane"] = pair.status(vm.GUEST)["session"]["lanes"][0]
    pair.stop()

    # A CID that no guest has is refused and counted. Loopback's is below the first that a guest can
    # have, so accept_unknown does not take it either.
    unknown = {"limit": 2, "tap_prefix": "cwh-u", "network4": "10.77.0.0/24"}
    # A lone guest with a listener of its own is not reached through the shared one either.
    own = {"name": "own", "listen": "unix:/run/causeway/own.wire", "tap": "cwh8"}
    for config in ({"guests": [other]}, {"guests": [other], "accept_unknown": unknown},
                   {"guests": [own]}):
        pair = Pair("native", config=config)
        pair.start(vm.HOST)
        pair.wait_listening()
        pair.start(vm.GUEST)
        vm.wait_until(lambda pair=pair: pair.status(vm.HOST)["refused"]["unknown_cid"] > 1, 10,
                      "two connections to be refused")
        vm.check(pair.state(vm.GUEST) == "connecting", "the framer is served")
        names = [each["name"] for each in pair.status(vm.HOST)["guests"]]
        vm.check(names == [each["name"] for each in config["guests"]], f"{names}")
        pair.stop()
    return str(found)


def publish_over_vsock(data):
    """A published port is relayed over a vsock stream of its own, half-closes kept."""
    vsock_port = 9443
    config = {"guests": [{"name": "mine", "cid": guard.CID_LOCAL, "tap": TAP[vm.HOST],
                          "publish": [f"tcp:127.0.0.1:8443=vsock:{vsock_port}"]}]}
    pair = Pair("native", config=config)
    pair.start(vm.HOST)
    pair.wait_listening()
    payload = os.urandom(4 << 20)
    received = []

    def serve(listener):
        stream, _ = listener.accept()
        with stream:
            text = b""
            while piece := stream.recv(65536):
                text += piece
            received.append(text)
            stream.sendall(text[::-1])

    with guard.vsock_socket() as listener:
        listener.bind((socket.VMADDR_CID_ANY, vsock_port))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        with vm.tcp_socket(vm.HOST) as client:
            client.settimeout(60)
            client.connect(("127.0.0.1", 8443))
            client.sendall(payload)
            client.shutdown(socket.SHUT_WR)
            answer = b""
            while piece := client.recv(65536):
                answer += piece
        thread.join(10)
    vm.check(received == [payload], "the guest's side got something else")
    vm.check(answer == payload[::-1], "the client got something else")
    data["published"] = pair.status(vm.HOST)["published"]
    return f"{len(payload) >> 20} MiB each way"


def wait_closed(client, what):
    """Reads until the peer has closed; an answer before that (a refusal) is fine."""
    try:
        while client.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        raise vm.Failed(f"the connection with {what} was not ended") from None


def measure(arm):
    """One round of one arm: MiB/s by direction."""
    pair = Pair(arm)
    try:
        pair.start_both()
        for end in [] if pair.is_reference else pair.processes:
            vm.check(pair.wire(end) == arm, f"{end} reports the wire {pair.wire(end)}")
        results = both_ways(MEASURED_MIB, MEASURED_SECONDS, streamed=False)
        return {name: result["mib_per_second"] for name, result in results.items()}
    finally:
        pair.stop()


def throughput(data):
    """Arms interleaved; the median of the ratios within each round. A ratio never fails a run."""
    for name in ("causeway-traffic", "causeway-reference", "causeway-host"):
        vm.program(name)
    rates, missing = {}, {}
    began, rounds = time.monotonic(), 0
    # A busy machine gets fewer rounds, but always a whole one.
    while rounds < ROUNDS and (rounds == 0 or time.monotonic() - began < 40):
        rounds += 1
        for arm in ARMS:
            if arm in missing:
                continue
            try:
                for name, rate in measure(arm).items():
                    rates.setdefault((arm, name), []).append(rate)
            except (vm.Skip, vm.Failed) as why:
                missing[arm] = str(why)
                if arm == "reference" or {"plain", "native"} <= set(missing):
                    raise
    data.update(rounds=rounds, not_run=missing)
    texts = []
    for (arm, name), values in rates.items():
        ratios = [a / b for a, b in zip(values, rates["reference", name])]
        data[f"{arm} {name}"] = {
            "mib_per_second": values,
            "ratio_median": round(statistics.median(ratios), 2),
            "ratio_spread": [round(min(ratios), 2), round(max(ratios), 2)],
        }
        text = f"{arm} {name} {statistics.median(values):.0f} MiB/s"
        if arm != "reference":
            text += f" = {statistics.median(ratios):.2f}x"
        if arm == "native":
            met = statistics.median(ratios) >= GOAL_NATIVE
            text += f" ({'meets' if met else 'MISSES'} the goal of {GOAL_NATIVE:.0f}x)"
        texts.append(text)
    texts.append(f"{rounds} rounds")
    texts += [f"{arm} not run: {why}" for arm, why in missing.items()]
    return "; ".join(texts)


# name, function, limit in seconds
SCENARIOS = [
    ("pair_reference", reference, 60),
    ("pair_plain", checked("plain"), 120),
    ("pair_native", checked("native"), 120),
    ("pair_status", status_over_vsock, 20),
    ("pair_start_order", any_start_order, 30),
    ("pair_unreachable_cid", unreachable_cid, 20),
    ("pair_port_in_use", port_in_use, 20),
    ("pair_reconnect_plain", reconnect("plain"), 90),
    ("pair_reconnect_native", reconnect("native"), 90),
    ("pair_lanes", lanes, 60),
    ("pair_wire_fallback", wire_fallback, 60),
    ("pair_wrong_peer", wrong_peer, 60),
    ("host_guest_by_cid", guest_by_cid, 60),
    ("host_publish_over_vsock", publish_over_vsock, 60),
    ("pair_throughput", throughput, 120),
]
