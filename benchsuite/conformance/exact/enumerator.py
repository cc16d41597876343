"""Enumeration of every outcome of a round on a tiny vocabulary, with its probability; nothing is sampled.

A scripted backend replaces ``sample`` and ``accept``: it takes each outcome from a script and multiplies the
probabilities. The real policy code runs once for each leaf. Draws and coins of one key share their noise here as in a
real run, so that noise that is used twice makes the distribution that it really makes.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from benchsuite.conformance.exact.shared_noise import Noise, Share
from specdec import Context, Policy, Window
from specdec.interfaces import Backend
from specdec.processors import StackedParams
from specdec_kernels.reference import Reference

Emitted = TypeVar("Emitted", bound=Hashable)

Distribution = dict[tuple[int, ...], float]


LARGEST = 10**6
"""Fractions with denominators up to this differ by at least 1e-12, so a float64 identifies its fraction."""


@cache
def _fraction(chance: float) -> Fraction:
    """The fraction that a float64 rounds; a run of leaves asks for few numbers, and often."""
    return Fraction(chance).limit_denominator(LARGEST)


IMPOSSIBLE = 1e-13
"""An outcome as unlikely as this is one that float64 has not rounded to 0."""


@dataclass
class Script(Reference):
    """Takes outcomes from ``path`` and, past its end, the first possible outcome.

    ``sizes`` has the number of possible outcomes of each decision, ``weight`` the probability of the path. ``exact``
    converts every float64 probability to the fraction that it rounds, so that ``weight`` is a fraction too. ``used``
    has the decisions that each key's noise has made: as a coin or a draw, and each distribution with its outcome.
    ``fresh``: every decision has noise of its own, whatever its key.
    """

    path: list[int] = field(default_factory=list)
    exact: bool = False
    fresh: bool = False
    sizes: list[int] = field(default_factory=list)
    weight: Share = 1.0
    used: dict[int, tuple[str, list[tuple[list[Share], int]]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.exact:
            self.weight = Fraction(1)

    def decide(self, distribution: list[float], kind: str, key: int) -> int:
        """Return the scripted outcome of a draw or a coin with these probabilities and the noise of a key."""
        shares: list[Share] = [*distribution]
        if self.exact:
            shares = [_fraction(chance) for chance in distribution]
            assert sum(shares) == 1, f"the distribution {distribution} is not one of fractions"
        open_ = not self.fresh and sum(share > IMPOSSIBLE for share in shares) > 1  # else no noise is shared
        by, before = self.used.setdefault(key, (kind, [])) if open_ else (kind, [])
        assert by == kind, f"a key's noise is that of a {by} and of a {kind}: {before} and {distribution}"
        chances = self._given(before, shares) if before else shares
        possible = [outcome for outcome, chance in enumerate(chances) if chance > IMPOSSIBLE]
        index = len(self.sizes)
        self.sizes.append(len(possible))
        chosen = possible[self.path[index] if index < len(self.path) else 0]
        self.weight *= chances[chosen]
        before.append((shares, chosen))
        return chosen

    @staticmethod
    def _given(before: list[tuple[list[Share], int]], shares: list[Share]) -> list[Share]:
        """The probabilities of a decision by noise that has made other decisions before.

        A token that is impossible in all of these decisions has no part in them.
        """
        made = [earlier for earlier, _ in before]
        for earlier in made:
            assert len(earlier) == len(shares), f"a key draws over {len(earlier)} tokens and over {len(shares)}"
        there = [token for token, share in enumerate(shares) if share or any(earlier[token] for earlier in made)]
        noise = Noise.of(len(there))
        for earlier, outcome in before:
            noise = noise.after(there.index(outcome), [earlier[token] for token in there])
        left, chances = [shares[token] for token in there], [*shares]
        for place, token in enumerate(there):
            chances[token] = noise.chance(place, left) if shares[token] else shares[token]
        return chances

    def others(self) -> Iterator[list[int]]:
        """After a run: the paths that begin as this one did, and then part from it past the end of ``path``."""
        taken = [*self.path, *[0] * (len(self.sizes) - len(self.path))]
        for place in range(len(self.path), len(self.sizes)):
            for outcome in range(1, self.sizes[place]):
                yield [*taken[:place], outcome]

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """Return a scripted draw from each row of ``logits`` [..., V], as int64 [...]; without a key, the likeliest.

        A row that is no distribution, for a NaN or an infinity in it, is no decision: its token is the largest.
        """
        return super().sample(logits, key) if key is None else _drawn([self], logits, key)

    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        """Return a scripted coin for each probability, as bool of the same shape."""
        return _tossed([self], probability, key)


@dataclass
class Scripts(Reference):
    """A script for each row of a batch, so that many paths of one round are one call of the policy."""

    scripts: Sequence[Script]

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """``Script.sample`` of each row."""
        return super().sample(logits, key) if key is None else _drawn(self.scripts, logits, key)

    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        """``Script.accept`` of each row."""
        return _tossed(self.scripts, probability, key)


def _drawn(scripts: Sequence[Script], logits: Tensor, key: Tensor) -> Tensor:
    """A draw from each row of ``logits`` [..., V]; each script makes as many of the decisions, in their order."""
    rows = logits.flatten(0, -2)
    distributions, each = rows.softmax(dim=-1), len(rows) // len(scripts)
    sound = distributions.isfinite().all(dim=-1).tolist()
    tokens = [
        scripts[place // each].decide(distribution, "draw", one)
        if sound[place]
        else int(rows[place].max(dim=0).indices)
        for place, (distribution, one) in enumerate(zip(distributions.tolist(), key.flatten().tolist(), strict=True))
    ]
    return torch.tensor(tokens).view(logits.shape[:-1])


def _tossed(scripts: Sequence[Script], probability: Tensor, key: Tensor) -> Tensor:
    """A coin for each probability; each script makes as many of the decisions, in their order."""
    chances = [min(1.0, chance) for chance in probability.flatten().tolist()]
    each = len(chances) // len(scripts)
    outcomes = [
        scripts[place // each].decide([chance, 1 - chance], "coin", one) == 0
        for place, (chance, one) in enumerate(zip(chances, key.flatten().tolist(), strict=True))
    ]
    return torch.tensor(outcomes, dtype=torch.bool).view(probability.shape)


def leaves(exact: bool = False, fresh: bool = False) -> Iterator[Script]:
    """Yield scripts that together take every path once; the caller runs each to its end before the next."""
    paths: list[list[int]] = [[]]
    while paths:
        script = Script(path=paths.pop(), exact=exact, fresh=fresh)
        yield script
        paths += script.others()


def context(ops: Backend, stream: Tensor | None = None) -> Context:
    """Return sampled rows after a prompt of one token: a row for each of ``stream`` int64 [B], by default one."""
    stream = torch.ones(1, dtype=torch.int64) if stream is None else stream
    one, host = torch.ones_like(stream), np.ones(len(stream), dtype=np.int64)
    params = StackedParams(stream, one.float(), one * 0, one.float(), one * 0.0, greedy=False, filtered=False)
    tokens = torch.zeros(len(stream), 8, dtype=torch.int64, device=stream.device)
    return Context(one, tokens, tokens.cpu().numpy(), one, host, one * 9, host * 9, params, ops, coupled=False)


Distributions = dict[tuple[int, ...], list[float]]


@dataclass(frozen=True)
class Shape:
    """The tree that a draft proposes: the parent of slot i is ``parents[i]`` (-1 for slot 0, the root)."""

    parents: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Depth of the deepest slot."""
        return max(len(self.ancestry(slot)) for slot in range(len(self.parents)))

    def ancestry(self, slot: int) -> list[int]:
        """Return the slots from the root's child down to ``slot``; empty for the root."""
        return [] if slot == 0 else [*self.ancestry(self.parents[slot]), slot]

    def without_elders(self, distribution: Sequence[float], slots: Sequence[int], slot: int) -> list[float]:
        """Return ``distribution`` without the tokens of the elder siblings of ``slot``, normalised.

        ``slots`` has the token of each slot. All shares are 0 if nothing is left.
        """
        left = list(distribution)
        for elder in range(1, slot):
            if self.parents[elder] == self.parents[slot]:
                left[slots[elder]] = 0.0
        total = sum(left)
        return [share / total for share in left] if total else left


