# SPDX-License-Identifier: Apache-2.0
"""The driver inside User Mode Linux: runs the scenarios and writes one JSON line for each.

Started by tests/vm/init. Refuses to run anywhere else: see guard.py.
"""

import sys

sys.dont_write_bytecode = True
import guard  # noqa: E402

guard.require_uml()  # before anything else, and before any other import of this directory
if "--guard-only" in sys.argv:
    sys.exit(0)

import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402

import gateway_scenarios  # noqa: E402
import kernel_scenarios  # noqa: E402
import pair_scenarios  # noqa: E402
import vm  # noqa: E402

OUT = "/run/causeway/out"


class TimeUp(BaseException):
    """Not an Exception: no handler of a scenario swallows it."""


def on_alarm(_signal, _frame):
    raise TimeUp


def emit(event):
    with open(f"{OUT}/results.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")
    # Console output makes tests/vm/run look at the file at once.
    print("tests/vm:", event.get("name") or "event", event.get("outcome", ""), flush=True)


def run_one(name, function, seconds):
    began = time.monotonic()
    data = {}
    outcome, reason = "passed", ""
    signal.signal(signal.SIGALRM, on_alarm)
    seconds *= vm.PATIENCE
    signal.alarm(seconds)
    try:
        reason = function(data) or ""
    except vm.Skip as skip:
        outcome, reason = "skipped", str(skip)
    except TimeUp:
        outcome, reason = "failed", f"not finished within {seconds} s"
    except Exception as error:
        outcome, reason = "failed", f"{type(error).__name__}: {error}"
        traceback.print_exc()
    finally:
        signal.alarm(0)
        vm.stop_all(show_logs=outcome == "failed")
    taken = round(time.monotonic() - began, 2)
    emit({"name": name, "outcome": outcome, "reason": reason, "seconds": taken, "data": data})


def main():
    wanted = sys.argv[1:]
    table = kernel_scenarios.SCENARIOS + pair_scenarios.SCENARIOS + gateway_scenarios.SCENARIOS
    unknown = set(wanted) - {name for name, _, _ in table}
    table = [entry for entry in table if not wanted or entry[0] in wanted]
    kernel = os.uname().release
    emit({"plan": [name for name, _, _ in table], "about": f"User Mode Linux {kernel}"})
    for name in unknown:
        emit({"name": name, "outcome": "failed", "reason": "no such scenario", "seconds": 0})
    try:
        vm.make_namespaces()
        for entry in table:
            run_one(*entry)
    finally:
        vm.stop_all()
    emit({"done": True})


if __name__ == "__main__":
    main()
