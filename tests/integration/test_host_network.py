# SPDX-License-Identifier: Apache-2.0
"""NAT, published ports over the TAP, egress, and that all of it goes away again.

Real nftables in namespaces: see causeway_testlib/site.py for who is where.
"""

import os
import shutil
import signal

import pytest

from causeway_testlib.programs import SLOW, program_path
from causeway_testlib.site import (
    FAR4, FAR6, FOREIGN_TABLE, HOST4, HOST6, INTERNET4, INTERNET6, METADATA4, METADATA6, PRIVATE4,
    PRIVATE6, TCP, UDP, UPLINK, Site, ask, prohibited, refusal, without_nft)
from causeway_testlib.waiting import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("nft") is None,
                                reason="needs root and nft")


@pytest.fixture
def site():
    if not program_path("causeway-host").exists():
        pytest.skip("causeway-host is not built")
    with Site() as made:
        yield made
    assert not made.problems, "\n".join(made.problems)


def nat_pair(site, **more):
    """Both guests behind NAT; what is said for one of them by guest1=..., guest2=... is added."""
    return [guest.config(nat=True, **more.get(guest.name, {})) for guest in site.guests]


# -- NAT

def test_guests_reach_the_internet_behind_the_hosts_address(site):
    site.start(*nat_pair(site))
    site.echo_internet()
    for guest in site.guests:
        for kind in (TCP, UDP):
            assert ask(guest.namespace, FAR4, 7, kind) == ["internet", "7", HOST4]
            assert ask(guest.namespace, FAR6, 7, kind) == ["internet", "7", HOST6]
        assert guest.namespace.ping(FAR4)
        assert guest.namespace.ping(FAR6)


def test_without_nat_nothing_is_forwarded(site):
    before = site.host_state()["switches"]
    site.start()
    site.echo_internet()
    assert site.host_state()["switches"] == before
    assert refusal(site.guests[0].namespace, FAR4, 7) == "silence"


def test_nobody_outside_reaches_a_guest_behind_nat_by_its_address(site):
    site.start(*nat_pair(site))
    one = site.guests[0]
    site.echo_guests(9, kinds=(TCP,))
    site.internet.run("ip", "route", "add", f"{one.ip4}/32", "via", HOST4)
    site.internet.run("ip", "-6", "route", "add", f"{one.ip6}/128", "via", HOST6)
    for address in (one.ip4, one.ip6):
        assert refusal(site.internet, address, 9) == "silence"
        assert ask(site.host_ns, address, 9)[0] == "guest1"
    assert site.counter("unpublished_guest1") >= 2


def test_guests_do_not_reach_each_other(site):
    site.start(*nat_pair(site))
    site.echo_guests(9)
    one, two = site.guests
    for address in (two.ip4, two.ip6):
        assert prohibited(one.namespace, address, 9)
    assert site.counter("peer_guest1") >= 2


def test_a_guest_with_a_false_source_is_not_heard(site):
    site.start(*nat_pair(site))
    one = site.guests[0]
    for false in ("10.88.1.77", "fd88:1::77"):
        v6 = ":" in false
        one.namespace.run("ip", "addr", "add", f"{false}/{64 if v6 else 24}", "dev", "eth0",
                          *(["nodad"] if v6 else []))
        assert one.namespace.run("ping", "-c1", "-W1", "-I", false,
                                 one.host6 if v6 else one.host4, check=False).returncode != 0
        one.namespace.run("ip", "addr", "del", f"{false}/{64 if v6 else 24}", "dev", "eth0")
    assert one.namespace.ping(one.host4, count=1)
    assert one.namespace.ping(one.host6, count=1)
    assert site.counter("spoofed_guest1") >= 2


