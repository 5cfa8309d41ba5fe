# SPDX-License-Identifier: Apache-2.0
"""Scenarios that test the machine itself: without these, no other result means anything."""

import errno
import hashlib
import os
import random
import socket
import struct
import threading
import time

import guard
import vm

MODULES = ("tun", "tls", "gcm", "ghash_generic", "chacha20poly1305", "vsock", "vsock_loopback")
IOCTL_VM_SOCKETS_GET_LOCAL_CID = 0x7B9
TCP_ULP, SOL_TLS, TLS_TX, TLS_RX = 31, 282, 1, 2  # include/uapi/linux/{tcp,tls}.h
TLS_1_3_VERSION = 0x0304
TLS_CIPHER_AES_GCM_128, TLS_CIPHER_AES_GCM_256, TLS_CIPHER_CHACHA20 = 51, 52, 54


def modules(_data):
    with open("/proc/modules", encoding="ascii") as file:
        loaded = {line.split()[0] for line in file}
    missing = [name for name in MODULES if name not in loaded]
    vm.check(not missing, f"not loaded: {missing}")
    for path in ("/dev/net/tun", "/dev/vsock"):
        vm.check(os.path.exists(path), f"{path} is missing")


def root_is_read_only(_data):
    """No scenario can change the machine's own files, even as root and after a remount."""
    for directory in ("/var/tmp", "/run/causeway/tree", "/run/causeway/bin"):
        try:
            os.close(os.open(f"{directory}/causeway-vm-probe", os.O_CREAT | os.O_WRONLY))
        except OSError as error:
            vm.check(error.errno in (errno.EROFS, errno.EACCES), f"{directory}: {error}")
        else:
            raise vm.Failed(f"{directory} can be written")
    vm.run(["/usr/bin/busybox", "mount", "-o", "remount,rw", "/"])
    try:
        os.close(os.open("/var/tmp/causeway-vm-probe", os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        vm.check(error.errno == errno.EROFS, f"after a remount: {error}")
    else:
        raise vm.Failed("/var/tmp can be written after a remount")
    finally:
        vm.run(["/usr/bin/busybox", "mount", "-o", "remount,ro", "/"])


def vsock_loopback(data):
    """Two threads, CID 1, 64 MiB in 64 KiB writes, digests compared."""
    chunk = random.Random(1).randbytes(1 << 16)
    total = 64 << 20
    with guard.vsock_socket() as listener:
        listener.bind((guard.CID_ANY, 4999))
        listener.listen(1)
        listener.settimeout(10)
        received = {}

        def serve():
            stream, peer = listener.accept()
            digest, size = hashlib.sha256(), 0
            buffer = bytearray(1 << 18)
            while count := stream.recv_into(buffer):
                digest.update(memoryview(buffer)[:count])
                size += count
            received.update(digest=digest.hexdigest(), size=size, cid=peer[0])
            stream.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with guard.vsock_socket() as client:
            client.settimeout(10)
            client.connect((guard.CID_LOCAL, 4999))
            expected = hashlib.sha256()
            began = time.monotonic()
            for _ in range(total // len(chunk)):
                client.sendall(chunk)
                expected.update(chunk)
        thread.join(20)
        seconds = time.monotonic() - began
    vm.check(received.get("size") == total, f"received {received.get('size')} of {total} bytes")
    vm.check(received["digest"] == expected.hexdigest(), "the digest differs")
    data["mib_per_second"] = round(64 / seconds, 1)
    rate = data["mib_per_second"]
    return f"64 MiB checked, peer CID {received['cid']}, {rate} MiB/s with hashing"


def vsock_refusals(data):
    """The errors that our programs must take: no listener, and a CID that no transport reaches."""
    found = {}
    for name, address in {"no listener": (guard.CID_LOCAL, 4990), "no route": (77, 4990)}.items():
        with guard.vsock_socket() as client:
            client.settimeout(5)
            try:
                client.connect(address)
                found[name] = "connected"
            except OSError as error:
                found[name] = errno.errorcode.get(error.errno, str(error))
    data.update(found)
    vm.check(found["no listener"] == "ECONNRESET", f"{found}")
    vm.check(found["no route"] in ("ENODEV", "ENETUNREACH"), f"{found}")
    return ", ".join(f"{name}: {value}" for name, value in found.items())


def ktls_pair(info):
    """A loopback TCP pair on which the kernel encrypts one side and decrypts the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    for stream in (client, server):
        stream.settimeout(5)
        stream.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
    client.setsockopt(SOL_TLS, TLS_TX, info)
    server.setsockopt(SOL_TLS, TLS_RX, info)
    return client, server


def ktls(data):
    """TCP_ULP "tls" with each cipher: what one side's kernel encrypts the other's decrypts."""
    # struct tls12_crypto_info_*: version, cipher, iv, key, salt, rec_seq (uapi/linux/tls.h).
    ciphers = {
        "AES-128-GCM": struct.pack("=HH8s16s4s8s", TLS_1_3_VERSION, TLS_CIPHER_AES_GCM_128,
                                   b"iviviviv", bytes(range(16)), b"salt", bytes(8)),
        "AES-256-GCM": struct.pack("=HH8s32s4s8s", TLS_1_3_VERSION, TLS_CIPHER_AES_GCM_256,
                                   b"iviviviv", bytes(range(32)), b"salt", bytes(8)),
        "ChaCha20-Poly1305": struct.pack("=HH12s32s8s", TLS_1_3_VERSION, TLS_CIPHER_CHACHA20,
                                         b"iviviviviviv", bytes(range(32)), bytes(8)),
    }
    payload = random.Random(2).randbytes(40000)
    for name, info in ciphers.items():
        client, server = ktls_pair(info)
        with client, server:
            client.sendall(payload)
            received = b""
            while len(received) < len(payload):
                part = server.recv(1 << 16)
                vm.check(part, f"{name}: ended after {len(received)} bytes")
                received += part
        vm.check(received == payload, f"{name}: the plaintext differs")
    with open("/proc/net/tls_stat", encoding="ascii") as file:
        counters = dict(line.split() for line in file)
    data.update({name: int(counters[name]) for name in ("TlsTxSw", "TlsRxSw", "TlsDecryptError")})
    vm.check(data["TlsTxSw"] >= 3 and data["TlsRxSw"] >= 3, f"{data}")
    vm.check(data["TlsDecryptError"] == 0, f"{data}")
    return ", ".join(ciphers)


def namespaces_share_vsock(_data):
    """In this kernel AF_VSOCK is global, so that both ends of a pair may sit in namespaces."""
    server = f"""
import sys; sys.path.insert(0, {os.path.dirname(__file__)!r}); sys.dont_write_bytecode = True
import guard
with guard.vsock_socket() as s:
    s.bind((guard.CID_ANY, 4998)); s.listen(1); print("ready", flush=True)
    c, _ = s.accept(); c.sendall(b"across")
"""
    process = vm.spawn(["/usr/bin/python3", "-c", server], "vsock-server", namespace=vm.HOST)
    vm.wait_until(lambda: b"ready" in process.log_bytes(), 10, "the server to listen")
    client = server.split("with", 1)[0] + """
with guard.vsock_socket() as s:
    s.settimeout(5); s.connect((guard.CID_LOCAL, 4998)); print(s.recv(64).decode())
"""
    result = vm.run(["/usr/bin/python3", "-c", client], namespace=vm.GUEST)
    vm.check(result.stdout.strip() == "across", result.stdout + result.stderr)


# name, function, limit in seconds
SCENARIOS = [
    ("modules", modules, 10),
    ("root_is_read_only", root_is_read_only, 10),
    ("vsock_loopback", vsock_loopback, 30),
    ("vsock_refusals", vsock_refusals, 15),
    ("vsock_across_namespaces", namespaces_share_vsock, 20),
    ("ktls", ktls, 10),
]
