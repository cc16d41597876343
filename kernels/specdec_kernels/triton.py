"""The Triton backend: the reference's ops as kernels for a GPU, or for Triton's slow interpreter on a CPU.

Triton is optional and is imported with the kernels, at the first call. With ``TRITON_INTERPRET=1``, set before that,
the same kernels run on CPU tensors, for tests only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from specdec.decoder import Cells, DecoderWeights
from specdec.errors import SpecdecError
from specdec.hookspecs import hookimpl
from specdec.interfaces import BackendFactory
from specdec.messages import Verdict, Window
from specdec.packed import Packed, Weight
from specdec.quantised import Quantised
from specdec.sampling import Purpose
from specdec_kernels.build import forbidden
from specdec_kernels.reference import Reference

BLOCK = 4096
"""Number of vocabulary entries that a program processes together."""

MAX_HEAD, MAX_NORM = 256, 16384
"""The longest head and the longest normalised axis that fit into a program."""

TILE = 16
"""Rows of a step's products, and lines of its attention: up to so many, a program's tile has one shape. A row's result
is then the same beside any rows, bit for bit, and float products are as fast as memory gives the weights."""

SHARE = 256
"""Cells that one program of a step's attention reads; more are read by several, and their results are added up."""

PROGRAMS = 128
"""Programs from which a draw is not cut into further parts: about as many as a large GPU runs at once."""

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_DECODER = (
    *("kv_append", "kv_compact", "tree_attention", "linear", "rms_norm", "rotary", "silu_mul", "decoder_layers"),
)
_DTYPES = {
    **dict.fromkeys(("sample", "accept", "rejection_sample", "block_sample", "tree_sample"), (torch.float32,)),
    **dict.fromkeys(("noise_keys", "verify_prefix", "emit", "kv_plan"), (torch.int64,)),
    **dict.fromkeys(_DECODER, _FLOATS),
}

# Fused multiply-adds help in sums; where tokens are drawn, they are off, so that all rounding equals the reference's.
_FUSED = {"enable_fp_fusion": True}
_DRAWN = {"enable_fp_fusion": False, "num_warps": 16}

# All that a block of 16 warps can have; left alone, the assembler keeps to half of them on sm_80, and spills some.
_JUDGED = {**_DRAWN, "maxnreg": 128}


