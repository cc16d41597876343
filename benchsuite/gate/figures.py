"""The measurements of this process that the gate records: rows of the comparison and plain pytest-benchmark tests."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchsuite.gate.record import PARTS, GatedRow, Launch
from benchsuite.machine import provenance

if TYPE_CHECKING:
    from benchsuite.measure.matrix import Arm
    from benchsuite.measure.paired import Series
    from benchsuite.measure.runners import Outcome
    from benchsuite.measure.session import Bench


def measured(bench: Bench) -> dict[str, GatedRow]:
    """A row for each of our arms that was measured and did not break its contract."""
    found: dict[str, GatedRow] = {}
    for series, prompts in bench.compared():
        found |= compared(series, prompts)
    return found


def compared(series: Mapping[Arm, Series], prompts: int) -> dict[str, GatedRow]:
    """A row for each of our arms over one workload; the first ``prompts`` outcomes are one pass over the prompts.

    A failed arm has no row; the gate then reports that the row was not measured. The control of an arm is plain
    decoding; the control of plain decoding is transformers, if that was measured.
    """
    from benchsuite.measure.results import digest, summed

    plain = next(result for arm, result in series.items() if arm.plain)
    peer = next((result for arm, result in series.items() if arm.peer == "transformers" and not result.failure), None)
    rows = {}
    for arm, result in series.items():
        if arm.peer or arm.again or result.failure:
            continue
        control = peer if arm.plain else plain
        rows[arm.id] = GatedRow(
            work={"max_new_tokens": arm.setting.max_new_tokens, "prompts": prompts, "seed": arm.setting.seed},
            digest=digest(result.outcomes[:prompts]),
            plain_digest=digest(plain.outcomes[:prompts]),
            deterministic=result.repeats,
            counters=summed(result.outcomes[:prompts]),
            launches=(_launch(result.outcomes, control.outcomes if control else []),),
        )
    return rows


def _launch(outcomes: Sequence[Outcome], control: Sequence[Outcome]) -> Launch:
    timed = [o for o in outcomes if o.decoded]
    seconds = sum(o.decode_s for o in timed) / max(sum(o.decoded for o in timed), 1)
    pairs = [(ours, theirs) for ours, theirs in zip(outcomes, control, strict=False) if ours.decoded and theirs.decoded]
    if not pairs:
        return Launch(seconds)
    relative = median(log(ours.seconds_per_token / theirs.seconds_per_token) for ours, theirs in pairs)
    shares = [_parts(ours, theirs.seconds_per_token) for ours, theirs in pairs]
    emitted, steps = (sum(n) for n in zip(*((o.decoded, len(o.stats.steps)) for o in timed if o.stats), strict=True))
    return Launch(
        seconds, relative, {part: median(share[part] for share in shares) for part in PARTS}, emitted / max(steps, 1)
    )


def _parts(outcome: Outcome, unit: float) -> dict[str, float]:
    """Seconds per step of each part, divided by ``unit``; the host part includes the time between steps."""
    assert outcome.stats is not None
    times = [outcome.stats.times(step) for step in outcome.stats.steps]
    found = {
        "draft": sum(t.draft + t.control for t in times) + outcome.stats.called("release", "move"),
        "verification": sum(t.target + t.accept for t in times),
        "K/V": sum(t.commit for t in times),
    }
    found["host"] = outcome.decode_s - sum(found.values())
    return {part: seconds / len(times) / unit for part, seconds in found.items()}


def benchmarks(found: Iterable[Any], names: Iterable[str]) -> dict[str, GatedRow]:
    """A row for each pytest-benchmark result whose name is in ``names``: seconds per call, no counters."""
    wanted = set(names)
    return {
        bench.fullname: GatedRow(launches=(Launch(float(bench.stats.median)),))
        for bench in found
        if bench and not bench.has_error and bench.stats.rounds and bench.fullname in wanted and bench.stats.median > 0
    }


def record_origin(root: Path, device: str | None) -> dict[str, Any]:
    """Provenance of a record: the checkout at ``root`` and the machine."""
    return {**provenance.origin(provenance.commit(root)), "machine": machine(device)}


def machine(device: str | None) -> dict[str, Any]:
    """Properties that must be equal to compare times; ``device`` is the accelerator that rows ran on, or None."""
    import psutil

    return {
        "processor": provenance.processor(),
        "cores": psutil.cpu_count(logical=False),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "device": device,
        "system": platform.system(),
    }
