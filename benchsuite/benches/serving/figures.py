"""Figures of endpoints under a load: latencies, throughput, goodput, and speeds relative to the first endpoint."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from statistics import fmean, median

from benchsuite.benches.serving.load import Sent
from benchsuite.measure.interval import Estimate, estimate
from specdec_plugins.endpoints.replies import Reply

LEARNT = 1.1
"""How many times as fast a prompt must be decoded the second time, at least, for a server to be said to learn."""

ENOUGH = 0.5
"""The least share of requests that must have been answered at the first try; with fewer nothing is said of speed."""


@dataclass(frozen=True)
class Slo:
    """Limits that a request must keep to count for goodput, in seconds; None: no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def keeps(self, reply: Reply, late: float = 0.0) -> bool:
        """Whether an answer keeps every limit; one of a single piece has no time per further token.

        ``late``: seconds after it was due at which its request was sent; they count as waiting.
        """
        first = ttft_of(reply)
        found = {"ttft": None if first is None else first + late, "tpot": tpot_of(reply), "e2e": reply.seconds + late}
        limits = {name: getattr(self, name) for name in found}
        return all(limit is None or found[name] is None or found[name] <= limit for name, limit in limits.items())


def ttft_of(reply: Reply) -> float | None:
    """Seconds to the first piece of text; None for an empty answer."""
    return reply.chunks[0].seconds if reply.chunks else None


def tpot_of(reply: Reply) -> float | None:
    """Seconds per token after the first piece; None where it came in one piece, or its tokens are not known.

    The tokens of the first piece are not counted: nothing was waited for between them. Where the server does not say
    how many they are, they are one if there are as many pieces as tokens (the end token may have none).
    """
    if len(reply.chunks) < 2 or reply.counted is None:
        return None
    single = 1 if len(reply.chunks) >= reply.counted - 1 else None
    first = reply.chunks[0].tokens or single
    if first is None:
        return None
    later = reply.counted - first
    return (reply.chunks[-1].seconds - reply.chunks[0].seconds) / later if later > 0 else None


def whole_per_token(reply: Reply) -> float | None:
    """Seconds from sending to the last byte, per output token; None where no token is known."""
    return reply.seconds / reply.counted if reply.counted else None


def gaps_of(reply: Reply) -> list[float]:
    """Seconds between one piece and the next: the latencies between tokens, per piece."""
    return [b.seconds - a.seconds for a, b in pairwise(reply.chunks)]


def token_gaps_of(reply: Reply) -> list[float]:
    """The same per token: a piece of n tokens is n gaps of a share each; empty unless every piece says its tokens."""
    if any(chunk.tokens is None for chunk in reply.chunks):
        return []
    found = []
    for before, chunk in pairwise(reply.chunks):
        if chunk.tokens:
            found += [(chunk.seconds - before.seconds) / chunk.tokens] * chunk.tokens
    return found


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
class ServedBlock:
    """One endpoint's answers to the prompts of one round, under one load."""

    endpoint: str
    round: int
    sent: tuple[Sent, ...]

    @property
    def seconds(self) -> float:
        """From the first request to the last answer."""
        if not self.sent:
            return 0.0
        return max(one.ended_s for one in self.sent) - min(one.sent_s for one in self.sent)


@dataclass(frozen=True)
class EndpointFigures:
    """Figures of one endpoint under one load; None where too little is known.

    ``asked`` requests; ``failed`` by kind; ``retried``: answered, but not at the first try, so that their times are not
    used. Latencies in milliseconds as (median, 90th, 99th percentile) over requests, or over gaps; those to the first
    piece and to the last byte begin when a request was due. ``tokens_per_s``: of the whole server, over the blocks'
    time. ``goodput``: requests a second that keep the limits, and their share of all
    that were asked. ``rate``: requests sent a second. ``speed``, ``decoding``: over the first endpoint, from sending to
    the last byte and after the first piece. ``learns``: how many times as fast it decoded prompts that it had answered
    before, if that is certain; speeds are then those of the first round. ``why``: why there is no speed.
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


def endpoint_figures(
    blocks: Sequence[ServedBlock], names: Sequence[str], workloads: Sequence[str], slo: Slo | None
) -> list[EndpointFigures]:
    """Return the figures of every endpoint in ``names``, of which the first is what speeds are relative to.

    ``workloads``: that of each prompt, by its place. Speeds are paired by prompt and round; those of one prompt are
    averaged, and prompts are the units of the interval.
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
    learns = _learns(mine, workloads)
    if learns:
        mine = [block for block in mine if block.round == 0]
    enough = len(clean) >= ENOUGH * len(sent) and len(clean) > 0
    why = "" if enough else f"{len(clean)} of {len(sent)} requests were answered at the first try"
    goodput = None
    if slo and seconds:
        kept = sum(slo.keeps(reply, late) for reply, late in answers)
        goodput = kept / seconds, kept / len(sent)
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
        _speed(mine, base, workloads, whole_per_token) if enough else None,
        _speed(mine, base, workloads, tpot_of) if enough else None,
        learns,
        why,
    )


def _learns(mine: Sequence[ServedBlock], workloads: Sequence[str]) -> float | None:
    """How many times as fast prompts were decoded that the server had answered before; None if it may be chance."""
    first = [block for block in mine if block.round == 0]
    later = [replace(block, round=0) for block in mine if block.round > 0]
    found = _speed(later, first, workloads, tpot_of)
    return found.ratio if found and found.low is not None and found.low > LEARNT else None


def _three(seconds: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Median and two percentiles, in milliseconds."""
    if not seconds:
        return None, None, None
    p90, p99 = (percentile(seconds, share) for share in (0.9, 0.99))
    return median(seconds) * 1e3, p90 and p90 * 1e3, p99 and p99 * 1e3


def _speed(
    mine: Sequence[ServedBlock],
    base: Sequence[ServedBlock],
    workloads: Sequence[str],
    cost: Callable[[Reply], float | None],
) -> Estimate | None:
    """The speed over the baseline's, by a cost of a reply; None without a pair."""
    logs: dict[int, list[float]] = defaultdict(list)
    theirs = {(block.round, one.prompt): one for block in base for one in block.sent}
    for block in mine:
        for one in block.sent:
            other = theirs.get((block.round, one.prompt))
            if one.reply and other and other.reply and one.reply.attempts == other.reply.attempts == 1:
                ours, its = cost(one.reply), cost(other.reply)
                if ours and its:
                    logs[one.prompt].append(log(its / ours))
    units: dict[str, list[float]] = defaultdict(list)
    for prompt, values in sorted(logs.items()):
        units[workloads[prompt]].append(fmean(values))
    return estimate(units) if units else None
