# SPDX-License-Identifier: Apache-2.0
"""The gateway in a namespace with an origin; fixtures for its tests (import `place` and `site`)."""

import json
import os
import pathlib
import shutil
import tempfile

import pytest

from . import hello
from .admin import Admin
from .gateway_client import Client, dial
from .namespaces import Namespace
from .origin import Origin
from .programs import Process, SLOW, program_path
from .waiting import wait_until

NAME = "causeway-gateway"
GATE = 64 * 1024

# How a relay moves to splice, and on what the connections are spread.
ARMS = {
    "buffered": ["--splice-after", "off"],
    "at_once": ["--splice-after", "0B"],
    "by_bytes": ["--splice-after", "64KiB"],
    "by_time": ["--splice-after", "off", "--splice-after-time", "200ms"],
}
MODELS = ["per_core", "shared"]

ONE, TWO, THREE = "tcp:127.0.0.1:9001", "tcp:127.0.0.1:9002", "tcp:127.0.0.1:9003"
REFUSING = "tcp:127.0.0.1:9"  # nobody listens there
NAMED, NAMED_TOO = "10.99.0.1", "10.99.0.2"  # where a DNS name may lead
SILENT = "tcp:10.99.0.200:9001"  # never answers


def _missing():
    if os.geteuid() != 0:
        return "needs root: the tests make network namespaces"
    if not program_path(NAME).exists():
        return f"{program_path(NAME)} is not built"
    return None


class Gateway(Process):
    """A running gateway: comes back when its admin socket answers."""

    def __init__(self, place, arguments, label, port, wrap=()):
        self.place, self.port = place, port
        self.admin = Admin(place.directory / f"{label}.admin", timeout=5.0 * SLOW)
        self.clients = []
        self.settles = True  # checked when the test is over
        super().__init__(place.namespace,
                         [*wrap, program_path(NAME), *arguments, "--admin",
                          f"unix:{self.admin.path}"],
                         place.directory / f"{label}.log")
        self.name = NAME

        def answers():
            return not self.running() or self.admin.status()["pid"] == self.pid

        wait_until(answers, f"{NAME} answers on its admin socket", 10 * SLOW)
        if not self.running():
            raise RuntimeError(f"{NAME} ended with {self.returncode()}: {self.log()[-2000:]}")

    # -- clients

    def dial(self, address=None, **more):
        """A connected stream; it is closed when the test is over, at the latest."""
        stream = dial(self.place.namespace, address or ("127.0.0.1", self.port), **more)
        self.clients.append(stream)
        return stream

    def connect(self, name="a.test", address=None, first=b"", receive_buffer=None, source=None,
                **options):
        """A client that has sent its ClientHello, with the bytes `first` in front."""
        stream = self.dial(address, receive_buffer=receive_buffer, source=source)
        stream.sendall(first + hello.hello(name, **options))
        return Client(stream)

    # -- what it says and holds

    def status(self):
        return self.admin.status()

    def ended(self, reason):
        return self.status()["ended"][reason]

    def counter(self, name):
        return self.status()["counters"][name]

    def active(self):
        return self.status()["connections"]["active"]

    def route(self, label):
        (found,) = [r for r in self.status()["routes"] if r["label"] == label]
        return found

    def upstream(self, label, index=0):
        return self.route(label)["upstreams"][index]

    def wait_ended(self, reason, count=1, timeout=10.0):
        wait_until(lambda: self.ended(reason) >= count, f"{count} connection(s) ended: {reason}",
                   timeout * SLOW)
        assert self.ended(reason) == count

    def wait_active(self, count, timeout=10.0):
        wait_until(lambda: self.active() == count, f"{count} connections are active",
                   timeout * SLOW)

    def descriptors(self):
        """Where each open descriptor leads: "socket:[1]", "pipe:[2]", a path."""
        found = []
        for entry in pathlib.Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                found.append(os.readlink(entry))
            except FileNotFoundError:
                pass
        return found

    def pipes(self):
        """Pipes (of two descriptors) that it holds."""
        return len({d for d in self.descriptors() if d.startswith("pipe:")})

    def rss(self):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as status:
            (line,) = [line for line in status if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024

    def settle(self):
        """Closes every client: each accepted connection has then ended once, for one reason."""
        for stream in self.clients:
            stream.close()
        self.clients.clear()
        self.wait_active(0, 4)
        now = self.status()
        assert sum(now["ended"].values()) == now["counters"]["accepted"], now
        assert now["ended"]["own_fault"] == 0, now["ended"]
        assert now["pipes"]["in_use"] == 0, now["pipes"]
        for route in now["routes"]:
            assert route["active"] == 0, route
            assert all(upstream["active"] == 0 for upstream in route["upstreams"]), route


class Place:
    """A namespace with an origin, for all tests of a module."""

    def __init__(self):
        # Short on purpose: a unix socket's path has 107 bytes at most.
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="cwtest-"))
        self.namespace = self.origin = None
        self._ports = iter(range(20000, 30000))
        try:
            self.namespace = Namespace("gateway")
            # Addresses beside the loopback; whoever else is asked for in their network is silent.
            self.namespace.run("ip", "tuntap", "add", "cwd0", "mode", "tun")
            for address in (NAMED, NAMED_TOO):
                self.namespace.run("ip", "addr", "add", f"{address}/24", "dev", "cwd0")
            self.namespace.run("ip", "link", "set", "cwd0", "up")
            self.origin = Origin(self.namespace, {
                "one": ONE, "two": TWO, "three": THREE, "v6": "tcp:[::1]:9004",
                "unix": f"unix:{self.directory}/origin",
                "proxy": "proxy,tcp:127.0.0.1:9005", "proxy6": "proxy,tcp:[::1]:9006",
                "reset": "reset,tcp:127.0.0.1:9007", "close": "close,tcp:127.0.0.1:9008",
                "app": "tcp:127.0.0.2:443", "app8443": "tcp:127.0.0.2:8443",
                "named": f"tcp:{NAMED}:9001", "named_too": f"tcp:{NAMED_TOO}:9001",
                "hvsock": f"hvsock,unix:{self.directory}/vm",
                "hvsock_refuse": f"hvsock_refuse,unix:{self.directory}/vm_refuse",
                "hvsock_silent": f"hvsock_silent,unix:{self.directory}/vm_silent",
                "hvsock_garbage": f"hvsock_garbage,unix:{self.directory}/vm_garbage"})
        except BaseException:
            self.close()
            raise

    def port(self):
        return next(self._ports)

    def ask_origin(self, request="stats"):
        with Client(dial(self.namespace, ("127.0.0.1", 9001))) as client:
            return client.json(request)

    def ends(self, kind):
        """What the origin noted of this kind, oldest first."""
        return [end for end in self.ask_origin()["ends"] if end["kind"] == kind]

    def accepted(self, name):
        return self.ask_origin()["accepted"].get(name, 0)

    def close(self):
        if self.origin:
            self.origin.close()
        if self.namespace:
            self.namespace.remove()
        shutil.rmtree(self.directory, ignore_errors=True)


