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

from benchsuite.workshop.gpu_day.jobs import GpuOutcome

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

EAGER_MS = {"smollm2": (5.0, 9.0), "1b": (4.0, 7.0), "3b": (5.0, 9.0)}
"""The same without graphs; guesses."""

SPEEDUPS = {
    ("oracle(0.8)", 4): (2.7, 3.2),
    ("garbage", 4): (0.85, 0.97),
    ("ngram", 4): (0.95, 1.3),
    ("oracle(0.75, cost=", 2): (1.25, 1.35),
    ("oracle(0.75, cost=", 4): (1.1, 1.2),
    ("oracle(0.75, cost=", 6): (0.95, 1.05),
}
"""Speed over graphed plain decoding at the shapes 1B and 3B, by how the draft begins and K; guesses."""

PEERS_MS: dict[str, dict[str, tuple[float, float]]] = {
    "transformers": {"smollm2": (14, 25), "1b": (8, 14), "3b": (13, 22)},
    "transformers_compiled": {"smollm2": (2, 4), "1b": (2.5, 4.5), "3b": (4, 6.5)},
}
"""Milliseconds a token of transformers' ``generate``; guesses. Compiled above half of eager had no graphs."""

WINDOW_COST = (1.0, 1.1)
"""The time of a forward of five slots over that of one, graphed, at every shape; above 1.2 is a bug. A guess."""

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


def shape_of(job: str) -> str | None:
    """Return the shape that a job's name begins with; None for another target."""
    return next((shape for shape in WEIGHT_BYTES if job.split("-")[0] == shape), None)


def floor_ms(shape: str, card: str) -> float:
    """Return the milliseconds below which no step of a shape can be: its weights over the card's bandwidth.

    A card of another name than H100 has the fastest known bandwidth. SmolLM2's 210 launches take at least 0.35 ms.
    """
    bandwidth = H100_BANDWIDTH if "H100" in card else max(H100_BANDWIDTH, *BANDWIDTH.values())
    bytes_ms = WEIGHT_BYTES[shape] / bandwidth * 1e3
    return max(bytes_ms, 0.35) if shape == "smollm2" else bytes_ms


def plain_expected(job: str, card: str) -> Expected | None:
    """Return what plain decoding's milliseconds a token should be in a job on a card; None for other targets."""
    shape = shape_of(job)
    if shape is None:
        return None
    return Expected(*(EAGER_MS if job.endswith("eager") else PLAIN_MS)[shape], floor_ms(shape, card))


Figure = tuple[str, float, Expected | None]


def table_figures(job: str, rows: Sequence[Mapping[str, Any]], card: str) -> list[Figure]:
    """Return a job's figures by name, each with what it should be.

    Milliseconds a token of plain decoding and of peers, speedups of strategies, and what a window of five costs.
    ``rows`` are the ``extra_info`` of its benchmark JSON; one without a speed has none here (``row_faults`` names it).
    """
    found, shape = list[Figure](), shape_of(job)
    for row in rows:
        name, speed, place = str(row.get("draft") or "plain"), row.get("tokens_per_s"), f"{job}, {row['workload']}"
        if not speed:
            continue
        if row["verdict"] == "baseline":
            found.append((f"{place}, plain, ms a token", 1e3 / speed, plain_expected(job, card)))
            continue
        peer = PEERS_MS.get(name, {}).get(shape or "")
        if name.startswith("transformers"):
            found.append((f"{place}, {name}, ms a token", 1e3 / speed, Expected(*peer) if peer else None))
            continue
        k = row.get("num_speculative_tokens")
        label = f"{place}, {name}" + (f", K = {k}" if k else "")
        bounds = next(
            (bounds for (begin, own), bounds in SPEEDUPS.items() if name.startswith(begin) and k == own), None
        )
        expected = Expected(*bounds) if bounds and job in ("1b", "3b") else None
        found.append((f"{label}, times plain", row["speedup"], expected))
        if row.get("verify_cost") and k == 4:
            found.append(
                (f"{label}, window over one slot", row["verify_cost"], Expected(*WINDOW_COST) if shape else None)
            )
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
    measured: list[Figure] = [(one["name"], float(one["value"]), PROBES.get(one["name"])) for one in numbers]
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
    unknown = "unknown: python3 -m benchsuite.workshop.gpu_day commit writes it before the checkout is copied"
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
