"""EAGLE-3's head: a decoder layer that reads outputs of several of the target's layers, with a head of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from specdec.decoder import Cells, DecoderWeights, decode_after_norm
from specdec.interfaces import Backend
from specdec.packed import Weight
from specdec_plugins.heads.rounding import matrix_for


@dataclass(frozen=True)
class Eagle3Shape:
    """Sizes and conventions of the network.

    ``states`` outputs of the target's layers, each of size ``state_size``, are fused to ``hidden``. ``vocabulary`` is
    the number of tokens that the head knows. ``fusion_norm``: no norm before the fusion, one of all states side by
    side, or one of each state. ``norm_before_residual``: the residual of the first layer is the normed feature.
    ``norm_output``: the head feeds back its state after its last norm (EAGLE 3.1), not before. ``bias``: queries, keys
    and values have one, ``out_bias``: their output has one, and ``wide_bias``: so have the matrices of the SwiGLU.
    ``head_norms``: queries and keys are normed within each head, as Qwen3's are.
    """

    hidden: int
    intermediate: int
    heads: int
    heads_kv: int
    head_dim: int
    eps: float
    states: int
    state_size: int
    vocabulary: int
    layers: int = 1
    fusion_norm: Literal["none", "all", "each"] = "none"
    norm_before_residual: bool = False
    norm_output: bool = False
    bias: bool = False
    out_bias: bool = False
    wide_bias: bool = False
    head_norms: bool = False


@dataclass(frozen=True)
class Eagle3Weights:
    """The matrices of a head as a backend reads them fastest: fusion, layers and the head over its vocabulary."""

    fusion: Weight
    layers: Sequence[DecoderWeights]
    output: Weight

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices."""
        parts = [self.fusion, self.output]
        parts += [matrix for one in self.layers for matrix in (one.qkv, one.out, one.gate_up, one.down)]
        return sum(part.nbytes for part in parts)


class Eagle3Layer(nn.Module):
    """The parameters of a decoder layer; ``inputs`` is the size of what its queries, keys and values are made of."""

    def __init__(self, shape: Eagle3Shape, inputs: int) -> None:
        super().__init__()
        self.shape = shape
        size, wide, inner = shape.hidden, shape.intermediate, shape.heads * shape.head_dim
        rows = inner + 2 * shape.heads_kv * shape.head_dim
        self.norm_before, self.norm_after = _ones(size), _ones(size)
        self.qkv, self.out = _matrix(rows, inputs), _matrix(size, inner)
        self.gate_up, self.down = _matrix(2 * wide, size), _matrix(size, wide)
        self.qkv_bias = _zeros(rows) if shape.bias else None
        self.out_bias = _zeros(size) if shape.out_bias else None
        self.gate_up_bias = _zeros(2 * wide) if shape.wide_bias else None
        self.down_bias = _zeros(size) if shape.wide_bias else None
        self.query_norm = _ones(shape.head_dim) if shape.head_norms else None
        self.key_norm = _ones(shape.head_dim) if shape.head_norms else None

    def weights(self, ops: Backend, bits: int | None) -> DecoderWeights:
        """The layer as ``ops`` reads it fastest."""
        shape = self.shape
        return DecoderWeights(
            norm_before=self.norm_before,
            eps_before=shape.eps,
            qkv=matrix_for(ops, self.qkv, bits),
            qkv_bias=self.qkv_bias,
            out=matrix_for(ops, self.out, bits),
            out_bias=self.out_bias,
            norm_after=self.norm_after,
            eps_after=shape.eps,
            gate_up=matrix_for(ops, self.gate_up, bits),
            gate_up_bias=self.gate_up_bias,
            down=matrix_for(ops, self.down, bits),
            down_bias=self.down_bias,
            norm_offset=0.0,
            heads=shape.heads,
            heads_kv=shape.heads_kv,
            head_dim=shape.head_dim,
            scaling=shape.head_dim**-0.5,
        )

    def head_norms(self) -> tuple[Tensor, Tensor] | None:
        """The norms of each query and each key, or None."""
        if self.query_norm is None or self.key_norm is None:
            return None
        return self.query_norm, self.key_norm


