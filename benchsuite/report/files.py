"""The files of a comparison: tables, strict JSON, a plot and a self-contained report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchsuite.machine.files import strict_json
from benchsuite.measure.arms import PeerName
from benchsuite.measure.results import Results
from benchsuite.measure.rows import Row, vllm_names
from benchsuite.report import tables
from benchsuite.report.plots import Scale
from benchsuite.report.renderers import markdown, narrowed, page, template
from benchsuite.report.speculation import speculation_document

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
    document = speculation_document(results, said, predicted)
    rows, pooled = results.rows, results.pooled
    baseline = pooled[0].figures.baseline if pooled else ""
    return {
        "benchmark.json": strict_json(
            {"rows": [_public(row, steps) for row in rows], "pooled": [_public(row, steps) for row in pooled]}
        ),
        "ratios.json.gz": strict_json([_ratios(row) for row in rows]),
        **({"steps.jsonl.gz": "".join(f"{line}\n" for row in rows for line in _steps(row))} if steps else {}),
        "table.md": markdown(document),
        "table.csv": tables.as_csv([*rows, *pooled]),
        "speedup.svg": template("speedup.svg.j2", bars=_bars(pooled), baseline=baseline),
        "report.html": page(document),
        **more,
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


def _bars(pooled: Sequence[Row]) -> list[dict[str, Any]]:
    shown = [(row, row.figures, row.figures.speedup) for row in pooled if row.figures.speedup is not None]
    lengths = len({row.arm.setting.sampling.max_new_tokens for row, _, _ in shown}) > 1
    ends = (figures.speedup_high or speedup for _, figures, speedup in shown)
    across = Scale(sorted([0.0, *ends]), 315.0, 715.0)
    return [
        {
            "label": _bar_label(row, lengths),
            "speedup": speedup,
            "end": across.at(speedup),
            "low": across.at(figures.speedup_low or speedup),
            "high": across.at(figures.speedup_high or speedup),
            "one": across.at(1.0),
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
        narrowed(row.arm.label, tables.WIDEST)
        + strategy
        + batch
        + (f", T {setting.sampling.temperature:g}" if setting.sampling.temperature else "")
    )
