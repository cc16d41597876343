"""The trial of a wrapped model: what it must show before its output may be believed.

**Two texts.** A text of 48 tokens in two chunks of prefill and a window, beside a shorter one that goes on in two
branches of a tree, must give the logits of the unmodified model.

**The rules of the layers.** Windows and chunks are of thousands of tokens, and no text of that length is run. The model
is run once with an attention that is given no mask but the rule from which transformers makes it, a function of two
positions. The rule of each layer must be the arena's, up to 2¹⁷ tokens.

**Tables of positions.** A table that counts a forward's tokens instead of reading ``position_ids`` reads the plan's.

**Its own steps.** A recurrent model goes on token by token from its own cache, and these are the logits that it must
give over the arena: the steps of some are not what their forward of a whole text computes (transformers' Nemotron-H and
Zamba 2 limit the length of time steps in the latter alone). A model whose layers attend more than once must have equal
ones, since their cache may hold the keys of one call alone.

The trial cannot see a rule that a model applies by itself, without transformers' masks, after 48 tokens and nowhere in
its configuration; ``specdec.layers.position_limit`` has the lengths at which rotary frequencies change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from inspect import signature
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from specdec.arena import LayerShape
from specdec.devices import is_half
from specdec.messages import Window
from specdec.recurrent import StateCache
from specdec.running import attending_layer, running
from specdec.states import StateKey, StateShape

if TYPE_CHECKING:
    from specdec.model import ArenaModel

LENGTH = 48
"""Tokens of the longer text of a trial."""

SHORT = 5
"""Committed tokens of the shorter text."""

WIDTH = 8
"""Slots of the window of a trial."""

ALLOWED, ALLOWED_HALF = 1e-4, 0.1
"""Largest difference of a logit, as a share of the largest, in float32 and half precision."""

ALLOWED_RECURRENT = 3e-4
"""The same of recurrent models in float32: of gated delta nets with random weights some round by 8e-5."""

FURTHEST = 1 << 17
"""Positions up to which the rules of layers are compared."""

GIVEN = ("position_ids", "s_aux")
"""Tensors beside queries, keys, values and masks that the arena's attention reads or has no need of."""

WATCHED = "specdec_watched"
"""The name of the attention that is given rules."""

Rule = Callable[[int, int, Tensor, Tensor], Tensor]
"""Whether a query sees a key: (row, head, position of the query, position of the key), as transformers has it."""


@dataclass(frozen=True)
class AttentionCall:
    """One call of a model's attention: its layer, the heads and size of its keys and values, and the layer's rule.

    ``layer`` is None where no module says it, ``rule`` where every earlier token is seen. ``strange``: what the arena's
    attention would not be given.
    """

    layer: int | None
    heads: int
    head_dim: int
    rule: Rule | None
    strange: str


@dataclass(frozen=True)
class PositionTable:
    """An embedding that is read at ``first``, ``first + 1``, … by the first, second, … token of a forward."""

    module: nn.Module
    first: int


class _Indices(TorchFunctionMode):
    """Collects the indices with which embeddings are read while it is entered, by the id of their weights.

    Without ``products``, each product with a matrix of weights is zeros: they are most of the time of a forward.
    """

    def __init__(self, products: bool = True) -> None:
        super().__init__()
        self._read: dict[int, Tensor] = {}
        self._products = products

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.embedding and len(args) > 1:
            self._read[id(args[1])] = args[0]
        if func is functional.linear and not self._products:
            states, weight = args[:2]
            return states.new_zeros(*states.shape[:-1], weight.shape[0])
        return func(*args, **(kwargs or {}))

    def first(self, weight: Tensor, start: int) -> int | None:
        """Where tokens begin that read consecutive rows, less ``start``; None if they read others, or the same row."""
        index = self._read.get(id(weight))
        if index is None or index.dim() == 0 or index.shape[-1] < 2 or index.is_floating_point():
            return None
        line = index.reshape(-1, index.shape[-1])
        steps = line - torch.arange(line.shape[1], device=line.device)
        first = int(steps[0, 0]) - start
        return first if bool((steps == steps[0, 0]).all()) and first >= 0 else None


