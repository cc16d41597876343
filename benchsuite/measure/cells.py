"""Cells: all arms of one setting on one workload, as plain data that a file can hold. Rows are made of nothing else."""

from __future__ import annotations

import hashlib
import math
import platform
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from benchsuite.judge.agreement import Agreement
from benchsuite.judge.favour import Favour
from benchsuite.judge.fidelity import Fidelity
from benchsuite.judge.judgement import Judgement
from benchsuite.judge.ties import Difference
from benchsuite.machine import provenance
from benchsuite.measure.arms import Arm, PeerName, Setting
from benchsuite.measure.paired import Series
from benchsuite.measure.rows import Machine, Text
from benchsuite.measure.runners import Guessed, Outcome
from benchsuite.measure.units import Unit
from specdec.devices import Stopwatch
from specdec.draft_counts import DraftCounts
from specdec.ranks import joined_ranks
from specdec.request import Request
from specdec.stats import Call, Marks, RowStep, Stats, Step

VERSION = 1
"""Of the JSON form: it changes whenever older files can no longer be read."""


@dataclass(frozen=True)
class Cell:
    """All arms of one setting on one workload, measured in one process and not changed afterwards.

    ``label`` heads the workload's column. ``eos``: the target's end tokens. ``set_up``: of each arm that has any, the
    seconds of its set-up (``Runner.set_up_seconds``). ``text``: properties of plain's output. ``made``:
    ``machine``, ``host``, ``commit`` and ``time``. ``pieces``: the text of each token id in the
    outputs of the first unit. ``place``: of the setting in its run's matrix, from 0.
    """

    setting: Setting
    label: str
    machine: Machine
    eos: tuple[int, ...]
    series: Mapping[Arm, Series]
    set_up: Mapping[Arm, float]
    text: Text | None
    made: Mapping[str, Any]
    pieces: Mapping[int, str]
    place: int = 0

    @property
    def id(self) -> str:
        """A file name without its ending: readable, in the matrix's order, and different for every setting."""
        readable = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in self.setting.id)
        return f"{self.place:05}-{readable[:80]}-{hashlib.sha256(repr(self.setting).encode()).hexdigest()[:8]}"


