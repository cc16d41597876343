"""DFlash's network: layers whose keys and values are the target's states, and a block of masks that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from specdec.arena import LayerShape, Plan
from specdec.decoder import Cells
from specdec.interfaces import Backend
from specdec.packed import Weight
from specdec_plugins.heads.rounding import matrix_for


@dataclass(frozen=True)
class BlockShape:
    """Sizes of the network, and which tokens a slot of its block sees.

    ``taps``: how many of the target's states are fused. ``block``: slots that one forward computes, the pending token
    first. ``windows``: for each layer the tokens of the text that it sees before the block, 0 for all. ``anchored``:
    they are counted back from the block's first slot, else from each slot, which then is one of them. ``ahead``: in a
    layer with a window, whether a slot sees those after it; without one it always does. ``from_first``: whether the
    first slot's state is that of the first proposal; else its second slot's is.
    """

    hidden: int
    intermediate: int
    heads: int
    heads_kv: int
    head_dim: int
    eps: float
    taps: int
    block: int
    windows: tuple[int, ...]
    anchored: bool = True
    ahead: bool = False
    from_first: bool = False

    @property
    def proposals(self) -> int:
        """The most proposals of one forward."""
        return self.block if self.from_first else self.block - 1

    def spans(self) -> list[LayerShape]:
        """The layers' keys and values, for an arena."""
        reach = [window + self.anchored if window else None for window in self.windows]
        return [LayerShape(self.heads_kv, self.head_dim, span) for span in reach]


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """The matrices as a backend reads them fastest; ``texts`` makes all layers' keys, then all their values."""

    enter: Weight
    texts: Weight
    layers: tuple[tuple[Weight, Weight, Weight, Weight], ...]

    @property
    def matrices(self) -> list[Weight]:
        """All of them, of which a forward of the block and the entries of a text read each once."""
        return [self.enter, self.texts, *(matrix for layer in self.layers for matrix in layer)]


class BlockLayer(nn.Module):
    """One layer's parameters, a layer of Qwen3's kind; its biases are None if the head has none."""

    qkv_bias: Tensor | None
    out_bias: Tensor | None

    def __init__(self, shape: BlockShape, bias: bool) -> None:
        super().__init__()
        size, inner = shape.hidden, shape.heads * shape.head_dim
        both = inner + 2 * shape.heads_kv * shape.head_dim

        def empty(*sizes: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*sizes), requires_grad=False)

        self.norm_before, self.norm_after = empty(size), empty(size)
        self.norm_query, self.norm_keys = empty(shape.head_dim), empty(shape.head_dim)
        self.qkv, self.out = empty(both, size), empty(size, inner)
        self.gate_up, self.down = empty(2 * shape.intermediate, size), empty(size, shape.intermediate)
        self.qkv_bias, self.out_bias = (empty(both), empty(size)) if bias else (None, None)

    def weights(self, ops: Backend, bits: int | None) -> tuple[Weight, Weight, Weight, Weight]:
        """The matrices ``qkv``, ``out``, ``gate_up`` and ``down``: see ``DFlashHead.weights``."""
        qkv, out, gate_up, down = (
            matrix_for(ops, matrix, bits) for matrix in (self.qkv, self.out, self.gate_up, self.down)
        )
        return qkv, out, gate_up, down


