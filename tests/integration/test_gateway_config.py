# SPDX-License-Identifier: Apache-2.0
"""Wrong flags and files: one line that names the place, the right exit code. Settings without
effect are said at the start."""

import json
import os
import subprocess

import pytest

from causeway_testlib.gateway import ONE, THREE, TWO, place, route, site  # noqa: F401
from causeway_testlib.programs import SLOW, program_path
from causeway_testlib.waiting import wait_until

LISTEN = ["--listen", "tcp:127.0.0.1:29999"]
ROUTE = ["--passthrough", f"a.test={ONE}"]


def check_refused(result, code, *words):
    """One line on stderr, nothing on stdout, and the line names what is wrong."""
    assert result.returncode == code, f"{result.returncode}: {result.stdout}{result.stderr}"
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert result.stdout == ""
    for word in words:
        assert word.lower() in lines[0].lower(), f"{word!r} is not in: {lines[0]}"


BAD_FLAGS = {
    "unknown": (["--no-such-flag"], "--no-such-flag"),
    "threads_word": (["--threads", "many"], "--threads"),
    "threads_negative": (["--threads", "-1"], "--threads"),
    "model": (["--threads-model", "fibers"], "--threads-model"),
    "splice_size": (["--splice-after", "64"], "--splice-after"),
    "splice_time": (["--splice-after-time", "5"], "--splice-after-time"),
    "splice_time_never": (["--splice-after-time", "never"], "--splice-after-time"),
    "buffer_small": (["--buffer-size", "1KiB"], "--buffer-size"),
    "buffer_large": (["--buffer-size", "2MiB"], "--buffer-size"),
    "idle_zero": (["--timeouts-idle", "0s"], "--timeouts-idle"),
    "idle_unit": (["--timeouts-idle", "5分"], "--timeouts-idle"),
    "connect_overflow": (["--timeouts-connect", "99999999999999999999s"], "--timeouts-connect"),
    "passthrough_form": (["--passthrough", "b.test"], "--passthrough"),
    "passthrough_name": (["--passthrough", f"b..test={ONE}"], "--passthrough"),
    "passthrough_star": (["--passthrough", f"*={ONE}"], "default"),
    "passthrough_stars": (["--passthrough", f"*.*.test={ONE}"], "--passthrough"),
    "passthrough_address": (["--passthrough", "b.test=tcp:127.0.0.1"], "--passthrough"),
    "passthrough_port": (["--passthrough", "b.test=tcp:127.0.0.1:0"], "--passthrough"),
    "passthrough_fd": (["--passthrough", "b.test=fd:3"], "--passthrough"),
    "passthrough_vsock_any": (["--passthrough", "b.test=vsock:any:1"], "--passthrough"),
    "listen_name": (["--listen", "tcp:localhost:29998"], "--listen"),
    "listen_hvsock": (["--listen", "hvsock:/tmp/x:1"], "--listen"),
    "terminate_form": (["--cert", "c.pem", "--terminate", "b.test"], "--terminate"),
    "terminate_taken": (["--cert", "c.pem", "--terminate", f"a.test={ONE}"], "--terminate",
                        "overlapping"),
    "terminate_without_certificate": (["--terminate", f"b.test={ONE}"], "--terminate",
                                      "needs a certificate", "--cert PEM --key PEM"),
    "upstream_without_certificate": (["--upstream", ONE], "--upstream", "needs a certificate"),
    "upstream_fd": (["--cert", "c.pem", "--upstream", "fd:3"], "--upstream"),
    "upstream_loop": (["--cert", "c.pem", "--upstream", "tcp:127.0.0.1:29999"], "--upstream",
                      "own listener"),
    "key_alone": (["--key", "k.pem"], "--key", "certificate"),
    "tls_version": (["--tls-min-version", "1.1"], "--tls-min-version"),
    "tls_versions": (["--tls-min-version", "1.3", "--tls-max-version", "1.2"],
                     "--tls-min-version", "max_version"),
    "tls_tickets": (["--tls-tickets", "on"], "--tls-tickets"),
    "tls_watch": (["--tls-watch", "0s"], "--tls-watch"),
    "dns": (["--dns-servers", "ns.test"], "--dns-servers"),
    "max_connections": (["--max-connections", "-5"], "--max-connections"),
}


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_bad_flag(site, case):  # noqa: F811
    arguments, *words = BAD_FLAGS[case]
    check_refused(site.run(*LISTEN, *ROUTE, *arguments), 2, *words)


