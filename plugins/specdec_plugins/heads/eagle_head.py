"""EAGLE's head: one decoder layer that predicts the target's next hidden states."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from specdec.decoder import Cells, DecoderWeights
from specdec.interfaces import Backend
from specdec.packed import Weight
from specdec_plugins.heads.rounding import matrix_for


@dataclass(frozen=True)
class EagleShape:
    """Sizes of the layer, a layer of Llama's kind with its own rotary base."""

    hidden: int
    intermediate: int
    heads: int
    heads_kv: int
    head_dim: int
    eps: float
    theta: float


class EagleHead(nn.Module):
    """Estimates hidden state t + 1 from token t + 1 and hidden state t (EAGLE, Li et al. 2401.15077).

    ``hidden`` is an input of the target's head, and so is the result: the rows of the target's own head read tokens
    from it. All arithmetic runs on ``ops``: on the reference in training, on the fastest backend when drafting, so
    both compute the same function.

    Example: ``head(ops, embedded, hidden, head.turn(position, dtype), cells)`` is [B, W, H] like ``hidden``.
    """

    def __init__(self, shape: EagleShape) -> None:
        super().__init__()
        self.shape = shape
        size, wide, inner = shape.hidden, shape.intermediate, shape.heads * shape.head_dim

        def matrix(outputs: int, inputs: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(outputs, inputs) * 0.02)

        def ones() -> nn.Parameter:
            return nn.Parameter(torch.ones(size))

        self.token_norm, self.hidden_norm = ones(), ones()
        self.enter = matrix(size, 2 * size)
        self.norm_before, self.norm_after, self.norm = ones(), ones(), ones()
        self.qkv = matrix(inner + 2 * shape.heads_kv * shape.head_dim, size)
        self.out = matrix(size, inner)
        self.gate_up = matrix(2 * wide, size)
        self.down = matrix(size, wide)

    def weights(self, ops: Backend, bits: int | None = None) -> tuple[Weight, DecoderWeights]:
        """``enter`` and the layer as ``ops`` reads them fastest, rounded to codes of ``bits``; without ``bits``, on the
        reference, the parameters without a copy."""
        shape = self.shape
        layer = DecoderWeights(
            norm_before=self.norm_before,
            eps_before=shape.eps,
            qkv=matrix_for(ops, self.qkv, bits),
            qkv_bias=None,
            out=matrix_for(ops, self.out, bits),
            out_bias=None,
            norm_after=self.norm_after,
            eps_after=shape.eps,
            gate_up=matrix_for(ops, self.gate_up, bits),
            gate_up_bias=None,
            down=matrix_for(ops, self.down, bits),
            down_bias=None,
            norm_offset=0.0,
            heads=shape.heads,
            heads_kv=shape.heads_kv,
            head_dim=shape.head_dim,
            scaling=shape.head_dim**-0.5,
        )
        return matrix_for(ops, self.enter, bits), layer

    def turn(self, position: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rotary's cos and sin [B, W, d] at positions [B, W]."""
        half = torch.arange(0, self.shape.head_dim, 2, device=position.device)
        angle = position[..., None].float() * self.shape.theta ** (-half / self.shape.head_dim)
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos().to(dtype), angle.sin().to(dtype)

    def forward(
        self,
        ops: Backend,
        embedded: Tensor,
        hidden: Tensor,
        turn: tuple[Tensor, Tensor],
        at: Cells,
        weights: tuple[Weight, DecoderWeights] | None = None,
    ) -> Tensor:
        """Estimate hidden states [B, W, H]; ``embedded`` [B, W, H] are the target's embeddings of the next tokens.

        ``weights`` is the result of ``weights(ops)``, if the caller keeps it. In place: the cells of ``at``.
        """
        enter, layer = weights or self.weights(ops)
        eps = self.shape.eps
        pair = [ops.rms_norm(embedded, self.token_norm, eps, 0.0), ops.rms_norm(hidden, self.hidden_norm, eps, 0.0)]
        x = ops.linear(torch.cat(pair, dim=-1), enter, None)
        x = ops.decoder_layers(x, [layer], turn, [at])
        return ops.rms_norm(x, self.norm, eps, 0.0)

    def describe(self) -> dict[str, float | int]:
        """The shape as plain numbers, for a file's header."""
        return asdict(self.shape)
