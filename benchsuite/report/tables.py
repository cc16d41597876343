"""Tables: the same columns for the terminal, Markdown, CSV and HTML."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from benchsuite.measure.results import Row
from benchsuite.measure.weights import Weights

BASELINE = "*"
"""Marks the row that is the denominator of every speedup."""


WIDEST = 30
"""Most characters of an arm's name in a table; a longer name loses its middle. JSON and test ids have it whole."""


@dataclass(frozen=True)
class Column:
    """A column: its header with the unit, the function that fills a cell, and its meaning."""

    header: str
    cell: Callable[[Row], str]
    meaning: str


def _figure(key: str, form: str, scale: float = 1.0) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        value = row.info[key]
        text = "-" if value is None else form.format(value * scale)
        return "0" if text == "-0" else text

    return cell


def _name(row: Row) -> str:
    label = row.arm.label
    if len(label) > WIDEST:
        label = f"{label[: WIDEST // 2]}…{label[-(WIDEST // 2 - 1) :]}"
    return f"{label} {BASELINE}" if row.arm.plain else label


def _speedup(row: Row) -> str:
    if row.failure:
        return "FAILED"
    return "-" if row.info["speedup"] is None else f"{row.info['speedup']:.2f}x"


def _interval(row: Row) -> str:
    low, high = row.info["speedup_low"], row.info["speedup_high"]
    # One or two ratios give no interval.
    return "-" if low is None or row.arm.plain or row.n < 3 else f"{low:.2f}-{high:.2f}"


def _text(key: str) -> Callable[[Row], str]:
    return lambda row: str(row.info[key] or "-")


def _policy(row: Row) -> str:
    if row.arm.draft is None:
        return "-"
    controller = "" if row.arm.controller == "fixed" else f" {row.arm.controller.partition('(')[0]}"
    return f"{row.arm.policy}{controller}" + ("" if row.arm.k is None else f" {row.arm.k}")


def _contract(row: Row) -> str:
    promised, checked = row.info["contract"], row.info["contract_checked"]
    if checked == "baseline":
        return "baseline"
    # Ties are listed below the tables.
    return f"{promised}: {(checked or 'not compared').partition(',')[0]}"


def _outside(row: Row) -> str:
    return "-" if row.host_share is None else f"{row.host_share * 100:.1f}"


NAME = Column("arm", _name, f"draft strategy or peer; {BASELINE} marks the baseline")

SPEED = (
    NAME,
    Column("policy K", _policy, "acceptance policy and K, the proposals of a step"),
    Column("tok/s", _figure("tokens_per_s", "{:.1f}"), "decoded tokens per second, prefill excluded"),
    Column("speedup", _speedup, "median of paired ratios to plain"),
    Column("interval", _interval, "95 % bootstrap interval of that median"),
    Column("n", lambda row: str(row.n), "pairs it rests on"),
    Column("TTFT ms", _figure("ttft_ms", "{:.0f}"), "median time to the first token, prefill included"),
    Column("TPOT ms", _figure("tpot_ms", "{:.1f}"), "median time per output token after the first"),
    Column("contract", _contract, "what is promised, and how many outputs equalled plain's, token by token"),
)
"""Columns of the speed and the contract."""

REASONS = (
    NAME,
    Column("tau", _figure("tau", "{:.2f}"), "emitted tokens / target forwards"),
    Column("acc len", _figure("mean_acceptance_length", "{:.2f}"), "mean acceptance length, 1 + accepted / drafts"),
    Column("acc %", _figure("acceptance_rate", "{:.0f}", 100), "acceptance rate, accepted / proposed"),
    Column("c", _figure("draft_cost", "{:.3f}"), "draft time per proposal / target time for one slot"),
    Column("v(W)", _figure("verify_cost", "{:.2f}"), "target time for W slots / for 1"),
    Column("predicted", _figure("predicted_speedup", "{:.2f}x"), "emitted / sum of v(W) + c K"),
    Column(
        "overhead %",
        _figure("overhead", "{:.0f}", 100),
        "1 - ratio of tok/s to plain's / predicted",
    ),
    Column("limited by", _text("limited_by"), "the part that would gain most if it alone were free"),
    Column("outside %", _outside, "engine time outside draft and target forwards"),
    Column("MBU", _figure("mbu", "{:.2f}"), "bytes moved per second / measured read bandwidth"),
)
"""Columns of the causes of the speed."""


def section_title(row: Row) -> str:
    """The setting of a row in words, apart from its workload: what all rows of one section share."""
    setting, info = row.arm.setting, row.info
    parts = [row.target, info["device"], info["dtype"], f"batch {setting.batch}"]
    parts += [f"backend {setting.backend}"] if setting.backend != "auto" else []
    parts += [f"temperature {setting.temperature:g}"] if setting.temperature else []
    parts += [f"top-k {setting.top_k}"] if setting.top_k else []
    parts += [f"top-p {setting.top_p:g}"] if setting.top_p < 1 else []
    return ", ".join([*parts, f"{setting.max_new_tokens} tokens"])


