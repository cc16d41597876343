"""What triton's kernels are launched with, written out by hand: grids, blocks, warps, stages, scratch and outputs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from benchsuite.tests.rig import INTERPRETS
from specdec import Verdict, Window
from specdec.decoder import Cells, DecoderWeights
from specdec.quantised import Quantised
from specdec_kernels import triton
from specdec_kernels.triton import Triton

pytestmark = INTERPRETS

F32, HALF, F16, INT = torch.float32, torch.bfloat16, torch.float16, torch.int64
SHORT = {
    F32: "f32",
    HALF: "bf16",
    F16: "f16",
    INT: "i64",
    torch.int32: "i32",
    torch.bool: "bool",
    torch.int8: "i8",
    torch.uint8: "u8",
}
FUSED: dict[str, Any] = {"enable_fp_fusion": True}
DRAWN: dict[str, Any] = {"enable_fp_fusion": False, "num_warps": 16}


class _Launches:
    """The launches of all kernels, none of which runs: name, grid, arguments, options.

    Arguments are written as words, so that 16 and 16.0 differ; a tensor as its name, else as its dtype and shape.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, Any, list[str], dict[str, Any]]] = []
        self._known: dict[int, tuple[str, Tensor]] = {}
        for part in ("decoder", "verify", "window"):
            module = import_module(f"specdec_kernels.triton_{part}")
            for name, value in [*vars(module).items()]:
                if type(value).__name__ == "InterpretedFunction" and not name.startswith("_"):
                    monkeypatch.setattr(module, name, _Recorder(self, name))

    def name(self, **tensors: Tensor) -> None:
        """Name tensors that are arguments; they are kept, so that no other gets the memory of one."""
        self._known.update((tensor.data_ptr(), (name, tensor)) for name, tensor in tensors.items())

    def only(self) -> tuple[str, Any, list[str], dict[str, Any]]:
        """The one launch since the last look."""
        [launch] = self.seen
        self.seen.clear()
        return launch

    def write(self, value: Any) -> str:
        """An argument as a word."""
        if not isinstance(value, Tensor):
            return repr(value)
        own = f"{SHORT[value.dtype]}{list(value.shape)}"
        return self._known.get(value.data_ptr(), (own, value))[0] if value.numel() else own


class _Recorder:
    def __init__(self, launches: _Launches, name: str) -> None:
        self._launches, self._name = launches, name

    def __getitem__(self, grid: Any) -> Any:
        write = self._launches.write
        return lambda *given, **named: self._launches.seen.append((self._name, grid, [*map(write, given)], named))


@pytest.fixture
def noted_launches(monkeypatch: pytest.MonkeyPatch) -> _Launches:
    """Kernels that only note how they are launched."""
    return _Launches(monkeypatch)


def _compiled(exact: bool = False) -> Triton:
    """A backend that returns what it would on a GPU."""
    backend = Triton(exact)
    backend.interpreted = False
    return backend


# dtype, exact, rows, heads, heads of keys, slots, cells, size of a head; then grid, group, share, parts,
# mixes, marks, counters, and the blocks of lines, cells and numbers.
ATTENTION: list[tuple[Any, ...]] = [
    (F32, False, 2, 6, 2, 5, 600, 80, (3, 2, 2), 3, 256, 3, [4, 3, 16, 128], [4, 3, 2, 16], 4, 16, 32, 128),
    (F32, False, 1, 4, 4, 1, 1, 9, (1, 4, 1), 1, 256, 1, [0], [0], 4, 16, 64, 16),
    (F32, False, 1, 4, 4, 1, 256, 16, (1, 4, 1), 1, 256, 1, [0], [0], 4, 16, 64, 16),
    (F32, False, 1, 4, 4, 1, 257, 17, (2, 4, 1), 1, 256, 2, [4, 2, 16, 32], [4, 2, 2, 16], 4, 16, 64, 32),
    (F32, False, 1, 2, 1, 17, 300, 256, (3, 1, 1), 2, 304, 1, [0], [0], 4, 16, 16, 256),
    (F32, True, 1, 2, 1, 17, 300, 256, (6, 1, 1), 2, 256, 2, [3, 2, 16, 256], [3, 2, 2, 16], 4, 16, 16, 256),
    (HALF, False, 1, 2, 2, 16, 257, 128, (2, 2, 1), 1, 256, 2, [2, 2, 16, 128], [2, 2, 2, 16], 2, 16, 64, 128),
    (HALF, False, 1, 2, 2, 17, 257, 128, (1, 2, 1), 1, 320, 1, [0], [0], 2, 32, 64, 128),
    (HALF, False, 3, 8, 1, 17, 100, 256, (5, 1, 3), 8, 128, 1, [0], [0], 16, 32, 32, 256),
    (HALF, True, 3, 8, 1, 17, 513, 256, (27, 1, 3), 8, 256, 3, [27, 3, 16, 256], [27, 3, 2, 16], 32, 16, 32, 256),
    (F16, False, 1, 1, 1, 64, 64, 20, (1, 1, 1), 1, 64, 1, [0], [0], 1, 64, 64, 32),
    (F16, False, 1, 1, 1, 65, 65, 20, (2, 1, 1), 1, 128, 1, [0], [0], 2, 64, 64, 32),
    (F16, False, 1, 3, 1, 4, 65, 64, (1, 1, 1), 3, 256, 1, [0], [0], 1, 16, 64, 64),
]


