"""The measurements of this process that the gate records: rows of the comparison and plain pytest-benchmark tests."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean, mean, median
from typing import TYPE_CHECKING, Any

from benchsuite.gate import inputs
from benchsuite.gate.record import (
    CALL,
    DECODE,
    FIRST,
    MEANS,
    PARTS,
    STARTS,
    WHOLE,
    FigureTimes,
    GatedRow,
    Launch,
    PassCounts,
    StepCounts,
)
from benchsuite.machine import provenance

if TYPE_CHECKING:
    from benchsuite.measure.arms import Arm
    from benchsuite.measure.paired import Series
    from benchsuite.measure.runners import Outcome
    from benchsuite.measure.session import Bench


def measured(bench: Bench) -> dict[str, GatedRow]:
    """A row for each arm that was measured and did not break its contract."""
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
    """A row for each arm over one workload; the first ``prompts`` outcomes are one pass over the prompts.

    A failed arm has no row; the gate then reports that the row was not measured. An arm's control is plain decoding;
    plain's and a peer's is transformers, if it was measured, because its time does not change with this code. ``read``:
    the row's ``inputs``.
    """
    from benchsuite.measure.rows import digest

    plain = next(arm for arm in series if arm.plain)
    outside = next((arm for arm, result in series.items() if arm.peer == "transformers" and not result.failure), None)
    rows = {}
    for arm, result in series.items():
        if arm.again or arm.eager or result.failure:
            continue
        control = outside if arm.plain else (outside or plain) if arm.peer and arm is not outside else plain
        launch = _launch(result.outcomes, series[control].outcomes if control else [], prompts)
        known = GatedRow(
            work={
                "max_new_tokens": arm.setting.sampling.max_new_tokens,
                "prompts": prompts,
                "seed": arm.setting.sampling.seed,
            },
            inputs=read,
            control=None if control is None else control.peer or "plain",
            launches=(launch,),
            peer=arm.peer is not None,
        )
        if arm.peer:
            rows[arm.id] = known
            continue
        passes = [result.outcomes[start : start + prompts] for start in range(0, len(result.outcomes), prompts)]
        first, *more = [_counts(each) for each in passes[:1] + [each for each in passes[1:] if len(each) == prompts]]
        if not result.repeats:  # what such a row counts is not the same in two passes
            more = [replace(first, digest=each.digest) for each in more]
        rows[arm.id] = replace(
            known,
            digest=first.digest,
            plain_digest=digest(series[plain].outcomes[:prompts]),
            deterministic=result.repeats,
            counters=first.counters,
            ops=first.ops,
            passes=1 + len(more),
            later={str(number): counts for number, counts in enumerate(more, 2) if counts != first},
        )
    return rows


def _counts(outcomes: Sequence[Outcome]) -> PassCounts:
    from benchsuite.measure.rows import digest, op_calls, summed

    ops = {f"{op} on {backend}": count for (op, backend), count in sorted(op_calls(outcomes).items())}
    return PassCounts(digest(outcomes), summed(outcomes), ops)


COSTS: Mapping[str, Callable[[Outcome], float]] = {
    DECODE: lambda outcome: outcome.seconds_per_token,
    FIRST: lambda outcome: mean(outcome.ttft_s),
    WHOLE: lambda outcome: outcome.wall_per_token,
}
"""The seconds of each figure in one run."""


def _launch(outcomes: Sequence[Outcome], control: Sequence[Outcome], prompts: int) -> Launch:
    """One value for each prompt, so that a prompt in a minority counts as much as any other."""
    times = _medians(outcomes, control, prompts)
    if len(outcomes) > prompts:
        times |= _means(STARTS, outcomes[:prompts], control[:prompts], prompts)
        times |= _means(MEANS, outcomes[prompts:], control[prompts:], prompts)
    steps = _steps(outcomes, prompts)
    if not all(outcome.stats for outcome in outcomes):
        return _of_an_engine(times, outcomes, steps)
    pairs = _pairs(DECODE, outcomes, control, prompts)
    if not pairs:
        return Launch(times, steps=steps)
    shares = [[_parts(ours, theirs) for ours, theirs in runs] for runs in pairs]
    parts = {
        figure: {part: mean(median(run[figure][part] for run in runs) for runs in shares) for part in PARTS}
        for figure in (DECODE, FIRST)
    }
    whole = [outcome for outcome in outcomes if outcome.decoded]
    made = sum(len(outcome.stats.steps) for outcome in whole if outcome.stats)
    return Launch(times, parts, sum(outcome.decoded for outcome in whole) / max(made, 1), steps)


def _of_an_engine(times: Mapping[str, FigureTimes], outcomes: Sequence[Outcome], steps: StepCounts | None) -> Launch:
    """The launch of a peer: what is not its prefill is the engine's, of which no part is told from another."""
    forwards = None if steps is None else sum(filter(None, map(_forwards, outcomes)))
    tau = None if forwards is None else sum(outcome.emitted for outcome in outcomes) / forwards
    shares = {}
    for figure, part in ((DECODE, "engine"), (FIRST, "prefill")):
        if figure in times:
            found = times[figure]
            whole = fmean(found.seconds) if found.relative is None else exp(fmean(found.relative))
            if figure == DECODE:
                whole *= tau or 1.0
            shares[figure] = {**dict.fromkeys(PARTS, 0.0), part: whole}
    return Launch(times, shares, tau, steps)