def test_the_hosts_loopback_is_out_of_a_guests_reach(site):
    """route_localnet is on for a guest whose ports are published on every address."""
    site.start(*nat_pair(site, guest1={"publish": ["tcp:0.0.0.0:8080=tcp:80"]}))
    one = site.guests[0]
    assert site.sysctl(f"net.ipv4.conf.{one.tap}.route_localnet") == "1"
    site.echo(site.host_ns, "host", "127.0.0.1", 9, UDP)
    # The guest's own loopback must not take the packet first.
    one.namespace.run("ip", "addr", "flush", "dev", "lo")
    one.namespace.run("ip", "rule", "add", "pref", "1", "to", "127.0.0.0/8", "lookup", "99")
    one.namespace.run("ip", "route", "add", "127.0.0.0/8", "via", one.host4, "dev", "eth0",
                      "table", "99")
    one.namespace.run("ip", "rule", "add", "pref", "9", "lookup", "local")
    one.namespace.run("ip", "rule", "del", "pref", "0", check=False)
    one.namespace.run("sysctl", "-q", "-w", "net.ipv4.conf.all.route_localnet=1")
    assert refusal(one.namespace, "127.0.0.1", 9, UDP) == "silence"
    assert site.counter("abuse_guest1") >= 1


# -- publishing

PORTS = {"guest1": {"publish": ["tcp:0.0.0.0:8080=tcp:80", "tcp:[::]:8080=tcp:80",
                                "udp:0.0.0.0:8053=udp:53", "udp:[::]:8053=udp:53",
                                "tcp:0.0.0.0:9000-9003=tcp:9500", f"tcp:{HOST4}:7000=tcp:80",
                                "udp:[::]:9100-9102=udp:9100"]},
         "guest2": {"publish": ["tcp:0.0.0.0:8081=tcp:80", "tcp:127.0.0.1:8082=tcp:80"]}}


@pytest.fixture
def published(site):
    site.start(*nat_pair(site, **PORTS))
    site.echo_guests(80, kinds=(TCP,))
    site.echo_guests(53, kinds=(UDP,))
    return site


def test_publish_keeps_an_outside_clients_address(published):
    assert ask(published.internet, HOST4, 8080) == ["guest1", "80", INTERNET4]
    assert ask(published.internet, HOST6, 8080) == ["guest1", "80", INTERNET6]
    assert ask(published.internet, HOST4, 8080, source=FAR4) == ["guest1", "80", FAR4]
    assert ask(published.internet, HOST4, 8053, UDP) == ["guest1", "53", INTERNET4]
    assert ask(published.internet, HOST6, 8053, UDP) == ["guest1", "53", INTERNET6]
    assert ask(published.internet, HOST4, 8081) == ["guest2", "80", INTERNET4]
    assert ask(published.internet, HOST4, 7000) == ["guest1", "80", INTERNET4]
    assert refusal(published.internet, HOST6, 8081) == "ECONNREFUSED"
    assert refusal(published.internet, HOST4, 80) == "ECONNREFUSED"


def test_publish_ranges_keep_their_order(published):
    one = published.guests[0]
    for port in (9500, 9501, 9503):
        published.echo(one.namespace, "guest1", "0.0.0.0", port)
    published.echo(one.namespace, "guest1", "::", 9102, UDP)
    for outside, inside in ((9000, "9500"), (9001, "9501"), (9003, "9503")):
        for _ in range(3):
            assert ask(published.internet, HOST4, outside)[1] == inside
    assert ask(published.internet, HOST6, 9102, UDP)[1] == "9102"


def test_publish_serves_local_clients(published):
    one = published.guests[0]
    host = published.host_ns
    assert ask(host, HOST4, 8080) == ["guest1", "80", HOST4]
    assert ask(host, HOST6, 8080) == ["guest1", "80", HOST6]
    assert ask(host, "127.0.0.1", 8080) == ["guest1", "80", one.host4]
    assert ask(host, "127.0.0.1", 8053, UDP) == ["guest1", "53", one.host4]
    assert ask(host, HOST6, 8053, UDP) == ["guest1", "53", HOST6]
    assert ask(host, "127.0.0.1", 8082)[0] == "guest2"
    assert refusal(host, HOST4, 8082) == "ECONNREFUSED"
    assert refusal(host, "::1", 8080) == "ECONNREFUSED"


def test_a_port_published_on_loopback_is_not_open_to_the_neighbours(published):
    """DNAT comes before the kernel refuses loopback addresses that arrive from outside."""
    published.internet.run("ip", "rule", "add", "pref", "1", "to", "127.0.0.0/8", "lookup", "99")
    published.internet.run("ip", "route", "add", "127.0.0.0/8", "via", HOST4, "dev", "net0",
                           "table", "99")
    published.internet.run("ip", "rule", "add", "pref", "9", "lookup", "local")
    published.internet.run("ip", "rule", "del", "pref", "0")
    published.internet.run("sysctl", "-q", "-w", "net.ipv4.conf.all.route_localnet=1")
    assert refusal(published.internet, "127.0.0.1", 8082) == "silence"
    assert refusal(published.internet, "127.0.0.1", 8080) == "silence"


