"""Figures of replayed conversations: a row for each server or strategy, each prefix and each turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median

from benchsuite.benches.conversations.progress import AnsweredTurn, Prefix, ReplayedBlock
from benchsuite.benches.conversations.prompt_cache import cached_prompt
from benchsuite.benches.serving.figures import EndpointFigures, Slo, endpoint_figures
from benchsuite.benches.serving.load import ServedBlock
from benchsuite.benches.serving.timed_answers import ttft_of
from benchsuite.measure.conversations.form import Conversation
from specdec import DraftCounts

APART = 3
"""Turns that have a row of their own; those behind them share one."""

ALL = "all"
"""The row of all turns together."""


@dataclass(frozen=True)
class TurnFigures:
    """One row's answers to one turn of all conversations, with one prefix.

    ``served``: latencies, failures, throughput and speeds, as of a server. ``planned``: requests that would have been
    sent if none had failed. ``prompt``, ``cached``: medians over answers of the prompt's tokens, and of those that were
    in a cache as far as that is said. ``prefill``: the share of the answers' time before their first pieces.
    ``per_s``: their tokens over their time, from sending to the end. ``counts``: what was counted of speculation.
    ``equal``: answers that are the first row's, of ``of`` to the same prompt; None: prompts are not the same.
    """

    row: str
    prefix: Prefix
    turn: str
    served: EndpointFigures
    planned: int
    prompt: float | None
    cached: float | None
    prefill: float | None
    per_s: float | None
    counts: DraftCounts | None
    equal: int | None
    of: int


def turn_label(turn: int) -> str:
    """Return the row that a turn, from 0, belongs to: ``1``, ``2``, ``3`` or ``4 on``."""
    return str(turn + 1) if turn < APART else f"{APART + 1} on"


def turn_figures(
    blocks: Sequence[ReplayedBlock],
    names: Sequence[str],
    conversations: Sequence[Conversation],
    slo: Slo | None,
    other_prompts: Sequence[str] = (),
) -> list[TurnFigures]:
    """Return the figures of every row in ``names``, by prefix, turn and row; speeds are over the first of them.

    ``conversations``: all of the run, by their places. ``other_prompts``: rows whose prompts are not the first row's.
    """
    mine = [block for block in blocks if block.row in names]
    turns = range(max((len(one.turns) for one in conversations), default=0))
    found = []
    for prefix in [prefix for prefix in Prefix if any(block.prefix is prefix for block in mine)]:
        for turn in (*dict.fromkeys(map(turn_label, turns)), ALL):
            some = [_of_turn(block, turn) for block in mine if block.prefix is prefix]
            first = _texts([block for block in some if block.row == names[0]])
            for served in _served(some, names, conversations, slo):
                its = [block for block in some if block.row == served.endpoint]
                planned = sum(
                    turn in (ALL, turn_label(number))
                    for block in mine
                    if block.prefix is prefix and block.row == served.endpoint
                    for place in {one.sent.prompt for one in block.turns}
                    for number in range(len(conversations[place].turns))
                )
                base = {} if served.endpoint in other_prompts else first
                found.append(_figures(served, prefix, turn, its, base, planned))
    return found


def _of_turn(block: ReplayedBlock, turn: str) -> ReplayedBlock:
    """The block with its requests of one turn; what was counted of the whole is of all turns."""
    kept = tuple(one for one in block.turns if turn in (ALL, turn_label(one.turn)))
    return replace(block, turns=kept, counts=block.counts if turn == ALL else None)


def _served(
    blocks: Sequence[ReplayedBlock], names: Sequence[str], conversations: Sequence[Conversation], slo: Slo | None
) -> list[EndpointFigures]:
    """The figures of servers, for which each request is a prompt of its own."""
    begins = [0, *accumulate(len(one.turns) for one in conversations)]
    labels = [one.label for one in conversations for _ in one.turns]
    served = [
        ServedBlock(
            block.row,
            block.round,
            tuple(replace(one.sent, prompt=begins[one.sent.prompt] + one.turn) for one in block.turns),
            block.group,
        )
        for block in blocks
    ]
    return endpoint_figures(served, names, labels, slo)


def _key(block: ReplayedBlock, one: AnsweredTurn) -> tuple[int, int, int]:
    return block.round, one.sent.prompt, one.turn


def _texts(blocks: Sequence[ReplayedBlock]) -> dict[tuple[int, int, int], str]:
    return {_key(block, one): one.sent.reply.text for block in blocks for one in block.turns if one.sent.reply}


def _figures(
    served: EndpointFigures,
    prefix: Prefix,
    turn: str,
    blocks: Sequence[ReplayedBlock],
    first: Mapping[tuple[int, int, int], str],
    planned: int,
) -> TurnFigures:
    turns = [one for block in blocks for one in block.turns]
    replies = [one.sent.reply for one in turns if one.sent.reply]
    timed = [(ttft_of(reply), reply) for reply in replies if reply.attempts == 1]
    firsts = [(ttft, reply.seconds) for ttft, reply in timed if ttft is not None]
    counted = [(reply.counted, reply.seconds) for _, reply in timed if reply.counted is not None]
    told = [count for reply in replies if (count := cached_prompt(reply).tokens) is not None]
    sizes = [reply.prompt_tokens for reply in replies if reply.prompt_tokens is not None]
    whole = [block.counts for block in blocks if block.counts] if turn == ALL else []
    each = [one.counts for one in turns if one.sent.reply]
    pairs = [(text, first[key]) for key, text in _texts(blocks).items() if key in first]
    return TurnFigures(
        served.endpoint,
        prefix,
        turn,
        served,
        planned,
        median(sizes) if sizes else None,
        median(told) if told else None,
        sum(ttft for ttft, _ in firsts) / sum(s for _, s in firsts) if firsts else None,
        sum(count for count, _ in counted) / sum(s for _, s in counted) if counted else None,
        DraftCounts.total(whole or [one for one in each if one]),
        sum(ours == its for ours, its in pairs) if first else None,
        len(pairs),
    )
