# SPDX-License-Identifier: Apache-2.0
"""Where a proxy's CPU goes in a handshake: perf's samples of it, with their call chains.

Whose a sample is, its innermost frame says: by the object that it is in, and within the proxy's own
program by the source file, which the debug information tells (addr2line); without that its name
decides, as well as it can. What it was spent *for* is the system call that it is in, or else the
innermost function of the proxy or of its TLS library: what that calls of libcrypto and libc is
counted to it.
"""

import collections
import os
import re
import subprocess

import harness
import measures
import proxies
import terminate
from harness import Failed, NotRun

CRYPTO, TLS_CRYPTO, TLS, KERNEL, OWN, OTHER = (
    "cryptography: libcrypto, ipsec-mb, crypto/", "the TLS library's own cryptography",
    "the TLS library", "kernel", "the proxy's own code", "libc and other")
SHORT = {CRYPTO: "crypto", TLS_CRYPTO: "TLS library's crypto", TLS: "TLS library",
         KERNEL: "kernel", OWN: "own", OTHER: "libc"}
KINDS = [(f"{'resumed' if resumes else 'full'} {version}", version, resumes)
         for resumes in (False, True) for version in terminate.VERSIONS]
FREQUENCY = 997  # samples a second of CPU; a prime, so as not to meet a timer each time
STACK = 8192     # bytes that each sample keeps, for its call chain
TOP = 24         # lines that the report has of each kind
# mbedTLS's files that speak TLS and read certificates; what else it has is cryptography.
PROTOCOL = re.compile(r"(ssl_|x509|pk|oid|asn1|pem|base64|net_|debug|error|version|platform)")


# --- whose a sample is ----------------------------------------------------------------------------

def by_object(name):
    """The category of a shared object; None for the program itself."""
    for pattern, category in ((r"\[kernel|\[guest\.kernel|\.ko$|^\[bpf", KERNEL),
                              (r"libcrypto|libIPSec_MB", CRYPTO), (r"libssl", TLS),
                              (r"\.so\b|^\[|^inlined", OTHER)):
        if re.search(pattern, name):
            return category
    return None


def by_file(path):
    """None for a header of the system or of mbedTLS, which says nothing of who is inlining it."""
    if "/gateway/crypto/" in path:
        return CRYPTO
    if path.endswith(".c"):
        return TLS if PROTOCOL.match(os.path.basename(path)) else TLS_CRYPTO
    return None if path.endswith(".h") else OWN


def by_name(name, others):
    """`others`: whose the rest is that is not C++."""
    if re.match(r"(mbedtls_)?(ssl|x509|pk|oid|asn1|pem)_", name):
        return TLS
    if re.match(r"mbedtls_|psa_|mpi_|ecp_", name):
        return TLS_CRYPTO
    if "gateway::crypto::" in name:
        return CRYPTO
    return OWN if "::" in name else others


class Program:
    """Whose the code of one program is, by its address."""

    def __init__(self, path):
        self.path = path
        self.files = {}

    def learn(self, addresses):
        addresses = [address for address in addresses if address not in self.files]
        try:
            done = subprocess.run(["addr2line", "-e", self.path], capture_output=True, text=True,
                                  input="".join(f"{address}\n" for address in addresses),
                                  timeout=120)
        except (OSError, subprocess.TimeoutExpired):
            return  # no binutils: names decide
        for address, place in zip(addresses, done.stdout.splitlines()):
            if not place.startswith("??"):
                self.files[address] = place.rsplit(":", 1)[0]

    def category(self, frame):
        path = self.files.get(frame.address)
        # What has no source file where others have one came from a library that was linked in.
        return (path and by_file(path)) or \
            by_name(frame.function, OTHER if self.files and not path else OWN)


# --- perf -----------------------------------------------------------------------------------------

Frame = collections.namedtuple("Frame", "address function object")


def record(site, proxy, seconds):
    """A file of samples of the proxy; the load is running."""
    data, log = site.path("perf.data"), site.path("perf.log")
    perf = site.spawn([proxies.require("perf"), "record", "-N", "-F", str(FREQUENCY),
                       "--call-graph", f"dwarf,{STACK}", "-p", str(proxy.pid), "-o", data, "--",
                       "sleep", str(seconds)], site.load_cpus, log)
    try:
        status = perf.wait(seconds + 30)
    except subprocess.TimeoutExpired:
        raise Failed("perf did not end") from None
    if status != 0 or not os.path.exists(data):
        raise NotRun(f"perf record: status {status}: {harness.last_line(log)}")
    return data


def samples(data):
    """The frames of each sample, the innermost first."""
    text = harness.run([proxies.require("perf"), "script", "-i", data, "--no-inline", "-F",
                        "ip,sym,dso"])
    found = []
    for block in re.split(r"\n\s*\n", text):
        frames = [Frame(*match.groups()) for match in
                  re.finditer(r"^\s*([0-9a-f]+) (.+) \((.+)\)$", block, re.MULTILINE)]
        if frames:
            found.append(frames)
    if not found:
        raise Failed("perf saw nothing")
    return found


