# SPDX-License-Identifier: Apache-2.0
"""The helper as a service: notifications, watchdog, activation, privileges."""

import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

import pytest

from causeway_testlib.admin import Admin
from causeway_testlib.pair import HOST_IP, HOST_TAP
from causeway_testlib.programs import (Process, SANITIZED, SLOW, die_with_parent,
                                       program_path)
from causeway_testlib.waiting import wait_until
from test_service_units import UNITS, systemd_analyze

CAP_NET_BIND_SERVICE, CAP_NET_ADMIN = 10, 12
NOBODY = 65534


# ---- notifications ----

class Manager:
    """Stands in for systemd's notify socket; keeps who said what, and when."""

    def __init__(self, path):
        self.path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(self.path)
        os.chmod(self.path, 0o666)
        self.heard = []  # (seconds, pid, message)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def listen(self):
        """Takes what has come; returns all messages so far."""
        self._socket.setblocking(False)
        while True:
            try:
                data, control, _, _ = self._socket.recvmsg(4096, 128)
            except BlockingIOError:
                return [message for _, _, message in self.heard]
            pid = struct.unpack("iii", control[0][2])[0]
            self.heard.append((time.monotonic(), pid, data.decode()))

    def wait(self, start, timeout=10.0, after=0):
        """The first message from number `after` on that begins with `start`."""
        def found():
            return next((text for text in self.listen()[after:] if text.startswith(start)), None)
        return wait_until(found, f"the manager hears {start}", timeout * SLOW)


def start(pair, *command, label="service"):
    """A helper whose admin socket is not the one that Program would give it."""
    return pair.adopt(Process(pair.host_ns, command, pair.directory / f"{label}.log"))


def helper(pair, *more):
    return [program_path("causeway-host"), *pair.host_arguments(*more)]


def test_ready_status_and_stopping(pair):
    with Manager(pair.directory / "notify") as manager:
        host = start(pair, "env", f"NOTIFY_SOCKET={manager.path}", *helper(pair))
        manager.wait("READY=1")
        # Ready means that a framer can connect, and the TAP is there.
        with socket.socket(socket.AF_UNIX) as framer:
            framer.connect(str(pair.socket))
        assert HOST_TAP in pair.host_ns.links()
        assert "guest" in manager.wait("STATUS=", 20)
        assert not any(text.startswith("WATCHDOG") for text in manager.listen())
        code, _ = host.terminate()
        assert code == 0
        messages = manager.listen()
        assert messages.count("READY=1") == 1 and "STOPPING=1" in messages
        # NotifyAccess=main: nobody else would be listened to.
        assert {pid for _, pid, _ in manager.heard} == {host.pid}


def test_abstract_notify_socket(pair):
    name = f"causeway-test-{os.getpid()}"
    # Abstract names belong to a network namespace: the manager has to be in the helper's.
    probe = ("import os, socket, sys\n"
             "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
             "s.bind('\\0' + sys.argv[1])\n"
             "print('bound', flush=True)\n"
             "s.settimeout(float(sys.argv[2]))\n"
             "print(s.recv(4096).decode(), flush=True)\n")
    listener = pair.adopt(Process(pair.host_ns, [sys.executable, "-c", probe, name, 20 * SLOW],
                                  pair.directory / "listener.log"))
    wait_until(lambda: "bound" in listener.log(), "the manager listens", 10 * SLOW)
    start(pair, "env", f"NOTIFY_SOCKET=@{name}", *helper(pair))
    wait_until(lambda: "READY=1" in listener.log(), "READY=1 by an abstract name", 10 * SLOW)
    listener.wait(5 * SLOW)


