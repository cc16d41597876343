"""The tables of a run: their columns, the heat map, and what is said below them."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchsuite.measure.arms import Arm, PeerName
from benchsuite.measure.figures import KEYS, RowFigures
from benchsuite.measure.rows import Row
from benchsuite.measure.verdict import MARKS, SpeedVerdict
from benchsuite.measure.weights import Weights
from benchsuite.report.document import Table, TableCell

BASELINE = "*"
"""Marks the row that is the denominator of every speedup."""


WIDEST = 28
"""Most characters of an arm's name in a terminal's table; a longer name loses its middle. Files have it whole."""

SHORT_NAMES = {
    **{"question_answering": "q & a", "summarisation": "summary", "code_editing": "code"},
    **{"rewriting": "rewrite", "reasoning": "reason"},
}
"""Headers of workloads whose names are too wide for a table."""

STEPS = (0.9, 0.98, 1.02, 1.25, 1.6, 2.2)
"""Speedups between which the heat map changes its colour."""


@dataclass(frozen=True)
class Column:
    """A column: its header with the unit, the function that fills a cell, and its meaning."""

    header: str
    cell: Callable[[Row], str]
    meaning: str


def _figure(
    header: str, of: Callable[[RowFigures], float | None], form: str, meaning: str, scale: float = 1.0
) -> Column:
    """A column of one figure, times ``scale``; ``-`` where it is unknown."""

    def cell(row: Row) -> str:
        value = of(row.figures)
        return "-" if value is None else form.format(value * scale)

    return Column(header, cell, meaning)


def shown_mbu(mbu: float | None) -> str:
    """Return a share of the bandwidth as tables show it: ``>1`` where the bandwidth was no limit."""
    return "-" if mbu is None else ">1" if mbu > 1 else f"{mbu:.2f}"


def _name(row: Row) -> str:
    return f"{row.arm.label} {BASELINE}" if row.arm.plain else row.arm.label


def _speedup(row: Row) -> str:
    if row.failure:
        return "FAILED"
    return "-" if row.figures.speedup is None else f"{row.figures.speedup:.2f}x"


def _interval(row: Row) -> str:
    low, high = row.figures.speedup_low, row.figures.speedup_high
    return "-" if low is None or high is None or row.figures.verdict == "baseline" else f"{low:.2f}-{high:.2f}"


def _verdict(row: Row) -> str:
    marks = [mark for mark in row.figures.marks or () if mark in ("learns", "replays")]
    return (row.figures.verdict or "too few") + (f" ({', '.join(marks)})" if marks else "")


def _policy(row: Row) -> str:
    if row.arm.peer:
        return PeerName(row.arm.peer).brief or "-"
    if row.arm.draft is None:
        return "-"
    controller = "" if row.arm.controller == "fixed" else f" {row.arm.controller.partition('(')[0]}"
    return f"{row.arm.policy}{controller}" + ("" if row.arm.k is None else f" {row.arm.k}")


def full_name(row: Row) -> str:
    """Return a row's name with its policy and K, as it is written in sentences and plots: nothing of it is cut."""
    if row.arm.name or row.arm.draft is None:
        return row.arm.label
    return f"{row.arm.label}, {_policy(row)}"


def _contract(row: Row) -> str:
    promised, checked = row.figures.contract, row.figures.contract_checked
    if checked == "baseline":
        return "baseline"
    return f"{promised}: {checked or 'not compared'}"


NAME = Column(
    "arm",
    _name,
    f"draft strategy or peer; {BASELINE} marks plain decoding, `plain again` is it once more, `plain eager` op by op",
)

SPEED = (
    NAME,
    Column("policy K", _policy, "acceptance policy and K, the proposals of a step; a peer's options"),
    _figure("tok/s", lambda f: f.tokens_per_s, "{:.1f}", "decoded tokens per second, prefill excluded"),
    Column(
        "speedup", _speedup, "geometric mean over workloads of the geometric means of paired ratios to the baseline"
    ),
    Column("interval", _interval, "95 % interval of that mean; none below six independent units"),
    Column(
        "verdict",
        _verdict,
        "faster, slower, ~ (the interval holds 1, or the noise of `plain again` is as large), not comparable, too few; "
        "(learns): from one prompt to the next; (replays): its draft asks for plain's output",
    ),
    _figure("n", lambda f: f.units, "{:.0f}", "independent units: prompts, or batches of prompts"),
    _figure("e2e s", lambda f: f.e2e_s, "{:.2f}", "median time from the prompt to the last token, prefill included"),
    Column("e2e", lambda row: row.whole.cell_text, "speedup of that time, per token, with its mark"),
)
"""Columns of the speed."""