def test_publish_serves_guests_too(published):
    """By the host's address, to the guest itself and to the other one."""
    one, two = published.guests
    assert ask(one.namespace, HOST4, 8080)[:2] == ["guest1", "80"]
    assert ask(one.namespace, HOST6, 8080)[:2] == ["guest1", "80"]
    assert ask(two.namespace, HOST4, 8080)[:2] == ["guest1", "80"]
    assert ask(two.namespace, HOST6, 8080)[:2] == ["guest1", "80"]
    assert ask(two.namespace, HOST4, 8053, UDP)[:2] == ["guest1", "53"]
    assert ask(two.namespace, one.host4, 8080)[:2] == ["guest1", "80"]
    assert prohibited(two.namespace, one.ip4, 80)


def test_flags_alone_are_enough(site):
    one = site.guests[0]
    site.start_host_with(
        "--listen", f"unix:{one.socket}", "--tap", one.tap, "--address", f"{one.host4}/24",
        "--address", f"{one.host6}/64", "--guest-address", f"{one.ip4}/24", "--guest-address",
        f"{one.ip6}/64", "--nat", "--publish", "tcp:0.0.0.0:8080=tcp:80", "--state-directory",
        site.state_directory)
    site.start_guests([one])
    site.echo_internet(kinds=(TCP,))
    site.echo_guests(80, kinds=(TCP,))
    assert ask(one.namespace, FAR4, 7) == ["internet", "7", HOST4]
    assert ask(one.namespace, FAR6, 7) == ["internet", "7", HOST6]
    assert ask(site.internet, HOST4, 8080) == ["guest1", "80", INTERNET4]


# -- egress

@pytest.mark.parametrize("address", [METADATA4, METADATA6])
def test_metadata_is_denied_unless_allowed(site, address):
    site.start(*nat_pair(site, guest2={"egress": {"allow": ["metadata"]}}))
    site.echo_internet(kinds=(TCP,))
    site.echo_internet(80, kinds=(TCP,))
    one, two = site.guests
    assert prohibited(one.namespace, address, 80)
    assert site.counter("metadata_guest1") >= 1
    assert ask(two.namespace, address, 80)[0] == "internet"
    assert ask(one.namespace, FAR4, 7)[0] == "internet"


def test_metadata_on_the_host_itself_is_denied_too(site):
    site.host_ns.run("ip", "addr", "add", f"{METADATA4}/32", "dev", "lo")
    site.start(*nat_pair(site))
    site.echo(site.host_ns, "host", METADATA4, 80)
    assert prohibited(site.guests[0].namespace, METADATA4, 80)


def test_private_networks_are_denied_in_one_word(site):
    site.start(*nat_pair(site, guest1={"egress": {"deny": ["private"]}}))
    site.echo_internet(kinds=(TCP,))
    site.echo(site.host_ns, "host", "0.0.0.0", 8, TCP)
    site.echo(site.host_ns, "host", "::", 8, TCP)
    one, two = site.guests
    for address in (PRIVATE4, PRIVATE6):
        assert prohibited(one.namespace, address, 7)
        assert ask(two.namespace, address, 7)[0] == "internet"
    for address in (one.host4, one.host6):  # the host's own services
        assert prohibited(one.namespace, address, 8)
    assert ask(two.namespace, two.host4, 8)[0] == "host"
    for address in (FAR4, FAR6):
        assert ask(one.namespace, address, 7)[0] == "internet"
    assert site.counter("egress_guest1") >= 4


