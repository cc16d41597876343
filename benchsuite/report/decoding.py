"""Ratios of decoding as a document, and as the files of a results folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchsuite.benches.decoding.bench import DecodingBench
from benchsuite.benches.decoding.ratios import Contrast, Ratio
from benchsuite.machine.files import strict_json, write_folder
from benchsuite.measure.verdict import SpeedVerdict
from benchsuite.report.document import Document, Lines, Part, Section, Table
from benchsuite.report.renderers import markdown

COLUMNS = (
    "both figures: the median over rounds; ratio: the geometric mean of the rounds' ratios, all arms of a round in "
    "random order",
    "interval: 95 %, Student's t over rounds, about repeats of this work on this machine; pairs: the smallest and the "
    "largest ratio of a round, and their number",
    "tokens: of prompts and outputs in one run, equal for both arms of a row; rows with `again` show the noise",
)
"""Meanings of the columns."""


def ratios_table(ratios: Sequence[Ratio]) -> Table:
    """One line for each row."""
    headers = ["arm", "over", "unit", "figure", "over's", "ratio", "interval", "pairs", "n", "tokens"]
    return Table(headers, [_cells(ratio) for ratio in ratios])


def _cells(ratio: Ratio) -> list[str]:
    row, found = ratio.contrast, ratio.estimate
    interval = SpeedVerdict(found).interval
    ours, base = (_figure(row, value) for value in ratio.medians)
    return [
        row.arm,
        row.over,
        row.unit,
        ours,
        base,
        f"{found.ratio:.2f}",
        "-" if interval is None else f"{interval[0]:.2f}-{interval[1]:.2f}",
        f"{min(ratio.each):.2f}-{max(ratio.each):.2f}",
        str(found.units),
        f"{ratio.work[0]:,} + {ratio.work[1]:,}",
    ]


def _figure(row: Contrast, value: float) -> str:
    return f"{value * 100:.1f}" if row.unit.startswith("%") else f"{value:.1f}"


def decoding_document(bench: DecodingBench, card: Sequence[str]) -> Document:
    """Return the document of one target, below the lines of ``card``."""
    parts: list[Part] = [ratios_table(bench.ratios), Lines([*COLUMNS, *bench.legend])] if bench.ratios else []
    return Document("Decoding", [Section(parts=[Lines(card), *parts])])


def write_decoding(root: Path, bench: DecodingBench, card: Sequence[str], complete: bool) -> Path:
    """Write ``decoding.json`` and ``decoding.md`` of one target into a new folder; return the folder."""
    files = {
        "decoding.json": strict_json(bench.as_json()),
        "decoding.md": markdown(decoding_document(bench, card)),
    }
    return write_folder(root, f"decoding-{Path(bench.name).name}", files, card, bench.seed, complete)
