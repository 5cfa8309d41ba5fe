# SPDX-License-Identifier: Apache-2.0
"""A small Linux under QEMU's own emulation (no KVM), whose card is a `-netdev stream`.

The kernel is Debian's cloud kernel: its package is downloaded, never installed, and unpacked below
build/cache. The root is an initramfs of busybox, the few modules virtio-net needs, and one script.
"""

import gzip
import os
import pathlib
import re
import shutil
import subprocess

from .programs import ROOT, Process

CACHE = ROOT / "build" / "cache" / "qemu"
BUSYBOX = "/bin/busybox"
QEMU = "qemu-system-x86_64"
# In the order in which they depend on each other.
MODULES = ("virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci",
           "failover", "net_failover", "virtio_net")


def missing():
    """Why this machine cannot run it, or None."""
    if os.uname().machine != "x86_64":
        return f"the emulated guest is x86-64, this machine is {os.uname().machine}"
    for program in (QEMU, "apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not os.path.exists(BUSYBOX):
        return "busybox-static is not installed"
    return None


def _call(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120,
                          **options).stdout


def kernel():
    """The unpacked kernel package; None when it cannot be had (no network, no such package)."""
    for tree in CACHE.glob("linux-image-*-cloud-amd64"):
        return tree
    try:
        found = _call("apt-cache", "depends", "linux-image-cloud-amd64")
        package = re.search(r"Depends: (linux-image-\S+)", found)
        if package is None:
            return None
        tree = CACHE / package[1]
        work = CACHE / f"{package[1]}.{os.getpid()}"
        work.mkdir(parents=True)
        try:
            _call("apt-get", "download", "-q", package[1], cwd=work)
            _call("dpkg-deb", "-x", next(work.glob("*.deb")), work / "tree")
            (work / "tree").rename(tree)
        finally:
            shutil.rmtree(work)
        return tree
    except (subprocess.SubprocessError, OSError, StopIteration):
        return None


def _cpio_entry(name, mode, data=b"", device=(0, 0)):
    """One entry of the `newc` format that the kernel unpacks (its initramfs buffer format)."""
    encoded = name.encode() + b"\0"
    fields = [0, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(encoded), 0]
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
    return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)


def initramfs(tree, script):
    entries = [_cpio_entry(name, 0o040755) for name in ("bin", "dev", "proc", "sys", "tmp", "lib")]
    entries.append(_cpio_entry("dev/console", 0o020600, device=(5, 1)))
    entries.append(_cpio_entry("bin/busybox", 0o100755, pathlib.Path(BUSYBOX).read_bytes()))
    inserts = ""
    for name in MODULES:
        path = next(tree.glob(f"lib/modules/*/kernel/**/{name}.ko"))
        entries.append(_cpio_entry(f"lib/{name}.ko", 0o100644, path.read_bytes()))
        inserts += f"insmod /lib/{name}.ko\n"
    init = ("#!/bin/busybox sh\n/bin/busybox --install -s /bin\nexport PATH=/bin\n"
            "mount -t proc none /proc\nmount -t sysfs none /sys\nmount -t devtmpfs none /dev\n"
            f"{inserts}{script}\npoweroff -f\n")
    entries.append(_cpio_entry("init", 0o100755, init.encode()))
    entries.append(_cpio_entry("TRAILER!!!", 0))
    return gzip.compress(b"".join(entries), 1)


def boot(namespace, directory, tree, script, socket_path):
    """Starts the machine; its console is the process's log. It powers itself off in the end."""
    image = directory / "initramfs.gz"
    image.write_bytes(initramfs(tree, script))
    return Process(namespace, [
        shutil.which(QEMU), "-accel", "tcg", "-cpu", "max", "-m", "256", "-nodefaults",
        "-display", "none", "-serial", "stdio", "-no-reboot",
        "-kernel", next((tree / "boot").glob("vmlinuz-*")), "-initrd", image,
        "-append", "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on",
        "-netdev", f"stream,id=wire,server=off,addr.type=unix,addr.path={socket_path}",
        "-device", "virtio-net-pci,netdev=wire,romfile="], directory / "console.log")
