# SPDX-License-Identifier: Apache-2.0
"""What the data loop asks of the kernel: counted with strace over a fixed load, so that what is
gone stays gone."""

import re
import signal
import time

import pytest

from causeway_testlib.gateway import place, site  # noqa: F401
from causeway_testlib.gateway_peers import need
from causeway_testlib.programs import SANITIZED, SLOW
from causeway_testlib.waiting import wait_until

ROUNDS = 1000
MIB = 1 << 20


def system_calls(site, gateway, work):  # noqa: F811
    """{name: calls} of all threads of the gateway while work() runs."""
    need("strace")
    output = site.directory / f"strace{gateway.port}"
    tracer = site.process(f"strace{gateway.port}", "strace", "-f", "-c", "-U", "name,calls", "-o",
                          output, "-p", gateway.pid)
    wait_until(lambda: not tracer.running() or "attached" in tracer.log(), "strace is attached",
               10 * SLOW)
    if not tracer.running():
        pytest.skip(f"strace cannot attach here: {tracer.log().strip()}")

    def traced():
        for task in (gateway.place.namespace.run("sh", "-c",
                                                 f"grep -h TracerPid /proc/{gateway.pid}/task/*/"
                                                 "status").stdout.splitlines()):
            assert task.split()[1] != "0"
        return True

    wait_until(traced, "every thread is traced", 10 * SLOW)
    work()
    tracer.signal(signal.SIGINT)
    tracer.wait(10 * SLOW)
    found = re.findall(r"^(\w+) +(\d+)$", output.read_text(encoding="ascii"), re.MULTILINE)
    return {name: int(calls) for name, calls in found if name != "total"}


def check_quiet(calls, rounds):
    """Nothing that a round trip has no use for; a few are the control thread's or the timers'."""
    for name in ("epoll_ctl", "clock_gettime", "gettimeofday", "timerfd_settime", "futex", "brk",
                 "mmap", "munmap", "pipe2", "setsockopt", "getsockopt", "ioctl", "fcntl", "write",
                 "read", "mprotect", "madvise"):
        assert calls.get(name, 0) <= 5, f"{name}: {calls[name]} in {rounds} rounds; {calls}"


@pytest.mark.skipif(SANITIZED, reason="a sanitizer makes system calls of its own")
@pytest.mark.parametrize("after", ["off", "0B"])
def test_round_trips_on_one_connection(site, after):  # noqa: F811
    """A small request and answer: one read and one write each way, one wait for each."""
    gateway = site.start("--splice-after", after, "--log-level", "info", threads=1)
    client = gateway.connect()
    for _ in range(20):
        client.get(200)

    def work():
        for _ in range(ROUNDS):
            client.get(200)

    calls = system_calls(site, gateway, work)
    check_quiet(calls, ROUNDS)
    moves = sum(calls.get(name, 0) for name in ("recv", "recvfrom", "recvmsg", "send", "sendto",
                                                "sendmsg", "readv", "writev", "splice"))
    assert 4 * ROUNDS <= moves <= 4 * ROUNDS + 50, calls
    waits = calls.get("epoll_wait", 0) + calls.get("epoll_pwait", 0) + calls.get("epoll_pwait2", 0)
    assert waits <= 2 * ROUNDS + 100, calls


@pytest.mark.skipif(SANITIZED, reason="a sanitizer makes system calls of its own")
@pytest.mark.parametrize("after", ["off", "64KiB"])
def test_bulk(site, after):  # noqa: F811
    """Large transfers in few large steps, without memory or pipes of their own."""
    gateway = site.start("--splice-after", after, threads=1)
    client = gateway.connect()
    client.get(20 * MIB)
    size = 50 * MIB
    calls = system_calls(site, gateway, lambda: client.get(size))
    check_quiet(calls, 1)
    moves = sum(calls.get(name, 0) for name in ("recvfrom", "sendto", "sendmsg", "splice"))
    assert moves <= size // (16 << 10), calls


@pytest.mark.skipif(SANITIZED, reason="a sanitizer makes system calls of its own")
def test_connections(site):  # noqa: F811
    """A small request on a connection of its own: a bounded set of calls, no pipe, no memory."""
    gateway = site.start(threads=1)

    def connections(count):
        for _ in range(count):
            with gateway.connect() as client:
                client.get(200)
                client.end()
                client.expect_end()

    connections(50)
    gateway.wait_active(0)
    count = 200
    calls = system_calls(site, gateway, lambda: connections(count))
    for name in ("pipe2", "mmap", "munmap", "brk", "futex", "madvise", "clock_gettime"):
        assert calls.get(name, 0) <= 10, f"{name}: {calls}"
    # accept4 that finds nobody else, two sockets' set-up and close, the relay, both ends.
    assert sum(calls.values()) <= 28 * count, calls
    assert gateway.counter("pipes_made") == 0


@pytest.mark.skipif(SANITIZED, reason="a sanitizer makes system calls of its own")
def test_idle_connections_cost_nothing(site):  # noqa: F811
    """500 connections that are silent: the timers look at them now and then, nothing polls."""
    gateway = site.start("--splice-after", "0B", threads=1)
    clients = [gateway.connect() for _ in range(500)]
    for client in clients:
        client.get(200)

    calls = system_calls(site, gateway, lambda: time.sleep(1.5))
    assert sum(calls.values()) < 60, calls
