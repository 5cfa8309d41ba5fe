# SPDX-License-Identifier: Apache-2.0
"""Medians, ratios against HAProxy of the same round, and the verdict on each goal."""

import statistics

from report import spread, table

REFERENCE = "haproxy"

# Column, cell, key, factor, digits.
FIGURES = [
    ("small: CPU us/request", "small", "cpu_us", 1, 2),
    ("small: requests/s", "small", "per_second", 1, 0),
    ("small: p99 us", "small", "p99_us", 1, 0),
    ("small: proxy busy", "small", "busy", 1, 2),
    ("saturated: CPU us/request", "switches", "cpu_us", 1, 2),
    ("saturated: requests/s", "switches", "per_second", 1, 0),
    ("saturated: p99 us", "switches", "p99_us", 1, 0),
    ("saturated: switches/request", "switches", "switches", 1, 4),
    ("saturated: proxy busy", "switches", "busy", 1, 2),
    ("at one rate: CPU us/request", "latency", "cpu_us", 1, 2),
    ("at one rate: p50 us", "latency", "p50_us", 1, 0),
    ("at one rate: p99 us", "latency", "p99_us", 1, 0),
    ("CPU us/new connection", "connections", "cpu_us", 1, 1),
    ("new connections/s", "connections", "per_second", 1, 0),
    ("new connections: proxy busy", "connections", "busy", 1, 2),
    ("new connections: pipe2/connection", "connections", "pipes_per_connection", 1, 4),
    ("download: CPU s/GB", "download", "cpu_seconds_per_gb", 1, 3),
    ("upload: CPU s/GB", "upload", "cpu_seconds_per_gb", 1, 3),
    ("both ways: CPU s/GB", "both ways", "cpu_seconds_per_gb", 1, 3),
    ("both ways: GB/s", "both ways", "gb_per_second", 1, 2),
    ("1 MiB objects: CPU s/GB", "objects", "cpu_seconds_per_gb", 1, 3),
    ("1 MiB connections: CPU s/GB", "object connections", "cpu_seconds_per_gb", 1, 3),
    ("1 MiB connections: pipe2/connection", "object connections", "pipes_per_connection", 1, 4),
    ("idle connection: KiB, fresh", "idle", "fresh_bytes", 1 / 1024, 2),
    ("idle connection: KiB, after 256 KiB", "idle", "used_bytes", 1 / 1024, 2),
    ("idle connection: descriptors", "idle", "used_descriptors", 1, 2),
    ("idle connections: pipes", "idle", "used_pipes", 1, 0),
    ("2 workers, 8: share of the connections", "rebalance 8", "connection_share", 1, 2),
    ("2 workers, 8: share of the work", "rebalance 8", "share", 1, 2),
    ("2 workers, 8: the same, saturated", "rebalance 8 saturated", "share", 1, 2),
    ("2 workers, 16: share of the connections", "rebalance 16", "connection_share", 1, 2),
    ("2 workers, 16: share of the work", "rebalance 16", "share", 1, 2),
    ("2 workers, 16: the same, saturated", "rebalance 16 saturated", "share", 1, 2),
    ("TLS small: CPU us/request", "terminate small", "cpu_us", 1, 2),
    ("TLS small: requests/s", "terminate small", "per_second", 1, 0),
    ("TLS small: p99 us", "terminate small", "p99_us", 1, 0),
    ("TLS small: proxy busy", "terminate small", "busy", 1, 2),
    ("TLS at one rate: CPU us/request", "terminate latency", "cpu_us", 1, 2),
    ("TLS at one rate: p50 us", "terminate latency", "p50_us", 1, 0),
    ("TLS at one rate: p99 us", "terminate latency", "p99_us", 1, 0),
    *(figure for kind in ("full", "resumed") for version in ("1.3", "1.2") for figure in (
        (f"TLS {version} {kind}: CPU us/connection", f"terminate {kind} {version}", "cpu_us", 1,
         1),
        (f"TLS {version} {kind}: connections/s", f"terminate {kind} {version}", "per_second", 1,
         0),
        (f"TLS {version} {kind}: p99 us", f"terminate {kind} {version}", "p99_us", 1, 0),
        (f"TLS {version} {kind}: proxy busy", f"terminate {kind} {version}", "busy", 1, 2))),
    *(figure for cipher in ("aes-128-gcm", "aes-256-gcm", "chacha20") for figure in (
        *((f"{cipher} {way}: CPU s/GB", f"terminate {way} {cipher}", "cpu_seconds_per_gb", 1, 3)
          for way in ("download", "upload", "both ways")),
        (f"{cipher} both ways: GB/s", f"terminate both ways {cipher}", "gb_per_second", 1, 2))),
    ("idle TLS connection: KiB, fresh", "terminate idle", "fresh_bytes", 1 / 1024, 2),
    ("idle TLS connection: KiB, after 256 KiB each way", "terminate idle", "used_bytes", 1 / 1024,
     2),
    ("idle TLS connection: descriptors", "terminate idle", "used_descriptors", 1, 2),
]

