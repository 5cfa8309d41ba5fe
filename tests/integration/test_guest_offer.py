# SPDX-License-Identifier: Apache-2.0
"""--address auto: what the helper offers is applied, kept, changed live, and refused by pins."""

import json
import signal

import pytest

from causeway_testlib.pair import GUEST_TAP, HOST_IP, HOST_TAP
from causeway_testlib.payload import Transfer
from causeway_testlib.programs import SLOW
from causeway_testlib.waiting import wait_until

MIB = 1 << 20
HOST_IP6 = "fd77::1"
OFFERED = ["10.77.0.2/24", "fd77::2/64"]
CHANGED = ["10.77.0.3/24", "fd77::2/64"]
GATEWAYS = {HOST_IP, HOST_IP6}


class Offering:
    """A pair whose helper offers, and whose framer takes what is offered."""

    def __init__(self, pair):
        self.pair = pair
        self.config = pair.directory / "host.json"
        self.resolv_conf = pair.directory / "resolv.conf"

    def configure(self, offered, **more):
        self.config.write_text(json.dumps({
            "listen": f"unix:{self.pair.socket}", "tap": HOST_TAP, "wire": self.pair.wire,
            "state_directory": str(self.pair.directory),
            "address": [f"{HOST_IP}/24", f"{HOST_IP6}/64", "10.78.0.1/24"],
            "guest_address": offered, **more}), encoding="ascii")

    def start_host(self, offered=None, **more):
        if offered is not None:
            self.configure(offered, **more)
        pair = self.pair
        pair.host = pair.start(pair.host_ns, "causeway-host", ["--config", self.config], "host")

    def start_guest(self, *more, address="auto"):
        pair = self.pair
        pair.guest = pair.start(
            pair.guest_ns, "causeway-guest",
            ["--connect", f"unix:{pair.socket}", "--tap", GUEST_TAP, "--wire", pair.wire,
             *(["--address", address] if address else []),
             "--resolv-conf", self.resolv_conf, *more], "guest")

    def link(self):
        return self.pair.guest_ns.links()[GUEST_TAP]

    def addresses(self):
        return sorted(f"{address['local']}/{address['prefixlen']}"
                      for address in self.link()["addr_info"] if address["scope"] == "global")

    def gateways(self):
        return {route["gateway"] for family in ("-4", "-6")
                for route in json.loads(self.pair.guest_ns.run(
                    "ip", "-j", family, "route", "show", "default").stdout or "[]")
                if route["dev"] == GUEST_TAP}

    def nameservers(self):
        return [line.split()[1] for line in self.resolv_conf.read_text("ascii").splitlines()
                if line.startswith("nameserver ")]

    def wait(self, addresses=None, gateways=None):
        addresses = sorted(OFFERED if addresses is None else addresses)
        wait_until(lambda: self.addresses() == addresses, f"the guest has {addresses}", 10 * SLOW)
        gateways = GATEWAYS if gateways is None else gateways
        wait_until(lambda: self.gateways() == gateways, f"the guest has {gateways}", 10 * SLOW)

    def reaches(self, *addresses):
        return all(self.pair.guest_ns.ping(address, count=1)
                   for address in addresses or (HOST_IP, HOST_IP6))

    def wait_logged(self, text):
        wait_until(lambda: text in self.pair.guest.log(), f"the framer logs {text!r}", 10 * SLOW)


@pytest.fixture
def offering(make_pair):
    return Offering(make_pair("native"))


def changed_log_lines(offering):
    return [line for line in offering.pair.guest.log().splitlines() if "network: " in line]


def test_offer_is_applied(offering):
    offering.start_host(OFFERED, resolvers=["10.77.0.1", "fd77::53"], mtu=9000)
    offering.start_guest()
    offering.wait()
    assert offering.nameservers() == ["10.77.0.1", "fd77::53"]
    assert offering.link()["mtu"] == 9000
    offering.pair.wait_up()
    assert offering.reaches()


def test_offer_is_kept_over_reconnects(offering):
    """A helper that comes back with the same offer changes nothing at all."""
    offering.start_host(OFFERED, resolvers=["10.77.0.1"])
    offering.start_guest()
    offering.wait()
    offering.pair.wait_up()
    index, written = offering.link()["ifindex"], offering.resolv_conf.stat().st_ino
    lines = changed_log_lines(offering)
    assert lines
    for _ in range(3):
        offering.pair.host.kill9()
        offering.pair.guest.wait_state("connecting")
        assert offering.addresses() == sorted(OFFERED)
        assert offering.gateways() == GATEWAYS
        offering.start_host()
        offering.pair.wait_up()
    assert offering.reaches()
    assert offering.link()["ifindex"] == index
    assert offering.resolv_conf.stat().st_ino == written
    assert changed_log_lines(offering) == lines


def test_offer_is_applied_again_after_the_framers_restart(offering):
    offering.start_host(OFFERED, resolvers=["10.77.0.1"])
    for _ in range(3):
        offering.start_guest()
        offering.wait()
        offering.pair.wait_up()
        assert offering.reaches()
        offering.pair.guest.kill9()


