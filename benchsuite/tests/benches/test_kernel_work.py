"""The work on which kernels are timed: documented shapes, arguments as shapes say, bytes and operations as they are."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

from benchsuite.benches.kernels.shapes import PROCESSED, VERIFIED, WIDTHS, Target, Work
from benchsuite.conformance.guards.tape import result_tensors
from benchsuite.conformance.models import families
from specdec import Registry, catalog
from specdec.decoder import DecoderWeights
from specdec.interfaces import OPS as NAMES
from specdec.messages import Window
from specdec.model import ArenaModel
from specdec.packed import Weight
from specdec.quantised import GROUP, Quantised
from specdec.request import SamplingParams
from specdec.sampling import Purpose
from specdec_kernels.reference import Reference

OPS = Registry().backend("reference")
DOCUMENTED = Path(__file__).parents[3] / "docs" / "kernels.md"

WHOLE = (
    "rms_norm",
    "rotary",
    "silu_mul",
    "linear",
    "tree_attention",
    "process",
    "sample",
    "accept",
    "noise_keys",
    "kv_plan",
    "verify_prefix",
)
"""Ops that read all of their arguments, apart from a mask or an index, and write their results."""

ROWS_OF_TWO = ("rejection_sample", "block_sample", "tree_sample")
"""Ops that read the distributions of one slot a row."""

DRAWING = ("process", "sample", *ROWS_OF_TWO)
"""Ops over logits or what is made of them."""

HALVES = (torch.float32, torch.bfloat16)


@cache
def tiny(dtype: torch.dtype) -> ArenaModel:
    """The tiny model."""
    return ArenaModel(catalog.load("tiny", torch.device("cpu"), dtype).model, OPS)


def target(dtype: torch.dtype = torch.float32) -> Target:
    """The shapes of the tiny model."""
    return Target(tiny(dtype))


def timed_work(op: str, dtype: torch.dtype = torch.float32) -> list[Work]:
    """All work of one op."""
    return list(target(dtype).work(op))


def traffic_of(work: Work) -> tuple[int, int, int]:
    """Do the work on the reference; return the bytes of arguments and results, those changed in place, and the
    floating-point operations of its products."""
    given = [one for call in work.calls for one in result_tensors(call)]
    before = [one.clone() for one in given]
    with FlopCounterMode(display=False) as counter:
        made = [getattr(OPS, work.op)(*call) for call in work.calls]
    changed = sum(int((old != new).sum()) * new.itemsize for old, new in zip(before, given, strict=True))
    both = sum(one.nbytes for one in (*given, *result_tensors(made)))
    return both, changed, counter.get_total_flops()


def documented(what: str) -> set[str]:
    """The shapes that the documentation lists, with the tiny model's sizes."""
    shapes = target()
    _, table = DOCUMENTED.read_text().split("| what | shapes |")
    line = next(line for line in table.splitlines() if line.startswith(f"| {what} |"))
    sizes = {"H": shapes.hidden, "I": shapes.inner, "Q": shapes.heads, "N": shapes.heads_kv, "D": shapes.head_dim}
    text = re.sub(r"(\d+) to (\d+)", lambda m: ", ".join(map(str, range(int(m[1]), int(m[2]) + 1))), line.split("|")[2])
    if "x" in text:
        text = re.sub("[HIQND]", lambda match: str(sizes[match[0]]), text)
    parts = [part.strip().partition("=") for part in text.split(";")]
    if not all(re.fullmatch(r"[\d, ]+", numbers) for _, _, numbers in parts):
        return {shape.strip() for shape in text.split(",")}
    choices = [[f"{letter}={number}" for number in numbers.split(", ")] for letter, _, numbers in parts]
    return {" ".join(chosen) for chosen in itertools.product(*choices)}


@pytest.mark.parametrize(
    ("what", "op", "kind"),
    [
        *((f"`linear` {kind}", "linear", kind) for kind in ("float32", "bfloat16")),
        *(("`linear` int8, int4", "linear", kind) for kind in ("int8", "int4")),
        *((f"`{op}`", op, None) for op in ("rms_norm", "rotary", "silu_mul", "decoder_layers", "tree_attention")),
        *((f"`{op}`", op, None) for op in ("kv_append", "kv_compact", "kv_plan", "emit")),
        *(("`accept`, `noise_keys`", op, None) for op in ("accept", "noise_keys")),
    ],
)
def test_an_op_is_timed_at_the_documented_shapes(what: str, op: str, kind: str | None) -> None:
    found = [work.shape for work in timed_work(op) if kind in (None, work.kind)]
    assert sorted(found) == sorted(documented(what))


