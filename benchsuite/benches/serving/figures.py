"""Figures of endpoints under a load: latencies, throughput, goodput, and speeds relative to the first endpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import log
from statistics import median

from benchsuite.benches.serving.load import Sent
from benchsuite.benches.serving.speed import PairedLog, speed_of
from benchsuite.measure.guards import SHORTEST_LOOP, repeats_a_piece, unlike
from benchsuite.measure.interval import Estimate
from specdec_plugins.endpoints.replies import Reply

LEARNT = 1.1
"""How many times as fast, over the first endpoint, prompts must be decoded the second time for a server to be said to
learn: the interval lies above it."""

MUCH = 1.5
"""The same where the machine's drift is in the figure: over too few groups for an interval, and of the first endpoint,
which has none to be compared with."""

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


def empty(reply: Reply) -> bool:
    """Whether an answer has no text but blanks: a raw prompt to a model of chats may get such a one."""
    return not reply.text.strip()


def looping(reply: Reply) -> bool:
    """Whether an answer repeats one piece to its end, which any lookup guesses.

    Its text is looked at, since the tokens of a timed answer are not named; how many they are decides whether it is
    long enough, and four characters stand for one where that is not known.
    """
    tokens = len(reply.text) // 4 if reply.counted is None else reply.counted
    return tokens - tokens // 2 >= SHORTEST_LOOP and repeats_a_piece(reply.text)


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
    """One endpoint's answers to the prompts of one group in one round, under one load."""

    endpoint: str
    round: int
    sent: tuple[Sent, ...]
    group: int = 0

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
    before, if that is certain; speeds are then those of the first round. ``why``: why there is no speed. ``empty`` and
    ``looping``: answers without a text and those that repeat one piece to their end, which keep no limit and have no
    part in speeds. ``reason``: why a speed cannot be compared.
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
    learns = _learns(mine, base, workloads)
    if learns:
        mine = [block for block in mine if block.round == 0]
    enough = len(clean) >= ENOUGH * len(sent) and len(clean) > 0
    why = "" if enough else f"{len(clean)} of {len(sent)} requests were answered at the first try"
    goodput = None
    if slo and seconds:
        kept = sum(slo.keeps(reply, late) for reply, late in answers)
        goodput = kept / seconds, kept / len(sent)
    pairs = _pairs(mine, base)
    both = [(one.ours.counted, one.its.counted) for one in pairs]
    lengths = [(ours, its) for ours, its in both if ours is not None and its is not None]
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
        speed_of(_logs(pairs, workloads, whole_per_token)) if enough else None,
        speed_of(_logs(pairs, workloads, tpot_of)) if enough else None,
        learns,
        why,
        sum(map(empty, answered)),
        sum(map(looping, answered)),
        _unlike_counts(pairs) or unlike(lengths),
    )


def _learns(mine: Sequence[ServedBlock], base: Sequence[ServedBlock], workloads: Sequence[str]) -> float | None:
    """How many times as fast prompts were decoded that the server had answered before; None if it may be chance."""
    if mine is base:
        first = [block for block in mine if block.round == 0]
        later = [replace(block, round=0) for block in mine if block.round > 0]
        gains = _logs(_pairs(later, first), workloads, tpot_of)
    else:
        logs = _logs(_pairs(mine, base), workloads, tpot_of)
        before = {one.prompt: one.log for one in logs if one.round == 0}
        gains = [
            replace(one, round=0, log=one.log - before[one.prompt])
            for one in logs
            if one.round > 0 and one.prompt in before
        ]
    found, least = speed_of(gains), LEARNT
    if mine is base or (found and found.low is None):
        found, least = speed_of([replace(one, group=one.prompt) for one in gains]), MUCH
    return found.ratio if found and found.low is not None and found.low > least else None


def _three(seconds: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Median and two percentiles, in milliseconds."""
    if not seconds:
        return None, None, None
    p90, p99 = (percentile(seconds, share) for share in (0.9, 0.99))
    return median(seconds) * 1e3, p90 and p90 * 1e3, p99 and p99 * 1e3


@dataclass(frozen=True)
class _Pair:
    """Both answers to a prompt of a group, in one round."""

    prompt: int
    group: int
    round: int
    ours: Reply
    its: Reply


def _pairs(mine: Sequence[ServedBlock], base: Sequence[ServedBlock]) -> list[_Pair]:
    """Prompts with both answers to them of a round; without answers that were tried again, are empty or loop."""
    theirs = {(block.round, one.prompt): one.reply for block in base for one in block.sent}
    found = []
    for block in mine:
        for one in block.sent:
            ours, its = one.reply, theirs.get((block.round, one.prompt))
            if ours and its and _timed(ours) and _timed(its):
                found.append(_Pair(one.prompt, block.group, block.round, ours, its))
    return found


def _unlike_counts(pairs: Sequence[_Pair]) -> str | None:
    """Why counts of tokens are not to be trusted: one text has two. The end token may be counted or not."""
    for ours, its in ((one.ours, one.its) for one in pairs):
        if ours.text == its.text and ours.counted and its.counted and abs(ours.counted - its.counted) > 1:
            return f"counts: {ours.text[:40]!r} is {ours.counted} tokens by its usage, {its.counted} by the baseline's"
    return None


def _timed(reply: Reply) -> bool:
    return reply.attempts == 1 and not empty(reply) and not looping(reply)


def _logs(pairs: Sequence[_Pair], workloads: Sequence[str], cost: Callable[[Reply], float | None]) -> list[PairedLog]:
    """The logs of the ratios of the baseline's cost of a reply to ours, where both are known."""
    found = []
    for one in pairs:
        ours, its = cost(one.ours), cost(one.its)
        if ours and its:
            found.append(PairedLog(workloads[one.prompt], one.prompt, one.group, one.round, log(its / ours)))
    return found