@pytest.mark.parametrize("how", ["restart", "reload"])
def test_changed_offer_is_applied_live(offering, how):
    """The IPv4 address changes under a transfer on IPv6, which goes on."""
    pair = offering.pair
    offering.start_host(OFFERED, resolvers=["10.77.0.1"])
    offering.start_guest()
    offering.wait()
    pair.wait_up()
    index = offering.link()["ifindex"]
    rate, size = 16 * MIB, 256 * MIB
    with Transfer(pair.host_ns, HOST_IP6, pair.guest_ns, server_sends=size, client_sends=size,
                  rate=rate) as transfer:
        wait_until(lambda: pair.guest.counter("to_tap_bytes") > MIB, "traffic flows", 10 * SLOW)
        offering.configure(CHANGED, resolvers=["10.77.0.1", "fd77::53"])
        if how == "restart":
            pair.host.kill9()
            offering.start_host()
        else:
            pair.host.signal(signal.SIGHUP)
        offering.wait(CHANGED)
        assert transfer.running(), "the transfer ended before the offer was changed"
        pair.wait_up()
        assert offering.reaches()
        # Another subnet altogether, and another gateway.
        offering.configure(["10.78.0.9/24", "fd77::2/64"], resolvers=["10.77.0.1"],
                           guest_gateway=["10.78.0.1"])
        if how == "restart":
            pair.host.kill9()
            offering.start_host()
        else:
            pair.host.signal(signal.SIGHUP)
        offering.wait(["10.78.0.9/24", "fd77::2/64"], {"10.78.0.1", HOST_IP6})
        assert transfer.running(), "the transfer ended before the offer was changed"
        wait_until(lambda: offering.nameservers() == ["10.77.0.1"], "resolvers follow", 10 * SLOW)
        transfer.check()
    assert offering.link()["ifindex"] == index
    assert "address 10.77.0.3/24 removed" in pair.guest.log()


def test_addresses_outside_of_what_is_accepted_are_refused(offering):
    offering.start_host(OFFERED)
    offering.start_guest("--accept-address-within", "10.99.0.0/16",
                         "--accept-address-within", "fd77::/48")
    offering.wait(["fd77::2/64"], {HOST_IP6})
    offering.wait_logged("address 10.77.0.2/24: its subnet lies outside what is accepted")
    assert offering.reaches(HOST_IP6)


def test_a_refused_change_leaves_what_is_there(offering):
    offering.start_host(OFFERED)
    offering.start_guest("--accept-address-within", "10.77.0.0/24",
                         "--accept-address-within", "fd77::/48")
    offering.wait()
    offering.pair.host.kill9()
    offering.start_host(["10.78.0.9/24", "fd77::2/64"])
    offering.wait_logged("address 10.78.0.9/24: its subnet lies outside what is accepted")
    offering.pair.wait_up()
    assert offering.addresses() == sorted(OFFERED)
    # Not by IPv4: the helper takes only what comes from the address that it offers.
    assert offering.reaches(HOST_IP6)


def test_pinned_mtu_resolvers_and_gateway(offering):
    offering.start_host(OFFERED, resolvers=["10.77.0.1"], mtu=9000)
    offering.start_guest("--mtu", "1400", "--resolver", "10.77.0.53", "--gateway", "10.77.0.254")
    offering.wait(gateways={"10.77.0.254", HOST_IP6})
    for text in ("MTU 9000: pinned to 1400", "resolver 10.77.0.1: resolvers are pinned",
                 "gateway 10.77.0.1: pinned to 10.77.0.254"):
        offering.wait_logged(text)
    assert offering.link()["mtu"] == 1400
    assert offering.nameservers() == ["10.77.0.53"]
    offering.pair.wait_up()
    assert offering.reaches()


def test_static_addresses_need_no_offer(offering):
    offering.start_host([])
    offering.start_guest("--address", "fd77::5/64", "--gateway", HOST_IP,
                         "--resolver", "10.77.0.53", address="10.77.0.5/24")
    offering.pair.wait_up()
    offering.wait(["10.77.0.5/24", "fd77::5/64"], {HOST_IP})
    assert offering.nameservers() == ["10.77.0.53"]
    assert offering.reaches()


def test_static_addresses_are_kept_from_an_offer(offering):
    """Neither the other family's address nor a gateway comes in beside them."""
    offering.start_host(OFFERED)
    offering.start_guest(address="10.77.0.2/24")
    offering.pair.wait_up()
    assert offering.reaches(HOST_IP)
    assert offering.addresses() == ["10.77.0.2/24"]
    assert offering.gateways() == set()
    assert not changed_log_lines(offering)


def test_auto_without_an_offer_stays_connected(make_pair):
    """The plain wire has no offer: the framer says what it waits for, and bridges frames."""
    offering = Offering(make_pair("plain"))
    offering.start_host(OFFERED)
    offering.start_guest()
    offering.pair.wait_up()
    offering.wait_logged("waiting for one")
    assert offering.addresses() == []
    offering.pair.guest_ns.run("ip", "addr", "add", "10.77.0.2/24", "dev", GUEST_TAP)
    assert offering.reaches(HOST_IP)
