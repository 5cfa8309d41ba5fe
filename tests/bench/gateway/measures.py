# SPDX-License-Identifier: Apache-2.0
"""What is measured of one proxy that passes TLS through; terminate.py has what it is measured of as
it terminates. Each measure makes its own empty network and its own proxy.

A measure returns one or several cells: name -> values. CPU is user and system time of the proxy,
all threads, from /proc/PID/stat: what the kernel's TCP does in its system calls is in it, and what
the loopback delivers in them.
"""

import os
import select

import harness
import proxies
from harness import Failed

CONNECTIONS = 32  # of the keep-alive cells
SMALL_PAYLOAD, SMALL_REPLY = 112, 256  # about a small HTTP exchange within TLS
OBJECT = 2**20
GB = 10**9


# --- what is read of a proxy ----------------------------------------------------------------------

def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / harness.TICKS


def fields_of(path):
    with open(path, encoding="ascii", errors="replace") as status:
        return dict(line.split(":", 1) for line in status if ":" in line)


def switches(pid):
    total = {"voluntary": 0, "involuntary": 0}
    for task in os.listdir(f"/proc/{pid}/task"):
        fields = fields_of(f"/proc/{pid}/task/{task}/status")
        total["voluntary"] += int(fields["voluntary_ctxt_switches"])
        total["involuntary"] += int(fields["nonvoluntary_ctxt_switches"])
    return total


def memory(pid):
    """Resident KiB, and descriptors by kind; a pipe has two."""
    found = {"rss_kib": int(fields_of(f"/proc/{pid}/status")["VmRSS"].split()[0]),
             "descriptors": 0, "pipes": 0}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue  # closed since
        found["descriptors"] += 1
        found["pipes"] += target.startswith("pipe:") / 2
    return found


class Window:
    """From its making to done(): what the proxy used."""

    def __init__(self, proxy):
        self.proxy = proxy
        self.status = proxy.status()
        self.machine = harness.machine_cpu()
        self.switches = switches(proxy.pid)
        self.cpu = cpu_seconds(proxy.pid)

    def done(self, load):
        """The figures of the window; `load` is what the load program printed."""
        cpu = cpu_seconds(self.proxy.pid) - self.cpu
        now = switches(self.proxy.pid)
        self.proxy.check_alive()
        machine = harness.machine_cpu()
        units = max(load["units"], 1)
        values = {key: load.get(key) for key in ("units", "seconds", "p50_us", "p99_us", "max_us")}
        values |= {key: now[key] - self.switches[key] for key in now}
        values |= {"cpu_seconds": round(cpu, 3), "cpu_us": cpu / units * 1e6,
                   "per_second": load["units"] / load["seconds"],
                   "switches": (values["voluntary"] + values["involuntary"]) / units,
                   # 1 is saturation; below it the load was slower than the proxy.
                   "busy": cpu / load["seconds"],
                   "load_cpu_seconds": load.get("cpu_seconds"),
                   "machine_steal_seconds": round(machine["steal"] - self.machine["steal"], 3)}
        if self.status:
            after = self.proxy.status()
            counters = {name: value - self.status["counters"].get(name, 0)
                        for name, value in after["counters"].items()}
            values["counters"] = counters
            values["ended"] = {name: value - self.status["ended"].get(name, 0)
                               for name, value in after["ended"].items()
                               if value != self.status["ended"].get(name, 0)}
            if "pipes_made" in counters:
                values["pipes_made"] = counters["pipes_made"]
                accepted = counters.get("accepted", 0)
                values["pipes_per_connection"] = counters["pipes_made"] / max(accepted, 1)
        return values


# --- measures -------------------------------------------------------------------------------------

def small(site, arm):
    """Keep-alive requests of wrk to nginx, real TLS from end to end."""
    proxies.start_nginx(site)
    proxy = proxies.start_proxy(site, arm)
    proxies.run_wrk(site, CONNECTIONS, 1)
    window = Window(proxy)
    return {"small": window.done(proxies.run_wrk(site, CONNECTIONS, site.options.seconds))}


SMALL_EXCHANGE = ("--payload", SMALL_PAYLOAD, "--reply", SMALL_REPLY)


