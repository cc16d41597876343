"""The work on which kernels are timed: each op at the shapes of one target, with its bytes and operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor, nn

from specdec.decoder import Cells, DecoderWeights
from specdec.interfaces import Backend
from specdec.ledger import stacked
from specdec.messages import Verdict, Window
from specdec.model import ArenaModel
from specdec.quantised import GROUP, Quantised
from specdec.request import Request, SamplingParams

WIDTHS = (*range(1, 17), 32)
"""Rows at which a whole model is timed, for its v(W) curve."""

ROWS = {"float32": (*WIDTHS, 24, 48, 64, 128, 256, 512), "bfloat16": (*WIDTHS, 64, 256, 512)}
CODE_ROWS = (1, 2, 4, 8, 9, 12, 16, 32, 64, 256, 512)
"""Rows at which ``linear`` is timed, by the kind of its weights: windows, ragged batches and prefill chunks."""

FEW = (1, 8)
"""Rows of the ops of a layer: one token, and a window."""

LENGTHS = (128, 512, 2048, 4096)
"""Cells over which ``tree_attention`` attends; the longest is the capacity of the caches that are written."""

EPSILON = 1e-5
"""What norms add to a mean square."""

VERIFIED = {
    "cpu": tuple((b, k, None) for b, k in ((1, 4), (1, 8), (8, 8))),
    "mps": tuple((b, k, None) for b, k in ((1, 4), (1, 8), (8, 8))),
    "cuda": tuple((b, k, v) for b in (1, 8, 32) for k in (1, 4, 8) for v in (32_000, 128_000, 152_000)),
}
"""Rows, proposals and vocabulary (None: the target's) of the ops that draw and verify."""

PROCESSED = {
    "temperature": SamplingParams(temperature=0.8),
    "every": SamplingParams(
        temperature=0.8,
        top_k=50,
        top_p=0.95,
        min_p=0.02,
        repetition_penalty=1.1,
        frequency_penalty=0.3,
        presence_penalty=0.3,
        logit_bias={1: 2.0},
        bad_words=((2,), (3, 4)),
        eos=(0,),
        min_new_tokens=8,
    ),
}
"""The parameters with which the op ``process`` is timed."""


@dataclass(frozen=True)
class Work:
    """One op at one shape: the arguments of each of its ``calls``, the bytes they move, and the operations of products.

    The peak that operations are compared with is that of a matrix product: an op without one never comes near it.
    """

    op: str
    kind: str
    shape: str
    calls: tuple[tuple[Any, ...], ...]
    moved: int
    operations: int = 0

    def on(self, ops: Backend, kept: dict[int, tuple[Any, Any]]) -> Work:
        """The same work with its matrices in the backend's own form; ``kept`` holds those packed so far, by id."""

        def packed(argument: Any) -> Any:
            if id(argument) not in kept:
                layers = isinstance(argument, tuple)
                mine = tuple(layer.packed(ops) for layer in argument) if layers else ops.pack(argument)
                kept[id(argument)] = argument, mine
            return kept[id(argument)][1]

        if self.op not in ("linear", "decoder_layers"):
            return self
        return replace(self, calls=tuple((x, packed(weights), *rest) for x, weights, *rest in self.calls))

    def do(self, ops: Backend) -> None:
        """Make the calls on ``ops``."""
        op = getattr(ops, self.op)
        for arguments in self.calls:
            op(*arguments)


class Target:
    """The shapes and the matrices of a model; one ``linear`` work is every matrix product of one forward.

    Example: ``for work in Target(model).work("linear"): work.do(ops)``
    """

    def __init__(self, model: ArenaModel) -> None:
        config = model.model.config.get_text_config(decoder=True)
        self.device, self.dtype = model.device, model.dtype
        self.hidden: int = config.hidden_size
        self.inner: int = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
        self.heads: int = config.num_attention_heads
        self.heads_kv, self.head_dim = model.layers[0].heads, model.layers[0].head_dim
        self.vocabulary = model.vocabulary
        self.matrices = [m.weight.detach() for m in model.model.modules() if isinstance(m, nn.Linear)]
        self._generator = Generator().manual_seed(0)

    def work(self, op: str) -> Iterator[Work]:
        """Return all work of one op; raises KeyError for an unknown op."""
        makers: dict[str, Callable[[], Iterator[Work]]] = {
            "linear": self._linear,
            "rms_norm": self._norm,
            "rotary": self._rotary,
            "silu_mul": self._silu,
            "decoder_layers": self._layer,
            "kv_append": self._append,
            "kv_compact": self._compact,
            "tree_attention": self._attention,
            "process": self._process,
            "sample": self._sample,
            "accept": self._accept,
            "verify_prefix": self._verify,
            "emit": self._emit,
            "kv_plan": self._plan,
            "noise_keys": self._noise,
            "rejection_sample": lambda: self._rejection("rejection_sample"),
            "block_sample": lambda: self._rejection("block_sample"),
            "tree_sample": lambda: self._rejection("tree_sample"),
        }
        return makers[op]()

    def _random(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(shape, generator=self._generator).to(self.device, dtype or self.dtype)

    def _whole(self, high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=self._generator).to(self.device)

    def _keys(self, *shape: int) -> Tensor:
        return self._whole(2**62, *shape)

    def _one(self, op: str, shape: str, arguments: tuple[Any, ...], moved: int, operations: int = 0) -> Work:
        kind = next(str(a.dtype) for a in arguments if isinstance(a, Tensor)).removeprefix("torch.")
        return Work(op, kind, shape, (arguments,), moved, operations)

    def _linear(self) -> Iterator[Work]:
        own = str(self.dtype).removeprefix("torch.")
        kinds: dict[str, Callable[[Tensor], Tensor | Quantised]] = {
            own: lambda matrix: matrix,
            "bfloat16": lambda matrix: matrix.bfloat16(),
            "int8": lambda matrix: Quantised.of(matrix, 8),
            "int4": lambda matrix: Quantised.of(matrix, 4),
        }
        if any(matrix.shape[1] % GROUP for matrix in self.matrices):
            del kinds["int4"]
        for kind, change in kinds.items():
            weights = [change(matrix) for matrix in self.matrices]
            dtype = torch.bfloat16 if kind == "bfloat16" else self.dtype
            for width in ROWS.get(kind, CODE_ROWS):
                inputs = {k: self._random(width, k, dtype=dtype) for k in {m.shape[1] for m in self.matrices}}
                ends = sum(sum(matrix.shape) for matrix in self.matrices) * width * dtype.itemsize
                yield Work(
                    "linear",
                    kind,
                    f"W={width}",
                    tuple((inputs[weight.shape[1]], weight, None) for weight in weights),
                    sum(weight.nbytes for weight in weights) + ends,
                    2 * width * sum(matrix.numel() for matrix in self.matrices),
                )

    def _norm(self) -> Iterator[Work]:
        for width in FEW:
            x, weight = self._random(1, width, self.hidden), self._random(self.hidden)
            moved = 2 * x.nbytes + weight.nbytes
            yield self._one("rms_norm", f"{width}x{self.hidden}", (x, weight, EPSILON, 0.0), moved)

    def _rotary(self) -> Iterator[Work]:
        for width in FEW:
            query = self._random(1, width, self.heads, self.head_dim).transpose(1, 2)
            keys = self._random(1, width, self.heads_kv, self.head_dim).transpose(1, 2)
            turn = self._random(1, width, self.head_dim)
            shape = f"{width}x{self.heads}+{self.heads_kv}x{self.head_dim}"
            moved = 2 * (query.nbytes + keys.nbytes + turn.nbytes)
            yield self._one("rotary", shape, (query, keys, turn, turn), moved)

    def _silu(self) -> Iterator[Work]:
        for width in FEW:
            gate, up = self._random(1, width, 2 * self.inner).split(self.inner, dim=-1)
            yield self._one("silu_mul", f"{width}x{self.inner}", (gate, up), 3 * gate.nbytes)

    def _layer(self) -> Iterator[Work]:
        size, heads, heads_kv, hidden, inner = self.head_dim, self.heads, self.heads_kv, self.hidden, self.inner

        def matrix(outputs: int, inputs: int) -> tuple[Tensor, None]:
            return self._random(outputs, inputs) * inputs**-0.5, None

        layer = DecoderWeights(
            self._random(hidden),
            EPSILON,
            *matrix((heads + 2 * heads_kv) * size, hidden),
            *matrix(hidden, heads * size),
            self._random(hidden),
            EPSILON,
            *matrix(2 * inner, hidden),
            *matrix(hidden, inner),
            norm_offset=0.0,
            heads=heads,
            heads_kv=heads_kv,
            head_dim=size,
            scaling=size**-0.5,
        )
        matrices = [weight for weight in vars(layer).values() if isinstance(weight, Tensor) and weight.dim() == 2]
        length = min(LENGTHS)
        layers, (keys, values) = (layer,), self._arena(length)
        for width in FEW:
            turn = self._random(1, width, size)
            mask = torch.zeros(1, 1, width, length, device=self.device, dtype=self.dtype)
            at = Cells(keys, values, torch.arange(width, device=self.device)[None], mask)
            moved = sum(matrix.nbytes for matrix in matrices) + keys.nbytes + values.nbytes
            operations = 2 * width * sum(matrix.numel() for matrix in matrices)
            arguments = self._random(1, width, hidden), layers, (turn, turn), (at,)
            yield self._one("decoder_layers", f"W={width} L={length}", arguments, moved, operations)

    def _arena(self, length: int) -> tuple[Tensor, Tensor]:
        return self._random(1, self.heads_kv, length, self.head_dim), self._random(
            1, self.heads_kv, length, self.head_dim
        )

    def _append(self) -> Iterator[Work]:
        for width in FEW:
            keys, values = self._arena(max(LENGTHS))
            new = self._random(1, width, self.heads_kv, self.head_dim).transpose(1, 2)
            cells = torch.arange(width, device=self.device)[None]
            yield self._one("kv_append", f"W={width}", (keys, values, new, new, cells), 4 * new.nbytes)

    def _compact(self) -> Iterator[Work]:
        keys, values = self._arena(max(LENGTHS))
        kept, slots = 5, 16
        path = torch.randperm(slots, generator=self._generator)[:kept].sort().values
        source, target = (cells.to(self.device)[None] for cells in (path, torch.arange(kept)))
        moved = 4 * kept * self.heads_kv * self.head_dim * keys.itemsize
        yield self._one("kv_compact", f"{kept} of {slots}", (keys, values, source, target), moved)

    def _attention(self) -> Iterator[Work]:
        for length in LENGTHS:
            keys, values = self._arena(length)
            for width in FEW:
                query = self._random(1, width, self.heads, self.head_dim).transpose(1, 2)
                mask = torch.zeros(1, 1, width, length, device=self.device, dtype=self.dtype)
                yield self._one(
                    "tree_attention",
                    f"W={width} L={length}",
                    (query, keys, values, mask, self.head_dim**-0.5, None),
                    keys.nbytes + values.nbytes + 2 * query.nbytes,
                    4 * self.heads * width * length * self.head_dim,
                )

    def _verified(self) -> Iterator[tuple[int, int, int]]:
        for rows, proposals, vocabulary in VERIFIED[self.device.type]:
            yield rows, proposals + 1, vocabulary or self.vocabulary

    def _logits(self, rows: int, width: int, vocabulary: int) -> Tensor:
        return 4 * self._random(rows, width, vocabulary, dtype=torch.float32)

    def _process(self) -> Iterator[Work]:
        for rows, width, vocabulary in self._verified():
            logits, window = self._logits(rows, width, vocabulary), self._chain(rows, width, vocabulary)
            shape = f"B={rows} W={width} V={vocabulary}"
            for name, params in PROCESSED.items():
                requests = [Request(row, tuple(range(64)), params) for row in range(rows)]
                given = stacked(requests, vocabulary, self.device)
                paths = window.paths if given.adjustments else None
                # Each row's bias, counts and presence in the prompt are read once for all of its slots.
                moved = 2 * logits.nbytes + (9 * rows * vocabulary if given.adjustments else 0)
                yield self._one("process", f"{shape} {name}", (logits, given, paths), moved)

    def _sample(self) -> Iterator[Work]:
        for rows, width, vocabulary in self._verified():
            logits = self._logits(rows, width, vocabulary)
            shape = f"B={rows} W={width} V={vocabulary}"
            yield self._one("sample", f"{shape} greedy", (logits, None), logits.nbytes)
            yield self._one("sample", shape, (logits, self._keys(rows, width)), logits.nbytes)

    def _accept(self) -> Iterator[Work]:
        rows, proposals = 8, 8
        probability, keys = self._random(rows, proposals, dtype=torch.float32).sigmoid(), self._keys(rows, proposals)
        yield self._one("accept", f"{rows}x{proposals}", (probability, keys), probability.nbytes + keys.nbytes)

    def _verify(self) -> Iterator[Work]:
        for rows, width in dict.fromkeys((rows, width) for rows, width, _ in self._verified()):
            window, choices = self._chain(rows, width, 2), self._whole(2, rows, width)
            moved = 4 * choices.nbytes  # beside the choices tokens, parents and the path, which is written
            yield self._one("verify_prefix", f"B={rows} K={width - 1}", (window, choices), moved)

    def _chain(self, rows: int, width: int, vocabulary: int, q: Tensor | None = None) -> Window:
        tokens = self._whole(vocabulary, rows, width)
        return Window.chain(tokens[:, 0], tokens[:, 1:], torch.full_like(tokens[:, 0], width - 1), q)

    def _emit(self) -> Iterator[Work]:
        rows, width = 8, 9
        window = self._chain(rows, width, self.vocabulary)
        path = torch.arange(width, device=self.device).expand(rows, width)
        verdict = Verdict(path, window.width - 1, self._whole(self.vocabulary, rows))
        text, length = self._whole(self.vocabulary, rows, max(LENGTHS)), torch.full_like(window.width, min(LENGTHS))
        moved = 5 * path.nbytes  # tokens, parents and the path are read, and the tokens written twice
        yield self._one("emit", f"{rows}x{width}", (window, verdict, text, length), moved)

    def _plan(self) -> Iterator[Work]:
        width, kind = 8, str(self.dtype).removeprefix("torch.")
        for length in LENGTHS:
            committed = torch.full((1,), length - width, device=self.device)
            given = self._chain(1, width, self.vocabulary), committed, None, length, length, None, self.dtype
            moved = width * length * self.dtype.itemsize
            yield Work("kv_plan", kind, f"W={width} L={length}", (given,), moved)

    def _noise(self) -> Iterator[Work]:
        rows, width = 8, 8
        stream, position = self._keys(rows), self._whole(max(LENGTHS), rows, width)
        yield self._one("noise_keys", f"{rows}x{width}", (stream, position, 0), 5 * position.nbytes)

    def _rejection(self, op: str) -> Iterator[Work]:
        for rows, width, vocabulary in self._verified():
            logits = self._logits(rows, width, vocabulary)
            distribution, q = logits.softmax(dim=-1), logits[:, 1:].softmax(dim=-1)
            window = self._chain(rows, width, vocabulary, q)
            keys = [self._keys(rows, width) for _ in range(3)]
            # One row of p and one of q are scanned twice: to find whether a residual exists, and to draw.
            moved = rows * 4 * vocabulary * distribution.itemsize
            shape = f"B={rows} K={width - 1} V={vocabulary}"
            yield self._one(op, shape, (distribution, window, *keys), moved)
