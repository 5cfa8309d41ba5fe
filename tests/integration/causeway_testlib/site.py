# SPDX-License-Identifier: Apache-2.0
"""An internet, a host and two guests, each in its namespace.

    internet --veth-- host ==helper== guest1
                           ==helper== guest2

The internet has no route to the guests' networks: what they send reaches it and comes back through
the host's NAT only. Echo servers answer with the address that they saw, so that a test can tell
whether a client's address was kept.
"""

import contextlib
import ctypes
import errno
import json
import os
import pathlib
import re
import shutil
import socket
import tempfile
import threading

from .namespaces import Namespace, _without_times
from .programs import Program, SLOW, program_path
from .waiting import wait_until

UPLINK = "up0"
HOST4, HOST6 = "192.0.2.2", "2001:db8::2"
INTERNET4, INTERNET6 = "192.0.2.1", "2001:db8::1"
# Further addresses of the internet's: a stranger, a private network, the metadata services.
FAR4, FAR6 = "198.51.100.7", "2001:db8:7::7"
PRIVATE4, PRIVATE6 = "10.99.0.1", "fd99::1"
METADATA4, METADATA6 = "169.254.169.254", "fd00:ec2::254"
INTERNET_MORE = (FAR4, FAR6, PRIVATE4, PRIVATE6, METADATA4, METADATA6)
TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM
FOREIGN_TABLE = """
table inet cwforeign {
  set wanted { type inet_service; elements = { 22, 80 } }
  counter seen { packets 7 bytes 700 }
  chain prerouting { type nat hook prerouting priority dstnat; tcp dport 2222 redirect to :22; }
  chain forward {
    type filter hook forward priority filter; policy accept;
    tcp dport @wanted accept
  }
  chain postrouting { type nat hook postrouting priority srcnat; oifname "nosuch0" masquerade; }
}
table ip cwforeign4 {
  chain forward {
    type filter hook forward priority filter; policy accept;
    ip daddr 203.0.113.9 drop
  }
}
"""

_libc = ctypes.CDLL(None, use_errno=True)


def socket_in(namespace, address, kind):
    """A socket of the address's family that lives in the namespace; the caller stays outside."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with open("/proc/thread-self/ns/net", encoding="ascii") as own, \
            open(f"/run/netns/{namespace.name}", encoding="ascii") as inside:
        assert _libc.setns(inside.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
        try:
            return socket.socket(family, kind)
        finally:
            assert _libc.setns(own.fileno(), 0) == 0


class Echo:
    """Answers each connection, or datagram, with a name, its own port and the client's address."""

    def __init__(self, namespace, name, address, port, kind=TCP):
        self.name = name
        self._kind = kind
        self._socket = socket_in(namespace, address, kind)
        if ":" in address:
            self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((address, port))
        if kind == TCP:
            self._socket.listen(16)
        self._port = port
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                if self._kind == TCP:
                    stream, peer = self._socket.accept()
                    with stream:
                        stream.sendall(f"{self.name} {self._port} {peer[0]}".encode())
                else:
                    _, peer = self._socket.recvfrom(2048)
                    if peer is None:  # shut down
                        return
                    self._socket.sendto(f"{self.name} {self._port} {peer[0]}".encode(), peer)
            except ConnectionError:
                continue
            except OSError:
                return

    def close(self):
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def ask(namespace, address, port, kind=TCP, source=None, timeout=3.0):
    """The answer of the echo server that is reached there: [name, port, the client's address]."""
    with socket_in(namespace, address, kind) as client:
        client.settimeout(timeout * SLOW)
        if source:
            client.bind((source, 0))
        client.connect((address, port))
        if kind == UDP:
            client.send(b"?")
        answer = client.recv(2048).decode().split()
        assert len(answer) == 3, f"no answer from {address}:{port}"
        return answer


def refusal(namespace, address, port, kind=TCP, timeout=0.7):
    """How an attempt fails: an errno's name, or "silence". AssertionError if it does not."""
    with socket_in(namespace, address, kind) as client:
        client.settimeout(timeout * SLOW)
        try:
            client.connect((address, port))
            if kind == UDP:
                client.send(b"?")
            answer = client.recv(2048)
        except TimeoutError:
            return "silence"
        except OSError as error:
            return errno.errorcode[error.errno]
        raise AssertionError(f"{address}:{port} answers: {answer!r}")


def prohibited(namespace, address, port, kind=TCP):
    """Whether the attempt is answered by ICMP "administratively prohibited", v4 or v6.

    The answer to a first SYN may find the socket busy and be lost; the one to the second counts.
    """
    return refusal(namespace, address, port, kind, timeout=4) in ("EHOSTUNREACH", "EACCES")