def drawn_trees(shape: Shape, q: Distributions, certain: bool) -> Iterator[tuple[float, list[int], list[list[float]]]]:
    """Yield every tree that a draft with distributions q[path] can draw: weight, tokens, rows of q.

    Siblings are drawn without replacement. A certain draft proposes the same trees without rows of q.
    """
    vocabulary = len(q[()])
    for tokens in itertools.product(range(vocabulary), repeat=len(shape.parents) - 1):
        slots = [-1, *tokens]
        weight, rows = 1.0, []
        for slot in range(1, len(slots)):
            distribution = q[tuple(slots[s] for s in shape.ancestry(shape.parents[slot]))]
            row = shape.without_elders(distribution, slots, slot)
            weight *= row[slots[slot]]
            rows.append(row)
        if weight:
            yield weight, list(tokens), [] if certain else rows


Reported = Callable[[list[list[float]]], list[list[float]]]
"""Maps the rows of q from which nodes were drawn to those that the policy is told."""


def rounds(
    policy: Policy, p: Distributions, q: Distributions, shape: Shape, certain: bool, reported: Reported = list
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield every outcome of a round of the real policy: its probability and the tokens it emits.

    The rows of a call are paths of any of the draft's trees, the next call's those that part from them.
    """
    trees, size = [*drawn_trees(shape, q, certain)], len(shape.parents)
    tokens = torch.tensor([[0, *tokens] for _, tokens, _ in trees])
    drawn_from = [reported(rows) for _, _, rows in trees if rows]
    told = torch.tensor(drawn_from, dtype=torch.float64) if drawn_from else None
    distributions = [
        [p[tuple(tokens[above - 1] for above in shape.ancestry(slot))] for slot in range(size)]
        for _, tokens, _ in trees
    ]
    logits = torch.tensor(distributions, dtype=torch.float64).log()
    paths: list[tuple[int, list[int]]] = [(tree, []) for tree in range(len(trees))]
    while paths:
        scripts, at = [Script(path=path) for _, path in paths], torch.tensor([tree for tree, _ in paths])
        parents = torch.tensor(shape.parents).expand(len(paths), -1)
        window = Window(tokens[at], parents, torch.full_like(at, size), None if told is None else told[at])
        verdict = policy.accept(logits[at], window, context(Scripts(scripts), torch.ones_like(at)))
        emitted, counts = verdict.emitted(window).tolist(), verdict.num_accepted.tolist()
        for (tree, _), script, out, accepted in zip(paths, scripts, emitted, counts, strict=True):
            yield trees[tree][0] * script.weight, tuple(out[: accepted + 1])
        pairs = zip(paths, scripts, strict=True)
        paths = [(tree, other) for (tree, _), script in pairs for other in script.others()]


def emitted_distribution(
    policy: Policy, p: Distributions, q: Distributions, shape: Shape, certain: bool, reported: Reported = list
) -> Distribution:
    """Return the distribution of depth + 1 tokens: those of a round of the real policy, then tokens drawn from p."""
    vocabulary, distribution = len(q[()]), defaultdict[tuple[int, ...], float](float)
    for chance, out in rounds(policy, p, q, shape, certain, reported):
        for rest in itertools.product(range(vocabulary), repeat=shape.depth + 1 - len(out)):
            weight = chance
            for index in range(len(rest)):
                weight *= p[(*out, *rest[:index])][rest[index]]
            distribution[(*out, *rest)] += weight
    return distribution


def round_distance(
    policy: Policy, p: Distributions, q: Distributions, shape: Shape, certain: bool, reported: Reported = list
) -> float:
    """Return the total variation between the emitted tokens and the target's chain rule."""
    got = emitted_distribution(policy, p, q, shape, certain, reported)
    expected = chain_rule(p, shape.depth + 1, len(q[()]))
    assert abs(sum(got.values()) - 1) < 1e-12
    return sum(abs(got.get(tokens, 0.0) - weight) for tokens, weight in expected.items()) / 2


def random_distributions(
    generator: np.random.Generator, vocabulary: int, depth: int, zeros: bool = False
) -> Distributions:
    """Return a random distribution after every prefix of up to ``depth`` tokens."""
    return {
        prefix: random_distribution(generator, vocabulary, zeros)
        for length in range(depth + 1)
        for prefix in itertools.product(range(vocabulary), repeat=length)
    }


def chain(depth: int) -> Shape:
    """Return the shape in which every slot is the child of the previous slot."""
    return Shape(tuple(range(-1, depth)))


def chain_rule(p: Distributions, length: int, vocabulary: int) -> Distribution:
    """Return the target's own distribution of ``length`` tokens."""
    return {
        tokens: float(np.prod([p[tokens[:i]][token] for i, token in enumerate(tokens)]))
        for tokens in itertools.product(range(vocabulary), repeat=length)
    }


def random_distribution(generator: np.random.Generator, vocabulary: int, zeros: bool) -> list[float]:
    """Return a distribution of fractions with a common denominator; with ``zeros`` some tokens may be impossible."""
    low = 0 if zeros else 1
    while True:
        parts = generator.integers(low, 40, vocabulary)
        if parts.sum():
            break
    shares = [Fraction(int(part), int(parts.sum())) for part in parts]
    return [float(share) for share in shares]


def completions(run: Callable[[Script], Emitted], exact: bool = False, fresh: bool = False) -> dict[Emitted, Share]:
    """Return the distribution of the results of ``run``; a script replaces every draw and every coin in it."""
    distribution: dict[Emitted, Share] = defaultdict(int)
    for script in leaves(exact, fresh):
        outcome = run(script)
        distribution[outcome] += script.weight
    return dict(distribution)
