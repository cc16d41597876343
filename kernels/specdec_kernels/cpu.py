"""The cpu backend: C++ compiled at first use, one source for plain C++, AVX2, AVX-512 and AVX-512 with bfloat16.

The level is the best that this processor has; ``cpu(level=avx2)`` asks for a lower one. There are as many threads as
``torch.get_num_threads()`` says, our own: see csrc/team.h and ``specdec.threads``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from specdec.decoder import Cells, DecoderWeights
from specdec.errors import SpecdecError, unknown
from specdec.hookspecs import hookimpl
from specdec.interfaces import BackendFactory
from specdec.messages import Verdict, Window
from specdec.packed import Packed, Weight
from specdec.processors import StackedParams, bans
from specdec.threads import kernel_threads
from specdec_kernels import build
from specdec_kernels.recycled import Recycled
from specdec_kernels.reference import Reference

_AVX512 = {"avx512_f": "avx512f", "avx512_bw": "avx512bw", "avx512_vl": "avx512vl", "avx512_dq": "avx512dq"}
LEVELS: dict[str, dict[str, str]] = {
    "avx512_bf16": {**_AVX512, "fma3": "fma", "avx512_bf16": "avx512bf16"},
    "avx512": {**_AVX512, "fma3": "fma"},
    "avx2": {"avx2": "avx2", "fma3": "fma", "f16c": "f16c"},
    "plain": {},
}
"""Each level's instruction sets, by torch's names and by the compiler's; the best level first."""

CODE = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 3}  # enum Kind of packed.h
LEAST = {torch.float32: 0xFF80 << 16, torch.bfloat16: 0xFF80, torch.float16: 0xFC00, torch.float64: 0xFFF0 << 48}
"""The bits of -inf."""

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
SIGNATURES = {
    "linear": [_INT, *[_POINTER] * 3, _INT, _INT, *[_POINTER] * 2, *[_LONG] * 3, _INT],
    "linear_of_slots": [_INT, *[_POINTER] * 3, _INT, _INT, *[_POINTER] * 3, *[_LONG] * 4, _INT],
    "rms_norm": [_INT, *[_POINTER] * 3, _LONG, _LONG, _FLOAT, _FLOAT, _INT],
    "rotary": [_INT, *[_POINTER] * 6, *[_LONG] * 12],
    "silu_mul": [_INT, *[_POINTER] * 3, *[_LONG] * 4, _INT],
    "kv_plan": [*[_POINTER] * 6, _LONG, ctypes.c_uint64, *[_LONG] * 6],
    "kv_append": [*[_POINTER] * 5, *[_LONG] * 17],
    "kv_compact": [*[_POINTER] * 4, *[_LONG] * 11],
    "tree_attention": [_INT, *[_POINTER] * 6, *[_LONG] * 17, _FLOAT, _FLOAT, _INT],
    "decoder_layers": [_POINTER, _LONG, _INT, *[_POINTER] * 5, *[_LONG] * 2, _INT],
    "process": [*[_POINTER] * 3, *[_LONG] * 3, _INT],
    "sample": [*[_POINTER] * 4, *[_LONG] * 4, _INT],
    "verify_prefix": [*[_POINTER] * 7, _LONG, _LONG],
    "rejection_sample": [*[_POINTER] * 10, *[_LONG] * 3, _INT],
    "emit": [*[_POINTER] * 9, *[_LONG] * 5],
}
"""The argument types of each op's function in C++."""

FLAGS = ("-O3", "-std=c++17", "-fPIC", "-pthread", "-mtune=native")
"""The compiler's flags at every level."""


@cache
def levels() -> tuple[str, ...]:
    """The levels that this processor can run, best first."""
    if not hasattr(torch.cpu, "get_capabilities"):  # an older torch names only one level
        best = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability(), "plain")
        return tuple(LEVELS)[tuple(LEVELS).index(best) :]
    found = torch.cpu.get_capabilities()
    return tuple(name for name, needed in LEVELS.items() if all(found.get(feature) for feature in needed))