def overview(pooled: Sequence[Row], by_workload: Sequence[Row], style: str = "simple") -> str:
    """Return the speedup of each arm on each workload and, below, the copy rate and the entropy of plain's output.

    All rows must be of one setting, apart from the workload.
    """
    workloads = list(dict.fromkeys(row.info["workload"] for row in by_workload))
    cells = {(row.arm.label, _policy(row), row.info["workload"]): _speedup(row) for row in by_workload}
    like = {row.info["workload"]: row.text for row in by_workload if row.text}
    body = [
        [
            _name(row),
            _policy(row),
            *(cells.get((row.arm.label, _policy(row), w), "-") for w in workloads),
            _speedup(row),
        ]
        for row in pooled
    ]
    body.append(["copy rate", "", *(f"{like[w].copy_rate:.2f}" if w in like else "-" for w in workloads), ""])
    body.append(["entropy, bits", "", *(f"{like[w].entropy_bits:.2f}" if w in like else "-" for w in workloads), ""])
    names = [w.replace("_", " ").replace("question answering", "q & a") for w in workloads]
    return laid_out(["arm", "policy K", *names, "all"], body, style)


def weights_table(targets: Sequence[Weights]) -> list[str]:
    """Return the lines of the table of quantised targets; empty without any."""
    if not targets:
        return []
    headers = ["target", "weights", "GiB", "of unrounded", "perplexity", "unrounded", "change %", "tokens"]
    body = [
        [
            weights.target,
            weights.dtype,
            f"{weights.bytes / 2**30:.3f}",
            f"{weights.bytes / weights.float_bytes:.2f}",
            f"{weights.perplexity:.3f}",
            f"{weights.float_perplexity:.3f}",
            f"{(weights.perplexity / weights.float_perplexity - 1) * 100:+.2f}",
            str(weights.tokens),
        ]
        for weights in targets
    ]
    return laid_out(headers, body, "simple").splitlines()


def op_lines(rows: Sequence[Row]) -> list[str]:
    """Return a line for each backend: how often each op ran on it, over all rows of the engine."""
    calls: dict[str, dict[str, int]] = {}
    for row in rows:
        for op, by_backend in (row.info["counters"] or {}).get("ops", {}).items():
            for backend, count in by_backend.items():
                ran = calls.setdefault(backend, {})
                ran[op] = ran.get(op, 0) + count
    lines = [
        f"ops on {backend}: " + ", ".join(f"{op} {count:,}" for op, count in sorted(ran.items()))
        for backend, ran in sorted(calls.items())
    ]
    return [part for line in lines for part in textwrap.wrap(line, 120, subsequent_indent="  ")]


def render(rows: Sequence[Row], columns: Sequence[Column], style: str = "simple") -> str:
    """Return one table of rows; ``style`` is any of tabulate's (``github`` for Markdown, ``html`` …)."""
    body = [[column.cell(row) for column in columns] for row in rows]
    return laid_out([column.header for column in columns], body, style)


def laid_out(headers: Sequence[str], body: list[list[str]], style: str) -> str:
    """Return a table of cells under headers in a style of tabulate's; the format of numbers is kept."""
    if style != "simple":
        return tabulate(body, headers, tablefmt=style, disable_numparse=True, stralign="left")
    # tabulate pads headers by two; the tables would exceed 120 columns.
    rule = ["-" * max(map(len, cells)) for cells in zip(headers, *body, strict=True)]
    return tabulate([headers, rule, *body], tablefmt="plain", disable_numparse=True, stralign="left")


LEGEND = (
    "tau: emitted / target forwards; acc len: 1 + accepted / drafts; c: draft time per proposal / one-slot target time",
    "v(W): target time for W slots / for 1; predicted: emitted / sum of v(W) + c K; outside: time outside forwards",
    "MBU: bytes moved / bandwidth; copy rate: output that bigrams guess; entropy: the target's, per token",
)
"""Meanings of the columns, shown below the terminal's tables."""


def glossary(columns: Sequence[Column]) -> str:
    """Return one line for each column."""
    return "\n".join(f"{column.header}: {column.meaning}" for column in columns)


def as_csv(rows: Sequence[Row]) -> str:
    """Return every figure of every row, one line for each row; unknown values are empty."""
    out = io.StringIO()
    keys = [key for key in rows[0].info if key not in ("counters", "acceptance_by_position")] if rows else []
    counters = next(
        ([name for name in row.info["counters"] if name != "ops"] for row in rows if row.info["counters"]), []
    )
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["target", *keys, "n", *counters])
    for row in rows:
        found: dict[str, Any] = row.info["counters"] or {}
        writer.writerow([row.target, *(row.info[key] for key in keys), row.n, *(found.get(name) for name in counters)])
    return out.getvalue()