class Site:
    """The gateways of one test, or of a module's tests with the same settings."""

    def __init__(self, place):
        self.place = place
        self.namespace, self.directory = place.namespace, place.directory
        self.gateways = []
        self._adopted = []

    def start(self, *arguments, config=None, port=None, listen=True, route=True, threads=2,
              drain="1s", wrap=()):
        """A gateway on a port of its own, by default with the route a.test to the origin's first
        listener, two workers and a short drain."""
        port = port or self.place.port()
        command = []
        if config is not None:
            command += ["--config", self.configuration(config, port)]
        if listen:
            command += ["--listen", f"tcp:127.0.0.1:{port}"]
        if route and config is None:
            command += ["--passthrough", f"a.test={ONE}"]
        command += ["--threads", str(threads), "--drain", drain, *map(str, arguments)]
        gateway = Gateway(self.place, command, f"g{port}", port, wrap)
        self.gateways.append(gateway)
        return gateway

    def configuration(self, config, port):
        path = self.directory / f"g{port}.json"
        text = config if isinstance(config, str) else json.dumps(config, indent=1)
        path.write_text(text, encoding="utf-8")
        return path

    def run(self, *arguments, wrap=(), timeout=10):
        """Runs the gateway to its end; the result of subprocess.run()."""
        return self.namespace.run(*wrap, program_path(NAME), *arguments, check=False,
                                  timeout=timeout * SLOW)

    def process(self, label, *command):
        """A process of the test's own inside the namespace, ended with the site."""
        process = Process(self.namespace, list(command), self.directory / f"{label}.log")
        self._adopted.append(process)
        return process

    def close(self):
        problems = []
        for gateway in self.gateways:
            try:
                if gateway.running() and gateway.settles:
                    gateway.settle()
            except (AssertionError, OSError, KeyError) as error:
                problems.append(f"{error}\n{gateway.log()[-3000:]}")
            for stream in gateway.clients:
                stream.close()
        for process in self._adopted:
            if process.running():
                process.kill9()
        problems += [problem for gateway in self.gateways if (problem := gateway.end())]
        assert not problems, "\n".join(problems)


def route(*upstreams, names=("a.test",), **more):
    """A route of a configuration file; an upstream is an address or an object."""
    return {"names": list(names), **more,
            "upstreams": [u if isinstance(u, dict) else {"address": u} for u in upstreams]}


@pytest.fixture(scope="module")
def place():
    reason = _missing()
    if reason:
        pytest.skip(reason)
    made = Place()
    yield made
    made.close()


@pytest.fixture
def site(place):
    made = Site(place)
    try:
        yield made
    finally:
        made.close()
