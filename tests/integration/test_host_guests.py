# SPDX-License-Identifier: Apache-2.0
"""Several guests of one helper: configuration, reload, isolation, fair share."""

import json
import os
import pathlib
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import tempfile
import threading
import time

import pytest

from causeway_testlib.namespaces import Namespace
from causeway_testlib.payload import Transfer
from causeway_testlib.admin import Admin
from causeway_testlib.programs import SANITIZED, SLOW, Process, Program, program_path
from causeway_testlib.waiting import wait_until

MIB = 1 << 20


class Guests:
    """A helper with a configuration file, and framers in namespaces of their own."""

    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="cwtest-"))
        self.config_path = self.directory / "host.json"
        self.programs, self.namespaces = [], {}
        self.host = None
        self.host_ns = Namespace("host")

    def entry(self, number, **changes):
        """The configuration of guest `number`: app1 has 10.81.1.1/24 and offers 10.81.1.2."""
        return {"name": f"app{number}", "listen": f"unix:{self.socket(number)}",
                "tap": f"cw-app{number}", "address": [f"10.81.{number}.1/24"],
                "guest_address": [f"10.81.{number}.2/24"], **changes}

    def socket(self, number):
        return self.directory / f"wire{number}"

    def write(self, *entries, **more):
        self.config_path.write_text(json.dumps({"guests": list(entries), **more}))

    def start_host(self, *more):
        self.host = Program(self.host_ns, "causeway-host", ["--config", self.config_path, *more],
                            self.directory / "host.admin", self.directory / "host.log")
        self.programs.append(self.host)
        return self.host

    def start_guest(self, number, *more):
        if number not in self.namespaces:
            self.namespaces[number] = Namespace(f"guest{number}")
        guest = Program(self.namespaces[number], "causeway-guest",
                        ["--connect", f"unix:{self.socket(number)}", "--tap", "eth0",
                         "--address", "auto", *more],
                        self.directory / f"guest{number}.admin",
                        self.directory / f"guest{number}.log")
        self.programs.append(guest)
        return guest

    def reload(self):
        """SIGHUP, and waits until the helper has said what came of it."""
        before = self.host.log().count("reload")
        self.host.signal(signal.SIGHUP)
        wait_until(lambda: self.host.log().count("reload") > before, "the reload", 10 * SLOW)

    def guest(self, name):
        """What the helper's status says of one guest; None when it is not there."""
        for guest in self.host.status()["guests"]:
            if guest["name"] == name:
                return guest
        return None

    def wait_up(self, *names):
        for name in names:
            wait_until(lambda name=name: self.guest(name)["session"]["state"] == "up",
                       f"{name} is up", 15 * SLOW)

    def reaches(self, number):
        return wait_until(lambda: self.namespaces[number].ping(f"10.81.{number}.1", count=1),
                          f"guest {number} reaches the helper", 10 * SLOW)

    def close(self):
        problems = [p for p in (program.end() for program in reversed(self.programs)) if p]
        for namespace in [self.host_ns, *self.namespaces.values()]:
            namespace.remove()
        shutil.rmtree(self.directory, ignore_errors=True)
        return problems


@pytest.fixture
def guests(make_pair):  # make_pair: so that the checks of what is missing apply
    site = Guests()
    try:
        yield site
    finally:
        problems = site.close()
    assert not problems, "\n".join(problems)


def test_each_guest_has_its_own_tap_and_offer(guests):
    guests.write(*(guests.entry(n) for n in (1, 2, 3)))
    guests.start_host()
    for number in (1, 2, 3):
        guests.start_guest(number)
    guests.wait_up("app1", "app2", "app3")
    for number in (1, 2, 3):
        guests.reaches(number)
        inside = guests.namespaces[number].links()["eth0"]["addr_info"]
        assert f"10.81.{number}.2" in [each["local"] for each in inside]
    taps = [guest["tap"]["name"] for guest in guests.host.status()["guests"]]
    assert sorted(taps) == ["cw-app1", "cw-app2", "cw-app3"]
    # Guests do not reach each other, only what is published.
    assert not guests.namespaces[1].ping("10.81.2.2", count=1)