def test_ops_that_draw_are_timed_at_the_documented_batches_and_vocabularies() -> None:
    listed, own = documented("ops that draw or verify, CPU and MPS"), target().vocabulary
    assert {work.shape for work in timed_work("verify_prefix")} == listed
    for op in ROWS_OF_TWO:
        assert {work.shape for work in timed_work(op)} == {f"{shape} V={own}" for shape in listed}
    wider = {re.sub(r"K=(\d+)", lambda match: f"W={int(match[1]) + 1} V={own}", shape) for shape in listed}
    assert {work.shape for work in timed_work("sample")} == wider | {f"{shape} greedy" for shape in wider}
    assert {work.shape for work in timed_work("process")} == {
        f"{shape} {name}" for shape in wider for name in PROCESSED
    }
    shapes = {device: {f"B={b} K={k}" for b, k, _ in VERIFIED[device]} for device in ("cpu", "mps")}
    assert shapes == dict.fromkeys(shapes, listed)
    assert {f"B={b} K={k} V={v}" for b, k, v in VERIFIED["cuda"]} == documented("the same on CUDA")
    assert {f"W={width}" for width in WIDTHS} == documented("the whole model")


def test_logits_are_processed_with_the_documented_parameters_each_of_which_is_used() -> None:
    alone, every = PROCESSED["temperature"], PROCESSED["every"]
    assert alone == SamplingParams(temperature=every.temperature)
    unused = {one.name for one in fields(SamplingParams) if getattr(every, one.name) == one.default}
    assert unused == {"seed", "max_new_tokens", "stop", "logprobs"}, "these change no logit"
    text = re.search(r"`process` is timed .*?tokens\.", DOCUMENTED.read_text(), re.DOTALL)
    assert text
    bias = [value for _, value in every.bias]
    filters = every.temperature, every.top_k, every.top_p, every.min_p
    penalties = every.repetition_penalty, every.frequency_penalty, every.presence_penalty
    adjusted = [work.calls[0][1].adjustments for work in timed_work("process") if work.shape.endswith(" every")]
    prompts = {number for one in adjusted for number in one.length.tolist()}
    given = [*prompts, *filters, *penalties, *bias, every.min_new_tokens]
    assert [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text[0])] == given
    named = [*every.eos, *(token for token, _ in every.bias), *itertools.chain(*every.bad_words)]
    assert sorted(named) == list(range(len(named))), "no token is named twice"
    assert {len(word) for word in every.bad_words} == {1, 2}


def test_logits_are_processed_along_the_paths_of_their_windows_where_the_text_counts() -> None:
    for work in timed_work("process"):
        [(logits, given, paths)] = work.calls
        assert [f"{letter}={size}" for letter, size in zip("BWV", logits.shape, strict=True)] == work.shape.split()[:3]
        assert (paths is None) == (given.adjustments is None) == work.shape.endswith(" temperature")


def test_a_window_that_is_planned_ends_with_the_last_cell() -> None:
    for work in timed_work("kv_plan"):
        [(window, committed, _, capacity, look, _, _)] = work.calls
        assert (committed + window.width).tolist() == [capacity] == [look]


def chained(rows: int, width: int) -> list[tuple[int, ...]]:
    """The shapes of a window's tensors, without a distribution."""
    return [(rows, width), (rows, width), (rows,)]


