# SPDX-License-Identifier: Apache-2.0
"""packaging/demo, the first command of the README, works and cleans up after itself."""

import re
import subprocess

import pytest

from causeway_testlib import namespaces
from causeway_testlib.programs import BUILD, ROOT


@pytest.mark.skipif(BUILD.resolve() != (ROOT / "build/release/bin").resolve(),
                    reason="the demo builds and shows build/release, which is not under test")
def test_demo():
    before = namespaces.names()
    shown = subprocess.run([ROOT / "packaging/demo", "--mib", "64"], capture_output=True, text=True,
                           timeout=200, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert len(re.findall(r"64 MiB, \d+ MiB/s, SHA-256 equal", shown.stdout)) == 3
    assert shown.stdout.count("0% packet loss") == 3
    assert len(re.findall("8 MiB, SHA-256 equal", shown.stdout)) == 2
    assert len(re.findall(r"with its ticket: TLSv1\.[23], \S+, Reused", shown.stdout)) == 2
    assert not [name for name in namespaces.names() - before if name.startswith("causeway-demo")]


@pytest.mark.parametrize("arguments", [["--wire"], ["--mib", "0"], ["--mib", "x"], ["extra"]])
def test_demo_refuses_bad_arguments(arguments):
    shown = subprocess.run([ROOT / "packaging/demo", *arguments], capture_output=True, text=True,
                           timeout=10, check=False)
    assert shown.returncode == 2 and shown.stderr.startswith("usage:")
