"""Whether outputs favour what their draft proposes: a test that exchanges within a bin of the transforms do not evade.

What a policy gains by leaving the target's distribution p, it gains by emitting the draft's proposals. The likelihood
of the tokens under (1 - s) p + s q, where q is what the draft proposes after the same text, is compared with that under
p. Given the text before, each ratio has an expectation of at most 1 if the token follows p and q does not depend on it,
so that the product over all tokens is a supermartingale: by Ville's inequality it exceeds 1/a with a probability of at
most a, whatever p and q are, and for any number of tokens.

The proposals of the run itself will not do: an honest policy keeps a proposal more often than p alone would draw it,
because its output is tied to what was proposed. So the draft is asked again along each output, with noise of another
seed, and under a policy that only follows the output (``favour``).

Source: Ville 1939; Ramdas, Gruenwald, Vovk and Shafer, arXiv 2210.01948 (mixtures of such ratios as tests).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log, sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from benchsuite.judge.sources import Always, Tokens
from benchsuite.judge.ville import ville_p
from specdec.acceptance import finite
from specdec.engine import Engine
from specdec.interfaces import Contract, Policy
from specdec.messages import Context, Verdict, Window
from specdec.request import Request, SamplingParams
from specdec.runtime import Eager

SHARES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""Shares of tokens that are drawn from the draft in place of the target, in the mixtures that are compared."""

OTHER_SEED = 1 << 40
"""The bit of a request's seed that is turned where its draft is asked again, for noise that the run did not have."""


def _zeros() -> list[float]:
    return [0.0] * len(SHARES)


@dataclass
class Favour:
    """Sums over tokens for which the draft proposed something; two objects can be added.

    ``outputs``: along how many outputs it was asked; ``tokens``: for how many tokens of them it proposed something that
    the target may emit. ``kept``: how often proposals drawn anew would equal these tokens, in expectation; ``due``: how
    often they would equal tokens of the target. For each of ``SHARES``: ``ratios`` of log-likelihoods, summed; their
    expectation ``gains`` and variance ``spreads`` if that share of the tokens came from the draft.
    """

    outputs: int = 0
    tokens: int = 0
    kept: float = 0.0
    due: float = 0.0
    ratios: list[float] = field(default_factory=_zeros)
    gains: list[float] = field(default_factory=_zeros)
    spreads: list[float] = field(default_factory=_zeros)

    def __add__(self, other: Favour) -> Favour:
        pairs = zip((self.ratios, self.gains, self.spreads), (other.ratios, other.gains, other.spreads), strict=True)
        return Favour(
            self.outputs + other.outputs,
            self.tokens + other.tokens,
            self.kept + other.kept,
            self.due + other.due,
            *([a + b for a, b in zip(*pair, strict=True)] for pair in pairs),
        )

    @property
    def p_value(self) -> float:
        """The probability, at most, with which tokens of the target would favour the draft as much."""
        return ville_p(self.ratios)

    def found(self, alarm: float, probability: float) -> float | None:
        """Return the least of ``SHARES`` that would be found so surely at a false alarm; None if none would be.

        The sum of log-likelihoods is taken for a normal variable. Example: ``favour.found(1e-6, 0.99)``
        """
        threshold, far = log(len(SHARES) / alarm), NormalDist().inv_cdf(probability)
        sure = (
            share
            for share, gain, spread in zip(SHARES, self.gains, self.spreads, strict=True)
            if gain - far * sqrt(spread) >= threshold
        )
        return next(sure, None)


def weighed(p: Tensor, q: Tensor, tokens: Sequence[int]) -> Favour:
    """Return what ``tokens`` say, each emitted where the target had a row of ``p`` [N, V] and the draft one of ``q``.

    What the target cannot emit is left out of q, whose rest is normalised; a row of which nothing is left says nothing.
    Both in one dtype on the CPU.

    Example: ``weighed(torch.tensor([[0.1, 0.9]]), torch.tensor([[1.0, 0.0]]), [0])`` is a token that the draft guessed
    """
    at = torch.tensor(tokens, dtype=torch.int64)[:, None]
    q = torch.where(p > 0, finite(q), 0.0)
    mass = q.sum(dim=1)
    some = mass > 0
    p, q, at = p[some], q[some] / mass[some, None], at[some]
    own, guessed = p.gather(1, at)[:, 0], q.gather(1, at)[:, 0]
    # What no row of q holds is one cell for all sums below.
    held = (q > 0).any(dim=0)
    p, q = p[:, held], q[:, held]
    rest = (1 - p.sum(dim=1)).clamp(min=0)
    over, its = (torch.where(below > 0, above / below, 0.0) for above, below in ((q, p), (guessed, own)))
    ratios, gains, spreads = [], [], []
    for share in SHARES:
        mixed, logs = (1 - share) * p + share * q, torch.log1p(share * (over - 1))
        mean = (mixed * logs).sum(dim=1) + (1 - share) * rest * log(1 - share)
        square = (mixed * logs**2).sum(dim=1) + (1 - share) * rest * log(1 - share) ** 2
        ratios.append(float(torch.log1p(share * (its - 1)).sum()))
        gains.append(float(mean.sum()))
        spreads.append(float((square - mean**2).sum()))
    return Favour(0, len(p), float(guessed.sum()), float((p * q).sum()), ratios, gains, spreads)