def cpu_compiler() -> str | None:
    """CXX if set, else the first of c++, g++ and clang++ that is on the path."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((found for found in map(shutil.which, names) if found), None)


def load_cpu_library(level: str, more: Sequence[str] = ()) -> ctypes.CDLL:
    """The kernels of one level, compiled if the cache lacks them; ``more``: further flags. Raises BuildError."""
    found = cpu_compiler()
    if found is None:
        raise build.BuildError("no C++ compiler: looked for CXX, c++, g++ and clang++; install one or set CXX")
    flags = [f"-m{name}" for name in LEVELS[level].values()]
    command = (found, *FLAGS, *flags, *more)
    library = build.library(f"cpu-{level}", command, ".cpp")
    for name, types in SIGNATURES.items():
        function = getattr(library, f"specdec_{name}")
        function.argtypes, function.restype = types, None
    return library


class Matrix(ctypes.Structure):
    """struct Matrix of packed.h."""

    _fields_ = [
        *((name, _POINTER) for name in ("weight", "scale", "bias")),
        *((name, _LONG) for name in ("kind", "inputs", "outputs")),
    ]


class Layer(ctypes.Structure):
    """struct Layer of layer.cpp."""

    _fields_ = [
        *((name, Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _POINTER) for name in ("norm_before", "norm_after")),
        *((name, _LONG) for name in ("heads", "heads_kv", "size")),
        *((name, _FLOAT) for name in ("eps_before", "eps_after", "norm_offset", "scaling")),
    ]


class ArenaCells(ctypes.Structure):
    """struct Cells of layer.cpp."""

    _fields_ = [
        *((name, _POINTER) for name in ("keys", "values", "cells", "mask")),
        ("length", _LONG),
        *((name, _LONG * count) for name, count in (("keys_stride", 3), ("values_stride", 3), ("mask_stride", 2))),
    ]


class Turn(ctypes.Structure):
    """struct Turn of layer.cpp."""

    _fields_ = [("cos", _POINTER), ("sin", _POINTER), ("stride", _LONG)]


class Processors(ctypes.Structure):
    """struct Processors of process.cpp."""

    _fields_ = [
        *((name, _POINTER) for name in ("temperature", "top_p", "min_p", "top_k", "bias", "seen", "emitted")),
        *((name, _POINTER) for name in ("repetition", "frequency", "presence", "paths", "banned")),
        *((name, _LONG) for name in ("depth", "bans", "bias_stride", "seen_stride", "emitted_stride")),
    ]


class Described:
    """The addresses of a layer's weights, for C++ over values of a dtype, and the tensors that must live as long."""

    def __init__(self, layer: DecoderWeights, dtype: torch.dtype) -> None:
        # C++ reads norms in the dtype of what they norm; those of a head may be stored in another one.
        before, after = (norm.to(dtype).contiguous() for norm in (layer.norm_before, layer.norm_after))
        self._kept: list[Tensor] = [before, after]
        self.layer = Layer(
            self._matrix(layer.qkv, layer.qkv_bias),
            self._matrix(layer.out, layer.out_bias),
            self._matrix(layer.gate_up, layer.gate_up_bias),
            self._matrix(layer.down, layer.down_bias),
            before.data_ptr(),
            after.data_ptr(),
            layer.heads,
            layer.heads_kv,
            layer.head_dim,
            layer.eps_before,
            layer.eps_after,
            layer.norm_offset,
            layer.scaling,
        )
        self.address, self.dtype = ctypes.addressof(self.layer), dtype

    def _matrix(self, weight: Weight, bias: Tensor | None) -> Matrix:
        assert isinstance(weight, Packed)
        outputs, inputs = weight.shape
        wide = None if bias is None else bias.float().contiguous()
        self._kept += [weight.data] if wide is None else [weight.data, wide]
        pointers = [None if t is None else t.data_ptr() for t in (weight.data, weight.scale, wide)]
        return Matrix(*pointers, CODE[weight.data.dtype], inputs, outputs)


MOST_SLOTS = 64
"""Slots up to which ``tree_attention`` is faster than torch's."""

LEAST_SILU = 12_288
"""Elements from which ``silu_mul`` is faster than torch's two operations, whose calls cost less."""

_TALLY = ("seen", "emitted", "repetition", "frequency", "presence")

_WIDE = (torch.float32, torch.bfloat16)


def _product(x: Tensor, weight: Packed, bias: Tensor | None, y: Tensor) -> tuple[int | None, ...]:
    """The first arguments of a product in C++; the caller keeps the tensors."""
    return (
        CODE[weight.data.dtype],
        weight.data.data_ptr(),
        None if weight.scale is None else weight.scale.data_ptr(),
        None if bias is None else bias.data_ptr(),
        CODE[x.dtype],
        CODE[y.dtype],
        x.data_ptr(),
        y.data_ptr(),
    )


