"""Traces: what was proposed and accepted in each step of a text, without the clock; cut or continued for another K."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchsuite.measure.runners import Outcome


class Seen(NamedTuple):
    """One row of one step: K asked for, proposals made, proposals accepted; it emits one token more than it
    accepted."""

    asked: int
    proposed: int
    accepted: int


@dataclass(frozen=True)
class StepTrace:
    """The steps of one request, in order; ``branched``: some step proposed a tree, whose nodes are more than its
    depth."""

    steps: tuple[Seen, ...]
    branched: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that the steps emit."""
        return sum(step.accepted + 1 for step in self.steps)

    def cut(self, k: int) -> StepTrace:
        """The same text with at most ``k`` proposals a step.

        Where more than ``k`` were accepted, the rest is proposed again from the token after them: what could be
        proposed from further back is taken to be proposed from there too. A tree is proposed whole or, with 0, not at
        all.
        """
        return self if self.branched and k else StepTrace(tuple(_cut(self.steps, k)), self.branched and k > 0)

    def grown(self, k: int, chance: float, dice: random.Random) -> StepTrace:
        """The same text with up to ``k`` proposals, where steps were cut off by a smaller K.

        A step whose proposals were as many as asked for, and all accepted, goes on into the next one with probability
        ``chance``: the token between them would have been proposed as well. A tree stays as it is.
        """
        if self.branched:
            return self
        return StepTrace(tuple(_cut(_joined(self.steps, k, chance, dice), k)))


def _cut(steps: Iterable[Seen], k: int) -> Iterator[Seen]:
    for asked, made, kept in steps:
        proposed, accepted = made, kept
        while accepted > k:
            yield Seen(k, k, k)
            accepted -= k + 1
            proposed -= k + 1
        yield Seen(min(asked, k) if asked < k else k, min(max(proposed, 0), k), accepted)


def _joined(steps: Sequence[Seen], k: int, chance: float, dice: random.Random) -> Iterator[Seen]:
    open_step: Seen | None = None
    for step in steps:
        if open_step is not None:
            whole = open_step.accepted + 1
            step = Seen(k, whole + step.proposed, whole + step.accepted)
            open_step = None
        ended = step.proposed == step.accepted and step.proposed > 0
        if ended and step.asked and step.accepted < k and dice.random() < chance:
            open_step = step
            continue
        # What was refused would have been proposed to the full length, had it been asked for.
        longer = k if step.asked and step.proposed >= step.asked else step.proposed
        yield Seen(k if step.asked else 0, max(step.proposed, longer), step.accepted)
    if open_step is not None:
        yield open_step


def traces_of(outcome: Outcome) -> list[StepTrace]:
    """Return the trace of each request of a run, in their order; empty for a peer.

    The rows of a step are in the engine's order: the last live row takes the place of one that has ended
    (``Engine._refill``). All requests of a run are taken to have been live from its first step.
    """
    if outcome.stats is None:
        return []
    found: list[list[Seen]] = [[] for _ in outcome.tokens]
    left = [len(tokens) for tokens in outcome.tokens]
    branched = [False] * len(left)
    live = [request for request, tokens in enumerate(left) if tokens]
    chosen = outcome.stats.chosen or [step.k for step in outcome.stats.steps]
    for asked, step in zip(chosen, outcome.stats.steps, strict=True):
        for request, row in zip(live, step.each, strict=True):
            found[request].append(Seen(asked, row.proposed, max(0, row.emitted - 1)))
            branched[request] |= row.proposed > row.deepest
            left[request] -= row.emitted
        for place in reversed([place for place, request in enumerate(live) if left[request] <= 0]):
            live[place] = live[-1]
            live.pop()
    return [StepTrace(tuple(steps), tree) for steps, tree in zip(found, branched, strict=True)]


def kept_by_depth(traces: Sequence[StepTrace], most: int) -> list[float]:
    """Return, for depths 1 … ``most``, the share of the steps that asked for proposals in which one of that depth was
    accepted; a tree's depth is that of its accepted path. Zeros without such steps."""
    steps = [step for trace in traces for step in trace.steps if step.asked]
    return [sum(step.accepted >= depth for step in steps) / max(1, len(steps)) for depth in range(1, most + 1)]


def reached(traces: Sequence[StepTrace], most: int) -> tuple[list[float], list[float]]:
    """Return, for depths 1 … ``most``, the shares of steps with a proposal there, and with an accepted one.

    Steps that asked for none are left out; without any others both are zeros.
    """
    steps = [step for trace in traces for step in trace.steps if step.asked]
    count = max(1, len(steps))
    return [sum(step.proposed >= depth for step in steps) / count for depth in range(1, most + 1)], kept_by_depth(
        traces, most
    )
