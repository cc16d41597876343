"""The Triton backend: the reference's ops as kernels for a GPU, or for Triton's slow interpreter on a CPU.

Triton is optional and is imported with the kernels, at the first call. With ``TRITON_INTERPRET=1``, set before that,
the same kernels run on CPU tensors, for tests only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from specdec.hookspecs import hookimpl
from specdec.interfaces import BackendFactory
from specdec.messages import Verdict, Window
from specdec.packed import Packed, Weight
from specdec.quantised import Quantised
from specdec_kernels.build import forbidden
from specdec_kernels.reference import Reference

BLOCK = 4096
"""Number of vocabulary entries that a program processes together."""

MAX_HEAD, MAX_NORM, MAX_LINEAR_ROWS = 256, 16384, 16
"""The longest head, the longest normalised axis and the most rows of a product that fit into a program."""

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_DECODER = ("kv_append", "kv_compact", "tree_attention", "linear", "rms_norm", "rotary", "silu_mul")
_DTYPES = {
    **dict.fromkeys(("sample", "accept", "rejection_sample"), (torch.float32,)),
    "verify_prefix": (torch.int64,),
    **dict.fromkeys(_DECODER, _FLOATS),
}

# Fused multiply-adds help in sums; where tokens are drawn, they are off, so that all rounding equals the reference's.
_FUSED = {"enable_fp_fusion": True}
_DRAWN = {"enable_fp_fusion": False, "num_warps": 16}


class Triton(Reference):
    """Kernels for CUDA devices; all shapes follow from (B, W, V), and the host reads nothing.

    Integer results equal the reference's; float results are summed in float32 and rounded once.

    Example: ``Triton().missing()`` is None if it can run here, else the reason.
    """

    name = "triton"
    devices = ("cuda",)

    def __init__(self) -> None:
        self.interpreted = os.environ.get("TRITON_INTERPRET", "0") == "1"
        self._device = "cpu" if self.interpreted else "cuda"
        # Below the reference, so that the interpreter runs only if the user names this backend.
        self.priority = 5 if self.interpreted else 50

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
        if op == "linear":
            return isinstance(other, Quantised) and first.numel() <= MAX_LINEAR_ROWS * first.shape[-1]
        if not isinstance(other, Tensor) or other.dtype != first.dtype:
            return False
        size = first.shape[-1]
        if op == "tree_attention":
            return size <= MAX_HEAD and first.shape[1] % other.shape[1] == 0
        if op == "rotary":
            return size % 2 == 0 and other.shape[-1] == size
        return op != "rms_norm" or size <= MAX_NORM

    def _out(self, shape: Sequence[int], like: Tensor) -> Tensor:
        # The interpreter truncates bfloat16 instead of rounding, so it returns float32, which torch then rounds.
        dtype = torch.float32 if self.interpreted else like.dtype
        return torch.empty(shape, dtype=dtype, device=like.device)

    def sample(self, logits: Tensor, key: Tensor | None) -> Tensor:
        """argmax_x logits[x] + Gumbel(key, x), the lowest x of equals: one launch, a program per slot."""
        from specdec_kernels.triton_verify import sample

        out = torch.empty(logits.shape[:-1], dtype=torch.int64, device=logits.device)
        cube = logits if logits.dim() == 3 else logits.reshape(1, -1, logits.shape[-1])
        rows, width, vocabulary = cube.shape
        keys = cube if key is None else key.reshape(rows, width)
        with torch.cuda.device_of(logits):
            sample[(rows * width,)](
                cube,
                keys,
                out,
                width,
                vocabulary,
                cube.stride(),
                keys.stride(),
                NOISY=key is not None,
                BLOCK=min(BLOCK, _power(vocabulary)),
                **_DRAWN,
            )
        return out

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
        """Leviathan et al. 2211.17192, algorithm 1, draws included: one launch, a program per row."""
        from specdec_kernels.triton_verify import rejection_sample

        rows, size, vocabulary = distribution.shape
        verdict = _verdict(rows, size, distribution)
        # Without proposals, q has no row for a pointer.
        q = window.q if size > 1 else None
        with torch.cuda.device_of(distribution):
            rejection_sample[(rows,)](
                distribution,
                distribution if q is None else q,
                window.tokens,
                window.width,
                accept_key,
                residual_key,
                bonus_key,
                verdict.path,
                verdict.num_accepted,
                verdict.next,
                size,
                vocabulary,
                distribution.stride(),
                (distribution if q is None else q).stride(),
                window.tokens.stride(),
                window.width.stride(),
                accept_key.stride(),
                residual_key.stride(),
                bonus_key.stride(),
                CERTAIN=q is None,
                SLOTS=_power(size),
                BLOCK=min(BLOCK, _power(vocabulary)),
                **_DRAWN,
            )
        return verdict

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
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float, softcap: float | None
    ) -> Tensor:
        """softmax(scaling · q kᵀ + mask) v with grouped heads, in one pass over the cells; float32 sums."""
        from specdec_kernels.triton_decoder import tree_attention

        rows, heads, width, size = query.shape
        heads_kv, length = keys.shape[1], keys.shape[2]
        group = heads // heads_kv
        out = self._out((rows, width, heads, size), query)
        block_d = max(16, _power(size))
        # Float32 lines are multiplied without tensor cores; more than 16 do not fit into the registers.
        most = 16 if query.dtype == torch.float32 else min(64, 8192 // block_d)
        block_m = max(16, min(most, _power(group * width)))
        # Blocks of keys and of values have 16 KiB each: two of each fit the shared memory of any GPU.
        block_l = max(16, min(64, 16384 // (block_d * keys.element_size())))
        mask = mask.expand(rows, -1, width, length)
        with torch.cuda.device_of(query):
            tree_attention[(-(-group * width // block_m), heads_kv, rows)](
                query,
                keys,
                values,
                mask,
                out,
                float(scaling),
                float(softcap or 1),
                (group, width, length, size),
                _strides(query, keys, values, mask),
                CAPPED=softcap is not None,
                WIDE=self.interpreted,
                BLOCK_M=block_m,
                BLOCK_L=block_l,
                BLOCK_D=block_d,
                num_stages=2,
                **_FUSED,
            )
        return out.to(query.dtype)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """x Wᵀ + bias for quantised weights; float weights use torch's own product."""
        if not isinstance(weight, Quantised):
            return super().linear(x, weight, bias)
        from specdec_kernels.triton_decoder import linear

        outputs, inputs = weight.shape
        flat = x.reshape(-1, inputs)
        out = self._out((*x.shape[:-1], outputs), x)
        bias = None if bias is None else bias.contiguous()
        offset = weight.scale if weight.offset is None else weight.offset
        # Each turn reads 256 bytes of x; programs are narrow if there are too few of them to fill a device.
        block_n, block_k = (16 if outputs <= 8192 else 32), 32 * weight.bits // x.element_size()
        with torch.cuda.device_of(x):
            linear[(-(-outputs // block_n),)](
                flat,
                weight.codes,
                weight.scale,
                offset,
                weight.scale if bias is None else bias,
                out,
                (len(flat), outputs, inputs),
                _strides(flat, weight.codes, weight.scale),
                BITS=weight.bits,
                BIASED=bias is not None,
                WIDE=self.interpreted,
                BLOCK_N=block_n,
                BLOCK_K=block_k,
                **_FUSED,
            )
        return out.to(x.dtype)

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