def sizes_of(op: str, shape: str, one: Target) -> list[tuple[int, ...]]:
    """The shapes of an op's arguments, tensor by tensor, by the text of its shape."""
    n = [int(number) for number in re.findall(r"\d+", shape)]
    whole, cells = (1, one.heads_kv, 4096, one.head_dim), (1, one.heads_kv, n[-1], one.head_dim)
    makers: dict[str, Callable[[], list[tuple[int, ...]]]] = {
        "rms_norm": lambda: [(1, n[0], n[1]), (n[1],)],
        "rotary": lambda: [(1, n[1], n[0], n[3]), (1, n[2], n[0], n[3]), *[(1, n[0], n[3])] * 2],
        "silu_mul": lambda: [(1, n[0], n[1])] * 2,
        "kv_append": lambda: [whole] * 2 + [(1, one.heads_kv, n[0], one.head_dim)] * 2 + [(1, n[0])],
        "kv_compact": lambda: [whole] * 2 + [(1, n[0])] * 2,
        "tree_attention": lambda: [(1, one.heads, n[0], one.head_dim), cells, cells, (1, 1, n[0], n[1])],
        "sample": lambda: [(n[0], n[1], n[2])] + [(n[0], n[1])] * (not shape.endswith("greedy")),
        "accept": lambda: [(n[0], n[1])] * 2,
        "verify_prefix": lambda: [*chained(n[0], n[1] + 1), (n[0], n[1] + 1)],
        "emit": lambda: [*chained(n[0], n[1]), (n[0], n[1]), (n[0],), (n[0],), (n[0], 4096), (n[0],)],
        "noise_keys": lambda: [(n[0],), (n[0], n[1])],
        "kv_plan": lambda: [*chained(1, n[0]), (1,)],
        **dict.fromkeys(
            ROWS_OF_TWO,
            lambda: [(n[0], n[1] + 1, n[2]), *chained(n[0], n[1] + 1), (n[0], n[1], n[2]), *[(n[0], n[1] + 1)] * 3],
        ),
    }
    return makers[op]()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", [op for op in NAMES if op not in ("linear", "decoder_layers", "process")])
def test_the_arguments_of_an_op_have_the_sizes_that_its_shape_says(op: str, dtype: torch.dtype) -> None:
    for work in timed_work(op, dtype):
        [call] = work.calls
        assert [tuple(one.shape) for one in result_tensors(call)] == sizes_of(op, work.shape, target(dtype)), work.shape
        real = [one.dtype for one in result_tensors(call) if one.is_floating_point()]
        assert set(real) <= {torch.float32 if op in (*DRAWING, "accept") else dtype}
        assert (work.op, f"torch.{work.kind}") == (op, str(dtype if op == "kv_plan" else next(_kinds(call))))


def _kinds(call: tuple[object, ...]) -> itertools.chain[torch.dtype]:
    """The dtypes of an op's own tensors, of windows and verdicts apart."""
    return itertools.chain(one.dtype for one in call if isinstance(one, Tensor))


@pytest.mark.parametrize("op", [op for op in NAMES if op not in ("linear", "process")])
def test_windows_are_whole_cells_in_range_and_keys_of_all_bits(op: str) -> None:
    drawn: list[Tensor] = []
    for work in target().work(op):
        for call in work.calls:
            if op != "kv_plan":  # whose masks are infinite
                assert all(torch.isfinite(made).all() for made in result_tensors(getattr(OPS, op)(*call)))
            for window in (one for one in call if isinstance(one, Window)):
                assert window.width.tolist() == [window.tokens.shape[1]] * len(window.tokens), "no slot is padding"
            drawn += [one for one in call if isinstance(one, Tensor) and one.dtype == torch.int64 and one.max() > 2**50]
    if op in ("sample", "accept", "noise_keys", *ROWS_OF_TWO):
        keys = torch.cat([one.flatten() for one in drawn])
        assert 0 <= keys.min() < 2**60 < 2**61 < keys.max() < 2**62


def test_half_of_the_tokens_that_are_verified_are_those_that_were_chosen() -> None:
    for work in timed_work("verify_prefix"):
        [(window, choices)] = work.calls
        assert {*window.tokens.flatten().tolist(), *choices.flatten().tolist()} == {0, 1}


def test_logits_and_weights_have_the_spread_that_is_documented() -> None:
    [(logits, _)] = timed_work("sample")[0].calls
    assert float(logits.std()) == pytest.approx(4, rel=0.1)
    [(_, (layer,), _, _)] = timed_work("decoder_layers")[0].calls
    for matrix in (layer.qkv, layer.out, layer.gate_up, layer.down):
        assert float(matrix.std()) * matrix.shape[1] ** 0.5 == pytest.approx(1, rel=0.1), "as large as what it is given"
    for work in timed_work("rms_norm"):
        [(x, weight, *rest)] = work.calls
        assert float((OPS.rms_norm(x, weight, *rest) / weight).square().mean()) == pytest.approx(1, rel=1e-3)


