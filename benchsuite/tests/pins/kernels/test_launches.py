"""How many programs triton's kernels are launched with, their tiles, warps and stages, of which an interpreter and a
comparison of results see nothing. Operands, their order and strides are what comparisons with the reference hold."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.tests.rig import INTERPRETS
from specdec import Verdict, Window
from specdec.decoder import Cells, DecoderWeights
from specdec.quantised import Quantised
from specdec_kernels.triton import Triton

pytestmark = INTERPRETS

F32, HALF, F16, INT = torch.float32, torch.bfloat16, torch.float16, torch.int64
FUSED: dict[str, Any] = {"enable_fp_fusion": True}
DRAWN: dict[str, Any] = {"enable_fp_fusion": False, "num_warps": 16}
JUDGED: dict[str, Any] = {**DRAWN, "maxnreg": 128}
Launch = tuple[str, tuple[int, ...], tuple[Any, ...], dict[str, Any]]
"""A kernel, its grid, its arguments, its options."""


class _Kernel:
    """Stands for a kernel, and notes its launches."""

    def __init__(self, name: str, seen: list[Launch]) -> None:
        self._name, self._seen = name, seen

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *given, **named: self._seen.append((self._name, grid, given, named))


@pytest.fixture
def noted_launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The launches of all kernels, none of which runs."""
    seen: list[Launch] = []
    for part in ("decoder", "verify", "window"):
        module = import_module(f"specdec_kernels.triton_{part}")
        for name, value in [*vars(module).items()]:
            if type(value).__name__ == "InterpretedFunction" and not name.startswith("_"):
                monkeypatch.setattr(module, name, _Kernel(name, seen))
    return seen


def _compiled(exact: bool = False) -> Triton:
    """A backend that returns what it would on a GPU."""
    backend = Triton(exact)
    backend.interpreted = False
    return backend


