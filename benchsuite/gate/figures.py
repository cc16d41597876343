"""What the gate records of this process: rows of the comparison, and plain pytest-benchmark fixtures."""

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
    """A row for each arm of ours that was measured and kept its contract."""
    found: dict[str, GatedRow] = {}
    for series, prompts in bench.compared():
        found |= compared(series, prompts)
    return found


def compared(series: Mapping[Arm, Series], prompts: int) -> dict[str, GatedRow]:
    """A row for each arm of ours over one workload, whose first ``prompts`` units are one pass over the prompts.

    Arms that failed leave none: the gate then says that the row was not measured. An arm's control is plain
    decoding; plain's own is transformers, where it is measured.
    """
    from benchsuite.measure.results import digest, summed

    plain = next(one for arm, one in series.items() if arm.plain)
    peer = next((one for arm, one in series.items() if arm.peer == "transformers" and not one.failure), None)
    rows = {}
    for arm, one in series.items():
        if arm.peer or one.failure:
            continue
        control = peer if arm.plain else plain
        rows[arm.id] = GatedRow(
            work={"max_new_tokens": arm.setting.max_new_tokens, "prompts": prompts, "seed": arm.setting.seed},
            digest=digest(one.outcomes[:prompts]),
            plain_digest=digest(plain.outcomes[:prompts]),
            deterministic=one.repeats,
            counters=summed(one.outcomes[:prompts]),
            launches=(_launch(one.outcomes, control.outcomes if control else []),),
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
    """Seconds of each part of a step, over ``unit``; the host has what lies between steps as well."""
    assert outcome.stats is not None
    times = [outcome.stats.times(step) for step in outcome.stats.steps]
    found = {
        "draft": sum(t.draft for t in times),
        "verification": sum(t.target + t.accept for t in times),
        "K/V": sum(t.commit for t in times),
    }
    found["host"] = outcome.decode_s - sum(found.values())
    return {part: seconds / len(times) / unit for part, seconds in found.items()}


def benchmarks(found: Iterable[Any], names: Iterable[str]) -> dict[str, GatedRow]:
    """A row for each pytest-benchmark result of one of ``names``: seconds per call, no counters."""
    wanted = set(names)
    return {
        bench.fullname: GatedRow(launches=(Launch(float(bench.stats.median)),))
        for bench in found
        if bench and not bench.has_error and bench.stats.rounds and bench.fullname in wanted and bench.stats.median > 0
    }


def record_origin(root: Path, device: str | None) -> dict[str, Any]:
    """Provenance of a record: of the checkout at ``root``, with the machine."""
    return {**provenance.origin(provenance.commit(root)), "machine": machine(device)}


def machine(device: str | None) -> dict[str, Any]:
    """What must be the same for times to be compared: processor, cores, threads, the accelerator if rows ran on one."""
    import psutil

    return {
        "processor": provenance.processor(),
        "cores": psutil.cpu_count(logical=False),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "device": device,
        "system": platform.system(),
    }
