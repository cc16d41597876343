"""Cases for every op: arguments under a name, the same for the tests of every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from specdec.decoder import Cells, DecoderWeights
from specdec.ledger import stacked
from specdec.messages import Verdict, Window
from specdec.quantised import Quantised
from specdec.request import Request, SamplingParams

FLOATS = (torch.float32, torch.bfloat16)
Make = Callable[[Generator, torch.dtype], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """Named arguments of an op; ``make`` returns them on the CPU in a dtype."""

    op: str
    name: str
    make: Make
    dtypes: tuple[torch.dtype, ...] = FLOATS


def _random(g: Generator, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(shape, generator=g).to(dtype)


def _happens(g: Generator, chance: float, *shape: int) -> Tensor:
    return torch.full(shape, chance).bernoulli(generator=g).bool()


def _linear(
    rows: int,
    outputs: int,
    inputs: int,
    kind: str = "own",
    bias: bool = False,
    strided: bool = False,
    wide: bool = False,
    spread: float = 1.0,
) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        x = _random(g, dtype, rows, inputs * 2)[:, ::2] if strided else _random(g, dtype, 1, rows, inputs)
        weight = torch.randn(outputs, inputs, generator=g) * spread
        kinds: dict[str, Callable[[], Tensor | Quantised]] = {
            "own": lambda: weight.to(dtype),
            "bfloat16": lambda: weight.bfloat16(),
            "int8": lambda: Quantised.of(weight, 8),
            "int4": lambda: Quantised.of(weight, 4),
        }
        return x, kinds[kind](), _random(g, dtype, outputs) if bias else None, wide

    return make


def _of_slots(linear: Make, counts: tuple[int, ...]) -> Make:
    """The product's rows, dealt into windows of which so many slots count."""

    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        x, weight, bias, wide = linear(g, dtype)
        return x.reshape(len(counts), -1, x.shape[-1]), weight, bias, torch.tensor(counts), wide

    return make


def _draws_of_slots(counts: tuple[int, ...], width: int, vocabulary: int, noise: bool = True) -> Make:
    """Draws in windows of ``width`` slots, of which so many count."""
    sample = _sample(len(counts), width, vocabulary, noise)

    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        return *sample(g, dtype), torch.tensor(counts)

    return make


def _norm(rows: int, size: int, offset: float = 0.0, strided: bool = False) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        x = _random(g, dtype, rows, size, 2)[..., 0] if strided else _random(g, dtype, 1, rows, size)
        return x, _random(g, dtype, size), 1e-5, offset

    return make


def _rotary(batch: int, width: int, size: int, shared: bool = False) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        both = _random(g, dtype, batch, width, 6 * size)  # the layout after projections of one input
        query = both[..., : 4 * size].view(batch, width, 4, size).transpose(1, 2)
        keys = both[..., 4 * size :].view(batch, width, 2, size).transpose(1, 2)
        angle = torch.rand(1 if shared else batch, width, size, generator=g) * 6
        return query, keys, angle.cos().to(dtype), angle.sin().to(dtype)

    return make


def _silu(rows: int, size: int, scale: float = 1.0, batch: int = 1, flat: bool = False) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        both = _random(g, dtype, batch, rows, 2 * size) * scale
        return (both[0, 0] if flat else both)[..., :size], (both[0, 0] if flat else both)[..., size:]

    return make


def _arena(g: Generator, dtype: torch.dtype, heads: int, capacity: int, size: int) -> Tensor:
    """Two middle rows of an arena of four, so that no view begins at the start of its storage."""
    return _random(g, dtype, 4, heads, capacity, size)[1:3]


def _append(width: int, start: int, size: int = 8) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        keys, values = (_arena(g, dtype, 3, 20, size) for _ in range(2))
        new = [_random(g, dtype, 2, width, 3, size).transpose(1, 2) for _ in range(2)]
        cells = (torch.tensor([[start], [start + 7]]) + torch.arange(width)) % 20
        return keys, values, *new, cells

    return make


def _compact(source: list[int], target: list[int]) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        keys, values = (_arena(g, dtype, 3, 20, 8) for _ in range(2))
        cells = [(torch.tensor([[0], [5]]) + torch.tensor(at)) % 20 for at in (source, target)]
        return keys, values, *cells

    return make


def _attention(
    batch: int,
    width: int,
    length: int,
    size: int = 64,
    heads: tuple[int, int] = (6, 2),
    softcap: float | None = None,
    garbage: float = 1.0,
    seen: float = 0.6,
    used: tuple[int, ...] | None = None,
    sinks: bool = False,
) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        query = _random(g, dtype, batch, width, heads[0], size).transpose(1, 2)
        keys, values = (_random(g, dtype, batch + 2, heads[1], length + 9, size)[1:-1, :, :length] for _ in range(2))
        visible = _happens(g, seen, batch, 1, width, length)
        visible[..., torch.randint(length, (), generator=g)] = True
        ends = None if used is None else torch.tensor(used)
        if ends is not None:
            visible &= torch.arange(length) < ends[:, None, None, None]
        hidden = ~visible.any(dim=2)[:, 0]  # cells that no slot of a row sees may contain any finite value
        for tensor in (keys, values):
            largest = torch.finfo(dtype).max / 100  # of what is still finite after the product
            tensor.mul_(torch.where(hidden[:, None, :, None], min(garbage, largest), 1.0).to(dtype))
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, float("-inf"))
        given = query, keys, values, mask, size**-0.5, softcap, ends
        return (*given, _random(g, dtype, heads[0])) if sinks else given

    return make


