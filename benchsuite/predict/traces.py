"""Traces: what was proposed and accepted in each step of a text, without the clock; the same with another K."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchsuite.measure.runners import Outcome
from specdec.lengths import each_k


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

    def with_k(self, k: int) -> StepTrace:
        """The same text with ``k`` proposals a step.

        Each token of the text was accepted, was refused, or follows proposals that were all accepted and was none
        itself. With another K a step begins elsewhere: a token that was accepted is taken to be accepted from there
        too, one that was refused to be refused. Of the third kind as large a share is accepted as of the proposals that
        follow an accepted one; the steps that were recorded say no more of them. A step that begins where a recorded
        one did, which proposed fewer than it was asked for, proposes no more than that. A tree is proposed whole or,
        with 0, not at all.

        Example: ``StepTrace((Seen(8, 8, 8), Seen(8, 8, 2))).with_k(5)`` has accepted 5 and 5 of five proposals.
        """
        return self if self.branched and k else StepTrace(tuple(_steps_with(self.steps, k)))


class _Token(NamedTuple):
    """A token of a text. ``accepted``: it is taken for a proposal that was accepted. ``refused``: proposals from its
    place on, where the first of them was refused; ``limited``: as many as were asked for had been made."""

    accepted: bool
    refused: int = 0
    limited: bool = True


def _tokens_of(steps: Sequence[Seen]) -> list[_Token]:
    share, due = _share_of_later(steps), 0.5
    found = list[_Token]()
    for step in steps:
        found += [_Token(True)] * step.accepted
        whole = step.proposed == step.accepted > 0
        # Of the tokens after proposals that were all accepted, evenly spread ones are accepted, ``share`` of them all.
        due += share * whole
        follows = whole and due >= 1
        due -= follows
        found.append(_Token(follows, step.proposed - step.accepted, step.proposed >= step.asked > 0))
    return found


def _share_of_later(steps: Sequence[Seen]) -> float:
    """The share of the proposals after an accepted one that were accepted; without any, of the first proposals."""
    later = [(min(step.accepted + 1, step.proposed) - 1, step.accepted - 1) for step in steps if step.accepted]
    if not any(tried for tried, _ in later):
        later = [(1, step.accepted) for step in steps if step.proposed]
    return sum(kept for _, kept in later) / max(1, sum(tried for tried, _ in later))


def _steps_with(steps: Sequence[Seen], k: int) -> Iterator[Seen]:
    tokens, begun, at = _tokens_of(steps), dict[int, Seen](), 0
    for step in steps:
        begun[at] = step
        at += step.accepted + 1
    at = 0
    while at < len(tokens):
        # A step that was recorded at this place says how many it would propose; one that begins elsewhere, as many as
        # it is asked for.
        asked, made, _ = begun.get(at, (k, k, 0))
        most = min(k, made) if made < asked else k * (asked > 0)
        last = len(tokens) - at - 1
        accepted = next((depth for depth in range(min(most, last)) if not tokens[at + depth].accepted), min(most, last))
        refusing = tokens[at + accepted]
        if accepted == last and not refusing.refused:
            most = accepted  # No step proposes what its request has no room for.
        elif not refusing.limited:
            most = min(most, accepted + refusing.refused)
        yield Seen(k * (asked > 0), most, accepted)
        at += accepted + 1


def traces_of(outcome: Outcome) -> list[StepTrace]:
    """Return the trace of each request of a run, in their order; empty for a peer.

    The rows of a step are in the engine's order: the last live row takes the place of one that has ended
    (``Queue._refill``). All requests of a run are taken to have been live from its first step.
    """
    if outcome.stats is None:
        return []
    found: list[list[Seen]] = [[] for _ in outcome.tokens]
    left = [len(tokens) for tokens in outcome.tokens]
    branched = [False] * len(left)
    live = [request for request, tokens in enumerate(left) if tokens]
    chosen = outcome.stats.chosen or [step.k for step in outcome.stats.steps]
    for ks, step in zip(chosen, outcome.stats.steps, strict=True):
        for request, row, asked in zip(live, step.each, each_k(ks, step.rows), strict=True):
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