class Triton(Reference):
    """Kernels for CUDA devices; all shapes follow from (B, W, V), and the host reads nothing.

    Integer results equal the reference's; float results are summed in float32 and rounded once. ``exact``: every
    product and attention, of any number of rows, runs in tiles of one shape, so that a row's result is the same, bit
    for bit, beside any others; without it, more than 16 rows run where they are fastest.

    Example: ``Triton().missing()`` is None if it can run here, else the reason.
    """

    name = "triton"
    devices = ("cuda",)

    def __init__(self, exact: bool = False) -> None:
        if not isinstance(exact, bool):
            raise SpecdecError(f"exact is {exact!r}; expected True or False")
        self.row_invariant = frozenset((*_DECODER, "kv_plan")) if exact else frozenset()
        self._exact = exact
        self.interpreted = os.environ.get("TRITON_INTERPRET", "0") == "1"
        self._device = "cpu" if self.interpreted else "cuda"
        # Below the reference, so that the interpreter runs only if the user names this backend.
        self.priority = 5 if self.interpreted else 50
        self._arrivals: dict[tuple[torch.device, int], Tensor] = {}

    def missing(self) -> str | None:
        """The reason: compiled kernels are forbidden, Triton is not installed, or there is no device."""
        if forbidden():
            return forbidden()
        if find_spec("triton") is None:
            return "triton is not installed; pip install 'specdec-bench[triton]'"
        if not self.interpreted and not torch.cuda.is_available():
            return "there is no CUDA device; TRITON_INTERPRET=1 runs its kernels on the CPU, slowly"
        return None

    def takes(self, op: str, *tensors: Weight) -> bool:
        """See ``Backend``; CUDA tensors (CPU tensors when interpreted) of the dtypes and sizes that fit a program."""
        first, other = tensors[0], tensors[-1]
        if not isinstance(first, Tensor) or isinstance(other, Packed) or first.dtype not in _DTYPES.get(op, ()):
            return False
        if first.device.type != self._device or other.device != first.device:
            return False
        own = isinstance(other, Quantised) or other.dtype == first.dtype
        if op == "linear":
            return isinstance(other, Quantised) or (self._exact and own)
        if op == "decoder_layers":
            return own and (self._exact or first.shape[0] * first.shape[1] <= TILE)
        if not isinstance(other, Tensor) or other.dtype != first.dtype:
            return False
        size = first.shape[-1]
        if op == "tree_attention":
            keys = tensors[1]
            return isinstance(keys, Tensor) and size <= MAX_HEAD and first.shape[1] % keys.shape[1] == 0
        if op == "rotary":
            return size % 2 == 0 and other.shape[-1] == size
        return op != "rms_norm" or size <= MAX_NORM

    def _out(self, shape: Sequence[int], like: Tensor) -> Tensor:
        # The interpreter truncates bfloat16 instead of rounding, so it returns float32, which torch then rounds.
        dtype = torch.float32 if self.interpreted else like.dtype
        return torch.empty(shape, dtype=dtype, device=like.device)

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """argmax_x logits[x] + Gumbel(key, x), the lowest x of equals: one launch, or two for few slots."""
        from specdec_kernels.triton_verify import sample

        cube = logits if logits.dim() == 3 else logits.reshape(1, -1, logits.shape[-1])
        rows, width, vocabulary = cube.shape
        keys = cube if key is None else key.reshape(rows, width)
        parts, share = _parts(rows * width, vocabulary)
        scores, winners = _contest(logits, rows * width, parts)
        with torch.cuda.device_of(logits):
            sample[(rows * width, parts)](
                cube,
                keys,
                scores,
                winners,
                (width, vocabulary, share),
                cube.stride(),
                keys.stride(),
                NOISY=key is not None,
                BLOCK=min(BLOCK, _power(vocabulary)),
                **_DRAWN,
            )
        return (winners if parts == 1 else _picked(scores, winners)).view(logits.shape[:-1])

    def noise_keys(self, stream: Tensor, position: Tensor, draw: int | Tensor) -> Tensor:
        """``specdec.sampling.key`` for all purposes: one launch."""
        from specdec_kernels.triton_verify import noise_keys

        rows, width = torch.broadcast_shapes(position.shape, draw.shape if isinstance(draw, Tensor) else ())
        position = position.expand(rows, width)
        draws = draw.expand(rows, width) if isinstance(draw, Tensor) else position
        keys = torch.empty(len(Purpose), rows, width, dtype=torch.int64, device=position.device)
        with torch.cuda.device_of(position):
            noise_keys[(-(-rows * width // 256), len(Purpose))](
                stream,
                position,
                draws if isinstance(draw, Tensor) else draw,
                keys,
                (rows, width),
                _strides(stream, position, draws),
                GIVEN=isinstance(draw, Tensor),
                BLOCK=256,
                num_warps=1,
            )
        return keys

    def accept(self, probability: Tensor, key: Tensor) -> Tensor:
        """Uniform(key) < probability, element by element."""
        from specdec_kernels.triton_verify import accept

        probability, key = probability.contiguous(), key.contiguous()
        out = torch.empty(probability.shape, dtype=torch.bool, device=probability.device)
        count = out.numel()
        with torch.cuda.device_of(probability):
            accept[(-(-count // 256),)](probability, key, out, count, BLOCK=256, enable_fp_fusion=False)
        return out

    def verify_prefix(self, window: Window, choices: Tensor) -> Verdict:
        """Walk from the root to the child that is the choice at its parent: one launch, a program per row."""
        from specdec_kernels.triton_verify import verify_prefix

        rows, size = choices.shape
        verdict = _verdict(rows, size, choices)
        tokens, parents, widths = window.tokens, window.parents, window.width
        with torch.cuda.device_of(choices):
            verify_prefix[(rows,)](
                tokens,
                parents,
                widths,
                choices,
                verdict.path,
                verdict.num_accepted,
                verdict.next,
                size,
                tokens.stride(),
                parents.stride(),
                widths.stride(),
                choices.stride(),
                BLOCK=_power(size),
                num_warps=1,
                enable_fp_fusion=False,
            )
        return verdict

    def rejection_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """Leviathan et al. 2211.17192, algorithm 1, draws included: a program per row and part, and one per row."""
        from specdec_kernels.triton_verify import rejection_sample

        rows, size, vocabulary = distribution.shape
        parts, share = _parts(rows, vocabulary)
        scores, winners = _contest(distribution, rows, 2, parts)
        verdict = _verdict(rows, size, distribution)
        # Without proposals, q has no row for a pointer.
        q = window.q if size > 1 else None
        keys = accept_key, residual_key, bonus_key
        given = distribution, distribution if q is None else q, window.tokens, window.width, *keys
        with torch.cuda.device_of(distribution):
            rejection_sample[(rows, parts)](
                *given,
                scores,
                winners,
                verdict.path,
                verdict.num_accepted,
                (size, vocabulary, share),
                _strides(*given),
                CERTAIN=q is None,
                SLOTS=_power(size),
                BLOCK=min(BLOCK, _power(vocabulary)),
                **_DRAWN,
            )
        return Verdict(verdict.path, verdict.num_accepted, _picked(scores, winners))

    def block_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """Sun et al. 2403.10444, algorithm 2, draws included: one launch, a program per row."""
        from specdec_kernels.triton_verify import block_sample

        return self._judge(block_sample, distribution, window, (accept_key, residual_key, bonus_key))

    def tree_sample(
        self, distribution: Tensor, window: Window, accept_key: Tensor, residual_key: Tensor, bonus_key: Tensor
    ) -> Verdict:
        """Miao et al. 2305.09781, algorithm 2, draws included: one launch, a program per row."""
        from specdec_kernels.triton_verify import tree_sample

        return self._judge(tree_sample, distribution, window, (accept_key, residual_key, bonus_key), branches=True)

    def _judge(
        self, kernel: Any, distribution: Tensor, window: Window, keys: Sequence[Tensor], branches: bool = False
    ) -> Verdict:
        """Launch a kernel that judges a window and draws; with ``branches`` it reads parents, and writes to scratch."""
        distribution = distribution.contiguous()
        rows, size, vocabulary = distribution.shape
        verdict = _verdict(rows, size, distribution)
        # Without proposals, q has no row for a pointer.
        q = window.q if size > 1 else None
        integers = (window.tokens, window.parents, window.width) if branches else (window.tokens, window.width)
        scratch = (torch.empty_like(distribution[:, 0]),) if branches else ()
        given = (distribution, distribution if q is None else q, *integers, *keys)
        with torch.cuda.device_of(distribution):
            kernel[(rows,)](
                *given,
                *scratch,
                verdict.path,
                verdict.num_accepted,
                verdict.next,
                (size, vocabulary),
                _strides(*given),
                CERTAIN=q is None,
                SLOTS=_power(size),
                BLOCK=min(BLOCK, _power(vocabulary)),
                **_JUDGED,
            )
        return verdict

    def emit(self, window: Window, verdict: Verdict, tokens: Tensor, length: Tensor) -> Tensor:
        """The rows' tokens and the step's read: one launch, a program per row."""
        from specdec_kernels.triton_window import emit

        rows, most = verdict.path.shape
        size = window.tokens.shape[1]
        packed = torch.empty((rows, most + 4), dtype=torch.int64, device=tokens.device)
        judged = verdict.path, verdict.num_accepted, verdict.next
        given = window.tokens, window.depth, window.width, *judged, tokens, length
        with torch.cuda.device_of(tokens):
            emit[(rows,)](
                *given,
                packed,
                (size, most),
                _strides(*given),
                SLOTS=_power(size),
                STEPS=_power(most),
                num_warps=1,
            )
        return packed

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
        """Depths, positions, cells and the mask: one launch, a program per slot and block of cells."""
        from specdec_kernels.triton_window import kv_plan

        rows, width = window.parents.shape
        depth, position, cells = torch.empty((3, rows, width), dtype=torch.int64, device=committed.device)
        mask = torch.empty((rows, 1, width, look), dtype=dtype, device=committed.device)
        block = min(1024, _power(look))
        with torch.cuda.device_of(committed):
            kv_plan[(rows * width, -(-look // block))](
                window.parents,
                committed,
                depth,
                position,
                cells,
                mask,
                (width, look, capacity),
                _strides(window.parents, committed),
                SPAN=span or 0,
                LIMIT=limit or 0,
                BLOCK=block,
                num_warps=4,
            )
        return depth, position, cells, mask

    def kv_append(self, keys: Tensor, values: Tensor, new_keys: Tensor, new_values: Tensor, cells: Tensor) -> None:
        """Scatter W new keys and values of every row and head into their cells: one launch."""
        from specdec_kernels.triton_decoder import kv_append

        rows, heads, width, size = new_keys.shape
        with torch.cuda.device_of(keys):
            kv_append[(rows * width, heads)](
                keys,
                values,
                new_keys,
                new_values,
                cells,
                (width, size),
                _strides(keys, values, new_keys, new_values, cells),
                BLOCK=_power(size),
                num_warps=1,
                **_FUSED,
            )

    def kv_compact(self, keys: Tensor, values: Tensor, source: Tensor, target: Tensor) -> None:
        """Gather the source cells into registers, then write them into the target cells: one launch."""
        from specdec_kernels.triton_decoder import kv_compact

        rows, heads, _, size = keys.shape
        steps = source.shape[1]
        block_d = _power(steps)
        block_n = max(1, min(_power(size), 4096 // block_d))
        with torch.cuda.device_of(keys):
            kv_compact[(rows, heads, -(-size // block_n))](
                keys,
                values,
                source,
                target,
                (steps, size),
                _strides(keys, values, source, target),
                BLOCK_D=block_d,
                BLOCK_N=block_n,
                **_FUSED,
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
        """softmax(scaling · q kᵀ + mask) v with grouped heads, in one launch; float32 sums.

        Windows of up to 16 slots: the cells are shared among programs, ``SHARE`` each, in tiles of one shape.
        """
        from specdec_kernels.triton_decoder import tree_attention

        (rows, heads, width, size), (_, heads_kv, length, _) = query.shape, keys.shape
        group, block_d = heads // heads_kv, max(16, _power(size))
        mask, out = mask.expand(rows, -1, width, length), self._out((rows, width, heads, size), query)
        # Float32 lines are multiplied without tensor cores; more than 16 do not fit into the registers.
        tiled = self._exact or width <= TILE
        most = 16 if query.dtype == torch.float32 or tiled else min(64, 8192 // block_d)
        block_m = max(16, min(most, _power(group * width)))
        # Blocks of keys and of values have 16 KiB each: two of each fit the shared memory of any GPU.
        block_l = max(16, min(64, 16384 // (block_d * keys.element_size())))
        blocks = -(-group * width // block_m)
        share = SHARE if tiled else -(-length // block_l) * block_l
        parts, places = -(-length // share), rows * heads_kv * blocks
        mixes, marks = (
            torch.empty((places, parts, *each) if parts > 1 else 0, dtype=torch.float32, device=query.device)
            for each in ((block_m, block_d), (2, block_m))
        )
        with torch.cuda.device_of(query):
            tree_attention[(blocks * parts, heads_kv, rows)](
                query,
                keys,
                values,
                mask,
                query if used is None else used,
                query if sinks is None else sinks.contiguous(),
                out,
                mixes,
                marks,
                self._counters(places, query.device),
                float(scaling),
                float(softcap or 1),
                (group, width, length, size, share, parts),
                _strides(query, keys, values, mask),
                BOUNDED=used is not None,
                CAPPED=softcap is not None,
                SINKS=sinks is not None,
                WIDE=self.interpreted,
                BLOCK_M=block_m,
                BLOCK_L=block_l,
                BLOCK_D=block_d,
                num_stages=2,
                **_FUSED,
            )
        return out.to(query.dtype)

    def _counters(self, places: int, device: torch.device) -> Tensor:
        """int32 zeros, as many as ``places`` or more; kernels that count in them leave zeros, on one stream at a time.

        Once made they stay, because recorded steps go on using them.
        """
        key = device, _power(places)
        if key not in self._arrivals:
            self._arrivals[key] = torch.zeros(key[1], dtype=torch.int32, device=device)
        return self._arrivals[key]

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None, wide: bool = False) -> Tensor:
        """x Wᵀ + bias for quantised weights; float weights use torch's own product, unless they must be exact."""
        if not isinstance(weight, Quantised) and not self._exact:
            return super().linear(x, weight, bias, wide)
        return self._product(x, weight, bias, wide=wide)

    def _product(
        self,
        x: Tensor,
        weight: Weight,
        bias: Tensor | None,
        norm: tuple[Tensor, float, float] | None = None,
        beside: Tensor | None = None,
        gated: bool = False,
        wide: bool = False,
    ) -> Tensor:
        """beside + f(norm(x) Wᵀ + bias) in one launch; in float32 if ``wide``.

        ``norm`` is a norm's (weight, eps, offset), or None; f is SwiGLU's product if ``gated``, else nothing.
        """
        from specdec_kernels.triton_decoder import linear

        assert not isinstance(weight, Packed)
        outputs, inputs = weight.shape[0] // (2 if gated else 1), weight.shape[1]
        flat = x.reshape(-1, inputs)
        shape = (*x.shape[:-1], outputs)
        out = torch.empty(shape, dtype=torch.float32, device=x.device) if wide else self._out(shape, x)
        codes, scale, offset, bits = _codes(weight)
        gain, eps, shift = norm or (x, 0.0, 0.0)
        # Each turn reads 256 bytes of x; programs are narrow if there are too few of them to fill a device.
        block_m = TILE if len(flat) <= TILE or x.dtype == torch.float32 or self._exact else 64
        block_n, block_k = (16 if outputs <= 8192 else 32), 32 * min(bits, 8) // x.element_size()
        # int4 adds up two sums, one for each half of a byte. Those of 64 rows do not fit the registers of four warps on
        # sm_80; of 16 rows with three stages, the assembler keeps to 96 registers on sm_90 and spills some.
        warps = 8 if block_m > TILE and bits == 4 else 4
        stages = 4 if block_m == TILE and bits == 4 else 3
        with torch.cuda.device_of(x):
            linear[(-(-outputs // block_n), -(-len(flat) // block_m))](
                flat,
                codes,
                scale,
                offset,
                flat if bias is None else bias.contiguous(),
                gain.contiguous(),
                flat if beside is None else beside.reshape(-1, outputs).contiguous(),
                out,
                float(eps),
                float(shift),
                (len(flat), outputs, inputs),
                _strides(flat, codes, scale),
                BITS=bits,
                BIASED=bias is not None,
                NORMED=norm is not None,
                GATED=gated,
                ADDED=beside is not None,
                WIDE=self.interpreted,
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_K=block_k,
                num_warps=warps,
                num_stages=stages,
                **_FUSED,
            )
        return out if wide else out.to(x.dtype)

    def decoder_layers(
        self, x: Tensor, layers: Sequence[DecoderWeights], turn: tuple[Tensor, Tensor], at: Sequence[Cells]
    ) -> Tensor:
        """Layers in six launches each: three products take in norms, SwiGLU and sums; rotary, append; attention.

        Layers whose heads do not fit a program run op by op.
        """
        if layers[0].head_dim > MAX_HEAD or layers[0].head_dim % 2:
            return super().decoder_layers(x, layers, turn, at)
        for layer, cells in zip(layers, at, strict=True):
            before = layer.norm_before, layer.eps_before, layer.norm_offset
            both = self._product(x, layer.qkv, layer.qkv_bias, before)
            seen = self._attended(both, layer, turn, cells)
            x = self._product(seen, layer.out, layer.out_bias, beside=x)
            after = layer.norm_after, layer.eps_after, layer.norm_offset
            inner = self._product(x, layer.gate_up, layer.gate_up_bias, after, gated=True)
            x = self._product(inner, layer.down, layer.down_bias, beside=x)
        return x

    def _attended(self, both: Tensor, layer: DecoderWeights, turn: tuple[Tensor, Tensor], at: Cells) -> Tensor:
        """[B, W, heads d] from queries, keys and values side by side [B, W, …]; in place: the cells of ``at``."""
        from specdec_kernels.triton_decoder import rotary_append

        rows, width, _ = both.shape
        heads, heads_kv, size = layer.heads, layer.heads_kv, layer.head_dim
        apart = both.view(rows, width, heads + 2 * heads_kv, size)
        query = self._out((rows, width, heads, size), both)
        cos, sin = (x.expand(rows, width, size) for x in turn)
        with torch.cuda.device_of(both):
            rotary_append[(rows * width, heads + 2 * heads_kv)](
                apart,
                cos,
                sin,
                at.cells,
                at.keys,
                at.values,
                query,
                (heads, heads_kv, width, size // 2),
                _strides(apart, cos, sin, at.cells, at.keys, at.values),
                BLOCK=_power(size // 2),
                num_warps=1,
                **_FUSED,
            )
        return at.attend(self, query.to(both.dtype).transpose(1, 2), layer.scaling).flatten(2)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        """Zhang & Sennrich 1910.07467, equation 4: a program per row."""
        from specdec_kernels.triton_decoder import rms_norm

        rows = _rows(x)
        size = x.shape[-1]
        out = self._out(x.shape, x)
        with torch.cuda.device_of(x):
            rms_norm[(rows.shape[:3].numel(),)](
                rows,
                weight,
                out,
                float(eps),
                float(offset),
                tuple(rows.shape),
                rows.stride(),
                weight.stride(0),
                BLOCK=_power(size),
                num_warps=min(16, max(1, _power(size) // 256)),
                **_FUSED,
            )
        return out.to(x.dtype)

    def rotary(self, query: Tensor, keys: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Su et al. 2104.09864, in the halves layout of GPT-NeoX: queries and keys in one launch."""
        from specdec_kernels.triton_decoder import rotary

        rows, heads, width, size = query.shape
        turned = [self._out(x.shape, x) for x in (query, keys)]
        cos, sin = (x.expand(rows, width, size) for x in (cos, sin))
        with torch.cuda.device_of(query):
            rotary[(rows * width, heads + keys.shape[1])](
                query,
                keys,
                cos,
                sin,
                *turned,
                (heads, width, size // 2),
                _strides(query, keys, cos, sin),
                BLOCK=_power(size // 2),
                num_warps=1,
                **_FUSED,
            )
        return turned[0].to(query.dtype), turned[1].to(keys.dtype)

    def silu_mul(self, gate: Tensor, up: Tensor) -> Tensor:
        """SwiGLU's product, Shazeer 2002.05202."""
        from specdec_kernels.triton_decoder import silu_mul

        gates, ups = _rows(gate), _rows(up)
        size = gate.shape[-1]
        out = self._out(gate.shape, gate)
        with torch.cuda.device_of(gate):
            silu_mul[(gates.shape[:3].numel(), -(-size // 1024))](
                gates, ups, out, tuple(gates.shape), gates.stride(), ups.stride(), BLOCK=1024, **_FUSED
            )
        return out.to(gate.dtype)


def _power(size: int) -> int:
    """The smallest power of two that is at least ``size``."""
    return 1 << (size - 1).bit_length()


def _parts(draws: int, vocabulary: int) -> tuple[int, int]:
    """How many parts of the vocabulary have a program each, and the tokens of a part."""
    blocks = -(-vocabulary // BLOCK)
    each = -(-blocks // min(blocks, max(1, PROGRAMS // max(draws, 1))))
    return -(-blocks // each), each * BLOCK


def _contest(like: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
    """The scores and the winners of the parts of some draws, not filled yet."""
    scores = torch.empty(shape, dtype=torch.float32, device=like.device)
    return scores, torch.empty(shape, dtype=torch.int64, device=like.device)


def _picked(scores: Tensor, winners: Tensor) -> Tensor:
    """The winner of each draw, of scores and winners [draws, parts] or [draws, 2, parts]: one launch."""
    from specdec_kernels.triton_verify import pick_best

    draws, parts = len(scores), scores.shape[-1]
    out = torch.empty(draws, dtype=torch.int64, device=scores.device)
    with torch.cuda.device_of(scores):
        pick_best[(draws,)](scores, winners, out, parts, DRAWS=scores.dim() - 1, PARTS=_power(parts), num_warps=1)
    return out


def _codes(weight: Tensor | Quantised) -> tuple[Tensor, Tensor, Tensor, int]:
    """A weight's codes, scales, offsets and bits; a dense weight stands for all three, with 16 bits."""
    if not isinstance(weight, Quantised):
        return weight, weight, weight, 16
    return weight.codes, weight.scale, weight.scale if weight.offset is None else weight.offset, weight.bits


def _rows(x: Tensor) -> Tensor:
    """x as [A, B, C, N], so that one kernel handles any layout; copies only above four dimensions."""
    x = x if x.dim() <= 4 else x.reshape(-1, *x.shape[-3:])
    return x[(None,) * (4 - x.dim())]


def _strides(*tensors: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tensor.stride() for tensor in tensors)


def _verdict(rows: int, size: int, like: Tensor) -> Verdict:
    path, num_accepted, following = (
        torch.empty(shape, dtype=torch.int64, device=like.device) for shape in ((rows, size), (rows,), (rows,))
    )
    return Verdict(path, num_accepted, following)


@hookimpl
def specdec_register_backends(register: Callable[[str, BackendFactory], None]) -> None:
    """Register ``triton``."""
    register("triton", Triton)
