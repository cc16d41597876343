"""Replayed conversations as a document, and as the files of a results folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from benchsuite.benches.conversations.bench import ConversationBench
from benchsuite.benches.conversations.progress import Prefix
from benchsuite.benches.conversations.prompt_cache import PrefixFinding
from benchsuite.benches.conversations.turn_figures import ALL, TurnFigures
from benchsuite.benches.load.bench import AGAIN as PLAIN_AGAIN
from benchsuite.benches.serving.bench import AGAIN
from benchsuite.machine.files import strict_json, write_folder
from benchsuite.measure.conversations.filler import NONCE, nonce_text
from benchsuite.measure.interval import FEWEST
from benchsuite.measure.verdict import MARKS, SpeedVerdict, noise_of
from benchsuite.report.document import Document, Lines, Section, Table
from benchsuite.report.renderers import markdown
from specdec.amounts import amount

COLUMNS = (
    "prefix: warm: a conversation begins with words that no cache knows, and goes on behind them; cold: every request "
    "begins with new ones; as recorded: every replay of the trace does",
    "turn: each is asked behind the row's own answers, unless the trace has its own; ok: requests answered, of those "
    "that the conversations have: a failed turn ends its conversation",
    "prompt, cached: median tokens of the prompt, and of it what the row says that it had in a cache; -: it says "
    "nothing",
    "TTFT: median ms to the first piece, from when a request was due; prefill: the share of the answers' time before "
    "their first pieces; tok/s: tokens of the answers over their time, first pieces included; length: mean acceptance "
    "length; -: no step proposed anything, or the steps of the row, or of single turns, are not counted",
    "speed: per token from sending to the end of an answer, over the first row of the same kind with the same prefix; "
    "interval: 95 %, over conversations; " + MARKS,
    "equal: answers that are the first row's to the same prompt",
)
"""Meanings of the columns."""

HEADERS = [
    *("row", "turn", "ok", "prompt", "cached", "TTFT", "prefill", "tok/s", "length", "speed", "interval", "equal"),
]

NARROW = 20
"""The most characters of a row's name on a terminal, beside which all columns fit."""

FEW = f"?: an interval needs {FEWEST} conversations, or {FEWEST} rounds of a trace (--specdec-pairs)"


def turns_tables(rows: Sequence[TurnFigures], findings: dict[str, PrefixFinding]) -> dict[Prefix, Table]:
    """The table of each prefix: a line for each row and turn. A cold prefix that a cache served has no figures."""
    again = {
        (one.prefix, one.turn, one.row.startswith("endpoint ")): one.served.speed
        for one in rows
        if one.row == PLAIN_AGAIN or one.row.endswith(AGAIN)
    }
    bodies = dict[Prefix, list[list[str]]]()
    for one in rows:
        key = one.prefix, one.turn, one.row.startswith("endpoint ")
        first = next(row.row for row in rows if (row.prefix, row.turn, row.row.startswith("endpoint ")) == key)
        refused = one.prefix is Prefix.COLD and bool(findings[one.row].refused)
        cells = _refused(one) if refused else _cells(one, noise_of(again.get(key)), first == one.row)
        bodies.setdefault(one.prefix, []).append(cells)
    return {prefix: Table(HEADERS, body, f"prefix {prefix.value}", narrow=NARROW) for prefix, body in bodies.items()}


def _ok(one: TurnFigures) -> str:
    return f"{one.served.asked - sum(one.served.failed.values())}/{one.planned}"


def _refused(one: TurnFigures) -> list[str]:
    named = [one.row, one.turn, _ok(one), _whole(one.prompt), _whole(one.cached)]
    return [*named, "refused", *["-"] * (len(HEADERS) - len(named) - 1)]


def _cells(one: TurnFigures, noise: float, baseline: bool) -> list[str]:
    verdict = SpeedVerdict(one.served.speed, noise, one.served.reason, baseline)
    length = one.counts.mean_acceptance_length if one.counts else None
    return [
        one.row,
        one.turn,
        _ok(one),
        _whole(one.prompt),
        _whole(one.cached),
        _tenth(one.served.ttft_ms[0]),
        "-" if one.prefill is None else f"{one.prefill:.0%}",
        _tenth(one.served.tokens_per_s if one.prefix is Prefix.RECORDED and one.turn == ALL else one.per_s),
        "-" if length is None else f"{length:.2f}",
        verdict.cell_text,
        "-" if verdict.interval is None or verdict.baseline else "{:.2f}-{:.2f}".format(*verdict.interval),
        "-" if one.equal is None else f"{one.equal}/{one.of}",
    ]


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _tenth(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def prefix_table(findings: Sequence[PrefixFinding]) -> Table:
    """How much sooner first tokens of later turns came with a warm prefix than with a cold one, and what is said."""
    body = []
    for one in findings:
        verdict = SpeedVerdict(one.sooner, 0.0, one.refused or None)
        interval = "-" if verdict.interval is None else "{:.2f}-{:.2f}".format(*verdict.interval)
        body.append([one.row, "-" if one.cached is None else f"{one.cached:.0%}", verdict.cell_text, interval])
    return Table(["row", "cached", "cold/warm TTFT", "interval"], body)


def conversations_document(bench: ConversationBench, card: Sequence[str]) -> Document:
    """Return the document of a run, below the lines of ``card``."""
    rows, findings, plan = bench.figures(), bench.findings(), bench.plan
    turns = sum(len(one.turns) for one in plan.conversations)
    how = "each when it is due" if plan.at_once is None else f"{plan.at_once} at a time"
    kinds = ", ".join(dict.fromkeys(one.label for one in plan.conversations))
    shape = f"{amount(len(plan.conversations), 'conversation')} ({kinds}), {amount(turns, 'turn')}, {how}"
    shape += f", at most {amount(plan.ask.max_tokens, 'token')} each"
    open_ended = any(one.served.speed and one.served.speed.low is None for one in rows)
    notes = [FEW] if open_ended else []
    notes += [line for one in findings.values() for line in one.lines]
    notes += [
        f"{one.row}, {one.prefix.value}: {', '.join(f'{n} {kind}' for kind, n in one.served.failed.items())}"
        for one in rows
        if one.turn == ALL and one.served.failed
    ]
    notes += bench.wrong()
    warm = [one for one in findings.values() if one.sooner]
    head = [*card, *bench.said, *(bench.engine.rendering.said if bench.engine else [])]
    head.append(f"prompts begin with {NONCE} words of one token each, as in {nonce_text(Random(0)).strip()!r}")
    return Document(
        "Conversations",
        [
            Section(parts=[Lines(head)]),
            Section(shape, [*turns_tables(rows, findings).values(), Lines(notes)]),
            Section("Warm prefixes, turns behind the first", [prefix_table(warm)] if warm else []),
            Section("Columns", [Lines(COLUMNS)]),
        ],
    )


def write_conversations(root: Path, name: str, bench: ConversationBench, card: Sequence[str], complete: bool) -> Path:
    """Write ``conversations.json`` and ``conversations.md`` into a new folder; return the folder."""
    files = {
        "conversations.json": strict_json(bench.as_json()),
        "conversations.md": markdown(conversations_document(bench, card)),
    }
    return write_folder(root, f"conversations-{Path(name).name}", files, card, bench.plan.seed, complete)
