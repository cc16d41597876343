"""The page of a call: how each job ended, and every figure beside what it should be.

Predictions are for an H100 80GB in bfloat16 at batch 1; a range is the guess made before any GPU was met. ``floor`` is
the time in which the weights can be read at the datasheet's 3.35 TB/s (H200: 4.8): no step is faster.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchsuite.gpu_day.jobs import GpuOutcome

FIGURES = "SPECDEC_FIGURES"
"""The variable that names the file to which probes append a figure a line, as JSON."""

WEIGHT_BYTES = {"smollm2": 0.269e9, "1b": 2.471e9, "3b": 6.425e9}
"""Bytes of all matrices of a shape, the head's once: a step of one token reads each."""

BANDWIDTH = {"H200": 4.8e12}
"""Bytes a second that memory cannot exceed, by a part of the card's name."""

H100_BANDWIDTH = 3.35e12


@dataclass(frozen=True)
class Expected:
    """A range in which a figure should lie; ``floor``: below it the figure is impossible; None: no such bound."""

    low: float | None = None
    high: float | None = None
    floor: float | None = None

    def verdict(self, value: float) -> str:
        """One of ``impossible``, ``below``, ``above``, ``as predicted``.

        Example: ``Expected(3.2, 4.1, 1.9).verdict(1.0)`` is ``impossible``
        """
        if self.floor is not None and value < self.floor:
            return "impossible"
        if self.low is not None and value < self.low:
            return "below"
        return "above" if self.high is not None and value > self.high else "as predicted"

    def __str__(self) -> str:
        """The range as the page shows it."""
        ends = "" if self.low is None and self.high is None else f"{_number(self.low)} to {_number(self.high)}"
        return ends + ("" if self.floor is None else f", floor {self.floor:.3g}")


def _number(value: float | None) -> str:
    return "…" if value is None else f"{value:.3g}"


PLAIN_MS = {"smollm2": (0.8, 1.3), "1b": (1.4, 1.9), "3b": (3.2, 4.1)}
"""Milliseconds a token of plain decoding, graphed, with the host; guesses."""

SPEEDUPS = {
    "oracle(0.8)": (2.7, 3.2),
    "garbage": (0.85, 0.97),
    "ngram": (0.95, 1.3),
    "pair-2": (1.25, 1.35),
    "pair-4": (1.1, 1.2),
    "pair-6": (0.95, 1.05),
}
"""Speed over graphed plain decoding, by arm, of the shapes 1B and 3B; guesses."""

PROBES = {
    "copy, TB/s": Expected(2.7, None),
    "bf16 product 8192^3, TFLOP/s": Expected(700, None),
    "graph of 1000 launches, us a launch": Expected(1, 4),
    "135m, products of 1 row, ms": Expected(None, None, 0.080),
    "1b, products of 1 row, ms": Expected(0.74, 1.0, 0.738),
    "3b, products of 1 row, ms": Expected(1.9, 2.5, 1.918),
    "135m, products of 5 rows, ms": Expected(None, None, 0.080),
    "1b, products of 5 rows, ms": Expected(0.74, 1.1, 0.738),
    "3b, products of 5 rows, ms": Expected(1.9, 2.7, 1.918),
}
"""Figures of the probes by their names; the floors are an H100's."""


def plain_expected(job: str, card: str) -> Expected | None:
    """Return what plain decoding's milliseconds a token should be in a job on a card; None for other targets.

    A floor is never raised by a guess: the card's name decides the bandwidth, an unknown card has the H200's.
    """
    shape = job.partition("-")[0]
    if shape not in WEIGHT_BYTES:
        return None
    fast = max(BANDWIDTH.values()) if "H100" not in card else H100_BANDWIDTH
    floor = WEIGHT_BYTES[shape] / fast * 1e3
    low, high = (5.0, 9.0) if job.endswith("eager") else PLAIN_MS[shape]
    return Expected(low, high, 0.35 if shape == "smollm2" else floor)  # its 210 launches take at least that