def test_the_layer_and_the_attention_that_are_timed_are_the_models() -> None:
    one = target()
    for work in timed_work("decoder_layers"):
        [(x, (layer,), (turn, _), (at,))] = work.calls
        width, length = (int(number) for number in re.findall(r"\d+", work.shape))
        assert (tuple(x.shape), tuple(turn.shape)) == ((1, width, one.hidden), (1, width, one.head_dim))
        assert tuple(at.keys.shape) == tuple(at.values.shape) == (1, one.heads_kv, length, one.head_dim)
        assert (tuple(at.cells.shape), tuple(at.mask.shape)) == ((1, width), (1, 1, width, length))
        assert (layer.norm_offset, layer.eps_before, layer.eps_after) == (0, pytest.approx(1e-5), pytest.approx(1e-5))
        assert layer.scaling**2 * one.head_dim == pytest.approx(1)
        both, _, _ = traffic_of(work)
        assert 0.9 * both <= work.moved <= both
    for work in timed_work("tree_attention"):
        assert work.calls[0][4] ** 2 * one.head_dim == pytest.approx(1)
    weights = [tuple(matrix.shape) for matrix in one.matrices]
    [(_, (layer,), _, _)] = timed_work("decoder_layers")[0].calls
    up = (one.inner, one.hidden)
    assert tuple(layer.gate_up.shape) == (2 * up[0], up[1])
    assert {up, tuple(layer.out.shape), tuple(layer.down.shape)} <= set(weights)
    assert tuple(layer.qkv.shape) == ((one.heads + 2 * one.heads_kv) * one.head_dim, one.hidden)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_layer_is_timed_in_the_dtype_of_the_model_alone(dtype: torch.dtype) -> None:
    for work in timed_work("decoder_layers", dtype):
        given = [one.dtype for one in result_tensors(work.calls) if one.is_floating_point()]
        assert {*given} == {dtype}
        assert work.kind == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("dtype", HALVES)
def test_every_matrix_is_multiplied_once_with_an_input_of_the_kind_of_its_sums(dtype: torch.dtype) -> None:
    for work in timed_work("linear", dtype):
        given = torch.bfloat16 if work.kind == "bfloat16" else dtype
        assert len(work.calls) == len(target(dtype).matrices)
        for (x, weight, bias), matrix in zip(work.calls, target(dtype).matrices, strict=True):
            assert (x.dtype, tuple(x.shape), bias) == (given, (int(work.shape[2:]), matrix.shape[1]), None)
            if work.kind in ("int8", "int4"):
                assert isinstance(weight, Quantised)
                assert weight.bits == int(work.kind.removeprefix("int"))
            else:
                assert str(weight.dtype) == f"torch.{work.kind}"
                assert torch.equal(weight, matrix.to(weight.dtype))


