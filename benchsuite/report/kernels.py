"""Results of kernels and caches as tables on the terminal, and as the files of a results folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchsuite.benches.kernels.caches import WIDTH, CacheCost
from benchsuite.benches.kernels.timing import Curve, KernelBench, Timing
from benchsuite.machine.files import strict_json, write_folder
from benchsuite.report import html
from benchsuite.report.document import Style, Table

SHOWN = (1, 2, 4, 8, 9, 12, 16, 32, 64, 256, 512)
"""Widths that a table shows; the JSON and the plot have all widths."""

TOP, WIDEST = 4.0, 32
"""The largest v(W) and the largest W of the plot."""

COLOURS = ("#3b7dd8", "#b8752c", "#2f8f5b", "#8a4fbf", "#c2405a", "#4a4f57", "#149c9c", "#a89000")

LEGEND = (
    "time: of one call; of limit: bytes over measured bandwidth or operations over measured peak, the nearer one",
    "(above 1: from a cache); x reference: the reference's time over this one, paired; linear: all matrices once",
)


def timings_table(timings: Sequence[Timing], style: Style = "simple") -> str:
    """One row for each op, shape and backend; the reference has a row only where no other backend ran."""
    headers = ["op", "dtype", "shape", "backend", "time us", "moved kB", "of limit", "x reference"]
    alone = {(t.op, t.kind, t.shape) for t in timings} - {
        (t.op, t.kind, t.shape) for t in timings if t.backend != "reference"
    }
    body = [
        [
            t.op,
            t.kind,
            t.shape,
            t.backend,
            f"{t.seconds * 1e6:,.1f}",
            f"{t.moved / 1e3:,.1f}",
            f"{t.fraction:.2f}",
            "-" if t.backend == "reference" or t.ratio is None else f"{t.ratio:.2f}",
        ]
        for t in timings
        if (t.backend != "reference" or (t.op, t.kind, t.shape) in alone) and _shown(t)
    ]
    return Table(headers, body).drawn(style)


def _shown(timing: Timing) -> bool:
    return timing.op != "linear" or int(timing.shape.removeprefix("W=")) in SHOWN


def curves_table(found: Sequence[Curve], style: Style = "simple") -> str:
    """For each curve: milliseconds at one row, their ratio to torch's own, and v(W) at the widths of ``SHOWN``."""
    headers = ["v(W)", "ms at 1", "of torch", *(f"W={width}" for width in SHOWN)]
    body = [
        [
            curve.what,
            f"{curve.seconds[1] * 1e3:.2f}",
            f"{curve.of_torch:.2f}",
            *(f"{curve.v[width]:.2f}" if width in curve.v else "-" for width in SHOWN),
        ]
        for curve in found
    ]
    return Table(headers, body).drawn(style)


def caches_table(costs: Sequence[CacheCost], style: Style = "simple") -> str:
    """The costs of all caches at each length."""
    headers = ["context", "cache", "append ms", "roll back ms", "attend ms", "moved kB", "allocations"]
    body = [
        [
            f"{cost.length:,}",
            cost.cache,
            f"{cost.append_ms:.3f}",
            f"{cost.roll_back_ms:.3f}",
            f"{cost.attend_ms:.3f}",
            f"{cost.moved / 1e3:,.1f}",
            str(cost.allocations),
        ]
        for cost in costs
    ]
    return Table(headers, body).drawn(style)


def lines(bench: KernelBench) -> list[str]:
    """Return the terminal's lines for one target."""
    found = [
        f"machine's limits, measured: {bench.peak.bandwidth / 1e9:.1f} GB/s read, "
        f"{bench.peak.arithmetic / 1e9:.0f} Gflop/s in {bench.target.dtype}".replace("torch.", ""),
    ]
    if bench.timings:
        found += [timings_table(bench.timings), *LEGEND, ""]
    if bench.curves:
        found += [curves_table(bench.curves), ""]
    if bench.costs:
        found += [f"keys and values over all layers, {WIDTH} slots appended, attended from, rolled back:"]
        found += [caches_table(bench.costs), ""]
    return found


def write_kernels(root: Path, bench: KernelBench, card: Sequence[str], seed: int, complete: bool) -> Path:
    """Write ``kernels.json``, ``kernels.md`` and ``v_of_w.svg`` of one target into a new folder; return the folder."""
    parts = [
        "# Kernels",
        "\n".join(f"- {line}" for line in (*card, lines(bench)[0])),
        timings_table(bench.timings, "github"),
        " ".join(LEGEND),
        "## v(W)",
        curves_table(bench.curves, "github"),
        f"## Keys and values: {WIDTH} slots appended, attended from, rolled back, over all layers",
        caches_table(bench.costs, "github"),
    ]
    files = {
        "kernels.json": strict_json({**bench.as_json(), "caches": [asdict(cost) for cost in bench.costs]}),
        "kernels.md": "\n\n".join(parts) + "\n",
        "v_of_w.svg": plot(bench.curves),
    }
    return write_folder(root, f"kernels-{Path(bench.name).name}", files, card, seed, complete)


def plot(found: Sequence[Curve]) -> str:
    """Return an SVG of v(W) of every curve, up to ``TOP`` and ``WIDEST``."""
    most = WIDEST

    def x(width: int) -> float:
        return 50 + 500 * (width - 1) / (most - 1)

    def y(v: float) -> float:
        return 380 - 340 * min(v, TOP) / TOP

    drawn: list[dict[str, Any]] = [
        {
            "label": curve.what,
            "points": " ".join(f"{x(width):.1f},{y(v):.1f}" for width, v in sorted(curve.v.items()) if width <= WIDEST),
            "colour": COLOURS[index % len(COLOURS)],
            "dash": "6 3" if "reference" in curve.what else "2 2" if "transformers" in curve.what else "none",
        }
        for index, curve in enumerate(found)
    ]
    ticks = [{"y": y(step / 2), "label": f"{step / 2:g}"} for step in range(int(TOP * 2) + 1)]
    marks = [{"x": x(width), "label": str(width)} for width in (1, *range(4, most + 1, 4))]
    return html.template("curves.svg.j2", lines=drawn, ticks=ticks, marks=marks)
