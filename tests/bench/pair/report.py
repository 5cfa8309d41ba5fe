# SPDX-License-Identifier: Apache-2.0
"""Medians, ratios against `reference` of the same round, and the verdict on each goal."""

import statistics

REFERENCE = "reference"
BULK = ("forward", "reverse", "duplex")


class Rounds:
    """`rounds`: one dict a round, arm -> measurement -> values."""

    def __init__(self, rounds):
        self.rounds = rounds

    def value(self, number, arm, measure, key):
        result = self.rounds[number].get(arm, {}).get(measure, {})
        return result.get(key) if "failed" not in result else None

    def values(self, arm, measure, key):
        found = (self.value(n, arm, measure, key) for n in range(len(self.rounds)))
        return [value for value in found if value is not None]

    def ratios(self, arm, against, measure, key):
        pairs = ((self.value(n, arm, measure, key), self.value(n, against, measure, key))
                 for n in range(len(self.rounds)))
        return [ours / theirs for ours, theirs in pairs if ours is not None and theirs]

    def cpu_per_gib(self, number, arm):
        """Over all bulk measurements of one round, weighted by bytes."""
        done = [self.rounds[number].get(arm, {}).get(name, {}) for name in BULK]
        done = [one for one in done if "pair_cpu_seconds" in one]
        size = sum(one["bytes"] for one in done)
        return sum(one["pair_cpu_seconds"] for one in done) / (size / 2**30) if size else None

    def cpu_values(self, arm):
        found = (self.cpu_per_gib(n, arm) for n in range(len(self.rounds)))
        return [value for value in found if value is not None]

    def cpu_ratios(self, arm):
        pairs = ((self.cpu_per_gib(n, arm), self.cpu_per_gib(n, REFERENCE))
                 for n in range(len(self.rounds)))
        return [ours / theirs for ours, theirs in pairs if ours is not None and theirs]

    def total(self, arm, key):
        """Sum over the bulk measurements of all rounds; None when there is none."""
        found = [value for name in BULK for value in self.values(arm, name, key)]
        return sum(found) if found else None

    def peak_mib(self, arm):
        peaks = [side["VmHWM"] for one in self.rounds
                 for side in one.get(arm, {}).get("memory_kib", {}).values()]
        return max(peaks) / 1024 if peaks else None

    def failures(self):
        return [f"round {n + 1}, {arm}, {name}: {values['failed']}"
                for n, one in enumerate(self.rounds) for arm, results in one.items()
                for name, values in results.items()
                if isinstance(values, dict) and "failed" in values]


def spread(values, digits=2, suffix=""):
    if not values:
        return "-"
    text = f"{statistics.median(values):.{digits}f}{suffix}"
    if len(values) > 1:
        text += f" ({min(values):.{digits}f}-{max(values):.{digits}f})"
    return text


def measured(rounds, arms):
    """Rows: arm, then medians with their spread."""
    rows = [["arm", "forward MiB/s", "reverse MiB/s", "duplex sum MiB/s", "pair CPU s/GiB",
             "TAP tx drops", "TCP retransmits", "echo p50 us", "echo p99 us", "UDP pkt/s",
             "UDP gso pkt/s", "peak MiB"]]
    for arm in arms:
        total = [rounds.total(arm, key) for key in ("tap_tx_drops", "retransmits")]
        peak = rounds.peak_mib(arm)
        rows.append([
            arm,
            *(spread(rounds.values(arm, name, "mib_per_second"), 0) for name in BULK),
            spread(rounds.cpu_values(arm)) if arm != "veth" else "-",
            *("-" if value is None else str(value) for value in total),
            spread(rounds.values(arm, "echo", "p50_us"), 1),
            spread(rounds.values(arm, "echo", "p99_us"), 1),
            spread(rounds.values(arm, "udp", "packets_per_second"), 0),
            spread(rounds.values(arm, "udp-gso", "packets_per_second"), 0),
            "-" if peak is None else f"{peak:.1f}"])
    return rows


