"""Endpoints as a document, and as the files of a results folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchsuite.benches.serving.bench import AGAIN, ServingBench
from benchsuite.benches.serving.figures import EndpointFigures
from benchsuite.benches.serving.load import Traffic
from benchsuite.machine.files import strict_json, write_folder
from benchsuite.measure.interval import FEWEST
from benchsuite.measure.verdict import SpeedVerdict, noise_of
from benchsuite.report.document import Document, Lines, Section, Table
from benchsuite.report.renderers import markdown
from benchsuite.report.widths import kinds_by_width
from specdec.amounts import amount

COLUMNS = (
    "ok: requests answered / asked; speed: from sending to the end of an answer, per token where texts differ, over "
    "the first endpoint's: the geometric mean over workloads of the geometric means over prompts; interval: 95 %, of "
    "the same, over groups of prompts that were sent together; ~: it holds 1, or the noise of `again` is as large; "
    "?: too few groups for one",
    "decoding: the same per token after the first piece, or after the first endpoint's where that comes earlier for "
    "certain; tok/s: of the whole server, over the blocks' time; req/s: requests sent",
    "ms: TTFT to the first piece, TPOT per token after it, gaps between pieces and, per token, where each piece says "
    "its tokens, e2e to the end of an answer; TTFT and e2e begin when a request was due, which under a rate may be "
    "before it was sent; 50, 90, 99: percentiles, of which the 90th needs 10 values and the 99th 100",
    "every endpoint had a prompt in its prefix cache before it was timed; `again` is the first endpoint once more: its "
    "speed is the noise; requests that were tried again are answered and not timed",
)
"""Meanings of the columns."""

RAW = (
    "prompts were sent raw; a model of chats may answer these with nothing: --specdec-endpoint-api chat sends messages"
)
"""What is said below answers without a text."""

NO_INTERVAL = (
    f"?: an interval needs {FEWEST} groups of prompts that are sent together, or {FEWEST} rounds: more prompts "
    f"(--specdec-prompts, --specdec-workload), or --specdec-pairs {FEWEST}"
)
"""What is said where speeds have no interval."""

SPEEDS = ["endpoint", "ok", "speed", "interval", "decoding", "tok/s", "req/s", "goodput"]
REQUESTS = [part for name in ("TTFT", "TPOT", "e2e") for part in (f"{name} 50", "90", "99")]
PIECES = [part for name in ("gap", "token") for part in (f"{name} 50", "90", "99")]


def serving_tables(rows: Sequence[EndpointFigures]) -> list[Table]:
    """Tables with a line for each endpoint: speeds; latencies of requests and of pieces, in milliseconds."""
    again = next((row for row in rows if row.endpoint.endswith(AGAIN)), None)
    speeds = [_speeds(row, again, row is rows[0]) for row in rows]
    return [Table(SPEEDS, speeds), *latency_tables(rows, "endpoint")]


def latency_tables(rows: Sequence[EndpointFigures], what: str) -> list[Table]:
    """Tables of latencies, in milliseconds, with a line for each row: of requests, and of pieces. ``what``: the header
    of the rows' names."""
    requests = [[row.endpoint, *map(_ms, (*row.ttft_ms, *row.tpot_ms, *row.e2e_ms))] for row in rows]
    pieces = [[row.endpoint, *map(_ms, (*row.piece_ms, *row.token_ms))] for row in rows]
    return [Table([what, *REQUESTS], requests), Table([what, *PIECES], pieces)]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _speeds(row: EndpointFigures, again: EndpointFigures | None, first: bool) -> list[str]:
    whole = SpeedVerdict(row.speed, noise_of(again.speed if again else None), row.reason, first)
    decoding = SpeedVerdict(row.decoding, noise_of(again.decoding if again else None), row.reason, first)
    answered = row.asked - sum(row.failed.values())
    return [
        row.endpoint,
        f"{answered}/{row.asked}",
        whole.cell_text,
        "-" if whole.interval is None else f"{whole.interval[0]:.2f}-{whole.interval[1]:.2f}",
        decoding.cell_text,
        "-" if row.tokens_per_s is None else f"{row.tokens_per_s:.1f}",
        f"{row.rate:.2f}",
        "-" if row.goodput is None else f"{row.goodput[0]:.2f}/s, {row.goodput[1]:.0%}",
    ]