def guessed(chances: Sequence[float], right: Sequence[bool]) -> Favour:
    """Return the same for a draft that proposes one token at each place: the target's ``chances`` of it, and whether it
    came.

    Example: ``guessed([0.1, 0.4], [True, False])``
    """
    p = torch.tensor([[chance, 1 - chance] for chance in chances], dtype=torch.float64).view(-1, 2)
    return weighed(p, torch.tensor([1.0, 0.0]).double().expand_as(p), [int(not one) for one in right])


def continuation(text: Sequence[int], first: int) -> list[int | None]:
    """Return for each index from ``first`` what a lookup proposes: the token that followed the same two tokens last.

    None where these have not come before. Example: ``continuation((1, 2, 3, 1, 2, 9), 4)`` is ``[None, 3]``
    """
    followed: dict[tuple[int, ...], int] = {}
    found: list[int | None] = []
    for at, token in enumerate(text):
        pair = tuple(text[max(0, at - 2) : at])
        found.append(followed.get(pair))
        followed[pair] = token
    return found[first:]


class Followed(Policy):
    """Accepts what equals a known text, whatever the target says, and emits the text's next token.

    ``texts`` has prompt and output of each request id. ``favour`` sums up what the tokens say for which the window had
    proposals, drawn from the mean of the q of their siblings.
    """

    trees = True

    def __init__(self, texts: Mapping[int, Tokens]) -> None:
        self._texts, self.favour = texts, Favour(outputs=len(texts))

    def contract(self, params: SamplingParams) -> Contract:
        """Lossy: it is no way to decode."""
        return "lossy"

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """Follow each row's text down the window."""
        tokens, parents, width = (part.tolist() for part in (window.tokens, window.parents, window.width))
        path = torch.full(window.tokens.shape, -1)
        path[:, 0] = 0
        accepted, following = [], []
        asked: list[tuple[int, int, list[int], int]] = []  # row, node, its children, the token that came after it
        for row, (number, length) in enumerate(zip(context.request.tolist(), context.length_host, strict=True)):
            node, depth = 0, 0
            # An end within a window is cut by the engine, so that the token after it may be any.
            coming = [*self._texts[number][int(length) :], 0]
            while True:
                children = [n for n in range(1, width[row]) if parents[row][n] == node]
                if children and depth < len(coming) - 1:
                    asked.append((row, node, children, coming[depth]))
                right = [n for n in children if tokens[row][n] == coming[depth] and depth < len(coming) - 1]
                if not right:
                    break
                node, depth = right[0], depth + 1
                path[row, depth] = node
            accepted.append(depth)
            following.append(coming[depth])
        if asked:
            self._weigh(logits.softmax(dim=-1).cpu().double(), window, asked)
        numbers = torch.tensor([accepted, following], device=logits.device)
        return Verdict(path.to(logits.device), numbers[0], numbers[1])

    def _weigh(self, p: Tensor, window: Window, asked: Sequence[tuple[int, int, list[int], int]]) -> None:
        tokens, q = window.tokens.cpu(), None if window.q is None else window.q.cpu().double()
        proposed = torch.zeros(len(asked), p.shape[2], dtype=p.dtype)
        for place, (row, _, children, _) in enumerate(asked):
            if q is None:
                proposed[place].index_add_(0, tokens[row, children], proposed.new_ones(len(children)))
            else:
                proposed[place] = finite(q[row, [n - 1 for n in children]]).sum(dim=0)
        rows, nodes, _, came = zip(*asked, strict=True)
        self.favour += weighed(p[list(rows), list(nodes)], proposed, came)


def favour(engine: Engine, requests: Sequence[Request], outputs: Sequence[Tokens]) -> Favour:
    """Return what outputs of requests say when the engine's draft is asked again along each, with noise of its own.

    The draft forgets before and after: what it learnt of these outputs would be no proposal. The tokens are held
    against the logits of the engine's own target and arena, by which its policy decides; whether those are the model's
    is for the transforms to say. An engine without a draft, or whose draft has asked for plain's output, which another
    seed changes, is not asked. It takes about the time of the run; but for ``stats`` the engine is left as it was.

    Example: ``favour(engine, work, [done.tokens for done in engine.run(work)]).p_value``
    """
    if engine.draft is None or engine.replayed():
        return Favour()
    policy = Followed({r.id: (*r.prompt, *output) for r, output in zip(requests, outputs, strict=True)})
    again = [replace(r, params=replace(r.params, seed=r.params.seed ^ OTHER_SEED)) for r in requests]
    before = engine.policy, engine.controller, engine.runtime
    engine.policy, engine.controller, engine.runtime = policy, Always(engine.max_window - 1), Eager()
    engine.draft.forget()
    try:
        engine.run(again)
    finally:
        engine.policy, engine.controller, engine.runtime = before
        engine.draft.forget()
    return policy.favour