def at_least(values, limit):
    return None if not values else statistics.median(values) >= limit


def at_most(values, limit):
    return None if not values else statistics.median(values) <= limit


GOALS = [  # figure, measurement, key, comparison, limit for plain, limit for native
    ("forward throughput", "forward", "mib_per_second", at_least, 2.5, 6.0),
    ("reverse throughput", "reverse", "mib_per_second", at_least, 2.5, 6.0),
    ("duplex, sum of both", "duplex", "mib_per_second", at_least, 2.5, 5.0),
    ("pair CPU per GiB", None, None, at_most, 0.5, 0.15),
    ("TCP echo p50", "echo", "p50_us", at_most, 1.0, 1.0),
    ("TCP echo p99", "echo", "p99_us", at_most, 1.0, 1.0),
    ("UDP 1,200 B packets/s without loss", "udp", "packets_per_second", at_least, 1.5, 3.0),
]


def goals(rounds, arms):
    """Rows of the table of goals.md: figure, and for each of our arms goal, found, verdict."""
    ours = [arm for arm in ("plain", "native") if arm in arms]
    rows = [["figure, against reference of the same round"]
            + [f"{arm} {column}" for arm in ours for column in ("goal", "found", "verdict")]]

    def verdict(value):
        return "not measured" if value is None else "pass" if value else "MISS"

    def add(figure, cells):
        rows.append([figure, *(cell for three in cells for cell in three)])

    for figure, measure, key, compare, plain, native in GOALS:
        cells = []
        for arm in ours:
            limit = plain if arm == "plain" else native
            values = rounds.ratios(arm, REFERENCE, measure, key) if measure \
                else rounds.cpu_ratios(arm)
            sign = ">=" if compare is at_least else "<="
            cells.append((f"{sign} {limit}x", spread(values, 2, "x"),
                          verdict(compare(values, limit))))
        add(figure, cells)
    for name in ("forward", "reverse"):
        cells = []
        for arm in ours:
            values = rounds.ratios(arm, "veth", name, "mib_per_second")
            found = spread(values, 2, "x")
            cells.append((">= 0.75x", found, verdict(at_least(values, 0.75)))
                         if arm == "native" else ("-", found, "-"))
        add(f"{name} throughput, against veth", cells)
    for figure, key in (("TAP transmit drops in bulk", "tap_tx_drops"),
                        ("TCP retransmits in bulk", "retransmits")):
        cells = []
        theirs = rounds.total(REFERENCE, key)
        for arm in ours:
            value = rounds.total(arm, key)
            if value is None or (arm == "plain" and theirs is None):
                good = None
            else:
                good = value == 0 or (arm == "plain" and value < theirs)
            found = "-" if value is None else f"{value} (reference {theirs})"
            cells.append(("fewer, or 0" if arm == "plain" else "0", found, verdict(good)))
        add(figure, cells)
    cells = []
    for arm in ours:
        peak = rounds.peak_mib(arm)
        cells.append(("<= 16 MiB", "-" if peak is None else f"{peak:.1f} MiB",
                      verdict(None if peak is None else peak <= 16)))
    add("peak memory of each program", cells)
    return rows


def table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
             for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def document(about, rounds, arms, not_run):
    parts = [f"- {key}: {value}" for key, value in about.items()]
    parts += ["", "Medians over the rounds (lowest-highest); drops and retransmits are sums over "
                  "the bulk measurements of all rounds.", "", table(measured(rounds, arms))]
    if any(arm in arms for arm in ("plain", "native")):
        parts += ["", table(goals(rounds, arms))]
    for arm, reason in not_run.items():
        parts += ["", f"not run: {arm}: {reason}"]
    failures = rounds.failures()
    if failures:
        parts += ["", "failed:"] + [f"- {failure}" for failure in failures]
    return "\n".join(parts) + "\n"