def test_reload_adds_changes_and_removes_without_disturbing_the_others(guests):
    guests.write(guests.entry(1), guests.entry(2))
    guests.start_host()
    first = guests.start_guest(1)
    guests.start_guest(2)
    guests.wait_up("app1", "app2")
    guests.reaches(1)
    with Transfer(guests.host_ns, "10.81.1.1", guests.namespaces[1], server_sends=256 * MIB,
                  client_sends=256 * MIB) as transfer:
        before = guests.guest("app1")["session"]["connections_total"]
        # 2 goes, 3 comes, 1 is offered a resolver more.
        guests.write(guests.entry(1, resolvers=["10.81.1.1"]), guests.entry(3))
        guests.reload()
        assert guests.guest("app2") is None
        assert "cw-app2" not in guests.host_ns.links()
        assert not guests.socket(2).exists()
        guests.start_guest(3)
        guests.wait_up("app3")
        guests.reaches(3)
        # 3 changes its TAP's MTU: that one is opened again, and comes back.
        guests.write(guests.entry(1, resolvers=["10.81.1.1"]), guests.entry(3, mtu=9000))
        guests.reload()
        guests.wait_up("app3")
        guests.reaches(3)
        assert guests.guest("app3")["tap"]["mtu"] == 9000
        transfer.check()
    assert guests.guest("app1")["session"]["connections_total"] == before
    assert first.status()["session"]["connections_total"] == before


def test_a_guest_with_lanes_is_opened_again(guests):
    """Its lanes' ends are still to be handled when its TAP is gone already."""
    guests.write(guests.entry(1), guests.entry(2, lanes=3))
    guests.start_host()
    guests.start_guest(1)
    guests.start_guest(2, "--lanes", "3")
    guests.wait_up("app1", "app2")
    for mtu in (9000, 1500, 4000):
        wait_until(lambda: [lane["state"] for lane in guests.guest("app2")["session"]["lanes"]]
                   == ["up"] * 3, "three lanes are up", 15 * SLOW)
        guests.write(guests.entry(1), guests.entry(2, lanes=3, mtu=mtu))
        guests.reload()
        guests.wait_up("app2")
        guests.reaches(2)
        guests.reaches(1)
    assert guests.guest("app1")["session"]["connections_total"] == 1


def test_rules_that_contradict_each_other_are_refused_before_anything_changes(guests):
    guests.write(guests.entry(1, publish=["tcp:0.0.0.0:8443=tcp:443"]))
    guests.start_host()
    guests.start_guest(1)
    guests.wait_up("app1")
    before = guests.host_ns.run("nft", "list", "ruleset").stdout
    guests.write(guests.entry(1, publish=["tcp:0.0.0.0:8443=tcp:443"]),
                 guests.entry(2, publish=["tcp:0.0.0.0:8443=tcp:443"]))
    guests.reload()
    assert "8443" in guests.host.status()["reload_error"]
    assert guests.guest("app2") is None
    assert "cw-app2" not in guests.host_ns.links()
    assert guests.host_ns.run("nft", "list", "ruleset").stdout == before


@pytest.mark.parametrize("text, words", [
    ("{", ["syntax"]),
    ('{"guests": [{"name": "app1"}]}', ["guests"]),
    ('{"guests": [], "lisen": "unix:/x"}', ["lisen", "listen"]),
])
def test_a_wrong_file_is_refused_and_the_old_one_stays(guests, text, words):
    guests.write(guests.entry(1))
    guests.start_host()
    guests.start_guest(1)
    guests.wait_up("app1")
    guests.config_path.write_text(text)
    guests.reload()
    status = guests.host.status()
    assert all(word in status["reload_error"] for word in words), status["reload_error"]
    guests.reaches(1)
    guests.write(guests.entry(1))
    guests.reload()
    assert guests.host.status()["reload_error"] is None


def test_a_guest_that_cannot_be_opened_does_not_stop_the_reload(guests):
    guests.write(guests.entry(1))
    guests.start_host()
    guests.start_guest(1)
    guests.wait_up("app1")
    # Attached TAPs have to be there.
    wrong = {"name": "app2", "listen": f"unix:{guests.socket(2)}", "tap": "cw-none", "attach": True}
    guests.write(guests.entry(1), wrong, guests.entry(3))
    guests.reload()
    status = guests.host.status()
    assert "cw-none" in status["failed"]["app2"]
    assert guests.guest("app3") is not None
    guests.reaches(1)
    guests.host_ns.run("ip", "tuntap", "add", "mode", "tap", "name", "cw-none")
    guests.reload()
    assert guests.host.status()["failed"] == {}
    assert guests.guest("app2")["session"]["state"] == "listening"


