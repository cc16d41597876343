"""Results of kernels and caches as a document, and as the files of a results folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchsuite.benches.kernels.caches import WIDTH, CacheCost
from benchsuite.benches.kernels.depths import DepthCost
from benchsuite.benches.kernels.timing import Curve, KernelBench, Timing
from benchsuite.machine.files import strict_json, write_folder
from benchsuite.report.document import Document, Lines, Plots, Section, Table
from benchsuite.report.plots import Plot, Trace
from benchsuite.report.renderers import markdown, picture

SHOWN = (1, 2, 4, 8, 9, 12, 16, 32, 64, 256, 512)
"""Widths that a table shows; the JSON and the plot have all widths."""

TOP, WIDEST = 4.0, 32
"""The largest v(W) and the largest W of the plot."""

LEGEND = (
    "time: of one call; of limit: bytes over measured bandwidth or operations over measured peak, the nearer one "
    "(above 1: from a cache, or the limit was measured on a busy machine)",
    "x reference: the reference's time over this one, paired; linear: all matrices once",
)

AT_DEPTH = "Behind much text: over the arena, and transformers' sdpa over its dynamic cache"


def timings_table(timings: Sequence[Timing]) -> Table:
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
    return Table(headers, body)


def _shown(timing: Timing) -> bool:
    return timing.op != "linear" or int(timing.shape.removeprefix("W=")) in SHOWN


def curves_table(found: Sequence[Curve]) -> Table:
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
    return Table(headers, body)


def caches_table(costs: Sequence[CacheCost]) -> Table:
    """The costs of all caches at each length."""
    headers = ["context", "cache", "append ms", "roll back ms", "moved kB", "allocations"]
    body = [
        [
            f"{cost.length:,}",
            cost.cache,
            f"{cost.append_ms:.3f}",
            f"{cost.roll_back_ms:.3f}",
            f"{cost.moved / 1e3:,.1f}",
            str(cost.allocations),
        ]
        for cost in costs
    ]
    return Table(headers, body)


def depths_table(costs: Sequence[DepthCost]) -> Table:
    """Attention and steps at each context and window: ours, transformers' and how many times ours is as fast."""
    headers = ["context", "W", "of", "ms", "transformers' ms", "gain", "interval"]
    body = [
        [
            f"{cost.context:,}",
            str(cost.width),
            cost.what,
            f"{cost.seconds * 1e3:.2f}",
            f"{cost.transformers_seconds * 1e3:.2f}",
            f"{cost.gain.ratio:.2f}",
            "-" if cost.gain.low is None else f"{cost.gain.low:.2f}-{cost.gain.high:.2f}",
        ]
        for cost in costs
    ]
    return Table(headers, body)


def kernels_document(bench: KernelBench, card: Sequence[str]) -> Document:
    """Return the document of one target, below the lines of ``card``."""
    limits = (
        f"machine's limits, measured: {bench.peak.bandwidth / 1e9:.1f} GB/s read, "
        f"{bench.peak.arithmetic / 1e9:.0f} Gflop/s in {bench.target.dtype}".replace("torch.", "")
    )
    moved = f"Keys and values over all layers: {WIDTH} slots appended and rolled back"
    return Document(
        "Kernels",
        [
            Section(parts=[Lines([*card, limits])]),
            Section(parts=[timings_table(bench.timings), Lines(LEGEND)] if bench.timings else []),
            Section("v(W)", [curves_table(bench.curves), Plots([plot(bench.curves)])] if bench.curves else []),
            Section(moved, [caches_table(bench.costs)] if bench.costs else []),
            Section(AT_DEPTH, [depths_table(bench.depths)] if bench.depths else []),
        ],
    )


def write_kernels(root: Path, bench: KernelBench, card: Sequence[str], seed: int, complete: bool) -> Path:
    """Write ``kernels.json``, ``kernels.md`` and ``v_of_w.svg`` of one target into a new folder; return the folder."""
    files = {
        "kernels.json": strict_json({**bench.as_json(), "caches": [asdict(cost) for cost in bench.costs]}),
        "kernels.md": markdown(kernels_document(bench, card)),
        "v_of_w.svg": picture(plot(bench.curves)),
    }
    return write_folder(root, f"kernels-{Path(bench.name).name}", files, card, seed, complete)


def plot(found: Sequence[Curve]) -> Plot:
    """Return v(W) of every curve, up to ``TOP`` and ``WIDEST``."""
    traces = [
        Trace(
            curve.what,
            [(float(width), min(v, TOP)) for width, v in sorted(curve.v.items()) if width <= WIDEST],
            place,
            joined=True,
        )
        for place, curve in enumerate(found)
    ]
    note = f"Time of W rows in units of one; a curve that leaves the frame is above {TOP:g}."
    return Plot("v(W): the cost of W rows", note, "W: rows", "v(W)", traces, level=(1.0, "free"), whole=True)