def test_deny_by_default_allows_what_is_listed(site):
    allow = [f"tcp:{FAR4}:7", f"udp:[{FAR6}]:7", "tcp:10.99.0.0/16:5-9", f"tcp:{HOST4}:8090"]
    site.start(*nat_pair(site, guest1={"egress": {"default": "deny", "allow": allow},
                                       "publish": ["tcp:0.0.0.0:8080=tcp:80",
                                                   "tcp:0.0.0.0:8090=tcp:80"]}))
    site.echo_internet()
    site.echo_internet(70, kinds=(TCP,))
    site.echo_guests(80, kinds=(TCP,))
    site.echo(site.host_ns, "host", "0.0.0.0", 8, TCP)
    one = site.guests[0].namespace
    assert ask(one, FAR4, 7)[0] == "internet"
    assert ask(one, FAR6, 7, UDP)[0] == "internet"
    assert ask(one, PRIVATE4, 7)[0] == "internet"
    for address, port, kind in ((FAR4, 70, TCP), (FAR4, 7, UDP), (FAR6, 7, TCP),
                                (PRIVATE4, 70, TCP), (INTERNET4, 7, TCP), (INTERNET6, 7, TCP),
                                (HOST4, 8, TCP)):
        assert prohibited(one, address, port, kind), (address, port)
    assert not one.ping(FAR4, count=1)
    # Answers to what came in pass, and so do neighbours.
    assert ask(site.internet, HOST4, 8080) == ["guest1", "80", INTERNET4]
    # For a published port what was dialed counts, not where DNAT leads.
    # Refused by silence at times: a packet that leaves as it came makes the kernel count an ICMP
    # redirect against the same limit as the refusal (ip_rt_send_redirect()).
    assert refusal(one, HOST4, 8080) in ("silence", "EHOSTUNREACH", "EACCES")
    assert ask(one, HOST4, 8090)[0] == "guest1"


def test_deny_terms_with_ports(site):
    site.start(*nat_pair(site, guest1={"egress": {"allow": [f"tcp:{FAR4}:25"],
                                                  "deny": ["tcp:any:25", "udp:any:1-100"]}}))
    site.echo_internet()
    site.echo_internet(25, kinds=(TCP,))
    one = site.guests[0].namespace
    assert ask(one, FAR4, 25)[0] == "internet"
    assert ask(one, FAR4, 7)[0] == "internet"
    for address, port, kind in ((INTERNET4, 25, TCP), (FAR6, 25, TCP), (FAR4, 7, UDP),
                                (FAR6, 7, UDP)):
        assert prohibited(one, address, port, kind), (address, port)


# -- coming and going

def test_all_is_as_before_after_the_stop(site):
    site.load(FOREIGN_TABLE)
    site.set_sysctl("net.ipv4.conf.all.accept_redirects", 0)
    site.set_sysctl(f"net.ipv6.conf.{UPLINK}.accept_ra", 1)
    before = site.host_state()
    site.start(*nat_pair(site, **PORTS))
    during = site.host_state()
    assert "causeway_site" in site.tables()
    assert site.sysctl("net.ipv4.ip_forward") == site.sysctl("net.ipv6.conf.all.forwarding") == "1"
    assert site.sysctl(f"net.ipv6.conf.{UPLINK}.accept_ra") == "2"
    # The rest of the ruleset is there word for word.
    assert before["ruleset"] in during["ruleset"]
    code, _ = site.host.terminate(5 * SLOW)
    assert code == 0
    wait_until(lambda: "causeway_site" not in site.tables(), "the table is gone")
    wait_until(lambda: site.host_state() == before, "the host is as before")


def test_foreign_rules_keep_working(site):
    site.load(FOREIGN_TABLE)
    site.echo(site.host_ns, "ssh", "0.0.0.0", 22)
    site.start(*nat_pair(site, guest1={"publish": ["tcp:0.0.0.0:2222=tcp:80"]}))
    site.echo_guests(80, kinds=(TCP,))
    # Their redirection of the same port comes first.
    assert ask(site.internet, HOST4, 2222)[0] == "ssh"
    assert site.host_ns.run("nft", "list", "table", "inet", "cwforeign").stdout in site.ruleset()


def test_what_was_on_before_stays_on(site):
    site.set_sysctl("net.ipv4.ip_forward", 1)
    site.set_sysctl("net.ipv6.conf.all.forwarding", 1)
    before = site.host_state()
    site.start(*nat_pair(site))
    site.host.terminate(5 * SLOW)
    wait_until(lambda: site.host_state() == before, "the host is as before")