@pytest.mark.parametrize("number", range(len(ATTENTION)))
@pytest.mark.parametrize("extra", [False, True], ids=["plain", "bounded-capped"])
def test_attention_is_cut_into_tiles_and_parts_as_in_this_table(
    number: int, extra: bool, noted_launches: _Launches
) -> None:
    dtype, exact, rows, heads, heads_kv, width, length, size, grid, group, share, parts, *rest = ATTENTION[number]
    mixes, marks, counters, block_m, block_l, block_d = rest
    query = torch.zeros(rows, heads, width, size, dtype=dtype)
    keys, values = torch.zeros(2, rows, heads_kv, length, size, dtype=dtype)
    mask, used = torch.zeros(1, 1, width, length), torch.zeros(rows, dtype=INT)
    noted_launches.name(query=query, keys=keys, values=values, mask=mask, used=used)
    out = _compiled(exact).tree_attention(query, keys, values, mask, 0.5, 7 if extra else None, used if extra else None)
    assert (out.shape, out.dtype) == ((rows, width, heads, size), dtype)
    bounds = ["used" if extra else "query", f"{SHORT[dtype]}{[rows, width, heads, size]}"]
    scratch = [f"f32{mixes}", f"f32{marks}", f"i32{[counters]}"]
    arena = (heads_kv * length * size, length * size, size, 1)
    strides = (heads * width * size, width * size, size, 1), arena, arena, (0, width * length, length, 1)
    if rows == 1:
        strides = (*strides[:3], (width * length, width * length, length, 1))
    numbers = ["0.5", "7.0" if extra else "1.0", repr((group, width, length, size, share, parts)), repr(strides)]
    name, got_grid, given, named = noted_launches.only()
    assert (name, repr(got_grid)) == ("tree_attention", repr(grid))
    assert given == ["query", "keys", "values", "mask", *bounds, *scratch, *numbers]
    flags = {"BOUNDED": extra, "CAPPED": extra, "WIDE": False}
    blocks = {"BLOCK_M": block_m, "BLOCK_L": block_l, "BLOCK_D": block_d}
    assert repr(named) == repr({**flags, **blocks, "num_stages": 2, **FUSED})


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
def test_a_product_is_cut_into_the_tiles_of_this_table(number: int, noted_launches: _Launches) -> None:
    dtype, exact, bits, rows, outputs, inputs, grid, block_m, block_n, block_k, warps, stages = PRODUCTS[number]
    dense = torch.zeros(outputs, inputs, dtype=dtype)
    weight = dense if bits == 16 else Quantised.of(dense, bits)
    x, bias = torch.zeros(1, rows, inputs, dtype=dtype), torch.zeros(outputs, dtype=dtype)
    codes, scale, offset, told = triton._codes(weight)
    assert told == bits
    noted_launches.name(x=x, bias=bias, offset=offset, scale=scale, codes=codes)
    tensors = {16: ["codes"] * 3, 8: ["codes", "scale", "scale"], 4: ["codes", "scale", "offset"]}[bits]
    for biased, wide in ((False, False), (True, False), (False, True)):
        out = _compiled(exact).linear(x, weight, bias if biased else None, wide)
        assert (out.shape, out.dtype) == ((1, rows, outputs), F32 if wide else dtype)
        name, got_grid, given, named = noted_launches.only()
        assert (name, repr(got_grid)) == ("linear", repr(grid))
        result = f"{'f32' if wide else SHORT[dtype]}{[1, rows, outputs]}"
        numbers = ["0.0", "0.0", repr((rows, outputs, inputs)), repr(((inputs, 1), codes.stride(), scale.stride()))]
        assert given == ["x", *tensors, "bias" if biased else "x", "x", "x", result, *numbers]
        flags = {"BITS": bits, "BIASED": biased, "NORMED": False, "GATED": False, "ADDED": False, "WIDE": False}
        blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k}
        assert repr(named) == repr({**flags, **blocks, "num_warps": warps, "num_stages": stages, **FUSED})