def _zeros(*shape: int, dtype: torch.dtype = F32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


# dtype, exact, rows, heads, heads of keys, slots, cells, size of a head; then grid, heads of a group, cells of a part,
# parts, and the blocks of lines, cells and numbers.
ATTENTION: list[tuple[Any, ...]] = [
    (F32, False, 2, 6, 2, 5, 600, 80, (3, 2, 2), 3, 256, 3, 16, 32, 128),
    (F32, False, 1, 4, 4, 1, 1, 9, (1, 4, 1), 1, 256, 1, 16, 64, 16),
    (F32, False, 1, 4, 4, 1, 256, 16, (1, 4, 1), 1, 256, 1, 16, 64, 16),
    (F32, False, 1, 4, 4, 1, 257, 17, (2, 4, 1), 1, 256, 2, 16, 64, 32),
    (F32, False, 1, 2, 1, 17, 300, 256, (3, 1, 1), 2, 304, 1, 16, 16, 256),
    (F32, True, 1, 2, 1, 17, 300, 256, (6, 1, 1), 2, 256, 2, 16, 16, 256),
    (HALF, False, 1, 2, 2, 16, 257, 128, (2, 2, 1), 1, 256, 2, 16, 64, 128),
    (HALF, False, 1, 2, 2, 17, 257, 128, (1, 2, 1), 1, 320, 1, 32, 64, 128),
    (HALF, False, 3, 8, 1, 17, 100, 256, (5, 1, 3), 8, 128, 1, 32, 32, 256),
    (HALF, True, 3, 8, 1, 17, 513, 256, (27, 1, 3), 8, 256, 3, 16, 32, 256),
    (F16, False, 1, 1, 1, 64, 64, 20, (1, 1, 1), 1, 64, 1, 64, 64, 32),
    (F16, False, 1, 1, 1, 65, 65, 20, (2, 1, 1), 1, 128, 1, 64, 64, 32),
    (F16, False, 1, 3, 1, 4, 65, 64, (1, 1, 1), 3, 256, 1, 16, 64, 64),
]


@pytest.mark.parametrize("number", range(len(ATTENTION)))
def test_attention_is_cut_into_tiles_and_parts_as_in_this_table(number: int, noted_launches: list[Launch]) -> None:
    dtype, exact, rows, heads, heads_kv, width, length, size, *wanted = ATTENTION[number]
    grid, group, share, parts, block_m, block_l, block_d = wanted
    query, keys = _zeros(rows, heads, width, size, dtype=dtype), _zeros(rows, heads_kv, length, size, dtype=dtype)
    out = _compiled(exact).tree_attention(query, keys, keys, _zeros(1, 1, width, length), 0.5, None)
    assert (out.shape, out.dtype) == ((rows, width, heads, size), dtype)
    [(name, got, given, named)] = noted_launches
    assert (name, got) == ("tree_attention", grid)
    assert (group, width, length, size, share, parts) in given
    mixes = given[7]
    assert mixes.numel() == (grid[0] * grid[1] * grid[2] * block_m * block_d if parts > 1 else 0)
    blocks = {"BLOCK_M": block_m, "BLOCK_L": block_l, "BLOCK_D": block_d}
    left_out = dict.fromkeys(("BOUNDED", "CAPPED", "SINKS", "WIDE"), False)
    assert named == {**left_out, **blocks, "num_stages": 2, **FUSED}


# dtype, exact, bits, rows, outputs, inputs; then grid, the blocks of rows, outputs and inputs, warps and stages.
PRODUCTS: list[tuple[Any, ...]] = [
    (F32, False, 8, 1, 8192, 64, (512, 1), 16, 16, 64, 4, 3),
    (F32, False, 8, 17, 8193, 64, (257, 2), 16, 32, 64, 4, 3),
    (F32, False, 4, 16, 17, 64, (2, 1), 16, 16, 32, 4, 4),
    (F32, False, 4, 17, 17, 64, (2, 2), 16, 16, 32, 4, 4),
    (F32, True, 16, 2, 16, 64, (1, 1), 16, 16, 64, 4, 3),
    (HALF, False, 8, 16, 40, 64, (3, 1), 16, 16, 128, 4, 3),
    (HALF, False, 8, 17, 40, 64, (3, 1), 64, 16, 128, 4, 3),
    (HALF, False, 8, 64, 40, 64, (3, 1), 64, 16, 128, 4, 3),
    (HALF, False, 8, 65, 40, 64, (3, 2), 64, 16, 128, 4, 3),
    (HALF, False, 4, 16, 40, 64, (3, 1), 16, 16, 64, 4, 4),
    (HALF, False, 4, 17, 40, 64, (3, 1), 64, 16, 64, 8, 3),
    (HALF, True, 8, 17, 40, 64, (3, 2), 16, 16, 128, 4, 3),
    (HALF, True, 4, 17, 40, 64, (3, 2), 16, 16, 64, 4, 4),
    (HALF, True, 16, 17, 40, 64, (3, 2), 16, 16, 128, 4, 3),
    (F16, True, 16, 1, 8193, 32, (257, 1), 16, 32, 128, 4, 3),
]


@pytest.mark.parametrize("number", range(len(PRODUCTS)))
def test_a_product_is_cut_into_the_tiles_of_this_table(number: int, noted_launches: list[Launch]) -> None:
    dtype, exact, bits, rows, outputs, inputs, grid, block_m, block_n, block_k, warps, stages = PRODUCTS[number]
    dense = _zeros(outputs, inputs, dtype=dtype)
    weight = dense if bits == 16 else Quantised.of(dense, bits)
    out = _compiled(exact).linear(_zeros(1, rows, inputs, dtype=dtype), weight, None)
    assert (out.shape, out.dtype) == ((1, rows, outputs), dtype)
    [(name, got, _, named)] = noted_launches
    assert (name, got, named["BITS"]) == ("linear", grid, bits)
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k}
    wanted = {**blocks, "num_warps": warps, "num_stages": stages, **FUSED}
    assert {key: named[key] for key in wanted} == wanted
    assert not any(named[flag] for flag in ("BIASED", "NORMED", "GATED", "ADDED", "WIDE"))


Call = Callable[[Triton], object]


def _norm(size: int) -> Call:
    return lambda backend: backend.rms_norm(_zeros(2, 3, size, dtype=HALF), _zeros(size, dtype=HALF), 1, 2)


def _compact(steps: int, size: int) -> Call:
    cells, arena = _zeros(2, steps, dtype=INT), _zeros(2, 3, 4, size)
    return lambda backend: backend.kv_compact(arena, arena, cells, cells)


def _sample(rows: int, width: int, vocabulary: int, noisy: bool = True) -> Call:
    keys = _zeros(rows, width, dtype=INT) if noisy else None
    return lambda backend: backend.sample(_zeros(rows, width, vocabulary), keys)


def _chain(rows: int, size: int, vocabulary: int) -> tuple[Tensor, Window, Tensor, Tensor, Tensor]:
    parents = torch.arange(-1, size - 1).repeat(rows, 1)
    keys = _zeros(rows, size, dtype=INT)
    window = Window(keys, parents, keys[:, 0] + size, _zeros(rows, size - 1, vocabulary) if size > 1 else None)
    return _zeros(rows, size, vocabulary), window, keys, keys, keys