@dataclass
class WatchedAttention:
    """What was seen of a model: its attention's calls, its recurrent layers' states, what its embeddings are read with,
    its tables that ignore ``position_ids``, and why it is refused.

    ``refusal`` is empty if nothing was found; ``guess`` is the likely reason if its logits turn out to be others.
    """

    calls: list[AttentionCall] = field(default_factory=list)
    states: dict[StateKey, StateShape] = field(default_factory=dict)
    indices: _Indices = field(default_factory=lambda: _Indices(products=False))
    tables: list[PositionTable] = field(default_factory=list)
    refusal: str = ""
    guess: str = ""

    @property
    def in_turn(self) -> bool:
        """Whether some layer attends more than once in a forward: each call then needs keys and values of its own."""
        return len({call.layer for call in self.calls}) < len(self.calls)

    def held(self, layers: Sequence[LayerShape]) -> list[LayerShape]:
        """What the arena is to hold: ``layers`` with the heads and sizes that were seen; ``in_turn`` a layer a call."""
        if self.in_turn:
            return [_of_call(layers[call.layer or 0], call) for call in self.calls]
        seen = {call.layer: call for call in self.calls}
        return [_of_call(shape, seen[n]) if n in seen else shape for n, shape in enumerate(layers)]


class ArenaTrial:
    """The texts of a trial and the unmodified model's logits of them.

    ``limit``: the model's number of positions, if it has one. ``recurrent``: its modules ask a cache for their states.
    Raises what the model's code raises.

    Example: ``trial = ArenaTrial(model, 512, False)``, then over the arena ``trial.differs(target)``
    """

    def __init__(self, model: PreTrainedModel, limit: int | None, recurrent: bool) -> None:
        self._length = LENGTH if limit is None else min(LENGTH, limit)
        self._width = min(WIDTH, self._length // 2)
        self._short = min(SHORT, self._length - self._width)
        device = next(model.parameters()).device
        self._texts = _ordinary(model, 2 * LENGTH).view(2, LENGTH)[:, : self._length]
        self._texts[1, : self._short + 1] = self._texts[0, : self._short + 1]  # the root of the tree and what is before
        half = (self._width - 1) // 2
        self._parents = [-1, *range(half), 0, *range(half + 1, self._width - 1)]
        sizes = half, self._width - 1 - half
        self._places = torch.tensor(
            [(0, self._short)] + [(text, self._short + slot) for text in (0, 1) for slot in range(1, sizes[text] + 1)],
            device=device,
        ).T
        self._recurrent = recurrent
        exact = ALLOWED_RECURRENT if recurrent else ALLOWED
        self._allowed = ALLOWED_HALF if is_half(model.dtype) else exact
        try:
            self._expected = self._by_steps(model) if recurrent else self._at_once(model)
        except ValueError:  # the first layers of LFM2 have no steps: a cache counts tokens in a layer that attends
            self._expected = self._at_once(model)

    def _at_once(self, model: PreTrainedModel) -> Tensor:
        """The unmodified model's logits of the window, float32 [2, W, V], by one forward of both texts."""
        slots = torch.arange(self._width, device=self._texts.device)
        asked = torch.cat([self._length - self._width + slots, self._short + slots])
        whole = "logits_to_keep" not in signature(model.forward).parameters  # a head may take half of the time
        with running(None), _Indices() as self._indices:
            logits = model(self._texts, use_cache=False, **({} if whole else {"logits_to_keep": asked})).logits
        chain, tree = (logits[:, asked] if whole else logits).split(self._width, dim=1)
        texts, positions = self._places
        return torch.stack([chain[0], tree[texts, positions - self._short]]).float()

    def _by_steps(self, model: PreTrainedModel) -> Tensor:
        """The same, each slot by a step of one token from the model's own cache."""
        chain = self._going_on(model, self._texts[:1], self._length - self._width, self._length)
        texts, positions = self._places
        tree = self._going_on(model, self._texts, self._short, self._short + self._width // 2 + 1)
        return torch.stack([chain[0], tree[texts, positions - self._short]]).float()

    def _going_on(self, model: PreTrainedModel, texts: Tensor, start: int, end: int) -> Tensor:
        position, steps = torch.arange(end, device=texts.device)[None], []
        with running(None):
            with _Indices() as self._indices:
                given = model(texts[:, :start], use_cache=True, position_ids=position[:, :start])
            for at in range(start, end):
                here = slice(at, at + 1)
                given = model(texts[:, here], cache=given.cache, use_cache=True, position_ids=position[:, here])
                steps.append(given.logits)
        return torch.cat(steps, dim=1)

    def watched(self, model: PreTrainedModel, layers: Sequence[LayerShape]) -> WatchedAttention:
        """Run the model, whose attention has become ``WATCHED``, for a few tokens that begin at a later position.

        ``layers``: what its configuration says. Nothing is changed.
        """
        start, width = 3, min(3, self._width)
        found = watched_forward(model, self._texts[:1, :width], start, self._recurrent)
        if found.guess:
            return found
        for module in model.modules():
            if isinstance(module, nn.Embedding) and (first := self._indices.first(module.weight, 0)) is not None:
                if (other := found.indices.first(module.weight, start)) is None:
                    found.tables.append(PositionTable(module, first))
                elif other != first:
                    found.refusal = (
                        f"its forward counts positions from {first}, and with position_ids, which generate gives it, "
                        f"from {other}"
                    )
        attends = {number for number, shape in enumerate(layers) if shape.heads}
        missing = attends - {call.layer for call in found.calls}
        if missing and not found.in_turn:
            found.guess = (
                f"{len(missing)} of its {len(attends)} attention layers attend in code of their own, "
                "not through transformers' AttentionInterface"
            )
        elif strange := sorted({call.strange for call in found.calls if call.strange}):
            found.guess = f"its attention takes {', '.join(strange)}"
        else:
            found.refusal = found.refusal or _unruly(found.calls, layers)
        return found

    def steps_differ(self, model: PreTrainedModel) -> str:
        """How the unmodified model's own steps differ from its forward of a whole text, in words; empty if not."""
        share = self._share(self._by_steps(model))
        if share <= self._allowed:
            return ""
        return f"its own cache gives other logits token by token than the whole text has, by {share:.1g} of the largest"

    def _share(self, logits: Tensor) -> float:
        return float((logits - self._expected).abs().max() / self._expected.abs().max())

    def differs(self, target: ArenaModel) -> str:
        """How the logits over the arena differ from the unmodified model's, in words; empty if they do not."""
        if not bool(self._expected.isfinite().all()):
            return "the unmodified model's logits are NaN or infinite"
        prefix = self._length - self._width
        arena = target.arena(2, self._length, self._length)
        device = self._texts.device
        chain = torch.arange(-1, self._width - 1, device=device)
        window = Window(
            torch.stack([self._texts[0, prefix:], self._texts[tuple(self._places)]]),
            torch.stack([chain, torch.tensor(self._parents, device=device)]),
            torch.full((2,), self._width, device=device),
        )
        try:
            # Each forward is correct only if it reads the keys and values, or the states, that those before it wrote.
            # The second chunk is short, because a state may be forgotten within a few tokens.
            ends = sorted({0, max(prefix - 3, 0), prefix})
            for start, end in pairwise(ends):
                target.extend(arena, self._texts[:1, start:end], 0, start)
            target.extend(arena, self._texts[1:, : self._short], 1, 0)
            after = target.forward(arena, window, slice(0, 2), prefix)[0].float()
        except Exception as error:  # whatever the model's code raises
            return in_short(error)
        return "" if self._share(after) <= self._allowed else "its logits over the arena are not its own"


def watched_forward(model: PreTrainedModel, tokens: Tensor, start: int, recurrent: bool) -> WatchedAttention:
    """What a model, whose attention is ``WATCHED``, asks of it and of a cache for states in one forward.

    ``tokens`` int64 [1, W] are at the positions from ``start`` on; products are zeros. ``guess`` says what the model's
    code raised, if it did.
    """
    found, cache = WatchedAttention(), StateCache()
    position = torch.arange(start, start + tokens.shape[1], device=tokens.device)[None]
    with running(None), _watching(found.calls), _Indices(products=False) as found.indices:
        try:
            model(tokens, use_cache=False, position_ids=position, **({"cache": cache} if recurrent else {}))
        except Exception as error:  # whatever its code raises; the texts decide
            return WatchedAttention(guess=in_short(error))
    found.states = cache.shapes()
    return found


def _ordinary(model: PreTrainedModel, count: int) -> Tensor:
    """``count`` tokens that are no padding, to which some give no position, and whose rows of the embedding are finite.

    From all over the vocabulary: its first ids are control tokens, after which rounding alone changed the logits of
    SmolLM2 in bfloat16 by a fifth.
    """
    config, table = model.config.get_text_config(decoder=True), model.get_input_embeddings()
    ids = torch.arange(1, 2 * count + 1, device=table.weight.device) * 7919 % config.vocab_size
    padding = getattr(config, "pad_token_id", None)
    ordinary = table(ids).isfinite().all(-1) & (ids != (-1 if padding is None else padding))
    first = ordinary.argsort(descending=True, stable=True)
    tokens: Tensor = ids[first[torch.arange(count, device=ids.device) % ordinary.sum().clamp(min=1)]]
    return tokens


def in_short(error: Exception) -> str:
    """The kind of an exception and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _of_call(shape: LayerShape, call: AttentionCall) -> LayerShape:
    return replace(shape, heads=call.heads, head_dim=call.head_dim)


def _unruly(calls: Sequence[AttentionCall], layers: Sequence[LayerShape]) -> str:
    """How the rule of a layer differs from the arena's, in words; empty if none does."""
    for call in calls:
        shape = layers[call.layer or 0]
        if (found := _unlike(call.rule, shape, layers)) is not None:
            query, key, seen = found
            what = "chunks of " if shape.chunked else "the last " if shape.span else "every earlier "
            return (
                f"by its configuration a token of layer {call.layer} sees {what}{shape.span or 'token'}"
                f"{' tokens' if shape.span else ''}, and by its mask token {query} "
                f"{'sees' if seen else 'does not see'} token {key}"
            )
    return ""


def _unlike(rule: Rule | None, shape: LayerShape, layers: Sequence[LayerShape]) -> tuple[int, int, bool] | None:
    """A query and a key of which ``rule`` says another thing than the arena, and what it says; None if there is none.

    Compared around each power of two and each span.
    """
    span = shape.span
    marks = {1 << power for power in range(FURTHEST.bit_length())} | {one.span for one in layers if one.span}
    near = torch.tensor(sorted({max(mark + step, 0) for mark in marks for step in (-1, 0, 1)} | {0}))
    query = torch.cat([near, 3 * near[near < FURTHEST // 3]])[:, None]
    key = torch.cat([query - near, query + 1], dim=1).clamp(min=0)
    expected = key <= query
    if span is not None:
        expected &= query // span == key // span if shape.chunked else query - key < span
    try:
        got = key <= query if rule is None else rule(0, 0, query, key).expand_as(expected)
    except Exception:  # a rule that is no function of positions alone: the texts decide
        return None
    if bool((got == expected).all()):
        return None
    row, column = (int(place[0]) for place in (got != expected).nonzero(as_tuple=True))
    return int(query[row, 0]), int(key[row, column]), bool(got[row, column])


_CALLS: ContextVar[list[AttentionCall]] = ContextVar("specdec_calls")


@contextmanager
def _watching(calls: list[AttentionCall]) -> Iterator[None]:
    token = _CALLS.set(calls)
    try:
        yield
    finally:
        _CALLS.reset(token)


def _watched_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
) -> tuple[Tensor, None]:
    rule = getattr(attention_mask, "specdec_rule", None)
    layer = attending_layer()
    if layer is None:
        layer = getattr(module, "layer_idx", None)
    taken = sorted(name for name, value in given.items() if isinstance(value, Tensor) and name not in GIVEN)
    taken += ["masks that its layers make"] if attention_mask is not None and rule is None else []
    strange = ", ".join(taken)
    _CALLS.get().append(AttentionCall(layer, key.shape[1], max(key.shape[-1], value.shape[-1]), rule, strange))
    batch, heads, width, _ = query.shape
    return query.new_zeros(batch, width, heads, value.shape[-1]), None


def _rule_as_mask(*_: Any, batch_size: int, mask_function: Rule, **given: Any) -> Tensor:
    """A mask of ones that carries the rule. transformers 5.17 to 5.24 give the sizes by these names."""
    mask = torch.ones(batch_size, 1, given["q_length"], given["kv_length"], dtype=torch.bool)
    mask.specdec_rule = mask_function  # type: ignore[attr-defined]
    return mask


AttentionInterface.register(WATCHED, _watched_attention)
AttentionMaskInterface.register(WATCHED, _rule_as_mask)
