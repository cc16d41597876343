"""Figures of endpoints under a load: latencies, throughput, goodput, and speeds relative to the first endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchsuite.benches.serving.load import ServedBlock
from benchsuite.benches.serving.pairs import answer_pairs, decoding_logs, learning, whole_logs, why_not_compared
from benchsuite.benches.serving.speed import speed_of
from benchsuite.benches.serving.timed_answers import empty, gaps_of, looping, token_gaps_of, tpot_of, ttft_of
from benchsuite.measure.interval import Estimate
from specdec_plugins.endpoints.replies import Reply

ENOUGH = 0.5
"""The least share of requests that must have been answered at the first try; with fewer nothing is said of speed."""


@dataclass(frozen=True)
class Slo:
    """Limits that a request must keep to count for goodput, in seconds; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def keeps(self, reply: Reply, late: float = 0.0) -> bool:
        """Whether an answer is one, and is known to keep every limit; a single token has no further one to wait for.

        ``late``: seconds after it was due at which its request was sent; they count as waiting.
        """
        if empty(reply) or looping(reply):
            return False
        first, each = ttft_of(reply), 0.0 if reply.counted == 1 else tpot_of(reply)
        waited = None if first is None else first + late
        found = ((self.ttft, waited), (self.tpot, each), (self.e2e, reply.seconds + late))
        return all(limit is None or (value is not None and value <= limit) for limit, value in found)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least ``share`` of all values do not exceed; None if too few are above it.

    With n values the 99th percentile says something from 100 on: below, it is their largest.

    Example: ``percentile([1, 2, 3, 4], 0.5)`` is 2.
    """
    ordered = sorted(values)
    if not ordered or (len(ordered) * (1 - share) < 1 - 1e-9 and share > 0.5):
        return None
    place = -(-len(ordered) * share // 1)
    return ordered[max(0, int(place) - 1)]


@dataclass(frozen=True)
class EndpointFigures:
    """Figures of one endpoint under one load; None where too little is known.

    ``asked`` requests; ``failed`` by kind; ``retried``: answered, but not at the first try, so that their times are not
    used. Latencies in milliseconds as (median, 90th, 99th percentile) over requests, or over gaps; those to the first
    piece and to the end begin when a request was due. ``tokens_per_s``: of the whole server, over the blocks' time.
    ``goodput``: requests a second that keep the limits, and their share of all that were asked. ``rate``: requests sent
    a second. ``speed``, ``decoding``: over the first endpoint, from sending to the end of an answer and after its first
    piece. ``learns``: how many times as fast it decoded prompts that it had answered before, if that is certain; speeds
    are then those of the first round. ``why``: why there is no speed. ``empty`` and ``looping``: answers without a text
    and those that repeat one piece to their end, which keep no limit and have no part in speeds. ``reason``: why a
    speed cannot be compared.
    """

    endpoint: str
    asked: int
    failed: Mapping[str, int]
    retried: int
    ttft_ms: tuple[float | None, float | None, float | None]
    tpot_ms: tuple[float | None, float | None, float | None]
    piece_ms: tuple[float | None, float | None, float | None]
    token_ms: tuple[float | None, float | None, float | None]
    e2e_ms: tuple[float | None, float | None, float | None]
    tokens_per_s: float | None
    goodput: tuple[float, float] | None
    rate: float
    speed: Estimate | None
    decoding: Estimate | None
    learns: float | None = None
    why: str = ""
    empty: int = 0
    looping: int = 0
    reason: str | None = None


def endpoint_figures(
    blocks: Sequence[ServedBlock], names: Sequence[str], workloads: Sequence[str], slo: Slo | None
) -> list[EndpointFigures]:
    """Return the figures of every endpoint in ``names``, of which the first is what speeds are relative to.

    ``workloads``: that of each prompt, by its place. Speeds are paired by prompt and round; ``speed.speed_of`` has the
    units of their intervals.
    """
    by_name = {name: [block for block in blocks if block.endpoint == name] for name in names}
    return [_figures(name, by_name[name], by_name[names[0]], workloads, slo) for name in names]


def _figures(
    name: str, mine: Sequence[ServedBlock], base: Sequence[ServedBlock], workloads: Sequence[str], slo: Slo | None
) -> EndpointFigures:
    sent = [one for block in mine for one in block.sent]
    answers = [(one.reply, one.late_s) for one in sent if one.reply]
    answered = [reply for reply, _ in answers]
    timed = [(reply, late) for reply, late in answers if reply.attempts == 1]
    clean = [reply for reply, _ in timed]
    failed = Counter(one.failure for one in sent if one.failure)
    seconds = sum(block.seconds for block in mine)
    counted = [reply.counted for reply in answered]
    known = [count for count in counted if count is not None]
    learns = learning(mine, base, workloads)
    if learns:
        mine = [block for block in mine if block.round == 0]
    enough = len(clean) >= ENOUGH * len(sent) and len(clean) > 0
    why = "" if enough else f"{len(clean)} of {len(sent)} requests were answered at the first try"
    goodput = None
    if slo and seconds:
        kept = sum(slo.keeps(reply, late) for reply, late in answers)
        goodput = kept / seconds, kept / len(sent)
    pairs = answer_pairs(mine, base, workloads)
    return EndpointFigures(
        name,
        len(sent),
        {kind: failed[kind] for kind in sorted(map(str, failed))},
        len(answered) - len(clean),
        _three([value + late for reply, late in timed if (value := ttft_of(reply)) is not None]),
        _three([value for reply in clean if (value := tpot_of(reply)) is not None]),
        _three([gap for reply in clean for gap in gaps_of(reply)]),
        _three([gap for reply in clean for gap in token_gaps_of(reply)]),
        _three([reply.seconds + late for reply, late in timed]),
        sum(known) / seconds if enough and seconds and len(known) == len(counted) else None,
        goodput,
        len(sent) / seconds if seconds else 0.0,
        speed_of(whole_logs(pairs)) if enough else None,
        speed_of(decoding_logs(pairs)) if enough else None,
        learns,
        why,
        sum(map(empty, answered)),
        sum(map(looping, answered)),
        why_not_compared(pairs),
    )


def _three(seconds: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Median and two percentiles, in milliseconds."""
    if not seconds:
        return None, None, None
    p90, p99 = (percentile(seconds, share) for share in (0.9, 0.99))
    return median(seconds) * 1e3, p90 and p90 * 1e3, p99 and p99 * 1e3
