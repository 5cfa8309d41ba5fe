# SPDX-License-Identifier: Apache-2.0
"""Namespaces, the arms that run in them, and the measurements of one arm.

Everything a Bench makes is registered with it and undone by close(), which is safe to call twice:
processes are ended by their handles, namespaces take their interfaces with them.
"""

import ctypes
import http.client
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

HOST_IP, GUEST_IP, PREFIX = "10.77.0.1", "10.77.0.2", 30
HOST_DEV, GUEST_DEV = "cwh0", "cwg0"
TICKS = os.sysconf("SC_CLK_TCK")


class NotRun(Exception):
    """The arm cannot be measured here; the text is the reason that the report shows."""


class Failed(Exception):
    """A measurement that should have worked did not."""


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, even if we are killed


class Bench:
    def __init__(self, bin_dir):
        self.bin_dir = bin_dir
        self.work = tempfile.mkdtemp(prefix="causeway-bench-")
        tag = f"cwb{os.getpid()}"
        self.host, self.guest = f"{tag}h", f"{tag}g"
        self.processes = []
        self.namespaces = []

    def program(self, name):
        path = os.path.join(self.bin_dir, name)
        if not os.access(path, os.X_OK):
            raise NotRun(f"{name} is not built (looked in {self.bin_dir})")
        return path

    def spawn(self, namespace, argv, log=None):
        """Starts a program inside a namespace. `ip netns exec` execs it: the pid is its own."""
        stderr = open(log, "wb") if log else subprocess.PIPE
        process = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *argv], stdin=subprocess.DEVNULL,
            stdout=open(log, "ab") if log else subprocess.PIPE, stderr=stderr,
            start_new_session=True, preexec_fn=_die_with_parent)
        self.processes.append(process)
        return process

    def end(self, process, patience=2.0):
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(patience)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
        if process in self.processes:
            self.processes.remove(process)

    def make_namespaces(self):
        for name in (self.host, self.guest):
            self.namespaces.append(name)  # first: an interrupt in between must not leave it
            run(["ip", "netns", "add", name])
            inside(name, ["ip", "link", "set", "lo", "up"])
            # No router solicitations or MLD reports: they are frames that nobody asked for.
            inside(name, ["sh", "-c", "for f in default all; do echo 1 > "
                                      "/proc/sys/net/ipv6/conf/$f/disable_ipv6; done"], check=False)

    def clear(self):
        for process in list(self.processes):
            self.end(process)
        for name in list(self.namespaces):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
            self.namespaces.remove(name)

    def close(self):
        self.clear()
        shutil.rmtree(self.work, ignore_errors=True)