def kernel_purpose(frames):
    for frame in frames:
        call = re.fullmatch(r"__(?:x64|arm64)_sys_(\w+)", frame.function)
        if call:
            return f"system call {call[1]}"
        if "page_fault" in frame.function:
            return "page faults"
        if by_object(frame.object) != KERNEL:
            # The compiler has dropped the kernel's own name; libc's is as good.
            wrapper = re.sub(r"^_*(GI_+|libc_)?", "", frame.function)
            return f"system call {wrapper}" if by_object(frame.object) == OTHER else "interrupts"
    return "interrupts"


def purpose(frames):
    if by_object(frames[0].object) == KERNEL:
        return kernel_purpose(frames)
    for frame in frames:
        if by_object(frame.object) in (None, TLS) and frame.function != "[unknown]":
            return frame.function
    return f"in {os.path.basename(frames[0].object)}"


def split(found, program):
    """Shares by category; and shares by purpose, each split by category."""
    inner = [frames[0] for frames in found]
    program.learn({frame.address for frame in inner if by_object(frame.object) is None})
    shares = dict.fromkeys((CRYPTO, TLS_CRYPTO, TLS, KERNEL, OWN, OTHER), 0.0)
    purposes = {}
    for frames in found:
        category = by_object(frames[0].object) or program.category(frames[0])
        parts = purposes.setdefault(purpose(frames), dict.fromkeys(shares, 0.0))
        for counts in (shares, parts):
            counts[category] += 1 / len(found)
    top = sorted(purposes.items(), key=lambda one: -sum(one[1].values()))[:TOP]
    return shares, dict(top)


def profile(site, arm, version, resumes):
    """{"cpu_us", "units", "samples", "shares": {category: share},
    "purposes": {purpose: {category: share}}} of one kind."""
    site.fresh_network()
    try:
        proxy = terminate.start(site, arm)
        words = terminate.handshake_words(version, resumes)
        terminate.run(site, *words, "--units", 200)
        window = measures.Window(proxy)
        # The load goes on for longer than perf looks: it takes its time to begin.
        client = proxies.start_client(site, proxies.TERMINATED, *words, "--seconds",
                                      site.options.seconds + 1)
        proxies.pause(0.3)
        data = record(site, proxy, site.options.seconds)
        load = proxies.finish_client(site, client)
        values = window.done(load)
        terminate.check(values, load, version, resumes=resumes)
        found = samples(data)
        shares, purposes = split(found, Program(os.readlink(f"/proc/{proxy.pid}/exe")))
        return {"cpu_us": values["cpu_us"], "units": values["units"], "samples": len(found),
                "shares": shares, "purposes": purposes}
    finally:
        site.clear()


# --- the report -----------------------------------------------------------------------------------

def cell(values, share):
    return f"{values['cpu_us'] * share:.1f} us ({share * 100:.0f} %)"


def document(facts, found, not_run, table):
    """`found`: arm -> kind -> what profile() gave, or {"failed": reason}."""
    parts = [f"- {key}: {value}" for key, value in facts.items()]
    parts += ["", "CPU of the proxy for one new connection: handshake, 64 B up, 1 KiB down, the "
                  "end; how it splits is perf's sampling, which costs a little itself. In the "
                  "tables by purpose a function has with it what it calls of libcrypto and libc."]
    for arm, kinds in found.items():
        good = {kind: values for kind, values in kinds.items() if "failed" not in values}
        if good:
            rows = [[f"{arm}: CPU of a connection", *good],
                    ["all; samples", *(f"{values['cpu_us']:.1f} us; {values['samples']}"
                              for values in good.values())]]
            for category in next(iter(good.values()))["shares"]:
                rows.append([category, *(cell(values, values["shares"][category])
                                         for values in good.values())])
            parts += ["", table(rows)]
        for kind, values in good.items():
            rows = [[f"{arm}, {kind}: spent for", "CPU", "in"]]
            for what, shares in values["purposes"].items():
                places = sorted(((share, SHORT[category]) for category, share in shares.items()
                                 if share > 0), reverse=True)
                rows.append([what.replace("|", "/")[:90], cell(values, sum(shares.values())),
                             ", ".join(f"{name} {share * values['cpu_us']:.1f}"
                                       for share, name in places)])
            parts += ["", table(rows)]
        parts += [f"\nfailed: {arm}, {kind}: {values['failed']}"
                  for kind, values in kinds.items() if "failed" in values]
    parts += [f"\nnot run: {name}: {reason}" for name, reason in not_run.items()]
    return "\n".join(parts) + "\n"
