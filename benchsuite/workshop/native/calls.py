"""Calls of the Triton backend's methods at the shapes of real models, and what each must hand to its kernel.

This is the list to extend: a kernel that no call here launches fails the test "every kernel is compiled ahead". Tensors
hold whatever the memory held; nothing is computed with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec.decoder import Cells, DecoderWeights
from specdec.messages import Verdict, Window
from specdec.packed import Weight
from specdec.quantised import GROUP, Quantised

if TYPE_CHECKING:
    from benchsuite.workshop.native.stub_driver import Launched

Launches = Sequence["Launched"]
"""The launches of a call so far, in order; the last is the one that is looked at."""

Told = Mapping[str, object]
"""What parameters of a kernel must be, by name: see ``KernelCall``."""

FEW_DRAWS = 64
"""Up to so many draws, the vocabulary is cut into parts, which a second launch compares."""

FEW_ROWS = 16
"""Up to so many rows, layers run in six launches, and attention shares its cells among programs."""

SHARED_CELLS = 256
"""Cells of a program's share in attention."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model: the hidden state, query and key heads, numbers of a head, the inner state, the vocabulary."""

    name: str
    hidden: int
    heads: int
    heads_kv: int
    head_dim: int
    inner: int
    vocabulary: int


MODELS = (
    ModelShape("SmolLM2-135M", 576, 9, 3, 64, 1536, 49152),
    ModelShape("Llama-3-8B", 4096, 32, 8, 128, 14336, 128256),
)
"""Sizes from the two models' config.json."""


@dataclass(frozen=True)
class KernelStep:
    """Where an op is called: ``rows`` windows of ``width`` tokens that attend to ``cells``, in ``dtype``."""

    model: ModelShape
    rows: int = 1
    width: int = 5
    cells: int = 512
    dtype: torch.dtype = torch.bfloat16

    def floats(self, *shape: int) -> Tensor:
        """A tensor of the step's dtype."""
        return torch.empty(shape, dtype=self.dtype)

    def integers(self, *shape: int) -> Tensor:
        """An int64 tensor of zeros."""
        return torch.zeros(shape, dtype=torch.int64)


@dataclass(frozen=True)
class Scratch:
    """What a pointer of a kernel must be: a tensor of the method's own that overlaps no other of the launch.

    It holds ``numbers`` or more of ``dtype``, and is zero before the launch if ``zero``, as counters are.
    """

    numbers: int
    dtype: torch.dtype = torch.float32
    zero: bool = False


@dataclass(frozen=True)
class KernelLaunch:
    """One of a call's several launches: what is told of it beside what the call says, and ``kind`` for tables."""

    told: Told = field(default_factory=dict)
    kind: str = ""


@dataclass(frozen=True)
class KernelCall:
    """A call ``op(**given)`` of the backend, and what its kernels' parameters must be.

    A parameter of a kernel must be the argument of ``given`` with its name, or what ``told`` says under its name, or
    what ``each`` says of the launch: a tensor (its address), a number, a tuple of numbers, ``Scratch``, None for a
    pointer that this kind of call never reads, or a function that takes the ``Launches`` so far and returns one of
    these. The last of the three that names it counts. A pointer that none names must be that of a result, or of a
    tensor that another launch of the call has too. Strides need no word: see ``benchsuite.workshop.native.ahead``.

    ``each`` has one element for each launch, or is empty for a call of one. ``exact`` is the backend's option.
    """

    op: str
    kind: str
    given: Mapping[str, object]
    told: Told = field(default_factory=dict)
    each: Sequence[KernelLaunch] = ()
    exact: bool = False


