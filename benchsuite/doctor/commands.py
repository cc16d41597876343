"""``python -m benchsuite head``: a head examined on the command line, and its examination as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from benchsuite.doctor.evidence import ERROR
from benchsuite.doctor.examination import Examination, ExaminedReading, OtherReading, examine_readings
from benchsuite.doctor.readings import readings_of
from benchsuite.measure.workloads import load_workload, workload_names
from specdec import catalog
from specdec.assembly import Assembly
from specdec.devices import pick_device, pick_dtype
from specdec.lists import split_list
from specdec.model import ArenaModel
from specdec.registry import Registry
from specdec_plugins.published.reading import Choice

ROWS = 12
"""Prompts that are answered at a time."""


@dataclass(frozen=True)
class HeadReport:
    """A head as it was given, its target, what was chosen in reading it, the examination, and its seconds."""

    head: str
    target: str
    choices: tuple[Choice, ...]
    examination: Examination
    seconds: float


def examine_head(
    head: str,
    target: str,
    workload: str,
    *,
    k: int,
    tokens: int,
    prompts: int,
    device: str = "auto",
    dtype: str = "auto",
    backend: str = "auto",
) -> HeadReport:
    """Load a target and a head, and examine the head on the target's answers to prompts of each kind in turn.

    ``head`` as in ``readings_of``. Raises SpecdecError for what cannot be loaded.
    """
    started, registry = time.perf_counter(), Registry()
    place = pick_device(device)
    loaded = catalog.load(target, place, pick_dtype(dtype, place))
    model = ArenaModel(loaded.model, registry.backend(backend))
    candidates, choices = readings_of(head, registry, model)
    kinds = [
        load_workload(name).encode(loaded.tokenizer) for text in split_list(workload) for name in workload_names(text)
    ]
    asked = _in_turn(kinds)[:prompts]
    assembly = Assembly(
        registry,
        model,
        loaded.tokenizer,
        max_rows=min(ROWS, len(asked)),
        max_length=max(map(len, asked)) + tokens + k + 1,
    )
    ends = catalog.end_tokens(loaded.model)
    found = examine_readings(assembly, asked, candidates, k=k, tokens=tokens, eos=ends, rows=min(ROWS, len(asked)))
    return HeadReport(head, target, choices, found, time.perf_counter() - started)


def _in_turn(kinds: Sequence[Sequence[tuple[int, ...]]]) -> list[tuple[int, ...]]:
    longest = max(map(len, kinds))
    return [kind[place] for place in range(longest) for kind in kinds if place < len(kind)]


def report_json(report: HeadReport) -> dict[str, Any]:
    """An examination as JSON has it: ``benchsuite.doctor.fields`` says what each field means."""
    found = report.examination
    return {
        "head": report.head,
        "target": report.target,
        "conventions": [
            {"name": one.what, "value": one.value, "source": one.source, "head_says": one.instead}
            for one in report.choices
        ],
        "verdict": found.verdict,
        "accusation_error": ERROR,
        "better": [other.measured.candidate.draft for other in found.better],
        "tokens_needed": _finite(found.needs) if found.verdict == "cannot tell" else 0,
        "prompts": found.prompts,
        "tokens": found.tokens,
        "places": found.places,
        "taken": _reading_json(found.taken),
        "others": [_other_json(other) for other in found.others],
        "not_loaded": [{"name": one.name, "draft": one.draft, "reason": reason} for one, reason in found.refused],
        "seconds": report.seconds,
    }


def _reading_json(one: ExaminedReading) -> dict[str, Any]:
    return {
        "name": one.candidate.name,
        "draft": one.candidate.draft,
        "accepted": one.length.share,
        "accepted_error": _finite(one.length.error),
        "by_chance": one.by_chance.share,
        "beats_chance": one.skilled,
        "falls_off": one.collapses,
        "positions": [
            {
                "tried": own.tried,
                "share": own.share,
                "share_error": _finite(own.error),
                "first_share": fed.share,
                "first_share_error": _finite(fed.error),
            }
            for own, fed in one.positions
        ],
    }


def _other_json(other: OtherReading) -> dict[str, Any]:
    return {
        **_reading_json(other.measured),
        "gain": other.gain,
        "gain_error": _finite(other.error),
        "outcome": other.outcome,
        "prompts_needed": _finite(other.needs),
    }


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None