def run(argv, check=True):
    done = subprocess.run(argv, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


def inside(namespace, argv, check=True):
    return run(["ip", "netns", "exec", namespace, *argv], check)


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(0.01)


# --- arms -----------------------------------------------------------------------------------------

class Pair:
    """A running arm. `pids` are the programs whose CPU and memory count as the pair's."""

    def __init__(self, host_dev, guest_dev, programs=(), admin=()):
        self.devices = {"host": host_dev, "guest": guest_dev}
        self.programs = dict(programs)  # name -> Popen
        self.admin = dict(admin)        # name -> path of the admin socket

    def statuses(self):
        return {name: admin_status(path) for name, path in self.admin.items()}


def last_line(path):
    with open(path, errors="replace") as log:
        lines = [line.strip() for line in log if line.strip()]
    return lines[-1] if lines else "no message"


def check_alive(process, log, what, never_ran):
    if process.poll() is not None:
        text = f"{what} ended with status {process.returncode}: {last_line(log)}"
        raise NotRun(text) if never_ran else Failed(text)


def start_veth(bench, options):
    bench.make_namespaces()
    run(["ip", "link", "add", HOST_DEV, "netns", bench.host, "mtu", str(options.mtu), "type",
         "veth", "peer", "name", GUEST_DEV, "netns", bench.guest, "mtu", str(options.mtu)])
    for namespace, device, address in ((bench.host, HOST_DEV, HOST_IP),
                                       (bench.guest, GUEST_DEV, GUEST_IP)):
        inside(namespace, ["ip", "addr", "add", f"{address}/{PREFIX}", "dev", device])
        inside(namespace, ["ip", "link", "set", device, "up"])
    return Pair(HOST_DEV, GUEST_DEV)


def start_reference(bench, options, base):
    if options.mtu > 1504:
        raise NotRun("the reference design carries frames of at most 1518 bytes")
    program = bench.program("causeway-reference")
    bench.make_namespaces()
    path = os.path.join(bench.work, "reference.sock")
    if os.path.exists(path):
        os.unlink(path)
    flags = ["--base"] if base else []
    programs, logs = {}, {}
    for side, namespace, device, place in (("host", bench.host, HOST_DEV, "--listen"),
                                           ("guest", bench.guest, GUEST_DEV, "--connect")):
        logs[side] = os.path.join(bench.work, f"reference-{side}.log")
        programs[side] = bench.spawn(
            namespace, [program, *flags, "--tap", device, place, f"unix:{path}"], logs[side])
    for side, namespace, device, address in (("host", bench.host, HOST_DEV, HOST_IP),
                                             ("guest", bench.guest, GUEST_DEV, GUEST_IP)):
        def exists():
            check_alive(programs[side], logs[side], "causeway-reference", never_ran=True)
            return inside(namespace, ["ip", "link", "show", device], check=False)
        wait_until(exists, 5, f"the TAP {device}")
        inside(namespace, ["ip", "link", "set", device, "mtu", str(options.mtu)])
        inside(namespace, ["ip", "addr", "add", f"{address}/{PREFIX}", "dev", device])
    pair = Pair(HOST_DEV, GUEST_DEV, programs)
    pair.logs = logs
    return pair


def start_causeway(bench, options, wire):
    programs_of = {"host": bench.program("causeway-host"),
                   "guest": bench.program("causeway-guest")}
    bench.make_namespaces()
    wire_path = os.path.join(bench.work, "wire.sock")
    lanes = ["--lanes", str(options.lanes)] if options.lanes > 1 else []
    programs, logs, admin = {}, {}, {}
    for side, namespace, device, address, place in (
            ("host", bench.host, HOST_DEV, HOST_IP, "--listen"),
            ("guest", bench.guest, GUEST_DEV, GUEST_IP, "--connect")):
        logs[side] = os.path.join(bench.work, f"{wire}-{side}.log")
        admin[side] = os.path.join(bench.work, f"{wire}-{side}-admin.sock")
        programs[side] = bench.spawn(
            namespace,
            [programs_of[side], place, f"unix:{wire_path}", "--tap", device, "--address",
             f"{address}/{PREFIX}", "--mtu", str(options.mtu), "--wire", wire,
             "--admin", f"unix:{admin[side]}", *lanes],
            logs[side])
    pair = Pair(HOST_DEV, GUEST_DEV, programs, admin)
    pair.logs = logs

    def up():
        for side in programs:
            check_alive(programs[side], logs[side], f"causeway-{side}", never_ran=True)
        try:
            status = admin_status(admin["guest"])
        except (OSError, ValueError, http.client.HTTPException):
            return None
        return status if status["session"]["state"] == "up" else None

    try:
        status = wait_until(up, 5, "the session")
    except Failed as error:
        raise NotRun(f"{error}; the framer says: {last_line(logs['guest'])}") from None
    if status.get("wire") != wire:
        raise NotRun(f"the wire in use is {status.get('wire')}, not {wire}")
    return pair


ARMS = {
    "reference-base": lambda bench, options: start_reference(bench, options, base=True),
    "reference": lambda bench, options: start_reference(bench, options, base=False),
    "plain": lambda bench, options: start_causeway(bench, options, "plain"),
    "native": lambda bench, options: start_causeway(bench, options, "native"),
    "veth": start_veth,
}


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=2)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def admin_status(path):
    connection = UnixConnection(path)
    try:
        connection.request("GET", "/status")
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def wait_for_ping(bench, pair):
    def answers():
        for side, process in pair.programs.items():
            check_alive(process, pair.logs[side], f"the program on the {side} side", False)
        return subprocess.run(
            ["ip", "netns", "exec", bench.host, "ping", "-c1", "-W1", "-n", "-q", GUEST_IP],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    wait_until(answers, 5, f"a ping of {GUEST_IP}")


# --- what is read before and after ----------------------------------------------------------------

def cpu_seconds(pair):
    """User and system time of the pair's programs, all threads. Resolution: one clock tick."""
    total = 0
    for process in pair.programs.values():
        with open(f"/proc/{process.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def memory_kib(pair):
    peaks = {}
    for side, process in pair.programs.items():
        with open(f"/proc/{process.pid}/status") as status:
            lines = dict(line.split(":", 1) for line in status if ":" in line)
        peaks[side] = {key: int(lines[key].split()[0]) for key in ("VmRSS", "VmHWM")}
    return peaks


# Why a segment was sent again although no device dropped it: a probe of the tail, a time-out, or a
# receiver too busy to take it. For the JSON; the report shows the sum of retransmits.
CAUSES = ("TCPLossProbes", "TCPTimeouts", "TCPSpuriousRTOs", "TCPBacklogDrop", "TCPRcvQDrop",
          "TCPDSACKRecv", "TCPSACKReorder")


def network_counters(bench, pair):
    drops = retransmits = 0
    causes = dict.fromkeys(CAUSES, 0)
    for side, namespace in (("host", bench.host), ("guest", bench.guest)):
        link = json.loads(inside(namespace, ["ip", "-s", "-j", "link", "show", "dev",
                                             pair.devices[side]]))[0]
        drops += link["stats64"]["tx"]["dropped"]
        counters = json.loads(inside(namespace, ["nstat", "-asz", "--json"]))["kernel"]
        retransmits += counters.get("TcpRetransSegs", 0)
        for name in CAUSES:
            causes[name] += counters.get("TcpExt" + name, 0)
    return {"tap_tx_drops": drops, "retransmits": retransmits} | causes


def machine_cpu():
    """Seconds that all CPUs were busy, and that the hypervisor took away."""
    with open("/proc/stat") as stat:
        fields = [int(value) for value in stat.readline().split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return {"busy": (user + nice + system + irq + softirq) / TICKS, "steal": steal / TICKS}


class Snapshot:
    def __init__(self, bench, pair):
        self.bench, self.pair = bench, pair
        self.network = network_counters(bench, pair)
        self.machine = machine_cpu()
        self.cpu = cpu_seconds(pair)

    def delta(self):
        cpu = cpu_seconds(self.pair) - self.cpu
        machine = machine_cpu()
        after = network_counters(self.bench, self.pair)
        result = {key: after[key] - self.network[key] for key in after}
        result["pair_cpu_seconds"] = round(cpu, 3)
        result["machine_busy_seconds"] = round(machine["busy"] - self.machine["busy"], 3)
        result["machine_steal_seconds"] = round(machine["steal"] - self.machine["steal"], 3)
        return result


# --- measurements ---------------------------------------------------------------------------------

def await_listening(process, seconds=60):
    """Reads a traffic program's stderr up to the line that says that it listens."""
    text = b""
    deadline = time.monotonic() + seconds
    while b"listening" not in text or not text.endswith(b"\n"):
        ready, _, _ = select.select([process.stderr], [], [], max(0, deadline - time.monotonic()))
        chunk = os.read(process.stderr.fileno(), 4096) if ready else b""
        if not chunk:
            raise Failed(f"causeway-traffic does not listen: {text.decode(errors='replace').strip()}")
        text += chunk


def exchange(bench, server_ns, server, client_ns, client, seconds):
    """Runs the two ends of one exchange and returns both results, server first."""
    traffic = bench.program("causeway-traffic")
    limit = ["--timeout", str(seconds)]
    first = bench.spawn(server_ns, [traffic, *server, *limit])
    try:
        await_listening(first)
        second = bench.spawn(client_ns, [traffic, *client, *limit])
        results = []
        try:
            for process, what in ((second, client[0]), (first, server[0])):
                out, err = process.communicate(timeout=seconds + 10)
                if process.returncode != 0:
                    raise Failed(f"causeway-traffic {what}: status {process.returncode}: "
                                 f"{(err or out).decode(errors='replace').strip()[-300:]}")
                results.insert(0, json.loads(out))
        finally:
            bench.end(second)
    finally:
        bench.end(first)
    return results


def bulk(bench, pair, options, direction):
    """One payload from host to guest (forward), back (reverse), or both ways at once (duplex)."""
    count = ["--bytes", str(options.bytes)]
    server_ns, client_ns, server_ip = bench.guest, bench.host, GUEST_IP
    if direction == "reverse":
        server_ns, client_ns, server_ip = bench.host, bench.guest, HOST_IP
    place = f"{server_ip}:5201"
    if direction == "duplex":
        server = ["duplex", "--listen", place, *count, "--seed", "11", "--peer-seed", "22"]
        client = ["duplex", "--connect", place, *count, "--seed", "22", "--peer-seed", "11"]
    else:
        server = ["recv", "--listen", place, *count, "--peer-seed", "33"]
        client = ["send", "--connect", place, *count, "--seed", "33"]
    before = Snapshot(bench, pair)
    receiver, sender = exchange(bench, server_ns, server, client_ns, client, options.limit)
    result = before.delta()
    moved = options.bytes * (2 if direction == "duplex" else 1)
    seconds = max(receiver["seconds"], sender["seconds"]) if direction == "duplex" \
        else receiver["seconds"]
    result["mib_per_second"] = moved / 2**20 / seconds
    result["bytes"] = moved
    result["pair_cpu_seconds_per_gib"] = result["pair_cpu_seconds"] / (moved / 2**30)
    result["ends_cpu_seconds"] = receiver["cpu_seconds"] + sender["cpu_seconds"]
    return result


def echo(bench, pair, options):
    before = Snapshot(bench, pair)
    _, result = exchange(bench, bench.guest, ["echo-server", "--listen", f"{GUEST_IP}:5202"],
                         bench.host, ["echo", "--connect", f"{GUEST_IP}:5202", "--count",
                                      str(options.echo_count)], options.limit)
    return result | before.delta()


def udp(bench, pair, options, gso):
    before = Snapshot(bench, pair)
    sink = ["udp-sink", "--listen", f"{GUEST_IP}:5203"] + (["--gro"] if gso > 1 else [])
    send = ["udp-send", "--connect", f"{GUEST_IP}:5203", "--search", "--size", "1200", "--rate",
            "20000", "--seconds", str(options.udp_seconds), "--gso", str(gso)]
    _, result = exchange(bench, bench.guest, sink, bench.host, send, options.limit)
    result = result | before.delta()
    packets = sum(trial["received"] for trial in result["trials"])
    result["pair_cpu_us_per_packet"] = result["pair_cpu_seconds"] * 1e6 / max(packets, 1)
    return result


MEASURES = {
    "forward": lambda bench, pair, options: bulk(bench, pair, options, "forward"),
    "reverse": lambda bench, pair, options: bulk(bench, pair, options, "reverse"),
    "duplex": lambda bench, pair, options: bulk(bench, pair, options, "duplex"),
    "echo": echo,
    "udp": lambda bench, pair, options: udp(bench, pair, options, 1),
    "udp-gso": lambda bench, pair, options: udp(bench, pair, options, 16),
}


def measure_arm(bench, arm, options):
    """Starts an arm in fresh namespaces, takes every measurement, ends it. Raises NotRun."""
    try:
        pair = ARMS[arm](bench, options)
        wait_for_ping(bench, pair)
        results = {}
        for name in options.measures:
            try:
                results[name] = MEASURES[name](bench, pair, options)
            except Failed as error:
                results[name] = {"failed": str(error)}
            for side, process in pair.programs.items():
                check_alive(process, pair.logs[side], f"{arm}: the {side} side", never_ran=False)
        results["memory_kib"] = memory_kib(pair)
        if pair.admin:
            results["status"] = pair.statuses()
        return results
    finally:
        bench.clear()