def test_a_product_takes_in_a_norm_a_gate_and_a_sum(noted_launches: _Launches) -> None:
    x, weight, gain = torch.zeros(2, 3, 32), torch.zeros(42, 32), torch.zeros(64)[::2]
    bias, beside = torch.zeros(84)[::2], torch.zeros(42, 2, 3).permute(1, 2, 0)
    noted_launches.name(x=x, weight=weight)
    backend = _compiled()
    out = backend._product(x, weight, None, (gain, 1, 2), gated=True)
    assert (out.shape, out.dtype) == ((2, 3, 21), F32)
    name, grid, given, named = noted_launches.only()
    assert (name, grid) == ("linear", (2, 1))
    numbers = ["1.0", "2.0", "(6, 21, 32)", "((32, 1), (32, 1), (32, 1))"]
    assert given == ["x", *["weight"] * 3, "x", "f32[32]", "x", "f32[2, 3, 21]", *numbers]
    flags = ("BITS", "BIASED", "NORMED", "GATED", "ADDED", "WIDE")
    assert [named[flag] for flag in flags] == [16, False, True, True, False, False]
    out = backend._product(x, weight, bias, beside=beside)
    name, grid, given, named = noted_launches.only()
    assert (name, grid) == ("linear", (3, 1))
    numbers = ["0.0", "0.0", "(6, 42, 32)", "((32, 1), (32, 1), (32, 1))"]
    assert given == ["x", *["weight"] * 3, "f32[42]", "x", "f32[6, 42]", "f32[2, 3, 42]", *numbers]
    assert [named[flag] for flag in flags] == [16, True, False, False, True, False]


def test_norms_have_a_warp_for_256_numbers_up_to_16(noted_launches: _Launches) -> None:
    for size, block, warps in (
        *((1, 1, 1), (255, 256, 1), (256, 256, 1), (257, 512, 2), (512, 512, 2), (513, 1024, 4)),
        *((2048, 2048, 8), (2049, 4096, 16), (4097, 8192, 16), (16384, 16384, 16)),
    ):
        x, weight = torch.zeros(2, 3, size, dtype=HALF), torch.zeros(2 * size, dtype=HALF)[::2]
        noted_launches.name(x=x, weight=weight)
        out = _compiled().rms_norm(x, weight, 1, 2)
        assert (out.shape, out.dtype) == (x.shape, HALF)
        name, grid, given, named = noted_launches.only()
        assert (name, grid) == ("rms_norm", (6,))
        sizes = [repr((1, 2, 3, size)), repr((6 * size, 3 * size, size, 1)), "2"]
        assert given == ["x", "weight", f"bf16[2, 3, {size}]", "1.0", "2.0", *sizes]
        assert named == {"BLOCK": block, "num_warps": warps, **FUSED}


def test_cells_that_move_are_kept_in_registers_4096_numbers_a_program(noted_launches: _Launches) -> None:
    for steps, size, block_d, block_n, blocks in (
        *((1, 128, 1, 128, 1), (1, 8192, 1, 4096, 2), (33, 128, 64, 64, 2), (64, 64, 64, 64, 1)),
        *((65, 80, 128, 32, 3), (4096, 3, 4096, 1, 3), (4097, 3, 8192, 1, 3), (5, 20, 8, 32, 1)),
    ):
        keys, values = torch.zeros(2, 2, 3, 4, size)
        source, target = torch.zeros(2, 2, steps, dtype=INT)
        noted_launches.name(keys=keys, values=values, source=source, target=target)
        _compiled().kv_compact(keys, values, source, target)
        name, grid, given, named = noted_launches.only()
        assert (name, repr(grid)) == ("kv_compact", repr((2, 3, blocks)))
        arena = (12 * size, 4 * size, size, 1)
        strides = (arena, arena, (steps, 1), (steps, 1))
        assert given == ["keys", "values", "source", "target", repr((steps, size)), repr(strides)]
        assert repr(named) == repr({"BLOCK_D": block_d, "BLOCK_N": block_n, **FUSED})


