# SPDX-License-Identifier: Apache-2.0
"""Wrong flags, wrong configuration, a machine that does not allow it: one line, the right code.

Exit code 2 is wrong usage (flags), 1 is wrong configuration or a set-up that failed.
"""

import json
import re
import shutil
import socket
import subprocess

import pytest

from causeway_testlib.pair import HOST_TAP
from causeway_testlib.programs import SLOW, program_path
from causeway_testlib.wire import RawPeer

PROGRAMS = ["causeway-host", "causeway-guest"]


def run(pair, name, *arguments, wrap=()):
    """Runs a program to its end in the host's namespace; one that goes on instead is a failure."""
    return pair.host_ns.run(*wrap, program_path(name), *arguments, check=False, timeout=10 * SLOW)


def minimal(name, pair, tap="cwbad0"):
    end = "--listen" if name == "causeway-host" else "--connect"
    return [end, f"unix:{pair.directory}/bad", "--tap", tap]


def check_refused(result, code, *words):
    """One line on stderr, nothing on stdout, and the line names what is wrong."""
    assert result.returncode == code, f"{result.returncode}: {result.stdout}{result.stderr}"
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert result.stdout == ""
    for word in words:
        assert word.lower() in lines[0].lower(), f"{word!r} is not in: {lines[0]}"
    return lines[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_unknown_flag(pair, name):
    check_refused(run(pair, name, *minimal(name, pair), "--no-such-flag"), 2, "--no-such-flag")


@pytest.mark.parametrize("name", PROGRAMS)
def test_flag_without_its_value(pair, name):
    check_refused(run(pair, name, *minimal(name, pair), "--mtu"), 2, "--mtu")


@pytest.mark.parametrize("name, needed", [("causeway-host", "listen"),
                                          ("causeway-guest", "connect")])
def test_nothing_given_says_what_is_needed(pair, name, needed):
    result = run(pair, name)
    assert result.returncode in (1, 2)
    check_refused(result, result.returncode, needed)


BAD_VALUES = {
    "mtu_word": ("--mtu", "many"),
    "mtu_negative": ("--mtu", "-1"),
    "mtu_zero": ("--mtu", "0"),
    "mtu_huge": ("--mtu", "99999999999999999999"),
    "cidr_without_prefix": ("--address", "10.0.0.1"),
    "cidr_prefix_33": ("--address", "10.0.0.1/33"),
    "cidr_bad_octet": ("--address", "10.0.0.256/24"),
    "cidr_v6_prefix_129": ("--address", "fd00::1/129"),
    "wire": ("--wire", "fast"),
    "lanes_zero": ("--lanes", "0"),
    "tap_too_long": ("--tap", "a-name-of-sixteen"),
    "tap_with_slash": ("--tap", "a/b"),
    "tap_empty": ("--tap", ""),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("case", BAD_VALUES)
def test_bad_value_of_a_flag(pair, name, case):
    flag, value = BAD_VALUES[case]
    arguments = minimal(name, pair)
    if flag == "--tap":
        arguments = arguments[:2]
    check_refused(run(pair, name, *arguments, flag, value), 2, flag)


BAD_ADDRESSES = ["", "unix:", "unix:relative", "unix:/" + "x" * 108, "tcp:127.0.0.1",
                 "tcp:127.0.0.1:65536", "tcp:127.0.0.1:http", "tcp:::1:80", "vsock:5000",
                 "vsock:3:4294967296", "vsock:x:5000", "tap:t0", "http://x", "127.0.0.1:80",
                 "fd:", "fd:-1"]


@pytest.mark.parametrize("address", BAD_ADDRESSES)
@pytest.mark.parametrize("name, flag", [("causeway-host", "--listen"),
                                        ("causeway-guest", "--connect")])
def test_bad_address(pair, name, flag, address):
    check_refused(run(pair, name, flag, address, "--tap", "cwbad0"), 2, flag)


# --- configuration files -------------------------------------------------------------------------

def configure(pair, name, text):
    path = pair.directory / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path, run(pair, name, "--config", path, "--check-config")


def check_places(path, result, *wanted):
    """Every error as `file:line:col: key: message`; wanted: (line, column or None, words...)."""
    assert result.returncode == 1, f"{result.returncode}: {result.stdout}{result.stderr}"
    lines = result.stderr.splitlines()
    assert len(lines) == len(wanted), result.stderr
    for line, (row, column, *words) in zip(lines, wanted):
        match = re.fullmatch(rf"{re.escape(str(path))}:(\d+):(\d+): (.+)", line)
        assert match, f"not file:line:col: message: {line}"
        assert int(match[1]) == row, line
        assert column is None or int(match[2]) == column, line
        for word in words:
            assert word.lower() in match[3].lower(), f"{word!r} is not in: {line}"


@pytest.mark.parametrize("name, key", [("causeway-host", "listen"), ("causeway-guest", "connect")])
class TestConfigurationFile:
    def good(self, key, extra=""):
        return f'{{\n  "{key}": "unix:/run/x",\n  "tap": "t0"{extra}\n}}\n'

    def test_good_file_with_comments(self, pair, name, key):
        text = "// a comment\n" + self.good(key).replace('"tap"', '/* another */ "tap"')
        _, result = configure(pair, name, text)
        assert result.returncode == 0, result.stderr
        assert result.stdout == "configuration ok\n"

    def test_unknown_key_names_the_nearest(self, pair, name, key):
        path, result = configure(pair, name, self.good(key, ',\n  "adress": []'))
        check_places(path, result, (4, 3, "adress", '"address"'))

    def test_duplicate_key(self, pair, name, key):
        path, result = configure(pair, name, self.good(key, ',\n  "tap": "t1"'))
        check_places(path, result, (4, 3, "tap", "duplicate"))

    def test_wrong_type(self, pair, name, key):
        path, result = configure(pair, name, self.good(key, ',\n  "mtu": "1500"'))
        check_places(path, result, (4, None, "mtu"))

    def test_out_of_range(self, pair, name, key):
        path, result = configure(pair, name, self.good(key, ',\n  "mtu": 5'))
        check_places(path, result, (4, None, "mtu"))

    def test_bad_cidr_in_a_list(self, pair, name, key):
        path, result = configure(pair, name,
                                 self.good(key, ',\n  "address": ["10.0.0.1/24",\n "10.0.0/8"]'))
        check_places(path, result, (5, None, "address"))

    def test_bad_address(self, pair, name, key):
        path, result = configure(pair, name, f'{{\n\n"{key}": "udp:x", "tap": "t0"}}')
        check_places(path, result, (3, None, key))

    def test_every_error_is_reported(self, pair, name, key):
        path, result = configure(pair, name, self.good(key, ',\n  "mtu": 5,\n  "mtuu": 2'))
        check_places(path, result, (4, None, "mtu"), (5, 3, "mtuu", '"mtu"'))

    @pytest.mark.parametrize("text", ["", "{", "[]", "{]", '{"tap": }', '{"tap": "t0"} x', "\0",
                                      b'{"tap": "\xff\xfe"}', '{"tap": "t0",}', "/* open"])
    def test_broken_json(self, pair, name, key, text):
        path, result = configure(pair, name, text)
        assert result.returncode == 1, result.stderr
        assert re.match(rf"{re.escape(str(path))}:\d+:\d+: ", result.stderr), result.stderr
        assert len(result.stderr.splitlines()) == 1

    def test_deep_nesting(self, pair, name, key):
        _, result = configure(pair, name, '{"tap": ' + "[" * 100000 + "]" * 100000 + "}")
        assert result.returncode == 1
        assert len(result.stderr.splitlines()) == 1

    def test_flags_go_before_the_file(self, pair, name, key):
        path, result = configure(pair, name, self.good(key))
        assert result.returncode == 0
        check_refused(run(pair, name, "--config", path, "--mtu", "x", "--check-config"), 2, "--mtu")

    def test_missing_file_and_directory(self, pair, name, key):
        for path in (pair.directory / "absent.json", pair.directory):
            check_refused(run(pair, name, "--config", path, "--check-config"), 1, str(path))


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_the_program_says_of_itself(pair, name):
    schema = run(pair, name, "--print-schema")
    assert schema.returncode == 0
    properties = json.loads(schema.stdout)["properties"]
    assert {"tap", "mtu", "wire", "address", "admin"} <= set(properties)
    version = run(pair, name, "--version")
    assert version.returncode == 0 and re.search(r"\d+\.\d+\.\d+", version.stdout)
    shown = run(pair, name, "--help")
    assert shown.returncode == 0 and "--tap" in shown.stdout
    default = run(pair, name, "--print-default-config")
    assert default.returncode == 0
    path = pair.directory / "default.json"
    path.write_text(default.stdout, encoding="utf-8")
    again = run(pair, name, "--config", path, *minimal(name, pair), "--check-config")
    assert again.returncode == 0, again.stderr


# --- set-up --------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", PROGRAMS)
def test_missing_dev_net_tun(pair, name):
    """An empty directory over /dev/net, in a mount namespace of its own."""
    hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /dev/net && exec "$@"', "sh"]
    check_refused(run(pair, name, *minimal(name, pair), wrap=hide), 1, "/dev/net/tun")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("mode", ["600", "666"], ids=["cannot_open", "cannot_attach"])
def test_no_permission(pair, name, mode):
    """As nobody: /dev/net/tun cannot be opened; it can be opened, but makes no TAP."""
    # A copy that nobody may reach and run, whatever the permissions of the build directory.
    pair.directory.chmod(0o777)
    copy = pair.directory / name
    shutil.copy(program_path(name), copy)
    copy.chmod(0o755)
    drop = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /dev/net && mknod /dev/net/tun c 10 "
            f'200 && chmod {mode} /dev/net/tun && exec "$@"', "sh", "setpriv", "--reuid", "65534",
            "--regid", "65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    result = pair.host_ns.run(*drop, copy, *minimal(name, pair), check=False, timeout=10 * SLOW)
    check_refused(result, 1, "root")


def test_tap_name_in_use_by_a_program(pair):
    pair.start_host()
    result = run(pair, "causeway-guest", *minimal("causeway-guest", pair, HOST_TAP))
    check_refused(result, 1, HOST_TAP, "in use")


@pytest.mark.parametrize("name", PROGRAMS)
def test_tap_name_in_use_by_another_device(pair, name):
    pair.host_ns.run("ip", "link", "add", "cwother", "type", "veth", "peer", "name", "cwother1")
    check_refused(run(pair, name, *minimal(name, pair, "cwother")), 1, "cwother")
    assert "cwother" in pair.host_ns.links()


def test_socket_in_use_by_a_live_process(pair):
    pair.start_host()
    result = run(pair, "causeway-host", "--listen", f"unix:{pair.socket}", "--tap", "cwbad0")
    check_refused(result, 1, str(pair.socket), "in use")
    with RawPeer.connect(pair.socket, "10.77.0.9") as peer:
        assert peer.ping("10.77.0.1")


def test_stale_socket_is_taken_over(pair):
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(pair.socket))
        stale.listen()
    assert pair.socket.is_socket()
    pair.start_host()
    with RawPeer.connect(pair.socket, "10.77.0.9") as peer:
        assert peer.ping("10.77.0.1")


def test_socket_left_by_kill_9_is_taken_over(pair):
    pair.start_host()
    pair.host.kill9(with_broker=True)  # which would have removed it
    assert pair.socket.is_socket()
    pair.start_host()
    with RawPeer.connect(pair.socket, "10.77.0.9") as peer:
        assert peer.ping("10.77.0.1")


def test_a_file_at_the_path_of_the_socket_is_not_removed(pair):
    pair.socket.write_text("precious", encoding="ascii")
    result = run(pair, "causeway-host", "--listen", f"unix:{pair.socket}", "--tap", "cwbad0")
    check_refused(result, 1, str(pair.socket))
    assert pair.socket.read_text(encoding="ascii") == "precious"


def test_directory_of_the_socket_does_not_exist(pair):
    path = pair.directory / "absent" / "wire"
    result = run(pair, "causeway-host", "--listen", f"unix:{path}", "--tap", "cwbad0")
    check_refused(result, 1, str(path))


@pytest.mark.parametrize("name", PROGRAMS)
def test_admin_socket_in_use(pair, name):
    pair.start_host()
    admin = pair.host.admin.path
    check_refused(run(pair, name, *minimal(name, pair), "--admin", f"unix:{admin}"), 1, str(admin))
    assert pair.host.status()["pid"] == pair.host.pid


def test_causewayctl_without_a_program(pair):
    result = subprocess.run([program_path("causewayctl"), "--socket", pair.directory / "absent",
                             "status"], capture_output=True, text=True, timeout=10, check=False)
    check_refused(result, 1, str(pair.directory / "absent"))


@pytest.mark.parametrize("address, words", [
    ("fd:7", ["fd:7", "cannot be connected to"]),
    ("vsock:any:5000", ["vsock:any:5000", "cannot be connected to"]),
    ("tcp:host.example:5000", ["tcp:host.example:5000", "IP address"]),
])
def test_what_can_never_be_connected_to_is_refused_at_once(pair, address, words):
    """Not tried for ever: no vsock socket is opened for it either."""
    check_refused(run(pair, "causeway-guest", "--connect", address, "--tap", "cwbad0"), 1, *words)


@pytest.mark.parametrize("name", PROGRAMS)
def test_frames_must_be_as_long_as_the_mtu_asks(pair, name):
    arguments = ["--mtu", "9000", "--max-frame", "1518"]
    check_refused(run(pair, name, *minimal(name, pair), *arguments), 2, "--max-frame", "mtu 9000",
                  "9014")
