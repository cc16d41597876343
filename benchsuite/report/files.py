"""The files of a comparison: tables, strict JSON, a plot and a self-contained report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchsuite.machine.files import strict_json
from benchsuite.measure.arms import PeerName
from benchsuite.measure.results import Results, SettingResults
from benchsuite.measure.rows import Row, vllm_names
from benchsuite.report import html, tables
from benchsuite.report.document import Style
from benchsuite.report.page import page

PREDICTION = "prediction.json"
"""The file of a run's predictions, which the report shows."""


def comparison_files(
    results: Results,
    said: Mapping[str, Any] | None = None,
    steps: bool = True,
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the texts of all files of a comparison, by their names. ``said``: the manifest of the run; ``steps``:
    with a record of every step; ``more``: other files of the run, the predictions among them."""
    more = more or {}
    predicted = json.loads(more[PREDICTION]) if PREDICTION in more else None
    notes = [*tables.weights_table(results.weights), _made(results)]
    rows, pooled = results.rows, results.pooled
    card = [*results.card, *tables.weights_table(results.weights), *results.said]
    baseline = pooled[0].figures.baseline if pooled else "plain"
    return {
        "benchmark.json": strict_json(
            {"rows": [_public(row, steps) for row in rows], "pooled": [_public(row, steps) for row in pooled]}
        ),
        "ratios.json.gz": strict_json([_ratios(row) for row in rows]),
        **({"steps.jsonl.gz": "".join(f"{line}\n" for row in rows for line in _steps(row))} if steps else {}),
        "table.md": _markdown(results.settings, [*card, _made(results)]),
        "table.csv": tables.as_csv([*rows, *pooled]),
        "speedup.svg": html.template("speedup.svg.j2", bars=_bars(pooled), baseline=baseline),
        "report.html": page(results, said or {}, notes, predicted),
        **more,
    }


def _made(results: Results) -> str:
    """When the cells were measured, and of which commits."""
    made = [cell.made for cell in results.cells]
    times = sorted(str(one["time"])[:19].replace("T", " ") for one in made)
    commits = sorted({str(one["commit"] or "unknown") for one in made})
    when = " to ".join(dict.fromkeys((times[0], times[-1]))) if times else "never"
    return f"measured {when}, commit {', '.join(commits) or 'unknown'}"


def _tables(one: SettingResults, style: Style) -> dict[str, str]:
    """The tables of a setting, by their headings."""
    pooled, rows = one.pooled, one.rows
    workload = tables.Column("workload", lambda row: row.figures.workload, "kind of text")
    return {
        f"Speedup over {pooled[0].figures.baseline} by workload": tables.overview(pooled, rows, style),
        "Speed": tables.render(pooled, tables.SPEED, style),
        "Contract and latency": tables.render(pooled, tables.LATENCY, style),
        "Why": tables.render(pooled, tables.REASONS, style),
        "Each arm's speed over each other's": tables.contrasts_table(one.contrasts, pooled[0].verdict.noise, style),
        "Every row": tables.render(rows, (workload, *tables.SPEED), style),
    }


def _ratios(row: Row) -> dict[str, Any]:
    """The paired ratios of a row's units to the baseline, and the seconds that they were made of."""
    return {
        "arm": row.arm.strategy,
        "setting": tables.section_title(row),
        "workload": row.figures.workload,
        "baseline": row.figures.baseline,
        "ratios": next(iter(row.ratios.values()), []),
        "runs": [[run["unit"], run["decode_s"], run["decoded"], run["wall_s"]] for run in row.measured],
    }


def _public(row: Row, steps: bool) -> dict[str, Any]:
    return {
        "row": row.arm.id,
        "target": row.target,
        **row.info,
        "vllm": vllm_names(row.figures),
        "ratios": row.ratios,
        "rounds": row.rounds,
        "copy_rate": row.text.copy_rate if row.text else None,
        "entropy_bits": row.text.entropy_bits if row.text else None,
        "ties": row.ties,
        "failure": row.failure,
        "runs": row.measured,
        **({"steps": row.steps} if steps else {}),
    }


def _steps(row: Row) -> Iterator[str]:
    """A line of JSON for each step of a row, with the row's name."""
    return (json.dumps({"row": row.arm.id, **step}, allow_nan=False) for step in row.steps)


def _markdown(settings: Sequence[SettingResults], card: Sequence[str]) -> str:
    parts = ["# Speculative decoding", "\n".join(f"- {line}" for line in card)]
    for one in settings:
        parts.append(f"## {tables.section_title(one.pooled[0])}")
        for heading, table in _tables(one, "github").items():
            parts += [f"### {heading}", table]
        parts.append("\n".join(f"- {line}" for line in tables.notes(one.pooled, one.rows)))
    parts += ["## Columns", "\n".join(f"- {line}" for line in tables.meanings())]
    return "\n\n".join(parts) + "\n"


def _bars(pooled: Sequence[Row]) -> list[dict[str, Any]]:
    shown = [(row, row.figures, row.figures.speedup) for row in pooled if row.figures.speedup is not None]
    lengths = len({row.arm.setting.sampling.max_new_tokens for row, _, _ in shown}) > 1
    longest = max((figures.speedup_high or speedup for _, figures, speedup in shown), default=1.0)
    return [
        {
            "label": _bar_label(row, lengths),
            "speedup": speedup,
            "width": 400 * speedup / longest,
            "low": 400 * (figures.speedup_low or speedup) / longest,
            "high": 400 * (figures.speedup_high or speedup) / longest,
            "one": 400 / longest,
            "verdict": figures.verdict or "too few",
        }
        for row, figures, speedup in shown
    ]


def _bar_label(row: Row, lengths: bool) -> str:
    """``lengths``: whether the rows differ in their budget of tokens."""
    setting = row.arm.setting
    k = "" if row.arm.k is None else f" {row.arm.k}"
    shown = PeerName(row.arm.peer).brief if row.arm.peer else f"{row.arm.policy}{k}" if row.arm.draft else ""
    strategy = f", {shown}" if shown else ""
    batch = f", batch {setting.batch}" if setting.batch > 1 else ""
    batch += f", {setting.sampling.max_new_tokens} tokens" if lengths else ""
    return (
        tables.short(row.arm.label)
        + strategy
        + batch
        + (f", T {setting.sampling.temperature:g}" if setting.sampling.temperature else "")
    )
