"""Strategies under load as a document, with latency drawn against throughput, and as the files of a results folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import log

from benchsuite.benches.load.bench import AGAIN, PLAIN, LoadBench
from benchsuite.benches.load.crossover import Crossover
from benchsuite.benches.load.load_figures import REPEATS, LoadFigures, curves
from benchsuite.benches.serving.load import Traffic
from benchsuite.machine.files import strict_json
from benchsuite.measure.interval import FEWEST
from benchsuite.measure.verdict import MARKS, SpeedVerdict, noise_of
from benchsuite.report.document import Document, Lines, Plots, Section, Table
from benchsuite.report.plots import Plot, Trace
from benchsuite.report.renderers import markdown, page
from benchsuite.report.serving import endpoint_notes, latency_tables
from specdec.amounts import amount

COLUMNS = (
    "ratio: of so many at once, the arm's tokens a second over plain's while as many requests run as the load has "
    "(busy); under a rate, plain's seconds per token over the arm's, from when a request was due to its end: the "
    "geometric mean over blocks of the same prompts, which plain and every arm served in turn; interval: 95 %; "
    + MARKS,
    "tok/s: output tokens a second of the whole block, prefill included; busy: the same if no place stayed empty: the "
    "prefill, and as many steps as the requests need, at the pace of those until one does and with the slots of all; "
    "tail: tokens a second after that; tail %: the share of the time that the tail is",
    "goodput: requests a second that keep the limits of --specdec-slo, and their share; equal: outputs that are "
    "plain's, token by token",
    "ms: TTFT to the first token, TPOT per token after the first emission, e2e to the last token; TTFT and e2e begin "
    "when a request was due; 50, 90, 99: percentiles, of which the 90th needs 10 values and the 99th 100",
    "crossover: where a line through the ratios at all loads is 1, by a test of the whole line: a mark at one load may "
    "say more; `plain again` is plain decoding once more: its ratio is the noise",
)
"""Meanings of the columns."""

NO_INTERVAL = (
    f"?: an interval needs {FEWEST} blocks of different prompts, or as many in two rounds or more: more prompts, or "
    "more --specdec-pairs"
)

OF_REPEATS = (
    "the interval is over rounds of the same prompts: it says what repeats of these would show, and nothing of other "
    "prompts"
)
"""What is said where there are too few prompts for an interval over them."""

SPEEDS = ["arm", "tok/s", "busy", "tail", "tail %", "ratio", "interval", "req/s", "goodput", "equal"]


def load_table(rows: Sequence[LoadFigures], wrong: Collection[str] = ()) -> Table:
    """A line for each arm under one load: throughput, the ratio to plain, goodput, and how many outputs are plain's.

    ``wrong``: arms whose outputs break their contract, which are not comparable.
    """
    again = next((row.ratio for row in rows if row.arm == AGAIN), None)
    return Table(SPEEDS, [_speeds(row, noise_of(again), row.arm in wrong) for row in rows])


def _speeds(row: LoadFigures, noise: float, wrong: bool) -> list[str]:
    reason = "outputs are not plain's" if wrong else None
    verdict, served = SpeedVerdict(row.ratio, noise, reason, row.arm == PLAIN), row.served
    return [
        row.arm,
        *(_rate(value) for value in (served.tokens_per_s, row.busy_per_s, row.tail_per_s)),
        "-" if row.tail is None else f"{row.tail * 100:.0f}",
        verdict.cell_text,
        "-" if verdict.interval is None or verdict.baseline else "{:.2f}-{:.2f}".format(*verdict.interval),
        f"{served.rate:.2f}",
        "-" if served.goodput is None else f"{served.goodput[0]:.2f}/s, {served.goodput[1]:.0%}",
        f"{row.equal}/{row.of}",
    ]


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def load_curves_table(
    points: Mapping[Traffic, Sequence[LoadFigures]], unit: str, crossovers: Mapping[str, Crossover]
) -> Table:
    """The ratio of every arm at every load of one kind, and where the arm becomes slower than plain."""
    names = list(dict.fromkeys(row.arm for rows in points.values() for row in rows))
    of = {name: curves(points, name).get(unit, []) for name in names}
    noise = {at: noise_of(row.ratio) for at, row in of.get(AGAIN, [])}
    body = []
    for name in names:
        said = crossovers[name].sentence(unit) if name in crossovers else ""
        cells = [SpeedVerdict(row.ratio, noise.get(at, 0.0), baseline=name == PLAIN).cell_text for at, row in of[name]]
        body.append([name, *cells, said])
    return Table(["arm", *(f"{at:g} {unit}" for at, _ in of[PLAIN]), "crossover"], body)


def latency_plot(
    points: Mapping[Traffic, Sequence[LoadFigures]], unit: str, crossovers: Mapping[str, Crossover]
) -> Plot:
    """Latency against throughput, a curve for each arm, whose points are the loads; crossovers are marked."""
    names = list(dict.fromkeys(row.arm for rows in points.values() for row in rows if row.arm != AGAIN))
    traces = []
    for number, name in enumerate(names):
        curve = [
            (at, row.served.tokens_per_s, y) for at, row in curves(points, name).get(unit, []) if (y := _latency(row))
        ]
        placed = [(at, x, y) for at, x, y in curve if x is not None]
        said = [f"{name}, {at:g} {unit}: {x:.1f} tokens a second, {y:.1f} ms" for at, x, y in placed]
        traces.append(Trace(name, [(x, y) for _, x, y in placed], number, joined=True, said=said))
        found = crossovers.get(name)
        if found is not None and found.at is not None and len(placed) > 1:
            sentence = f"{name}: {found.sentence(unit)}"
            mark = f"{name} slower than plain from {found.at:.3g} {unit}"
            traces.append(Trace(mark, [on_curve(placed, found.at)], len(names) + number, said=[sentence]))
    closed = unit == "at once"
    return Plot(
        f"Latency against throughput, requests {unit}",
        "Right and below is better. A point is a load; a mark on a curve is where its arm becomes slower than plain.",
        "tokens a second, all requests",
        "ms per token after the first emission, median" if closed else "ms from due to the last token, median",
        traces,
        zero=False,
    )


def _latency(row: LoadFigures) -> float | None:
    return row.served.tpot_ms[0] if row.served.tokens_per_s and row.busy_per_s is not None else row.served.e2e_ms[0]


def on_curve(points: Sequence[tuple[float, float, float]], at: float) -> tuple[float, float]:
    """Return the place on a curve of (load, x, y) at a load, on straight lines over the log of the load.

    Example: ``on_curve([(1, 0.0, 1.0), (4, 2.0, 3.0)], 2)`` is ``(1.0, 2.0)``.
    """
    for (low, x, y), (high, right, top) in pairwise(points):
        if at <= high:
            share = max(0.0, log(at / low) / log(high / low))
            return x + share * (right - x), y + share * (top - y)
    return points[-1][1:]


def load_document(bench: LoadBench, card: Sequence[str]) -> Document:
    """Return the document of one target, below the lines of ``card``: curves first, then each load."""
    points = {load: bench.figures(load) for load, blocks in bench.blocks.items() if blocks}
    crossovers = bench.crossovers()
    units = list(dict.fromkeys(unit for rows in [curves(points, PLAIN)] for unit in rows))
    of_curves = [
        Section(
            f"Ratio to plain, requests {unit}",
            [
                load_curves_table(points, unit, crossovers.get(unit, {})),
                Plots([latency_plot(points, unit, crossovers.get(unit, {}))]),
            ],
        )
        for unit in units
    ]
    loads = [
        Section(
            f"{load.label}, {_size(bench, load)}",
            [
                load_table(rows, bench.wrong(load)),
                *latency_tables([row.served for row in rows], "arm"),
                Lines([*_notes(rows), *_outputs(bench, load)]),
            ],
        )
        for load, rows in points.items()
    ]
    return Document("Load", [Section(parts=[Lines(card)]), *of_curves, *loads, Section("Columns", [Lines(COLUMNS)])])


def _size(bench: LoadBench, load: Traffic) -> str:
    rounds, groups = ({getattr(block, name) for block in bench.blocks[load]} for name in ("round", "group"))
    return (
        f"{amount(len(bench.places(load)), 'prompt')} in {amount(len(groups), 'block')}, "
        f"{amount(len(rounds), 'round')}, at most {amount(bench.plan.sampling.max_new_tokens, 'token')} each"
    )


def _notes(rows: Sequence[LoadFigures]) -> list[str]:
    ratios = [row.ratio for row in rows[1:] if row.ratio]
    lines = [NO_INTERVAL] if any(ratio.low is None for ratio in ratios) else []
    return (
        lines
        + ([OF_REPEATS] if any(ratio.method == REPEATS for ratio in ratios) else [])
        + endpoint_notes([row.served for row in rows])
    )


def _outputs(bench: LoadBench, load: Traffic) -> list[str]:
    """What is known of outputs that are not plain's."""
    found = bench.unequal(load)
    return [
        *(line for lines in bench.wrong(load).values() for line in lines),
        *(
            f"{name}: {len(some)} outputs part from plain's at a tie: two tokens whose logits rounding may swap"
            for name, some in found.items()
            if all(one.tie for one in some)
        ),
        *(
            f"{name}: its policy does not promise plain's tokens, so that its outputs are not checked here; "
            "benchsuite.test_speculation tests what it promises"
            for name, exact in bench.exact.items()
            if not exact
        ),
    ]


def load_files(name: str, bench: LoadBench, card: Sequence[str]) -> dict[str, str]:
    """Return the texts of JSON, Markdown and page of one setting, by the names of files that begin with ``name``."""
    document = load_document(bench, card)
    texts = {"json": strict_json(bench.as_json()), "md": markdown(document), "html": page(document)}
    return {f"{name}.{ending}": text for ending, text in texts.items()}