def test_a_draw_has_4096_tokens_a_program_and_a_second_launch_if_it_has_parts(noted_launches: _Launches) -> None:
    for rows, width, vocabulary, parts, share, block in (
        *((2, 3, 7, 1, 4096, 8), (1, 1, 4096, 1, 4096, 4096), (1, 1, 4097, 2, 4096, 4096)),
        *((8, 8, 8200, 2, 8192, 4096), (13, 5, 8200, 1, 12288, 4096)),
    ):
        logits, key = torch.zeros(rows, width, vocabulary), torch.zeros(rows, width, dtype=INT)
        noted_launches.name(logits=logits, key=key)
        drawn = _compiled().sample(logits, key)
        assert (drawn.shape, drawn.dtype) == ((rows, width), INT)
        (name, grid, given, named), *more = noted_launches.seen
        draws = rows * width
        contest = [f"f32{[draws, parts]}", f"i64{[draws, parts]}"]
        sizes = [repr((width, vocabulary, share)), repr((width * vocabulary, vocabulary, 1)), repr((width, 1))]
        assert (name, repr(grid)) == ("sample", repr((draws, parts)))
        assert given == ["logits", "key", *contest, *sizes]
        assert named == {"NOISY": True, "BLOCK": block, **DRAWN}
        second = ("pick_best", (draws,), [*contest, f"i64[{draws}]", str(parts)])
        warps = {"DRAWS": 1, "PARTS": parts, "num_warps": 1}
        assert more == ([] if parts == 1 else [(*second, warps)])
        noted_launches.seen.clear()
    logits = torch.zeros(3, 7)
    noted_launches.name(logits=logits)
    assert _compiled().sample(logits, None).shape == (3,)
    _, grid, given, named = noted_launches.only()
    assert (grid, given[:2], named["NOISY"]) == ((3, 1), ["logits", "logits"], False)


def _chain(rows: int, size: int, vocabulary: int, certain: bool) -> tuple[Window, Tensor, list[Tensor]]:
    tokens, parents = torch.zeros(rows, size, dtype=INT), torch.arange(-1, size - 1).repeat(rows, 1)
    q = None if certain else torch.zeros(rows, size - 1, vocabulary)
    window = Window(tokens, parents, torch.full((rows,), size), q)
    keys = [torch.zeros(rows, size, dtype=INT) for _ in range(3)]
    return window, torch.zeros(rows, size, vocabulary), keys


@pytest.mark.parametrize("certain", [False, True])
@pytest.mark.parametrize("op", ["rejection_sample", "block_sample", "tree_sample"])
def test_a_window_is_judged_with_its_operands_in_this_order(op: str, certain: bool, noted_launches: _Launches) -> None:
    for size in (1, 2, 3):
        window, p, keys = _chain(4, size, 9000, certain or size == 1)
        noted_launches.name(p=p, tokens=window.tokens, parents=window.parents, width=window.width)
        noted_launches.name(accept=keys[0], residual=keys[1], bonus=keys[2])
        if window.q is not None:
            noted_launches.name(q=window.q)
        verdict = getattr(_compiled(), op)(p, window, *keys)
        assert [(t.shape, t.dtype) for t in (verdict.path, verdict.num_accepted, verdict.next)] == [
            ((4, size), INT),
            ((4,), INT),
            ((4,), INT),
        ]
        (name, grid, given, named), *more = noted_launches.seen
        noted_launches.seen.clear()
        of_p, pair = (size * 9000, 9000, 1), (size, 1)
        of_q = of_p if window.q is None else ((size - 1) * 9000, 9000, 1)
        rejects, tree = op == "rejection_sample", op == "tree_sample"
        operands = ["p", "p" if window.q is None else "q", "tokens", *(["parents"] if tree else []), "width"]
        strides = (of_p, of_q, pair, *([pair] if tree else []), (1,), pair, pair, pair)
        scratch = ["f32[4, 2, 3]", "i64[4, 2, 3]"] if rejects else ["f32[4, 9000]"] if tree else []
        out = [f"i64[4, {size}]", "i64[4]", *([] if rejects else ["i64[4]"])]
        sizes = repr((size, 9000, 4096) if rejects else (size, 9000))
        assert (name, repr(grid)) == (op, "(4, 3)" if rejects else "(4,)")
        assert given == [*operands, "accept", "residual", "bonus", *scratch, *out, sizes, repr(strides)]
        told = {"CERTAIN": window.q is None, "SLOTS": (1, 2, 4)[size - 1], "BLOCK": 4096, **DRAWN}
        assert named == (told if rejects else {**told, "maxnreg": 128})
        picked = ("pick_best", (4,), ["f32[4, 2, 3]", "i64[4, 2, 3]", "i64[4]", "3"])
        assert more == ([(*picked, {"DRAWS": 2, "PARTS": 4, "num_warps": 1})] if rejects else [])


