"""The base of drafts that look proposals up on the host."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from operator import mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specdec import Context, Draft, Request, SpecdecError, Window
from specdec.interfaces import defining_class

History = npt.NDArray[np.int64]


EVEN = 1.5
"""Tokens of a match from which its continuation is as likely right as wrong. A match of n tokens has come true with
n / (n + 1.5) on eight kinds of text, if nothing else had followed it (docs/log.md, 2026-11-29)."""

PRIOR = 4.0
"""Continuations as likely as they were told that every class of matches counts besides its own."""


KEEP_TRUE = 0.98
"""Factor by which a new continuation reduces the weight of the older ones of its class: about the last fifty count."""


class CameTrue:
    """The chance that the token after a match is right, by the length of the match and what is seen to come true.

    Matches whose lengths are within a power of two are a class of their own. Example: ``CameTrue().chance(3, 1.0)`` is
    2 / 3, and half of it where half of what had followed the match was another token.
    """

    def __init__(self) -> None:
        self._right, self._told = dict[int, float](), dict[int, float]()

    def chance(self, length: int, share: float) -> float:
        """The chance after a match of ``length`` tokens, of a token that was this share of what had followed it."""
        of = length.bit_length()
        told = share * length / (length + EVEN)
        return min(1.0, told * (self._right.get(of, 0.0) + PRIOR) / (self._told.get(of, 0.0) + PRIOR))

    def seen(self, length: int, share: float, right: bool) -> None:
        """Add a token that came after such a match, or another one in its place."""
        of = length.bit_length()
        self._right[of] = KEEP_TRUE * self._right.get(of, 0.0) + right
        self._told[of] = KEEP_TRUE * self._told.get(of, 0.0) + share * length / (length + EVEN)


class Foretold(NamedTuple):
    """A continuation of a row: the tokens before it, its own, how many before it matched, the share of each."""

    place: int
    tokens: Sequence[int]
    match: int
    shares: Sequence[float]


class Lookup(Draft):
    """A draft that continues a row's history from text it has seen; a row without a match proposes nothing.

    ``most`` is the largest number of continuations; several are verified as a tree. One method must be written:
    ``continuations``. With ``match`` too, written by the same class or one below it, single continuations are cut
    where they are no longer worth their slots (``Context.price``): how likely they are is told from the texts, also
    where they were not proposed. A class that writes ``admit``, ``move`` or ``forget`` calls the one of this class too.
    """

    looks_up = small_ops = True

    def __init__(self, most: int) -> None:
        self.most = most
        self.branches = most > 1
        told, found = (defining_class(type(self), name) for name in ("match", "continuations"))
        self.heeds_price = most == 1 and told is not Lookup and issubclass(told, found)
        self._came_true = CameTrue()
        self._foretold: dict[int, Foretold] = {}

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Nothing is foretold of a new request."""
        self._foretold.pop(row, None)

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """What is foretold moves with the request."""
        self._foretold.pop(row, None)
        if source in self._foretold:
            self._foretold[row] = self._foretold.pop(source)

    def forget(self) -> None:
        """What is known of continuations is what a new draft knows."""
        self._came_true = CameTrue()

    def match(self, row: int, history: History) -> tuple[int, Sequence[float]]:
        """Of the first continuation that ``continuations`` gave last: how many tokens before it matched, and the share
        of each of its tokens in all that had followed. Default: never called."""
        raise NotImplementedError

    @abstractmethod
    def continuations(self, row: int, history: History, limit: int) -> Sequence[Sequence[int]]:
        """Up to ``most`` continuations of a row's tokens [length], likeliest first, none longer than ``limit`` >= 1."""

    def propose(self, context: Context) -> Window:
        """A chain or a tree of each row's continuations; the window is as wide as the largest row needs."""
        found = [self.look_up(context, row) for row in range(context.rows)]
        return self.window(context, worth_their_slots(self, context, found))

    def look_up(self, context: Context, row: int) -> Sequence[Sequence[int]]:
        """The continuations of one row, within its room."""
        limit, history = int(context.max_proposals_host[row]), context.history[row, : context.length_host[row]]
        paths = self.continuations(row, history, limit) if limit > 0 else []
        if not self.heeds_price or context.price is None:
            return paths
        self._judge(row, history)
        if not paths:
            return paths
        length, shares = self.match(row, history)
        if len(shares) < len(paths[0]):
            raise SpecdecError(
                f"match of the draft {type(self).__name__} has {len(shares)} shares for a continuation of "
                f"{len(paths[0])} tokens; expected one for each token that continuations gave last"
            )
        self._foretold[row] = Foretold(len(history), paths[0], length, shares[: len(paths[0])])
        return paths

    def chances(self, row: int) -> Sequence[float]:
        """By the lengths of matches and what came of those before."""
        found = self._foretold[row]
        each = (self._came_true.chance(found.match + depth, share) for depth, share in enumerate(found.shares))
        return [*accumulate(each, mul)]

    def _judge(self, row: int, history: History) -> None:
        """Compare what was foretold of a row with what came."""
        found = self._foretold.pop(row, None)
        if found is None:
            return
        came = history[found.place :].tolist()
        for depth, (token, share) in enumerate(zip(found.tokens, found.shares, strict=True)):
            if depth == len(came):
                break
            self._came_true.seen(found.match + depth, share, token == came[depth])
            if token != came[depth]:
                break

    def window(self, context: Context, found: Sequence[Sequence[Sequence[int]]]) -> Window:
        """The window of every row's continuations."""
        if not self.branches:
            return Window.ragged(context, [paths[0] if paths else [] for paths in found])
        limits = context.max_proposals_host
        trees = [merged(paths, int(limit)) for paths, limit in zip(found, limits, strict=True)]
        return Window.ragged(context, [tokens for tokens, _ in trees], [parents for _, parents in trees])