@pytest.mark.parametrize("arguments, word", [([], "listen"), (ROUTE, "listen"),
                                             (LISTEN, "passthrough")])
def test_what_is_needed_is_said(site, arguments, word):  # noqa: F811
    result = site.run(*arguments)
    assert result.returncode in (1, 2)
    check_refused(result, result.returncode, word)


def listener(**more):
    return {"listeners": [{"address": "tcp:127.0.0.1:29999", **more}]}


def good(**more):
    return {**listener(), "routes": [route(ONE)], **more}


def base(*applications, name="apps.test"):
    return [{"name": name, "applications": list(applications)}]


BAD_FILES = {
    "unknown_key": (good(thraeds=2), ["thraeds", "threads"]),
    "unknown_route_key": (good(routes=[route(ONE, chioce="race")]), ["chioce", "choice"]),
    "unknown_timeout": (good(timeouts={"idel": "5s"}), ["idel"]),
    "overlapping": (good(routes=[route(ONE), route(TWO)]), ["overlapping", "routes[0]"]),
    "overlapping_case": (good(routes=[route(ONE), route(TWO, names=["A.TEST."])]),
                         ["overlapping"]),
    "overlapping_alpn": (good(routes=[route(ONE, alpn=["h2"]), route(TWO, alpn=["x", "h2"])]),
                         ["overlapping", "h2"]),
    "two_defaults": (good(routes=[route(ONE, names=["default"]),
                                  route(TWO, names=["default"])]), ["overlapping", "default"]),
    "name_twice": (good(routes=[route(ONE, names=["a.test", "a.test"])]), ["twice"]),
    "no_upstreams": (good(routes=[route()]), ["upstream"]),
    "17_upstreams": (good(routes=[route(*(f"tcp:10.0.0.{n}:1" for n in range(1, 18)))]), ["16"]),
    "upstream_twice": (good(routes=[route(ONE, ONE)]), ["twice"]),
    "weight": (good(routes=[route({"address": ONE, "weight": 257}, TWO)]), ["weight"]),
    "race": (good(routes=[route(ONE, TWO, choice="race", race=17)]), ["race"]),
    "terminate": (good(routes=[route(ONE, mode="terminate")]), ["a.test", "needs a certificate"]),
    "terminate_non_tls": (good(cert="c.pem", routes=[
        route(ONE, names=["default"], mode="terminate", non_tls=True)]), ["non_tls"]),
    "terminate_overlap": (good(cert="c.pem", terminate=[f"a.test={ONE}"]),
                          ["overlapping", "routes[0]"]),
    "upstream_overlap": (good(cert="c.pem", upstream=[ONE],
                              routes=[route(TWO, names=["default"])]),
                         ["upstream", "overlapping", "default"]),
    "client_ca": (good(cert="c.pem", routes=[
        route(ONE, mode="terminate", client_certificates="required")]), ["client_ca"]),
    "upstream_name": (good(cert="c.pem", routes=[
        route("unix:/run/u", mode="terminate", upstream_tls=True)]),
        ["upstream_name", "unix:/run/u"]),
    "upstream_key": (good(cert="c.pem", routes=[
        route(ONE, mode="terminate", upstream_tls=True, upstream_cert="u.pem")]),
        ["upstream_key"]),
    "protocols_twice": (good(cert="c.pem", routes=[
        route(ONE, mode="terminate", protocols=["h2", "h2"])]), ["protocols", "twice"]),
    "certificate_twice": (good(certificates=[{"cert": "c.pem"}, {"cert": "c.pem"}]),
                          ["certificates[1].cert", "certificates[0]"]),
    "tls_versions": (good(tls={"min_version": "1.3", "max_version": "1.2"}),
                     ["tls.min_version"]),
    "non_tls": (good(routes=[route(ONE, non_tls=True)]), ["default"]),
    "alpn_long": (good(routes=[route(ONE, alpn=["x" * 256])]), ["alpn"]),
    "ip_name": (good(routes=[route(ONE, names=["10.0.0.1"])]), ["10.0.0.1"]),
    "loop": (good(routes=[route("tcp:127.0.0.1:29999")]), ["own listener"]),
    "proxy_untrusted": ({**listener(proxy_protocol="any"), "routes": [route(ONE)]}, ["trusted"]),
    "proxy_cidr": ({**listener(proxy_protocol="any", trusted=["10.0.0.0/33"]),
                    "routes": [route(ONE)]}, ["trusted"]),
    "base_twice": (good(base_domains=base({"id": "x", "hosts": ["127.0.0.1"]}) * 2),
                   ["apps.test"]),
    "application_twice": (good(base_domains=base({"id": "x", "hosts": ["127.0.0.1"]},
                                                 {"id": "x", "hosts": ["127.0.0.2"]})), ["twice"]),
    "application_dash": (good(base_domains=base({"id": "x-1", "hosts": ["127.0.0.1"]})), ["x-1"]),
    "application_port": (good(base_domains=base({"id": "x", "hosts": ["127.0.0.1"],
                                                 "ports": [70000]})), ["ports"]),
    "application_and_route": (good(routes=[route(ONE, names=["x-s.apps.test"])],
                                   base_domains=base({"id": "x", "hosts": ["127.0.0.1"]})),
                              ["overlapping"]),
    "idle_zero": (good(timeouts={"idle": "0ms"}), ["idle"]),
    "health_zero": (good(routes=[route(ONE, health={"interval": "0s"})]), ["interval"]),
    "number_for_text": (good(drain=30), ["drain"]),
    "text_for_number": (good(threads="2"), ["threads"]),
    "duplicate_key": ('{"threads": 2, "threads": 3}', ["threads"]),
    "no_json": ("{,}", []),
    "empty": ("", []),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_file(site, case):  # noqa: F811
    """By --check-config and at the start alike: the file, line and column, and what is wrong."""
    config, words = BAD_FILES[case]
    path = site.configuration(config, f"-{case}")
    for more in (["--check-config"], []):
        result = site.run("--config", path, *more)
        check_refused(result, 1, *words)
        if config:
            assert f"{path}:" in result.stderr and result.stderr.split(f"{path}:")[1][0].isdigit()


def test_check_config_of_a_good_file(site):  # noqa: F811
    path = site.configuration(good(), "-good")
    result = site.run("--config", path, "--check-config")
    assert (result.returncode, result.stderr) == (0, ""), result.stderr


def test_file_that_is_not_there(site):  # noqa: F811
    check_refused(site.run("--config", site.directory / "none.json"), 1, "none.json")


def test_prints(site):  # noqa: F811
    assert json.loads(site.run("--print-schema").stdout)["type"] == "object"
    assert "causeway-gateway" in site.run("--version").stdout
    text = site.run("--help").stdout
    for flag in ("--listen", "--passthrough", "--splice-after", "--timeouts-idle", "--rebalance",
                 "--terminate", "--upstream", "--cert", "--key", "--tls-tickets", "--tls-watch"):
        assert flag in text
    assert site.run("--print-default-config").returncode == 0


def test_port_in_use(site):  # noqa: F811
    site.process("holder", "/usr/bin/python3", "-c",
                 "import socket, time; s = socket.create_server(('127.0.0.1', 29990));"
                 "print('ready', flush=True); time.sleep(60)")
    held = site.directory / "holder.log"
    wait_until(lambda: "ready" in held.read_text(), "the port is held", 5 * SLOW)
    result = site.run("--listen", "tcp:127.0.0.1:29990", *ROUTE)
    check_refused(result, 1, "127.0.0.1:29990", "in use")


def test_address_of_nobody(site):  # noqa: F811
    check_refused(site.run("--listen", "tcp:203.0.113.7:29991", *ROUTE), 1, "203.0.113.7")


def test_second_listener_that_fails_leaves_none(site):  # noqa: F811
    result = site.run("--listen", "tcp:127.0.0.1:29992", "--listen", "tcp:203.0.113.7:29992",
                      *ROUTE)
    check_refused(result, 1, "203.0.113.7")


def test_privileged_port_without_privilege(site):  # noqa: F811
    result = site.run("--listen", "tcp:127.0.0.1:443", *ROUTE,
                      wrap=["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups",
                            "--bounding-set", "-all", "--inh-caps", "-all"])
    if "No such file" in result.stderr or "ermission denied" in result.stderr and \
            "443" not in result.stderr:
        pytest.skip("the program cannot be run by another user here")
    check_refused(result, 1, "443")


def test_unix_listener_takes_over_a_stale_socket_only(site):  # noqa: F811
    path = site.directory / "listener"
    first = site.start("--listen", f"unix:{path}")
    result = site.run("--listen", f"unix:{path}", *ROUTE)
    check_refused(result, 1, str(path))
    with first.connect(address=path) as client:
        client.get(1)
    first.kill9()
    assert path.exists()
    second = site.start("--listen", f"unix:{path}")
    with second.connect(address=path) as client:
        client.get(1)
    second.settle()
    second.terminate(5 * SLOW)
    assert not path.exists()


INERT = {
    "rebalance": (good(rebalance=True, threads=1), "rebalance"),
    "race": (good(routes=[route(ONE, TWO, race=2)]), "routes[0].race"),
    "choice": (good(routes=[route(ONE, choice="race")]), "routes[0].choice"),
    "weight": (good(routes=[route({"address": ONE, "weight": 2})]), "weight"),
    "after_time": (good(splice={"after": "0B", "after_time": "5s"}), "after_time"),
    "proxy_header": (good(timeouts={"proxy_header": "9s"}), "proxy_header"),
    "trusted": ({**listener(trusted=["10.0.0.0/8"]), "routes": [route(ONE)]}, "trusted"),
    "dns": (good(dns={"servers": ["10.0.0.53"]}), "dns.servers"),
    "empty_health": (good(routes=[route(ONE, health={})]), "health"),
    "tls": (good(tls={"min_version": "1.3"}), "tls.min_version"),
    "client_ca": (good(routes=[route(ONE, client_ca="ca.pem")]), "routes[0].client_ca"),
    "limit": (good(max_connections=5, routes=[route(ONE, max_connections=10)]),
              "max_connections"),
}


@pytest.mark.parametrize("case", INERT)
def test_setting_without_effect(site, case):  # noqa: F811
    """Named with its place by --check-config, in the log at the start and in the status; and the
    gateway serves all the same."""
    config, word = INERT[case]
    path = site.configuration(config, f"-{case}")
    result = site.run("--config", path, "--check-config")
    assert result.returncode == 0, result.stderr
    assert word in result.stderr + result.stdout
    if case == "trusted":
        return  # its listener is the file's own
    gateway = site.start(config={key: value for key, value in config.items()
                                 if key != "listeners"},
                         threads=1 if case == "rebalance" else 2)
    (warning,) = gateway.status()["warnings"]
    assert word in warning and f"g{gateway.port}.json:" in warning
    assert warning in gateway.log()
    with gateway.connect() as client:
        client.get(1000)


def test_nothing_to_warn_of(site):  # noqa: F811
    gateway = site.start(config={"routes": [route(ONE, TWO, choice="race", race=2),
                                            route(THREE, names=["default"])]})
    assert gateway.status()["warnings"] == []


def test_causewayctl(site):  # noqa: F811
    gateway = site.start()
    tool = program_path("causewayctl")
    if not os.access(tool, os.X_OK):
        pytest.skip("causewayctl is not built")
    shown = subprocess.run([tool, "--socket", gateway.admin.path, "status", "--json"], check=False,
                           capture_output=True, text=True, timeout=10 * SLOW)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["program"] == "causeway-gateway"
    plain = subprocess.run([tool, "--socket", gateway.admin.path, "status"], check=False,
                           capture_output=True, text=True, timeout=10 * SLOW)
    assert plain.returncode == 0 and "causeway-gateway" in plain.stdout, plain