def test_what_precedes_and_follows_a_window_gets_its_operands_in_this_order(
    noted_launches: _Launches,
) -> None:
    window, _, _ = _chain(3, 5, 9, True)
    committed, choices = torch.zeros(3, dtype=INT), torch.zeros(3, 5, dtype=INT)
    noted_launches.name(tokens=window.tokens, parents=window.parents, width=window.width, depth=window.depth)
    noted_launches.name(committed=committed, choices=choices)
    backend = _compiled()
    for look, span, limit, block, blocks in ((1024, None, None, 1024, 1), (1025, 7, 9, 1024, 2), (9, 1, None, 16, 1)):
        planned = backend.kv_plan(window, committed, span, 99, look, limit, HALF)
        assert [(t.dtype, list(t.shape)) for t in planned] == [*[(INT, [3, 5])] * 3, (HALF, [3, 1, 5, look])]
        name, grid, given, named = noted_launches.only()
        assert (name, repr(grid)) == ("kv_plan", repr((15, blocks)))
        sizes = [repr((5, look, 99)), "((5, 1), (1,))"]
        assert given == ["parents", "committed", *["i64[3, 5]"] * 3, f"bf16[3, 1, 5, {look}]", *sizes]
        assert named == {"SPAN": span or 0, "LIMIT": limit or 0, "BLOCK": block, "num_warps": 4}
    verdict = backend.verify_prefix(window, choices)
    name, grid, given, named = noted_launches.only()
    assert (name, grid) == ("verify_prefix", (3,))
    strides = ["(5, 1)", "(5, 1)", "(1,)", "(5, 1)"]
    assert given == ["tokens", "parents", "width", "choices", "i64[3, 5]", "i64[3]", "i64[3]", "5", *strides]
    assert named == {"BLOCK": 8, "num_warps": 1, "enable_fp_fusion": False}
    noted_launches.name(path=verdict.path, accepted=verdict.num_accepted, following=verdict.next)
    written, length = torch.zeros(3, 40, dtype=INT), torch.zeros(3, dtype=INT)
    noted_launches.name(written=written, length=length)
    longer = Verdict(torch.zeros(3, 3, dtype=INT), verdict.num_accepted, verdict.next)
    noted_launches.name(path=longer.path)
    packed = backend.emit(window, longer, written, length)
    assert (packed.shape, packed.dtype) == ((3, 7), INT)
    name, grid, given, named = noted_launches.only()
    assert (name, grid) == ("emit", (3,))
    order = ["tokens", "depth", "width", "path", "accepted", "following", "written", "length"]
    assert given == [
        *order,
        "i64[3, 7]",
        "(5, 3)",
        "((5, 1), (5, 1), (1,), (3, 1), (1,), (1,), (40, 1), (1,))",
    ]
    assert named == {"SLOTS": 8, "STEPS": 4, "num_warps": 1}