def test_a_deleted_tap_takes_its_own_guest_only(guests):
    guests.write(guests.entry(1), guests.entry(2))
    guests.start_host()
    guests.start_guest(1)
    guests.start_guest(2)
    guests.wait_up("app1", "app2")
    guests.host_ns.run("ip", "link", "delete", "cw-app2")
    wait_until(lambda: "app2" in guests.host.status()["failed"], "the helper sees it", 10 * SLOW)
    guests.reaches(1)
    guests.reload()
    guests.wait_up("app1", "app2")
    guests.reaches(2)


def test_the_process_that_sees_guest_bytes_has_no_privilege(guests):
    guests.write(guests.entry(1))
    host = guests.start_host()
    guests.start_guest(1)
    guests.wait_up("app1")
    for thread in os.listdir(f"/proc/{host.pid}/task"):
        status = pathlib.Path(f"/proc/{host.pid}/task/{thread}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        assert "0" not in fields["Uid"].split(), status
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(fields[name], 16) == 0, f"{name} of thread {thread}: {fields[name]}"
        assert fields["NoNewPrivs"].strip() == "1"


def test_a_tap_of_someone_elses_needs_no_privilege_at_all(guests):
    """attach: the helper runs as nobody, without a capability, and leaves the TAP as it was."""
    ns = guests.host_ns
    ns.run("ip", "tuntap", "add", "mode", "tap", "user", "65534", "name", "cw-own")
    ns.run("ip", "addr", "add", "10.81.9.1/24", "dev", "cw-own")
    ns.run("ip", "link", "set", "cw-own", "up", "mtu", "1400")
    before = ns.links()["cw-own"]
    guests.directory.chmod(0o777)
    admin = guests.directory / "own.admin"
    # A machine's /dev/net/tun may be root's alone; most let anybody open it, as this copy does.
    tun = guests.directory / "tun"
    ns.run("mknod", tun, "c", "10", "200")
    tun.chmod(0o666)
    own_tun = ["unshare", "--mount", "sh", "-c",
               f"mount --bind {tun} /dev/net/tun && exec \"$@\"", "sh"]
    wrap = [*own_tun, "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all",
            "--bounding-set=-all", "--no-new-privs"]
    # A copy that nobody may reach and run, whatever the permissions of the build directory.
    copy = guests.directory / "causeway-host"
    shutil.copy(program_path("causeway-host"), copy)
    copy.chmod(0o755)
    helper = Process(ns, [*wrap, copy, "--listen",
                          f"unix:{guests.socket(9)}", "--tap", "cw-own", "--attach", "--admin",
                          f"unix:{admin}"], guests.directory / "own.log")
    guests.programs.append(helper)
    wait_until(lambda: Admin(admin).status()["tap"]["mtu"] == 1400, "the helper answers", 10 * SLOW)
    guests.namespaces[9] = Namespace("guest9")
    guest = Program(guests.namespaces[9], "causeway-guest",
                    ["--connect", f"unix:{guests.socket(9)}", "--tap", "eth0", "--address",
                     "10.81.9.2/24"], guests.directory / "guest9.admin",
                    guests.directory / "guest9.log")
    guests.programs.append(guest)
    guests.reaches(9)
    assert helper.terminate()[0] == 0
    after = ns.links()["cw-own"]
    assert (after["address"], after["mtu"]) == (before["address"], 1400)
    # The kernel gives it a link-local address once it is carried.
    assert [each["local"] for each in after["addr_info"] if each["scope"] == "global"] == [
        "10.81.9.1"]


def test_a_bridged_guest_is_in_the_bridges_network(guests):
    ns = guests.host_ns
    if ns.run("ip", "link", "add", "br0", "type", "bridge", check=False).returncode != 0:
        pytest.skip("this kernel has no bridges")
    ns.run("ip", "addr", "add", "10.81.1.1/24", "dev", "br0")
    ns.run("ip", "link", "set", "br0", "up")
    guests.write(guests.entry(1, address=[], bridge="br0", guest_gateway=["10.81.1.1"]))
    guests.start_host()
    guests.start_guest(1)
    guests.wait_up("app1")
    assert ns.links()["cw-app1"]["master"] == "br0"
    guests.reaches(1)
    routes = guests.namespaces[1].run("ip", "route", "show", "default").stdout
    assert "via 10.81.1.1" in routes


def test_two_helpers_of_one_instance_are_one_too_many(guests):
    guests.write(guests.entry(1))
    guests.start_host()
    second = guests.host_ns.run(program_path("causeway-host"), "--config", guests.config_path,
                                check=False, timeout=30)
    assert second.returncode == 1
    assert "in use" in second.stderr and "main" in second.stderr
    assert len(second.stderr.splitlines()) == 1


def flood(path, ended):
    """Garbage on one guest's listener, from several connections at once, until told to end."""
    pieces = [b"\xff" * 4096, struct.pack(">I", 70000) + bytes(4096), b"CWAY\x00\x01\x0f\xff{" * 64,
              struct.pack(">I", 60) + os.urandom(60), struct.pack(">I", 13) + bytes(13)]
    while not ended.is_set():
        for piece in pieces:
            try:
                with socket.socket(socket.AF_UNIX) as stream:
                    stream.settimeout(1)
                    stream.connect(str(path))
                    stream.sendall(piece)
            except OSError:
                pass


def test_a_guest_that_floods_garbage_harms_nobody_else(guests):
    guests.write(*(guests.entry(n) for n in (1, 2)))
    host = guests.start_host()
    guests.start_guest(1)
    guests.wait_up("app1")
    guests.reaches(1)
    ended = threading.Event()
    threads = [threading.Thread(target=flood, args=(guests.socket(2), ended)) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        with Transfer(guests.host_ns, "10.81.1.1", guests.namespaces[1], server_sends=128 * MIB,
                      client_sends=128 * MIB) as transfer:
            transfer.check()
        memory = host.peak_rss()
        time.sleep(2)  # the flood goes on: what it takes is there by now
        # A sanitizer keeps what was freed for a while.
        assert SANITIZED or host.peak_rss() < memory + 2 * MIB
    finally:
        ended.set()
        for thread in threads:
            thread.join(10)
    status = guests.host.status()
    assert sum(guests.guest("app2")["ended"].values()) > 100
    assert guests.guest("app1")["session"]["connections_total"] == 1
    assert SANITIZED or host.peak_rss() < 24 * MIB, status


def test_four_guests_get_a_fair_share_each(guests):
    """Four bulk transfers at once: each moves within 20 % of the mean in the same time.

    The median of five intervals of a second: a shared machine disturbs single ones.
    """
    numbers = (1, 2, 3, 4)
    guests.write(*(guests.entry(n) for n in numbers))
    guests.start_host()
    for number in numbers:
        guests.start_guest(number)
    guests.wait_up(*(f"app{n}" for n in numbers))

    def moved():
        return {guest["name"]: guest["counters"]["to_tap_bytes"]
                for guest in guests.host.status()["guests"]}

    sinks, sources = [], []
    try:
        for number in numbers:
            guests.reaches(number)
            command = ["iperf3", "-s", "-1", "-p", str(6000 + number), "-B", f"10.81.{number}.1"]
            sinks.append(subprocess.Popen(guests.host_ns.command(*command),
                                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for number in numbers:
            # Retried: the server may not listen yet.
            command = ["sh", "-c", f"for i in 1 2 3 4 5 6 7 8 9; do iperf3 -c 10.81.{number}.1 "
                       f"-p {6000 + number} -t 14 && break; sleep 0.3; done"]
            sources.append(subprocess.Popen(guests.namespaces[number].command(*command),
                                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        start = moved()
        wait_until(lambda: all(moved()[name] > start[name] + 4 * MIB for name in start),
                   "all four move", 15 * SLOW)
        shares = {name: [] for name in start}
        for _ in range(5):
            before = moved()
            time.sleep(1.5)
            after = moved()
            total = sum(after[name] - before[name] for name in after)
            for name in after:
                shares[name].append((after[name] - before[name]) * len(after) / total)
    finally:
        for process in sources + sinks:
            process.kill()
            process.wait(5)
    medians = {name: statistics.median(values) for name, values in shares.items()}
    print(f"\nshares of the mean: {json.dumps(medians)}")
    assert all(0.8 <= share <= 1.2 for share in medians.values()), medians