def made_here(device: torch.device) -> dict[str, Any]:
    """Return the ``made`` of a cell that was measured by this process, on ``device``, just now."""
    ranks = joined_ranks()
    return {
        "machine": ", ".join(
            [provenance.device_name(device), provenance.cores_line(), *([str(ranks)] if ranks else [])]
        ),
        "host": platform.node(),
        "commit": provenance.own_commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def snapshot(series: Series, machine: str) -> Series:
    """Return a copy of a series that does not grow with the original; the machine is one of its conditions."""
    lists: dict[str, Any] = {
        name: list(getattr(series, name)) for name in ("units", "outcomes", "plain", "differences")
    }
    return replace(series, **lists, conditions={**series.conditions, "machine": machine})


def to_json(cell: Cell) -> dict[str, Any]:
    """Return a cell as JSON has it; ``from_json`` returns the same cell."""
    # Arms share their units, except that an arm which failed ran only the first ones.
    units = max((series.units for series in cell.series.values()), key=len)
    places = {id(unit): place for place, unit in enumerate(units)}
    return {
        "version": VERSION,
        "made": dict(cell.made),
        "place": cell.place,
        "pieces": {str(token): text for token, text in cell.pieces.items()},
        "setting": cell.setting.values,
        "label": cell.label,
        "machine": asdict(cell.machine),
        "eos": list(cell.eos),
        "text": asdict(cell.text) if cell.text else None,
        "units": [
            {"number": unit.number, "requests": [[request.id, list(request.prompt)] for request in unit.requests]}
            for unit in units
        ],
        "arms": [_series(series, places) | {"set_up_s": cell.set_up.get(arm)} for arm, series in cell.series.items()],
    }


def from_json(found: Mapping[str, Any]) -> Cell:
    """Return the cell that ``to_json`` wrote. Raises KeyError, TypeError or ValueError for anything else."""
    if found["version"] != VERSION:
        raise ValueError(f"it is of version {found['version']!r}, and this specdec-bench reads version {VERSION}")
    setting, eos = Setting.of(found["setting"]), tuple(found["eos"])
    params = setting.params(eos)
    units = [
        Unit(tuple(Request(number, tuple(prompt), params) for number, prompt in unit["requests"]), unit["number"])
        for unit in found["units"]
    ]
    series = [_read_series(one, setting, units) for one in found["arms"]]
    plain = next(one for one in series if one.arm.plain)
    for one in series:
        one.plain = plain.outcomes[: len(one.outcomes)]
    return Cell(
        setting,
        found["label"],
        Machine(**found["machine"]),
        eos,
        {one.arm: one for one in series},
        {
            one.arm: said["set_up_s"]
            for one, said in zip(series, found["arms"], strict=True)
            if said["set_up_s"] is not None
        },
        Text(**found["text"]) if found["text"] else None,
        found["made"],
        {int(token): text for token, text in found["pieces"].items()},
        found["place"],
    )


ARM = ("draft", "policy", "controller", "k", "peer", "again", "name")
FACTS = ("contract", "compared", "equal", "tokens", "error", "ended", "repeats", "learns", "learnt", "checked")
"""Fields of an arm and of its series that JSON has as they are."""

TIMES = ("wall_s", "decode_s", "decoded", "forwards", "mean_length", "draft_bytes", "replays", "forgetting_s", "memory")
"""Fields of an outcome that JSON has as they are."""


def _series(series: Series, places: Mapping[int, int]) -> dict[str, Any]:
    return {
        **{name: getattr(series.arm, name) for name in (*ARM, "eager")},
        **{name: getattr(series, name) for name in FACTS},
        "dtype": str(series.dtype).removeprefix("torch."),
        "twins": [[place, asdict(twin)] for place, twin in series.twins.items()],
        "conditions": dict(series.conditions),
        "fidelity": _written(asdict(series.fidelity)),
        "engine": series.engine,
        "agreed": asdict(series.agreed),
        "referred": asdict(series.referred),
        "reference": series.reference,
        "judged": series.judged and [series.judged.nats, series.judged.tokens],
        "differences": [_written(asdict(difference)) for difference in series.differences],
        "runs": [
            {
                "unit": places[id(unit)],
                "tokens": [list(tokens) for tokens in outcome.tokens],
                "emissions": outcome.emissions,
                "warm": outcome.warm,
                **{name: getattr(outcome, name) for name in TIMES},
                "stats": outcome.stats and _stats(outcome.stats),
                "counts": outcome.counts and asdict(outcome.counts),
            }
            for unit, outcome in zip(series.units, series.outcomes, strict=True)
        ],
    }


def _read_series(found: Mapping[str, Any], setting: Setting, units: list[Unit]) -> Series:
    return Series(
        Arm(setting, **{name: found[name] for name in ARM}, eager=found.get("eager", False)),  # older cells lack it
        units=[units[run["unit"]] for run in found["runs"]],
        outcomes=[_outcome(run) for run in found["runs"]],
        differences=[_difference(_read(one)) for one in found["differences"]],
        fidelity=_fidelity(_read(found["fidelity"])),
        judged=found["judged"] and Judgement(*found["judged"]),
        conditions=found["conditions"],
        twins={place: Guessed(**twin) for place, twin in found.get("twins", [])},  # older cells lack these five
        engine=found.get("engine", "transformers" if found["peer"] else ""),
        agreed=Agreement(**found.get("agreed", {})),
        referred=Agreement(**found.get("referred", {})),
        reference=found.get("reference", PeerName(found.get("engine", "")).label),
        dtype=getattr(torch, found["dtype"]),
        **{name: found[name] for name in FACTS},
    )


def _fidelity(found: Mapping[str, Any]) -> Fidelity:
    return Fidelity(**{**found, "favour": Favour(**found.get("favour", {}))})  # older cells lack it


def _difference(found: Mapping[str, Any]) -> Difference:
    fields: dict[str, Any] = {name: tuple(part) if isinstance(part, list) else part for name, part in found.items()}
    return Difference(**fields)


INFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""Numbers that JSON lacks: the logits of an arm that is broken may be any of them."""


def _written(value: Any) -> Any:
    """The same with texts for the numbers that JSON lacks."""
    if isinstance(value, dict):
        return {name: _written(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_written(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read(value: Any) -> Any:
    """What ``_written`` has written; the texts of these objects are sentences."""
    if isinstance(value, dict):
        return {name: _read(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_read(part) for part in value]
    return INFINITE.get(value, value) if isinstance(value, str) else value


def _outcome(run: Mapping[str, Any]) -> Outcome:
    return Outcome(
        tokens=[tuple(tokens) for tokens in run["tokens"]],
        emissions=[[(at, count) for at, count in request] for request in run["emissions"]],
        stats=run["stats"] and _read_stats(run["stats"]),
        warm=run.get("warm", False),  # older cells lack these two
        counts=_counts(run.get("counts")),
        **{name: run[name] for name in TIMES},
    )


def _counts(found: Mapping[str, Any] | None) -> DraftCounts | None:
    if found is None:
        return None
    fields: dict[str, Any] = {name: tuple(part) if isinstance(part, list) else part for name, part in found.items()}
    return DraftCounts(**fields)


def _stats(stats: Stats) -> dict[str, Any]:
    return {
        "times": stats.stopwatch.times(),
        "steps": [[step.k, step.width, step.marks, step.each] for step in stats.steps],
        "calls": [[call.name, call.start, call.end] for call in stats.calls],
        "accepted_per_pos": stats.accepted_per_pos,
        "proposed_per_pos": stats.proposed_per_pos,
        "chosen": stats.chosen,
        "counts": dict(stats.counts),
        "ops": [[op, backend, count] for (op, backend), count in sorted(stats.ops.items())],
    }


def _read_stats(found: Mapping[str, Any]) -> Stats:
    steps = []
    for k, width, marks, each in found["steps"]:
        step = Step.of(tuple(RowStep(*row) for row in each), width, Marks(*marks))
        steps.append(replace(step, k=k))
    return Stats(
        Stopwatch.recorded(found["times"]),
        steps=steps,
        calls=[Call(*call) for call in found["calls"]],
        accepted_per_pos=found["accepted_per_pos"],
        proposed_per_pos=found["proposed_per_pos"],
        chosen=[k if isinstance(k, int) else tuple(k) for k in found.get("chosen", [])],  # older cells lack it
        counts=Counter(found["counts"]),
        ops=Counter({(op, backend): count for op, backend, count in found["ops"]}),
    )