def test_keys_and_coins_have_256_a_program(noted_launches: _Launches) -> None:
    backend = _compiled()
    for rows, width, blocks in ((1, 1, 1), (16, 16, 1), (1, 257, 2), (27, 19, 3)):
        position, stream = torch.zeros(rows, width, dtype=INT), torch.zeros(rows, 1, dtype=INT)
        draw = torch.zeros(rows, width, dtype=INT)
        noted_launches.name(position=position, stream=stream, draw=draw)
        for given_draw in (7, draw):
            keys = backend.noise_keys(stream, position, given_draw)
            assert (keys.shape, keys.dtype) == ((4, rows, width), INT)
            name, grid, given, named = noted_launches.only()
            told = "draw" if given_draw is draw else "7"
            pair = (width, 1)
            strides = repr(((1, 1), pair, pair))
            assert (name, repr(grid)) == ("noise_keys", repr((blocks, 4)))
            assert given == ["stream", "position", told, f"i64[4, {rows}, {width}]", repr((rows, width)), strides]
            assert named == {"GIVEN": given_draw is draw, "BLOCK": 256, "num_warps": 1}
        probability = torch.zeros(rows, width)
        noted_launches.name(probability=probability)
        accepted = backend.accept(probability, draw)
        assert (accepted.shape, accepted.dtype) == ((rows, width), torch.bool)
        name, grid, given, named = noted_launches.only()
        assert (name, repr(grid)) == ("accept", repr((blocks,)))
        assert given == ["probability", "draw", f"bool[{rows}, {width}]", str(rows * width)]
        assert named == {"BLOCK": 256, "enable_fp_fusion": False}


def test_the_rest_of_a_layer_is_launched_with_its_operands_in_this_order(noted_launches: _Launches) -> None:
    backend = _compiled()
    keys, values = torch.zeros(2, 2, 3, 40, 20)
    new_keys, new_values = torch.zeros(2, 2, 3, 5, 20)
    cells = torch.zeros(2, 5, dtype=INT)
    noted_launches.name(keys=keys, values=values, new_keys=new_keys, new_values=new_values, cells=cells)
    backend.kv_append(keys, values, new_keys, new_values, cells)
    arena, new = (2400, 800, 20, 1), (300, 100, 20, 1)
    assert noted_launches.only() == (
        "kv_append",
        (10, 3),
        ["keys", "values", "new_keys", "new_values", "cells", "(5, 20)", repr((arena, arena, new, new, (5, 1)))],
        {"BLOCK": 32, "num_warps": 1, **FUSED},
    )
    query, few = torch.zeros(2, 6, 5, 20, dtype=HALF), torch.zeros(2, 3, 5, 20, dtype=HALF)
    cos, sin = torch.zeros(2, 1, 5, 20, dtype=HALF)
    noted_launches.name(query=query, few=few, cos=cos, sin=sin)
    turned = backend.rotary(query, few, cos, sin)
    assert [(t.shape, t.dtype) for t in turned] == [(query.shape, HALF), (few.shape, HALF)]
    out, angles = ["bf16[2, 6, 5, 20]", "bf16[2, 3, 5, 20]"], (0, 20, 1)
    strides = repr(((600, 100, 20, 1), (300, 100, 20, 1), angles, angles))
    assert noted_launches.only() == (
        "rotary",
        (10, 9),
        [
            "query",
            "few",
            "cos",
            "sin",
            *out,
            "(6, 5, 10)",
            repr(((600, 100, 20, 1), (300, 100, 20, 1), angles, angles)),
        ],
        {"BLOCK": 16, "num_warps": 1, **FUSED},
    )
    for size, blocks in ((1024, 1), (1025, 2)):
        gate, up = torch.zeros(2, 2, 3, size, dtype=F16)
        noted_launches.name(gate=gate, up=up)
        assert backend.silu_mul(gate, up).dtype == F16
        strides = repr((6 * size, 3 * size, size, 1))
        assert noted_launches.only() == (
            "silu_mul",
            (6, blocks),
            ["gate", "up", f"f16[2, 3, {size}]", f"(1, 2, 3, {size})", strides, strides],
            {"BLOCK": 1024, **FUSED},
        )


