"""Decoder layers of Llama's kind: their weights, and their computation from the other ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from specdec.packed import Weight

if TYPE_CHECKING:
    from specdec.interfaces import Backend


Join = Callable[[Tensor], Tensor] | None
"""What makes a whole output of a rank's part; None where the part is the whole."""


@dataclass(frozen=True, eq=False)
class DecoderWeights:
    """The weights of one layer.

    ``qkv`` [(heads + 2 heads_kv) d, H] maps an input to queries, keys and values, ``gate_up`` [2 N, H] to the
    two halves of a SwiGLU; a bias may be None. Norms and biases may be of another dtype than what they are applied to,
    which keeps its own. ``norm_offset`` is added to the weights of both norms. All four matrices
    are of one kind. ``join_out`` and ``join_down`` make the whole of what ``out`` and ``down`` give where they are cut
    over ranks (``specdec.sharding``): only ``decode`` calls them.
    """

    norm_before: Tensor
    eps_before: float
    qkv: Weight
    qkv_bias: Tensor | None
    out: Weight
    out_bias: Tensor | None
    norm_after: Tensor
    eps_after: float
    gate_up: Weight
    gate_up_bias: Tensor | None
    down: Weight
    down_bias: Tensor | None
    norm_offset: float
    heads: int
    heads_kv: int
    head_dim: int
    scaling: float
    join_out: Join = None
    join_down: Join = None

    def packed(self, ops: Backend) -> DecoderWeights:
        """The layer with its matrices as ``ops`` reads them fastest: see ``Backend.pack``."""
        pack = ops.pack
        return replace(self, qkv=pack(self.qkv), out=pack(self.out), gate_up=pack(self.gate_up), down=pack(self.down))


@dataclass(frozen=True)
class Cells:
    """A layer's keys and values [B, heads_kv, C, d], the cells int64 [B, W] that it writes, its mask [B, 1, W, L].

    ``used`` int64 [B]: no slot of a row sees a cell from there on; None: not known. ``width`` int64 [B]: the slots of
    each row that count, as ``Window.width``: what an op gives for the others means nothing; None: all of them.
    """

    keys: Tensor
    values: Tensor
    cells: Tensor
    mask: Tensor
    used: Tensor | None = None
    width: Tensor | None = None

    def attend(
        self,
        ops: Backend,
        query: Tensor,
        scaling: float,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attention of queries [B, heads, W, d] over the cells of the mask and ``sinks`` [heads]: [B, W, heads, d]."""
        length = self.mask.shape[-1]
        keys, values = self.keys[:, :, :length], self.values[:, :, :length]
        return ops.tree_attention(query, keys, values, self.mask, scaling, softcap, self.used, sinks)


def decode(
    ops: Backend, x: Tensor, layers: Sequence[DecoderWeights], turn: tuple[Tensor, Tensor], at: Sequence[Cells]
) -> Tensor:
    """The layers in order, op by op: x [B, W, H], ``turn`` the rotary's cos and sin. In place: the cells of ``at``."""
    for layer, cells in zip(layers, at, strict=True):
        x = _decode(ops, x, layer, turn, cells)
    return x


def _decode(ops: Backend, x: Tensor, layer: DecoderWeights, turn: tuple[Tensor, Tensor], at: Cells) -> Tensor:
    """h + mlp(norm(h)) with h = x + attention(norm(x))."""
    normed = ops.rms_norm(x, layer.norm_before, layer.eps_before, layer.norm_offset)
    return decode_after_norm(ops, x, normed, layer, turn, at)


def decode_after_norm(
    ops: Backend,
    x: Tensor,
    normed: Tensor,
    layer: DecoderWeights,
    turn: tuple[Tensor, Tensor],
    at: Cells,
    head_norms: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """A layer after its first norm: its attention reads ``normed``, of any size, and its residual is x [B, W, H].

    ``head_norms``: the weights [d] by which each query and each key is normed, if they are. In place: the cells of
    ``at``.
    """
    batch, width, _ = x.shape
    size, heads, heads_kv = layer.head_dim, layer.heads, layer.heads_kv
    both = ops.linear(normed, layer.qkv, layer.qkv_bias).view(batch, width, heads + 2 * heads_kv, size).transpose(1, 2)
    query, fresh = both[:, :heads], both[:, heads : heads + heads_kv]
    if head_norms is not None:
        query = ops.rms_norm(query.contiguous(), head_norms[0], layer.eps_before, layer.norm_offset)
        fresh = ops.rms_norm(fresh.contiguous(), head_norms[1], layer.eps_before, layer.norm_offset)
    query, fresh = ops.rotary(query, fresh, *turn)
    ops.kv_append(at.keys, at.values, fresh, both[:, heads + heads_kv :], at.cells)
    seen = at.attend(ops, query, layer.scaling)
    out = ops.linear(seen.reshape(batch, width, -1), layer.out, layer.out_bias)
    x = x + (layer.join_out(out) if layer.join_out else out)
    normed = ops.rms_norm(x, layer.norm_after, layer.eps_after, layer.norm_offset)
    gate, up = ops.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
    down = ops.linear(ops.silu_mul(gate, up), layer.down, layer.down_bias)
    return x + (layer.join_down(down) if layer.join_down else down)