class Guest:
    """What is known about one guest before anything runs."""

    def __init__(self, number, directory):
        self.number = number
        self.name = f"guest{number}"
        self.tap = f"cw-g{number}"
        self.host4, self.host6 = f"10.88.{number}.1", f"fd88:{number}::1"
        self.ip4, self.ip6 = f"10.88.{number}.2", f"fd88:{number}::2"
        self.socket = directory / f"wire{number}"
        self.namespace = None
        self.program = None

    def config(self, **more):
        """Its entry in the configuration; `more` adds to it or replaces."""
        return {"name": self.name, "listen": f"unix:{self.socket}", "tap": self.tap,
                "address": [f"{self.host4}/24", f"{self.host6}/64"],
                "guest_address": [f"{self.ip4}/24", f"{self.ip6}/64"], **more}


class Site:
    """A context; at its end programs and namespaces go. `problems` then says what went wrong."""

    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="cwtest-"))
        self.state_directory = self.directory / "state"
        self.guests = [Guest(1, self.directory), Guest(2, self.directory)]
        self.problems = []
        self.host = None
        self._echoes = []
        self._processes = []
        self._spaces = []
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _space(self, label):
        self._spaces.append(Namespace(label))
        return self._spaces[-1]

    def _make(self):
        self.internet = self._space("inet")
        self.host_ns = self._space("host")
        for guest in self.guests:
            guest.namespace = self._space(f"g{guest.number}")
        self.internet.run("ip", "link", "add", "net0", "type", "veth", "peer", "name", UPLINK,
                          "netns", self.host_ns.name)
        for namespace, link, v4, v6 in ((self.internet, "net0", INTERNET4, INTERNET6),
                                        (self.host_ns, UPLINK, HOST4, HOST6)):
            namespace.run("ip", "link", "set", link, "up")
            namespace.run("ip", "address", "add", f"{v4}/24", "dev", link)
            namespace.run("ip", "address", "add", f"{v6}/64", "dev", link, "nodad")
        for address in INTERNET_MORE:
            self.internet.run("ip", "address", "add", f"{address}/{128 if ':' in address else 32}",
                              "dev", "lo", *(["nodad"] if ":" in address else []))
        self.host_ns.run("ip", "route", "add", "default", "via", INTERNET4)
        self.host_ns.run("ip", "-6", "route", "add", "default", "via", INTERNET6)

        def settled():
            """Link-local addresses included: until then the first packets may be lost."""
            return "tentative" not in self.host_ns.run("ip", "addr").stdout + \
                self.internet.run("ip", "addr").stdout

        wait_until(settled, "the site's addresses are usable")

    # -- servers

    def echo(self, namespace, name, address, port, kind=TCP):
        self._echoes.append(Echo(namespace, name, address, port, kind))
        return self._echoes[-1]

    def echo_internet(self, port=7, kinds=(TCP, UDP)):
        """On each address by itself: a datagram's answer has to come from where it was sent."""
        for kind in kinds:
            for address in (INTERNET4, INTERNET6, *INTERNET_MORE):
                self.echo(self.internet, "internet", address, port, kind)

    def echo_guests(self, port, kinds=(TCP, UDP)):
        for guest in self.guests:
            for kind in kinds:
                self.echo(guest.namespace, guest.name, "0.0.0.0", port, kind)
                self.echo(guest.namespace, guest.name, "::", port, kind)

    # -- programs

    def configuration(self, entries, **more):
        path = self.directory / "host.json"
        whole = {"instance": "site", "state_directory": str(self.state_directory),
                 "guests": entries, **more}
        path.write_text(json.dumps(whole, indent=1), encoding="utf-8")
        return path

    def start_host(self, *entries, **more):
        """Starts the helper with these guests (Guest.config()); without any, with both, plain."""
        path = self.configuration(list(entries or (g.config() for g in self.guests)), **more)
        return self.start_host_with("--config", path)

    def start_host_with(self, *arguments):
        self.host = Program(self.host_ns, "causeway-host", [str(a) for a in arguments],
                            self.directory / "host.admin", self.directory / "host.log")
        self._processes.append(self.host)
        return self.host

    def start_guests(self, guests=None):
        for guest in guests or self.guests:
            guest.program = Program(
                guest.namespace, "causeway-guest",
                ["--connect", f"unix:{guest.socket}", "--tap", "eth0",
                 "--address", f"{guest.ip4}/24", "--address", f"{guest.ip6}/64",
                 "--gateway", guest.host4],
                self.directory / f"{guest.name}.admin", self.directory / f"{guest.name}.log")
            self._processes.append(guest.program)
            guest.namespace.run("ip", "-6", "route", "replace", "default", "via", guest.host6,
                                "dev", "eth0")
        for guest in guests or self.guests:
            self.wait_guest(guest)

    def wait_guest(self, guest):
        """Until frames pass both ways, neighbours are known and no address is tentative."""
        guest.program.wait_state("up")

        def usable():
            assert "tentative" not in guest.namespace.run("ip", "addr").stdout
            assert "tentative" not in self.host_ns.run("ip", "addr").stdout
            return self.host_ns.ping(guest.ip4, count=1) and self.host_ns.ping(guest.ip6, count=1)

        wait_until(usable, f"{guest.name} is on its network", 10 * SLOW)

    def start(self, *entries, **more):
        self.start_host(*entries, **more)
        self.start_guests()
        return self.host

    def run_host(self, *arguments, wrap=(), timeout=30):
        """Runs the helper to its end; the result of subprocess.run()."""
        return self.host_ns.run(*wrap, program_path("causeway-host"), *arguments, check=False,
                                timeout=timeout * SLOW)

    def adopt(self, process):
        self._processes.append(process)
        return process

    def kill_host(self):
        """Kills every process of the helper at once, as the kernel's memory killer might."""
        family = descendants(self.host.pid)
        for pid in family[1:]:
            os.kill(pid, 9)
        self.host.kill9()
        wait_until(lambda: not any(alive(pid) for pid in family), "all of the helper is gone")

    # -- what the host looks like

    def ruleset(self):
        return self.host_ns.run("nft", "list", "ruleset").stdout

    def tables(self):
        return [line.split()[-1] for line in self.host_ns.run("nft", "list", "tables")
                .stdout.splitlines()]

    def counter(self, name):
        """Packets that a counter of the helper's has seen."""
        shown = self.host_ns.run("nft", "list", "counter", "inet", "causeway_site", name).stdout
        return int(re.search(r"packets (\d+)", shown).group(1))

    def load(self, script):
        path = self.directory / "load.nft"
        path.write_text(script, encoding="ascii")
        self.host_ns.run("nft", "-f", path)

    def sysctl(self, key):
        return self.host_ns.run("sysctl", "-n", key).stdout.strip()

    def set_sysctl(self, key, value):
        self.host_ns.run("sysctl", "-q", "-w", f"{key}={value}")

    def host_state(self):
        """Everything that the helper may change and has to put back; its TAPs left out."""
        switches = self.host_ns.run("sysctl", "-a", "-r",
                                    r"^net\.ipv[46]\.(ip_forward$|conf\..*\.(forwarding|accept_ra|"
                                    r"route_localnet|accept_redirects|rp_filter|proxy_arp)$)")
        return {
            "ruleset": self.ruleset(),
            "addresses": _without_times(json.loads(self.host_ns.run("ip", "-j", "addr").stdout)),
            "routes": json.loads(self.host_ns.run("ip", "-j", "route").stdout or "[]"),
            "routes6": json.loads(self.host_ns.run("ip", "-6", "-j", "route").stdout or "[]"),
            "switches": [line for line in switches.stdout.splitlines()
                         if not any(f".{guest.tap}." in line for guest in self.guests)],
            "state": sorted(p.name for p in self.state_directory.glob("*")),
        }

    def close(self):
        for process in reversed(self._processes):
            try:
                problem = process.end()
            except OSError as error:
                problem = repr(error)
            if problem:
                self.problems.append(problem)
        self._processes.clear()
        for echo in self._echoes:
            echo.close()
        self._echoes.clear()
        for space in self._spaces:
            space.remove()
        self._spaces.clear()
        shutil.rmtree(self.directory, ignore_errors=True)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descendants(pid):
    """The process and all below it, parents first."""
    found = [pid]
    for parent in found:
        for task in pathlib.Path(f"/proc/{parent}/task").glob("*"):
            with contextlib.suppress(OSError):
                children = (task / "children").read_text(encoding="ascii")
                found.extend(int(child) for child in children.split())
    return found


def without_nft(command):
    """The command line that runs command where nft is missing.

    `ip netns exec` has given the process a mount namespace of its own, so this is seen by it alone.
    """
    hide = ("for f in /usr/sbin/nft /usr/bin/nft; do if [ -e $f ]; then "
            "mount --bind /dev/null $f || exit 77; fi; done; exec \"$@\"")
    return ["sh", "-c", hide, "sh", *command]