def table_figures(job: str, rows: Sequence[Mapping[str, Any]], card: str) -> list[tuple[str, float, Expected | None]]:
    """Return a job's figures by name, each with what it should be: milliseconds of plain, speedups of the others.

    ``rows`` are the ``extra_info`` of its benchmark JSON; rows without a speed are left out here and named by
    ``row_faults``.
    """
    found: list[tuple[str, float, Expected | None]] = []
    for row in rows:
        name, speed = row.get("arm") or row.get("draft") or "plain", row.get("tokens_per_s")
        if not speed:
            continue
        if row.get("baseline") == "plain" and row.get("verdict") == "baseline":
            found.append((f"{job}, {row['workload']}, plain, ms a token", 1e3 / speed, plain_expected(job, card)))
        elif row.get("speedup"):
            bounds = SPEEDUPS.get(next((key for key in SPEEDUPS if name.startswith(key)), ""))
            expected = Expected(*bounds) if bounds and job in ("1b", "3b") else None
            found.append((f"{job}, {row['workload']}, {name}, times plain", row["speedup"], expected))
    return found


def row_faults(job: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each row that failed or cannot be compared, with its reason: a graph that was not captured is
    one."""
    lines = []
    for row in rows:
        reason = row.get("failed") or row.get("not_comparable")
        if reason:
            lines.append(f"- {job}, {row.get('workload')}, {row.get('draft') or 'plain'}: {reason}")
    return lines


def visit_page(
    call: int,
    device: str,
    outcomes: Sequence[GpuOutcome],
    figures: Sequence[Mapping[str, Any]],
    results: Sequence[Path],
    commit: str,
) -> str:
    """Return the page of a call, in Markdown; predictions are for ``cuda`` alone."""
    card = next((str(one["value"]) for one in figures if one["name"] == "card"), "")
    numbers = [one for one in figures if isinstance(one["value"], int | float)]
    measured: list[tuple[str, float, Expected | None]] = [
        (one["name"], float(one["value"]), PROBES.get(one["name"])) for one in numbers
    ]
    faults = []
    for file in results:
        try:
            rows = [one["extra_info"] for one in json.loads(file.read_text(encoding="utf-8"))["benchmarks"]]
        except (ValueError, KeyError) as error:
            faults.append(f"- {file.stem}: its JSON cannot be read: {error}")
            continue
        measured += table_figures(file.stem, rows, card)
        faults += row_faults(file.stem, rows)
    shown = [
        f"| {name} | {value:.4g} | {expected or ''} | {expected.verdict(value) if expected else ''} |"
        for name, value, expected in (measured if device == "cuda" else [(*one[:2], None) for one in measured])
    ]
    jobs = [f"| {o.job.name} | {o.ended} | {o.seconds:.0f} | {o.said.replace('|', '/')} |" for o in outcomes]
    settled = [f"- {line}: {state}" for line, state in status_lines(outcomes, device).items()]
    unknown = "unknown: python3 -m benchsuite.gpu_day commit writes it before the checkout is copied"
    return "\n".join(
        [
            f"# Call {call}",
            "",
            f"- commit {commit or unknown}",
            f"- device {device}",
            *(f"- {one['name']}: {one['value']}" for one in figures if not isinstance(one["value"], int | float)),
            "",
            "| job | ended | seconds | last line |",
            "| --- | ----- | ------- | --------- |",
            *jobs,
            "",
            "| figure | measured | predicted | verdict |",
            "| ------ | -------- | --------- | ------- |",
            *shown,
            "",
            "Rows that failed or cannot be compared:",
            "",
            *(faults or ["- none"]),
            "",
            "Lines of docs/status.md, for which this call is evidence:",
            "",
            *settled,
            "",
        ]
    )


def status_lines(outcomes: Sequence[GpuOutcome], device: str) -> dict[str, str]:
    """Return the state of each line of docs/status.md that a job is about, by the line.

    ``run on hardware`` if all of its jobs passed on a GPU; else which did not.
    """
    lines = dict.fromkeys(line for outcome in outcomes for line in outcome.job.settles)
    found, done = {}, "run on hardware" if device == "cuda" else f"tried on {device}, no GPU was met"
    for line in lines:
        about = [outcome for outcome in outcomes if line in outcome.job.settles]
        open_ones = [f"{outcome.job.name} {outcome.ended}" for outcome in about if outcome.ended != "passed"]
        found[line] = "open: " + ", ".join(open_ones) if open_ones else done
    return found
