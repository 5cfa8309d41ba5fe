# SPDX-License-Identifier: Apache-2.0
"""The guard: AF_VSOCK is used inside our User Mode Linux and nowhere else.

On a development machine a vsock address may lead to a real hypervisor, outside of every sandbox.
This module answers one question, "is this process inside the User Mode Linux that tests/vm/run
booted?", from several independent signs, all of which must hold. A sign that cannot be read counts
as absent: every doubt is a refusal. It opens no socket and has no way of being switched off.

The only functions of tests/vm that create a vsock socket or name a vsock address are at the end of
this file, and each asks the question again.
"""

import os
import re
import socket
import sys

REFUSED_EXIT_CODE = 97
# Passed by tests/vm/run on the kernel's command line; never set on a machine that boots by itself.
COMMAND_LINE_MARK = "causeway_vm=uml"
# Anything that could carry a vsock packet out of the kernel. None may be loaded.
OUTSIDE_TRANSPORTS = (
    "vmw_vsock_virtio_transport",
    "vmw_vsock_vmci_transport",
    "hv_sock",
    "vhost_vsock",
)
CID_ANY = 0xFFFFFFFF
CID_LOCAL = 1


def why_not_uml(cpuinfo, mounts, command_line, modules):
    """Reasons (a list, empty = inside) from the texts of /proc/{cpuinfo,mounts,cmdline,modules}."""
    reasons = []
    vendors = re.findall(r"^vendor_id\s*:\s*(.*?)\s*$", cpuinfo, re.M)
    models = re.findall(r"^model name\s*:\s*(.*?)\s*$", cpuinfo, re.M)
    if not vendors or set(vendors) != {"User Mode Linux"} or not models or set(models) != {"UML"}:
        reasons.append("/proc/cpuinfo does not say User Mode Linux")
    # A process could be shown another machine's file by a mount over it, so nothing may be mounted
    # below /proc, and /proc itself must be a real one.
    entries = [line.split() for line in mounts.splitlines() if len(line.split()) >= 3]
    types = {entry[1]: entry[2] for entry in entries}
    if types.get("/") != "hostfs":
        reasons.append("the root file system is not hostfs")
    if types.get("/proc") != "proc" or any(e[1].startswith("/proc/") for e in entries):
        reasons.append("/proc is not a plain proc file system")
    if COMMAND_LINE_MARK not in command_line.split():
        reasons.append(f"the kernel's command line lacks {COMMAND_LINE_MARK}")
    loaded = {line.split()[0] for line in modules.splitlines() if line.strip()}
    if "vsock_loopback" not in loaded:
        reasons.append("the module vsock_loopback is not loaded")
    for name in OUTSIDE_TRANSPORTS:
        if name in loaded:
            reasons.append(f"the module {name} is loaded: vsock could leave this kernel")
    return reasons


def reasons_against():
    """why_not_uml() of this very process; anything unreadable is a reason."""
    try:
        texts = []
        for name in ("cpuinfo", "mounts", "cmdline", "modules"):
            with open(f"/proc/{name}", encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        reasons = why_not_uml(*texts)
        if os.readlink("/proc/self") != str(os.getpid()):
            reasons.append("/proc belongs to another process namespace")
        return reasons
    except Exception as error:  # whatever it is: refuse
        return [f"cannot tell: {error}"]


def require_uml():
    """Returns inside our User Mode Linux; ends the process everywhere else."""
    reasons = reasons_against()
    if reasons:
        sys.stderr.write("tests/vm: refused outside User Mode Linux: " + "; ".join(reasons) + "\n")
        sys.stderr.flush()
        os._exit(REFUSED_EXIT_CODE)  # not an exception: no handler may carry on


def vsock_socket():
    """A stream socket of the address family AF_VSOCK."""
    require_uml()
    return socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)


def vsock_listen_address(port):
    """The text that our programs take for `listen on this port`."""
    require_uml()
    return f"vsock:any:{port}"


def vsock_connect_address(port, cid=CID_LOCAL):
    """The text that our programs take for `connect to this port`, the loopback CID by default."""
    require_uml()
    return f"vsock:{cid}:{port}"
