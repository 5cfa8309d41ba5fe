# SPDX-License-Identifier: Apache-2.0
"""The programs under test as child processes: started in a namespace, ended by handle."""

import ctypes
import os
import pathlib
import signal
import subprocess
import time

from .admin import Admin
from .waiting import wait_until

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("CAUSEWAY_BUILD", ROOT / "build/release/bin"))
PRESET = os.environ.get("CAUSEWAY_PRESET", "release")
SANITIZED = PRESET in ("asan", "tsan")
# Deadlines are written for an idle machine and stretched by this: a shared one is slower at times,
# and sanitizers slow everything.
SLOW = 12 if SANITIZED else 3

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_SANITIZER_WORDS = ("ERROR: AddressSanitizer", "runtime error:", "WARNING: ThreadSanitizer",
                    "ERROR: LeakSanitizer")


def program_path(name):
    return BUILD / name


def die_with_parent():
    """In the child: the kernel ends it when pytest goes, even by kill -9."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A child in a namespace whose output goes to a file."""

    def __init__(self, namespace, command, log):
        self.name = pathlib.Path(str(command[0])).name
        self.log_path = log
        with open(log, "ab") as output:
            self._popen = subprocess.Popen(
                namespace.command(*command), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
        self.pid = self._popen.pid
        self.killed = False

    def running(self):
        return self._popen.poll() is None

    def returncode(self):
        return self._popen.poll()

    def log(self):
        return pathlib.Path(self.log_path).read_text(encoding="utf-8", errors="replace")

    def wait(self, timeout):
        return self._popen.wait(timeout)

    def signal(self, number):
        self._popen.send_signal(number)

    def kill9(self, with_broker=False):
        """SIGKILL; a helper's broker, which would clean up behind it, first if asked for."""
        self.killed = True
        if with_broker:
            path = f"/proc/{self.pid}/task/{self.pid}/children"
            with open(path, encoding="ascii") as children:
                for child in children.read().split():
                    os.kill(int(child), signal.SIGKILL)
        self._popen.kill()
        self._popen.wait(5)

    def terminate(self, timeout=5.0):
        """SIGTERM; returns (exit code, seconds until the end)."""
        begin = time.monotonic()
        self._popen.terminate()
        return self._popen.wait(timeout), time.monotonic() - begin

    def peak_rss(self):
        """VmHWM in bytes."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        raise AssertionError("no VmHWM")

    def end(self):
        """Ends it on any path; returns what was wrong with its end, or None."""
        problem = None
        if self.running():
            try:
                self.terminate(5.0 * SLOW)
            except subprocess.TimeoutExpired:
                problem = f"{self.name} ignored SIGTERM"
                self.kill9()
        log = self.log()
        if any(word in log for word in _SANITIZER_WORDS):
            problem = f"{self.name}: sanitizer report"
        elif not problem and not self.killed and self.returncode() != 0:
            problem = f"{self.name} ended with {self.returncode()}"
        return f"{problem}\n{log[-6000:]}" if problem else None


class Program(Process):
    """causeway-host or causeway-guest, with an admin socket; comes back when that answers."""

    def __init__(self, namespace, name, arguments, admin, log, ready_timeout=10.0):
        self.admin = Admin(admin)
        super().__init__(namespace, [program_path(name), *arguments, "--admin", f"unix:{admin}"],
                         log)

        def answers():
            if not self.running():
                return True
            return self.admin.status()["pid"] == self.pid

        wait_until(answers, f"{name} answers on its admin socket", ready_timeout * SLOW)
        if not self.running():
            raise RuntimeError(f"{name} ended with {self.returncode()}: {self.log()[-2000:]}")

    def status(self):
        return self.admin.status()

    def ended(self, reason):
        return self.status()["ended"].get(reason, 0)

    def counter(self, name):
        return self.status()["counters"][name]

    def wait_state(self, state, timeout=10.0):
        wait_until(lambda: self.status()["session"]["state"] == state,
                   f"{self.name} is {state}", timeout * SLOW)
