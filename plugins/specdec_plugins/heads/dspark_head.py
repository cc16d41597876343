"""DSpark's network: DFlash's, with a bias by the token before and an estimate of what will be kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from specdec.interfaces import Backend
from specdec.packed import Weight
from specdec_plugins.heads.dflash_head import BlockShape, BlockWeights, DFlashHead
from specdec_plugins.heads.rounding import matrix_for

MarkovKind = Literal["vanilla", "gated", "rnn"]
"""What the bias of a slot follows from: the token before; that and the slot's state; these and the slots before."""


class Markov(nn.Module):
    """A bias on a slot's logits by the token before it: W2 f(W1[token]), of a low rank r (DSpark, 2607.05147).

    ``before`` [V, r] is W1 and ``after`` [D, r] is W2. ``mix`` and ``mix_bias``: of ``gated`` [r, H + r], a gate over
    the slot's state and the token; of ``rnn`` [3 r, 2 r + H], gate, candidate and output over the memory, the token and
    the state; of ``vanilla`` None.
    """

    mix: Tensor | None
    mix_bias: Tensor | None

    def __init__(self, kind: MarkovKind, vocabulary: int, reduced: int, rank: int, hidden: int) -> None:
        super().__init__()
        self.kind, self.rank = kind, rank
        self.before = nn.Parameter(torch.empty(vocabulary, rank), requires_grad=False)
        self.after = nn.Parameter(torch.empty(reduced, rank), requires_grad=False)
        sizes = {"vanilla": None, "gated": (rank, hidden + rank), "rnn": (3 * rank, 2 * rank + hidden)}[kind]
        self.mix = None if sizes is None else nn.Parameter(torch.empty(*sizes), requires_grad=False)
        self.mix_bias = None if sizes is None else nn.Parameter(torch.empty(sizes[0]), requires_grad=False)

    def weights(self, ops: Backend, bits: int | None = None) -> tuple[Weight, Weight | None]:
        """``after`` and ``mix`` as ``ops`` reads them fastest, rounded to codes of ``bits`` unless that is None."""
        return matrix_for(ops, self.after, bits), None if self.mix is None else matrix_for(ops, self.mix, bits)

    def forward(
        self, ops: Backend, token: Tensor, state: Tensor, memory: Tensor, weights: tuple[Weight, Weight | None]
    ) -> tuple[Tensor, Tensor]:
        """The bias float32 [B, D] of a slot with ``state`` [B, H] behind ``token`` [B, r], and the memory behind it.

        ``memory`` [B, r] is 0 at the block's first slot; only ``rnn`` changes it.
        """
        after, mix = weights
        if mix is not None and self.kind == "gated":
            token = token * ops.linear(torch.cat([state, token], dim=-1), mix, self.mix_bias).sigmoid()
        elif mix is not None:
            mixed = ops.linear(torch.cat([memory, token, state], dim=-1), mix, self.mix_bias)
            gate, candidate, output = mixed.chunk(3, dim=-1)
            gate = gate.sigmoid()
            memory = gate * memory + (1 - gate) * candidate.tanh()
            token = output.tanh()
        return ops.linear(token, after, None).float(), memory


@dataclass(frozen=True, eq=False)
class SparkWeights(BlockWeights):
    """A block's matrices and, if the head has a bias, those of the bias: see ``Markov.weights``."""

    markov: tuple[Weight, Weight | None] | None

    @property
    def matrices(self) -> list[Weight]:
        """See ``BlockWeights``; those of the bias among them."""
        return super().matrices + [matrix for matrix in self.markov or () if matrix is not None]


@dataclass(frozen=True)
class DSparkParts:
    """Which parts a head has: the kind and rank of its bias, None without one, and its confidence.

    ``confident``: by the state of a slot alone, by that and the token before it, or None without one.
    """

    kind: MarkovKind | None
    rank: int
    confident: Literal["state", "token"] | None


class DSparkHead(DFlashHead):
    """DFlash's network with the parts of DSpark (2607.05147): see ``Markov``.

    ``sure`` [1, H] or [1, H + r] and ``sure_bias`` [1] estimate, for a slot's state behind the last norm, the share of
    the target's distribution that the slot's proposal covers: the chance that it is kept if the one before it is.
    """

    sure: Tensor | None
    sure_bias: Tensor | None

    def __init__(
        self,
        shape: BlockShape,
        parts: DSparkParts,
        vocabulary: int,
        reduced: int,
        mask: int,
        inverse: Tensor,
        magnitude: float = 1.0,
        bias: bool = False,
    ) -> None:
        super().__init__(shape, mask, inverse, magnitude, bias)
        self.parts = parts
        self.markov = Markov(parts.kind, vocabulary, reduced, parts.rank, shape.hidden) if parts.kind else None
        inputs = shape.hidden + parts.rank * (parts.confident == "token")
        with_it = parts.confident is not None
        self.sure = nn.Parameter(torch.empty(1, inputs), requires_grad=False) if with_it else None
        self.sure_bias = nn.Parameter(torch.empty(1), requires_grad=False) if with_it else None

    def weights(self, ops: Backend, bits: int | None = None) -> SparkWeights:
        """See ``DFlashHead``; the matrices of the bias are rounded too, and its embeddings ``before`` are not."""
        block = super().weights(ops, bits)
        markov = None if self.markov is None else self.markov.weights(ops, bits)
        return SparkWeights(block.enter, block.texts, block.layers, markov)

    def confidence(self, ops: Backend, state: Tensor, token: Tensor | None) -> Tensor:
        """The chances [B] of a slot with ``state`` [B, H] behind ``token`` [B, r], its entry of ``Markov.before``."""
        assert self.sure is not None
        given = torch.cat([state, token], dim=-1) if self.parts.confident == "token" and token is not None else state
        return ops.linear(given, self.sure, self.sure_bias)[:, 0].float().sigmoid()