class HalfAProcessor:
    """Holds a process to half of a processor, so that a load of no more than one is the faster part
    and the process never has to wait for it. By a cgroup of our own, v1 or v2."""

    def __init__(self, pid):
        self.directory = None
        for root, files in (("/sys/fs/cgroup/cpu", {"cpu.cfs_period_us": "20000",
                                                    "cpu.cfs_quota_us": "10000"}),
                            ("/sys/fs/cgroup", {"cpu.max": "10000 20000"})):
            directory = f"{root}/causeway-bench-{os.getpid()}"
            try:
                os.mkdir(directory)
                self.directory = directory
                for name, text in {**files, "cgroup.procs": str(pid)}.items():
                    with open(f"{directory}/{name}", "w", encoding="ascii") as file:
                        file.write(text)
                return
            except OSError as error:
                self.remove()
                reason = error
        raise proxies.Failed(f"no processor quota to be had: {reason}")

    def remove(self):
        """Once the process has ended."""
        if self.directory:
            os.rmdir(self.directory)
            self.directory = None


def saturated(site, arm):
    """The same with our own load, and a proxy that is kept slower than the load: its turns are as
    full as they get, and it never sleeps but for its quota."""
    proxies.start_origin(site)
    proxy = proxies.start_proxy(site, arm)
    quota = HalfAProcessor(proxy.pid)
    try:
        # More than it serves in the 10 ms between two pauses: some are always ready.
        words = ("--connections", 32 * CONNECTIONS, *SMALL_EXCHANGE)
        window = Window(proxy)
        load = proxies.run_client(site, proxies.RAW, *words, "--seconds", site.options.seconds)
        return {"switches": window.done(load)}
    finally:
        site.end(proxy.process)
        quota.remove()


def latency(site, arm):
    """The same on a schedule: latency at one rate for every arm, counted from the due time."""
    proxies.start_origin(site)
    proxy = proxies.start_proxy(site, arm)
    window = Window(proxy)
    load = proxies.run_client(site, proxies.RAW, "--connections", CONNECTIONS, *SMALL_EXCHANGE,
                              "--rate", site.options.rate, "--seconds", site.options.seconds)
    values = window.done(load)
    if values["per_second"] < 0.95 * site.options.rate:
        raise Failed(f"only {values['per_second']:.0f} requests a second of {site.options.rate}")
    return {"latency": values}


def connections(site, arm):
    """New connections: hello, greeting, and the origin ends first."""
    proxies.start_origin(site, closes=True)
    proxy = proxies.start_proxy(site, arm)
    words = ("--connections", 2 * CONNECTIONS, "--reopen", "--peer-closes")
    proxies.run_client(site, proxies.CLOSING, *words, "--units", 500)  # fills pools
    window = Window(proxy)
    load = proxies.run_client(site, proxies.CLOSING, *words, "--seconds", site.options.seconds)
    return {"connections": window.done(load)}


def moved(window, load):
    values = window.done(load)
    values["bytes"] = load["bytes_up"] + load["bytes_down"]
    values["gb_per_second"] = values["bytes"] / GB / load["seconds"]
    values["cpu_seconds_per_gb"] = values["cpu_seconds"] / (values["bytes"] / GB)
    return values


def both_ways(cells):
    total = sum(cell["bytes"] for cell in cells)
    return {"bytes": total,
            "gb_per_second": total / GB / sum(cell["seconds"] for cell in cells),
            "cpu_seconds_per_gb": sum(cell["cpu_seconds"] for cell in cells) / (total / GB)}


