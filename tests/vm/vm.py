# SPDX-License-Identifier: Apache-2.0
"""What scenarios need inside the machine: processes, two namespaces, the admin endpoint."""

import ctypes
import http.client
import json
import os
import shutil
import socket
import subprocess
import time

import guard

guard.require_uml()

_libc = ctypes.CDLL(None, use_errno=True)

BIN = "/run/causeway/bin"
LOGS = "/run/causeway/logs"
HOST, GUEST = "cwhost", "cwguest"  # network namespaces


class Skip(Exception):
    """The scenario cannot run; the text says why."""


class Failed(AssertionError):
    """The scenario found a fault."""


def check(condition, text):
    if not condition:
        raise Failed(text)


# One emulated processor on a shared machine: what takes a second on a quiet day has taken thirty.
# Limits are there to end what hangs, so each is this much longer than the thing should take.
PATIENCE = 4


def wait_until(condition, seconds, what):
    """Polls until `condition()` is true and returns its value; Failed after PATIENCE x `seconds`."""
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"waited {seconds} s for {what}")
        time.sleep(0.02)


def in_namespace(command, namespace):
    # `ip netns exec` replaces itself by the command, so the process id is the command's.
    return (["/usr/sbin/ip", "netns", "exec", namespace] if namespace else []) + list(command)


def run(command, namespace=None, seconds=30):
    """Runs to the end; the result has returncode, stdout, stderr (text)."""
    return subprocess.run(in_namespace(command, namespace), stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds)


def run_checked(command, namespace=None, seconds=30):
    result = run(command, namespace, seconds)
    said = (result.stderr or result.stdout)[-300:]
    check(result.returncode == 0, f"{' '.join(command)}: exit {result.returncode}: {said}")
    return result


class Process:
    """A program in the background, with its output in a file."""

    def __init__(self, command, name, namespace):
        self.name = name
        os.makedirs(LOGS, exist_ok=True)
        self.path = f"{LOGS}/{len(_running)}-{name}.log"
        with open(self.path, "wb") as log:
            self.popen = subprocess.Popen(in_namespace(command, namespace), stdout=log, stderr=log,
                                          stdin=subprocess.DEVNULL)
        self.pid = self.popen.pid

    def log_bytes(self):
        with open(self.path, "rb") as file:
            return file.read()

    def alive(self):
        return self.popen.poll() is None

    def kill(self):
        """SIGKILL, and waits for the end."""
        if self.alive():
            self.popen.kill()
        self.popen.wait()

    def wait(self, seconds):
        """Exit status."""
        try:
            return self.popen.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {seconds} s") from None


_running = []


def spawn(command, name, namespace=None):
    process = Process(command, name, namespace)
    _running.append(process)
    return process


def stop_all(show_logs=False):
    """Ends every process of the scenario, newest first, and shows what they wrote if asked."""
    for process in reversed(_running):
        process.kill()
    if show_logs:
        for process in _running:
            text = process.log_bytes()[-3000:].decode(errors="replace")
            print(f"--- {process.name} (exit {process.popen.returncode})\n{text}", flush=True)
    _running.clear()


def make_namespaces():
    for name in (HOST, GUEST):
        run_checked(["/usr/sbin/ip", "netns", "add", name])
        run_checked(["/usr/sbin/ip", "-n", name, "link", "set", "lo", "up"])


def tcp_socket(namespace):
    """An IPv4 stream socket that lives in `namespace`, for this process: it stays where it was made."""
    with open("/proc/self/ns/net", encoding="ascii") as own, \
            open(f"/run/netns/{namespace}", encoding="ascii") as inside:
        check(_libc.setns(inside.fileno(), 0) == 0, "setns")
        try:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        finally:
            check(_libc.setns(own.fileno(), 0) == 0, "setns back")


def program(name, *flags):
    """Path of a program of the build; Skip when it, or one of the flags, does not exist yet."""
    path = f"{BIN}/{name}"
    if not os.path.exists(path):
        raise Skip(f"{name} is not built")
    if flags:
        result = run([path, "--help"])
        missing = [flag for flag in flags if flag not in result.stdout + result.stderr]
        if missing:
            raise Skip(f"{name} has no {', '.join(missing)} yet")
    return path


def tool(path):
    if not shutil.which(path):
        raise Skip(f"{path} is missing")
    return path


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=5)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def status(path):
    """GET /status of an admin socket as a dictionary; None while nothing answers there."""
    connection = UnixConnection(path)
    try:
        connection.request("GET", "/status")
        response = connection.getresponse()
        body = response.read()
        check(response.status == 200, f"GET /status: {response.status} {body[:200]!r}")
        return json.loads(body)
    except OSError:
        return None
    finally:
        connection.close()
