"""medusa: several heads on the last hidden state; each predicts one token further."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated

import torch
from torch import Tensor

from specdec import Context, Draft, Request, SpecdecError, Verdict, Window, hookimpl
from specdec.errors import unknown
from specdec.interfaces import DraftFactory, Env
from specdec.request import SamplingParams
from specdec.runtime import addresses
from specdec.sharding import whole_weight
from specdec_plugins.chain import Chain
from specdec_plugins.growth import Growth
from specdec_plugins.heads import files
from specdec_plugins.heads.medusa_heads import MedusaBlocks
from specdec_plugins.published import read_for
from specdec_plugins.published.medusa import FORM
from specdec_plugins.published.reading import Published, Reading
from specdec_plugins.reduced import Reduced

INITS = ("tie", "copy", "random")


def untrained(env: Env, count: int, init: str) -> MedusaBlocks:
    """Heads without training: h + silu(W h), read by the target's head or by a matrix like it.

    ``tie`` shares the target's head and ``copy`` owns a copy of it, both with W = 0, so that every head gives the
    target's logits for the pending token; ``random`` draws W and the head from the seed.
    """
    output: Tensor = whole_weight(env.target.model.get_output_embeddings())
    size = output.shape[1]
    generator = torch.Generator().manual_seed(env.seed)

    def drawn(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator) / math.sqrt(size)).to(output.device, output.dtype)

    blocks = drawn(count, 1, size, size) if init == "random" else output.new_zeros(count, 1, size, size)
    rows = None if init == "tie" else drawn(*output.shape) if init == "random" else output.detach().clone()
    return MedusaBlocks(blocks, None, rows, None)


class EachRows(Reduced):
    """Rows [N, D, H] of N heads, of which those of head n read the states of head n."""

    def __init__(self, env: Env, ids: Tensor, rows: Tensor) -> None:
        super().__init__(env, ids)
        self.read_with(rows[0])
        self._others: list[Reduced] = []
        for part in rows[1:]:
            self._others.append(Reduced(env, ids))
            self._others[-1].read_with(part)
        self.weight_bytes = rows.nbytes

    def logits(self, state: Tensor) -> Tensor:
        """Logits float32 [B, n, D] of the states [B, n, H] of the first n heads."""
        others = zip(self._others, state.unbind(dim=-2)[1:], strict=False)
        return torch.stack([super().logits(state[..., 0, :]), *(one.logits(part) for one, part in others)], dim=-2)


class Medusa(Draft):
    """N heads predict tokens t + 2 … t + N + 1 from hidden state t, all at once (Cai et al. 2401.10774).

    ``head_init`` selects untrained heads (tie, copy, random: almost never accepted) or trained heads (``trained``:
    shipped for the embedded target; or a file), which also see the pending token; ``head`` reads heads that others
    published, which do not. Proposals are at most N tokens deep. With ``beam`` above 1, the likeliest paths of the
    heads' Cartesian product form a tree of K nodes; each step computes a new sparse pattern from the heads'
    probabilities.

    Source: Medusa, Cai et al. 2401.10774, sections 2.1 and 2.3; the token as input, Hydra, Ankner et al. 2402.05109.

    Example: ``medusa(num_heads=4, head_init=tie)``
    """

    needs_hidden = True

    def __init__(
        self,
        env: Env,
        num_heads: Annotated[int | None, "number of heads, and so the largest depth; default: a file's, else 4"] = None,
        head_init: Annotated[str, "tie, copy, random; trained: the shipped heads; or a file of heads"] = "tie",
        temperature: Annotated[float, "divides the heads' logits before the request's own temperature"] = 1.0,
        top_p: Annotated[float, "a head draws only from its likeliest tokens up to this mass; 1 is off"] = 1.0,
        beam: Annotated[int, "likeliest tokens of a head that are combined; 1 is a chain, more a tree"] = 1,
        least: Annotated[float, "smallest probability, by the heads, of a tree's node"] = 0.0,
        head: Annotated[str, "folder or file of published heads, in place of head_init"] = "",
        final: Annotated[str, "published: the target's states before or after its last norm; default: after"] = "",
        pickle: Annotated[bool, "published: read a pickle, its weights alone"] = False,
    ) -> None:
        if (num_heads is not None and num_heads < 1) or beam < 1 or not 0 <= least < 1:
            raise SpecdecError(
                f"medusa was given num_heads={num_heads}, beam={beam}, least={least}; expected num_heads and beam "
                "1 or more, least from 0 to below 1"
            )
        SamplingParams(temperature=temperature or -1.0, top_p=top_p)  # refuses invalid values
        self._ops, self._embed = env.ops, env.target.model.get_input_embeddings()
        self._temperature, self._top_p, self._beam, self._least = temperature, top_p, beam, least
        self.branches = beam > 1
        self._alone: MedusaBlocks | None = None
        before = False
        if head:
            found = _published(env, head, Reading.of(final=final), pickle)
            self._alone, before = found.head, found.reading.final == "before"
            most = len(self._alone.blocks)
        elif head_init in INITS:
            most = num_heads or 4
            self._alone = untrained(env, most, head_init)
        elif head_init == "trained" or head_init.endswith(".safetensors"):
            self._heads, ids = files.load_medusa(head_init, env.target)
            self._reduced, most = Reduced(env, ids), self._heads.count
            self._weights = self._heads.weights(env.ops)
            self.small_ops = True  # the products are the backend's, while those of heads alone are torch's
        else:
            raise unknown("head_init", head_init, (*INITS, "trained"), "Or name a .safetensors file of heads.")
        if num_heads is not None and num_heads > most:
            raise SpecdecError(f"num_heads is {num_heads}; {head or head_init!r} has {most}")
        if before:
            self.needs_hidden, self.hidden_layers = False, (len(env.target.layers) - 1,)
        self._count = num_heads or most
        if self._alone is not None:
            self._reduced = _rows_of(env, self._alone)
        weights = self._heads.named_parameters() if self._alone is None else self._alone.named_parameters()
        own = sum(weight.nbytes for name, weight in weights if name != "rows")
        self.weight_bytes = own + self._reduced.weight_bytes
        self._forwards, self._runtime = 0, env.runtime
        size = self._embed.weight.shape[1]
        self._hidden = torch.zeros(env.max_rows, size, dtype=env.target.dtype, device=env.target.device)

    def admit(self, row: int, request: Request, prompt: tuple[int, ...]) -> None:
        """Set the hidden state to 0."""
        self._hidden[row] = 0

    def keep(self, row: int, tokens: tuple[int, ...]) -> object:
        """An empty marker: to resume needs no state, because the states of the last common tokens come again."""
        return ()

    def move(self, source: int, row: int, request: Request, tokens: tuple[int, ...]) -> None:
        """Move the hidden state with the request."""
        self._hidden[row] = self._hidden[source]

    def prefilled(self, row: int, tokens: Tensor, start: int, hidden: Tensor) -> None:
        """Store the last hidden state of a chunk of the prompt."""
        self._hidden[row] = hidden[0, -1].flatten()

    def propose(self, context: Context) -> Window:
        """Run all heads at once; propose a chain of their choices, or the likeliest paths of their product."""
        most = int(context.max_proposals_host.max())
        self._forwards += 1
        return self._runtime.steps((self, context.kind, most)).part(self._drafted, context, most)

    def _drafted(self, context: Context, most: int) -> Window:
        k, hidden = min(most, self._count), self._hidden[: context.rows]
        if self._alone is None:
            states = self._heads(self._ops, self._embed(context.pending), hidden, self._weights)
        else:
            states = self._alone(hidden)
        if self.branches:
            distribution = self._reduced.distribution(context, states[:, :k], torch.arange(k, device=states.device))
            growth = Growth(distribution[:, 0], self._reduced.ids, self._beam)
            for depth in range(1, k):
                growth.expand(distribution[:, depth : depth + 1].expand(-1, self._beam, -1))
            return growth.window(context, most, self._least)
        chain = Chain(context, self._reduced.vocabulary, self._reduced.ids)
        logits = self._warped(self._reduced.logits(states[:, :k]))
        for depth in range(k):
            chain.propose(logits[:, depth : depth + 1])
        return chain.window()

    def _warped(self, logits: Tensor) -> Tensor:
        logits = logits / self._temperature
        if self._top_p < 1:
            ordered, order = logits.sort(dim=-1, descending=True)
            distribution = ordered.softmax(dim=-1)
            beyond = distribution.cumsum(dim=-1) - distribution >= self._top_p
            logits = logits.scatter(-1, order, ordered.masked_fill(beyond, float("-inf")))
        return logits

    def observe(self, window: Window, verdict: Verdict, hidden: Tensor | None, own: bool) -> None:
        """Store the hidden state of the last accepted slot."""
        assert hidden is not None
        kind = self, "observe", addresses(verdict.path, verdict.num_accepted, hidden)
        self._runtime.steps(kind).part(self._stored, verdict, hidden)

    def _stored(self, verdict: Verdict, hidden: Tensor) -> None:
        self._hidden[: len(verdict.next)] = verdict.last(hidden).flatten(1)

    def info(self) -> Mapping[str, int]:
        """Forwards of all heads at once, one for each window."""
        return {"draft_forwards": self._forwards}


def _published(env: Env, path: str, reading: Reading, pickle: bool) -> Published[MedusaBlocks]:
    """Heads that others published, on the target's device and in its dtype."""
    found = read_for(FORM, path, env.target, reading, pickle)
    found.head.place(env.target.device, env.target.dtype)
    return found


def _rows_of(env: Env, heads: MedusaBlocks) -> Reduced:
    """What reads tokens from the results of heads over the hidden state alone."""
    target, ids = env.target, heads.ids
    rows: Tensor = whole_weight(target.model.get_output_embeddings()) if heads.rows is None else heads.rows
    if ids is None:
        ids = torch.arange(target.vocabulary, device=target.device)
    elif heads.rows is None:
        rows = rows[ids]
    if rows.dim() == 3:
        return EachRows(env, ids, rows)
    reduced = Reduced(env, ids)
    reduced.read_with(rows)
    return reduced


@hookimpl
def specdec_register_drafts(register: Callable[[str, DraftFactory | str], None]) -> None:
    """Register ``medusa``, and ``medusa_lite`` for ``medusa(head_init=tie)``."""
    register("medusa", Medusa)
    register("medusa_lite", "medusa(head_init=tie)")