def _forwards(outcome: Outcome) -> int | None:
    """Forwards of single rows that emit tokens, the first one's included; None if they are not counted."""
    if outcome.stats:
        return sum(step.rows for step in outcome.stats.steps)
    return None if outcome.forwards is None else outcome.forwards + len(outcome.tokens)


def _steps(outcomes: Sequence[Outcome], prompts: int) -> StepCounts | None:
    """What each prompt takes of forwards per token; None if one of them is not known."""
    from benchsuite.measure.rows import digest

    runs = [outcomes[start::prompts] for start in range(prompts)]
    counts = [[_forwards(outcome) for outcome in each] for each in runs]
    emitted = [sum(outcome.emitted for outcome in each) for each in runs]
    if not all(emitted) or any(not count for each in counts for count in each):
        return None
    passes = dict.fromkeys(digest(outcomes[start : start + prompts]) for start in range(0, len(outcomes), prompts))
    per_token = [sum(filter(None, each)) / tokens for each, tokens in zip(counts, emitted, strict=True)]
    return StepCounts(tuple(per_token), " ".join(passes))


def _timed(figure: str, outcome: Outcome) -> bool:
    """Whether a run has the figure: an engine that emits everything at once has no decoding, and of a prompt that may
    have been in a cache nothing is known before the first token."""
    return bool(outcome.decoded if figure == DECODE else outcome.emitted and not outcome.warm)


def _runs(figure: str, outcomes: Sequence[Outcome], prompts: int) -> list[list[Outcome]]:
    """The runs of each prompt that have the figure."""
    every = [[one for one in outcomes[start::prompts] if _timed(figure, one)] for start in range(prompts)]
    return [runs for runs in every if runs]


def _pairs(
    figure: str, outcomes: Sequence[Outcome], control: Sequence[Outcome], prompts: int
) -> list[list[tuple[Outcome, Outcome]]]:
    """Of each prompt, the runs and the control's in the same pass, where both have the figure."""
    both = list(zip(outcomes, control, strict=False))
    every = [
        [(one, other) for one, other in both[start::prompts] if _timed(figure, one) and _timed(figure, other)]
        for start in range(prompts)
    ]
    return [runs for runs in every if runs]


def _medians(outcomes: Sequence[Outcome], control: Sequence[Outcome], prompts: int) -> dict[str, FigureTimes]:
    """Of each prompt, the medians over the passes."""
    found = {}
    for figure, cost in COSTS.items():
        seconds = tuple(median(map(cost, runs)) for runs in _runs(figure, outcomes, prompts))
        pairs = _pairs(figure, outcomes, control, prompts)
        relative = tuple(median(log(cost(ours) / cost(theirs)) for ours, theirs in runs) for runs in pairs)
        if seconds:
            found[figure] = FigureTimes(seconds, relative or None)
    return found


def _means(
    names: Mapping[str, str], outcomes: Sequence[Outcome], control: Sequence[Outcome], prompts: int
) -> dict[str, FigureTimes]:
    """Of each prompt, the means over these passes, of which a slow one has its share; figures are called ``names``."""
    found = {}
    for figure in (figure for figure in COSTS if figure in names):
        cost = COSTS[figure]
        seconds = tuple(fmean(map(cost, runs)) for runs in _runs(figure, outcomes, prompts))
        pairs = _pairs(figure, outcomes, control, prompts)
        relative = tuple(log(fmean(cost(a) for a, _ in runs) / fmean(cost(b) for _, b in runs)) for runs in pairs)
        if seconds:
            found[names[figure]] = FigureTimes(seconds, relative or None)
    return found


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
            "engine": 0.0,
        }
        seconds["host"] = whole - sum(seconds.values())
        found[figure] = {name: value / unit for name, value in seconds.items()}
    return found


def benchmarks(found: Iterable[Any], names: Iterable[str]) -> dict[str, GatedRow]:
    """A row for each pytest-benchmark result whose name is in ``names``: seconds per call, no counters."""
    wanted = set(names)

    def row(stats: Any) -> GatedRow:
        values = {CALL: stats.median, MEANS[CALL]: stats.mean}
        return GatedRow(launches=(Launch({figure: FigureTimes((float(value),)) for figure, value in values.items()}),))

    return {
        bench.fullname: row(bench.stats)
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
