# SPDX-License-Identifier: Apache-2.0
"""A pair of programs over vsock CID 1, its ends in two namespaces, and checked traffic."""

import itertools
import json
import os
import signal

import guard
import vm

ADDRESS = {vm.HOST: "10.77.0.1", vm.GUEST: "10.77.0.2"}
TAP = {vm.HOST: "cwh0", vm.GUEST: "cwg0"}
ADMIN = {vm.HOST: "/run/causeway/host.sock", vm.GUEST: "/run/causeway/guest.sock"}
OTHER = {vm.HOST: vm.GUEST, vm.GUEST: vm.HOST}

# A port is used by one pair only: a closing vsock connection may hold it for some seconds.
_vsock_ports = itertools.count(5000)
_tcp_ports = itertools.count(7000)
_seeds = itertools.count(1)


class Pair:
    """`arm` is plain, native, auto, or one of the reference arms of tests/bench/pair."""

    def __init__(self, arm, lanes=1, host_wire=None, guest_wire=None, cid=guard.CID_LOCAL,
                 config=None):
        """With `config`, a dictionary, the helper runs that file instead of flags; its `listen` and
        `admin` are filled in."""
        self.arm = arm
        self.port = next(_vsock_ports)
        listen = ["--listen", guard.vsock_listen_address(self.port)]
        connect = ["--connect", guard.vsock_connect_address(self.port, cid)]
        self.is_reference = arm.startswith("reference")
        if self.is_reference:
            path = vm.program("causeway-reference")
            base = ["--base"] if arm == "reference-base" else []
            self.commands = {
                vm.HOST: [path, *base, "--tap", TAP[vm.HOST], *listen],
                vm.GUEST: [path, *base, "--tap", TAP[vm.GUEST], *connect],
            }
        else:
            flags = ["--wire", "--admin"] + (["--lanes"] if lanes > 1 else [])
            host, guest = (vm.program(n, *flags) for n in ("causeway-host", "causeway-guest"))
            self.commands = {
                vm.HOST: [host, *listen, "--wire", host_wire or arm],
                vm.GUEST: [guest, *connect, "--wire", guest_wire or arm],
            }
            if config is not None:
                config = {"listen": guard.vsock_listen_address(self.port),
                          "admin": "unix:" + ADMIN[vm.HOST], **config}
                path = f"/run/causeway/host-{self.port}.json"
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(config, file)
                self.commands[vm.HOST] = [host, "--config", path]
            for end, command in self.commands.items():
                if config is not None and end == vm.HOST:
                    continue
                command += ["--tap", TAP[end], "--address", ADDRESS[end] + "/24"]
                command += ["--admin", "unix:" + ADMIN[end]]
                command += ["--lanes", str(lanes)] if lanes > 1 else []
        self.processes = {}

    def start(self, end):
        """Starts one end. The reference's address is ours to set, once its TAP is there."""
        process = vm.spawn(self.commands[end], f"{self.arm}-{end}", namespace=end)
        self.processes[end] = process
        if self.is_reference:
            self.wait_tap(end)
            vm.run_checked(["/usr/sbin/ip", "-n", end, "addr", "add", ADDRESS[end] + "/24",
                            "dev", TAP[end]])

    def wait_tap(self, end):
        def exists():
            process = self.processes[end]
            if not process.alive():
                self.explain_exit(process)
            return vm.run(["/usr/sbin/ip", "-n", end, "link", "show", TAP[end]]).returncode == 0

        vm.wait_until(exists, 10, f"{TAP[end]}")

    def explain_exit(self, process):
        """A wire refused on the command line is not there yet; any other end is a fault."""
        text = process.log_bytes().decode(errors="replace").strip()
        if process.popen.returncode == 2 and "--wire" in text:
            raise vm.Skip(f"{self.arm}: {text[-200:]}")
        raise vm.Failed(f"{process.name} ended with {process.popen.returncode}: {text[-300:]}")

    def start_both(self, first=vm.HOST):
        """Starts both ends and returns once a ping has come back."""
        self.start(first)
        if first == vm.HOST:
            self.wait_listening()
        self.start(OTHER[first])
        self.wait_up()
        return self

    def wait_listening(self):
        process = self.processes[vm.HOST]
        if self.is_reference:
            vm.wait_until(lambda: b"listening" in process.log_bytes() or not process.alive(), 10,
                          "the reference to listen")
        else:
            vm.wait_until(lambda: self.status(vm.HOST), 10, "the helper's admin socket")

    def wait_up(self, seconds=10):
        if not self.is_reference:
            for end in self.processes:
                vm.wait_until(lambda end=end: self.state(end) == "up", seconds,
                              f"the session of {end} to be up")
        self.ping(seconds)

    def status(self, end):
        process = self.processes[end]
        if not process.alive():
            self.explain_exit(process)
        return vm.status(ADMIN[end])

    def state(self, end):
        status = self.status(end)
        return status and status["session"]["state"]

    def wire(self, end):
        return self.status(end)["wire"]

    def ended(self, end):
        """How many connections ended, by reason."""
        return {k: v for k, v in self.status(end)["ended"].items() if v}

    def ping(self, seconds=10):
        """One answered echo request, tried for as long as `seconds`."""
        command = [vm.tool("/usr/bin/ping"), "-n", "-q", "-c", "1", "-W", "1", ADDRESS[vm.HOST]]
        vm.wait_until(lambda: vm.run(command, namespace=vm.GUEST).returncode == 0, seconds,
                      "a ping to be answered")

    def ping_both(self):
        """Twenty echo requests in each direction, none lost."""
        for end, peer in OTHER.items():
            vm.run_checked([vm.tool("/usr/bin/ping"), "-n", "-q", "-c", "20", "-i", "0.02",
                            "-W", "2", ADDRESS[peer]], namespace=end)

    def kill(self, end):
        self.processes[end].kill()

    def terminate(self, end, seconds=3):
        """SIGTERM; the exit status."""
        os.kill(self.processes[end].pid, signal.SIGTERM)
        return self.processes[end].wait(seconds)

    def stop(self):
        for process in self.processes.values():
            process.kill()

    def drops(self):
        """Transmit drops of both TAPs, as the kernel counts them."""
        total = 0
        for end in self.processes:
            text = vm.run_checked(["/usr/sbin/ip", "-n", end, "-s", "-j", "link", "show", TAP[end]])
            total += json.loads(text.stdout)[0]["stats64"]["tx"]["dropped"]
        return total


