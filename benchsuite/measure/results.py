"""Rows: the figures of an arm's series, as tables and JSON show them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchsuite.measure import prediction
from benchsuite.measure.matrix import Arm
from benchsuite.measure.paired import Series, checked, interval
from benchsuite.measure.runners import Outcome
from specdec.stats import Step, StepTimes

KEYS = (
    "draft",
    "policy",
    "controller",
    "backend",
    "device",
    "dtype",
    "batch",
    "workload",
    "num_speculative_tokens",
    "tokens_per_s",
    "plain_tokens_per_s",
    "speedup",
    "speedup_low",
    "speedup_high",
    "tau",
    "mean_acceptance_length",
    "acceptance_rate",
    "acceptance_by_position",
    "draft_cost",
    "verify_cost",
    "predicted_speedup",
    "overhead",
    "ttft_ms",
    "tpot_ms",
    "mbu",
    "peak_memory_bytes",
    "contract",
    "contract_checked",
    "limited_by",
    "counters",
    "emitted_digest",
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "max_new_tokens",
)
"""Keys of every benchmark's ``extra_info``; an unknown value is null."""


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
    """One row of the results: the arm's figures by their public names, and the other values that tables show.

    ``ratios`` are the ``n`` paired speedups; ``seconds`` has each unit's decoding time.
    """

    arm: Arm
    info: dict[str, Any]
    ratios: tuple[float, ...]
    seconds: tuple[float, ...]
    text: Text | None
    target: str
    failure: str | None
    ties: tuple[str, ...]
    steps: list[dict[str, Any]]
    host_share: float | None

    @property
    def n(self) -> int:
        """The number of pairs behind the speedup."""
        return len(self.ratios)


def make_row(arm: Arm, pool: Sequence[Series], machine: Machine, workload: str, text: Text | None) -> Row:
    """Return the row of one arm over one workload, or pooled over several series of the same strategy."""
    failures = [series.failure for series in pool if series.failure]
    failed = bool(failures)
    outcomes = [outcome for series in pool for outcome in series.outcomes]
    plain = [outcome for series in pool for outcome in series.plain]
    ratios = [] if failed else [ratio for series in pool for ratio in series.ratios]
    info: dict[str, Any] = dict.fromkeys(KEYS)
    info |= {
        "draft": arm.peer or arm.draft,
        "policy": arm.policy if arm.draft else None,
        "controller": arm.controller if arm.draft else None,
        "backend": "transformers" if arm.peer else machine.backend,
        "device": machine.device,
        "dtype": machine.dtype,
        "batch": arm.setting.batch,
        "workload": workload,
        "num_speculative_tokens": arm.k if arm.draft else None if arm.peer else 0,
        "peak_memory_bytes": machine.peak_memory_bytes,
        "contract": pool[0].contract,
        "contract_checked": checked(pool),
        "emitted_digest": digest(outcomes),
        "temperature": arm.setting.temperature,
        "top_k": arm.setting.top_k,
        "top_p": arm.setting.top_p,
        "seed": arm.setting.seed,
        "max_new_tokens": arm.setting.max_new_tokens,
    }
    steps: list[dict[str, Any]] = []
    if not arm.peer and outcomes:
        info |= _acceptance(outcomes)
        steps = [_record(step, times) for outcome in outcomes for step, times in outcome.timed]
    decoded, forwards = sum(o.decoded for o in outcomes), sum(o.forwards for o in outcomes)
    if arm.peer and forwards:
        info["tau"] = decoded / forwards
    if not failed and decoded:
        info |= _speed(outcomes, plain, ratios, arm, machine)
        if not arm.peer:
            rate, baseline = info["tokens_per_s"], info["plain_tokens_per_s"]
            info |= prediction.predicted(outcomes, plain, arm, rate / baseline if baseline else None)
    seconds = () if failed else tuple(outcome.decode_s for outcome in outcomes if outcome.decoded)
    rest = [step["host_ms"] for step in steps]
    total = sum(step["draft_ms"] + step["verify_ms"] + step["host_ms"] for step in steps)
    return Row(
        arm,
        info,
        tuple(ratios),
        seconds,
        text,
        machine.target,
        "\n".join(failures) or None,
        tuple(str(d) for series in pool for d in series.differences if d.tie),
        steps,
        sum(rest) / total if total else None,
    )


def digest(outcomes: Sequence[Outcome]) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of all emitted ids."""
    ids = ";".join(",".join(map(str, tokens)) for outcome in outcomes for tokens in outcome.tokens)
    return hashlib.sha256(ids.encode()).hexdigest()[:16]


def _record(step: Step, times: StepTimes) -> dict[str, Any]:
    return {
        "k_used": step.k,
        "rows": step.rows,
        "proposed_len": step.proposed,
        "accepted_len": step.accepted,
        "emitted": step.emitted,
        "draft_ms": times.draft * 1e3,
        "verify_ms": times.target * 1e3,
        "host_ms": times.rest * 1e3,
    }


def _acceptance(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    stats = [outcome.stats for outcome in outcomes if outcome.stats]
    counters = summed(outcomes)
    ran: dict[str, dict[str, int]] = {}
    for (op, backend), count in sorted(sum((s.ops for s in stats), Counter[tuple[str, str]]()).items()):
        ran.setdefault(op, {})[backend] = count
    counters["ops"] = ran
    proposed = _by_position([s.proposed_per_pos for s in stats])
    accepted = counters["num_accepted_tokens_per_pos"]
    drafts, tokens = counters["num_drafts"], counters["num_draft_tokens"]
    row_forwards = sum(step.rows for s in stats for step in s.steps)
    return {
        "counters": counters,
        "tau": counters["num_emitted_tokens"] / row_forwards,
        "acceptance_rate": counters["num_accepted_tokens"] / tokens if tokens else None,
        "mean_acceptance_length": 1 + counters["num_accepted_tokens"] / drafts if drafts else None,
        "acceptance_by_position": [(accepted[i] if i < len(accepted) else 0) / made for i, made in enumerate(proposed)]
        or None,
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


def _by_position(lists: Sequence[list[int]]) -> list[int]:
    longest = max(map(len, lists), default=0)
    return [sum(counts[i] for counts in lists if i < len(counts)) for i in range(longest)]


def _speed(
    outcomes: Sequence[Outcome], plain: Sequence[Outcome], ratios: list[float], arm: Arm, machine: Machine
) -> dict[str, Any]:
    decoded, seconds = sum(o.decoded for o in outcomes), sum(o.decode_s for o in outcomes)
    plain_decoded, plain_seconds = sum(o.decoded for o in plain), sum(o.decode_s for o in plain)
    ttft = [t for o in outcomes for t in o.ttft_s]
    tpot = [t for o in outcomes for t in o.tpot_s]
    middle, low, high = interval(ratios, arm.setting.seed) if ratios else (None, None, None)
    cache = machine.bytes_per_cell * arm.setting.batch
    moved = sum(o.forwards * (machine.weight_bytes + cache * o.mean_length) for o in outcomes) / seconds
    return {
        "tokens_per_s": decoded / seconds,
        "plain_tokens_per_s": plain_decoded / plain_seconds if plain_decoded else None,
        "speedup": middle,
        "speedup_low": low,
        "speedup_high": high,
        "ttft_ms": median(ttft) * 1e3 if ttft else None,
        "tpot_ms": median(tpot) * 1e3 if tpot else None,
        "mbu": moved / machine.bandwidth,
    }