LATENCY = (
    NAME,
    Column("contract", _contract, "what is promised, and outputs that equalled plain's of those compared, with ties"),
    _figure("TTFT ms", lambda f: f.ttft_ms, "{:.0f}", "median time to the first token, from handing over the prompt"),
    _figure("draft", lambda f: f.ttft_draft_ms, "{:.1f}", "the draft's part of it: admit and prefilled"),
    _figure("TPOT ms", lambda f: f.tpot_ms, "{:.1f}", "median time per token after the first emission"),
    _figure(
        "ITL 50", lambda f: f.itl_p50_ms, "{:.1f}", "median gap between emissions, each of one or more tokens, in ms"
    ),
    _figure("90", lambda f: f.itl_p90_ms, "{:.1f}", "90th percentile of these gaps"),
    _figure("99", lambda f: f.itl_p99_ms, "{:.1f}", "99th percentile of these gaps"),
    _figure(
        "set-up s", lambda f: f.set_up_s, "{:.2f}", "building draft and controller, calibration included; compiling"
    ),
)
"""Columns of the contract and of latencies."""

REASONS = (
    NAME,
    _figure("tau", lambda f: f.tau, "{:.2f}", "emitted tokens / target forwards"),
    _figure("acc len", lambda f: f.mean_acceptance_length, "{:.2f}", "mean acceptance length, 1 + accepted / drafts"),
    _figure("acc %", lambda f: f.acceptance_rate, "{:.0f}", "acceptance rate, accepted / proposed", 100),
    _figure(
        "c", lambda f: f.draft_cost, "{:.3f}", "all draft time while decoding, per proposal / target time for one slot"
    ),
    _figure("v(W)", lambda f: f.verify_cost, "{:.2f}", "target time for W slots / for 1"),
    _figure(
        "parts", lambda f: f.sum_of_parts, "{:.2f}x", "sum of parts: the speedup if only target and draft took time"
    ),
)
"""Columns of the causes of the speed: what is accepted, and what a step costs."""

SHARES = (
    NAME,
    _figure("draft %", lambda f: f.draft_share, "{:.1f}", "share of the decoding time in the draft", 100),
    _figure("target %", lambda f: f.target_share, "{:.1f}", "share in the target's forwards", 100),
    _figure("policy %", lambda f: f.accept_share, "{:.1f}", "share in the acceptance policy", 100),
    _figure("commit %", lambda f: f.commit_share, "{:.1f}", "share in committing keys and values", 100),
    _figure("control %", lambda f: f.control_share, "{:.1f}", "share in the controller, which chooses K", 100),
    _figure("overhead %", lambda f: f.overhead, "{:z.1f}", "time that is attributed to none of them", 100),
    Column(
        "MBU",
        lambda row: shown_mbu(row.figures.mbu),
        "bytes read per second, the draft's weights included / read bandwidth; >1: no share, as the bandwidth was "
        "measured on a busy machine, or a cache holds the weights",
    ),
)
"""Columns of where the time goes."""


def section_title(row: Row) -> str:
    """The setting of a row in words, apart from its workload: what all rows of one section share."""
    setting, figures = row.arm.setting, row.figures
    tokens = f"{setting.sampling.max_new_tokens} tokens"
    shown = ("device", "dtype", "batch", "max_new_tokens")
    unusual = [f"{_spelled(name)} {_brief(value)}" for name, value in setting.unusual.items() if name not in shown]
    return ", ".join([row.target, figures.device, figures.dtype, f"batch {setting.batch}", *unusual, tokens])


def _spelled(name: str) -> str:
    """A field of a setting in words: ``top-k``, ``presence penalty``."""
    return re.sub("^(top|min)_", r"\1-", name).replace("_", " ")