# Row, cell, key, must, aim: at most, ours / HAProxy's.
RATIOS = [
    ("keep-alive small request, wrk and nginx", "small", "cpu_us", 1.0, 0.85),
    ("the same, saturated, own load", "switches", "cpu_us", 1.0, 0.85),
    ("new connection", "connections", "cpu_us", 0.95, 0.8),
    ("bulk, both ways", "both ways", "cpu_seconds_per_gb", 0.9, 0.7),
    ("bulk, download", "download", "cpu_seconds_per_gb", None, None),
    ("bulk, upload", "upload", "cpu_seconds_per_gb", None, None),
    ("1 MiB objects", "objects", "cpu_seconds_per_gb", None, None),
    ("1 MiB, one a connection", "object connections", "cpu_seconds_per_gb", None, None),
    ("memory per idle connection, fresh", "idle", "fresh_bytes", 0.5, 0.3),
    ("memory per idle connection, after 256 KiB", "idle", "used_bytes", 0.5, 0.3),
    ("p99 at one rate", "latency", "p99_us", 1.0, None),
    ("p99, wrk", "small", "p99_us", None, None),
    ("TLS: keep-alive small request", "terminate small", "cpu_us", 0.95, 0.8),
    ("TLS: new connection, full, 1.3", "terminate full 1.3", "cpu_us", 0.9, 0.7),
    ("TLS: new connection, full, 1.2", "terminate full 1.2", "cpu_us", None, None),
    ("TLS: new connection, resumed, 1.3", "terminate resumed 1.3", "cpu_us", 0.9, 0.7),
    ("TLS: new connection, resumed, 1.2", "terminate resumed 1.2", "cpu_us", 0.9, 0.7),
    ("TLS: bulk, both ways, AES-128-GCM", "terminate both ways aes-128-gcm",
     "cpu_seconds_per_gb", 0.8, 0.6),
    ("TLS: bulk, download, AES-128-GCM", "terminate download aes-128-gcm", "cpu_seconds_per_gb",
     None, None),
    ("TLS: bulk, upload, AES-128-GCM", "terminate upload aes-128-gcm", "cpu_seconds_per_gb", None,
     None),
    ("TLS: bulk, both ways, AES-256-GCM", "terminate both ways aes-256-gcm",
     "cpu_seconds_per_gb", None, None),
    ("TLS: bulk, both ways, ChaCha20-Poly1305", "terminate both ways chacha20",
     "cpu_seconds_per_gb", None, None),
    ("TLS: memory per idle connection, fresh", "terminate idle", "fresh_bytes", 0.5, 0.3),
    ("TLS: memory per idle connection, after 256 KiB each way", "terminate idle", "used_bytes",
     0.5, 0.3),
    ("TLS: p99 at one rate", "terminate latency", "p99_us", 1.0, None),
    ("TLS: p99, as fast as it goes", "terminate small", "p99_us", None, None),
]

# Row, cell, key, limit, whether it is the least; digits.
LIMITS = [
    ("context switches/request, saturated", "switches", "switches", 0.01, False, 4),
    ("pipe2/new connection", "connections", "pipes_per_connection", 0, False, 4),
    ("pipe2/1 MiB connection", "object connections", "pipes_per_connection", 0, False, 4),
    ("pipes with idle connections, one worker", "idle", "used_pipes", 64, False, 0),
    ("quietest worker / busiest, 8 connections", "rebalance 8", "share", 0.85, True, 2),
    ("quietest worker / busiest, 16 connections", "rebalance 16", "share", 0.85, True, 2),
]


