"""The plots of a run: what each shows, from which rows and steps. A plot without data is left out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchsuite.measure.arms import Setting
from benchsuite.measure.figures import RowFigures
from benchsuite.measure.results import Results, SettingResults
from benchsuite.measure.rows import Row
from benchsuite.predict.breakeven import map_of_windows
from benchsuite.report import tables
from benchsuite.report.breakeven import map_plot
from benchsuite.report.plots import Plot, Trace


def pictures(one: SettingResults) -> list[Plot]:
    """Return the plots of one setting."""
    group, rows = one.pooled, one.rows
    drafted = [row for row in group if row.arm.draft and not row.failure]
    number = {row.arm.strategy: place for place, row in enumerate(drafted)}
    made = (
        _speed_and_acceptance(rows, number),
        _by_position(drafted),
        _cost_of_width(group),
        _predicted(rows, number),
        _noise(rows),
    )
    return [plot for plot in made if any(trace.points for trace in plot.traces)]


def _by_arm(rows: Iterable[Row], number: Mapping[str, int], x: Callable[[RowFigures], float | None]) -> list[Trace]:
    """For each arm a point of each workload: a figure of its row, and its speedup."""
    found: dict[str, list[tuple[Row, float, float]]] = defaultdict(list)
    for row in rows:
        across, speedup = x(row.figures), row.figures.speedup
        if row.arm.strategy in number and speedup is not None and across is not None:
            found[row.arm.strategy].append((row, across, speedup))
    return [
        Trace(
            tables.full_name(of[0][0]),
            [(across, speedup) for _, across, speedup in of],
            number[strategy],
            said=[
                f"{tables.full_name(row)}, {row.figures.workload}: {across:.2f}, {speedup:.2f}x"
                for row, across, speedup in of
            ],
        )
        for strategy, of in found.items()
    ]


def _speed_and_acceptance(rows: Sequence[Row], number: Mapping[str, int]) -> Plot:
    return Plot(
        "Speed beside acceptance",
        "A point is one strategy on one workload. On the line a step costs what plain's does; what lies below is the "
        "price of drafting and of wider windows. More acceptance is not more speed.",
        "tau: emitted tokens per target forward",
        "speedup",
        _by_arm(rows, number, lambda figures: figures.tau),
        level=(1.0, "plain"),
        diagonal="speedup = tau",
        ratios=True,
    )


def _by_position(drafted: Sequence[Row]) -> Plot:
    traces = [
        Trace(
            tables.full_name(row),
            [(float(place), rate) for place, rate in enumerate(rates, 1)],
            place_of,
            joined=True,
        )
        for place_of, row in enumerate(drafted)
        if (rates := row.figures.acceptance_by_position)
    ]
    return Plot(
        "Acceptance by position",
        "The share of proposals at each depth that were kept, over all workloads. A proposal counts only if all before "
        "it were kept.",
        "depth of the proposal",
        "kept of those proposed",
        traces,
        whole=True,
    )


def widths(group: Sequence[Row]) -> dict[int, float]:
    """Return v(W) for every width of the engine's steps: mean target time over that of one slot; empty without one.

    Of steps whose rows all have W slots: where padding costs nothing, others take less.
    """
    seconds: dict[int, list[float]] = defaultdict(list)
    for row in group:
        for step in row.steps:
            whole = step["proposed_len"] == step["rows"] * (step["width"] - 1)
            if whole and step["rows"] == row.arm.setting.batch:
                seconds[step["width"]].append(step["verify_ms"])
    if 1 not in seconds:
        return {}
    one = sum(seconds[1]) / len(seconds[1])
    return {width: sum(times) / len(times) / one for width, times in sorted(seconds.items())}


def _cost_of_width(group: Sequence[Row]) -> Plot:
    cost = widths(group)
    trace = Trace("measured", [(float(width), value) for width, value in cost.items()], 0, joined=True)
    return Plot(
        "v(W): what a wider window costs",
        "Mean time of the target's forward over W slots, in units of one slot, over every step whose rows have W.",
        "W: slots of the window, K + 1",
        "v(W)",
        [trace] if len(cost) > 1 else [],
        level=(1.0, "free"),
        whole=True,
    )


def _predicted(rows: Sequence[Row], number: Mapping[str, int]) -> Plot:
    return Plot(
        "Sum of parts against measured",
        "Across: the speedup if only target and draft took time, from the same run's own times. What lies below the "
        "line is time in the loop around them.",
        "speedup by target and draft time alone",
        "measured speedup",
        _by_arm(rows, number, lambda figures: figures.sum_of_parts),
        level=(1.0, "plain"),
        diagonal="nothing else took time",
        ratios=True,
    )


def predicted_and_measured(cells: Sequence[Mapping[str, Any]]) -> Plot:
    """Return the plot of a run's predictions, as ``prediction.json`` has them: a point for each strategy and text.

    Example: ``predicted_and_measured(json.loads(text)["cells"])``
    """
    found: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for cell in cells:
        found[cell["label"], cell["batch"]].append(cell)
    several = len({batch for _, batch in found}) > 1
    return Plot(
        "Predicted and measured",
        "A point is one strategy on one text. Across: the speedup that the steps of other texts and the costs give. "
        "On the line the prediction was right.",
        "predicted speedup",
        "measured speedup",
        [
            Trace(
                f"{label}, batch {batch}" if several else label,
                [(cell["predicted"], cell["measured"]) for cell in of],
                place,
                said=[
                    f"{label}, {cell['workload']}, batch {batch}: {cell['measured']:.2f}x, predicted "
                    f"{cell['predicted']:.2f}x"
                    for cell in of
                ],
            )
            for place, ((label, batch), of) in enumerate(found.items())
        ],
        diagonal="as predicted",
        ratios=True,
    )


def _noise(rows: Sequence[Row]) -> Plot:
    ratios = [ratio for row in rows if row.arm.again for found in row.ratios.values() for ratio in found]
    return Plot(
        "Noise: plain decoding against itself",
        "A point is one prompt: the speedup of plain decoding over plain decoding, measured as every other row. "
        "Speedups within these cannot be distinguished from 1.",
        "prompt",
        "speedup",
        [Trace("plain again", [(float(place), ratio) for place, ratio in enumerate(ratios, 1)], 0)],
        level=(1.0, "equal"),
        whole=True,
        zero=False,
    )


def batches(results: Results) -> Plot | None:
    """Return latency against throughput over the batch, if there is more than one batch; else None."""
    found: dict[tuple[Setting, str], list[tuple[Row, float, float]]] = defaultdict(list)
    for row in results.pooled:
        latency, speed = row.figures.tpot_ms, row.figures.tokens_per_s
        if not row.failure and not row.arm.control and latency is not None and speed is not None:
            found[replace(row.arm.setting, batch=1), row.arm.strategy].append((row, latency, speed))
    traces = []
    for place, of in enumerate(found.values()):
        if len({row.arm.setting.batch for row, _, _ in of}) > 1:
            ordered = sorted(of, key=lambda point: point[0].arm.setting.batch)
            points = [(latency, speed) for _, latency, speed in ordered]
            said = [
                f"{tables.full_name(row)}, batch {row.arm.setting.batch}: {latency:.1f} ms, {speed:.0f} tokens/s"
                for row, latency, speed in ordered
            ]
            name = next(tables.full_name(row) for row, _, _ in of)
            traces.append(Trace(name, points, place, joined=True, said=said))
    if not traces:
        return None
    return Plot(
        "Latency against throughput",
        "A point is one batch, from the smallest to the largest: up is more tokens a second in all, left is less "
        "waiting for each of them.",
        "TPOT: ms per token of one request",
        "tokens/s of all rows",
        traces,
    )


def break_even(group: Sequence[Row]) -> list[Plot]:
    """Return the map for a draft that costs nothing, and for the dearest one that was measured, at the run's v(W)."""
    cost = widths(group)
    dear = max(group, key=lambda row: row.figures.draft_cost or 0.0)
    drafts = {"a draft that costs nothing": 0.0}
    if dear.figures.draft_cost is not None and dear.figures.draft_cost > 0.01:
        drafts[f"a draft as dear as {tables.full_name(dear)}"] = dear.figures.draft_cost
    return [
        map_plot(
            f"Break-even: {name} (c = {drafting:.2f})",
            "The speedup that a fixed K would have with v(W) as measured here, if every proposal were accepted with "
            "the same chance (Leviathan et al. 2023, theorem 3.8).",
            map_of_windows(cost, drafting),
        )
        for name, drafting in drafts.items()
        if max(cost, default=1) > 1
    ]
