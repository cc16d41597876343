"""The measurements of this process that the gate records: rows of the comparison and plain pytest-benchmark tests."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

from benchsuite.gate import inputs
from benchsuite.gate.record import CALL, DECODE, FIRST, PARTS, WHOLE, FigureTimes, GatedRow, Launch
from benchsuite.machine import provenance

if TYPE_CHECKING:
    from benchsuite.measure.arms import Arm
    from benchsuite.measure.paired import Series
    from benchsuite.measure.runners import Outcome
    from benchsuite.measure.session import Bench


def measured(bench: Bench) -> dict[str, GatedRow]:
    """A row for each of our arms that was measured and did not break its contract."""
    found: dict[str, GatedRow] = {}
    weights: dict[int, str] = {}  # settings share a model
    for one in bench.compared():
        if id(one.model) not in weights:
            weights[id(one.model)] = inputs.weights_digest(one.model)
        read = {
            "prompts": inputs.prompts_digest(one.workload.questions),
            "rendered prompts": inputs.rendered_digest(one.workload.encode(one.tokenizer)),
            "tokenizer": inputs.tokenizer_digest(one.tokenizer),
            "weights": weights[id(one.model)],
        }
        found |= compared(one.series, one.units, read)
    return found


def compared(series: Mapping[Arm, Series], prompts: int, read: Mapping[str, str]) -> dict[str, GatedRow]:
    """A row for each of our arms over one workload; the first ``prompts`` outcomes are one pass over the prompts.

    A failed arm has no row; the gate then reports that the row was not measured. An arm's control is plain decoding;
    plain's is transformers, if it was measured, because its time does not change with this code. ``read``: the row's
    ``inputs``.
    """
    from benchsuite.measure.rows import digest, op_calls, summed

    plain = next(arm for arm in series if arm.plain)
    peers = [arm for arm, result in series.items() if arm.peer == "transformers" and not result.failure]
    rows = {}
    for arm, result in series.items():
        if arm.control or result.failure:
            continue
        control = plain if arm is not plain else peers[0] if peers else None
        first = result.outcomes[:prompts]
        rows[arm.id] = GatedRow(
            work={
                "max_new_tokens": arm.setting.sampling.max_new_tokens,
                "prompts": prompts,
                "seed": arm.setting.sampling.seed,
            },
            inputs=read,
            control=None if control is None else control.peer or "plain",
            digest=digest(first),
            plain_digest=digest(series[plain].outcomes[:prompts]),
            deterministic=result.repeats,
            counters=summed(first),
            ops={f"{op} on {backend}": count for (op, backend), count in sorted(op_calls(first).items())},
            launches=(_launch(result.outcomes, series[control].outcomes if control else [], prompts),),
        )
    return rows


COSTS: Mapping[str, Callable[[Outcome], float]] = {
    DECODE: lambda outcome: outcome.seconds_per_token,
    FIRST: lambda outcome: mean(outcome.ttft_s),
    WHOLE: lambda outcome: outcome.wall_per_token,
}
"""The seconds of each figure in one run."""


def _launch(outcomes: Sequence[Outcome], control: Sequence[Outcome], prompts: int) -> Launch:
    """One median for each prompt, so that a prompt in a minority counts as much as any other."""
    whole = [outcome for outcome in outcomes if outcome.decoded]
    timed = [[outcome for outcome in outcomes[start::prompts] if outcome.decoded] for start in range(prompts)]
    seconds = {name: tuple(median(map(cost, runs)) for runs in timed if runs) for name, cost in COSTS.items()}
    pairs = [
        [
            (o, c)
            for o, c in zip(outcomes[start::prompts], control[start::prompts], strict=False)
            if o.decoded and c.decoded
        ]
        for start in range(prompts)
    ]
    if not any(pairs):
        return Launch({name: FigureTimes(values) for name, values in seconds.items()})
    relative = {
        name: tuple(median(log(cost(ours) / cost(theirs)) for ours, theirs in runs) for runs in pairs if runs)
        for name, cost in COSTS.items()
    }
    shares = [[_parts(ours, theirs) for ours, theirs in runs] for runs in pairs if runs]
    parts = {
        figure: {part: mean(median(run[figure][part] for run in runs) for runs in shares) for part in PARTS}
        for figure in (DECODE, FIRST)
    }
    steps = sum(len(outcome.stats.steps) for outcome in whole if outcome.stats)
    times = {name: FigureTimes(seconds[name], relative[name]) for name in COSTS}
    return Launch(times, parts, sum(outcome.decoded for outcome in whole) / max(steps, 1))


def _parts(outcome: Outcome, control: Outcome) -> dict[str, dict[str, float]]:
    """The parts of decoding, per step and token of the control, and of the time to the first token.

    What lies before the first step (``admit``, ``prefilled``, forgetting) is the draft's, and not part of decoding.
    """
    assert outcome.stats is not None
    stats = outcome.stats
    times = [stats.times(step) for step in stats.steps]
    before = stats.called("admit", "resume", "prefilled") + outcome.forgetting_s
    found = {}
    for figure, part, whole, unit in (
        (DECODE, times, outcome.decode_s, control.seconds_per_token * len(times)),
        (FIRST, times[:1], mean(outcome.ttft_s), mean(control.ttft_s)),
    ):
        between = stats.called("release", "move", "keep") if figure == DECODE else before
        seconds = {
            "draft": sum(t.draft + t.control for t in part) + between,
            "prefill": 0.0 if figure == DECODE else max(0.0, outcome.wall_s - outcome.decode_s - before),
            "verification": sum(t.target + t.accept for t in part),
            "K/V": sum(t.commit for t in part),
        }
        seconds["host"] = whole - sum(seconds.values())
        found[figure] = {name: value / unit for name, value in seconds.items()}
    return found


def benchmarks(found: Iterable[Any], names: Iterable[str]) -> dict[str, GatedRow]:
    """A row for each pytest-benchmark result whose name is in ``names``: seconds per call, no counters."""
    wanted = set(names)
    return {
        bench.fullname: GatedRow(launches=(Launch({CALL: FigureTimes((float(bench.stats.median),))}),))
        for bench in found
        if bench and not bench.has_error and bench.stats.rounds and bench.fullname in wanted and bench.stats.median > 0
    }


def record_origin(root: Path, device: str | None) -> dict[str, Any]:
    """Provenance of a record: the checkout at ``root`` and the machine."""
    return {**provenance.origin(provenance.commit(root)), "machine": machine(device)}


def machine(device: str | None) -> dict[str, Any]:
    """Properties that must be equal to compare times; ``device`` is the accelerator that rows ran on, or None."""
    return {
        "processor": provenance.processor(),
        "vectors": provenance.vectors(),
        "cores": provenance.cores(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "device": device,
        "system": platform.system(),
    }