def _keys(g: Generator, *shape: int) -> Tensor:
    return torch.randint(-(2**62), 2**62, shape, generator=g)


def _sample(rows: int, width: int, vocabulary: int, noise: bool = True, spread: float = 4.0, left: float = 1.0) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        logits = _random(g, dtype, rows, width, vocabulary + 3)[..., :vocabulary] * spread
        possible = _happens(g, left, *logits.shape)
        possible[..., vocabulary // 2] = True
        return logits.masked_fill(~possible, float("-inf")), _keys(g, rows, width) if noise else None

    return make


def _window(g: Generator, rows: int, width: int, vocabulary: int, tree: bool) -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.randint(vocabulary, (rows, width), generator=g)
    parents = torch.arange(-1, width - 1).expand(rows, width)
    if tree:
        above = [[int(torch.randint(i, (), generator=g)) for i in range(1, width)] for _ in range(rows)]
        parents = torch.tensor([[-1, *row] for row in above])
    return tokens, parents, torch.randint(1, width + 1, (rows,), generator=g)


def _coins(rows: int, width: int) -> Make:
    return lambda g, _: (torch.rand(rows, width, generator=g), _keys(g, rows, width))


def _verify(rows: int, width: int, tree: bool = False) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        return Window(*_window(g, rows, width, 2, tree)), torch.randint(2, (rows, width), generator=g)

    return make


def _noise(rows: int, width: int, draw: str = "number") -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        position = torch.randint(2**31, (1, 2 * width), generator=g)[:, ::2].expand(rows, width)
        draws = {"number": 0, "slots": torch.arange(width), "rows": torch.arange(rows)[:, None] + 2**32 - rows}
        return _keys(g, rows), position, draws[draw]

    return make


def _plan(
    width: int,
    span: int | None = None,
    capacity: int = 96,
    look: int = 64,
    tree: bool = False,
    limit: int | None = None,
) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        window = Window(*_window(g, 3, width, 9, tree))
        longest = look - width if span is None else 3 * capacity
        committed = torch.tensor([0, longest, longest // 2, 5])[:3]
        return window, committed, span, capacity, look, limit, dtype

    return make


def _emit(rows: int, width: int, tree: bool = False, cut: bool = False) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        window = Window(*_window(g, rows, width, 99, tree))
        node = (torch.rand(rows, generator=g) * window.width).long()  # the last accepted slot
        accepted = window.depth.gather(1, node[:, None])[:, 0]
        path = window.path_to(node)[:, : int(accepted.max()) + 1 if cut else width]
        verdict = Verdict(path, accepted, torch.randint(99, (rows,), generator=g))
        tokens = torch.randint(99, (rows + 2, 3 * width + 1), generator=g)[1:-1]
        return window, verdict, tokens, torch.randint(1, 2 * width + 1, (rows,), generator=g)

    return make


def _tied(rows: int, width: int, vocabulary: int, top: float, noise: bool = False) -> Make:
    """Each slot has its largest logit at three places; 2**30 rounds noise away, so that they tie with noise too."""

    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        logits = _random(g, dtype, rows, width, vocabulary)
        places = torch.rand(logits.shape, generator=g).topk(min(3, vocabulary), dim=-1).indices
        return logits.scatter_(2, places, top), _keys(g, rows, width) if noise else None

    return make


EQUAL_NOISE = 606737, (18, 59)
"""A key of the noise, and two tokens whose 32 random bits under it are the same."""


def _equal_noise(residual: bool = False) -> Make:
    """A round in which two tokens have the same probability and the same noise: the lower one is drawn.

    Slot 0 draws the bonus if there is no proposal; with ``residual`` a proposal is rejected there, and the draw is from
    what is left of p.
    """

    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        key, tied = EQUAL_NOISE
        p = torch.zeros(1, 2, 64).index_fill(2, torch.tensor(tied), 0.25).index_fill(2, torch.tensor([7]), 0.5)
        q = torch.zeros(1, 1, 64).index_fill(2, torch.tensor([7]), 0.5).index_fill(2, torch.tensor([8]), 0.5)
        if not residual:
            p = torch.zeros(1, 2, 64).index_fill(2, torch.tensor(tied), 0.5)
        window = Window.chain(torch.tensor([0]), torch.tensor([[8]]), torch.tensor([int(residual)]), q)
        return p, window, *(torch.full((1, 2), key) for _ in range(3))

    return make


def _broken(q: Tensor) -> Tensor:
    """q in which five rows of six have NaN or infinity: everywhere, or in every third place."""
    kind = (torch.arange(q.shape[0])[:, None] + torch.arange(q.shape[1])) % 6
    every_third = torch.arange(q.shape[2]) % 3 == 0
    for index, (bad, where) in enumerate(
        (bad, where) for where in (every_third, every_third | True) for bad in (float("nan"), float("inf"))
    ):
        q = torch.where((kind == index)[:, :, None] & where, bad, q)
    return torch.where((kind == 4)[:, :, None] & every_third, float("-inf"), q)


def _rejection(
    rows: int, width: int, vocabulary: int, q: str | None = None, left: float = 1.0, tree: bool = False
) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        logits = _random(g, dtype, rows, width, vocabulary) * 1.5
        possible = _happens(g, left, *logits.shape)
        possible[..., 0] = True
        distribution = logits.masked_fill(~possible, float("-inf")).softmax(dim=-1)
        near = (logits + _random(g, dtype, *logits.shape)).softmax(dim=-1)
        draft = {"near": near, "equal": distribution, "broken": near}.get(q or "")
        tokens, parents, valid = _window(g, rows, width, vocabulary, tree)
        from_draft = (near if draft is None else draft)[:, : width - 1].reshape(-1, vocabulary)
        if width > 1:
            tokens[:, 1:] = torch.multinomial(from_draft, 1, generator=g).view(rows, width - 1)
        told = None if draft is None else draft[:, : width - 1]
        window = Window(tokens, parents, valid, _broken(near[:, : width - 1]) if q == "broken" else told)
        return distribution, window, *(_keys(g, rows, width) for _ in range(3))

    return make


def _spread(value: Any) -> Any:
    """The same values in tensors with gaps: between integers, and between the first axis' parts of floats."""
    if isinstance(value, tuple):
        return tuple(_spread(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{part.name: _spread(getattr(value, part.name)) for part in fields(value)})
    if not isinstance(value, Tensor):
        return value
    axis = 0 if value.is_floating_point() else -1
    gaps = value.repeat_interleave(2, dim=axis)
    return gaps[::2] if axis == 0 else gaps[..., ::2]


def _with_gaps(made: Make) -> Make:
    return lambda g, dtype: tuple(map(_spread, made(g, dtype)))


def _layers(
    batch: int,
    width: int,
    kind: str = "own",
    bias: bool = False,
    size: int = 16,
    count: int = 1,
    hidden: int = 96,
    inner: int = 160,
    counts: tuple[int, ...] | None = None,
    other_norms: bool = False,
) -> Make:
    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        heads, heads_kv = 4, 2

        def matrix(outputs: int, inputs: int) -> tuple[Tensor | Quantised, Tensor | None]:
            _, weight, biases, _ = _linear(1, outputs, inputs, kind, bias, spread=inputs**-0.5)(g, dtype)
            return weight, biases

        other = torch.bfloat16 if dtype == torch.float32 else torch.float32

        def norm(eps: float) -> tuple[Tensor, float]:
            return (0.5 + torch.rand(hidden, generator=g)).to(other if other_norms else dtype), eps

        layers = tuple(
            DecoderWeights(
                *norm(1e-5),
                *matrix((heads + 2 * heads_kv) * size, hidden),
                *matrix(hidden, heads * size),
                *norm(0.3),  # so far from the other that they cannot change places
                *matrix(2 * inner, hidden),
                *matrix(hidden, inner),
                norm_offset=1.0 if bias else 0.0,
                heads=heads,
                heads_kv=heads_kv,
                head_dim=size,
                scaling=size**-0.5,
            )
            for _ in range(count)
        )
        angle = torch.rand(batch, width, size, generator=g) * 6
        arena = [_random(g, dtype, batch + 2, heads_kv, 70, size)[1:-1] for _ in range(2 * count)]
        start = torch.randint(20, 40, (batch, 1), generator=g)
        cells = start + torch.arange(width)
        seen = torch.arange(64) <= cells[:, :, None]
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, float("-inf"))[:, None]
        turn = angle.cos().to(dtype), angle.sin().to(dtype)
        own = None if counts is None else torch.tensor(counts)
        at = tuple(Cells(k, v, cells, mask, width=own) for k, v in zip(arena[::2], arena[1::2], strict=True))
        return _random(g, dtype, batch, width, hidden), layers, turn, at

    return make


def _process(
    rows: int, slots: int, vocabulary: int, params: dict[str, tuple[Any, ...]], spread: float = 3.0, whole: bool = False
) -> Make:
    """Logits after a tree of proposals; the values of each parameter are given to the rows in turn.

    With ``whole`` logits are whole numbers, so that several are the largest.
    """

    def make(g: Generator, dtype: torch.dtype) -> tuple[Any, ...]:
        requests = []
        for row in range(rows):
            own = {name: values[row % len(values)] for name, values in params.items()}
            prompt = tuple(torch.randint(0, vocabulary, (9,), generator=g).tolist())
            requests.append(Request(row, prompt, SamplingParams(**own), emitted=4))
        tokens = torch.randint(0, vocabulary, (rows, slots), generator=g)
        parents = torch.tensor([-1, *(slot // 2 for slot in range(slots - 1))]).expand(rows, slots)
        window = Window(tokens, parents, torch.full((rows,), slots))
        logits = _random(g, dtype, rows, slots, vocabulary) * spread
        logits = logits.round() if whole else logits
        return logits, stacked(requests, vocabulary, torch.device("cpu")), window.paths

    return make


WARM = {"temperature": (1.0, 0.7, 1.5)}
EVERY: dict[str, tuple[Any, ...]] = {
    "temperature": (1.0, 0.0, 0.6),
    "top_k": (0, 40, 3),
    "top_p": (0.9, 1.0, 0.5),
    "min_p": (0.0, 0.05),
    "repetition_penalty": (1.3, 0.8, 1.0),
    "frequency_penalty": (0.5, 0.0, -1.0),
    "presence_penalty": (1.0, -0.5, 0.0),
    "logit_bias": ({1: 4.0, 3: -4.0}, {}, {0: 90.0}),
    "bad_words": (((2,), (3, 4)), (), ((1, 2, 3),)),
    "min_new_tokens": (3, 0),
    "eos": ((0, 5), (6,)),
}
COLD = {"temperature": (0.0,)}
ONE = (torch.float32,)
KINDS = ("own", "bfloat16", "int8", "int4")
CASES = [
    *(Case("linear", f"{m}x{n}x{k}", _linear(m, n, k)) for m in (1, 2, 4, 7, 8, 9, 16) for n, k in ((192, 576),)),
    Case("linear", "empty", _linear(0, 5, 64)),
    Case("linear", "single", _linear(1, 1, 1)),
    Case("linear", "odd", _linear(5, 37, 83)),
    Case("linear", "long", _linear(16, 50, 1536)),
    Case("linear", "bias", _linear(3, 37, 64, bias=True)),
    Case("linear", "strided", _linear(3, 37, 64, strided=True)),
    *(Case("linear", f"{kind}-{m}", _linear(m, 50, 96, kind)) for kind in ("int8", "int4") for m in (1, 4, 16)),
    *(Case("linear", f"bfloat16-{m}", _linear(m, 50, 90, "bfloat16")) for m in (1, 8, 16)),
    # Every number of rows in the last pass of each level, and so many that codes are widened once for all of them.
    *(Case("linear", f"{kind}-rows-{m}", _linear(m, 53, 352, kind)) for kind in KINDS for m in (*range(1, 14), 33, 77)),
    *(Case("linear", f"{kind}-tail", _linear(5, 33, 544, kind)) for kind in KINDS),
    *(Case("linear", f"{kind}-chunk", _linear(256, 200, 288, kind, bias=True)) for kind in KINDS),
    *(Case("linear", f"{n}x{k}", _linear(7, n, k)) for n, k in ((15, 31), (16, 32), (17, 33), (1, 257), (64, 1))),
    *(Case("linear", f"bfloat16-{n}x{k}", _linear(7, n, k, "bfloat16")) for n, k in ((15, 31), (17, 33), (1, 257))),
    *(Case("linear", f"wide-{kind}", _linear(5, 37, 96, kind, bias=True, wide=True)) for kind in KINDS),
    *(Case("linear", f"wide-{m}", _linear(m, 300, 83, wide=True)) for m in (0, 1, 16)),
    Case("linear", "wide-strided", _linear(3, 37, 64, strided=True, wide=True)),
    Case("linear", "int8-odd", _linear(3, 7, 41, "int8", bias=True)),
    Case("rms_norm", "empty", _norm(0, 64)),
    Case("rms_norm", "single", _norm(1, 1)),
    Case("rms_norm", "odd", _norm(5, 83)),
    Case("rms_norm", "whole", _norm(9, 576)),
    Case("rms_norm", "many", _norm(300, 576)),
    Case("rms_norm", "gemma", _norm(3, 64, offset=1.0)),
    Case("rms_norm", "strided", _norm(3, 64, strided=True)),
    Case("rotary", "single", _rotary(1, 1, 2)),
    Case("rotary", "empty", _rotary(1, 0, 8)),
    Case("rotary", "odd", _rotary(2, 3, 10)),
    Case("rotary", "whole", _rotary(3, 9, 64)),
    Case("rotary", "shared", _rotary(3, 5, 32, shared=True)),
    Case("silu_mul", "empty", _silu(0, 8)),
    Case("silu_mul", "single", _silu(1, 1)),
    Case("silu_mul", "small", _silu(3, 83)),
    Case("silu_mul", "odd", _silu(163, 83)),
    Case("silu_mul", "whole", _silu(9, 1536)),
    Case("silu_mul", "one-row", _silu(1, 12_301)),
    Case("silu_mul", "many", _silu(100, 1536)),
    Case("silu_mul", "batch", _silu(103, 70, batch=2)),
    Case("silu_mul", "flat", _silu(190, 70, flat=True)),
    Case("silu_mul", "extreme", _silu(200, 64, scale=60.0)),
    Case("kv_append", "empty", _append(0, 3)),
    Case("kv_append", "single", _append(1, 3)),
    Case("kv_append", "ragged", _append(5, 2)),
    Case("kv_append", "ring", _append(9, 16, size=10)),
    Case("kv_append", "maximal", _append(20, 0)),
    Case("kv_compact", "nothing", _compact([0, 1, 2], [0, 1, 2])),
    Case("kv_compact", "single", _compact([4], [1])),
    Case("kv_compact", "overlap", _compact([0, 2, 5, 6], [0, 1, 2, 3])),
    Case("kv_compact", "swap", _compact([3, 1], [1, 3])),
    Case("kv_compact", "ring", _compact([14, 16, 19, 20], [14, 15, 16, 17])),
    *(Case("emit", f"{b}x{w}", _emit(b, w), ONE) for b, w in ((1, 1), (9, 5))),
    Case("emit", "tree", _emit(40, 20, tree=True), ONE),
    Case("emit", "cut", _emit(9, 20, tree=True, cut=True), ONE),
    *(Case("kv_plan", f"{w}", _plan(w)) for w in (1, 5)),
    Case("kv_plan", "tree", _plan(20, tree=True, limit=45)),
    Case("kv_plan", "many", _plan(7, capacity=2304, look=2240, tree=True)),
    *(Case("kv_plan", f"ring-{s}", _plan(9, span=s, capacity=s + 8, look=s + 8, tree=True)) for s in (3, 40)),
    Case("tree_attention", "single", _attention(1, 1, 1, 8, (1, 1))),
    *(Case("tree_attention", f"{w}x{n}", _attention(1, w, n)) for w, n in ((1, 64), (1, 300), (5, 128), (9, 320))),
    Case("tree_attention", "batch", _attention(3, 4, 64)),
    Case("tree_attention", "ring", _attention(2, 5, 37)),
    Case("tree_attention", "small-heads", _attention(2, 3, 29, 10, (4, 4))),
    Case("tree_attention", "large-heads", _attention(1, 3, 48, 128, (8, 1))),
    Case("tree_attention", "odd-heads", _attention(1, 3, 48, 80, (3, 1))),
    *(Case("tree_attention", f"queries-{w}", _attention(1, w, 83, 64, (3, 3))) for w in (1, 2, 3, 4, 6, 7, 13)),
    *(Case("tree_attention", f"head-{d}", _attention(2, 3, 51, d, (4, 2))) for d in (8, 16, 24, 48, 256)),
    Case("tree_attention", "one-cell", _attention(1, 2, 1, 64)),
    Case("tree_attention", "blocks", _attention(1, 9, 600, 64)),
    Case("tree_attention", "maximal", _attention(1, 64, 128)),
    Case("tree_attention", "softcap", _attention(1, 3, 48, softcap=2.0)),
    Case("tree_attention", "used", _attention(4, 3, 600, used=(1, 256, 257, 600))),
    Case("tree_attention", "garbage", _attention(2, 2, 70, garbage=10.0**30, seen=0.1)),
    Case("tree_attention", "sinks", _attention(2, 3, 48, sinks=True)),
    Case("tree_attention", "sinks-alone", _attention(3, 2, 21, seen=0.05, softcap=2.0, sinks=True)),
    Case("tree_attention", "sinks-used", _attention(2, 5, 600, used=(300, 600), sinks=True)),
    *(Case("decoder_layers", f"{b}x{w}", _layers(b, w)) for b, w in ((1, 1), (1, 9), (3, 5), (2, 33))),
    *(Case("decoder_layers", kind, _layers(1, 4, kind)) for kind in ("int8", "int4", "bfloat16")),
    Case("decoder_layers", "other-norms", _layers(1, 4, other_norms=True)),
    Case("decoder_layers", "bias", _layers(2, 3, bias=True)),
    Case("decoder_layers", "odd-heads", _layers(1, 3, size=10)),
    Case("decoder_layers", "three", _layers(2, 5, count=3)),
    Case("decoder_layers", "padding", _layers(3, 5, count=2, counts=(2, 5, 1))),
    Case("process", "single", _process(1, 1, 1, WARM), ONE),
    *(Case("process", f"warm-{v}", _process(3, 4, v, WARM), ONE) for v in (7, 258, 5001)),
    *(Case("process", f"top-k-{k}", _process(3, 4, 258, {**WARM, "top_k": (k,)}), ONE) for k in (1, 40, 257, 258, 999)),
    *(Case("process", f"top-p-{p}", _process(3, 4, 5001, {**WARM, "top_p": (p,)}), ONE) for p in (0.001, 0.5, 0.99)),
    Case("process", "top-p-flat", _process(2, 2, 5001, {**WARM, "top_p": (0.7,)}, 0.001), ONE),
    Case("process", "top-p-steep", _process(2, 2, 5001, {**WARM, "top_p": (0.99,)}, 40.0), ONE),
    Case("process", "both", _process(3, 4, 5001, {**WARM, "top_k": (50, 0, 2000), "top_p": (0.8,)}), ONE),
    *(Case("process", f"min-p-{p}", _process(3, 4, 258, {**WARM, "min_p": (p,)}), ONE) for p in (0.01, 0.3, 1.0)),
    *(Case("process", f"every-{v}", _process(6, 5, v, EVERY), ONE) for v in (11, 258, 5001)),
    *(Case("process", f"greedy-{v}", _process(3, 4, v, COLD), ONE) for v in (1, 7, 258, 5001)),
    Case("process", "every-greedy", _process(6, 5, 258, {**EVERY, **COLD}), ONE),
    Case("process", "large", _process(3, 2, 49152, EVERY), ONE),
    *(Case("process", f"tied-{w}x{v}", _process(3, w, v, COLD, 1.0, True), ONE) for w in (1, 4) for v in (7, 33, 5001)),
    *(Case("process", f"every-tied-{w}", _process(6, w, 258, {**EVERY, **COLD}, 1.0, True), ONE) for w in (1, 5)),
    *(
        Case("process", f"top-p-tied-{p}", _process(1, 2, 300, {**WARM, "top_p": (p,)}, 0.0), ONE)
        for p in (0.001, 0.301)
    ),
    *(Case("sample", f"{v}", _sample(2, 3, v), ONE) for v in (1, 7, 258, 5001)),
    *(Case("sample", f"{v}-argmax", _sample(2, 3, v, noise=False), ONE) for v in (1, 7, 258, 5001)),
    Case("sample", "large", _sample(1, 1, 49152), ONE),
    Case(
        "sample",
        "tie",
        lambda g, _: (torch.zeros(2, 1, 20001).index_fill(2, torch.tensor([9000, 4000]), 1.0), None),
        ONE,
    ),
    *(Case("sample", f"tied-{w}x{v}", _tied(2, w, v, 9.0), ONE) for w in (1, 3) for v in (2, 33, 5001)),
    *(Case("sample", f"tied-noisy-{w}", _tied(2, w, 300, 2.0**30, noise=True), ONE) for w in (1, 3)),
    Case(
        "sample",
        "equal-noise",
        lambda g, dtype: (_equal_noise()(g, dtype)[0].log(), torch.full((1, 2), EQUAL_NOISE[0])),
        ONE,
    ),
    Case("sample", "flat", _sample(2, 2, 5001, spread=0.01), ONE),
    Case("sample", "steep", _sample(2, 2, 5001, spread=40.0), ONE),
    Case("sample", "filtered", _sample(2, 2, 5001, left=0.01), ONE),
    Case("sample", "certain", _sample(2, 2, 258, left=0.0), ONE),
    Case("accept", "many", _coins(3, 5), ONE),
    *(Case("verify_prefix", f"{b}x{w}", _verify(b, w), ONE) for b, w in ((1, 1), (1, 5), (32, 9))),
    *(Case("verify_prefix", f"tree-{b}x{w}", _verify(b, w, tree=True), ONE) for b, w in ((1, 2), (32, 16))),
    *(Case("rejection_sample", f"{b}x{w}x{v}", _rejection(b, w, v), ONE) for b, w, v in ((1, 1, 7), (40, 5, 258))),
    Case("rejection_sample", "near", _rejection(40, 5, 258, "near"), ONE),
    Case("rejection_sample", "equal", _rejection(40, 5, 258, "equal"), ONE),
    Case("rejection_sample", "filtered", _rejection(40, 5, 258, "near", left=0.05), ONE),
    Case("rejection_sample", "large", _rejection(2, 3, 20001, "near"), ONE),
    *(Case("noise_keys", draw, _noise(3, 5, draw), ONE) for draw in ("number", "slots", "rows")),
    Case("noise_keys", "many", _noise(40, 65), ONE),
    *(
        Case(op, name, make, ONE)
        for op in ("rejection_sample", "block_sample", "tree_sample")
        for name, make in (
            ("broken", _rejection(24, 4, 37, "broken")),
            ("equal-noise", _equal_noise()),
            ("equal-noise-residual", _equal_noise(residual=True)),
        )
    ),
    *(
        Case(op, "gaps", _with_gaps(make), ONE)
        for op, make in (
            ("sample", _sample(2, 3, 33)),
            ("accept", _coins(3, 5)),
            ("verify_prefix", _verify(9, 5, tree=True)),
            ("rejection_sample", _rejection(9, 4, 37, "near")),
            ("block_sample", _rejection(9, 4, 37, "near")),
            ("tree_sample", _rejection(9, 6, 37, "near", tree=True)),
            ("kv_append", _append(5, 2)),
            ("kv_compact", _compact([0, 2, 5, 6], [0, 1, 2, 3])),
            ("kv_plan", _plan(5, tree=True)),
            ("emit", _emit(9, 5, tree=True)),
            ("rotary", _rotary(3, 5, 16)),
            ("tree_attention", _attention(3, 4, 21)),
        )
    ),
    Case("tree_sample", "broken-tree", _rejection(24, 6, 37, "broken", tree=True), ONE),
    *(Case("block_sample", f"{b}x{w}x{v}", _rejection(b, w, v), ONE) for b, w, v in ((1, 1, 7), (40, 5, 258))),
    *(Case("block_sample", q, _rejection(40, 5, 258, q), ONE) for q in ("near", "equal")),
    Case("block_sample", "filtered", _rejection(40, 5, 258, "near", left=0.05), ONE),
    Case("block_sample", "large", _rejection(2, 3, 20001, "near"), ONE),
    *(
        Case("tree_sample", f"{b}x{w}x{v}", _rejection(b, w, v, tree=True), ONE)
        for b, w, v in ((1, 1, 7), (40, 5, 258), (9, 20, 11))
    ),
    *(Case("tree_sample", q, _rejection(40, 9, 258, q, tree=True), ONE) for q in ("near", "equal")),
    Case("tree_sample", "chain", _rejection(40, 5, 258, "near"), ONE),
    Case("tree_sample", "filtered", _rejection(40, 9, 258, "near", left=0.05, tree=True), ONE),
    Case("tree_sample", "large", _rejection(2, 6, 20001, "near", tree=True), ONE),
]
"""Empty, single, maximal, strided, ragged and ring-wrapped inputs of every op."""

AROUND_VECTORS = (3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33)
"""One less than whole vectors of 4, 8 and 16 floats, whole ones, and one more."""

AROUND_SUMS = (255, 256, 257, 511, 512, 513, 1023, 1024, 1025)
"""The same around 64 vectors, whose sum ``process`` adds up as one."""

SLOTS = [
    *(Case("linear_of_slots", kind, _of_slots(_linear(15, 37, 96, kind, bias=True), (2, 5, 1))) for kind in KINDS),
    Case("linear_of_slots", "one-wide", _of_slots(_linear(96, 50, 64), (1, 1, 16, 1, 1, 1))),
    Case("linear_of_slots", "full", _of_slots(_linear(8, 33, 83), (4, 4))),
    Case("linear_of_slots", "wide", _of_slots(_linear(12, 37, 96, wide=True), (1, 4, 3))),
    Case("sample_of_slots", "ragged", _draws_of_slots((2, 5, 1), 5, 258), ONE),
    Case("sample_of_slots", "greedy", _draws_of_slots((1, 1, 4, 1), 4, 5001, noise=False), ONE),
    Case("sample_of_slots", "full", _draws_of_slots((3, 3), 3, 37), ONE),
]
"""Products and draws in windows with padding: a backend may compute it or leave it out."""


def _around(sizes: Iterable[int], sums: Iterable[int]) -> list[Case]:
    """For each op with vectors in C++, cases of these sizes; ``sums`` are those of ``process``'s sums of vectors."""
    sizes = tuple(sizes)
    return [
        *(Case("linear", f"tail-{kind}-{n}", _linear(3, n, n + 1, kind)) for kind in KINDS[:3] for n in sizes),
        *(Case("linear", f"tail-int4-{n}", _linear(3, n, 64, "int4", bias=True)) for n in sizes),
        *(Case("linear", f"tail-wide-{n}", _linear(2, n, 7, bias=True, wide=True)) for n in sizes),
        *(Case("rms_norm", f"tail-{n}", _norm(2, n, offset=1.0)) for n in sizes),
        *(Case("rotary", f"tail-{n}", _rotary(1, 2, 2 * n)) for n in sizes),
        *(Case("silu_mul", f"tail-{n}", _silu(12_288 // n + 1, n)) for n in sizes),
        # A ring of a span and 255 cells has one cell less than whole vectors.
        *(Case("tree_attention", f"tail-{w}-{n}", _attention(1, w, n, 16)) for n in (*sizes, 271) for w in (1, 5)),
        *(Case("tree_attention", f"tail-head-{n}", _attention(1, 2, 18, n, softcap=3.0)) for n in sizes),
        *(Case("process", f"tail-{n}", _process(6, 2, n, EVERY), ONE) for n in sizes if n > 6),
        *(Case("process", f"tail-cold-{n}", _process(1, 2, n, COLD), ONE) for n in sizes),
        *(Case("process", f"tail-top-p-{n}", _process(1, 2, n, {**WARM, "top_p": (0.6,)}), ONE) for n in sums),
        *(Case("sample", f"tail-{n}", _sample(2, 2, n), ONE) for n in sizes),
        *(Case("sample", f"tail-argmax-{n}", _sample(2, 2, n, noise=False), ONE) for n in sizes),
        *(Case("rejection_sample", f"tail-{n}", _rejection(2, 3, n, "near"), ONE) for n in sizes),
    ]


TAILS = _around(AROUND_VECTORS, AROUND_SUMS)
"""Sizes at which the last vector is nearly full, full, and nearly empty."""


def every_tail() -> list[Case]:
    """Every number of floats that vectors of up to 16 can leave over, with a whole vector before them and without."""
    return [
        *_around(range(1, 33), (*AROUND_SUMS, *range(1026, 1040))),
        *(Case("decoder_layers", f"tail-{n}", _layers(1, 2, hidden=n + 32, inner=n + 48)) for n in range(16)),
    ]


SMALL = [
    *(Case("linear", f"small-{kind}", _linear(3, 21, 96, kind, bias=True)) for kind in KINDS[2:]),
    *(Case("linear", f"small-{kind}-rows", _linear(19, 18, 64, kind), ONE) for kind in KINDS[2:]),
    Case("linear", "small-strided", _linear(3, 7, 64, "int8", strided=True, wide=True)),
    *(Case("rms_norm", f"small-{n}", _norm(3, n, offset=0.5)) for n in (1, 9, 16)),
    Case("rms_norm", "small-strided", _norm(3, 17, strided=True)),
    Case("rotary", "small", _rotary(2, 2, 10), ONE),
    Case("rotary", "small-shared", _rotary(2, 3, 4, shared=True), ONE),
    Case("silu_mul", "small", _silu(2, 1030)),
    Case("silu_mul", "small-batch", _silu(2, 5, batch=2), ONE),
    Case("silu_mul", "small-extreme", _silu(2, 64, scale=60.0)),
    Case("kv_append", "small", _append(2, 19, size=10), ONE),
    Case("kv_plan", "small-tree", _plan(6, tree=True, limit=9, capacity=24, look=20), ONE),
    Case("kv_plan", "small-ring", _plan(4, span=3, capacity=11, look=11, tree=True), ONE),
    *(Case("tree_attention", f"small-{w}", _attention(2, w, 19, 10, (4, 2)), ONE) for w in (1, 5, 17)),
    Case("tree_attention", "small-parts", _attention(2, 2, 300, 6, (2, 1), used=(257, 300)), ONE),
    Case("tree_attention", "small-softcap", _attention(1, 2, 5, 8, (2, 2), softcap=1.5)),
    *(
        Case("decoder_layers", f"small-{kind}", _layers(rows, 2, kind, True, 8, count, 32, 32), ONE)
        for kind, rows, count in (("own", 2, 2), ("int8", 1, 1), ("int4", 1, 1))
    ),
    *(
        Case(op, f"small-{q or 'certain'}-{left:g}", _rejection(6, 4, 37, q, left, tree=op == "tree_sample"), ONE)
        for op in ("rejection_sample", "block_sample", "tree_sample")
        for q, left in (("near", 1.0), ("equal", 1.0), ("near", 0.2), (None, 1.0), ("broken", 1.0))
    ),
    Case("emit", "small", _emit(5, 6, tree=True, cut=True), ONE),
]
"""A few numbers for each op: an interpreter of a kernel takes milliseconds for them."""

LAUNCHED = [
    *(Case("silu_mul", f"launched-{n}", _silu(2, n)) for n in (*AROUND_VECTORS[:6], 255, 256, 257, 1028, 2056)),
    *(Case("rms_norm", f"launched-{n}", _norm(2, n, offset=0.5)) for n in (31, 33, 124, 128, 132, 1023, 1025, 4100)),
    *(Case("rotary", f"launched-{w}", _rotary(2, w, 128)) for w in (8, 9, 33)),
    *(Case("kv_append", f"launched-{n}", _append(20, 3, n)) for n in (1, 13, 26, 52, 104)),
    *(Case("verify_prefix", f"launched-{b}", _verify(b, 4, tree=True), ONE) for b in (31, 33, 64, 65)),
    *(Case("accept", f"launched-{n}", _coins(n, 1), ONE) for n in (511, 512, 513, 1025)),
    *(Case("sample", f"launched-{v}", _sample(2, 1, v, spread=1.0), ONE) for v in (511, 513, 4095, 4097, 6177)),
    *(Case("rejection_sample", f"launched-{v}", _rejection(2, 2, v, "near"), ONE) for v in (513, 4095, 4097)),
    Case("rejection_sample", "launched-wide", _rejection(2, 515, 3, "near"), ONE),
]
"""For each op with kernels in CUDA, sizes around those at which a launch gets a further block, warp or part."""

FLOAT16_CASES = [replace(case, dtypes=(torch.float16,)) for case in CASES if case.dtypes == FLOATS]
"""The cases of ops on floats once more, in the dtype that kernels on a GPU take besides, and those on a CPU do not."""