def test_reload_is_announced_and_ended(pair):
    config = pair.directory / "host.json"

    def write(**keys):
        config.write_text(json.dumps({
            "listen": f"unix:{pair.socket}", "tap": HOST_TAP, "address": [f"{HOST_IP}/24"],
            "wire": "plain", **keys}), encoding="utf-8")

    write()
    with Manager(pair.directory / "notify") as manager:
        host = start(pair, "env", f"NOTIFY_SOCKET={manager.path}",
                     program_path("causeway-host"), "--config", config)
        manager.wait("READY=1")
        for keys in ({"guest_address": ["10.77.0.2/24"]}, {"no_such_key": 1}):
            write(**keys)
            count = len(manager.listen())
            before = time.clock_gettime(time.CLOCK_MONOTONIC)
            host.signal(signal.SIGHUP)
            # A reload that is refused ends as well: the old configuration is what runs.
            manager.wait("READY=1", after=count)
            messages = manager.listen()[count:]
            reloading = messages[0]
            assert messages.index("READY=1") == 1 and reloading.startswith("RELOADING=1\n")
            told = int(re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=(\d+)", reloading).group(1))
            assert before <= told / 1e6 <= time.clock_gettime(time.CLOCK_MONOTONIC)
            assert host.running()


def test_a_manager_that_cannot_be_reached_is_none(pair):
    for setting in ("NOTIFY_SOCKET=/nonexistent/notify", "NOTIFY_SOCKET=vsock:2:1"):
        admin = Admin(pair.directory / "admin")
        host = start(pair, "env", setting, *helper(pair, "--admin", f"unix:{admin.path}"))
        wait_until(lambda: admin.status()["pid"] == host.pid, "the helper answers", 10 * SLOW)
        assert host.terminate()[0] == 0


# ---- watchdog ----

class StoppedThread:
    """One thread of another process, stopped as by a debugger while all others run."""

    _SEIZE, _INTERRUPT, _DETACH, _WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, tid):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p,
                                      ctypes.c_void_p]
        self._tid = tid
        if self._call(self._SEIZE) != 0:
            pytest.skip(f"cannot trace a thread: {os.strerror(ctypes.get_errno())}")
        assert self._call(self._INTERRUPT) == 0
        os.waitpid(tid, self._WALL)

    def _call(self, request):
        return self._libc.ptrace(request, self._tid, None, None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        assert self._call(self._DETACH) == 0


def threads(pid, name):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text(encoding="ascii").strip() == name:
            found.append(int(task.name))
    return sorted(found)


WATCHDOG_SECONDS = 8


@pytest.mark.parametrize("lane", [0, 1])
@pytest.mark.parametrize("pair", ["native"], indirect=True)
def test_watchdog_follows_every_lane(pair, lane):
    with Manager(pair.directory / "notify") as manager:
        host = start(
            pair,
            "env", f"NOTIFY_SOCKET={manager.path}", f"WATCHDOG_USEC={WATCHDOG_SECONDS}000000",
            *helper(pair, "--lanes", "2", "--keepalive", "60s"))
        manager.wait("READY=1")

        def signs():
            manager.listen()
            return [when for when, _, text in manager.heard if text == "WATCHDOG=1"]

        wait_until(lambda: len(signs()) >= 3, "signs of life", 3 * WATCHDOG_SECONDS * SLOW)
        gaps = [later - earlier for earlier, later in zip(signs(), signs()[1:])]
        assert max(gaps) < WATCHDOG_SECONDS / 2 * SLOW
        # A lane has a thread while it is connected. The silence to come is no reason to end it.
        pair.start_guest("--lanes", "2", "--keepalive", "60s")
        wait_until(lambda: len(threads(host.pid, "lane")) == 2, "two lanes are up", 10 * SLOW)
        lanes = threads(host.pid, "lane")
        with StoppedThread(lanes[lane]):
            stopped = time.monotonic()
            # One sign may be on its way; then there is silence for longer than is allowed. Signs
            # get their time when they are taken, hence all the while.
            wait_until(lambda: signs() and time.monotonic() - stopped > WATCHDOG_SECONDS + 2,
                       "time passes", 2 * WATCHDOG_SECONDS)
            late = [when - stopped for when in signs() if when > stopped + 4]
            assert late == []
        count = len(signs())
        wait_until(lambda: len(signs()) > count, "signs of life again", WATCHDOG_SECONDS * SLOW)


def test_watchdog_that_is_meant_for_another_process(pair):
    with Manager(pair.directory / "notify") as manager:
        start(pair, "env", f"NOTIFY_SOCKET={manager.path}", "WATCHDOG_USEC=2000000",
              f"WATCHDOG_PID={os.getpid()}", *helper(pair))
        manager.wait("STATUS=", 20)  # at least as late as the first sign of life would be
        assert "WATCHDOG=1" not in manager.listen()


# ---- activation of the admin socket ----

ACTIVATOR = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES=sys.argv[2])
os.execv(sys.argv[3], sys.argv[3:])
"""


class Activator:
    """Holds the admin socket as systemd does, and hands it to each helper that it starts."""

    def __init__(self, pair):
        self._pair = pair
        self.path = pair.directory / "activated"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.bind(str(self.path))
        self.socket.listen(16)
        self.admin = Admin(self.path, timeout=10 * SLOW)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def start(self, *more):
        return self._pair.adopt(ActivatedProcess(self._pair, self.socket.fileno(), "activated",
                                                 *more))


class ActivatedProcess(Process):
    """A helper that inherits one descriptor, announced to it as systemd would."""

    def __init__(self, pair, fd, label, *more):  # pylint: disable=super-init-not-called
        self.name = "causeway-host"
        self.log_path = pair.directory / f"{label}.log"
        command = [sys.executable, "-c", ACTIVATOR, fd, "admin", *helper(pair, *more)]
        with open(self.log_path, "ab") as output:
            self._popen = subprocess.Popen(
                pair.host_ns.command(*command), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, pass_fds=[fd], preexec_fn=die_with_parent)
        self.pid = self._popen.pid
        self.killed = False


def test_admin_socket_by_activation(pair):
    with Activator(pair) as activator:
        for _ in range(2):
            host = activator.start()
            # The first request waits in the socket until the helper serves it.
            assert activator.admin.status()["pid"] == host.pid
            assert activator.admin.get("/healthz")[0] in (200, 503)
            assert host.terminate()[0] == 0
            # The socket is the manager's: still there, still listening, with nothing in its queue.
            assert activator.path.is_socket()
            activator.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                activator.socket.accept()


def test_kill_9_leaves_an_activated_socket_usable(pair):
    with Activator(pair) as activator:
        host = activator.start()
        assert activator.admin.status()["pid"] == host.pid
        host.kill9()
        host = activator.start()
        assert activator.admin.status()["pid"] == host.pid


def test_inherited_descriptor_that_is_no_socket(pair):
    with open(pair.directory / "file", "w+b") as file:
        host = pair.adopt(ActivatedProcess(pair, file.fileno(), "bad"))
        assert host.wait(10 * SLOW) == 1
        host.killed = True  # that end was asked for
    assert "inherited descriptor 3: not a socket" in host.log()
    assert HOST_TAP not in pair.host_ns.links()


# ---- privileges ----

def status_of(pid):
    fields = {}
    for line in pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        key, _, value = line.partition(":")
        fields[key] = value.split()
    return fields


def children(pid):
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if status_of(int(entry.name))["PPid"] == [str(pid)]:
                    found.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                pass
    return found


def check_main_process(pid):
    """All of its threads: no capability, no way to one, and no root."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        status = status_of(f"{pid}/task/{task.name}")
        for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
            assert int(status[name][0], 16) == 0, name
        assert status["NoNewPrivs"] == ["1"]
        assert "0" not in status["Uid"] + status["Gid"] + status["Groups"]


