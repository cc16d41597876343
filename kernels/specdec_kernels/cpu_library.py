"""The compiled library of the cpu backend: which level, which compiler, and what its functions take."""

from __future__ import annotations

import ctypes
import os
import shutil
from functools import cache

import torch
from torch import Tensor

from specdec.decoder import DecoderWeights
from specdec.quantised import Quantised
from specdec_kernels import build

_AVX512 = {"avx512_f": "avx512f", "avx512_bw": "avx512bw", "avx512_vl": "avx512vl", "avx512_dq": "avx512dq"}
LEVELS: dict[str, dict[str, str]] = {
    "avx512_bf16": {**_AVX512, "fma3": "fma", "avx512_bf16": "avx512bf16"},
    "avx512": {**_AVX512, "fma3": "fma"},
    "avx2": {"avx2": "avx2", "fma3": "fma", "f16c": "f16c"},
    "plain": {},
}
"""Each level's instruction sets, by torch's names and by the compiler's; the best level first."""

CODE = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.uint8: 3}  # enum Kind of linear.cpp
_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_SIGNATURES = {
    "linear": [_INT, _INT, *[_POINTER] * 6, *[_LONG] * 3, _INT],
    "rms_norm": [_INT, *[_POINTER] * 3, _LONG, _LONG, _FLOAT, _FLOAT, _INT],
    "rotary": [_INT, *[_POINTER] * 6, *[_LONG] * 12],
    "silu_mul": [_INT, *[_POINTER] * 3, *[_LONG] * 4, _INT],
    "kv_append": [*[_POINTER] * 5, *[_LONG] * 17],
    "kv_compact": [*[_POINTER] * 4, *[_LONG] * 11],
    "tree_attention": [_INT, *[_POINTER] * 5, *[_LONG] * 17, _FLOAT, _FLOAT, _INT],
    "decoder_layer": [*[_POINTER] * 5, _LONG, *[_POINTER] * 4, *[_LONG] * 11, _INT],
    "sample": [*[_POINTER] * 3, *[_LONG] * 3, _INT],
    "verify_prefix": [*[_POINTER] * 7, _LONG, _LONG],
    "rejection_sample": [*[_POINTER] * 10, *[_LONG] * 3, _INT],
}


@cache
def levels() -> tuple[str, ...]:
    """The levels that this processor can run, the best first."""
    if not hasattr(torch.cpu, "get_capabilities"):  # an older torch tells one word
        best = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability(), "plain")
        return tuple(LEVELS)[tuple(LEVELS).index(best) :]
    found = torch.cpu.get_capabilities()
    return tuple(name for name, needed in LEVELS.items() if all(found.get(feature) for feature in needed))


def compiler() -> str | None:
    """CXX, else the first of c++, g++ and clang++ that is on the path."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((found for found in map(shutil.which, names) if found), None)


def compiled(level: str) -> ctypes.CDLL:
    """The kernels of one level, compiled if the cache lacks them. Raises BuildError."""
    found = compiler()
    if found is None:
        raise build.BuildError("no C++ compiler: looked for CXX, c++, g++ and clang++; install one or set CXX")
    flags = [f"-m{name}" for name in LEVELS[level].values()]
    command = (found, "-O3", "-std=c++17", "-fPIC", "-fopenmp", "-mtune=native", *flags)
    library = build.library(f"cpu-{level}", command, ".cpp")
    for name, types in _SIGNATURES.items():
        function = getattr(library, f"specdec_{name}")
        function.argtypes, function.restype = types, None
    return library


class Matrix(ctypes.Structure):
    """struct Matrix of layer.cpp."""

    _fields_ = [
        *((name, _POINTER) for name in ("weight", "scale", "offset", "bias")),
        *((name, _LONG) for name in ("kind", "inputs", "outputs")),
    ]


class Layer(ctypes.Structure):
    """struct Layer of layer.cpp."""

    _fields_ = [
        *((name, Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _POINTER) for name in ("norm_before", "norm_after")),
        *((name, _LONG) for name in ("narrow", "heads", "heads_kv", "size")),
        *((name, _FLOAT) for name in ("eps_before", "eps_after", "norm_offset", "scaling")),
    ]


def described(layer: DecoderWeights, dtype: torch.dtype) -> Layer:
    """A layer's weights by their addresses; valid as long as ``layer`` lives."""

    def matrix(weight: Tensor | Quantised, bias: Tensor | None) -> Matrix:
        outputs, inputs = weight.shape
        parts = (weight.codes, weight.scale, weight.offset) if isinstance(weight, Quantised) else (weight, None, None)
        pointers = [None if part is None else part.data_ptr() for part in (*parts, bias)]
        return Matrix(*pointers, CODE[parts[0].dtype], inputs, outputs)

    return Layer(
        matrix(layer.qkv, layer.qkv_bias), matrix(layer.out, layer.out_bias),
        matrix(layer.gate_up, layer.gate_up_bias), matrix(layer.down, layer.down_bias),
        layer.norm_before.data_ptr(), layer.norm_after.data_ptr(), CODE[dtype], layer.heads, layer.heads_kv,
        layer.head_dim, layer.eps_before, layer.eps_after, layer.norm_offset, layer.scaling,
    )  # fmt: skip
