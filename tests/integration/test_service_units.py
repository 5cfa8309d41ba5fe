# SPDX-License-Identifier: Apache-2.0
"""The systemd units, and the files beside them, by systemd's own tools."""

import os
import pathlib
import re
import shutil
import stat
import subprocess

import pytest

from causeway_testlib.programs import ROOT, SLOW, program_path

UNITS = ROOT / "packaging/systemd"
SERVICES = ["causeway-host.service", "causeway-host@.service", "causeway-guest.service",
            "causeway-gateway.service"]
# What `systemd-analyze security` of Debian 12 (systemd 252) says; packaging/systemd/README.md.
EXPOSURE = {"causeway-host.service": 2.1, "causeway-host@.service": 2.1,
            "causeway-guest.service": 1.9, "causeway-gateway.service": 1.8}


def systemd_analyze(*arguments):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is missing (package systemd)")
    return subprocess.run(["systemd-analyze", *map(str, arguments)], capture_output=True,
                          text=True, timeout=60, check=False,
                          env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"})


def as_instance(name):
    return name.replace("@.", "@app1.")


@pytest.fixture
def image(tmp_path):
    """A root directory with our units, and programs in the places that they name."""
    units = tmp_path / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    for program in ("usr/bin/causeway-host", "usr/bin/causeway-guest", "usr/bin/causeway-gateway",
                    "bin/kill"):
        path = tmp_path / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n", encoding="ascii")
        path.chmod(0o755)
    system = pathlib.Path("/usr/lib/systemd/system")
    for pattern in ("*.target", "*.slice"):
        for unit in system.glob(pattern):
            shutil.copy(unit, units / unit.name)
    for unit in UNITS.glob("causeway-*"):
        shutil.copy(unit, units / unit.name)
    return tmp_path


@pytest.mark.parametrize("unit", [*SERVICES, "causeway-host.socket"])
def test_units_are_correct(image, unit):
    outcome = systemd_analyze("verify", "--man=no", "--recursive-errors=one", f"--root={image}",
                              as_instance(unit))
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")


@pytest.mark.parametrize("unit", SERVICES)
def test_exposure_is_not_above_what_is_published(image, unit):
    path = image / "usr/lib/systemd/system" / unit
    instance = path.rename(path.with_name(as_instance(unit)))
    outcome = systemd_analyze("security", "--no-pager", "--offline=true", instance)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", outcome.stdout)
    assert found, outcome.stdout + outcome.stderr
    assert float(found.group(1)) <= EXPOSURE[unit]
    assert f"| `{unit}` | {EXPOSURE[unit]} |" in (UNITS / "README.md").read_text(encoding="utf-8")


def test_host_units_differ_in_what_they_are_for_only():
    one, template = (
        (UNITS / name).read_text(encoding="utf-8") for name in
        ("causeway-host.service", "causeway-host@.service"))
    template = template.replace("/etc/causeway/%i.json --instance %i", "/etc/causeway/host.json")

    def settings(text):
        return [line for line in text.splitlines() if not line.startswith("Description=")]

    assert settings(one) == settings(template)


@pytest.mark.parametrize("directory, user, tool, option", [
    ("sysusers.d", "causeway", "systemd-sysusers", "--dry-run"),
    ("sysusers.d", "causeway-gateway", "systemd-sysusers", "--dry-run"),
    ("tmpfiles.d", "causeway", "systemd-tmpfiles", "--create")])
def test_user_and_directory_are_made(tmp_path, directory, user, tool, option):
    if not shutil.which(tool):
        pytest.skip(f"{tool} is missing (package systemd)")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("causeway:x:899:899::/:/bin/false\n", encoding="ascii")
    (tmp_path / "etc/group").write_text("causeway:x:899:\n", encoding="ascii")
    if directory == "sysusers.d":
        (tmp_path / "etc/passwd").write_text("", encoding="ascii")
        (tmp_path / "etc/group").write_text("", encoding="ascii")
    outcome = subprocess.run(
        [tool, f"--root={tmp_path}", option, ROOT / f"packaging/{directory}/{user}.conf"],
        capture_output=True, text=True, timeout=30, check=False)
    said = outcome.stdout + outcome.stderr
    assert outcome.returncode == 0, said
    if directory == "sysusers.d":
        assert f"Creating user '{user}'" in said
    else:
        made = (tmp_path / "run/causeway").stat()
        assert (stat.S_IMODE(made.st_mode), made.st_uid, made.st_gid) == (0o750, 899, 899)


def test_example_configuration_is_right(make_pair):
    del make_pair  # only for its skip when nothing is built
    outcome = subprocess.run(
        [program_path("causeway-host"), "--config", UNITS / "host.json.example", "--check-config"],
        capture_output=True, text=True, timeout=10 * SLOW, check=False)
    assert (outcome.returncode, outcome.stderr) == (0, "")
