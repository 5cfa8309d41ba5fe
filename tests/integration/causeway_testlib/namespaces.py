# SPDX-License-Identifier: Apache-2.0
"""Network namespaces with unique names, and what the machine's own namespace looks like."""

import atexit
import ctypes
import itertools
import json
import os
import socket
import subprocess

_PREFIX = "cwtest"
_numbers = itertools.count()
_alive = []
_libc = ctypes.CDLL(None, use_errno=True)


def _run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=30)


class Namespace:
    """One network namespace named for this process; remove() is safe to call twice."""

    def __init__(self, label):
        self.name = f"{_PREFIX}-{os.getpid()}-{next(_numbers)}-{label}"
        _run("ip", "netns", "add", self.name)
        _alive.append(self)
        self.run("ip", "link", "set", "lo", "up")

    def command(self, *words):
        """The command line that runs words inside; `ip netns exec` execs, so the pid stays."""
        return ["ip", "netns", "exec", self.name, *map(str, words)]

    def run(self, *words, check=True, timeout=30):
        return subprocess.run(self.command(*words), check=check, capture_output=True, text=True,
                              timeout=timeout)

    def links(self):
        """Interfaces by name, as `ip -j addr` shows them."""
        return {link["ifname"]: link for link in json.loads(self.run("ip", "-j", "addr").stdout)}

    def tx_dropped(self, name):
        shown = json.loads(self.run("ip", "-j", "-s", "link", "show", name).stdout)
        return shown[0]["stats64"]["tx"]["dropped"]

    def ping(self, address, count=3):
        """True when every echo request is answered."""
        return self.run("ping", "-q", "-c", str(count), "-i", "0.05", "-W", "2", address,
                        check=False).returncode == 0

    def socket(self, kind=socket.SOCK_STREAM):
        """An IPv4 socket that lives inside, for this process to use: it stays where it was made."""
        with open("/proc/self/ns/net", encoding="ascii") as own, \
                open(f"/run/netns/{self.name}", encoding="ascii") as inside:
            assert _libc.setns(inside.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
            try:
                return socket.socket(socket.AF_INET, kind)
            finally:
                assert _libc.setns(own.fileno(), 0) == 0

    def remove(self):
        if self in _alive:
            _alive.remove(self)
            _run("ip", "netns", "delete", self.name, check=False)


@atexit.register
def remove_all():
    for namespace in list(_alive):
        namespace.remove()


def names():
    return {line.split()[0] for line in _run("ip", "netns", "list").stdout.splitlines() if line}


def remove_stale():
    """Removes what a test run that was killed outright left; a live run's names stay."""
    for name in names():
        parts = name.split("-")
        if parts[0] == _PREFIX and len(parts) > 2 and not os.path.exists(f"/proc/{parts[1]}"):
            _run("ip", "netns", "delete", name, check=False)


def _without_times(node):
    """Drops the life times of addresses, which count down by themselves."""
    if isinstance(node, dict):
        return {key: _without_times(value) for key, value in node.items()
                if key not in ("valid_life_time", "preferred_life_time")}
    return [_without_times(item) for item in node] if isinstance(node, list) else node


def machine_state():
    """Interfaces, addresses, routes and rules of the namespace that the tests run from."""
    state = {what: _without_times(json.loads(_run("ip", "-j", *what.split()).stdout or "[]"))
             for what in ("link", "addr", "route show table all", "-6 route show table all")}
    state["nft"] = _run("nft", "list", "ruleset", check=False).stdout
    with open("/proc/sys/net/ipv4/ip_forward", encoding="ascii") as file:
        state["ip_forward"] = file.read()
    return state