def test_an_interpreted_backend_multiplies_and_returns_float32(noted_launches: _Launches) -> None:
    backend = Triton()
    query, arena = torch.zeros(1, 2, 3, 4, dtype=HALF), torch.zeros(1, 1, 5, 4, dtype=HALF)
    assert backend.tree_attention(query, arena, arena, torch.zeros(1, 1, 3, 5), 0.5, None).dtype == HALF
    _, _, given, named = noted_launches.only()
    assert (given[5], named["WIDE"]) == ("f32[1, 3, 2, 4]", True)
    assert backend.linear(query, Quantised.of(torch.zeros(6, 4), 8), None).dtype == HALF
    _, _, given, named = noted_launches.only()
    assert (given[7], named["WIDE"]) == ("f32[1, 2, 3, 6]", True)
    for out, place in ((backend.rms_norm(query, query[0, 0, 0], 1e-5, 0.0), 2), (backend.silu_mul(query, query), 2)):
        assert out.dtype == HALF
        assert noted_launches.seen.pop(0)[2][place] == "f32[1, 2, 3, 4]"


def _layer(size: int) -> DecoderWeights:
    inner, hidden = 40, 32
    shapes = ((4 * size, hidden), (hidden, 2 * size), (2 * inner, hidden), (hidden, inner))
    qkv, out, gate_up, down = (torch.zeros(shape) for shape in shapes)
    norms = [torch.zeros(hidden) for _ in range(2)]
    mats = (qkv, None, out, None), (gate_up, None, down, None)
    return DecoderWeights(norms[0], 0.25, *mats[0], norms[1], 0.5, *mats[1], 1.0, 2, 1, size, 0.125)


def _run_layers(*sizes: int) -> None:
    layers = [_layer(size) for size in sizes]
    cells = torch.zeros(1, 3, dtype=INT)
    arenas = [torch.zeros(2, 1, 1, 9, size) for size in sizes]
    at = [Cells(keys, values, cells, torch.zeros(1, 1, 3, 7)) for keys, values in arenas]
    angle = torch.zeros(1, 3, sizes[0])
    _compiled(exact=True).decoder_layers(torch.zeros(1, 3, 32), layers, (angle, angle), at)


def test_a_layer_is_six_launches_unless_its_heads_do_not_fit_a_program(noted_launches: _Launches) -> None:
    joined = ["linear", "rotary_append", "tree_attention", "linear", "linear", "linear"]
    one_by_one = ["rms_norm", "linear", "rotary", "kv_append", "tree_attention", "linear"]
    one_by_one += ["rms_norm", "linear", "silu_mul", "linear"]
    for size, wanted in ((2, joined), (4, joined), (256, joined), (258, one_by_one), (512, one_by_one)):
        _run_layers(size)
        assert [launch[0] for launch in noted_launches.seen] == wanted, size
        noted_launches.seen.clear()
    _run_layers(8, 8)
    assert [launch[0] for launch in noted_launches.seen] == joined * 2


def test_the_launches_of_a_layer_take_in_its_norms_gate_and_sums(noted_launches: _Launches) -> None:
    _run_layers(20)
    products = [launch for launch in noted_launches.seen if launch[0] == "linear"]
    flags = ("BIASED", "NORMED", "GATED", "ADDED")
    assert [tuple(named[flag] for flag in flags) for _, _, _, named in products] == [
        (False, True, False, False),
        (False, False, False, True),
        (False, True, True, False),
        (False, False, False, True),
    ]
    assert [given[8:11] for _, _, given, _ in products] == [
        ["0.25", "1.0", "(3, 80, 32)"],
        ["0.0", "0.0", "(3, 32, 40)"],
        ["0.5", "1.0", "(3, 40, 32)"],
        ["0.0", "0.0", "(3, 32, 40)"],
    ]
    _, grid, given, named = noted_launches.seen[1]
    assert grid == (3, 4)
    arena = (180, 180, 20, 1)
    strides = ((240, 80, 20, 1), (60, 20, 1), (60, 20, 1), (3, 1), arena, arena)
    shapes = ["f32[1, 3, 4, 20]", "f32[1, 3, 20]", "f32[1, 3, 20]", "i64[1, 3]", *["f32[1, 1, 9, 20]"] * 2]
    assert given == [*shapes, "f32[1, 3, 2, 20]", "(2, 1, 3, 10)", repr(strides)]
    assert named == {"BLOCK": 16, "num_warps": 1, **FUSED}
    _, grid, given, _ = noted_launches.seen[2]
    assert grid == (1, 1, 1)
    assert given[9:12] == ["0.125", "1.0", "(2, 3, 7, 20, 256, 1)"]