def test_main_process_has_no_privilege_when_started_as_root(pair):
    pair.start_both()
    pair.wait_ping()
    check_main_process(pair.host.pid)
    assert int(status_of(pair.host.pid)["CapBnd"][0], 16) == 0
    (broker,) = children(pair.host.pid)
    status = status_of(broker)
    for name in ("CapPrm", "CapEff", "CapBnd"):
        held = int(status[name][0], 16)
        assert held & 1 << CAP_NET_ADMIN
        assert bin(held).count("1") <= 3, f"{name} of the broker: {held:#x}"
    assert status["NoNewPrivs"] == ["1"]


def as_the_unit(pair):
    """A prefix that runs a command as the unit would: a user with ambient capabilities, and a
    /dev/net/tun that everybody may open (udev's rule; `ip netns exec` has mounts of its own)."""
    for tool in ("setpriv", "mknod"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is missing")
    device = pair.directory / "tun"
    os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(10, 200))
    os.chmod(device, 0o666)
    os.chmod(pair.directory, 0o777)
    capabilities = "+net_admin,+net_bind_service"
    only = "-all," + capabilities
    return ["sh", "-c", f"mount --bind '{device}' /dev/net/tun && exec \"$@\"", "sh",
            "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups",
            f"--bounding-set={only}", f"--inh-caps={only}", f"--ambient-caps={only}",
            "--no-new-privs"]