class Rounds:
    """`rounds`: one dict a round, arm -> cell -> values."""

    def __init__(self, rounds):
        self.rounds = rounds

    def value(self, number, arm, cell, key):
        result = self.rounds[number].get(arm, {}).get(cell, {})
        return result.get(key) if "failed" not in result else None

    def values(self, arm, cell, key):
        found = (self.value(n, arm, cell, key) for n in range(len(self.rounds)))
        return [value for value in found if value is not None]

    def ratios(self, arm, cell, key):
        pairs = ((self.value(n, arm, cell, key), self.value(n, REFERENCE, cell, key))
                 for n in range(len(self.rounds)))
        return [ours / theirs for ours, theirs in pairs
                if ours is not None and theirs is not None and theirs > 0]

    def failures(self):
        return [f"round {n + 1}, {arm}, {cell}: {values['failed']}"
                for n, one in enumerate(self.rounds) for arm, cells in one.items()
                for cell, values in cells.items() if "failed" in values]


def cryptography(rounds, arms):
    """Facts: what the cryptography of each arm runs on, where it tells."""
    found = {}
    for arm in arms:
        for one in rounds.rounds:
            for values in one.get(arm, {}).values():
                crypto = values.get("crypto", "")
                if isinstance(crypto, dict):
                    crypto = ", ".join(f"{key} {value}" for key, value in crypto.items())
                if crypto:
                    found[f"{arm}'s cryptography"] = crypto
    return found


def measured(rounds, arms):
    """A row for each figure that some arm has."""
    found = [["figure", *arms]]
    for title, cell, key, factor, digits in FIGURES:
        values = [rounds.values(arm, cell, key) for arm in arms]
        if any(values):
            found.append([title, *(spread([value * factor for value in one], digits)
                                   for one in values)])
    return found


def verdict(values, must, aim):
    if not values:
        return "not measured"
    if must is None:
        return "-"
    middle = statistics.median(values)
    if middle > must:
        return "MISS"
    return "aim" if aim is not None and middle <= aim else "must"


def ratios(rounds, arms):
    found = [[f"proxy's CPU or memory, against {REFERENCE} of the same round", "must", "aim",
              *(f"{arm}{what}" for arm in arms for what in ("", ": reached"))]]
    for title, cell, key, must, aim in RATIOS:
        values = [rounds.ratios(arm, cell, key) for arm in arms]
        if any(values):
            found.append([title, *("-" if goal is None else f"<= {goal}x" for goal in (must, aim)),
                          *(text for one in values
                            for text in (spread(one, 2, "x"), verdict(one, must, aim)))])
    return found


def limits(rounds, arms):
    found = [["figure", "goal", *(f"{arm}{what}" for arm in arms for what in ("", ": verdict"))]]
    for title, cell, key, limit, at_least, digits in LIMITS:
        texts = []
        if not any(rounds.values(arm, cell, key) for arm in arms):
            continue
        for arm in arms:
            values = rounds.values(arm, cell, key)
            middle = statistics.median(values) if values else None
            good = values and (middle >= limit if at_least else middle <= limit)
            texts += [spread(values, digits),
                      "pass" if good else "MISS" if values else "not measured"]
        found.append([title, f"{'>=' if at_least else '<='} {limit}", *texts])
    return found


def document(about, rounds, arms, not_run):
    parts = [f"- {key}: {value}" for key, value in about.items()]
    parts += ["", "Medians over the rounds (lowest-highest). One worker on a processor of its own; "
                  "load and origin share the other. `small` is real TLS from end to end (wrk, "
                  "nginx); every other row of passthrough sends a recorded ClientHello and then "
                  "bytes without cryptography, which a passthrough proxy cannot tell from TLS. "
                  "Rows with TLS or a cipher in their name are of a proxy that terminates: real "
                  "TLS, ECDSA P-256 and X25519, 64 B up and 1 KiB down for a small request or a "
                  "new connection, plain to the origin. `busy` is the "
                  "proxy's CPU per second: well below 1, the load was the slower part.",
              "", table(measured(rounds, arms))]
    ours = [arm for arm in arms if arm != REFERENCE]
    if ours:
        if REFERENCE in arms:
            parts += ["", table(ratios(rounds, ours))]
        found = limits(rounds, ours)
        parts += ["", table(found)] if len(found) > 1 else []
    for name, reason in not_run.items():
        parts += ["", f"not run: {name}: {reason}"]
    failures = rounds.failures()
    if failures:
        parts += ["", "failed:"] + [f"- {failure}" for failure in failures]
    return "\n".join(parts) + "\n"
