"""Tokens that a policy emits, sampled in numbers large enough for a stated power.

This covers what cannot be enumerated: vocabularies of hundreds of tokens, fused kernels, half precision. Each token is
converted to its probability integral transform under the target's distribution, which is uniform if the token has that
distribution; Pearson's chi-square over ten bins tests whether it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchsuite.conformance.exact.enumerator import Shape, chain, context
from benchsuite.judge.fidelity import BINS, finding
from specdec import Context, Policy, Window, sampling
from specdec.interfaces import Backend

FALSE_ALARM = 1e-6 / 3
"""Probability of a false alarm at one depth; a round emits up to three tokens, and each depth is tested separately."""

AT_ONCE = 10_000
CHAIN = chain(2)


@dataclass(frozen=True)
class Rounds:
    """Rounds of a policy in which p is softmax(``target``) in every slot and q is softmax(``draft``).

    ``target`` and ``draft`` [V], of any floating type, on the device under test. ``shape`` is the proposed tree: a
    chain, or siblings without replacement.

    Example: ``Rounds(policy, ops, target, draft).bins(210_000)``
    """

    policy: Policy
    ops: Backend
    target: Tensor
    draft: Tensor
    shape: Shape = CHAIN

    def bins(self, rounds: int, distribution: Tensor | None = None) -> Tensor:
        """Return int64 [D, BINS]: the bins of the transforms of the tokens emitted at each depth.

        ``distribution`` [V], by default the target's own, defines the transforms. Depths that a round does not reach
        are drawn from it, so that each depth counts ``rounds`` tokens.
        """
        generator = torch.Generator().manual_seed(0)
        own = (self.target.float().softmax(dim=-1) if distribution is None else distribution).cpu().double()
        order = own.argsort(descending=True, stable=True)
        before = torch.empty_like(own).scatter(0, order, own[order].cumsum(0) - own[order])
        found = torch.zeros(self.shape.depth + 1, BINS, dtype=torch.int64)
        for first in range(0, rounds, AT_ONCE):
            for depth, tokens in enumerate(self._emitted(first, own, len(found), generator)):
                coins = torch.rand(len(tokens), dtype=torch.float64, generator=generator)
                share = before[tokens] + coins * own[tokens]
                found[depth] += torch.bincount((share * BINS).long().clamp(max=BINS - 1), minlength=BINS)
        return found

    def _emitted(self, first: int, distribution: Tensor, depths: int, generator: torch.Generator) -> Tensor:
        asked = self._context(first)
        window = self._window(asked)
        logits = self.target.expand(asked.rows, len(self.shape.parents), -1)
        given = logits.float() if self.policy.raw else asked.process(logits, window)
        verdict = self.policy.accept(given, window, asked)
        kept, path = verdict.num_accepted.cpu(), verdict.path[:, 1:].clamp(min=0)
        tokens = torch.nn.functional.pad(window.tokens.gather(1, path), (0, depths))[:, :depths].cpu()
        rest = torch.multinomial(distribution, asked.rows * depths, replacement=True, generator=generator)
        places = torch.arange(depths)
        tokens = torch.where(places < kept[:, None], tokens, rest.view(-1, depths))
        return tokens.scatter(1, kept[:, None], verdict.next.cpu()[:, None]).T

    def _context(self, first: int) -> Context:
        request = torch.arange(first, first + AT_ONCE, device=self.target.device)
        rows = context(self.ops, sampling.stream(torch.ones_like(request), request))
        return replace(rows, coupled=self.policy.coupled)

    def _window(self, asked: Context) -> Window:
        logits = self.draft.float().expand(asked.rows, 1, -1)
        slots: list[Tensor] = []
        distributions: list[Tensor] = []
        parents = self.shape.parents
        for slot in range(1, len(parents)):
            if parents[slot] == parents[slot - 1]:  # a younger sibling: its elder's token is excluded
                logits = logits.scatter(2, slots[-1][:, :, None], float("-inf"))
            position = asked.length[:, None] + len(self.shape.ancestry(parents[slot]))
            slots.append(asked.propose_token(logits, position))
            distributions.append(logits.softmax(dim=-1))
        tokens = torch.cat(slots, dim=1)
        window = Window.chain(
            asked.pending, tokens, torch.full_like(asked.length, len(slots)), torch.cat(distributions, dim=1)
        )
        return replace(window, parents=torch.tensor(parents, device=tokens.device).expand_as(window.parents))


def power(rounds: int, shift: float) -> float:
    """Return the probability that the test of one depth finds a mass ``shift`` moved: ``fidelity.finding``."""
    return finding(rounds, shift, FALSE_ALARM)