def _brief(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def overview(pooled: Sequence[Row], by_workload: Sequence[Row]) -> Table:
    """Return the heat map: the speedup of each arm on each workload and, below, the copy rate and the entropy of
    plain's output.

    All rows must be of one setting, apart from the workload.
    """
    workloads = list(dict.fromkeys(row.figures.workload for row in by_workload))
    found = {(row.arm.label, _policy(row), row.figures.workload): row for row in by_workload}
    like = {row.figures.workload: row.text for row in by_workload if row.text}
    body: list[list[TableCell | str]] = [
        [
            _name(row),
            _policy(row),
            *(heat_cell(found.get((row.arm.label, _policy(row), name))) for name in workloads),
            heat_cell(row),
        ]
        for row in pooled
    ]
    body.append(["copy rate", "", *(f"{like[w].copy_rate:.2f}" if w in like else "-" for w in workloads), ""])
    body.append(["entropy, bits", "", *(f"{like[w].entropy_bits:.2f}" if w in like else "-" for w in workloads), ""])
    names = [SHORT_NAMES.get(name, name.replace("_", " ")) for name in workloads]
    title = f"Speedup over {pooled[0].figures.baseline}, geometric means of paired ratios"
    return Table(["arm", "policy K", *names, "all"], body, title, heat=True, narrow=WIDEST)


def heat_cell(row: Row | None) -> TableCell:
    """Return a row's cell of the heat map; None: the row was not measured.

    It has a colour by its speedup where that can be distinguished from 1.
    """
    if row is not None and row.failure:
        return TableCell("FAILED", hint=row.failure.splitlines()[0])
    if row is None or row.figures.speedup is None:
        return TableCell("-", hint="not measured")
    level = sum(row.figures.speedup >= step for step in STEPS)
    coloured = row.verdict.distinguishable and not row.arm.again
    hint = f"{full_name(row)}, {row.figures.workload}: {row.verdict.sentence}"
    return TableCell(row.verdict.cell_text, f"h{level}" if coloured else "", hint)


def success(rows: Sequence[Row]) -> str:
    """Return how many rows could be measured and kept their contract, and how the others failed, by kind."""
    kinds = Counter(row.figures.failed or "contract" for row in rows if row.failure)
    fine = len(rows) - sum(kinds.values())
    named = "".join(f"; {count} failed: {kind}" for kind, count in sorted(kinds.items()))
    return f"{fine} of {len(rows)} rows were measured and kept their contract ({fine / len(rows):.0%}){named}"


def weights_table(targets: Sequence[Weights]) -> Table:
    """Return a line for each quantised target: its size and perplexity beside those of the unrounded weights."""
    headers = ["target", "weights", "GiB", "of unrounded", "perplexity", "unrounded", "change %", "tokens"]
    body = [
        [
            weights.target,
            weights.dtype,
            f"{weights.bytes / 2**30:.3f}",
            f"{weights.bytes / weights.float_bytes:.2f}",
            f"{weights.perplexity:.3f}",
            f"{weights.float_perplexity:.3f}",
            f"{(weights.perplexity / weights.float_perplexity - 1) * 100:+z.2f}",
            str(weights.tokens),
        ]
        for weights in targets
    ]
    return Table(headers, body)


def op_lines(rows: Sequence[Row]) -> list[str]:
    """Return a line for each backend: how often each op ran on it, over all rows of the engine."""
    calls: dict[str, dict[str, int]] = {}
    for row in rows:
        for op, by_backend in (row.figures.counters or {}).get("ops", {}).items():
            for backend, count in by_backend.items():
                ran = calls.setdefault(backend, {})
                ran[op] = ran.get(op, 0) + count
    return [
        f"ops on {backend}: " + ", ".join(f"{op} {count:,}" for op, count in sorted(ran.items()))
        for backend, ran in sorted(calls.items())
    ]


def rows_table(rows: Sequence[Row], columns: Sequence[Column], title: str = "", detail: bool = False) -> Table:
    """Return the figures of rows, a line for each. ``detail``: as ``Table`` has it."""
    body = [[column.cell(row) for column in columns] for row in rows]
    return Table([column.header for column in columns], body, title, detail, narrow=WIDEST)


LEGEND = (
    "e2e: prompt to last token; TTFT: to the first; TPOT: per token after the first; ITL: gaps of emissions",
    "tau: emitted / target forwards; acc len: 1 + accepted / drafts; c: draft time per proposal / one-slot target time",
    "v(W): target time for W slots / for 1; parts: speedup by target and draft time alone; overhead: other time",
    "MBU: bytes read / bandwidth; copy rate: output that bigrams guess; entropy: the target's, per token",
)
"""Meanings of the columns, shown below the terminal's tables."""


def notes(pooled: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    """Return the lines below a setting's tables: how the intervals are made, and what must be known of single rows."""
    methods = {row.method for row in pooled if row.method}
    lines = [f"speedup: each workload weighs the same; interval: 95 %, {method}" for method in sorted(methods)] + [
        MARKS
    ]
    lines += [f"{row.arm.name}: {row.arm.strategy}" for row in pooled if row.arm.name]
    judged = [
        f"{row.arm.name or row.arm.strategy} {row.figures.judged_perplexity:.3f}"
        for row in pooled
        if row.figures.judged_perplexity
    ]
    lines += [f"perplexity of the outputs under the judge: {', '.join(judged)}"] if judged else []
    whole = {row.arm: row.figures.not_comparable for row in pooled}
    for row in (*pooled, *rows):
        name = f"{row.arm.name or row.arm.strategy}, {row.figures.workload}"
        reason = row.figures.not_comparable
        # What is true of a whole row need not be said again of its parts.
        if reason and (row in pooled or not whole.get(replace(row.arm, setting=row.arm.setting.without_workload))):
            lines.append(f"{name}: not comparable: {reason}")
        if row in pooled and "one prompt" in (row.figures.marks or ()):
            lines.append(f"{name}: one prompt makes more than half of its speedup")
        if row in pooled and "warm" in (row.figures.marks or ()):
            lines.append(f"{name}: its prompts may have been in its cache: it has no TTFT, and no e2e")
    lines += [f"{row.arm.id}: {tie}" for row in rows for tie in row.ties]
    return lines


def contrasts_table(speeds: Mapping[tuple[Arm, Arm], SpeedVerdict]) -> Table:
    """Return the speed of each arm (a row) over each other (a column), marked as all speedups are."""
    arms = list(dict.fromkeys(arm for pair in speeds for arm in pair))
    nothing = SpeedVerdict(None)
    body = [
        [
            f"{place} {one.name or one.strategy}",
            *(speeds.get((one, other), nothing).cell_text for other in arms),
        ]
        for place, one in enumerate(arms, 1)
    ]
    headers = ["faster than", *map(str, range(1, len(arms) + 1))]
    return Table(headers, body, "Each arm's speed over each other's", detail=True)


def meanings() -> list[str]:
    """Return a line for each column of the tables and each figure below them."""
    return [
        *glossary((*SPEED, *LATENCY[1:], *REASONS[1:], *SHARES[1:])).splitlines(),
        "copy rate: share of plain's output that follows its two predecessors as they last did before",
        "entropy, bits: mean entropy of the target's own distribution at each token of plain's output",
    ]


def glossary(columns: Sequence[Column]) -> str:
    """Return one line for each column."""
    return "\n".join(f"{column.header}: {column.meaning}" for column in columns)


NESTED = ("counters", "memory", "acceptance_by_position", "acceptance_histogram", "marks")
"""Figures that do not fit a cell of a CSV file as they are."""


def as_csv(rows: Sequence[Row]) -> str:
    """Return every figure of every row, one line for each row; unknown values are empty."""
    out = io.StringIO()
    keys = [key for key in KEYS if key not in NESTED] if rows else []
    counters = next(
        ([name for name in row.figures.counters if name != "ops"] for row in rows if row.figures.counters), []
    )
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["target", *keys, "marks", *counters])
    for row in rows:
        info, found = row.info, row.figures.counters or {}
        marks = " ".join(row.figures.marks or ())
        writer.writerow([row.target, *(info[key] for key in keys), marks, *(found.get(name) for name in counters)])
    return out.getvalue()
