"""The files of a comparison: tables, strict JSON, a plot and a self-contained report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchsuite.machine import provenance
from benchsuite.measure.results import Row
from benchsuite.measure.session import Bench
from benchsuite.report import folder, tables


def write_comparison(root: Path, bench: Bench, seed: int, complete: bool) -> Path:
    """Write all results into a new folder of ``root`` and return it. Raises OSError if it cannot be written.

    ``complete`` goes into the manifest: an interrupted run also writes its results.
    """
    rows, groups = bench.rows, bench.pooled()
    pooled = [row for group in groups for row in group]
    sections = [(group, bench.rows_of(group[0].arm.setting)) for group in groups]
    card = [*bench.card, *tables.weights_table(bench.weights)]
    targets = "+".join(dict.fromkeys(Path(row.target).name for row in rows))
    made = f"made {time.strftime('%Y-%m-%d %H:%M:%S')}, commit {provenance.own_commit() or 'unknown'}"
    files = {
        "benchmark.json": folder.strict_json(
            {"rows": [_public(row) for row in rows], "pooled": [_public(r) for r in pooled]}
        ),
        "table.md": _markdown(sections, [*card, made]),
        "table.csv": tables.as_csv([*rows, *pooled]),
        "speedup.svg": folder.template("speedup.svg.j2", bars=_bars(pooled)),
        "report.html": folder.template(
            "report.html.j2",
            card=[*card, made],
            bars=_bars(pooled),
            sections=[(tables.section_title(group[0]), _tables(group, own, "html")) for group, own in sections],
            glossary=_meanings(),
            failures=[row.failure for row in rows if row.failure],
            ties=[tie for row in rows for tie in row.ties],
        ),
    }
    return folder.write_folder(root, targets, files, card, seed, complete)


def _public(row: Row) -> dict[str, Any]:
    return {
        "target": row.target,
        **row.info,
        "n": row.n,
        "ratios": row.ratios,
        "seconds": row.seconds,
        "copy_rate": row.text.copy_rate if row.text else None,
        "entropy_bits": row.text.entropy_bits if row.text else None,
        "ties": row.ties,
        "failure": row.failure,
        "steps": row.steps,
    }


def _meanings() -> list[str]:
    return [
        *tables.glossary((*tables.SPEED, *tables.REASONS[1:])).splitlines(),
        "copy rate: share of plain's output that follows its two predecessors as they last did before",
        "entropy, bits: mean entropy of the target's own distribution at each token of plain's output",
    ]


def _workload_column() -> tables.Column:
    return tables.Column("workload", lambda row: str(row.info["workload"]), "kind of text")


Section = tuple[Sequence[Row], Sequence[Row]]
"""The rows of one setting: pooled over the workloads, and of each workload."""


def _tables(pooled: Sequence[Row], rows: Sequence[Row], style: str) -> dict[str, str]:
    """The tables of one setting, by their headings."""
    return {
        "Speedup over plain by workload": tables.overview(pooled, rows, style),
        "Speed": tables.render(pooled, tables.SPEED, style),
        "Why": tables.render(pooled, tables.REASONS, style),
        "Every row": tables.render(rows, (_workload_column(), *tables.SPEED), style),
    }


def _markdown(sections: Sequence[Section], card: Sequence[str]) -> str:
    parts = ["# Speculative decoding", "\n".join(f"- {line}" for line in card)]
    for pooled, rows in sections:
        parts.append(f"## {tables.section_title(pooled[0])}")
        for heading, table in _tables(pooled, rows, "github").items():
            parts += [f"### {heading}", table]
    parts += ["## Columns", "\n".join(f"- {line}" for line in _meanings())]
    return "\n\n".join(parts) + "\n"


def _bars(pooled: Sequence[Row]) -> list[dict[str, Any]]:
    shown = [row for row in pooled if row.info["speedup"] is not None]
    longest = max((row.info["speedup_high"] for row in shown), default=1.0)
    return [
        {
            "label": _bar_label(row),
            "speedup": row.info["speedup"],
            "width": 400 * row.info["speedup"] / longest,
            "low": 400 * row.info["speedup_low"] / longest,
            "high": 400 * row.info["speedup_high"] / longest,
            "one": 400 / longest,
        }
        for row in shown
    ]


def _bar_label(row: Row) -> str:
    setting = row.arm.setting
    k = "" if row.arm.k is None else f" {row.arm.k}"
    strategy = f", {row.arm.policy}{k}" if row.arm.draft else ""
    batch = f", batch {setting.batch}" if setting.batch > 1 else ""
    return row.arm.label + strategy + batch + (f", T {setting.temperature:g}" if setting.temperature else "")