class DFlashHead(nn.Module):
    """States of a whole block at once, from the target's states of the text before it (DFlash, 2602.06036).

    In each layer the text's keys and values are products of its fused states, those of the block are products of the
    block's own; the text itself is never computed. ``inverse`` [d / 2] are the rotary's frequencies, and ``magnitude``
    is the factor of its cos and sin. ``embedding`` [V, H] and ``rows`` [D, H] are its own embeddings and the rows from
    which it reads tokens, None for the target's; ``mask`` is the token of every slot but the first, and ``ids``
    int64 [D] are the target's ids of its tokens, None for all of them. ``masked`` [H] is the embedding of ``mask`` in
    training, where embeddings come without their tokens; else None.
    """

    embedding: Tensor | None
    rows: Tensor | None
    ids: Tensor | None
    masked: Tensor | None
    inverse: Tensor

    def __init__(
        self, shape: BlockShape, mask: int, inverse: Tensor, magnitude: float = 1.0, bias: bool = False
    ) -> None:
        super().__init__()
        self.shape, self.mask, self.magnitude = shape, mask, magnitude
        self.register_buffer("inverse", inverse, persistent=False)
        for name in ("embedding", "rows", "ids"):
            self.register_buffer(name, None)
        self.register_buffer("masked", None, persistent=False)
        self.enter = nn.Parameter(torch.empty(shape.hidden, shape.taps * shape.hidden), requires_grad=False)
        self.norm_enter = nn.Parameter(torch.empty(shape.hidden), requires_grad=False)
        self.norm = nn.Parameter(torch.empty(shape.hidden), requires_grad=False)
        self.layers = nn.ModuleList(BlockLayer(shape, bias) for _ in shape.windows)

    def weights(self, ops: Backend, bits: int | None = None) -> BlockWeights:
        """The matrices in the form that ``ops`` reads fastest, rounded to codes of ``bits`` unless that is None."""
        layers = self.block_layers()
        inner, size = self.shape.heads * self.shape.head_dim, self.shape.heads_kv * self.shape.head_dim
        keys = [layer.qkv[inner : inner + size] for layer in layers]
        values = [layer.qkv[inner + size :] for layer in layers]
        # A row is rounded by itself, in whatever matrix it lies: the text's keys and values are the block's.
        texts = matrix_for(ops, torch.cat([*keys, *values]), bits)
        return BlockWeights(matrix_for(ops, self.enter, bits), texts, tuple(one.weights(ops, bits) for one in layers))

    def turn(self, position: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The rotary's cos and sin [B, W, d] at positions [B, W]."""
        angle = position[..., None].float() * self.inverse
        angle = torch.cat([angle, angle], dim=-1)
        return (angle.cos() * self.magnitude).to(dtype), (angle.sin() * self.magnitude).to(dtype)

    def enter_text(self, ops: Backend, states: Tensor, plan: Plan, weights: BlockWeights) -> None:
        """Write the keys and values of ``entries`` to the cells of ``plan``."""
        for i, (keys, values) in enumerate(self.entries(ops, states, plan.position, weights)):
            at = plan.at(i)
            ops.kv_append(at.keys, at.values, keys, values, at.cells)

    def entries(
        self, ops: Backend, states: Tensor, position: Tensor, weights: BlockWeights
    ) -> list[tuple[Tensor, Tensor]]:
        """For each layer the text's keys and values [B, heads_kv, W, d] at positions int64 [B, W].

        ``states`` [B, W, n H] are the target's, those of all its layers side by side.
        """
        shape, layers = self.shape, self.block_layers()
        count, heads = len(layers), shape.heads_kv
        fused = ops.rms_norm(ops.linear(states, weights.enter, None), self.norm_enter, shape.eps, 0.0)
        both = ops.linear(fused, weights.texts, self._bias_of_texts()).unflatten(-1, (2 * count, heads, shape.head_dim))
        keys = [ops.rms_norm(both[:, :, i], layer.norm_keys, shape.eps, 0.0) for i, layer in enumerate(layers)]
        joined = torch.cat(keys, dim=2).transpose(1, 2)
        turned, _ = ops.rotary(joined, joined[:, :1], *self.turn(position, states.dtype))
        return [(turned[:, i * heads : (i + 1) * heads], both[:, :, count + i].transpose(1, 2)) for i in range(count)]

    def cells(self, plan: Plan) -> list[Cells]:
        """For each layer the cells of a block, and what each of its slots sees of them and of the text before."""
        return [self._seen(plan, layer) for layer in range(len(self.shape.windows))]

    def forward(
        self, ops: Backend, embedded: Tensor, position: Tensor, at: Sequence[Cells], weights: BlockWeights
    ) -> Tensor:
        """States [B, block, H] behind the last norm, from the embeddings [B, block, H] of the pending token and masks.

        ``position`` int64 [B, block]. In place: the cells of ``at``, behind those of the text, for each layer.
        """
        turn, x = self.turn(position, embedded.dtype), embedded
        for layer, matrices, cells in zip(self.block_layers(), weights.layers, at, strict=True):
            x = self._layer(ops, x, layer, matrices, turn, cells)
        return ops.rms_norm(x, self.norm, self.shape.eps, 0.0)

    def _layer(
        self,
        ops: Backend,
        x: Tensor,
        layer: BlockLayer,
        weights: tuple[Weight, Weight, Weight, Weight],
        turn: tuple[Tensor, Tensor],
        at: Cells,
    ) -> Tensor:
        shape, (qkv, out, gate_up, down) = self.shape, weights
        eps, heads, last = shape.eps, shape.heads, shape.heads + shape.heads_kv
        normed = ops.rms_norm(x, layer.norm_before, eps, 0.0)
        both = ops.linear(normed, qkv, layer.qkv_bias).unflatten(-1, (last + shape.heads_kv, shape.head_dim))
        query = ops.rms_norm(both[:, :, :heads], layer.norm_query, eps, 0.0).transpose(1, 2)
        keys = ops.rms_norm(both[:, :, heads:last], layer.norm_keys, eps, 0.0).transpose(1, 2)
        query, keys = ops.rotary(query, keys, *turn)
        ops.kv_append(at.keys, at.values, keys, both[:, :, last:].transpose(1, 2), at.cells)
        seen = at.attend(ops, query, shape.head_dim**-0.5)
        x = x + ops.linear(seen.flatten(2), out, layer.out_bias)
        gate, up = ops.linear(ops.rms_norm(x, layer.norm_after, eps, 0.0), gate_up, None).chunk(2, dim=-1)
        return x + ops.linear(ops.silu_mul(gate, up), down, None)

    def _seen(self, plan: Plan, layer: int) -> Cells:
        """The cells of a layer, and what each slot of the block sees of them."""
        at, shape = plan.at(layer), self.shape
        # Of a chain the first slot sees furthest back, and the last one sees the whole block.
        mask = at.mask
        if shape.windows[layer] and shape.anchored:
            mask = torch.maximum(mask, mask[:, :, :1])
        if shape.ahead or not shape.windows[layer]:
            mask = torch.maximum(mask, at.mask[:, :, -1:])
        return replace(at, mask=mask)

    def _bias_of_texts(self) -> Tensor | None:
        inner, size = self.shape.heads * self.shape.head_dim, self.shape.heads_kv * self.shape.head_dim
        biases = [layer.qkv_bias for layer in self.block_layers() if layer.qkv_bias is not None]
        if not biases:
            return None
        return torch.cat([*(b[inner : inner + size] for b in biases), *(b[inner + size :] for b in biases)])

    def block_layers(self) -> Sequence[BlockLayer]:
        """The parameters of each layer."""
        return list(self.layers)  # type: ignore[arg-type]  # a ModuleList of these