def readable_by_all(program):
    """Whether an unprivileged user can start it where the build is."""
    path = program.resolve()
    return all(os.stat(part).st_mode & 0o001 for part in [path, *path.parents])


def start_as_the_unit(pair, *prefix):
    program = program_path("causeway-host")
    if not readable_by_all(program):
        shutil.copy(program, pair.directory / "causeway-host")
        program = pair.directory / "causeway-host"
    admin = Admin(pair.directory / "unit.admin")
    state = pair.directory / "state"
    state.mkdir()
    os.chown(state, NOBODY, NOBODY)
    host = start(pair, *prefix, *as_the_unit(pair), program,
                 *pair.host_arguments("--admin", f"unix:{admin.path}", "--state-directory", state,
                                      "--guest-address", "10.77.0.2/24", "--nat",
                                      "--publish", "tcp:0.0.0.0:443=tcp:443"))
    wait_until(lambda: admin.status()["pid"], "the helper answers", 20 * SLOW)
    return host, admin.status()["pid"]


def test_no_process_is_root_when_started_as_the_unit_does(pair):
    host, pid = start_as_the_unit(pair)
    assert pid == host.pid
    check_main_process(pid)
    (broker,) = children(pid)
    assert set(status_of(broker)["Uid"]) == {str(NOBODY)}
    assert "443" in pair.host_ns.run("nft", "list", "ruleset").stdout
    pair.start_guest()
    wait_until(lambda: pair.guest_ns.ping(HOST_IP, count=1), "the guest reaches the host",
               20 * SLOW)
    assert host.terminate()[0] == 0
    assert pair.host_ns.run("nft", "list", "ruleset").stdout == ""
    assert HOST_TAP not in pair.host_ns.links()


def allowed_calls(unit):
    """The system calls that the unit's SystemCallFilter= lets through."""
    def expand(words):
        calls = set()
        for word in words:
            if word.startswith("@"):
                listed = systemd_analyze("syscall-filter", word)
                assert listed.returncode == 0, listed.stderr
                inside = [line.strip() for line in listed.stdout.splitlines()[1:]]
                calls |= expand([line for line in inside if line and not line.startswith("#")])
            else:
                calls.add(word)
        return calls

    allowed = set()
    for line in (UNITS / unit).read_text(encoding="utf-8").splitlines():
        if line.startswith("SystemCallFilter="):
            words = line.partition("=")[2]
            if words.startswith("~"):
                allowed -= expand(words[1:].split())
            else:
                allowed |= expand(words.split())
    return allowed


@pytest.mark.skipif(SANITIZED, reason="sanitizers make system calls of their own")
def test_no_system_call_outside_the_units_filter(pair):
    """Start, traffic, a reload and a stop, under a tracer."""
    if not shutil.which("strace"):
        pytest.skip("strace is missing (package strace)")
    allowed = allowed_calls("causeway-host.service")
    assert {"capset", "sendmsg", "recvmsg", "epoll_wait"} <= allowed and "mount" not in allowed
    trace = pair.directory / "trace"
    tracer, pid = start_as_the_unit(pair, "strace", "-f", "-qq", "-o", trace)
    pair.start_guest()
    wait_until(lambda: pair.guest_ns.ping(HOST_IP, count=1), "the guest reaches the host",
               30 * SLOW)
    os.kill(pid, signal.SIGHUP)
    assert tracer.running()
    os.kill(pid, signal.SIGTERM)
    assert tracer.wait(30 * SLOW) == 0
    text = trace.read_text(encoding="utf-8", errors="replace")
    # From the moment on at which the program itself runs: what sets it up is systemd's in the unit.
    begin = re.search(r"^\d+ +execve\(\"[^\"]*causeway-host\"", text, re.MULTILINE)
    assert begin
    used = set(re.findall(r"^\d+ +(?:<\.\.\. )?([a-z0-9_]+)(?:\(| resumed>)", text[begin.start():],
                          re.MULTILINE))
    assert {"capset", "execve", "epoll_wait"} <= used
    # Asked for and refused without harm: whether root can be had back, for one.
    refused_is_right = {"setresuid"}
    assert used - allowed - refused_is_right == set()
