"""Rows: the figures of an arm's series, as tables and JSON show them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import mean, median, quantiles
from typing import Any

from benchsuite.judge.judgement import together
from benchsuite.judge.ties import Judge
from benchsuite.measure.arms import Arm, PeerName
from benchsuite.measure.contrasts import Pool, contrast, decoding, end_to_end, noise_between, verdict_between
from benchsuite.measure.figures import RowFigures
from benchsuite.measure.guards import remembered
from benchsuite.measure.interval import Estimate, estimate
from benchsuite.measure.paired import Series, broken, checked
from benchsuite.measure.parts import PARTS, with_parts
from benchsuite.measure.runners import Outcome
from benchsuite.measure.verdict import SpeedVerdict
from benchsuite.measure.workloads import copy_rate
from specdec.draft_counts import DraftCounts
from specdec.stats import Step, StepTimes

NAMES = {"target": "verify"}
"""Parts of a step that are called otherwise in JSON."""


@dataclass(frozen=True)
class Machine:
    """Where a row ran: resolved names, bytes that a forward reads, bytes per second, and peak memory in bytes."""

    target: str
    backend: str
    device: str
    dtype: str
    weight_bytes: int
    bytes_per_cell: int
    bandwidth: float
    peak_memory_bytes: int


@dataclass(frozen=True)
class Text:
    """Properties of a workload's plain output.

    ``copy_rate`` as in ``workloads.copy_rate``; ``entropy_bits``: mean entropy of p per token, in bits.
    """

    copy_rate: float
    entropy_bits: float


@dataclass(frozen=True)
class Row:
    """One row of the results: the arm's figures, and the other values that tables show.

    ``ratios`` are the paired speedups of the ``n`` independent units, by workload; ``rounds`` are seconds per token of
    each pass over the units. ``method`` says how the interval was made. ``measured`` has a record of every
    run, ``steps`` of every step. ``verdict``: what may be said of the speedup; ``whole``: of that from the prompt to
    the last token.
    """

    arm: Arm
    figures: RowFigures
    ratios: dict[str, list[float]]
    rounds: tuple[float, ...]
    text: Text | None
    target: str
    failure: str | None
    method: str
    ties: tuple[str, ...]
    measured: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    verdict: SpeedVerdict
    whole: SpeedVerdict

    @property
    def info(self) -> dict[str, Any]:
        """The figures by their public names, as JSON has them; a new dict each time."""
        return self.figures.as_json()

    @property
    def n(self) -> int:
        """The number of independent units behind the speedup."""
        return sum(map(len, self.ratios.values()))


def text_of(plain: Series, judge: Judge) -> Text | None:
    """Return the properties of plain's output over a workload; each unit counts once."""
    pairs = dict.fromkeys(plain.outputs)
    if not pairs:
        return None
    return Text(mean(copy_rate(*pair) for pair in pairs), mean(judge.entropy(*pair) for pair in pairs))


def make_rows(
    pools: Mapping[Arm, Pool],
    baseline: Arm,
    machine: Machine,
    workload: str,
    text: Text | None,
    set_up: Mapping[Arm, float],
    across: Collection[str] = (),
) -> dict[Arm, Row]:
    """Return the row of each arm over one workload, or over several.

    ``pools``: each arm's series over these workloads, among them plain decoding and plain decoding again, whose ratio
    is the noise that a verdict must exceed. ``baseline``: the arm that speedups are relative to. ``set_up``: seconds
    of an arm's set-up: factories of draft and controller, recording, compiling. ``across``: conditions in
    which a row may differ from the baseline and is compared nevertheless.
    """
    plain = next(pool for arm, pool in pools.items() if arm.plain)
    noise = tuple(noise_between(pools, cost) for cost in (decoding, end_to_end))
    base = baseline, pools[baseline]
    return {
        arm: _row(arm, pool, plain, base, noise, across, machine, workload, text, set_up.get(arm))
        for arm, pool in pools.items()
    }


