# SPDX-License-Identifier: Apache-2.0
"""Fixtures, the deadline of every test, and the closing line that tests/run adds up."""

import os
import pathlib
import signal
import sys

import pytest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from causeway_testlib import namespaces  # noqa: E402
from causeway_testlib.pair import Pair  # noqa: E402
from causeway_testlib.programs import SLOW, program_path  # noqa: E402

_TEST_SECONDS = 90 * SLOW


def _missing():
    if os.geteuid() != 0:
        return "needs root: the tests make TAPs and network namespaces"
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun on this machine"
    for name in ("causeway-host", "causeway-guest", "causewayctl"):
        if not program_path(name).exists():
            return f"{program_path(name)} is not built"
    return None


def pytest_collection_modifyitems(items):
    reason = _missing()
    if reason:
        for item in items:
            # Tests of files alone, such as the wire's vectors, need no program.
            if "make_pair" in item.fixturenames or item.path.name == "test_demo.py":
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def machine_unchanged():
    """The namespace the tests run from, and the list of namespaces, are afterwards as before."""
    if _missing():
        yield
        return
    namespaces.remove_stale()
    names, state = namespaces.names(), namespaces.machine_state()
    yield
    assert not [name for name in namespaces.names() - names if f"-{os.getpid()}-" in name]
    assert namespaces.machine_state() == state


@pytest.fixture(autouse=True)
def deadline():
    """No test hangs: after its time is up it fails where it stands."""

    def on_alarm(*_):
        raise AssertionError(f"the test took longer than {_TEST_SECONDS} s")

    previous = signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(_TEST_SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


@pytest.fixture
def make_pair():
    """Makes pairs; afterwards each program must have ended cleanly, without sanitizer report."""
    pairs = []

    def make(wire="plain"):
        pairs.append(Pair(wire))
        return pairs[-1]

    yield make
    problems = [problem for pair in pairs for problem in pair.close()]
    assert not problems, "\n".join(problems)


@pytest.fixture
def pair(make_pair, request):
    """A pair with nothing started yet, on the plain wire unless parametrized (see on_each_wire)."""
    return make_pair(getattr(request, "param", "plain"))


def pytest_sessionstart():
    # SIGTERM and SIGHUP unwind like Ctrl-C, so that every fixture still cleans up.
    def interrupt(*_):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)


def pytest_unconfigure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return

    def count(*kinds):
        return sum(len(reporter.stats.get(kind, [])) for kind in kinds)

    print(f"{count('passed', 'xpassed')} passed, {count('failed', 'error')} failed, "
          f"{count('skipped', 'xfailed')} skipped", flush=True)