def made_by(launch: int, name: str, seen: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> object:
    """Tell that a pointer is the one that an earlier launch has under ``name``, with the strides of ``seen`` of it.

    Example: ``{"winners": made_by(0, "winners")}``
    """

    def found(launches: Launches) -> Tensor:
        return seen(launches[launch].given[name])

    return found


def heads_of(step: KernelStep) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [B, heads, W, d] as a projection leaves them: views of one [B, W, …]."""
    model = step.model
    count = model.heads + 2 * model.heads_kv
    whole = step.floats(step.rows, step.width, count * model.head_dim)
    lines = whole.view(step.rows, step.width, count, model.head_dim).transpose(1, 2)
    query, keys, values = lines.split([model.heads, model.heads_kv, model.heads_kv], dim=1)
    return query, keys, values


def arena_of(step: KernelStep) -> tuple[Tensor, Tensor]:
    """Keys and values [B, heads, capacity, d] of the rows that are live, in an arena with room for one row more."""
    shape = step.rows + 1, step.model.heads_kv, 2 * step.cells, step.model.head_dim
    return step.floats(*shape)[: step.rows], step.floats(*shape)[: step.rows]


def _parts(launches: Launches) -> int:
    _, parts, _ = launches[0].grid
    return parts


def _share(vocabulary: int, launches: Launches) -> int:
    """Tokens of a part, if the parts are as equal as whole blocks of tokens can be."""
    block: int = launches[0].given["BLOCK"]
    return -(-vocabulary // (block * _parts(launches))) * block


def _contest(draws: int, rounds: int) -> dict[str, object]:
    """The best score and token of each part of a draw, for so many ``rounds`` of it."""
    return {
        "scores": lambda launches: Scratch(draws * rounds * _parts(launches)),
        "winners": lambda launches: Scratch(draws * rounds * _parts(launches), torch.int64),
    }


_PICK = KernelLaunch({"scores": made_by(0, "scores"), "winners": made_by(0, "winners"), "parts": _parts})


def _sample(step: KernelStep) -> Iterator[KernelCall]:
    vocabulary, draws = step.model.vocabulary, step.rows * step.width
    logits = torch.empty(step.rows, step.width, vocabulary)
    contest = _contest(draws, 1)
    told = {
        **{"width": step.width, "vocabulary": vocabulary},
        "sizes": lambda launches: (step.width, vocabulary, _share(vocabulary, launches)),
    }
    # Of one part alone, the winners are the result.
    each = [KernelLaunch(contest), _PICK] if draws <= FEW_DRAWS else [KernelLaunch({"scores": contest["scores"]})]
    for kind, key in (("noise", step.integers(step.rows, step.width)), ("greedy", None)):
        yield KernelCall("sample", kind, {"logits": logits, "key": key}, told, each)


def _noise_keys(step: KernelStep) -> Iterator[KernelCall]:
    shape = step.rows, step.width
    given = {"stream": step.integers(step.rows), "position": step.integers(*shape)}
    for kind, draw in (("", 2), ("draws of slots", step.integers(*shape))):
        yield KernelCall("noise_keys", kind, {**given, "draw": draw}, {"sizes": shape})


def _accept(step: KernelStep) -> Iterator[KernelCall]:
    shape = step.rows, step.width
    given = {"probability": torch.empty(shape), "key": step.integers(*shape)}
    yield KernelCall("accept", "", given, {"count": step.rows * step.width})


def _window(step: KernelStep, q: Tensor | None = None) -> tuple[Window, dict[str, object]]:
    tokens = step.integers(step.rows, step.width)
    window = Window.chain(tokens[:, 0], tokens[:, 1:], tokens[:, 0], q)
    return window, {"tokens": window.tokens, "widths": window.width, "size": step.width}


def _verify(step: KernelStep) -> Iterator[KernelCall]:
    window, told = _window(step)
    given = {"window": window, "choices": step.integers(step.rows, step.width)}
    yield KernelCall("verify_prefix", "", given, {**told, "parents": window.parents})


def _judged(step: KernelStep, op: str) -> Iterator[KernelCall]:
    """Calls of an op that judges drawn proposals."""
    rows, width, vocabulary = step.rows, step.width, step.model.vocabulary
    for kind, q in (("drawn", torch.empty(rows, width - 1, vocabulary)), ("certain", None)):
        window, told = _window(step, q)
        keys = {name: step.integers(rows, width) for name in ("accept_key", "residual_key", "bonus_key")}
        given = {"distribution": torch.empty(rows, width, vocabulary), "window": window, **keys}
        read = q if width > 1 else None
        sizes = {"sizes": (width, vocabulary)}
        told = {**told, **sizes, "q": read, "vocabulary": vocabulary, "parents": window.parents}
        yield KernelCall(op, kind, given, told)


def _rejection(step: KernelStep) -> Iterator[KernelCall]:
    vocabulary = step.model.vocabulary
    first = {
        **_contest(step.rows, 2),
        "sizes": lambda launches: (step.width, vocabulary, _share(vocabulary, launches)),
    }
    for call in _judged(step, "rejection_sample"):
        yield replace(call, each=[KernelLaunch(first), _PICK])


def _block(step: KernelStep) -> Iterator[KernelCall]:
    yield from _judged(step, "block_sample")


def _tree(step: KernelStep) -> Iterator[KernelCall]:
    for call in _judged(step, "tree_sample"):
        yield replace(call, told={**call.told, "left": Scratch(step.rows * step.model.vocabulary)})


def _emit(step: KernelStep) -> Iterator[KernelCall]:
    window, told = _window(step)
    path, accepted, following = step.integers(step.rows, step.width), step.integers(step.rows), step.integers(step.rows)
    told |= {"proposed": window.tokens, "depths": window.depth, "path": path, "num_accepted": accepted}
    told |= {"following": following, "sizes": (step.width, step.width)}
    texts = step.integers(step.rows, 4 * step.cells)
    del told["tokens"]  # of the rows, as the method names them
    given = {"window": window, "verdict": Verdict(path, accepted, following), "tokens": texts}
    yield KernelCall("emit", "", {**given, "length": step.integers(step.rows)}, told)


def _plan(step: KernelStep) -> Iterator[KernelCall]:
    window, _ = _window(step)
    capacity = 2 * step.cells
    given = {"window": window, "committed": step.integers(step.rows), "capacity": capacity, "look": step.cells}
    told = {"parents": window.parents, "sizes": (step.width, step.cells, capacity)}
    for kind, span, limit in (("", None, None), ("span, limit", 128, 4096)):
        yield KernelCall("kv_plan", kind, {**given, "span": span, "limit": limit, "dtype": step.dtype}, told)


def _append(step: KernelStep) -> Iterator[KernelCall]:
    (keys, values), (_, new_keys, new_values) = arena_of(step), heads_of(step)
    cells = step.integers(step.rows, step.width)
    given = {"keys": keys, "values": values, "new_keys": new_keys, "new_values": new_values, "cells": cells}
    yield KernelCall("kv_append", "", given, {"sizes": (step.width, step.model.head_dim)})


def _compact(step: KernelStep) -> Iterator[KernelCall]:
    keys, values = arena_of(step)
    source, target = step.integers(step.rows, step.width), step.integers(step.rows, step.width)
    given = {"keys": keys, "values": values, "source": source, "target": target}
    yield KernelCall("kv_compact", "", given, {"sizes": (step.width, step.model.head_dim)})


def _attending(step: KernelStep, tiled: bool) -> dict[str, object]:
    """What is told of an attention: the cells of ``tiled`` ones are shared among programs, which leave their sums."""
    model = step.model
    share = SHARED_CELLS if tiled else step.cells
    parts = -(-step.cells // share)

    def places(launches: Launches) -> int:
        across, heads, rows = launches[-1].grid
        return across // parts * heads * rows

    def scratch(launches: Launches, lines: str) -> Scratch:
        """Of each place and part, so many numbers for each of BLOCK_M lines; none if one program sees all cells."""
        given = launches[-1].given
        each = {"mixes": given["BLOCK_D"], "marks": 2}[lines] * given["BLOCK_M"]
        return Scratch(places(launches) * parts * each if parts > 1 else 0)

    return {
        "sizes": (model.heads // model.heads_kv, step.width, step.cells, model.head_dim, share, parts),
        "mixes": lambda launches: scratch(launches, "mixes"),
        "marks": lambda launches: scratch(launches, "marks"),
        "arrivals": lambda launches: Scratch(places(launches), torch.int32, zero=True),
    }


def _attention(step: KernelStep) -> Iterator[KernelCall]:
    (query, _, _), (keys, values) = heads_of(step), arena_of(step)
    seen = {"query": query, "keys": keys[:, :, : step.cells], "values": values[:, :, : step.cells]}
    seen["mask"] = step.floats(step.rows, 1, step.width, step.cells)
    used, sinks = step.integers(step.rows), step.floats(step.model.heads)
    tiled = step.width <= FEW_ROWS
    for kind, softcap, bound, cell, exact in (
        *(("", None, None, None, False), ("capped", 50.0, None, None, False), ("used", None, used, None, False)),
        ("sinks", None, None, sinks, False),
        *([] if tiled else [("exact", None, None, None, True)]),
    ):
        told = {**_attending(step, tiled or exact), "softcap": softcap or 1.0}
        given = {**seen, "scaling": 0.125, "softcap": softcap, "used": bound, "sinks": cell}
        yield KernelCall("tree_attention", kind, given, told, exact=exact)


def _weight(step: KernelStep, bits: int, outputs: int, inputs: int) -> Weight:
    """A matrix [outputs, inputs] in codes of so many bits; 16: in the step's dtype."""
    if bits == 16:
        return step.floats(outputs, inputs)
    if bits == 8:
        return Quantised(torch.empty(outputs, inputs, dtype=torch.int8), torch.empty(outputs, 1), None)
    groups = torch.empty(outputs, inputs // GROUP), torch.empty(outputs, inputs // GROUP)
    return Quantised(torch.empty(outputs, inputs // 2, dtype=torch.uint8), *groups)


def _product(
    rows: int,
    weight: Weight,
    bias: Tensor | None,
    norm: tuple[object, float, float] | None = None,
    beside: object = None,
    gated: bool = False,
) -> dict[str, object]:
    """What is told of a product of so many rows, as a layer has them: ``norm`` is a weight, eps and offset."""
    outputs, inputs = weight.shape
    codes, scale, offset = (weight, None, None)
    if isinstance(weight, Quantised):
        codes, scale, offset = weight.codes, weight.scale, weight.offset
    gain, eps, shift = norm or (None, 0.0, 0.0)
    return {
        **{"codes": codes, "scale": scale, "offset": offset, "bias": bias, "norm": gain, "eps": eps, "shift": shift},
        **{"beside": beside, "sizes": (rows, outputs // 2 if gated else outputs, inputs)},
    }


def _linear(step: KernelStep) -> Iterator[KernelCall]:
    outputs, inputs = 2 * step.model.inner, step.model.hidden
    bias, eight, four = step.floats(outputs), *(_weight(step, bits, outputs, inputs) for bits in (8, 4))
    few, many = (step.rows, step.width), (4, FEW_ROWS)
    kinds: list[tuple[str, tuple[int, int], Weight, Tensor | None, bool]] = [
        *(("int8", few, eight, None, False), ("int4", few, four, None, False), ("int4, bias", few, four, bias, False)),
        *(("int8, 64 rows", many, eight, None, False), ("int4, 64 rows", many, four, None, False)),
        *(("exact", few, _weight(step, 16, outputs, inputs), None, True), ("exact, 64 rows", many, four, None, True)),
    ]
    for kind, rows, weight, added, exact in kinds:
        x = step.floats(*rows, inputs)
        for wide in (False, True) if kind == "exact" else (False,):  # as a head's logits are
            given = {"x": x, "weight": weight, "bias": added, "wide": wide}
            told = _product(rows[0] * rows[1], weight, added)
            yield KernelCall("linear", kind + ", wide" * wide, given, told, exact=exact)


def _layer(step: KernelStep, bits: int) -> DecoderWeights:
    """A layer with biases, whose two norms differ in eps."""
    model, hidden = step.model, step.model.hidden
    seen, count = model.heads * model.head_dim, (model.heads + 2 * model.heads_kv) * model.head_dim
    return DecoderWeights(
        norm_before=step.floats(hidden),
        eps_before=1e-5,
        qkv=_weight(step, bits, count, hidden),
        qkv_bias=step.floats(count),
        out=_weight(step, bits, hidden, seen),
        out_bias=step.floats(hidden),
        norm_after=step.floats(hidden),
        eps_after=1e-6,
        gate_up=_weight(step, bits, 2 * model.inner, hidden),
        gate_up_bias=step.floats(2 * model.inner),
        down=_weight(step, bits, hidden, model.inner),
        down_bias=step.floats(hidden),
        norm_offset=1.0,
        heads=model.heads,
        heads_kv=model.heads_kv,
        head_dim=model.head_dim,
        scaling=0.125,
    )


def _six(
    step: KernelStep, layer: DecoderWeights, turn: tuple[Tensor, Tensor], at: Cells, x: object, first: int
) -> list[KernelLaunch]:
    """What is told of a layer's launches, of which ``first`` is the number in the call; ``x`` is the layer's input."""
    rows, count = step.rows * step.width, layer.heads + 2 * layer.heads_kv
    queries, seen, middle, inner = (
        made_by(first, "out", lambda out: out.view(step.rows, step.width, count, -1)),
        made_by(first + 2, "out", lambda out: out.view(rows, -1)),
        *(made_by(first + number, "out") for number in (3, 4)),
    )
    turned = made_by(first + 1, "query", lambda query: query.transpose(1, 2))
    before = layer.norm_before, layer.eps_before, layer.norm_offset
    after = layer.norm_after, layer.eps_after, layer.norm_offset
    sizes = layer.heads, layer.heads_kv, step.width, layer.head_dim // 2
    arena = {"keys": at.keys, "values": at.values}
    rotary = {"both": queries, "cos": turn[0], "sin": turn[1], "cells": at.cells, **arena, "sizes": sizes}
    attention = {"query": turned, **arena, "mask": at.mask, "used": at.used, "sinks": None}
    attention |= {"scaling": layer.scaling, "softcap": 1.0}
    gate = _product(rows, layer.gate_up, layer.gate_up_bias, after, gated=True)
    return [
        KernelLaunch({**_product(rows, layer.qkv, layer.qkv_bias, before), "x": x}, "qkv"),
        KernelLaunch(rotary),
        KernelLaunch({**attention, **_attending(step, True)}),
        KernelLaunch({**_product(rows, layer.out, layer.out_bias, beside=x), "x": seen}, "out"),
        KernelLaunch({**gate, "x": middle}, "gate, up"),
        KernelLaunch({**_product(rows, layer.down, layer.down_bias, beside=middle), "x": inner}, "down"),
    ]


def _layers(step: KernelStep) -> Iterator[KernelCall]:
    """Two layers, of floats and of codes; above the rows that the backend takes, those of an exact one."""
    x = step.floats(step.rows, step.width, step.model.hidden)
    cos, sin = (step.floats(1, step.width, step.model.head_dim) for _ in range(2))
    mask, exact = step.floats(step.rows, 1, step.width, step.cells), step.rows * step.width > FEW_ROWS
    for kind, bits in (("layer", 16), ("int8 layer", 8), ("int4 layer", 4)):
        layers = [_layer(step, bits) for _ in range(2)]
        at = [
            Cells(*arena_of(step), step.integers(step.rows, step.width), mask, step.integers(step.rows)) for _ in layers
        ]
        inputs = x, made_by(5, "out")
        each = [_six(step, layers[n], (cos, sin), at[n], inputs[n], 6 * n) for n in range(2)]
        given = {"x": x, "layers": layers, "turn": (cos, sin), "at": at}
        yield KernelCall("decoder_layers", kind, given, {}, [*chain(*each)], exact)


def _norm(step: KernelStep) -> Iterator[KernelCall]:
    size = step.model.hidden
    given = {"x": step.floats(step.rows, step.width, size), "weight": step.floats(size), "eps": 1e-5, "offset": 0.0}
    yield KernelCall("rms_norm", "", given, {"sizes": (1, step.rows, step.width, size)})


def _rotary(step: KernelStep) -> Iterator[KernelCall]:
    query, keys, _ = heads_of(step)
    cos, sin = (step.floats(1, step.width, step.model.head_dim) for _ in range(2))
    given = {"query": query, "keys": keys, "cos": cos, "sin": sin}
    yield KernelCall("rotary", "", given, {"sizes": (step.model.heads, step.width, step.model.head_dim // 2)})


def _silu(step: KernelStep) -> Iterator[KernelCall]:
    gate, up = step.floats(step.rows, step.width, 2 * step.model.inner).chunk(2, dim=-1)
    yield KernelCall("silu_mul", "", {"gate": gate, "up": up}, {"sizes": (1, step.rows, step.width, step.model.inner)})


MAKERS: tuple[Callable[[KernelStep], Iterator[KernelCall]], ...] = (
    *(_sample, _noise_keys, _accept, _verify, _rejection, _block, _tree, _emit, _plan),
    *(_append, _compact, _attention, _linear, _layers, _norm, _rotary, _silu),
)
"""One for each op: from a step to its calls."""


def kernel_calls(step: KernelStep) -> Iterator[KernelCall]:
    """Return the calls that a step makes, one of each kind."""
    for maker in MAKERS:
        yield from maker(step)


def few_steps() -> tuple[KernelStep, ...]:
    """The steps of a quick look: a window of five tokens of each model."""
    return tuple(KernelStep(model) for model in MODELS)


def all_steps() -> tuple[KernelStep, ...]:
    """The steps of the whole matrix: windows, batches, a prefill chunk, one token, and the other dtypes."""
    sizes = ((1, 1), (1, 16), (4, 5), (8, 9), (1, 256))
    wide = [KernelStep(model, rows, width) for model in MODELS for rows, width in sizes]
    dtypes = [replace(step, dtype=dtype) for step in few_steps() for dtype in (torch.float32, torch.float16)]
    long = ModelShape("heads of 256", 2304, 8, 4, 256, 9216, 256000)  # Gemma 2's
    return *few_steps(), *wide, *dtypes, KernelStep(long), KernelStep(long, dtype=torch.float32)


def results_of(out: object) -> list[Tensor]:
    """Return the tensors that a method of a backend returned, in order; none of one that works in place."""
    if isinstance(out, Tensor):
        return [out]
    if isinstance(out, Verdict):
        return [out.path, out.num_accepted, out.next]
    return [*out] if isinstance(out, tuple) else []