def _judged(op: str, size: int) -> Call:
    return lambda backend: getattr(backend, op)(*_chain(4, size, 9000))


def _plan(look: int) -> Call:
    window = _chain(3, 5, 9)[1]
    return lambda backend: backend.kv_plan(window, _zeros(3, dtype=INT), None, 99, look, None, HALF)


def _emit(backend: Triton) -> object:
    path, one = _zeros(3, 3, dtype=INT), _zeros(3, dtype=INT)
    return backend.emit(_chain(3, 5, 9)[1], Verdict(path, one, one), _zeros(3, 40, dtype=INT), one)


def _coins(rows: int, width: int) -> Call:
    return lambda backend: backend.accept(_zeros(rows, width), _zeros(rows, width, dtype=INT))


def _keys(rows: int, width: int) -> Call:
    place = _zeros(rows, width, dtype=INT)
    return lambda backend: backend.noise_keys(place[:, :1], place, 7)


def _turned(backend: Triton) -> object:
    angle = _zeros(1, 5, 20, dtype=HALF)
    return backend.rotary(_zeros(2, 6, 5, 20, dtype=HALF), _zeros(2, 3, 5, 20, dtype=HALF), angle, angle)


def _append(backend: Triton) -> None:
    arena, new = _zeros(2, 3, 40, 20), _zeros(2, 3, 5, 20)
    backend.kv_append(arena, arena, new, new, _zeros(2, 5, dtype=INT))


GRIDS: list[tuple[str, Call, tuple[int, ...], dict[str, Any]]] = [
    # A warp for 256 numbers, up to 16.
    *(
        ("rms_norm", _norm(size), (6,), {"BLOCK": block, "num_warps": warps, **FUSED})
        for size, block, warps in (
            *((1, 1, 1), (255, 256, 1), (256, 256, 1), (257, 512, 2), (512, 512, 2), (513, 1024, 4)),
            *((2048, 2048, 8), (2049, 4096, 16), (4097, 8192, 16), (16384, 16384, 16)),
        )
    ),
    # 4096 numbers of moving cells in the registers of a program.
    *(
        ("kv_compact", _compact(steps, size), (2, 3, blocks), {"BLOCK_D": block_d, "BLOCK_N": block_n, **FUSED})
        for steps, size, block_d, block_n, blocks in (
            *((1, 128, 1, 128, 1), (1, 8192, 1, 4096, 2), (33, 128, 64, 64, 2), (64, 64, 64, 64, 1)),
            *((65, 80, 128, 32, 3), (4096, 3, 4096, 1, 3), (4097, 3, 8192, 1, 3), (5, 20, 8, 32, 1)),
        )
    ),
    # Parts of a vocabulary, as many as fill the programs.
    *(
        ("sample", _sample(rows, width, size), (rows * width, parts), {"NOISY": True, "BLOCK": block, **DRAWN})
        for rows, width, size, parts, block in (
            *((2, 3, 7, 1, 8), (1, 1, 4096, 1, 4096), (1, 1, 4097, 2, 4096), (8, 8, 32768, 2, 4096)),
            *(
                (13, 5, 32768, 1, 4096),
                (32, 1, 36864, 3, 4096),
                (43, 1, 28672, 2, 4096),
                (0, 1, 4097, 2, 4096),
                (1, 1, 266_240, 65, 4096),
            ),
        )
    ),
    ("sample", _sample(3, 1, 7, noisy=False), (3, 1), {"NOISY": False, "BLOCK": 8, **DRAWN}),
    *(
        ("rejection_sample", _judged("rejection_sample", size), (4, 3), {"SLOTS": slots, "BLOCK": 4096, **DRAWN})
        for size, slots in ((1, 1), (2, 2), (3, 4))
    ),
    *(
        (op, _judged(op, size), (4,), {"SLOTS": slots, "BLOCK": 4096, **JUDGED})
        for op in ("block_sample", "tree_sample")
        for size, slots in ((2, 2), (3, 4))
    ),
    *(
        ("kv_plan", _plan(look), (15, blocks), {"SPAN": 0, "LIMIT": 0, "BLOCK": block, "num_warps": 4})
        for look, block, blocks in ((1024, 1024, 1), (1025, 1024, 2), (9, 16, 1))
    ),
    ("emit", _emit, (3,), {"SLOTS": 8, "STEPS": 4, "num_warps": 1}),
    (
        "verify_prefix",
        lambda backend: backend.verify_prefix(_chain(3, 5, 9)[1], _zeros(3, 5, dtype=INT)),
        (3,),
        {"BLOCK": 8, "num_warps": 1, "enable_fp_fusion": False},
    ),
    # 256 coins or keys a program.
    *(
        ("accept", _coins(rows, width), (blocks,), {"BLOCK": 256, "enable_fp_fusion": False})
        for rows, width, blocks in ((16, 16, 1), (1, 257, 2))
    ),
    *(
        ("noise_keys", _keys(rows, width), (blocks, 4), {"GIVEN": False, "BLOCK": 256, "num_warps": 1})
        for rows, width, blocks in ((16, 16, 1), (1, 257, 2))
    ),
    ("kv_append", _append, (10, 3), {"BLOCK": 32, "num_warps": 1, **FUSED}),
    ("rotary", _turned, (10, 9), {"BLOCK": 16, "num_warps": 1, **FUSED}),
    *(
        ("silu_mul", lambda b, n=size: b.silu_mul(*[_zeros(2, 2, 3, n)] * 2), (12, blocks), {"BLOCK": 1024, **FUSED})
        for size, blocks in ((1024, 1), (1025, 2))
    ),
]