class Cpu(Reference):
    """C++ on the CPU: float32 and bfloat16, and int8 or int4 weights; the reference runs all other calls.

    ``level`` is one of ``levels()``; ``auto`` is the best of them. Products are of packed weights: copies of floats
    beside the model's own, codes in place of the codes. ``pack`` False leaves out the copies of floats, and torch
    multiplies with the model's own.
    """

    name = "cpu"
    priority = 30
    devices = ("cpu",)
    own_threads = skips_padding = True
    row_invariant = frozenset(
        (
            *("linear", "rms_norm", "rotary", "silu_mul", "decoder_layers"),
            *("kv_plan", "kv_append", "kv_compact", "tree_attention"),
        )
    )

    def __init__(self, level: str = "auto", pack: bool = True) -> None:
        if level not in ("auto", *levels()):
            raise unknown("level", level, ("auto", *levels()), "These are what this processor can run.")
        if not isinstance(pack, bool):
            raise SpecdecError(f"pack is {pack!r}; expected True or False")
        self.level = levels()[0] if level == "auto" else level
        self._packs = pack
        self._memory = Recycled()
        self._layers: WeakKeyDictionary[DecoderWeights, Described] = WeakKeyDictionary()
        self._missing = build.forbidden()
        if self._missing is None:
            try:
                self._lib = load_cpu_library(self.level)
                self._linear = self._lib.specdec_linear
                self.slots_of_a_pass = int(self._lib.specdec_slots_of_a_pass())
            except build.BuildError as error:
                self._missing = str(error)

    def missing(self) -> str | None:
        """The reason why there are no kernels: compiling is forbidden, there is no compiler, or it failed."""
        return self._missing

    def pack(self, weight: Weight) -> Weight:
        """CPU matrices of float32, bfloat16 and codes; see ``Packed``."""
        if isinstance(weight, Packed) or weight.device.type != "cpu":
            return weight
        if isinstance(weight, Tensor) and not (self._packs and weight.dtype in _WIDE):
            return weight
        return Packed.of(weight)

    def takes(self, op: str, *tensors: Weight) -> bool:
        """CPU tensors of the dtypes above; ``linear`` with packed weights, ``tree_attention`` to 64 slots."""
        fits: Callable[..., bool] | None = _FITS.get(op)
        first = tensors[0]
        assert isinstance(first, Tensor)
        return first.is_cpu and fits is not None and fits(*tensors)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool = False) -> Tensor:
        """W is read once for a pass of rows: see csrc/packed.h."""
        # Weights that pass through the caches evict the interpreter's data, so this method runs little Python.
        assert isinstance(weight, Packed)
        if not x.is_contiguous():
            x = x.contiguous()
        if bias is not None:
            bias = bias.float()
        outputs, inputs = weight.shape
        y = x.new_empty((*x.shape[:-1], outputs), dtype=torch.float32 if wide else x.dtype)
        self._linear(*_product(x, weight, bias, y), y.numel() // outputs, inputs, outputs, kernel_threads())
        return y

    def linear_of_slots(
        self, x: Tensor, weight: Weight, bias: Tensor | None, width: Tensor, wide: bool = False
    ) -> Tensor:
        """The product of the slots that count alone; the others have numbers that were computed before, or 0."""
        assert isinstance(weight, Packed)
        x, width, bias = x.contiguous(), width.contiguous(), None if bias is None else bias.float()
        (rows, slots, inputs), outputs = x.shape, weight.shape[0]
        sizes = rows, slots, inputs, outputs
        if wide or x.dtype == torch.float32:
            y = self._memory.floats((rows, slots, outputs))
        else:
            y = x.new_zeros((rows, slots, outputs))
        self._lib.specdec_linear_of_slots(*_product(x, weight, bias, y), width.data_ptr(), *sizes, kernel_threads())
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """One pass for the squares and one for the product, both over cached data."""
        # Bound to names: a temporary tensor would be freed before its pointer is used.
        x, weight = x.contiguous(), weight.to(x.dtype)
        y = torch.empty_like(x)
        size = x.shape[-1]
        self._lib.specdec_rms_norm(
            CODE[x.dtype],
            x.data_ptr(),
            weight.data_ptr(),
            y.data_ptr(),
            x.numel() // size,
            size,
            eps,
            offset,
            kernel_threads(),
        )
        return y

    def rotary(self, query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys in one call, read in the layout that the projections left."""
        rows, heads, width, size = query.shape
        cos, sin = cos.contiguous(), sin.contiguous()
        new_query, new_keys = query.new_empty(query.shape), keys.new_empty(keys.shape)
        self._lib.specdec_rotary(
            CODE[query.dtype],
            query.data_ptr(),
            keys.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            new_query.data_ptr(),
            new_keys.data_ptr(),
            rows,
            heads,
            keys.shape[1],
            width,
            size,
            *query.stride()[:3],
            *keys.stride()[:3],
            width * size if cos.shape[0] > 1 else 0,
        )
        return new_query, new_keys

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """One pass."""
        size = gate.shape[-1]
        y = gate.new_empty(gate.shape)
        if gate.shape[:-2].numel() > 1:
            gate, up = gate.flatten(0, -2), up.flatten(0, -2)
        self._lib.specdec_silu_mul(
            CODE[gate.dtype],
            gate.data_ptr(),
            up.data_ptr(),
            y.data_ptr(),
            y.numel() // size,
            size,
            *(t.stride(-2) if t.dim() > 1 else size for t in (gate, up)),
            kernel_threads(),
        )
        return y

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
        """One call in place of some forty operations of torch."""
        parents, committed = window.parents.contiguous(), committed.contiguous()
        rows, width = parents.shape
        depth, position, cells = parents.new_empty((3, rows, width))
        mask = torch.empty((rows, 1, width, look), dtype=dtype)
        self._lib.specdec_kv_plan(
            parents.data_ptr(),
            committed.data_ptr(),
            depth.data_ptr(),
            position.data_ptr(),
            cells.data_ptr(),
            mask.data_ptr(),
            dtype.itemsize,
            LEAST[dtype],
            rows,
            width,
            span or 0,
            capacity,
            look,
            limit or 0,
        )
        return depth, position, cells, mask

    def kv_append(self, keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, cells: Tensor) -> None:
        """Copies whole head vectors, of any dtype."""
        rows, heads, width, size = new_keys.shape
        cells = cells.contiguous()
        self._lib.specdec_kv_append(
            keys.data_ptr(),
            values.data_ptr(),
            new_keys.data_ptr(),
            new_values.data_ptr(),
            cells.data_ptr(),
            keys.itemsize,
            rows,
            heads,
            width,
            size,
            *keys.stride()[:3],
            *values.stride()[:3],
            *new_keys.stride()[:3],
            *new_values.stride()[:3],
        )

    def kv_compact(self, keys: Tensor, values: Tensor, source: Tensor, target: Tensor) -> None:
        """Copies the cells that move to a buffer, then writes them; those that stay in place are not read."""
        rows, heads, _, size = keys.shape
        source, target = source.contiguous(), target.contiguous()
        self._lib.specdec_kv_compact(
            keys.data_ptr(),
            values.data_ptr(),
            source.data_ptr(),
            target.data_ptr(),
            rows,
            heads,
            source.shape[1],
            size,
            keys.itemsize,
            *keys.stride()[:3],
            *values.stride()[:3],
        )

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
        """Cells are read once for up to 24 queries of a key head, from the first to the last that one of them sees."""
        rows, heads, width, size = query.shape
        out = query.new_empty((rows, width, heads, size))
        self._lib.specdec_tree_attention(
            CODE[query.dtype],
            query.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            mask.data_ptr(),
            None if sinks is None else sinks.data_ptr(),
            out.data_ptr(),
            rows,
            heads,
            keys.shape[1],
            width,
            keys.shape[2],
            size,
            *query.stride()[:3],
            *keys.stride()[:3],
            *values.stride()[:3],
            mask.stride(0),
            mask.stride(2),
            scaling,
            softcap or 0.0,
            kernel_threads(),
        )
        return out

    def decoder_layers(
        self, x: Tensor, layers: Sequence[DecoderWeights], turn: tuple[Tensor, Tensor], at: Sequence[Cells]
    ) -> Tensor:
        """The same ops in one parallel region: csrc/layer.cpp. SpecdecError for cells or angles of another dtype."""
        x, (cos, sin) = x.contiguous(), (angle.contiguous() for angle in turn)
        of_x = {"cos": cos, "sin": sin, "keys": at[0].keys, "values": at[0].values, "mask": at[0].mask}
        if wrong := [f"{name} in {tensor.dtype}" for name, tensor in of_x.items() if tensor.dtype != x.dtype]:
            raise SpecdecError(
                f"decoder_layers of the cpu backend got x in {x.dtype} and {', '.join(wrong)}; expected the dtype of x "
                "for all of these: only norms and biases may have another"
            )
        rows, slots, _ = x.shape
        y = torch.empty_like(x) if slots == 1 else torch.zeros_like(x)
        described = [self._described(layer, x.dtype) for layer in layers]
        # The members of ArenaCells as bare numbers: structs and their arrays would take longer than a layer's norms.
        words, index, last = array("q"), list[Tensor](), None
        for one in at:
            if last is None or one.cells is not last.cells or one.mask is not last.mask:
                last, own = one, one.cells.contiguous()
                index.append(own)
                seen = own.data_ptr(), one.mask.data_ptr(), one.mask.shape[3]
                strides = one.mask.stride(0), one.mask.stride(2)
            keys, values = one.keys, one.values
            words.extend(
                (keys.data_ptr(), values.data_ptr(), *seen, *keys.stride()[:3], *values.stride()[:3], *strides)
            )
        cells, width = (ArenaCells * len(at)).from_buffer(words), at[0].width
        counts = None if width is None else width.contiguous()
        self._lib.specdec_decoder_layers(
            (_POINTER * len(layers))(*(layer.address for layer in described)),
            len(layers),
            CODE[x.dtype],
            x.data_ptr(),
            y.data_ptr(),
            ctypes.byref(Turn(cos.data_ptr(), sin.data_ptr(), slots * layers[0].head_dim if cos.shape[0] > 1 else 0)),
            cells,
            None if counts is None else counts.data_ptr(),
            rows,
            slots,
            kernel_threads(),
        )
        return y

    def _described(self, layer: DecoderWeights, dtype: torch.dtype) -> Described:
        found = self._layers.get(layer)
        if found is None or found.dtype != dtype:
            found = self._layers[layer] = Described(layer, dtype)
        return found

    def process(self, logits: Tensor, params: StackedParams, paths: Tensor | None) -> Tensor:
        """One pass over the logits of a slot, without a sort of the vocabulary: see csrc/process.cpp."""
        parts = params.adjustments
        logits, out = logits.contiguous(), torch.empty_like(logits, memory_format=torch.contiguous_format)
        banned = None if parts is None or paths is None else bans(parts, paths)
        paths = None if paths is None else paths.contiguous()
        bias, penalties = (None, None) if parts is None else (parts.bias, parts.penalties)
        tally = (None,) * 5
        if penalties is not None:
            tally = tuple(getattr(penalties, name).data_ptr() for name in _TALLY)
        banned = None if banned is None else banned.contiguous()
        values = [t.contiguous() for t in (params.temperature, params.top_p, params.min_p, params.top_k)]
        given = Processors(
            *(t.data_ptr() for t in values),
            None if bias is None else bias.data_ptr(),
            *tally,
            None if paths is None else paths.data_ptr(),
            None if banned is None else banned.data_ptr(),
            0 if paths is None else paths.shape[2],
            0 if banned is None else banned.shape[2],
            0 if bias is None else bias.stride(0),
            *((0, 0) if penalties is None else (penalties.seen.stride(0), penalties.emitted.stride(0))),
        )
        rows, slots, vocabulary = logits.shape
        self._lib.specdec_process(
            ctypes.addressof(given),
            logits.data_ptr(),
            out.data_ptr(),
            rows,
            slots,
            vocabulary,
            kernel_threads(),
        )
        return out

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """Most tokens are skipped without a hash or a logarithm: see csrc/verify.cpp."""
        return self._sampled(logits, key, None)

    def sample_of_slots(self, logits: Tensor, key: Tensor | None, width: Tensor) -> Tensor:
        """The tokens of the slots that count; 0 for the others."""
        return self._sampled(logits, key, width)

    def _sampled(self, logits: Tensor, key: Tensor | None, width: Tensor | None) -> Tensor:
        size = logits.shape[-1]
        rows = logits.reshape(-1, size)
        rows = rows if rows.stride(1) == 1 else rows.contiguous()
        chosen = torch.empty(logits.shape[:-1], dtype=torch.int64)
        flat, counts = (None if given is None else given.contiguous() for given in (key, width))
        batch, slots = (len(rows), 1) if counts is None else logits.shape[:2]
        self._lib.specdec_sample(
            rows.data_ptr(),
            None if flat is None else flat.data_ptr(),
            chosen.data_ptr(),
            None if counts is None else counts.data_ptr(),
            batch,
            slots,
            size,
            rows.stride(0),
            kernel_threads(),
        )
        return chosen

    def verify_prefix(self, window: Window, choices: Tensor) -> Verdict:
        """A walk from the root, row by row."""
        rows, slots = window.tokens.shape
        tokens, parents, width, choices = (
            t.contiguous() for t in (window.tokens, window.parents, window.width, choices)
        )
        path = torch.empty((rows, slots), dtype=torch.int64)
        accepted, following = (torch.empty(rows, dtype=torch.int64) for _ in range(2))
        self._lib.specdec_verify_prefix(
            tokens.data_ptr(),
            parents.data_ptr(),
            width.data_ptr(),
            choices.data_ptr(),
            path.data_ptr(),
            accepted.data_ptr(),
            following.data_ptr(),
            rows,
            slots,
        )
        return Verdict(path, accepted, following)

    def rejection_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """Ratio tests, residual and draw of all rows in one call."""
        rows, slots, vocabulary = distribution.shape
        given = (distribution, window.tokens, window.width, accept_key, residual_key, bonus_key)
        distribution, tokens, width, *keys = (t.contiguous() for t in given)
        q = None if window.q is None else window.q.contiguous()
        path = torch.empty((rows, slots), dtype=torch.int64)
        accepted, following = (torch.empty(rows, dtype=torch.int64) for _ in range(2))
        self._lib.specdec_rejection_sample(
            distribution.data_ptr(),
            None if q is None else q.data_ptr(),
            tokens.data_ptr(),
            width.data_ptr(),
            *(key.data_ptr() for key in keys),
            path.data_ptr(),
            accepted.data_ptr(),
            following.data_ptr(),
            rows,
            slots,
            vocabulary,
            kernel_threads(),
        )
        return Verdict(path, accepted, following)

    def emit(self, window: Window, verdict: Verdict, tokens: Tensor, length: Tensor) -> Tensor:
        """A walk over each row's path."""
        given = (window.tokens, window.depth, window.width, verdict.path, verdict.num_accepted, verdict.next, length)
        proposed, depth, width, path, accepted, following, length = (t.contiguous() for t in given)
        rows, steps = path.shape
        packed = path.new_empty((rows, steps + 4))
        self._lib.specdec_emit(
            proposed.data_ptr(),
            depth.data_ptr(),
            width.data_ptr(),
            path.data_ptr(),
            accepted.data_ptr(),
            following.data_ptr(),
            length.data_ptr(),
            tokens.data_ptr(),
            packed.data_ptr(),
            rows,
            proposed.shape[1],
            steps,
            *tokens.stride(),
        )
        return packed


def _fits_attention(query: Tensor, keys: Tensor, *sinks: Tensor) -> bool:
    dense = query.stride(3) == keys.stride(3) == 1
    like = keys.dtype == query.dtype and all(one.dtype == query.dtype and one.is_contiguous() for one in sinks)
    return like and query.dtype in _WIDE and query.shape[2] <= MOST_SLOTS and dense


def _fits_rotary(query: Tensor, cos: Tensor) -> bool:
    return query.dtype in _WIDE and cos.dtype == query.dtype and query.stride(3) == 1


def _fits_append(keys: Tensor, new_keys: Tensor) -> bool:
    return keys.dtype == new_keys.dtype and keys.stride(3) == new_keys.stride(3) == 1


_FITS: dict[str, Callable[..., bool]] = {
    "linear": lambda x, weight: x.dtype in _WIDE and isinstance(weight, Packed),
    "rms_norm": lambda x: x.dtype in _WIDE,
    "rotary": _fits_rotary,
    "silu_mul": lambda gate: gate.dtype in _WIDE and gate.stride(-1) == 1 and gate.numel() >= LEAST_SILU,
    "kv_plan": lambda committed: True,
    "kv_append": _fits_append,
    "kv_compact": lambda keys: keys.stride(3) == 1,
    "tree_attention": _fits_attention,
    "decoder_layers": lambda x, qkv: x.dtype in _WIDE and isinstance(qkv, Packed),
    "process": lambda logits: logits.dtype == torch.float32,
    "sample": lambda logits: logits.dtype == torch.float32,
    "verify_prefix": lambda choices: True,
    "rejection_sample": lambda distribution: distribution.dtype == torch.float32,
    "emit": lambda tokens: True,
}
"""The condition of each op on its deciding tensors, given that they are on the CPU."""


@hookimpl
def specdec_register_backends(register: Callable[[str, BackendFactory], None]) -> None:
    """Register ``cpu``."""
    register("cpu", Cpu)
