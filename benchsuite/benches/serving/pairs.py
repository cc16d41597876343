"""Pairs of answers: an endpoint's and the first one's to the same prompt in one round, and what is compared of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

from benchsuite.benches.serving.load import ServedBlock
from benchsuite.benches.serving.speed import PairedLog, speed_of
from benchsuite.benches.serving.timed_answers import empty, looping, tokens_at_first, tpot_of, ttft_of
from benchsuite.measure.guards import unlike
from specdec_plugins.endpoints.replies import Reply

LEARNT = 1.1
"""How many times as fast, over the first endpoint, prompts must be decoded the second time for a server to be said to
learn: the interval lies above it."""

MUCH = 1.5
"""The same where the machine's drift is in the figure: over too few groups for an interval, and of the first endpoint,
which has none to be compared with."""

OTHERWISE = 1.05
"""How many times as much text the tokens of two servers may have: of one that counts too many each has less."""


@dataclass(frozen=True)
class AnswerPair:
    """Both answers to the prompt at a place, of a group, in one round: an endpoint's and the baseline's."""

    prompt: int
    workload: str
    group: int
    round: int
    ours: Reply
    its: Reply

    @property
    def same(self) -> bool:
        """Whether both are one text, which has one number of tokens however it is counted."""
        return self.ours.text == self.its.text

    def of(self, value: float) -> PairedLog:
        """A log of a ratio of this pair."""
        return PairedLog(self.workload, self.prompt, self.group, self.round, value)


def answer_pairs(
    mine: Sequence[ServedBlock], base: Sequence[ServedBlock], workloads: Sequence[str]
) -> list[AnswerPair]:
    """Return the prompts with both answers to them of a round; without answers that were tried again, are empty or
    loop. ``workloads``: that of each prompt, by its place."""
    theirs = {(block.round, one.prompt): one.reply for block in base for one in block.sent}
    found = []
    for block in mine:
        for one in block.sent:
            ours, its = one.reply, theirs.get((block.round, one.prompt))
            if ours and its and _timed(ours) and _timed(its):
                found.append(AnswerPair(one.prompt, workloads[one.prompt], block.group, block.round, ours, its))
    return found


def _timed(reply: Reply) -> bool:
    return reply.attempts == 1 and not empty(reply) and not looping(reply)


def whole_logs(pairs: Sequence[AnswerPair]) -> list[PairedLog]:
    """Return the logs of how many times as fast an answer was, from sending to its end: of one text as it is, of two
    texts per token, where these are known."""
    found = []
    for one in pairs:
        ours, its = (1, 1) if one.same else (one.ours.counted, one.its.counted)
        if ours and its and one.ours.seconds and one.its.seconds:
            found.append(one.of(log(one.its.seconds / its / (one.ours.seconds / ours))))
    return found


def decoding_logs(pairs: Sequence[AnswerPair], from_first: bool = False) -> list[PairedLog]:
    """Return the logs of how many times as fast an answer was after its first piece, per token.

    If the first pieces come later than the baseline's, for certain, what was decoded meanwhile may be held back: all
    time since the baseline's first piece then counts, unless ``from_first``, for where first pieces are judged beside.
    """
    firsts = [(one, ttft_of(one.ours), ttft_of(one.its)) for one in pairs]
    late = speed_of([one.of(log(first / before)) for one, first, before in firsts if first and before])
    held = not from_first and late is not None and (late.ratio if late.low is None else late.low) > 1
    found = []
    for one in pairs:
        count = one.its.counted if one.same else one.ours.counted
        ours, its = tpot_of(one.ours, count), tpot_of(one.its)
        if not ours or not its or count is None:
            continue
        if held:
            begin = min(one.ours.chunks[0].seconds, one.its.chunks[0].seconds)
            later = count - tokens_at_first(one.its, count)
            ours = max(ours, (one.ours.chunks[-1].seconds - begin) / later)
        found.append(one.of(log(its / ours)))
    return found


def learning(mine: Sequence[ServedBlock], base: Sequence[ServedBlock], workloads: Sequence[str]) -> float | None:
    """Return how many times as fast prompts were decoded that a server had answered before; None if it may be chance.

    That is more than the first endpoint, ``base``, decoded them faster; of itself it is what the machine did, too.
    """
    if mine is base:
        first = [block for block in mine if block.round == 0]
        later = [replace(block, round=0) for block in mine if block.round > 0]
        gains = decoding_logs(answer_pairs(later, first, workloads))
    else:
        logs = decoding_logs(answer_pairs(mine, base, workloads))
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


def why_not_compared(pairs: Sequence[AnswerPair]) -> str | None:
    """Return why the speeds of two servers cannot be compared, by their answers; None if they can."""
    counts = [(one.ours.counted, one.its.counted) for one in pairs]
    known = [(ours, its) for ours, its in counts if ours is not None and its is not None]
    return _unlike_counts(pairs) or unlike(known) or _unlike_tokens(pairs)


def _unlike_counts(pairs: Sequence[AnswerPair]) -> str | None:
    """One text has two counts of tokens. The end token may be counted or not."""
    for one in pairs:
        ours, its = one.ours.counted, one.its.counted
        if one.same and ours and its and abs(ours - its) > 1:
            return f"counts: {one.ours.text[:40]!r} is {ours} tokens by its usage, {its} by the baseline's"
    return None


def _unlike_tokens(pairs: Sequence[AnswerPair]) -> str | None:
    """Tokens of different texts have, for certain, more or less text each."""
    logs = []
    for one in pairs:
        ours, its = one.ours.counted, one.its.counted
        if ours and its:
            logs.append(replace(one.of(log(len(one.ours.text) / ours / (len(one.its.text) / its))), group=one.prompt))
    found = speed_of(logs)
    if found and found.low and found.high and (found.low > OTHERWISE or found.high < 1 / OTHERWISE):
        return f"counts: a token of its answers has {found.ratio:.2f} times the text of one of the baseline's"
    return None