@pytest.mark.parametrize("number", range(len(GRIDS)), ids=lambda n: f"{GRIDS[n][0]}-{n}")
def test_a_kernel_has_the_programs_blocks_and_warps_of_this_table(number: int, noted_launches: list[Launch]) -> None:
    kernel, call, grid, options = GRIDS[number]
    call(_compiled())
    (name, got, _, named), *more = noted_launches
    assert (name, got) == (kernel, grid)
    assert {key: named[key] for key in options} == options
    assert named.keys() - options.keys() <= {"CERTAIN"}
    parted = kernel in ("sample", "rejection_sample") and grid[1] > 1
    assert [launch[:2] for launch in more] == [("pick_best", grid[:1])] * parted
    assert all(launch[3]["num_warps"] == 1 and grid[1] <= launch[3]["PARTS"] < 2 * grid[1] for launch in more)


def test_results_have_the_dtype_of_what_was_given_unless_a_product_is_wide(noted_launches: list[Launch]) -> None:
    x, codes = _zeros(1, 2, 3, 4, dtype=HALF), Quantised.of(_zeros(6, 4), 8)
    for backend, inner in ((_compiled(), HALF), (Triton(), F32)):
        noted_launches.clear()
        outs = [backend.rms_norm(x, x[0, 0, 0], 1e-5, 0.0), backend.silu_mul(x, x), backend.linear(x, codes, None)]
        assert {out.dtype for out in outs} == {HALF}
        assert backend.linear(x, codes, None, True).dtype == F32
        made = [[t for t in given if isinstance(t, Tensor)] for _, _, given, _ in noted_launches]
        assert all(any(t.dtype == inner for t in tensors) for tensors in made[:3])


def _run_layers(*sizes: int) -> None:
    inner, hidden, cells = 40, 32, _zeros(1, 3, dtype=INT)
    layers, at = [], []
    for size in sizes:
        shapes = ((4 * size, hidden), (hidden, 2 * size), (2 * inner, hidden), (hidden, inner))
        qkv, out, gate_up, down = (_zeros(*shape) for shape in shapes)
        one, norm = _zeros(1, 1, 9, size), _zeros(hidden)
        layers.append(
            DecoderWeights(norm, 0.25, qkv, None, out, None, norm, 0.5, gate_up, None, down, None, 1.0, 2, 1, size, 0.1)
        )
        at.append(Cells(one, one, cells, _zeros(1, 1, 3, 7)))
    angle = _zeros(1, 3, sizes[0])
    _compiled(exact=True).decoder_layers(_zeros(1, 3, hidden), layers, (angle, angle), at)


def test_a_layer_is_six_launches_unless_its_heads_do_not_fit_a_program(noted_launches: list[Launch]) -> None:
    joined = ["linear", "rotary_append", "tree_attention", "linear", "linear", "linear"]
    one_by_one = ["rms_norm", "linear", "rotary", "kv_append", "tree_attention", "linear"]
    one_by_one += ["rms_norm", "linear", "silu_mul", "linear"]
    for size, wanted in ((2, joined), (256, joined), (258, one_by_one), (512, one_by_one)):
        noted_launches.clear()
        _run_layers(size)
        assert [launch[0] for launch in noted_launches] == wanted, size
    noted_launches.clear()
    _run_layers(8, 8)
    assert [launch[0] for launch in noted_launches] == joined * 2
    _, grid, _, named = noted_launches[1]
    assert (grid, named) == ((3, 4), {"BLOCK": 4, "num_warps": 1, **FUSED})
