"""Tokens a forward of a server, by prompt: its own counts of accepted tokens beside the tokens of its answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, log

from benchsuite.benches.serving.load import ServedBlock
from benchsuite.benches.serving.speed import PairedLog
from specdec_plugins.endpoints.exposition import PageError
from specdec_plugins.endpoints.replies import Reply
from specdec_plugins.endpoints.server_metrics import Speculation, read_body


@dataclass(frozen=True)
class ForwardCount:
    """The answers to the prompts at ``prompts``, of one group in one round: their ``tokens``, and how many of these
    were ``accepted`` proposals of a draft; ``proposed``: how many proposals there were, as far as the server says.

    A forward emits what it accepts and one token more, so that forwards are tokens less those that were accepted.
    """

    prompts: tuple[int, ...]
    group: int
    round: int
    tokens: int
    accepted: int
    proposed: int

    @property
    def length(self) -> float:
        """Emitted tokens per forward, prefills and steps without a draft included: the acceptance length."""
        return self.tokens / (self.tokens - self.accepted)


@dataclass(frozen=True)
class ForwardCounts:
    """The counts of one server under one load, in the order of its answers.

    ``source``: "answers" or "page", or empty where the server counts no accepted tokens. ``silent``: its page could be
    read and does not speak of them. ``unread``: groups of answers whose counts cannot be theirs, as where others asked
    the server too. ``wrong``: why nothing could be read.
    """

    counts: tuple[ForwardCount, ...] = ()
    source: str = ""
    silent: bool = False
    unread: int = 0
    wrong: str = ""

    @property
    def proposed(self) -> int:
        """Proposals of a draft in all."""
        return sum(one.proposed for one in self.counts)

    @property
    def length(self) -> float | None:
        """Tokens per forward over all answers; None without counts."""
        tokens, accepted = (sum(getattr(one, name) for one in self.counts) for name in ("tokens", "accepted"))
        return tokens / (tokens - accepted) if tokens else None


def forward_counts(blocks: Sequence[ServedBlock]) -> ForwardCounts:
    """Return what a server counts: in its answers if these say something, else on its page around each group.

    A group with an answer that failed, was tried again or has an unknown number of tokens is left out: its counts are
    of other tokens.
    """
    try:
        said = {id(one): read_body(one.reply.body) for block in blocks for one in block.sent if one.reply}
    except PageError as error:
        return ForwardCounts(wrong=str(error))
    of_answers = any(one is not None and one.accepted is not None for one in said.values())
    found, unread = list[ForwardCount](), 0
    for block in blocks:
        replies = {one.prompt: one.reply for one in block.sent}
        parts: list[tuple[tuple[int, ...], Speculation]]
        if of_answers:  # an answer that says nothing beside others that do had no draft
            parts = [((one.prompt,), said.get(id(one)) or Speculation("", "request")) for one in block.sent]
        else:
            parts = [(one.prompts, one.said) for one in block.counts if one.said.accepted is not None]
        for prompts, words in parts:
            tokens, accepted = _tokens([replies.get(prompt) for prompt in prompts]), words.accepted or 0
            if tokens is None or accepted >= tokens:
                unread += 1
                continue
            proposed = accepted if words.proposed is None else words.proposed
            found.append(ForwardCount(tuple(sorted(prompts)), block.group, block.round, tokens, accepted, proposed))
    source = "answers" if of_answers else "page" if found or unread else ""
    return ForwardCounts(tuple(found), source, not source and any(block.counts for block in blocks), unread)


def _tokens(replies: Sequence[Reply | None]) -> int | None:
    counts = [reply.counted if reply and reply.attempts == 1 else None for reply in replies]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def forward_logs(mine: ForwardCounts, base: ForwardCounts, workloads: Sequence[str]) -> list[PairedLog]:
    """Return the logs of how many times as many forwards a token costs, prompt by prompt, or group by group where one
    of the two is counted by groups. ``workloads``: that of each prompt, by its place."""
    ours, its = _in_common(mine, base)
    return [
        PairedLog(
            workloads[key[2][0]] if len(key[2]) == 1 else "",
            key[2][0],
            key[0],
            key[1],
            log(its[key].length / one.length),
        )
        for key, one in ours.items()
        if key in its
    ]


def vanished(mine: ForwardCounts, base: ForwardCounts) -> tuple[int, float] | None:
    """Return after how many prompts, or groups, a server that had proposed tokens proposed none any more, of those in
    which the base does, and how likely so long an end is if its silences came at random; None if it went on.

    ``m`` silences among ``n`` are in random order: the last ``k`` are all silent with the chance C(m, k) / C(n, k).
    """
    ours, its = _in_common(mine, base)
    told = [one.proposed > 0 for key, one in ours.items() if key in its and its[key].proposed]
    if not told or told[-1] or True not in told:
        return None
    spoke = len(told) - told[::-1].index(True)
    end = len(told) - spoke
    return spoke, comb(told.count(False), end) / comb(len(told), end)


Key = tuple[int, int, tuple[int, ...]]
"""A group, a round, and the prompts that are counted together."""


def _in_common(mine: ForwardCounts, base: ForwardCounts) -> tuple[dict[Key, ForwardCount], dict[Key, ForwardCount]]:
    """The counts of both by what both count together, in the order of their answers."""
    alone = all(len(one.prompts) == 1 for one in (*mine.counts, *base.counts))
    return _together(mine, alone), _together(base, alone)


def _together(counts: ForwardCounts, alone: bool) -> dict[Key, ForwardCount]:
    """By prompts, or summed over those of a group in a round."""
    if alone:
        return {(one.group, one.round, one.prompts): one for one in counts.counts}
    parts = defaultdict[tuple[int, int], list[ForwardCount]](list)
    for one in counts.counts:
        parts[one.group, one.round].append(one)
    found = dict[Key, ForwardCount]()
    for (group, turn), some in parts.items():
        prompts = tuple(sorted(prompt for one in some for prompt in one.prompts))
        tokens, accepted, proposed = (
            sum(getattr(one, name) for one in some) for name in ("tokens", "accepted", "proposed")
        )
        found[group, turn, prompts] = ForwardCount(prompts, group, turn, tokens, accepted, proposed)
    return found