class Transfer:
    """A checked TCP payload from one end to the other, running in the background."""

    def __init__(self, sender, mib, seconds=60, streamed=True):
        """Streamed, neither end holds the payload: this kernel takes 10 s to give out 256 MiB."""
        traffic = vm.program("causeway-traffic")
        self.receiver_end, self.mib, self.seconds = OTHER[sender], mib, seconds
        place = f"{ADDRESS[self.receiver_end]}:{next(_tcp_ports)}"
        common = ["--bytes", str(mib << 20), "--timeout", str(seconds * vm.PATIENCE)]
        common += ["--streamed"] if streamed else []
        self.receiver = vm.spawn([traffic, "recv", "--listen", place, *common], "recv",
                                 namespace=self.receiver_end)
        receiver = self.receiver
        vm.wait_until(lambda: b"listening" in receiver.log_bytes() or not receiver.alive(), 30,
                      "the receiver to listen")
        seed = ["--seed", str(next(_seeds))]
        self.sender = vm.spawn([traffic, "send", "--connect", place, *seed, *common], "send",
                               namespace=sender)

    def running(self):
        return self.receiver.alive() and self.sender.alive()

    def finish(self):
        """Waits for the end, compares the digests; the numbers of the receiver."""
        results = []
        for process in (self.receiver, self.sender):
            code = process.wait(self.seconds + 20)
            text = process.log_bytes().decode(errors="replace")
            if code != 0:
                for end, path in ADMIN.items():  # how far it came, and through what
                    print(f"--- status of {end}: {json.dumps(vm.status(path))}", flush=True)
                raise vm.Failed(f"{process.name}: exit {code}: {text[-300:].strip()}")
            results.append(json.loads(text[text.index("{") :]))
        received, sent = results
        vm.check(received["bytes"] == self.mib << 20 and received["eof"], f"{received}")
        vm.check(received["received_sha256"] == sent["sent_sha256"], "the digests differ")
        return {"mib_per_second": round(received["mib_per_second"], 1),
                "retransmits": sent["retransmits"]}


def affordable(sender, wanted_mib, seconds):
    """MiB that pass within `seconds` at the rate of a first small transfer: 8 to `wanted_mib`.

    A loaded machine gives this kernel a fraction of one processor. `tests/vm/run --full` always
    takes all.
    """
    if os.environ.get("cw_full"):
        return wanted_mib
    rate = Transfer(sender, 8).finish()["mib_per_second"]
    return int(min(wanted_mib, max(8, rate * seconds)))


def both_ways(mib, seconds=None, streamed=True):
    """One checked transfer from the helper to the framer and one back; see affordable()."""
    results = {}
    for name, sender in (("forward", vm.HOST), ("reverse", vm.GUEST)):
        size = affordable(sender, mib, seconds) if seconds else mib
        limit = max(60, (seconds or 0) * 4)
        results[name] = {"mib": size, **Transfer(sender, size, limit, streamed).finish()}
    return results


def describe(results):
    return ", ".join(
        f"{name} {r['mib']} MiB at {r['mib_per_second']:.0f} MiB/s" for name, r in results.items()
    )
