# SPDX-License-Identifier: Apache-2.0
"""Where clients connect: every kind of listener, one for each worker or one for all."""

import signal
import time

import pytest

from causeway_testlib.gateway import MODELS, ONE, place, site  # noqa: F401
from causeway_testlib.gateway_client import together
from causeway_testlib.programs import SLOW
from causeway_testlib.waiting import wait_until

MIB = 1 << 20

# Opens a listener as a service manager would, and hands it over as descriptor 7.
INHERIT = ("import os, socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1])));"
           "os.dup2(s.fileno(), 7); os.set_inheritable(7, True);"
           "os.execv(sys.argv[2], sys.argv[2:])")

# Makes setsockopt(SOL_SOCKET, SO_REUSEPORT) fail with ENOPROTOOPT, by a seccomp filter (seccomp(2),
# linux/filter.h), as on a kernel without it.
WITHOUT_REUSEPORT = """
import ctypes, os, platform, struct, sys
number = {"x86_64": 54, "aarch64": 208}[platform.machine()]
load, jump_equal, give = 0x20, 0x15, 0x06
code = [(load, 0, 0, 0), (jump_equal, 0, 5, number), (load, 0, 0, 24), (jump_equal, 0, 3, 1),
        (load, 0, 0, 32), (jump_equal, 0, 1, 15), (give, 0, 0, 0x00050000 | 92),
        (give, 0, 0, 0x7fff0000)]
text = b"".join(struct.pack("HBBI", *step) for step in code)
buffer = ctypes.create_string_buffer(text)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(len(code), ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
    sys.exit(f"no seccomp here: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[1], sys.argv[1:])
"""


def exercise(gateway, address):
    for _ in range(4):
        with gateway.connect(address=address) as client:
            client.get(MIB)
            client.put(MIB)
            client.ask("halfclose", 4096)
            client.end()
            client.expect(4096)
            client.expect_end()
    gateway.wait_ended("orderly", 4)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("kind", ["unix", "tcp6", "fd"])
def test_kinds(site, kind, model):  # noqa: F811
    """Beside the one over IPv4 that every other test uses."""
    port, wrap = site.place.port(), ()
    if kind == "fd":
        text, address = "fd:7", ("127.0.0.1", port)
        wrap = ["/usr/bin/python3", "-c", INHERIT, port]
    elif kind == "unix":
        address = site.directory / f"in{port}"
        text = f"unix:{address}"
    else:
        text, address = f"tcp:[::1]:{port}", ("::1", port)
    gateway = site.start("--listen", text, "--threads-model", model, listen=kind != "fd", port=port,
                         wrap=wrap)
    exercise(gateway, address)
    listeners = gateway.status()["listeners"]
    assert text in [listener["address"] for listener in listeners]
    for listener in listeners:
        own = listener["address"].startswith("tcp:") and model == "per_core"
        assert listener["shared"] is not own


def test_both_families_on_one_port(site):  # noqa: F811
    """[::] beside 0.0.0.0: each takes its own family."""
    port = site.place.port()
    gateway = site.start("--listen", f"tcp:0.0.0.0:{port}", "--listen", f"tcp:[::]:{port}",
                         listen=False, port=port)
    for address in (("127.0.0.1", port), ("::1", port), ("127.0.0.99", port)):
        with gateway.connect(address=address) as client:
            client.get(1000)


def test_without_so_reuseport(site):  # noqa: F811
    """One listener feeds all workers, a warning says so, and everything else is as it was."""
    probe = site.namespace.run("/usr/bin/python3", "-c", WITHOUT_REUSEPORT, "/bin/true",
                               check=False)
    if probe.returncode != 0:
        pytest.skip(probe.stderr.strip() or "no seccomp filter here")
    gateway = site.start(wrap=["/usr/bin/python3", "-c", WITHOUT_REUSEPORT])
    (warning,) = gateway.status()["warnings"]
    assert "SO_REUSEPORT" in warning and warning in gateway.log()
    assert [listener["shared"] for listener in gateway.status()["listeners"]] == [True]

    def work(_):
        with gateway.connect() as client:
            client.get(128 * 1024)

    together(24, work)
    gateway.settle()
    assert all(worker["counters"]["accepted"] + worker["counters"]["taken_over"] > 0
               for worker in gateway.status()["workers"])


def test_nodelay(site):  # noqa: F811
    """Small pieces are not held back for the acknowledgement of the one before (Nagle)."""
    gateway = site.start()
    with gateway.connect() as client:
        client.get(1)
        begin = time.monotonic()
        for _ in range(50):
            # Two pieces each way; with Nagle and delayed acknowledgements 40 ms for each round.
            client.send(b"/bytes/")
            client.send(b"7\n")
            client.expect(7)
        assert time.monotonic() - begin < 0.5 * SLOW


def test_health_endpoint(site):  # noqa: F811
    gateway = site.start(drain="30s")
    gateway.settles = False
    assert gateway.admin.get("/healthz")[0] == 200
    client = gateway.connect()
    client.get(1)
    gateway.signal(signal.SIGTERM)
    wait_until(lambda: gateway.admin.get("/healthz")[0] == 503, "draining is no health")
    assert gateway.status()["draining"] is True
    client.get(1000)
    client.close()
    assert gateway.wait(5 * SLOW) == 0


def test_flags_in_the_status(site):  # noqa: F811
    gateway = site.start("--buffer-size", "128KiB", threads=3)
    status = gateway.status()
    assert len(status["workers"]) == 3
    assert [worker["index"] for worker in status["workers"]] == [0, 1, 2]
    assert gateway.route("a.test")["upstreams"][0]["address"] == ONE