def _row(
    arm: Arm,
    pool: Pool,
    plain: Pool,
    base: tuple[Arm, Pool],
    noise: tuple[float, ...],
    across: Collection[str],
    machine: Machine,
    workload: str,
    text: Text | None,
    set_up: float | None,
) -> Row:
    every = list(pool.values())
    failures = [series.failure for series in every if series.failure]
    # What each part of a pool leaves open, the whole may show.
    failures = failures or broken(every)
    outcomes = [outcome for series in every for outcome in series.outcomes]
    figures = replace(
        _named(arm, every, base[0], machine, workload),
        failed=next((series.failed for series in every if series.failed), "contract" if failures else None),
        set_up_s=set_up,
        memory=_memory(outcomes),
        emitted_digest=digest(outcomes),
    )
    figures = _with_acceptance(figures, outcomes)
    steps = [_record(number, *pair) for number, outcome in enumerate(outcomes) for pair in outcome.timed]
    decoded, forwards = sum(o.decoded for o in outcomes), sum(o.forwards or 0 for o in outcomes)
    if arm.peer and forwards and all(o.forwards is not None for o in outcomes):
        figures = replace(figures, tau=decoded / forwards)
    ratios = dict[str, list[float]]()
    verdict, whole = (SpeedVerdict(None, one, baseline=arm == base[0]) for one in noise)
    if not failures and decoded:
        others = [outcome for series in plain.values() for outcome in series.outcomes]
        figures = _with_latency(_with_speed(figures, outcomes, others, every[0], machine), outcomes)
        figures = with_parts(figures, outcomes, others)
        found = contrast(pool, base[1], decoding)
        ratios = {name: [exp(value) for value in values] for name, values in found.items()}
        verdict, whole = (
            verdict_between(pool, base[1], cost, one, across, baseline=arm == base[0])
            for cost, one in zip((decoding, end_to_end), noise, strict=True)
        )
        figures = _with_speedup(figures, pool, found, verdict, whole.speed)
    elif any(outcome.warm for outcome in outcomes):  # of answers in one piece, which have no decoding
        figures = replace(figures, marks=("warm",))
    return Row(
        arm,
        replace(figures, verdict="FAILED" if failures else verdict.label),
        ratios,
        () if failures else _rounds(every),
        text,
        machine.target,
        "\n".join(failures) or None,
        verdict.speed.method if verdict.speed else "",
        tuple(str(d) for series in every for d in series.differences if d.tie),
        _run_records(pool),
        steps,
        verdict,
        whole,
    )


def _named(arm: Arm, every: Sequence[Series], baseline: Arm, machine: Machine, workload: str) -> RowFigures:
    """What a row is, what it promises, and how far that was checked."""
    shared, judged = replace(arm.setting, workload=workload), together(series.judged for series in every)
    return RowFigures(
        setting=shared.id,
        draft=arm.peer or arm.draft or (arm.label if arm.control else None),
        policy=arm.policy if arm.draft else None,
        controller=arm.controller if arm.draft else None,
        backend=every[0].engine or machine.backend,
        device=machine.device,
        dtype=machine.dtype,
        batch=shared.batch,
        workload=workload,
        num_speculative_tokens=PeerName(arm.peer).k if arm.peer else arm.k if arm.draft else 0,
        baseline=baseline.label,
        peak_memory_bytes=machine.peak_memory_bytes,
        judged_perplexity=judged.perplexity if judged else None,
        judged_tokens=judged.tokens if judged else None,
        contract=every[0].contract,
        contract_checked=checked(every),
        sampling=shared.sampling,
    )


