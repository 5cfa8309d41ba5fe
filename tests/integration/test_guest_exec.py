# SPDX-License-Identifier: Apache-2.0
"""causeway-guest --exec: the application under the framer."""

import shutil
import signal
import subprocess

import pytest

from causeway_testlib.pair import GUEST_TAP, HOST_IP
from causeway_testlib.programs import SLOW, Process, program_path
from causeway_testlib.waiting import wait_until

# An application that says so, and then waits for at most a minute of 0.05 s steps.
WAITS = "echo application is ready; i=0; while [ $i -lt 1200 ]; do sleep 0.05; i=$((i+1)); done"


class Executing:
    """A pair whose framer runs an application; its output is in the framer's log."""

    def __init__(self, pair):
        self.pair = pair

    def start_host(self, *offer):
        self.pair.start_host(*(offer or ("--guest-address", "10.77.0.2/24")))

    def start(self, *command, address="auto", under=()):
        pair = self.pair
        guest = Process(pair.guest_ns, [
            *under, program_path("causeway-guest"), "--connect", f"unix:{pair.socket}",
            "--tap", GUEST_TAP, "--wire", pair.wire, "--address", address,
            "--resolv-conf", pair.directory / "resolv.conf", "--exec", "--", *command],
            pair.directory / f"guest{len(pair._processes)}.log")
        guest.killed = True  # it ends with whatever the application ends with
        pair.guest = pair.adopt(guest)
        return guest

    def shell(self, script, **more):
        return self.start("/bin/sh", "-c", script, **more)

    def wait_ready(self, text="application is ready"):
        wait_until(lambda: text in self.pair.guest.log(), f"{text!r} in the log", 20 * SLOW)


@pytest.fixture
def executing(make_pair):
    return Executing(make_pair("native"))


def test_the_network_is_there_before_the_application(executing):
    executing.start_host("--guest-address", "10.77.0.2/24")
    guest = executing.shell(f"ip addr show dev {GUEST_TAP}; ip route; "
                            f"ping -q -c 1 -W 5 {HOST_IP} && exit 33")
    assert guest.wait(20 * SLOW) == 33
    assert "inet 10.77.0.2/24" in guest.log()
    assert f"default via {HOST_IP} dev {GUEST_TAP}" in guest.log()


def test_the_application_waits_for_the_network(executing):
    guest = executing.shell("echo application is ready")
    wait_until(lambda: "connecting to" in guest.log(), "the framer tries", 10 * SLOW)
    assert "application is ready" not in guest.log()
    executing.start_host()
    assert guest.wait(20 * SLOW) == 0
    assert "application is ready" in guest.log()


def test_fixed_addresses_need_no_offer(executing):
    executing.start_host("--mtu", "1500")
    guest = executing.shell(f"ping -q -c 1 -W 5 {HOST_IP}", address="10.77.0.2/24")
    assert guest.wait(20 * SLOW) == 0, guest.log()


@pytest.mark.parametrize("script, code", [("exit 0", 0), ("exit 42", 42), ("kill -KILL $$", 137),
                                          ("kill -SEGV $$", 139)])
def test_the_exit_code_is_passed_on(executing, script, code):
    executing.start_host()
    assert executing.shell(script).wait(20 * SLOW) == code
    # Its helper was told, rather than left to find out.
    wait_until(lambda: executing.pair.host.ended("bye") == 1, "the helper hears bye", 5 * SLOW)


@pytest.mark.parametrize("program, code", [("/no/such/program", 127), ("no-such-program", 127),
                                           ("/etc/passwd", 126)])
def test_what_cannot_be_run_ends_the_framer(executing, program, code):
    executing.start_host()
    guest = executing.start(program)
    assert guest.wait(20 * SLOW) == code
    assert len([line for line in guest.log().splitlines() if f"'{program}'" in line]) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT,
                                    signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH])
def test_signals_are_passed_on(executing, number):
    executing.start_host()
    guest = executing.shell(f"trap 'exit {50 + number}' {int(number)}; {WAITS}")
    executing.wait_ready()
    guest.signal(number)
    assert guest.wait(10 * SLOW) == 50 + number


def test_sigterm_ends_the_wait_for_the_network(executing):
    guest = executing.shell("echo application is ready")
    wait_until(lambda: "connecting to" in guest.log(), "the framer tries", 10 * SLOW)
    code, _ = guest.terminate(5.0 * SLOW)
    assert code == 128 + signal.SIGTERM
    assert "application is ready" not in guest.log()


def test_the_application_lives_through_a_restart_of_the_helper(executing):
    pair = executing.pair
    go = pair.directory / "go"
    executing.start_host()
    guest = executing.shell(
        f"echo application is ready; i=0; while [ ! -e {go} ] && [ $i -lt 1200 ]; do sleep 0.05; "
        f"i=$((i+1)); done; ping -q -c 3 -i 0.2 -W 5 {HOST_IP}")
    executing.wait_ready()
    pair.host.kill9()
    executing.start_host()
    pair.host.wait_state("up")
    assert guest.running()
    go.touch()
    assert guest.wait(20 * SLOW) == 0, guest.log()


def test_as_the_first_process_it_reaps_orphans(executing):
    """PID 1 of a namespace of its own, as in an enclave image without a service manager."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], check=False,
                                                     capture_output=True).returncode != 0:
        pytest.skip("no PID namespaces on this machine")
    executing.start_host()
    guest = executing.shell(
        "[ $PPID = 1 ] || exit 1; orphan=$(sh -c 'sleep 0.1 >/dev/null & echo $!'); i=0; "
        "while [ -e /proc/$orphan ]; do [ $i -lt 400 ] || exit 2; sleep 0.05; i=$((i+1)); done; "
        "exit 21", under=unshare)
    assert guest.wait(60 * SLOW) == 21, guest.log()
