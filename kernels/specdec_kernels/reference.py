"""The reference backend: every op in plain torch, on any device. Its results define the ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec import acceptance, processors, sampling
from specdec.decoder import Cells, DecoderWeights, decode
from specdec.devices import is_half
from specdec.hookspecs import hookimpl
from specdec.interfaces import Backend, BackendFactory
from specdec.messages import Verdict, Window
from specdec.packed import Weight
from specdec.processors import StackedParams

PART = 1 << 20
"""Numbers of a matrix that are made float32 at once: 4 MiB."""


class Reference(Backend):
    """Plain torch. Another backend subclasses it and overrides the ops that it accelerates."""

    name = "reference"
    priority = 10
    row_invariant = frozenset(("kv_plan", "kv_append", "kv_compact", "rotary"))

    def takes(self, op: str, *tensors: Weight) -> bool:
        """Everything; a subclass takes only the ops that it overrides."""
        return type(self) is Reference or getattr(type(self), op) is not getattr(Reference, op)

    def process(self, logits: Tensor, params: StackedParams, paths: Tensor | None) -> Tensor:
        """Bias, penalties, bans, temperature, top-k, top-p and min-p, in this order."""
        return processors.process(logits, params, paths)

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """argmax_x logits[x] + Gumbel(key, x): a draw from softmax(logits) (Gumbel-max)."""
        if key is not None:
            logits = logits + sampling.gumbel(key, logits.shape[-1])
        return logits.max(dim=-1).indices

    def noise_keys(self, stream: Tensor, position: Tensor, draw: int | Tensor) -> Tensor:
        """``specdec.sampling.key`` for all purposes at once."""
        purposes = torch.arange(len(sampling.Purpose), device=position.device)
        return sampling.key(stream, position, purposes[:, None, None], draw)

    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        """Uniform(key) < probability, with 24-bit uniforms in [0, 1)."""
        return sampling.uniform(key) < probability

    def verify_prefix(self, window: Window, choices: Tensor) -> Verdict:
        """Walk from the root to the child that is the choice at its parent, as long as there is one.

        A node is good if it is valid, its token is ``choices`` at its parent and no elder sibling has the
        same token; it is on the path if it and all its ancestors are good.

        Example: tokens ``[[5, 6, 7]]`` as a chain and choices ``[[6, 9, 1]]`` give path ``[[0, 1, -1]]``,
        num_accepted ``[1]`` and next ``[9]``.
        """
        slots = torch.arange(window.tokens.shape[1], device=choices.device)
        chosen = choices.gather(1, window.parents.clamp(min=0))
        good = (window.tokens == chosen) & (slots < window.width[:, None])
        if slots.numel() > 1:
            twin = (window.parents[:, :, None] == window.parents[:, None, :]) & (
                window.tokens[:, :, None] == window.tokens[:, None, :]
            )
            good &= ~(twin & (slots < slots[:, None])).any(dim=2)
        good[:, 0] = True
        on_path = ~(window.ancestors & ~good[:, None, :]).any(dim=2)
        num_accepted = on_path.sum(dim=1) - 1
        # Depths on the path are distinct, so a scatter by depth orders its slots; all other slots go past the end.
        end = torch.where(on_path, window.depth, slots.numel())
        path = torch.full((len(choices), slots.numel() + 1), -1, dtype=torch.int64, device=choices.device)
        path = path.scatter(1, end, torch.where(on_path, slots, -1))[:, :-1]
        last = path.gather(1, num_accepted[:, None])
        return Verdict(path, num_accepted, choices.gather(1, last)[:, 0])

    def rejection_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """Accept x with probability min(1, p(x)/q(x)); at the first rejection draw from norm(max(p - q, 0)).

        After full acceptance the bonus token is drawn from p. Leviathan et al. 2211.17192, algorithm 1;
        Chen et al. 2302.01318. ``distribution`` is p [B, W, V]; ``window`` must be a chain; ``q=None`` means
        one-hot rows, whose residual is p without the proposal. A number of q that is not finite counts as 0.
        """
        proposals = window.tokens[:, 1:]
        slots = torch.arange(proposals.shape[1] + 1, device=distribution.device)
        p = distribution[:, :-1].gather(2, proposals[:, :, None])[:, :, 0]
        q = torch.ones_like(p) if window.q is None else window.q.gather(2, proposals[:, :, None])[:, :, 0]
        # A proposal with q(x) = 0 shows that q is wrong; it is never accepted, nor is one with NaN or infinity.
        ratio = torch.where(q > 0, p / q, 0.0)
        kept = self.accept(ratio, accept_key[:, :-1]) & (slots[1:] < window.width[:, None])
        num_accepted = kept.long().cumprod(dim=1).sum(dim=1)
        at = distribution.gather(1, num_accepted[:, None, None].expand(-1, 1, distribution.shape[2]))[:, 0]
        rejected = num_accepted < window.width - 1
        if proposals.shape[1]:
            column = num_accepted.clamp(max=proposals.shape[1] - 1)[:, None]
            if window.q is None:
                taken = torch.zeros_like(at).scatter(1, proposals.gather(1, column), 1.0)
            else:
                taken = window.q.gather(1, column[:, :, None].expand(-1, 1, distribution.shape[2]))[:, 0]
                taken = acceptance.finite(taken).to(at.dtype)
            residual = (at - taken).clamp(min=0)
            # If p == q up to rounding, the residual is empty; then the draw is from p.
            usable = rejected & (residual.sum(dim=1) > 0)
            at = torch.where(usable[:, None], residual, at)
        next_key = torch.where(rejected[:, None], residual_key, bonus_key).gather(1, num_accepted[:, None])
        drawn = self.sample(at.log()[:, None], next_key)[:, 0]
        path = torch.where(slots <= num_accepted[:, None], slots, -1)
        return Verdict(path, num_accepted, drawn)

    def block_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """Sun et al. 2403.10444, algorithm 2, from ``accept`` and ``sample``."""
        return acceptance.block_verdict(self, distribution, window, accept_key, residual_key, bonus_key)

    def tree_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """Miao et al. 2305.09781, algorithm 2, from ``accept`` and ``sample``."""
        return acceptance.tree_verdict(self, distribution, window, accept_key, residual_key, bonus_key)

    def emit(self, window: Window, verdict: Verdict, tokens: Tensor, length: Tensor) -> Tensor:
        """Accepted, then next, then garbage, which lies past the row's new length and is never read."""
        path = verdict.path
        step = torch.arange(path.shape[1], device=path.device)
        emitted = verdict.emitted(window)
        tokens.scatter_(1, length[:, None] + step, emitted)
        moved = ((path != step) & (path > 0)).sum(dim=1)
        counts = torch.stack([verdict.num_accepted, window.width - 1, window.deepest, moved], dim=1)
        return torch.cat([emitted, counts], dim=1)

    def kv_plan(
        self,
        window: Window,
        committed: Tensor,
        span: int | None,
        capacity: int,
        look: int,
        limit: int | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A position is committed plus depth, a cell is committed plus slot; a slot sees its past and its ancestors."""
        width, depth = window.tokens.shape[1], window.depth
        position = committed[:, None] + depth
        cells = (committed[:, None] + torch.arange(width, device=committed.device)) % capacity
        cell = torch.arange(look, device=committed.device)
        last = committed[:, None] - 1
        stored = last - (last - cell) % capacity  # the position in each cell; negative: none yet
        sees = (stored >= 0)[:, None, :].expand(-1, width, -1)
        slot = (cell - committed[:, None]) % capacity  # the slot that this forward writes to each cell
        written = (slot < width)[:, None, :]
        slot = slot.clamp(max=width - 1)[:, None, :].expand(-1, width, -1)
        if span is not None:
            sees = sees & (stored[:, None, :] > position[:, :, None] - span)
            near = position[:, :, None] - position[:, None, :] < span
            own = window.ancestors & near
        else:
            own = window.ancestors
        sees = torch.where(written, own.gather(2, slot), sees)
        mask = torch.zeros(sees.shape, dtype=dtype, device=sees.device)
        mask = mask.masked_fill_(~sees, float("-inf"))[:, None]
        return depth, position if limit is None else position.clamp(max=limit - 1), cells, mask

    def kv_append(self, keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, cells: Tensor) -> None:
        """Scatter W new keys and values of every row into their cells."""
        index = cells[:, None, :, None].expand_as(new_keys)
        keys.scatter_(2, index, new_keys)
        values.scatter_(2, index, new_values)

    def kv_compact(self, keys: Tensor, values: Tensor, source: Tensor, target: Tensor) -> None:
        """Gather the source cells, then scatter them into the target cells."""
        shape = (keys.shape[0], keys.shape[1], source.shape[1], keys.shape[3])
        pick = source[:, None, :, None].expand(shape)
        self.kv_append(keys, values, keys.gather(2, pick), values.gather(2, pick), target)

    def tree_attention(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        scaling: float,
        softcap: float | None,
        used: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """softmax(scaling · q kᵀ + mask) v with grouped heads; ``softcap`` c makes scores c · tanh(scores / c).

        Each of ``sinks`` is one more score of its head's softmax, whose weight is then left out.
        """
        if softcap is None and sinks is None:
            out = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, scale=scaling, enable_gqa=query.shape[1] != keys.shape[1]
            )
            return out.transpose(1, 2)
        rows, heads, width, size = query.shape
        groups = query.reshape(rows, keys.shape[1], -1, size)  # query heads of one key head side by side
        scores = torch.matmul(groups, keys.transpose(2, 3)).view(rows, heads, width, -1) * scaling
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        scores = scores + mask
        if sinks is not None:
            scores = torch.cat([scores, sinks.to(scores.dtype)[:, None, None].expand(rows, -1, width, 1)], dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)[..., : keys.shape[2]]
        out = torch.matmul(weights.reshape(rows, keys.shape[1], -1, keys.shape[2]), values)
        return out.view(rows, heads, width, size).transpose(1, 2)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool = False) -> Tensor:
        """torch's own product; weights and a bias of another dtype are first converted to x's dtype."""
        whole = weight.to(x.dtype) if isinstance(weight, Tensor) else weight.dequantise(x.dtype)
        if wide and is_half(x.dtype):
            return _unrounded(x, whole, bias)
        return F.linear(x, whole, None if bias is None else bias.to(x.dtype))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """Zhang & Sennrich 1910.07467, equation 4; ``offset`` is 1 in Gemma, 0 elsewhere."""
        wide = x if x.dtype == torch.float64 else x.float()
        unit = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (unit * (offset + weight.to(wide.dtype))).to(x.dtype)

    def rotary(self, query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Su et al. 2104.09864, in the halves layout of GPT-NeoX that transformers uses."""
        cos, sin = cos[:, None], sin[:, None]
        query, keys = (x * cos + _half(x) * sin for x in (query, keys))
        return query, keys

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """SwiGLU's product, Shazeer 2002.05202."""
        return F.silu(gate) * up

    def decoder_layers(
        self, x: Tensor, layers: Sequence[DecoderWeights], turn: tuple[Tensor, Tensor], at: Sequence[Cells]
    ) -> Tensor:
        """The composition of the ops above."""
        return decode(self, x, layers, turn, at)


def _unrounded(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + bias in float32, of half-precision numbers."""
    rows = x.reshape(-1, x.shape[-1])
    if x.is_cuda:
        out = torch.mm(rows, weight.t(), out_dtype=torch.float32)
    elif x.device.type != "cpu":
        out = rows.float() @ weight.float().t()
    else:
        # torch has no such product on a CPU. Some weights at a time are made float32, so that they stay in a cache.
        parts = weight.split(max(1, PART // weight.shape[1]))
        out = torch.cat([rows.float() @ part.float().t() for part in parts], dim=1)
    out = out if bias is None else out + bias.float()
    return out.view(*x.shape[:-1], len(weight))


def _half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


@hookimpl
def specdec_register_backends(register: Callable[[str, BackendFactory], None]) -> None:
    """Register ``reference``."""
    register("reference", Reference)
