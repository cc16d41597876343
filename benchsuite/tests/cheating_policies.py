"""Policies that keep tokens that are nearly the target's, each somewhere else, and are honest everywhere else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdec import Context, Policy, Purpose, SamplingParams, Verdict, Window, sampling
from specdec.interfaces import Contract, Env
from specdec_plugins.policies.rejection import Rejection

NEARLY = 0.1
"""Nats below the target's own token that a cheat forgives: a ratio of nine tenths."""


class NearlyLikeliest(Policy):
    """Keeps a proposal of nine tenths of the largest probability, and calls itself exact when greedy."""

    trees = True
    raw = True

    def __init__(self, env: Env) -> None:
        """Takes no options."""

    def contract(self, params: SamplingParams) -> Contract:
        """Exact when greedy."""
        return "exact" if params.temperature == 0 else "lossy"

    def met(self, window: Window, context: Context) -> Tensor | bool:
        """Whether it cheats with a node, as bool that broadcasts to [B, W]."""
        return True

    def scores(self, logits: Tensor, window: Window, context: Context) -> Tensor:
        """The numbers [B, W, V] of which plain decoding takes the largest."""
        return logits

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        scores = self.scores(logits, window, context)
        at_parent = scores.gather(1, window.parents.clamp(min=0)[:, :, None].expand_as(scores))
        own = at_parent.gather(2, window.tokens[:, :, None])[:, :, 0]
        kept = (own >= at_parent.amax(dim=2) - NEARLY) & self.met(window, context)
        position = context.length[:, None] + window.depth
        drawn = context.choose(context.process(logits, window), position, Purpose.TARGET)
        return context.ops.verify_prefix(window, window.prefer(kept, drawn))


class Deep(NearlyLikeliest):
    """From the second proposal on."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return window.depth >= 2


class Deepest(NearlyLikeliest):
    """From the tenth proposal on."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return window.depth >= 10


class InTrees(NearlyLikeliest):
    """In windows that branch."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        chain = torch.arange(-1, window.parents.shape[1] - 1)
        return (window.parents != chain).any(dim=1, keepdim=True)


class Younger(NearlyLikeliest):
    """Where an elder sibling was proposed too."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        siblings = window.parents[:, :, None] == window.parents[:, None, :]
        return siblings.tril(-1).any(dim=2)


class RareIds(NearlyLikeliest):
    """For tokens above 1000."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return window.tokens > 1000


class InCompany(NearlyLikeliest):
    """In batches of more than one row."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return context.rows > 1


class Alone(NearlyLikeliest):
    """In batches of one row."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return context.rows == 1


class Tempered(NearlyLikeliest):
    """At other temperatures than 1."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return context.params.temperature[:, None] != 1


class LongText(NearlyLikeliest):
    """After more than 1000 tokens."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return context.length[:, None] > 1000


class Penalised(NearlyLikeliest):
    """Under penalties."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return context.params.adjustments is not None and context.params.adjustments.penalties is not None


class Biased(NearlyLikeliest):
    """Under a bias."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return context.params.adjustments is not None and context.params.adjustments.bias is not None


class BesideSampled(NearlyLikeliest):
    """In batches with a sampled row."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return not context.params.greedy


class WithQ(NearlyLikeliest):
    """Where the draft says from what it drew."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return window.q is not None


class BeforePadding(NearlyLikeliest):
    """In rows with fewer slots than the window."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return (window.width < window.tokens.shape[1])[:, None]


class NearlyDrawn(NearlyLikeliest):
    """Keeps what came second by the noise of the draw, and calls itself exact."""

    coupled = True

    def contract(self, params: SamplingParams) -> Contract:
        return "exact"

    def scores(self, logits: Tensor, window: Window, context: Context) -> Tensor:
        position = context.length[:, None] + window.depth
        keys = context.ops.noise_keys(context.params.stream, position, 0)[Purpose.TARGET]
        noise = sampling.gumbel(keys, logits.shape[2]) * (context.params.temperature > 0)[:, None, None]
        return context.process(logits, window) + noise


class DrawnTempered(NearlyDrawn):
    """The same at other temperatures than 0 and 1."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        heat = context.params.temperature[:, None]
        return (heat > 0) & (heat != 1)


class DrawnFiltered(NearlyDrawn):
    """The same under top-k, top-p or min-p."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return context.params.filtered