Found = Sequence[Sequence[Sequence[int]]]
"""For each row the chains that lookups found for it."""


def worth_their_slots(draft: Draft, context: Context, found: Found) -> Found:
    """The beginnings of what a draft has found that are worth their slots; all of it without a price.

    Raises SpecdecError for a draft that does not tell the chance of each token.
    """
    if not draft.heeds_price or context.price is None:
        return found
    return beginnings(found, context.price.counts(chances_of(draft, found)))


def chances_of(draft: Draft, found: Found) -> list[Sequence[float]]:
    """Of each row's first chain the chances that its tokens are kept; none where nothing was found.

    Raises SpecdecError for a draft that does not tell the chance of each token.
    """
    chances = [draft.chances(row) if paths else () for row, paths in enumerate(found)]
    for paths, told in zip(found, chances, strict=True):
        if paths and len(told) != len(paths[0]):
            raise SpecdecError(
                f"chances of the draft {type(draft).__name__} has {len(told)} numbers for a continuation of "
                f"{len(paths[0])} tokens; expected one for each token that look_up gave last"
            )
    return chances


def beginnings(found: Found, counts: Sequence[int]) -> Found:
    """The first ``counts`` tokens of each row's first chain.

    Example: ``beginnings([[[5, 6]], [[7]]], [1, 0])`` is ``[[[5]], []]``
    """
    return [[paths[0][:count]] if count else [] for paths, count in zip(found, counts, strict=True)]


def merged(paths: Sequence[Sequence[int]], limit: int, first: int = 0) -> tuple[list[int], list[int]]:
    """Merge continuations into one tree of at most ``limit`` nodes, level by level; shared beginnings occur once.

    The first ``first`` nodes of the likeliest path come before all others.
    Returns the nodes' tokens and the slots of their parents (0 is the root, node i has slot i + 1).

    Example: ``merged([[5, 6], [5, 7]], 8)`` is ``([5, 6, 7], [0, 1, 1])``.
    """
    tokens: list[int] = []
    parents: list[int] = []
    slots: dict[tuple[int, ...], int] = {(): 0}
    deepest = max(map(len, paths), default=0)
    levels = [tuple(path[: depth + 1]) for depth in range(deepest) for path in paths if len(path) > depth]
    for node in [tuple(paths[0][: depth + 1]) for depth in range(first)] + levels:
        if node not in slots and len(tokens) < limit:
            tokens.append(int(node[-1]))
            parents.append(slots[node[:-1]])
            slots[node] = len(tokens)
    return tokens, parents