def _memory(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """The most bytes of each kind after any run."""
    kinds = dict.fromkeys(name for outcome in outcomes for name in outcome.memory)
    return {name: max(outcome.memory.get(name, 0) for outcome in outcomes) for name in kinds}


def _with_speedup(
    figures: RowFigures, pool: Pool, found: dict[str, list[float]], verdict: SpeedVerdict, whole: Estimate | None
) -> RowFigures:
    """The figures with both speedups over the baseline, their intervals, and what must be known of them."""
    speed = verdict.speed
    every = list(pool.values())
    outcomes = [outcome for series in every for outcome in series.outcomes]
    cold = [outcome.wall_s for outcome in outcomes if not outcome.warm]
    named = {
        "learns": any(series.learns for series in every) or remembered(every) is not None,
        "replays": any(outcome.replays > 0 for outcome in outcomes),
        "one prompt": speed is not None and hinges(found, speed),
        "warm": any(outcome.warm for outcome in outcomes),
    }
    return replace(
        figures,
        speedup=speed.ratio if speed else None,
        speedup_low=speed.low if speed else None,
        speedup_high=speed.high if speed else None,
        units=speed.units if speed else 0,
        marks=tuple(name for name, given in named.items() if given),
        not_comparable=verdict.reason,
        e2e_s=median(cold) if cold else None,
        e2e_speedup=whole.ratio if whole else None,
        e2e_low=whole.low if whole else None,
        e2e_high=whole.high if whole else None,
    )


def hinges(found: Mapping[str, Sequence[float]], speed: Estimate) -> bool:
    """Whether one unit, of at least six, makes more than half of a speedup (as its logarithm) and of its interval.

    ``found`` are logs of ratios by workload. A speedup within 5 % of 1 hinges on nothing.
    """
    if speed.half_width is None or abs(log(speed.ratio)) < log(1.05):
        return False
    for name, values in found.items():
        for index in range(len(values)):
            left = estimate({**found, name: [*values[:index], *values[index + 1 :]]})
            moved = abs(log(left.ratio) - log(speed.ratio)) > abs(log(speed.ratio)) / 2
            # Below six units there is no interval to compare with.
            if moved and (left.half_width is None or left.half_width < speed.half_width / 2):
                return True
    return False


def _rounds(every: Sequence[Series]) -> tuple[float, ...]:
    """Seconds per token of each pass over all units: values of the same work, which pytest-benchmark may average."""
    passes: dict[int, list[Outcome]] = {}
    for series in every:
        seen: Counter[object] = Counter()
        for unit, outcome in zip(series.units, series.outcomes, strict=True):
            passes.setdefault(seen[unit], []).append(outcome)
            seen[unit] += 1
    whole = [runs for runs in passes.values() if len(runs) == len(passes[0]) and any(o.decoded for o in runs)]
    return tuple(sum(o.decode_s for o in runs) / sum(o.decoded for o in runs) for runs in whole)


def digest(outcomes: Sequence[Outcome]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of all emitted ids."""
    ids = ";".join(",".join(map(str, tokens)) for outcome in outcomes for tokens in outcome.tokens)
    return hashlib.sha256(ids.encode()).hexdigest()[:16]


def _record(run: int, step: Step, times: StepTimes) -> dict[str, Any]:
    """A step as JSON has it; ``run`` is the place of its run in the row's records, ``each`` as in ``Step``."""
    return {
        "run": run,
        "k_used": step.k,
        "width": step.width,
        "rows": step.rows,
        "proposed_len": step.proposed,
        "accepted_len": step.accepted,
        "emitted": step.emitted,
        "each": step.each,
        **{f"{NAMES.get(part, part)}_ms": getattr(times, part) * 1e3 for part in (*PARTS, "host")},
    }


def _run_records(pool: Pool) -> list[dict[str, Any]]:
    """A record of every run of an arm."""
    return [
        _run_record(name, unit.number, outcome)
        for name, series in pool.items()
        for unit, outcome in zip(series.units, series.outcomes, strict=True)
    ]


def _run_record(workload: str, unit: int, outcome: Outcome) -> dict[str, Any]:
    """A run of one unit as JSON has it: times in seconds, emissions as pairs of seconds and tokens of each request."""
    stats = outcome.stats
    return {
        "workload": workload,
        "unit": unit,
        "wall_s": outcome.wall_s,
        "decode_s": outcome.decode_s,
        "decoded": outcome.decoded,
        "forwards": outcome.forwards,
        "mean_length": outcome.mean_length,
        "draft_bytes": outcome.draft_bytes,
        "draft_prefill_s": outcome.draft_prefill_s,
        "draft_between_s": stats.called("release", "move") if stats else 0.0,
        "emissions": outcome.emissions,
    }


def _with_acceptance(figures: RowFigures, outcomes: Sequence[Outcome]) -> RowFigures:
    """The figures with what the engine counted in runs that have statistics, or a peer's engine in all of them."""
    if not outcomes or not outcomes[0].stats:
        known = DraftCounts.total([outcome.counts for outcome in outcomes])
        return _with_counts(figures, known) if known else figures
    counters = summed(outcomes)
    ran: dict[str, dict[str, int]] = {}
    for (op, backend), count in sorted(op_calls(outcomes).items()):
        ran.setdefault(op, {})[backend] = count
    stats = [outcome.stats for outcome in outcomes if outcome.stats]
    counts = DraftCounts(
        counters["num_drafts"],
        counters["num_draft_tokens"],
        counters["num_accepted_tokens"],
        tuple(counters["num_accepted_tokens_per_pos"]),
        tuple(_by_position([s.proposed_per_pos for s in stats])),
    )
    row_forwards = sum(step.rows for s in stats for step in s.steps)
    return replace(
        _with_counts(figures, counts),
        counters={**counters, "ops": ran},
        tau=counters["num_emitted_tokens"] / row_forwards,
    )


def _with_counts(figures: RowFigures, counts: DraftCounts) -> RowFigures:
    """The figures with an engine's counts of its speculation, our own or a peer's."""
    return replace(
        figures,
        counters={
            "num_drafts": counts.drafts,
            "num_draft_tokens": counts.proposed,
            "num_accepted_tokens": counts.accepted,
            "num_accepted_tokens_per_pos": [*counts.accepted_by_position],
        },
        acceptance_rate=counts.acceptance_rate,
        mean_acceptance_length=counts.mean_acceptance_length,
        acceptance_by_position=counts.acceptance_by_position or None,
        acceptance_histogram={str(accepted): steps for accepted, steps in counts.histogram.items()} or None,
    )


def vllm_names(figures: RowFigures) -> dict[str, Any] | None:
    """Return the figures that vLLM reports of a request, under its names; None for a row that proposed nothing.

    Source: vllm-project/vllm, docs/features/speculative_decoding/acceptance_metrics.md.
    """
    counters = figures.counters
    if not counters or not counters["num_drafts"]:
        return None
    return {
        "mean_acceptance_length": figures.mean_acceptance_length,
        "draft_acceptance_rate": figures.acceptance_rate,
        "acceptance_histogram": figures.acceptance_histogram,
        "num_spec_steps": counters["num_drafts"],
        "num_draft_tokens": counters["num_draft_tokens"],
        "num_accepted_draft_tokens": counters["num_accepted_tokens"],
    }


def summed(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the sums of the counters of several runs; for allocations, the largest value."""
    stats = [outcome.stats for outcome in outcomes if outcome.stats]
    counters: dict[str, Any] = {}
    for name in stats[0].counters() if stats else ():
        values = [s.counters().get(name, 0) for s in stats]
        if name == "num_accepted_tokens_per_pos":
            counters[name] = _by_position([s.accepted_per_pos for s in stats])
        elif name == "allocations":
            counters[name] = max(int(v) for v in values if isinstance(v, int))
        else:
            counters[name] = sum(v for v in values if isinstance(v, int))
    return counters


def op_calls(outcomes: Sequence[Outcome]) -> Counter[tuple[str, str]]:
    """Return the calls of each (op, backend) in several runs together."""
    return sum((outcome.stats.ops for outcome in outcomes if outcome.stats), Counter[tuple[str, str]]())


def _by_position(lists: Sequence[list[int]]) -> list[int]:
    longest = max(map(len, lists), default=0)
    return [sum(counts[i] for counts in lists if i < len(counts)) for i in range(longest)]


def _with_speed(
    figures: RowFigures, outcomes: Sequence[Outcome], plain: Sequence[Outcome], series: Series, machine: Machine
) -> RowFigures:
    """The figures with tokens per second, and the share of the bandwidth that they take."""
    decoded, seconds = sum(o.decoded for o in outcomes), sum(o.decode_s for o in outcomes)
    plain_decoded, plain_seconds = sum(o.decoded for o in plain), sum(o.decode_s for o in plain)
    cache = machine.bytes_per_cell * series.arm.setting.batch
    moved = [
        o.forwards * (machine.weight_bytes + cache * o.mean_length) + o.draft_bytes
        for o in outcomes
        if o.forwards is not None and series.contract != "own"  # its weights have other bytes
    ]
    mbu = sum(moved) / seconds / machine.bandwidth if len(moved) == len(outcomes) else None
    return replace(
        figures,
        tokens_per_s=decoded / seconds,
        plain_tokens_per_s=plain_decoded / plain_seconds if plain_decoded else None,
        mbu=mbu,
    )


def _with_latency(figures: RowFigures, outcomes: Sequence[Outcome]) -> RowFigures:
    """The figures with medians over requests of times to the first and per further token, and percentiles over all gaps
    of emissions."""
    first, later = [t for o in outcomes for t in o.ttft_s], [t for o in outcomes for t in o.tpot_s]
    gaps = [gap for o in outcomes for gap in o.gaps_s]
    cuts = [1e3 * cut for cut in quantiles(gaps, n=100, method="inclusive")] if len(gaps) > 1 else None
    return replace(
        figures,
        ttft_ms=median(first) * 1e3 if first else None,
        ttft_draft_ms=median(o.draft_prefill_s for o in outcomes) * 1e3 if first else None,
        tpot_ms=median(later) * 1e3 if later else None,
        itl_p50_ms=cuts[49] if cuts else None,
        itl_p90_ms=cuts[89] if cuts else None,
        itl_p99_ms=cuts[98] if cuts else None,
    )