def bulk(site, arm):
    """Bytes both ways over 4 connections, then 1 MiB objects: kept alive, and one a connection."""
    proxies.start_origin(site)
    proxy = proxies.start_proxy(site, arm)
    size = site.options.bytes
    few, block = 4, max(size // 16, 1)
    objects = max(size // 2 // OBJECT, 64)
    plans = {
        "download": ("--connections", few, "--reply", block, "--units", 16),
        "upload": ("--connections", few, "--payload", block, "--reply", 8, "--units", 16),
        "objects": ("--connections", few, "--reply", OBJECT, "--units", objects),
        "object connections": ("--connections", 2 * few, "--reply", OBJECT, "--reopen", "--units",
                               objects)}
    # Fills pools: more at once than any cell below, so that those see the steady state.
    proxies.run_client(site, proxies.RAW, "--connections", 8 * few, "--reply", OBJECT, "--reopen",
                       "--units", 256)
    cells = {}
    for name, words in plans.items():
        window = Window(proxy)
        cells[name] = moved(window, proxies.run_client(site, proxies.RAW, *words))
    cells["both ways"] = both_ways([cells["download"], cells["upload"]])
    return cells


def await_ready(client, seconds):
    ready, _, _ = select.select([client.stdout], [], [], seconds)
    line = client.stdout.readline() if ready else b""
    if line.strip() != b"ready":
        raise Failed(f"idle connections: {line.decode(errors='replace').strip() or 'not ready'}")


def idle_cell(site, proxy, name, words):
    """Memory of connections that are relayed and silent; then one exchange on each, and again."""
    count = site.options.idle_connections
    if 2 * count + 512 > site.options.max_descriptors:
        raise Failed(f"{count} connections need {2 * count} descriptors, "
                     f"{site.options.max_descriptors} are allowed")
    proxies.run_client(site, name, "--connections", 16, *words, "--reopen", "--units", 64)
    proxies.pause(0.3)
    before = memory(proxy.pid)
    client = proxies.start_client(site, name, "--connections", count, *words, "--hold")
    states = {}
    for state in ("fresh", "used"):
        if state == "used":
            client.stdin.write(b"\n")
            client.stdin.flush()
        await_ready(client, site.options.limit)
        proxies.pause(0.5)
        states[state] = memory(proxy.pid)
        if proxy.admin:
            states[state]["status_pipes"] = proxy.status()["pipes"]
    result = proxies.finish_client(site, client)  # closes its stdin
    if result["held"] != count:
        raise Failed(f"only {result['held']} of {count} idle connections were kept")
    proxies.pause(0.5)
    values = {"before": before, "after": memory(proxy.pid), "connections": count} | states
    for state, found in states.items():
        values[f"{state}_bytes"] = (found["rss_kib"] - before["rss_kib"]) * 1024 / count
        values[f"{state}_pipes"] = found["pipes"]
        values[f"{state}_descriptors"] = (found["descriptors"] - before["descriptors"]) / count
    proxy.check_alive()
    return values


def idle(site, arm):
    """256 KiB through each connection between the two looks."""
    proxies.start_origin(site)
    proxy = proxies.start_proxy(site, arm)
    return {"idle": idle_cell(site, proxy, proxies.RAW, ("--reply", 2**18))}


def work_of(worker):
    counters = worker["counters"]
    return counters["bytes_to_client"] + counters["bytes_to_upstream"]


def share(values):
    return min(values) / max(values) if values and max(values) else 0.0


def rebalance_cell(site, arm, count, words):
    proxies.start_origin(site)
    proxy = proxies.start_proxy(site, arm, threads=2)
    before = proxy.status()["workers"]
    seconds = max(site.options.seconds / 2, 1)
    client = proxies.start_client(site, proxies.RAW, "--connections", count, *SMALL_EXCHANGE,
                                  "--seconds", seconds, *words)
    proxies.pause(seconds / 2)
    held = [worker["connections"] for worker in proxy.status()["workers"]]
    load = proxies.finish_client(site, client)
    work = [work_of(now) - work_of(then)
            for now, then in zip(proxy.status()["workers"], before)]
    proxy.check_alive()
    return {"share": share(work), "work": work, "connections": held,
            "connection_share": share(held), "units": load["units"],
            "per_second": load["units"] / load["seconds"]}


def rebalance(site, arm):
    """Two workers: the quietest one's share of the busiest one's work. On a schedule every
    connection asks for as much; at saturation it also tells which worker shares its processor with
    the load, for four threads want two processors."""
    cells = {}
    for count in (8, 16):
        for kind, words in (("", ("--rate", 200 * count)), (" saturated", ())):
            cells[f"rebalance {count}{kind}"] = rebalance_cell(site, arm, count, words)
            site.clear()
            site.fresh_network()
    return cells


MEASURES = {"small": small, "switches": saturated, "latency": latency, "connections": connections,
            "bulk": bulk, "idle": idle, "rebalance": rebalance}


def measure(site, name, function, arm):
    """The cells of one measure; a failure is a cell too. Raises NotRun."""
    try:
        site.fresh_network()
        return function(site, arm)
    except (Failed, OSError, KeyError, ValueError) as error:
        text = str(error) if isinstance(error, Failed) else repr(error)
        return {name: {"failed": text}}
    finally:
        site.clear()
