"""The break-even map as a document: tables and plots."""

from __future__ import annotations

from collections.abc import Sequence

from benchsuite.predict.breakeven import ACCEPTANCES, MapCheck, MapPoint, fastest_ks
from benchsuite.predict.costs import Costs
from benchsuite.report.document import Document, Lines, Plots, Section, Table
from benchsuite.report.plots import SHAPES, Plot, Trace


def map_document(points: Sequence[MapPoint], checks: Sequence[MapCheck], costs: Costs, drafting: float) -> Document:
    """Return the map and its check as tables and plots, with where the costs are from."""
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
    at = [f"at {chance:g}" for chance in ACCEPTANCES]
    headers = ("batch", "context", "K", "v(K + 1)", "needed", *at)
    fastest = [(*place, *(k or "plain" for k in ks)) for place, ks in fastest_ks(points).items()]
    needed = (
        "needed: the acceptance of each proposal, given those before it, with which nothing is gained or lost (- none)"
    )
    tried = [
        (
            one.rows,
            one.length,
            one.k,
            f"{one.acceptance:g}",
            f"{one.accepted:.2f}",
            f"{one.measured:.2f}x",
            f"{one.mapped:.2f}x",
            f"{(one.measured / one.mapped - 1) * 100:+z.1f} %",
        )
        for one in checks
    ]
    names = ("batch", "context", "K", "oracle", "accepted", "measured", "map", "difference")
    beside = "Measured, beside the map at the acceptance that occurred and proposals that cost nothing"
    said = "; ".join(f"{name} {value}" for name, value in costs.identity.items())
    return Document(
        "Break-even map",
        [
            Section(
                parts=[
                    Table(
                        headers,
                        rows,
                        f"Speedup over plain by acceptance, for proposals that cost {drafting:g} of a forward each",
                    ),
                    Lines([needed]),
                    Table(("batch", "context", *at), fastest, "The fastest K by acceptance, or plain decoding"),
                    Table(names, tried, beside),
                    Lines([f"{costs.age()}: {said}"]),
                    Plots(map_plots(points, checks)),
                ]
            )
        ],
    )


def map_plot(title: str, note: str, points: Sequence[MapPoint], checks: Sequence[MapCheck] = ()) -> Plot:
    """Return the map of one batch and context: a line for each acceptance, and a ring for each check."""
    traces = [
        Trace(f"{rate:g} accepted", [(point.k, point.speedups[place]) for point in points], place, joined=True)
        for place, rate in enumerate(ACCEPTANCES)
    ]
    if checks:
        said = [
            f"oracle({check.acceptance:g}), K = {check.k}: {check.measured:.2f}x, map {check.mapped:.2f}x"
            for check in checks
        ]
        marks = [(float(check.k), check.measured) for check in checks]
        traces.append(Trace("run with oracle", marks, SHAPES.index("ring"), said=said))
    return Plot(title, note, "K", "speedup over plain", traces, level=(1.0, "plain decoding"), whole=True)


def map_plots(points: Sequence[MapPoint], checks: Sequence[MapCheck]) -> list[Plot]:
    """Return the map of each batch and context, with the checks of its batch."""
    note = "Lines are from the costs of forwards; rings were run, at a context between those of the maps."
    return [
        map_plot(
            f"Batch {rows}, {length} tokens of context",
            note,
            [point for point in points if (point.rows, point.length) == (rows, length)],
            [check for check in checks if check.rows == rows],
        )
        for rows, length in fastest_ks(points)
    ]
