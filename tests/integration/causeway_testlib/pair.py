# SPDX-License-Identifier: Apache-2.0
"""A host and a guest namespace with a helper and a framer joined by a unix stream."""

import pathlib
import shutil
import tempfile

import pytest

from .namespaces import Namespace
from .programs import Program, SLOW
from .waiting import wait_until

HOST_IP = "10.77.0.1"
GUEST_IP = "10.77.0.2"
HOST_TAP = "cwh0"
GUEST_TAP = "cwg0"

# On a test that takes the fixture `pair`: runs it with these wires on both sides.
on_each_wire = pytest.mark.parametrize("pair", ["plain", "native"], indirect=True)
on_plain_and_auto = pytest.mark.parametrize("pair", ["plain", "auto"], indirect=True)


class Pair:
    def __init__(self, wire="plain"):
        self.wire = wire
        # Short on purpose: a unix socket's path has 107 bytes at most.
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="cwtest-"))
        self.host_ns = self.guest_ns = None
        self.host = self.guest = None
        self._processes = []
        try:
            self.host_ns = Namespace("host")
            self.guest_ns = Namespace("guest")
        except BaseException:
            self.close()
            raise

    @property
    def socket(self):
        return self.directory / "wire"

    def host_arguments(self, *more):
        return ["--listen", f"unix:{self.socket}", "--tap", HOST_TAP, "--address", f"{HOST_IP}/24",
                "--wire", self.wire, *more]

    def guest_arguments(self, *more):
        return ["--connect", f"unix:{self.socket}", "--tap", GUEST_TAP,
                "--address", f"{GUEST_IP}/24", "--wire", self.wire, *more]

    def start_host(self, *more):
        self.host = self.start(self.host_ns, "causeway-host", self.host_arguments(*more), "host")
        return self.host

    def start_guest(self, *more):
        self.guest = self.start(self.guest_ns, "causeway-guest", self.guest_arguments(*more),
                                "guest")
        return self.guest

    def start(self, namespace, name, arguments, label):
        program = Program(namespace, name, arguments, self.directory / f"{label}.admin",
                          self.directory / f"{label}.log")
        self._processes.append(program)
        return program

    def adopt(self, process):
        """A process of the test's own that ends with the pair."""
        self._processes.append(process)
        return process

    def start_both(self, host_more=(), guest_more=()):
        self.start_host(*host_more)
        self.start_guest(*guest_more)
        self.wait_up()
        return self

    def wait_up(self, timeout=10.0):
        self.host.wait_state("up", timeout)
        self.guest.wait_state("up", timeout)
        if self.wire != "auto":
            assert self.host.status()["wire"] == self.guest.status()["wire"] == self.wire

    def wait_ping(self, timeout=10.0):
        wait_until(lambda: self.guest_ns.ping(HOST_IP, count=1), "the guest reaches the host",
                   timeout * SLOW)

    def close(self):
        """Ends and removes everything; returns what was wrong with the ends of the programs."""
        problems = []
        for process in reversed(self._processes):
            try:
                problem = process.end()
            except OSError as error:
                problem = repr(error)
            if problem:
                problems.append(problem)
        self._processes.clear()
        for namespace in (self.host_ns, self.guest_ns):
            if namespace:
                namespace.remove()
        shutil.rmtree(self.directory, ignore_errors=True)
        return problems
