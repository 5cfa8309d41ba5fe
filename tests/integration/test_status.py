# SPDX-License-Identifier: Apache-2.0
"""The admin socket and causewayctl."""

import json
import socket
import stat
import subprocess

import pytest

from causeway_testlib.pair import HOST_IP, HOST_TAP
from causeway_testlib.programs import program_path
from causeway_testlib.waiting import wait_until

COUNTERS = {"from_tap_frames", "from_tap_bytes", "to_tap_frames", "to_tap_bytes",
            "from_wire_records", "from_wire_bytes", "from_wire_reads",
            "to_wire_records", "to_wire_bytes", "to_wire_writes"}
END_REASONS = {"peer_closed", "truncated", "record_too_short", "record_too_long",
               "unknown_record_type", "stream_error", "replaced", "stopped"}


def ctl(program, *arguments):
    return subprocess.run([program_path("causewayctl"), "--socket", program.admin.path, *arguments],
                          capture_output=True, text=True, timeout=10, check=False)


@pytest.mark.parametrize("name", ["host", "guest"])
def test_status_of_a_pair_that_is_up(pair, name):
    pair.start_both()
    pair.wait_ping()
    program = getattr(pair, name)
    status = program.status()
    assert status["program"] == f"causeway-{name}"
    assert status["pid"] == program.pid
    assert status["wire_requested"] == "plain" and status["wire"] == "plain"
    assert status["session"]["state"] == "up"
    lanes = status["session"]["lanes"]
    assert len(lanes) == 1 and lanes[0]["transport"] == "unix" and lanes[0]["index"] == 0
    assert COUNTERS <= set(status["counters"])
    assert END_REASONS <= set(status["ended"])
    for key in ("from_tap_frames", "to_tap_frames", "from_wire_records", "to_wire_records"):
        assert status["counters"][key] > 0
    assert all(value == 0 for value in status["ended"].values())


def test_status_before_a_connection(pair):
    status = pair.start_host().status()
    assert status["session"]["state"] == "listening"
    assert status["wire"] is None
    assert status["session"]["connections_total"] == 0
    assert status["tap"]["name"] == HOST_TAP


def test_counters_add_up_over_the_wire(pair):
    """What one side sent is what the other received, record by record and byte by byte."""
    pair.start_both()
    pair.wait_ping()
    assert pair.guest_ns.ping(HOST_IP, count=50)

    def balanced():
        host, guest = (program.status()["counters"] for program in (pair.host, pair.guest))
        return (host["to_wire_bytes"] == guest["from_wire_bytes"]
                and host["from_wire_bytes"] == guest["to_wire_bytes"]
                and host["to_wire_records"] == guest["from_wire_records"]
                and host["from_wire_records"] == guest["to_wire_records"]
                and guest["to_wire_records"] >= 50)

    wait_until(balanced, "both ends count the same")


def test_uptime_advances(pair):
    host = pair.start_host()
    first = host.status()["uptime_seconds"]
    wait_until(lambda: host.status()["uptime_seconds"] > first, "uptime advances", 5)


def test_healthz_follows_the_session(pair):
    host = pair.start_host()
    assert host.admin.get("/healthz")[0] == 503
    pair.start_guest()
    pair.wait_up()
    assert host.admin.get("/healthz")[0] == pair.guest.admin.get("/healthz")[0] == 200


def test_paths_of_the_admin_endpoint(pair):
    host = pair.start_host()
    code, kind, _ = host.admin.get("/status")
    assert code == 200 and kind.startswith("application/json")
    assert host.admin.get("/absent")[0] == 404


def test_admin_socket_is_for_its_owner_only(pair):
    path = pair.start_host().admin.path
    assert stat.S_IMODE(path.stat().st_mode) & 0o007 == 0


def test_garbage_on_the_admin_socket(pair):
    host = pair.start_host()
    for data in (b"\0" * 64, b"GET\r\n\r\n", b"\xff" * 100000, b"POST /status HTTP/1.1\r\n\r\n", b""):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(2)
            stream.connect(str(host.admin.path))
            try:
                stream.sendall(data)
                stream.shutdown(socket.SHUT_WR)
                stream.recv(4096)
            except OSError:
                pass
    assert host.status()["pid"] == host.pid


def test_a_silent_admin_client_holds_nobody_up(pair):
    host = pair.start_host()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(host.admin.path))
        silent.sendall(b"GET /sta")
        assert host.status()["pid"] == host.pid
        code, seconds = host.terminate()
    assert code == 0 and seconds < 1.0


def test_causewayctl_status(pair):
    pair.start_both()
    pair.wait_ping()
    shown = ctl(pair.host, "status")
    assert shown.returncode == 0 and shown.stderr == ""
    for word in ("causeway-host", HOST_TAP, "up", "plain"):
        assert word in shown.stdout
    # Any counter of the status page can be found by its name.
    for word in COUNTERS:
        assert word in shown.stdout or word.replace("_", " ") in shown.stdout


def test_causewayctl_status_json(pair):
    pair.start_both()
    shown = ctl(pair.guest, "status", "--json")
    assert shown.returncode == 0
    status = json.loads(shown.stdout)
    assert status["program"] == "causeway-guest" and status["pid"] == pair.guest.pid


def test_causewayctl_refuses_an_unknown_command(pair):
    host = pair.start_host()
    shown = ctl(host, "no-such-command")
    assert shown.returncode == 2
    assert len(shown.stderr.splitlines()) == 1