def endpoint_notes(rows: Sequence[EndpointFigures]) -> list[str]:
    """Lines below a table: failures by kind, what is inconclusive, goodput."""
    lines = []
    for row in rows:
        if row.failed or row.retried:
            kinds = [f"{count} {kind}" for kind, count in row.failed.items()]
            kinds += [f"{row.retried} answered after a retry, not timed"] if row.retried else []
            lines.append(f"{row.endpoint}: of {row.asked} requests {', '.join(kinds)}")
        if row.learns:
            lines.append(
                f"{row.endpoint}: prompts that it had answered before were decoded {row.learns:.2f} times as fast: it "
                "keeps what requests teach; speeds are those of its first round"
            )
        if row.empty or row.looping:
            poor = {"without a text": row.empty, "one piece again and again to the end": row.looping}
            of_kinds = ", ".join(f"{count} {kind}" for kind, count in poor.items() if count)
            answered = row.asked - sum(row.failed.values())
            lines.append(
                f"{row.endpoint}: of {answered} answers {of_kinds}: these keep no limit and count for no speed"
            )
        if row.reason:
            lines.append(f"{row.endpoint}: !: not comparable: {row.reason}")
        if row.why:
            lines.append(f"{row.endpoint}: INCONCLUSIVE: {row.why}; nothing is said of its speed")
    return lines


def _notes(bench: ServingBench, load: Traffic) -> list[str]:
    """Lines below a load's tables: failures, what is inconclusive, and what the servers say of themselves."""
    rows = bench.figures(load)
    said = [line for name, one in bench.self_reported.get(load, {}).items() for line in one.lines(name)]
    raw = any(row.empty for row in rows) and not bench.plan.ask.chat
    wide = any(row.speed and row.speed.low is None for row in rows)
    return [*endpoint_notes(rows), *([NO_INTERVAL] if wide else []), *([RAW] if raw else []), *said]


def _size(bench: ServingBench, load: Traffic) -> str:
    rounds, groups = ({getattr(block, name) for block in bench.blocks[load]} for name in ("round", "group"))
    return (
        f"{amount(len(bench.plan.places(load)), 'prompt')} in {amount(len(groups), 'group')}, "
        f"{amount(len(rounds), 'round')}, at most {amount(bench.plan.ask.max_tokens, 'token')} each"
    )


def serving_document(bench: ServingBench) -> Document:
    """Return the document of a run over endpoints: a section of each load, and what is known of their outputs."""
    loads = [
        Section(
            f"{load.label}, {_size(bench, load)}", [*serving_tables(bench.figures(load)), Lines(_notes(bench, load))]
        )
        for load in bench.blocks
    ]
    outputs = [line for one in bench.certificates or () for line in one.lines]
    return Document(
        "Endpoints",
        [
            Section(parts=[Lines([f"every request says {bench.plan.ask.sampling}", *bench.said])]),
            *loads,
            Section("Columns", [Lines(COLUMNS)] if loads else []),
            Section("Outputs", [Lines(outputs)] if outputs else []),
            Section("By window width", served_widths(bench)),
        ],
    )


def served_widths(bench: ServingBench) -> list[Table | Lines]:
    """Return what was found of the endpoints that stand for a window width each: the certificate of each, its speed
    under every load, and the first width with a bug; nothing without such endpoints."""
    widths = bench.plan.widths
    if not widths:
        return []
    states = {one.endpoint: one.state for one in bench.certificates or ()}
    speeds = {load: {row.endpoint: row.speed for row in bench.figures(load)} for load in bench.blocks}
    ordered = sorted(widths.items(), key=lambda pair: pair[1])
    kinds: dict[str, list[int]] = {}
    for name, width in ordered:
        kinds.setdefault(states.get(name, "not compared"), []).append(width)
    body = [
        [
            str(width),
            name,
            states.get(name, "not compared"),
            *("-" if (found := by[name]) is None else f"{found.ratio:.2f}x" for by in speeds.values()),
        ]
        for name, width in ordered
    ]
    table = Table(["width", "endpoint", "outputs", *(f"speed, {load.label}" for load in speeds)], body)
    return [table, Lines([kinds_by_width(kinds)])]


def write_serving(root: Path, bench: ServingBench, complete: bool) -> Path:
    """Write ``serving.json`` and ``serving.md`` into a new folder; return the folder."""
    name = "serving-" + "-".join(endpoint.name for endpoint in bench.plan.endpoints)
    files = {"serving.json": strict_json(bench.as_json()), "serving.md": markdown(serving_document(bench))}
    return write_folder(root, name, files, bench.said, bench.plan.seed, complete)
