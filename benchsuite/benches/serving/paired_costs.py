"""How much more one server's answers cost than another's to the same prompts: what a gate of servers judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean

from benchsuite.benches.serving.figures import Slo
from benchsuite.benches.serving.load import Sent, ServedBlock
from benchsuite.benches.serving.pairs import answer_pairs, decoding_logs, learning, whole_logs
from benchsuite.benches.serving.speed import PairedLog
from benchsuite.benches.serving.timed_answers import empty, looping, ttft_of


@dataclass(frozen=True)
class PairedCosts:
    """Costs of one server's answers over another's, the base's, each a value of a prompt in a round.

    ``decoding``, ``first`` and ``whole``: logs of ratios of seconds per token after the first piece, to the first
    piece, and to the end of an answer (per token where texts differ). ``lost``: of each request, 1 if the base's kept
    the limits and this one did not, -1 the other way round, over the share of the base's that kept them.
    ``from_first``: the part of what an answer took longer, in seconds, that came before its first piece.
    """

    decoding: Sequence[PairedLog]
    first: Sequence[PairedLog]
    whole: Sequence[PairedLog]
    lost: Sequence[PairedLog]
    from_first: float | None


@dataclass(frozen=True)
class PoorAnswers:
    """Requests without a first answer that is one: failed, tried again, without a text, or looping.

    ``kinds``: this server's by kind, ``its``: the base's. ``worse``: prompts of a round that this server alone
    answered poorly; ``better``: that the base alone did.
    """

    kinds: Mapping[str, int]
    its: Mapping[str, int]
    worse: int
    better: int


def paired_costs(
    mine: Sequence[ServedBlock], base: Sequence[ServedBlock], workloads: Sequence[str], slo: Slo | None
) -> PairedCosts:
    """Return the costs of ``mine`` over ``base``. ``workloads``: that of each prompt, by its place.

    Where a server learns from what it has answered they are those of the first round.
    """
    if learning(mine, base, workloads) or learning(base, base, workloads):
        mine, base = ([block for block in blocks if block.round == 0] for blocks in (mine, base))
    pairs = answer_pairs(mine, base, workloads)
    firsts = [(one, ttft_of(one.ours), ttft_of(one.its)) for one in pairs]
    before = [(ours, its) for _, ours, its in firsts if ours and its]
    more = fmean(one.ours.seconds - one.its.seconds for one in pairs) if pairs else 0.0
    earlier = fmean(ours - its for ours, its in before) if before else None
    return PairedCosts(
        [_negated(one) for one in decoding_logs(pairs, from_first=True)],
        [one.of(log(ours / its)) for one, ours, its in firsts if ours and its],
        [_negated(one) for one in whole_logs(pairs)],
        _lost(mine, base, workloads, slo) if slo else [],
        earlier / more if earlier is not None and more else None,
    )


def _negated(one: PairedLog) -> PairedLog:
    return PairedLog(one.workload, one.prompt, one.group, one.round, -one.log)


def _lost(
    mine: Sequence[ServedBlock], base: Sequence[ServedBlock], workloads: Sequence[str], slo: Slo
) -> list[PairedLog]:
    theirs = {key: _kept(one, slo) for key, one in _by_prompt(base).items()}
    share = fmean(theirs.values()) if theirs else 0.0
    groups = {(block.round, one.prompt): block.group for block in mine for one in block.sent}
    return [
        PairedLog(workloads[key[1]], key[1], groups[key], key[0], (theirs[key] - _kept(one, slo)) / share)
        for key, one in _by_prompt(mine).items()
        if key in theirs and share
    ]


def _kept(one: Sent, slo: Slo) -> bool:
    return one.reply is not None and slo.keeps(one.reply, one.late_s)


def poor_answers(mine: Sequence[ServedBlock], base: Sequence[ServedBlock]) -> PoorAnswers:
    """Return how many requests of each server had no answer that counts for a speed."""
    ours, its = poor_requests(mine), poor_requests(base)
    return PoorAnswers(
        Counter(ours.values()), Counter(its.values()), len(ours.keys() - its.keys()), len(its.keys() - ours.keys())
    )


def poor_requests(blocks: Sequence[ServedBlock]) -> dict[tuple[int, int], str]:
    """Return the requests without an answer that counts for a speed, by round and prompt: the kind of each."""
    return {key: kind for key, one in _by_prompt(blocks).items() if (kind := _poor(one))}


def _poor(one: Sent) -> str | None:
    reply = one.reply
    if reply is None:
        return one.failure or "failed"
    if reply.attempts > 1:
        return "tried again"
    return "without a text" if empty(reply) else "looping" if looping(reply) else None


def _by_prompt(blocks: Sequence[ServedBlock]) -> dict[tuple[int, int], Sent]:
    """The requests by round and prompt."""
    return {(block.round, one.prompt): one for block in blocks for one in block.sent}
