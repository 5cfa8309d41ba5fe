# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition, with a deadline and a reason; the only place that sleeps."""

import time


def wait_until(condition, what, timeout=10.0, interval=0.02):
    """Calls condition() until it gives a true value, which is returned.

    An exception of condition() counts as "not yet", and the last one is named when time is up.
    """
    deadline = time.monotonic() + timeout
    last = None
    while True:
        try:
            value = condition()
            if value:
                return value
            last = value
        except (OSError, KeyError, ValueError, AssertionError) as error:
            last = repr(error)
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout} s (last: {last!r})")
        time.sleep(interval)