def test_groups_of_weights_are_timed_only_where_all_rows_are_whole_groups() -> None:
    config = {"vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    for inner, timed in ((2 * GROUP, True), (2 * GROUP + 2, False)):
        model = LlamaForCausalLM(LlamaConfig(**config, hidden_size=2 * GROUP, intermediate_size=inner))
        kinds = Counter(work.kind for work in Target(ArenaModel(model, OPS)).work("linear"))
        assert ("int4" in kinds) is timed
        assert kinds["int8"] > 0


def test_a_model_that_does_not_name_its_inner_size_has_four_times_its_hidden_one() -> None:
    model = families.build_model("gpt2")
    assert Target(ArenaModel(model, OPS)).inner == model.transformer.h[0].mlp.c_fc.weight.shape[1]


def test_two_runs_time_the_same_numbers() -> None:
    first, second = (
        [one for op in NAMES for one in result_tensors(next(Target(model).work(op)).calls)]
        for model in [tiny(torch.float32)] * 2
    )
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


class Packing(Reference):
    """A backend that has a form of its own for every matrix, and counts what it packs and what it runs."""

    name = "packing"

    def __init__(self) -> None:
        self.packed: Counter[int] = Counter()
        self.given: list[object] = []

    def pack(self, weight: Weight) -> Weight:
        """A copy."""
        assert isinstance(weight, Tensor)
        self.packed[id(weight)] += 1
        return weight.clone()

    def rms_norm(self, *given: object) -> Tensor:
        """Note what it was given."""
        self.given.append(given)
        return torch.zeros(1)


def test_a_matrix_is_packed_once_for_all_the_work_it_is_part_of() -> None:
    ops, kept = Packing(), dict[int, tuple[object, object]]()
    every = [work for work in timed_work("linear") if work.kind == "float32"][:3]
    for work in every:
        mine = work.on(ops, kept)
        for (x, weight, bias), (same, packed, none) in zip(work.calls, mine.calls, strict=True):
            assert (same is x, none is bias) == (True, True)
            assert packed is not weight
            assert torch.equal(packed, weight)
        assert (mine.op, mine.shape, mine.moved) == (work.op, work.shape, work.moved)
    assert ops.packed == {id(weight): 1 for _, weight, _ in every[0].calls}
    layered = timed_work("decoder_layers")
    for work in layered:
        [(_, (layer,), *_)] = work.on(ops, kept).calls
        assert isinstance(layer, DecoderWeights)
        assert layer.qkv is not work.calls[0][1][0].qkv
    assert ops.packed[id(layered[0].calls[0][1][0].qkv)] == 1
    untouched = timed_work("rms_norm")[0]
    assert untouched.on(ops, kept) is untouched


def test_work_is_done_by_one_call_for_each_of_its_arguments() -> None:
    ops, work = Packing(), timed_work("rms_norm")[0]
    work.do(ops)
    assert ops.given == list(work.calls)


@pytest.mark.parametrize("op", WHOLE)
def test_an_op_that_reads_all_it_is_given_moves_its_arguments_and_its_results(op: str) -> None:
    for work in timed_work(op)[:6]:
        both, changed, _ = traffic_of(work)
        assert 0.85 * both <= work.moved <= both, work.shape
        assert changed == 0


def test_emitted_tokens_are_read_once_and_written_twice() -> None:
    [work] = target().work("emit")
    [(window, verdict, text, length)] = work.calls
    assert set(verdict.num_accepted.tolist()) == {window.tokens.shape[1] - 1}, "all of them"
    assert set(length.tolist()) == {128}
    both, _, _ = traffic_of(work)
    both += window.tokens.nbytes - text.nbytes
    assert 0.8 * both <= work.moved <= both


def test_the_cells_that_are_kept_of_a_window_are_different_and_move_to_its_beginning() -> None:
    [(_, _, source, target_cells)] = timed_work("kv_compact")[0].calls
    assert sorted(set(source[0].tolist())) == source[0].tolist()
    assert target_cells.tolist() == [list(range(source.shape[1]))]
    assert (source >= target_cells).all()


def test_an_op_in_place_moves_what_it_changes_read_and_written() -> None:
    for work in target().work("kv_append"):
        assert work.moved == 2 * traffic_of(work)[1]
    [work] = target().work("kv_compact")
    [(_, _, source, cells)] = work.calls
    moving = int((source != cells).sum())
    assert 0 < moving <= source.shape[1]
    assert work.moved * moving == 2 * traffic_of(work)[1] * source.shape[1], "one in its own place does not change"


@pytest.mark.parametrize("op", ROWS_OF_TWO)
def test_a_sampler_reads_target_and_draft_at_one_slot_of_each_row(op: str) -> None:
    for work in timed_work(op):
        rows, vocabulary = (int(part.partition("=")[2]) for part in work.shape.split() if part[0] in "BV")
        assert work.moved == 2 * rows * vocabulary * (4 + 4)
        [(distribution, window, *_)] = work.calls
        assert all(torch.allclose(law.sum(dim=-1), torch.ones(())) for law in (distribution, window.q))


def bytes_of(op: str, shape: str, one: Target) -> int:
    """The bytes that an op has to read and to write, by the text of its shape and the sizes of the model.

    Floats are of the model's dtype, but logits, probabilities and laws of four bytes; tokens, keys and places of eight.
    """
    n, size = [int(number) for number in re.findall(r"\d+", shape)], one.dtype.itemsize
    hidden, inner, q, kv, d = one.hidden, one.inner, one.heads, one.heads_kv, one.head_dim
    rows, last = n[0], n[-1]
    law = 4 * last  # bytes of one slot's logits, or of one law over the vocabulary
    adjusted = shape.endswith(" every")
    counted: dict[str, Callable[[], int]] = {
        "rms_norm": lambda: size * (rows * hidden + hidden + rows * hidden),
        "rotary": lambda: size * (rows * (q + kv) * d + 2 * rows * d + rows * (q + kv) * d),  # cosine and sine beside
        "silu_mul": lambda: size * (rows * inner + rows * inner + rows * inner),
        "decoder_layers": lambda: (
            size * ((q + kv + kv) * d * hidden + q * d * hidden + 3 * inner * hidden)
            + size * (last * kv * d + last * kv * d)
        ),
        "kv_append": lambda: size * 2 * (rows * kv * d + rows * kv * d),  # keys and values, from here to there
        "kv_compact": lambda: size * 2 * (rows * kv * d + rows * kv * d),
        "tree_attention": lambda: size * (rows * q * d + last * kv * d + last * kv * d + rows * q * d),
        "process": lambda: rows * n[1] * law + rows * n[1] * law + adjusted * rows * (law + law + last),
        "sample": lambda: rows * n[1] * law,
        "accept": lambda: rows * last * 4 + rows * last * 8,
        "verify_prefix": lambda: 8 * rows * (last + 1) * len(("tokens", "parents", "choices", "path")),
        "emit": lambda: 8 * rows * last * len(("tokens", "parents", "path", "text", "emitted")),
        "kv_plan": lambda: size * rows * last,
        "noise_keys": lambda: 8 * rows * last * len(("position", *Purpose)),
        **dict.fromkeys(ROWS_OF_TWO, lambda: rows * 2 * (law + law)),  # target's and draft's, twice
    }
    return counted[op]()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", [op for op in NAMES if op != "linear"])
def test_the_bytes_of_an_op_are_those_of_what_it_reads_and_writes(op: str, dtype: torch.dtype) -> None:
    for work in timed_work(op, dtype):
        assert work.moved == bytes_of(op, work.shape, target(dtype)), work.shape


@pytest.mark.parametrize("dtype", HALVES)
def test_the_bytes_of_products_are_those_of_codes_and_scales_and_both_ends(dtype: torch.dtype) -> None:
    shapes = [tuple(matrix.shape) for matrix in target(dtype).matrices]
    bits = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 4}
    scales = {"int8": sum(n * 4 for n, _ in shapes), "int4": sum(n * k // GROUP * (4 + 4) for n, k in shapes)}
    for work in timed_work("linear", dtype):
        end = 2 if work.kind == "bfloat16" else dtype.itemsize
        weights = sum(n * k for n, k in shapes) * bits[work.kind] // 8 + scales.get(work.kind, 0)
        assert work.moved == weights + end * int(work.shape[2:]) * sum(n + k for n, k in shapes)


@pytest.mark.parametrize("op", ["linear", "decoder_layers"])
def test_products_have_the_operations_that_torch_counts(op: str) -> None:
    for work in timed_work(op)[:20:3]:
        _, _, operations = traffic_of(work)
        assert work.operations == operations, work.shape


def test_attention_has_the_operations_of_its_two_products() -> None:
    for work in timed_work("tree_attention"):
        [(query, keys, values, *_)] = work.calls
        groups = query.shape[1] // keys.shape[1]
        keys, values = (one.repeat_interleave(groups, dim=1) for one in (keys, values))
        with FlopCounterMode(display=False) as counter:
            (query @ keys.transpose(-1, -2)).softmax(-1) @ values
        assert work.operations == counter.get_total_flops()


@pytest.mark.parametrize("op", sorted(set(NAMES) - {"linear", "decoder_layers", "tree_attention"}))
def test_an_op_without_products_has_none_of_their_operations(op: str) -> None:
    assert {work.operations for work in timed_work(op)} == {0}