class DrawnBesideGreedy(NearlyDrawn):
    """The same in a sampled row beside a greedy one."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        heat = context.params.temperature[:, None]
        return (heat > 0) & (heat == 0).any()


class NearlyAsLikely(Rejection):
    """Keeps each proposal of nine tenths of the largest probability, and is honest with all others."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        """Whether it cheats with a node, as bool that broadcasts to [B, W]."""
        return True

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        """See ``Policy``."""
        proposed = window.tokens.roll(-1, dims=1)[:, :, None]  # after slot n comes the proposal of slot n + 1
        below = logits.amax(dim=2) - logits.gather(2, proposed)[:, :, 0]
        met = self.met(window, context)
        met = met if isinstance(met, bool) else met.expand_as(window.tokens).roll(-1, dims=1)
        kept = (below > 0) & (below <= NEARLY) & met
        certain = torch.full_like(logits, -torch.inf).scatter_(2, proposed, 0.0)
        return super().accept(torch.where(kept[:, :, None], certain, logits), window, context)


class NearlyTempered(NearlyAsLikely):
    """At other temperatures than 1."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return context.params.temperature[:, None] != 1


class NearlyRareIds(NearlyAsLikely):
    """For tokens above 1000."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return window.tokens > 1000


class NearlyCrowded(NearlyAsLikely):
    """In batches of more than one row."""

    def met(self, window: Window, context: Context) -> Tensor | bool:
        return context.rows > 1


class Unsteady(Rejection):
    """Promises plain's tokens at some temperatures only."""

    def contract(self, params: SamplingParams) -> Contract:
        return "exact" if params.temperature in (0, 0.3) else "distribution"


class Embellished(Rejection):
    """Writes to the window how much of it was kept: all."""

    def accept(self, logits: Tensor, window: Window, context: Context) -> Verdict:
        verdict = super().accept(logits, window, context)
        window.width.copy_(verdict.num_accepted + 1)
        return verdict


GREEDY: dict[str, Any] = {"greedy": "exact", "sampled": "lossy", "trees": True}
DRAWN: dict[str, Any] = {"greedy": "exact", "sampled": "exact", "trees": True, "coupled": True}
SAMPLED: dict[str, Any] = {"greedy": "exact", "sampled": "distribution"}

CHEATING_POLICIES: list[tuple[type[Policy], dict[str, Any], str, str]] = [
    *(
        (cheat, GREEDY, "nearly_the_likeliest", rf"a token \S+ nats below{where}, parents")
        for cheat, where in (
            (NearlyLikeliest, ""),
            (Deep, ""),
            (Deepest, " in a wide window"),
            (InTrees, ""),
            (Younger, ""),
            (RareIds, " in a large vocabulary"),
            (InCompany, ""),
            (Alone, " alone in its batch"),
            (Tempered, ""),
            (LongText, " after a long text"),
            (Penalised, " under penalties"),
            (Biased, " under a bias"),
            (BesideSampled, r" beside rows at temperature 0\.8"),
            (WithQ, " drawn from q"),
            (BeforePadding, " before padding"),
        )
    ),
    (NearlyDrawn, DRAWN, "nearly_drawn", "sampled outputs of planted are plain decoding's.*are drawn"),
    (DrawnTempered, DRAWN, "nearly_drawn", "sampled outputs of planted are plain decoding's.*are drawn"),
    (DrawnFiltered, DRAWN, "nearly_drawn", "are drawn.* under filters,"),
    (DrawnBesideGreedy, DRAWN, "nearly_drawn", "are drawn.* beside rows at temperature 0,"),
    *(
        (cheat, SAMPLED, "its_distribution", rf"the target's distribution.*nearly equally likely.*{where}")
        for cheat, where in (
            (NearlyAsLikely, ""),
            (NearlyTempered, r"temperature \d"),
            (NearlyRareIds, r""),
            (NearlyCrowded, "2 rows"),
        )
    ),
    (Unsteady, SAMPLED, "is_what_it_claims", "it says exact.*temperature 0.3"),
    (Embellished, SAMPLED, "writes_to_nothing", r"accept changed \['Window.width'\]"),
]
"""Each with its claims, a part of the name of the check that finds it, and what that says."""