class Eagle3Head(nn.Module):
    """Predicts token t + 2 from token t + 1 and the target's states of token t (EAGLE-3, Li et al. 2503.01840).

    A *feature* [B, W, H] is what a layer reads beside a token: ``fused`` from the target's states, or the head's own
    result, which stands for states that the target has not computed yet. ``inverse`` float32 [d / 2] are the rotary's
    frequencies, ``magnitude`` the factor of its cos and sin. All arithmetic runs on ``ops``, when training as when
    drafting.

    Example::

        feature = head.fused(ops, states, weights)
        feature = head(ops, embedded, feature, head.turn(position, dtype), at, weights)
        logits = head.logits(ops, feature, weights)
    """

    inverse: Tensor

    def __init__(self, shape: Eagle3Shape, inverse: Tensor, magnitude: float = 1.0) -> None:
        super().__init__()
        self.shape, self.magnitude = shape, magnitude
        size, both = shape.hidden, shape.states * shape.state_size
        self.fusion = _matrix(size, both)
        self.fusion_norm = {"none": None, "all": _ones(both), "each": _ones(shape.states, shape.state_size)}[
            shape.fusion_norm
        ]
        self.token_norm = _ones(size)
        self.layers = nn.ModuleList([Eagle3Layer(shape, size if index else 2 * size) for index in range(shape.layers)])
        self.norm = _ones(size)
        self.output = _matrix(shape.vocabulary, size)
        self.register_buffer("inverse", inverse, persistent=False)

    def weights(self, ops: Backend, bits: int | None = None) -> Eagle3Weights:
        """The matrices as ``ops`` reads them fastest, rounded to codes of ``bits``; on the reference without a copy."""
        layers = [layer.weights(ops, bits) for layer in self.stack()]
        return Eagle3Weights(matrix_for(ops, self.fusion, bits), layers, matrix_for(ops, self.output, bits))

    def turn(self, position: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rotary's cos and sin [B, W, d] at positions [B, W]."""
        angle = position[..., None].float() * self.inverse
        angle = torch.cat([angle, angle], dim=-1)
        return (angle.cos() * self.magnitude).to(dtype), (angle.sin() * self.magnitude).to(dtype)

    def fused(self, ops: Backend, states: Tensor, weights: Eagle3Weights) -> Tensor:
        """The feature of the target's states [B, W, n, H]."""
        if self.fusion_norm is not None:
            parts = [states.flatten(-2)] if self.shape.fusion_norm == "all" else list(states.unbind(-2))
            gains = self.fusion_norm.view(len(parts), -1)
            normed = [
                ops.rms_norm(part.contiguous(), gain, self.shape.eps, 0.0)
                for part, gain in zip(parts, gains, strict=True)
            ]
            return ops.linear(torch.cat(normed, dim=-1), weights.fusion, None)
        return ops.linear(states.flatten(-2), weights.fusion, None)

    def forward(
        self,
        ops: Backend,
        embedded: Tensor,
        feature: Tensor,
        turn: tuple[Tensor, Tensor],
        at: Sequence[Cells],
        weights: Eagle3Weights,
    ) -> Tensor:
        """The head's own feature [B, W, H] of the next tokens; ``embedded`` [B, W, H] are the embeddings of these.

        In place: the cells of ``at``, one for each layer.
        """
        eps, [first, *further] = self.shape.eps, self.stack()
        normed = ops.rms_norm(feature, first.norm_before, eps, 0.0)
        pair = torch.cat([ops.rms_norm(embedded, self.token_norm, eps, 0.0), normed], dim=-1)
        x = normed if self.shape.norm_before_residual else feature
        x = decode_after_norm(ops, x, pair, weights.layers[0], turn, at[0], first.head_norms())
        for layer, matrices, cells in zip(further, weights.layers[1:], at[1:], strict=True):
            if layer.head_norms() is None:
                x = ops.decoder_layers(x, [matrices], turn, [cells])
            else:
                normed = ops.rms_norm(x, layer.norm_before, eps, 0.0)
                x = decode_after_norm(ops, x, normed, matrices, turn, cells, layer.head_norms())
        return ops.rms_norm(x, self.norm, eps, 0.0) if self.shape.norm_output else x

    def logits(self, ops: Backend, feature: Tensor, weights: Eagle3Weights) -> Tensor:
        """Logits float32 [..., D] over the head's vocabulary, of its own feature [..., H]."""
        if not self.shape.norm_output:
            feature = ops.rms_norm(feature, self.norm, self.shape.eps, 0.0)
        return ops.linear(feature, weights.output, None).float()

    def stack(self) -> list[Eagle3Layer]:
        """The layers, the one that reads a token's embedding first."""
        return list(self.layers)  # type: ignore[arg-type]  # a ModuleList does not say of what


def _matrix(outputs: int, inputs: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(outputs, inputs) * 0.02)


def _zeros(size: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(size))


def _ones(*sizes: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(sizes))
