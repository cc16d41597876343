"""The break-even map as tables."""

from __future__ import annotations

from collections.abc import Sequence

from benchsuite.predict.breakeven import ACCEPTANCES, MapCheck, MapPoint
from benchsuite.predict.costs import Costs
from benchsuite.report.document import Table


def map_lines(points: Sequence[MapPoint], checks: Sequence[MapCheck], costs: Costs, drafting: float) -> list[str]:
    """Return the map and its check as tables, with where the costs are from."""
    rows = [
        (
            point.rows,
            point.length,
            point.k,
            f"{point.window:.2f}",
            "-" if point.needed is None else f"{point.needed:.2f}",
            *[f"{speedup:.2f}x" for speedup in point.speedups],
        )
        for point in points
    ]
    headers = ("batch", "context", "K", "v(K + 1)", "needed", *[f"at {chance:g}" for chance in ACCEPTANCES])
    lines = [
        f"Speedup over plain by acceptance, for proposals that cost {drafting:g} of a forward each:",
        Table(headers, rows).drawn(),
        "needed: the acceptance of each proposal, given those before it, with which nothing is gained or lost (- none)",
    ]
    if checks:
        tried = [
            (
                one.rows,
                one.length,
                one.k,
                f"{one.acceptance:g}",
                f"{one.accepted:.2f}",
                f"{one.measured:.2f}x",
                f"{one.mapped:.2f}x",
                f"{(one.measured / one.mapped - 1) * 100:+.1f} %",
            )
            for one in checks
        ]
        names = ("batch", "context", "K", "oracle", "accepted", "measured", "map", "difference")
        lines += [
            "",
            "Measured, beside the map at the acceptance that occurred and proposals that cost nothing:",
            Table(names, tried).drawn(),
        ]
    said = "; ".join(f"{name} {value}" for name, value in costs.identity.items())
    return [*lines, f"{costs.age()}: {said}"]