def test_start_stop_start_gives_the_same_rules(site):
    before = site.host_state()
    seen = []
    for _ in range(2):
        site.start_host(*nat_pair(site, **PORTS))
        seen.append(site.host_ns.run("nft", "-s", "list", "ruleset").stdout)
        assert site.host.terminate(5 * SLOW)[0] == 0
        wait_until(lambda: site.host_state() == before, "the host is as before")
    assert seen[0] == seen[1] != ""


def test_a_second_start_fails_and_leaves_the_first_alone(site):
    site.start(*nat_pair(site, **PORTS))
    site.echo_internet(kinds=(TCP,))
    ruleset = site.host_ns.run("nft", "-s", "list", "ruleset").stdout
    result = site.run_host("--config", site.directory / "host.json")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) >= 1
    assert site.host_ns.run("nft", "-s", "list", "ruleset").stdout == ruleset
    assert ask(site.guests[0].namespace, FAR4, 7)[0] == "internet"


def test_kill_of_the_program_takes_everything_away(site):
    """The privileged process sees its end and cleans up."""
    before = site.host_state()
    site.start(*nat_pair(site, **PORTS))
    site.host.kill9()
    wait_until(lambda: site.host_state() == before, "the host is as before", 10 * SLOW)


def test_start_after_all_was_killed(site):
    before = site.host_state()
    site.start_host(*nat_pair(site, **PORTS))
    rules = site.host_ns.run("nft", "-s", "list", "ruleset").stdout
    site.kill_host()
    assert "causeway_site" in site.tables()
    assert site.sysctl("net.ipv4.ip_forward") == "1"

    site.start(*nat_pair(site, **PORTS))
    site.echo_internet(kinds=(TCP,))
    assert site.host_ns.run("nft", "-s", "list", "ruleset").stdout == rules
    assert ask(site.guests[0].namespace, FAR4, 7)[0] == "internet"
    assert site.host.terminate(5 * SLOW)[0] == 0
    wait_until(lambda: site.host_state() == before, "the host is as before")


def test_cleanup_after_all_was_killed(site):
    before = site.host_state()
    site.start_host(*nat_pair(site, **PORTS))
    site.kill_host()
    for _ in range(2):
        result = site.run_host("--config", site.directory / "host.json", "--cleanup")
        assert result.returncode == 0, result.stderr
        assert site.host_state() == before


def test_reload_replaces_the_rules(site):
    one = site.guests[0]
    site.start(*nat_pair(site, guest1={"publish": ["tcp:0.0.0.0:8080=tcp:80"]}))
    site.echo_guests(80, kinds=(TCP,))
    assert ask(site.internet, HOST4, 8080)[0] == "guest1"
    site.configuration(nat_pair(site, guest1={"publish": ["tcp:0.0.0.0:8090=tcp:80"],
                                              "egress": {"default": "deny"}}))
    site.host.signal(signal.SIGHUP)
    wait_until(lambda: ask(site.internet, HOST4, 8090)[0] == "guest1", "the new port answers",
               10 * SLOW)
    assert refusal(site.internet, HOST4, 8080) == "ECONNREFUSED"
    assert prohibited(one.namespace, FAR4, 7)


def test_missing_nft_is_one_clear_error(site):
    before = site.host_state()
    path = site.configuration(nat_pair(site))
    result = site.run_host("--config", path, wrap=without_nft([]))
    if result.returncode == 77:
        pytest.skip("nft cannot be hidden here")
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if "nftables" in line]
    assert len(lines) == 1, result.stderr
    assert site.host_state() == before


def test_a_bad_combination_is_refused_before_anything_is_done(site):
    before = site.host_state()
    one, two = site.guests
    for entries, word in (
            ([one.config(bridge="br0", publish=["tcp:0.0.0.0:1=tcp:1"])], "bridge"),
            ([one.config(publish=["tcp:0.0.0.0:1=tcp:1"]),
              two.config(publish=["tcp:0.0.0.0:1=tcp:2"])], "takes ports"),
            ([one.config(guest_address=[], publish=["tcp:0.0.0.0:1=tcp:1"])], "address")):
        result = site.run_host("--config", site.configuration(entries))
        assert result.returncode == 1, result.stderr
        assert word in result.stderr
    assert site.host_state() == before
